"""Turned activations on the CPU: (N, K) with features first, (K, N), and back; what both GEMM families stand on.

BLAS is faster with the features first, and in the order of a tile pattern's classes each class is one dense block there. The
loops go in squares of a cache line a side: with a size that the compiler knows it unrolls them into vector instructions, and
what is left at the edges goes one by one. What else passes over an activation is done on the way: bias, ReLU, their gradients.
"""
from __future__ import annotations

import functools

import numpy as np
from numba import float32

from . import threads
from .launch import host_kernel
from .memory import empty_cpu

SIDE = 16  # of a square: a cache line of float32
NOTHING = np.zeros(0, np.float32)


@host_kernel("void(f4[:, ::1], f4[:, ::1], b1, i8[::1], f4, i8, i8, f4[:, ::1], f4[::1])")
def _turn_in(x, y, gated, place, scale, first, stop, turned, sums):
    """turned[place[i], n] = scale * z[n, i], but not where place < 0, and sums[i] += sum_n z[n, i] unless sums is empty, for
    first <= i < stop; z[n, i] = x[n, i], but 0 where gated and y[n, i] is not above 0.
    """
    square = np.empty((SIDE, SIDE), np.float32)
    for n0 in range(0, x.shape[0], SIDE):
        n1 = min(n0 + SIDE, x.shape[0])
        for i0 in range(first, stop, SIDE):
            i1 = min(i0 + SIDE, stop)
            if n1 - n0 < SIDE or i1 - i0 < SIDE:
                for i in range(i0, i1):
                    for n in range(n0, n1):
                        z = float32(0) if gated and not y[n, i] > 0 else x[n, i]
                        if place[i] >= 0:
                            turned[place[i], n] = scale * z
                        if sums.size:
                            sums[i] += z
                continue
            for n in range(SIDE):
                for i in range(SIDE):
                    square[np.uint64(n), np.uint64(i)] = x[np.uint64(n0 + n), np.uint64(i0 + i)]
            if gated:
                for n in range(SIDE):
                    for i in range(SIDE):
                        z, gate = square[np.uint64(n), np.uint64(i)], y[np.uint64(n0 + n), np.uint64(i0 + i)]
                        square[np.uint64(n), np.uint64(i)] = z if gate > 0 else float32(0)
            for i in range(SIDE):
                if place[i0 + i] >= 0:
                    for n in range(SIDE):
                        turned[np.uint64(place[i0 + i]), np.uint64(n0 + n)] = scale * square[np.uint64(n), np.uint64(i)]
                if sums.size:
                    total = float32(0)
                    for n in range(SIDE):
                        total += square[np.uint64(n), np.uint64(i)]
                    sums[i0 + i] += total


def turn_in(x, places, place, scale=1.0, y=None, sums=NOTHING):
    """turned[place[i], n] = scale * z[n, i] in `places` rows, by all threads; z is x, with a y given only where y > 0, else 0.
    Adds sum_n z[n, i] to sums[i], where sums is given."""
    turned = empty_cpu((places, x.shape[0]))

    def work(part):
        own = part.of(x.shape[1])
        _turn_in(x, x if y is None else y, y is not None, place, scale, own.start, own.stop, turned, sums)

    threads.share(work, threads.worthwhile(x.size))
    return turned


@host_kernel("void(f4[:, :, ::1], i8[::1], f4[:, ::1], i8, i8, f4[::1], b1, b1, f4, f4)")
def _turn_back(terms, place, c, first, stop, bias, biased, relu, scale, alpha):
    """c[m, n] = scale * act(alpha * sum_t terms[t, place[n], m] + bias[n]) for first <= n < stop; 0 for a place below 0."""
    square = np.empty((SIDE, SIDE), np.float32)
    low = float32(0) if relu else float32(-np.inf)
    for n0 in range(first, stop, SIDE):
        n1 = min(n0 + SIDE, stop)
        for m0 in range(0, c.shape[0], SIDE):
            m1 = min(m0 + SIDE, c.shape[0])
            if n1 - n0 < SIDE or m1 - m0 < SIDE:
                for n in range(n0, n1):
                    for m in range(m0, m1):
                        value = float32(0)
                        if place[n] >= 0:
                            for t in range(terms.shape[0]):
                                value += terms[t, place[n], m]
                        value = alpha * value + (bias[n] if biased else float32(0))
                        c[m, n] = scale * (low if value < low else value)  # in this order NaN passes
                continue
            for n in range(SIDE):
                row = square[n]
                row[:] = 0
                if place[n0 + n] >= 0:
                    for t in range(terms.shape[0]):
                        for m in range(SIDE):
                            row[np.uint64(m)] += terms[t, np.uint64(place[n0 + n]), np.uint64(m0 + m)]
                added = bias[n0 + n] if biased else float32(0)
                for m in range(SIDE):
                    value = alpha * row[np.uint64(m)] + added
                    row[np.uint64(m)] = scale * (low if value < low else value)
            for m in range(SIDE):
                for n in range(SIDE):
                    c[np.uint64(m0 + m), np.uint64(n0 + n)] = square[np.uint64(n), np.uint64(m)]


_in_order = functools.lru_cache(maxsize=64)(np.arange)


def turn_back(terms, c, cols, bias=None, relu=False, scale=1.0, alpha=1.0, place=None):
    """c[m, n] = scale * act(alpha * sum_t terms[t, place[n], m] + bias[n]) for n in a slice; place None: place[n] = n."""
    place = _in_order(c.shape[1]) if place is None else place
    _turn_back(terms, place, c, cols.start, cols.stop, NOTHING if bias is None else bias, bias is not None, relu, scale, alpha)
