"""Parameter updates in place, each fused into one pass over the weight; g is the gradient, w the weight, t the step (from 1):

    sgd    g += decay w;  v = momentum v + g;  w -= lr v        (nesterov: w -= lr (g + momentum v))
    adam   g += decay w;  m = b1 m + (1 - b1) g;  s = b2 s + (1 - b2) g²;
           w -= lr (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps)

as PyTorch computes them. w, v, m, s are (R, C). The gradient is dense (R, C), or packed: only the rows and columns that a plan
kept, with kept = (row_pos, row_class, cols, col_pos), int32 arrays:

    row_pos (R,)     row of g that belongs to row r, or -1: no gradient
    row_class (R,)   which list of columns row r keeps
    cols (L, K)      column of w of the k-th value in a row of class l, or -1: nothing there
    col_pos (L, C)   its inverse: place of column c in a row of class l, or -1: no gradient
"""
from __future__ import annotations

import math

import numpy as np
from numba import float32

from . import threads
from .launch import cuda, host_kernel, kernel, kernels, launch
from .memory import THREADS, blocks_for, empty_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def unpack_gradient_reference(g, kept, shape):
    """The dense gradient: dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] where both are >= 0, else 0."""
    if kept is None:
        return np.float64(g)
    row_pos, row_class, _, col_pos = map(np.asarray, kept)
    places = col_pos[row_class]
    rows, cols = np.nonzero((row_pos[:, None] >= 0) & (places >= 0))
    dense = np.zeros(shape)
    dense[rows, cols] = g[row_pos[rows], places[rows, cols]]
    return dense


def sgd_reference(w, v, g, lr, momentum=0.0, nesterov=False, decay=0.0, kept=None):
    """(w, v) after the step, float64."""
    w, v = np.float64(w), np.float64(v)
    g = unpack_gradient_reference(g, kept, w.shape) + decay * w
    v = momentum * v + g
    return w - lr * (g + momentum * v if nesterov else v), v


def adam_reference(w, m, s, g, lr, beta1, beta2, eps, step, decay=0.0, kept=None):
    """(w, m, s) after the step, float64."""
    w, m, s = np.float64(w), np.float64(m), np.float64(s)
    g = unpack_gradient_reference(g, kept, w.shape) + decay * w
    m, s = beta1 * m + (1 - beta1) * g, beta2 * s + (1 - beta2) * g * g
    return w - lr * (m / (1 - beta1**step)) / (np.sqrt(s / (1 - beta2**step)) + eps), m, s


def _check(op, w, states, g, kept):
    fits = w.ndim == 2 and all(state.shape == w.shape for state in states)
    if kept is None:
        fits = fits and g.shape == w.shape
    else:
        row_pos, row_class, _, col_pos = kept
        fits = fits and g.ndim == 2 and row_pos.shape == row_class.shape == w.shape[:1] and col_pos.shape[1:] == w.shape[1:]
    if not fits:
        raise ValueError(f"{op}: w {w.shape}, state {[state.shape for state in states]} and gradient {g.shape} do not match"
                         f"{'' if kept is None else ' under the given rows and columns'}")


# --- CPU --------------------------------------------------------------------------------------------------------------
# A packed gradient is spread, row by row, over a buffer that stays in the nearest cache: the weight is passed over once. The
# buffer has one place more than a row, where the entries -1 of `cols` end up.
@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i4[::1], i4[:, ::1], f4, f4, b1, f4)")
def _sgd(w, v, g, packed, row_pos, row_class, cols, lr, momentum, nesterov, decay):
    spread, last = np.zeros(w.shape[1] + 1, np.float32), -1
    for r in range(w.shape[0]):
        if packed:
            place = row_pos[r]
            columns = row_class[r] if place >= 0 else -1
            if columns != last:
                spread[:] = 0
                last = columns
            if place >= 0:
                for k in range(cols.shape[1]):
                    spread[cols[columns, k]] = g[place, k]
        row = spread if packed else g[r]
        for c in range(w.shape[1]):
            d = row[c] + decay * w[r, c]
            v[r, c] = momentum * v[r, c] + d
            w[r, c] -= lr * (d + momentum * v[r, c] if nesterov else v[r, c])


def unpack_gradient_cpu(g, kept, shape):
    """The dense gradient: dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] where both are >= 0, else 0"""
    return unpack_gradient_reference(g, kept, shape).astype(np.float32)


_ALL = (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros((0, 0), np.int32))  # not read under a dense gradient


def _share_rows(update, arrays, g, kept, *numbers):
    """The update on each thread's rows of the weight and its state."""
    row_pos, row_class, cols = _ALL if kept is None else kept[:3]

    def work(part):
        rows = part.of(arrays[0].shape[0])
        update(*(array[rows] for array in arrays), g[rows] if kept is None else g, kept is not None,
               row_pos[rows], row_class[rows], cols, *numbers)

    threads.share(work, threads.worthwhile(arrays[0].size))


def sgd_cpu(w, v, g, lr, momentum=0.0, nesterov=False, decay=0.0, kept=None):
    """g += decay w;  v = momentum v + g;  w -= lr v   (nesterov: w -= lr (g + momentum v)), in place"""
    _check("sgd (cpu)", w, (v,), g, kept)
    _share_rows(_sgd, (w, v), g, kept, lr, momentum, nesterov, decay)


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i4[::1], i4[:, ::1],"
             " f4, f4, f4, f4, f4, f4, f4)")
def _adam(w, m, s, g, packed, row_pos, row_class, cols, lr, beta1, beta2, eps, correct1, correct2, decay):
    spread, last = np.zeros(w.shape[1] + 1, np.float32), -1
    for r in range(w.shape[0]):
        if packed:
            place = row_pos[r]
            columns = row_class[r] if place >= 0 else -1
            if columns != last:
                spread[:] = 0
                last = columns
            if place >= 0:
                for k in range(cols.shape[1]):
                    spread[cols[columns, k]] = g[place, k]
        row = spread if packed else g[r]
        for c in range(w.shape[1]):
            d = row[c] + decay * w[r, c]
            m[r, c] = beta1 * m[r, c] + (float32(1) - beta1) * d
            s[r, c] = beta2 * s[r, c] + (float32(1) - beta2) * d * d
            w[r, c] -= lr * (m[r, c] * correct1) / (math.sqrt(s[r, c] * correct2) + eps)


def adam_cpu(w, m, s, g, lr, beta1, beta2, eps, step, decay=0.0, kept=None):
    """w -= lr m' / (sqrt(s') + eps) with bias-corrected m', s', in place"""
    _check("adam (cpu)", w, (m, s), g, kept)
    _share_rows(_adam, (w, m, s), g, kept, lr, beta1, beta2, eps, 1 / (1 - beta1**step), 1 / (1 - beta2**step), decay)


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels
def _updates():
    @kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i4[::1], i4[:, ::1], f4, f4, b1, f4)")
    def sgd_step(w, v, g, packed, row_pos, row_class, col_pos, lr, momentum, nesterov, decay):
        """One thread, one weight; a packed gradient is looked up, zero where the plan kept nothing."""
        i = cuda.grid(1)
        if i < w.size:
            r, c = i // w.shape[1], i % w.shape[1]
            row, col = (row_pos[r], col_pos[row_class[r], c]) if packed else (r, c)
            d = decay * w[r, c]
            if row >= 0 and col >= 0:
                d += g[row, col]
            new = momentum * v[r, c] + d
            v[r, c] = new
            w[r, c] -= lr * (d + momentum * new if nesterov else new)

    @kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i4[::1], i4[:, ::1],"
            " f4, f4, f4, f4, f4, f4, f4)")
    def adam_step(w, m, s, g, packed, row_pos, row_class, col_pos, lr, beta1, beta2, eps, correct1, correct2, decay):
        """One thread, one weight; a packed gradient is looked up, zero where the plan kept nothing."""
        i = cuda.grid(1)
        if i < w.size:
            r, c = i // w.shape[1], i % w.shape[1]
            row, col = (row_pos[r], col_pos[row_class[r], c]) if packed else (r, c)
            d = decay * w[r, c]
            if row >= 0 and col >= 0:
                d += g[row, col]
            m_new = beta1 * m[r, c] + (float32(1) - beta1) * d
            s_new = beta2 * s[r, c] + (float32(1) - beta2) * d * d
            m[r, c] = m_new
            s[r, c] = s_new
            w[r, c] -= lr * (m_new * correct1) / (math.sqrt(s_new * correct2) + eps)

    @kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f4[:, ::1])")
    def unpack(g, row_pos, row_class, col_pos, dense):
        """One thread, one weight: its gradient, zero where the plan kept nothing."""
        i = cuda.grid(1)
        if i < dense.size:
            r, c = i // dense.shape[1], i % dense.shape[1]
            row, col = row_pos[r], col_pos[row_class[r], c]
            dense[r, c] = g[row, col] if row >= 0 and col >= 0 else float32(0)

    return sgd_step, adam_step, unpack


def _kept_arguments(kept):
    """The arguments of the kernels for a packed or a dense gradient; for a dense one the arrays are not read."""
    if kept is not None:
        row_pos, row_class, _, col_pos = kept
        return True, row_pos, row_class, col_pos
    if not _unread:
        _unread.extend(cuda.to_device(a) for a in (np.zeros(1, np.int32), np.zeros((1, 1), np.int32)))
    return False, _unread[0], _unread[0], _unread[1]


_unread: list = []


def unpack_gradient_cuda(g, kept, shape):
    """The dense gradient: dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] where both are >= 0, else 0"""
    row_pos, row_class, _, col_pos = kept
    dense = empty_cuda(shape)
    launch(_updates()[2], blocks_for(dense.size), THREADS, g, row_pos, row_class, col_pos, dense)
    return dense


def sgd_cuda(w, v, g, lr, momentum=0.0, nesterov=False, decay=0.0, kept=None):
    """g += decay w;  v = momentum v + g;  w -= lr v   (nesterov: w -= lr (g + momentum v)), in place"""
    _check("sgd (cuda)", w, (v,), g, kept)
    launch(_updates()[0], blocks_for(w.size), THREADS, w, v, g, *_kept_arguments(kept), lr, momentum, nesterov, decay)


def adam_cuda(w, m, s, g, lr, beta1, beta2, eps, step, decay=0.0, kept=None):
    """w -= lr m' / (sqrt(s') + eps) with bias-corrected m', s', in place"""
    _check("adam (cuda)", w, (m, s), g, kept)
    launch(_updates()[1], blocks_for(w.size), THREADS, w, m, s, g, *_kept_arguments(kept),
           lr, beta1, beta2, eps, 1 / (1 - beta1**step), 1 / (1 - beta2**step), decay)
