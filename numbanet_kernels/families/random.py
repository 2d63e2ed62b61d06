"""Random numbers without state: element i is a function of (key, counter, i), the same on every device, in any order.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011) maps a counter of
four 32-bit words and a key of two to four words of random bits; ten times over,
    (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)),
    (k0, k1) <- (k0 + W0, k1 + W1).
Element i is word i % 4 of the call with counter words (i//4 low, i//4 high, counter low, counter high).

random_bits  bits[i]
uniform      u[i] = floor(bits[i] / 2^8) / 2^24, in [0, 1)
normal       Box-Muller on neighbours: z[2j], z[2j+1] = r (cos, sin)(2 pi u[2j+1]), r = sqrt(-2 log(1 - u[2j]))
dropout      y[i] = x[i] scale where bits[i] / 2^32 >= rate, else 0: compared as integers, so that every device keeps
             the same elements. Linear and self-adjoint: the same call on dy is the backward pass. Its key may be an array
             of the device (`key_words`), so that what is recorded can be done with another one.
"""
from __future__ import annotations

import math

import numpy as np
from numba import float32, int32, uint32, uint64

from ..layouts.samples import key_words
from ..runtime.arrays import to_device
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import launch
from ..runtime.memory import THREADS, blocks_for, ceil_div, empty_cpu, empty_cuda, flat, output

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW, WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
ROUNDS = 10
BITS, UNIFORM, NORMAL, DROPOUT = range(4)
UINT32 = np.dtype(np.uint32)


def _words(value, name):
    """(low, high) 32-bit words of a Python int."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"random: {name} {value} is not in [0, 2**64)")
    return int(value) & 0xFFFFFFFF, int(value) >> 32


def _key(key, put):
    """The array of a key's words on the device."""
    if isinstance(key, (int, np.integer)):
        _words(key, "key")
        return put(key_words(int(key)))
    expect("random", key=(key, (2,), INT32))
    return key


def _threshold_and_scale(rate, scale):
    """The least t with t / 2^32 >= rate (an element is kept where its bits are >= t), and 1/(1 - rate) unless given."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate {rate} is not in [0, 1)")
    return min(math.ceil(rate * 2**32), 0xFFFFFFFF), float(1 / (1 - rate) if scale is None else scale)


# --- reference --------------------------------------------------------------------------------------------------------
def philox_reference(counter, key):
    """Four words for each counter.   counter (..., 4), key (2,) -> (..., 4), 32-bit words kept in uint64"""
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


def uniform_reference(key, counter, shape):
    return (random_bits_reference(key, counter, math.prod(shape)) >> 8).reshape(shape) / 2.0**24


def normal_reference(key, counter, shape):
    size = math.prod(shape)
    u = uniform_reference(key, counter, (ceil_div(size, 2), 2))
    r = np.sqrt(-2 * np.log(1 - u[:, 0]))
    z = np.stack([r * np.cos(2 * np.pi * u[:, 1]), r * np.sin(2 * np.pi * u[:, 1])], axis=-1)
    return z.reshape(-1)[:size].reshape(shape)


def dropout_reference(x, rate, key, counter, scale=None):
    x = np.asarray(x, np.float64)
    kept = random_bits_reference(key, counter, x.size).reshape(x.shape) / 2.0**32 >= rate
    return np.where(kept, x * (1 / (1 - rate) if scale is None else scale), 0)


# --- CPU --------------------------------------------------------------------------------------------------------------
# Words are kept in 64-bit lanes with empty upper halves: so the compiler sees that one vector multiplication serves
# both hi and lo, and vectorises the loop over calls. It ends at the last whole call; a ragged end is done apart.
@host_kernel("void(u8, u8, u8, u8, i8, u4[::1])")
def _fill_bits(key0, key1, counter2, counter3, first, bits):
    """bits[i] of the calls first, first + 1, ...; bits.size is a multiple of 4."""
    for j in range(bits.size // 4):
        c0, c1, c2, c3 = uint64(first + j) & LOW, uint64(first + j) >> WORD, counter2, counter3
        k0, k1 = key0, key1
        for _ in range(ROUNDS):
            p0, p1 = M0 * c0, M1 * c2
            c0, c1, c2, c3 = (p1 >> WORD) ^ c1 ^ k0, p1 & LOW, (p0 >> WORD) ^ c3 ^ k1, p0 & LOW
            k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
        bits[4 * j], bits[4 * j + 1], bits[4 * j + 2], bits[4 * j + 3] = c0, c1, c2, c3


@host_kernel("void(i4[::1], u8, u8, u8, f4, f4[::1], f4[::1])")
def _drop(key, counter2, counter3, threshold, scale, x, y):
    """y[i] = x[i] scale where bits[i] >= threshold, else 0."""
    zero, key0, key1 = float32(0), uint64(uint32(key[0])), uint64(uint32(key[1]))
    for j in range(x.size // 4):
        c0, c1, c2, c3 = uint64(j) & LOW, uint64(j) >> WORD, counter2, counter3
        k0, k1 = key0, key1
        for _ in range(ROUNDS):
            p0, p1 = M0 * c0, M1 * c2
            c0, c1, c2, c3 = (p1 >> WORD) ^ c1 ^ k0, p1 & LOW, (p0 >> WORD) ^ c3 ^ k1, p0 & LOW
            k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
        y[4 * j] = x[4 * j] * scale if c0 >= threshold else zero
        y[4 * j + 1] = x[4 * j + 1] * scale if c1 >= threshold else zero
        y[4 * j + 2] = x[4 * j + 2] * scale if c2 >= threshold else zero
        y[4 * j + 3] = x[4 * j + 3] * scale if c3 >= threshold else zero
    last = x.size // 4
    if 4 * last < x.size:
        c0, c1, c2, c3 = uint64(last) & LOW, uint64(last) >> WORD, counter2, counter3
        k0, k1 = key0, key1
        for _ in range(ROUNDS):
            p0, p1 = M0 * c0, M1 * c2
            c0, c1, c2, c3 = (p1 >> WORD) ^ c1 ^ k0, p1 & LOW, (p0 >> WORD) ^ c3 ^ k1, p0 & LOW
            k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
        for i in range(4 * last, x.size):
            bits = c0 if i == 4 * last else c1 if i == 4 * last + 1 else c2
            y[i] = x[i] * scale if bits >= threshold else zero


def _bits_from(key, counter, first, count):
    """The words of the calls first to first + count - 1."""
    bits = empty_cpu((4 * count,), np.uint32)
    _fill_bits(*_words(key, "key"), *_words(counter, "counter"), first, bits)
    return bits


def random_bits_cpu(key, counter, size, out=None):
    """bits[i] = word i % 4 of Philox(key; i//4, counter).   -> (size,) uint32"""
    bits = _bits_from(key, counter, 0, ceil_div(size, 4))[:size]
    if out is None:
        return bits
    np.copyto(output("random_bits (cpu)", empty_cpu, out, (size,), UINT32), bits)
    return out


def uniform_cpu(key, counter, shape, out=None):
    """u[i] = floor(bits[i] / 2^8) / 2^24, in [0, 1)"""
    out = output("uniform (cpu)", empty_cpu, out, shape)
    return np.multiply((random_bits_cpu(key, counter, out.size) >> 8).reshape(out.shape), 2.0**-24, out=out,
                       casting="unsafe", dtype=np.float32)


def normal_cpu(key, counter, shape, out=None):
    """z[2j], z[2j+1] = r (cos, sin)(2 pi u[2j+1]), r = sqrt(-2 log(1 - u[2j]))"""
    out = output("normal (cpu)", empty_cpu, out, shape)
    u = uniform_cpu(key, counter, (ceil_div(out.size, 2), 2))
    r = np.sqrt(np.float32(-2) * np.log(1 - u[:, 0]))
    angle = np.float32(2 * math.pi) * u[:, 1]
    z = np.stack([r * np.cos(angle), r * np.sin(angle)], axis=-1)
    np.copyto(out, z.reshape(-1)[:out.size].reshape(out.shape))
    return out


def dropout_cpu(x, rate, key, counter, scale=None, out=None):
    """y[i] = x[i] scale where bits[i] / 2^32 >= rate, else 0; scale = 1/(1 - rate) unless given"""
    out = output("dropout (cpu)", empty_cpu, out, x=x)
    threshold, scale = _threshold_and_scale(rate, scale)
    _drop(_key(key, np.asarray), *_words(counter, "counter"), threshold, scale, flat(x), flat(out))
    return out


# --- CUDA -------------------------------------------------------------------------------------------------------------
PITCH = THREADS + 8  # of the words of a block, by word and thread: whoever writes or reads them meets 32 banks
ROOM = 4 * PITCH


@kernels("random")
def _philox_kernels():
    """One kernel a use of the bits, in the order of the constants. A thread makes one call, for four elements; these go through
    shared memory, so that neighbouring threads read and write neighbours."""
    def declared(use, kind):
        @kernel(f"void({kind}[::1], {kind}[::1], i4[::1], u4, u4, u4, f4)")
        def philox(x, y, key, counter2, counter3, threshold, scale):
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
                place = part * THREADS + t
                i = cuda.blockIdx.x * (4 * THREADS) + place
                if i >= y.size:
                    return
                word, call = place & 3, place >> 2
                bits = words[word * PITCH + call]
                if use == BITS:
                    y[i] = bits
                elif use == UNIFORM:
                    y[i] = float32(bits >> uint32(8)) * float32(2.0**-24)
                elif use == DROPOUT:
                    y[i] = x[i] * scale if bits >= threshold else float32(0)
                else:
                    pair0, pair1 = words[(word & 2) * PITCH + call], words[(word | 1) * PITCH + call]
                    share = float32(1) - float32(pair0 >> uint32(8)) * float32(2.0**-24)
                    r = math.sqrt(float32(-2) * math.log(share))
                    # reduced to an eighth of the circle, polynomials do: the library's cos and sin need a stack frame
                    eighth = pair1 >> uint32(29)
                    quarter = (eighth + uint32(1)) >> uint32(1)
                    turn = float32(pair1 >> uint32(8)) * float32(2.0**-24) - float32(quarter) * float32(0.25)
                    a = turn * float32(2 * math.pi)
                    s = a * a
                    sine = a * (float32(1) - s * (float32(1 / 6) - s * (float32(1 / 120) - s * (
                        float32(1 / 5040) - s * float32(1 / 362880)))))
                    cosine = float32(1) - s * (float32(0.5) - s * (float32(1 / 24) - s * (
                        float32(1 / 720) - s * float32(1 / 40320))))
                    step = (quarter + uint32(3) * uint32(word & 1)) & uint32(3)  # sin(v) = cos(v - quarter turn)
                    side = cosine if step & uint32(1) == 0 else sine
                    y[i] = r * (-side if step == 1 or step == 2 else side)
        return philox

    return tuple(declared(use, "u4" if use == BITS else "f4") for use in range(DROPOUT + 1))


def _fill(use, x, out, key, counter, threshold=0, scale=0.0):
    words = (_key(key, to_device), *_words(counter, "counter"))
    grid = blocks_for(ceil_div(out.size, 4))
    launch(_philox_kernels()[use], grid, THREADS, flat(x), flat(out), *words, threshold, scale)
    return out


def random_bits_cuda(key, counter, size, out=None):
    out = output("random_bits (cuda)", empty_cuda, out, (size,), UINT32)
    return _fill(BITS, out, out, key, counter)


def uniform_cuda(key, counter, shape, out=None):
    out = output("uniform (cuda)", empty_cuda, out, shape)
    return _fill(UNIFORM, out, out, key, counter)


def normal_cuda(key, counter, shape, out=None):
    out = output("normal (cuda)", empty_cuda, out, shape)
    return _fill(NORMAL, out, out, key, counter)


def dropout_cuda(x, rate, key, counter, scale=None, out=None):
    out = output("dropout (cuda)", empty_cuda, out, x=x)
    return _fill(DROPOUT, x, out, key, counter, *_threshold_and_scale(rate, scale))


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "random_bits": lambda: dev.random_bits(5, 6, N * O),
        "uniform": lambda: dev.uniform(5, 6, (N, O)),
        "normal": lambda: dev.normal(5, 6, (N, O)),
        "dropout": lambda: dev.dropout(a(N, O), 0.4, 5, 6),
        "dropout, key in memory": lambda: dev.dropout(a(7, 9), 0.4, key_words(3 << 40), 6),
    }
