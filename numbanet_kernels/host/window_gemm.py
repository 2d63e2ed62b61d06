"""Window GEMM: products with a window of contiguous rows and columns of a weight. BLAS takes views, so nothing is copied.

    forward    out[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[k])
    back       out[n, j] = alpha * sum_k dy[n, k] w[rows[k], cols[j]]

A window of an axis is one slice, or two if it wraps around the end of the axis (`layouts.rows.Window.pieces`). So a product is
up to four calls of BLAS, and their results are summed while they are transposed.
"""

from __future__ import annotations

from ..runtime.memory import empty_cpu
from . import blas, threads
from .transpose import transpose_back

Piece = tuple[int, slice]  # position among the kept indices, slice of the axis


def _pieces(index, n) -> list[Piece]:
    """The non-empty pieces of a `Window` of an axis of length n; if index is None, one piece: the whole axis."""
    pieces = [(0, slice(0, n))] if index is None else index.pieces()
    return [(at, source) for at, source in pieces if source.stop > source.start]


def _within(pieces: list[Piece], part: slice) -> list[Piece]:
    """The intersections of the pieces with a slice of the kept indices."""
    found = []
    for at, source in pieces:
        first, last = max(at, part.start), min(at + source.stop - source.start, part.stop)
        if last > first:
            found.append((first, slice(source.start + first - at, source.start + last - at)))
    return found


def _at(at: int, source: slice) -> slice:
    """The slice of the kept indices that a piece covers."""
    return slice(at, at + source.stop - source.start)


def multiply_window(x, w, rows, cols, out, bias=None, relu=False, scale=1.0):
    """out = scale * act(x w[rows, cols].T + bias), with act = ReLU if `relu`.

    rows and cols are a `Window` each, or None for all; bias has one value for each row of the window.
    """
    high, wide, kept = _pieces(rows, w.shape[0]), _pieces(cols, w.shape[1]), out.shape[1]
    terms = empty_cpu((max(len(wide), 1), kept, x.shape[0]))
    if not wide:
        terms[...] = 0

    def work(part):
        own = part.of(kept)
        for at, source in _within(high, own):
            for term, (first, columns) in zip(terms, wide):
                blas.matmul(w[source, columns], x[:, _at(first, columns)].T, out=term[_at(at, source)])
        transpose_back(terms, out, own, bias, relu, scale)

    threads.share(work, flops=2 * out.size * x.shape[1])
    return out


def multiply_window_back(dy, w, rows, cols, out, alpha=1.0):
    """out = alpha * dy w[rows, cols]; rows and cols are a `Window` each, or None for all. Each thread sums over its part of
    rows.
    """
    high, wide, flops = _pieces(rows, w.shape[0]), _pieces(cols, w.shape[1]), 2 * out.size * dy.shape[1]
    with threads.held(flops):
        count = threads.parts(flops=flops)
        own = [_within(high, threads.Part(number, count).of(dy.shape[1])) for number in range(count)]
        firsts = [sum(map(len, own[:number])) for number in range(count + 1)]
        terms = empty_cpu((max(firsts[-1], 1), out.shape[1], dy.shape[0]))
        if not firsts[-1]:
            terms[...] = 0

        def work(part):
            for term, (at, source) in zip(terms[firsts[part.number] :], own[part.number]):
                for first, columns in wide:
                    blas.matmul(w[source, columns].T, dy[:, _at(at, source)].T, out=term[_at(first, columns)])

        threads.share(work, flops=flops)
        threads.share(lambda part: transpose_back(terms, out, part.of(out.shape[1]), alpha=alpha), flops=flops)
    return out
