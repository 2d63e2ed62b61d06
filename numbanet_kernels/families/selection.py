"""Choosing what will be computed, from guesses of it:

    scores     s[o] = sum_n max(0, x[n] . w[o] + bias[o])      x (N, I), w (O, I), bias (O,) or None -> s (O,)

what outputs give on to the next layer after ReLU, summed over samples. The product (N, O) is never kept.
"""
from __future__ import annotations

import functools

import numpy as np
from numba import float32

from ..host import narrow, threads
from ..host.lanes import WIDTH
from ..host.narrow import multiply_panel
from ..host.transposition import NOTHING
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import expect, shapes
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat
from .gemm import gemm_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def scores_reference(x, w, bias=None):
    """s = sum of max(0, x w.T + bias) over samples, in float64"""
    return np.maximum(np.float64(x) @ np.float64(w).T + (0 if bias is None else np.float64(bias)), 0).sum(0)


_CHECKS = {op: shapes(op, x="NI", w="OI", bias="O") for op in ("scores (cpu)", "scores (cuda)")}


# --- CPU --------------------------------------------------------------------------------------------------------------
# A few samples with a weight that stays for many steps: BLAS would pack it in each, which takes longer than the product.
@host_kernel("void(f4[:, :, ::1], i8, f4[:, :, :, ::1], i4[::1], f4[::1], b1, f4[::1], i8, i8)")
def _scores(x, samples, panels, rows, bias, biased, sums, first, stop):
    """The sums of the panels first … stop - 1; x (tiles, depth, samples of a tile)."""
    size = x.shape[2]
    values = np.empty((size, WIDTH), np.float32)
    for b in range(first, stop):
        own, o = sums[b * WIDTH:(b + 1) * WIDTH], b * WIDTH
        own[:] = 0
        for t in range(x.shape[0]):
            multiply_panel(x[t], panels[0, b], rows, values)
            for r in range(min(size, samples - t * size)):
                for v in range(own.size):
                    value = values[r, v] + (bias[o + v] if biased else float32(0))
                    own[v] += float32(0) if value < 0 else value  # not max(): NaN stays NaN


def scores_packed_cpu(w):
    """w as `scores` reads it: who has it packed spares the time where w stays as it is."""
    expect("scores_packed (cpu)", w=(w, ("O", "I")))
    return narrow.packed_outputs(w, _numbers(w.shape[1]), 1, lambda work: threads.share(work, w.size))


_numbers = functools.lru_cache(maxsize=64)(lambda n: np.arange(n, dtype=np.int32))


def scores_cpu(x, w, bias=None, packed=None):
    """s[o] = sum_n max(0, x[n] . w[o] + bias[o]); `packed` is what `scores_packed` gives for w"""
    n, inputs, outputs = _CHECKS["scores (cpu)"](x, w, bias)
    packed = scores_packed_cpu(w) if packed is None else packed
    expect("scores (cpu)", packed=(packed, (1, ceil_div(outputs, WIDTH), inputs + 1, WIDTH)))
    rows, depth = narrow.all_rows(inputs)
    size, sums = narrow.tile_of(n), empty_cpu((outputs,))
    tiles = narrow.tiles(n, size, depth)[0]
    for t, tile in enumerate(tiles):
        some = x[t * size:(t + 1) * size]
        tile[:inputs, :len(some)] = some.T

    def work(part):
        own = part.of(packed.shape[1])
        _scores(tiles, n, packed, rows[0], NOTHING if bias is None else bias, bias is not None, sums, own.start, own.stop)

    threads.share(work, flops=2 * x.size * outputs)
    return sums


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("selection")
def _summing():
    @kernel("void(f4[::1], f4[::1], b1, f4[::1], i4)")
    def sum_positive(values, bias, biased, sums, samples):
        """One thread, one output: neighbouring threads read neighbours."""
        o = cuda.grid(1)
        if o < sums.size:
            total, added = float32(0), bias[o] if biased else float32(0)
            for n in range(samples):
                value = values[n * sums.size + o] + added
                if not value < float32(0):  # NaN stays NaN
                    total += value
            sums[o] = total

    return sum_positive


def scores_packed_cuda(w):
    """w as it is: nothing is packed."""
    return w


def scores_cuda(x, w, bias=None, packed=None):
    _CHECKS["scores (cuda)"](x, w, bias)
    values, sums = gemm_cuda(x, w, tb=True), empty_cuda((w.shape[0],))
    launch(_summing(), blocks_for(sums.size), THREADS, flat(values), sums if bias is None else bias, bias is not None, sums,
           x.shape[0])
    return sums


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {"scores": lambda: dev.scores(a(16, I), a(2 * O, I), a(2 * O))}
