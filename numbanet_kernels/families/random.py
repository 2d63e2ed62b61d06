"""Dropout by counter-based random numbers: the number for element i is a function of (key, counter, i), the same on every
device and in any order.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011) maps a counter of
four 32-bit words and a key of two to four words of random bits; ten times over,
    (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)),
    (k0, k1) <- (k0 + W0, k1 + W1).
bits[i] is word i % 4 of the call with counter words (i//4 low, i//4 high, counter low, counter high).

dropout      y[i] = x[i] scale if bits[i] / 2^32 >= rate, else 0: compared as integers, so that every device keeps the same
             elements. Linear and self-adjoint: the same call on dy is the backward pass. The key may be an array on the device
             (`key_words`), so that a recorded step can be replayed with another one.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, int32, uint32, uint64

from ..host import threads
from ..layouts.samples import key_words
from ..runtime.arrays import to_device
from ..runtime.declare import cuda, host_kernel, inlined_function, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import launch
from ..runtime.memory import THREADS, blocks_for, ceil_div, empty_cpu, empty_cuda, flat, output

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW, WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
ROUNDS = 10
COST = 4  # of an element, in elements of a pass that only copies


def _words(value, name):
    """Return the (low, high) 32-bit words of a Python int."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"random: {name} {value} is not in [0, 2**64)")
    return int(value) & 0xFFFFFFFF, int(value) >> 32


def _key(key, put):
    """Return the words of a key as an array on the device."""
    if isinstance(key, (int, np.integer)):
        _words(key, "key")
        return put(key_words(int(key)))
    expect("random", key=(key, (2,), INT32))
    return key


def _threshold_and_scale(rate, scale):
    """Return (threshold, scale): the least t with t / 2^32 >= rate, so that an element is kept if its bits are >= t; and 1 / (1
    - rate) unless `scale` is given.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate {rate} is not in [0, 1)")
    return min(math.ceil(rate * 2**32), 0xFFFFFFFF), float(1 / (1 - rate) if scale is None else scale)


# --- reference --------------------------------------------------------------------------------------------------------
def philox_reference(counter, key):
    """Return four words for each counter.   counter (..., 4), key (2,) -> (..., 4), 32-bit words in uint64"""
    c = np.asarray(counter, np.uint64)
    k = np.asarray(key, np.uint64)
    for _ in range(ROUNDS):
        p0, p1 = M0 * c[..., 0], M1 * c[..., 2]
        c = np.stack([(p1 >> WORD) ^ c[..., 1] ^ k[0], p1 & LOW, (p0 >> WORD) ^ c[..., 3] ^ k[1], p0 & LOW], axis=-1)
        k = (k + np.array([W0, W1])) & LOW
    return c


def random_bits_reference(key, counter, size):
    calls = np.arange(ceil_div(size, 4), dtype=np.uint64)
    upper = [np.full(calls.size, word, np.uint64) for word in _words(counter, "counter")]
    words = philox_reference(np.stack([calls & LOW, calls >> WORD, *upper], axis=-1), _words(key, "key"))
    return words.reshape(-1)[:size].astype(np.uint32)


def dropout_reference(x, rate, key, counter, scale=None):
    x = np.asarray(x, np.float64)
    mask = random_bits_reference(key, counter, x.size).reshape(x.shape) / 2.0**32 >= rate
    return np.where(mask, x * (1 / (1 - rate) if scale is None else scale), 0)


# --- CPU --------------------------------------------------------------------------------------------------------------
# Words are stored in 64-bit lanes with empty upper halves, so that LLVM uses one vector multiplication for both hi and lo and
# vectorises the loop over calls. The loop ends at the last whole call; a separate loop does the remainder.
@inlined_function
def _philox(call, counter2, counter3, key0, key1):
    """Return the four words of a call."""
    c0, c1, c2, c3 = uint64(call) & LOW, uint64(call) >> WORD, counter2, counter3
    for _ in range(ROUNDS):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (p1 >> WORD) ^ c1 ^ key0, p1 & LOW, (p0 >> WORD) ^ c3 ^ key1, p0 & LOW
        key0, key1 = (key0 + W0) & LOW, (key1 + W1) & LOW
    return c0, c1, c2, c3


@host_kernel("void(i4[::1], u8, u8, u8, f4, i8, f4[::1], f4[::1])")
def _drop(key, counter2, counter3, threshold, scale, first, x, y):
    """y[i] = x[i] scale if bits[4 first + i] >= threshold, else 0."""
    zero, key0, key1 = float32(0), uint64(uint32(key[0])), uint64(uint32(key[1]))
    for j in range(x.size // 4):
        c0, c1, c2, c3 = _philox(first + j, counter2, counter3, key0, key1)
        # all loads come before any branch, so that LLVM vectorises the loop
        x0, x1, x2, x3 = x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]
        y[4 * j] = x0 * scale if c0 >= threshold else zero
        y[4 * j + 1] = x1 * scale if c1 >= threshold else zero
        y[4 * j + 2] = x2 * scale if c2 >= threshold else zero
        y[4 * j + 3] = x3 * scale if c3 >= threshold else zero
    last = x.size // 4
    if 4 * last < x.size:
        c0, c1, c2, _ = _philox(first + last, counter2, counter3, key0, key1)
        for i in range(4 * last, x.size):
            bits = c0 if i == 4 * last else c1 if i == 4 * last + 1 else c2
            y[i] = x[i] * scale if bits >= threshold else zero


def dropout_cpu(x, rate, key, counter, scale=None, out=None):
    """y[i] = x[i] scale if bits[i] / 2^32 >= rate, else 0; scale = 1/(1 - rate) unless given"""
    out = output("dropout (cpu)", empty_cpu, out, x=x)
    numbers = *_words(counter, "counter"), *_threshold_and_scale(rate, scale)
    key, x, y, calls = _key(key, np.asarray), flat(x), flat(out), ceil_div(out.size, 4)

    def work(part):
        own = part.of(calls)
        elements = slice(4 * own.start, 4 * own.stop)
        _drop(key, *numbers, own.start, x[elements], y[elements])

    threads.share(work, COST * out.size)
    return out


# --- CUDA -------------------------------------------------------------------------------------------------------------
PITCH = THREADS + 8  # distance of the words of a block in shared memory, stored by word and thread; it avoids bank conflicts
ROOM = 4 * PITCH


@kernels("random")
def _dropout_kernel():
    """Return the kernel; each thread makes one call, whose four elements pass through shared memory to be coalesced."""

    @kernel("void(f4[::1], f4[::1], i4[::1], u4, u4, u4, f4)")
    def dropout(x, y, key, counter2, counter3, threshold, scale):
        key0, key1 = uint32(key[0]), uint32(key[1])
        words = cuda.shared.array(ROOM, uint32)
        t = int32(cuda.threadIdx.x)
        c0, c1, c2, c3 = uint32(cuda.grid(1)), uint32(0), counter2, counter3
        k0, k1 = key0, key1
        for _ in range(ROUNDS):
            p0, p1 = M0 * uint64(c0), M1 * uint64(c2)
            c0, c2 = uint32(uint32(p1 >> WORD) ^ c1 ^ k0), uint32(uint32(p0 >> WORD) ^ c3 ^ k1)
            c1, c3 = uint32(p1 & LOW), uint32(p0 & LOW)
            k0, k1 = uint32((uint64(k0) + W0) & LOW), uint32((uint64(k1) + W1) & LOW)
        words[t], words[t + PITCH], words[t + 2 * PITCH], words[t + 3 * PITCH] = c0, c1, c2, c3
        cuda.syncthreads()
        for part in range(4):
            index = part * THREADS + t
            i = cuda.blockIdx.x * (4 * THREADS) + index
            if i >= y.size:
                return
            bits = words[(index & 3) * PITCH + (index >> 2)]
            y[i] = x[i] * scale if bits >= threshold else float32(0)

    return dropout


def dropout_cuda(x, rate, key, counter, scale=None, out=None):
    out = output("dropout (cuda)", empty_cuda, out, x=x)
    launch(
        _dropout_kernel(),
        blocks_for(ceil_div(out.size, 4)),
        THREADS,
        flat(x),
        flat(out),
        _key(key, to_device),
        *_words(counter, "counter"),
        *_threshold_and_scale(rate, scale),
    )
    return out


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "dropout": lambda: dev.dropout(a(N, O), 0.4, 5, 6),
        "dropout, key in memory": lambda: dev.dropout(a(7, 9), 0.4, key_words(3 << 40), 6),
    }
