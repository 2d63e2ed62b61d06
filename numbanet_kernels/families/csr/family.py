"""Matrix product with listed entries of a weight w (O, I), a CSR or an ELL (`layouts.sparse`; at is an `Entries`):

    csr       y[n, o]   = act(sum_k values[k] x[n, ids[k]] + b[o])   over the entries k of row o     x (N, I) -> y (N, O)
    csr_dx    dx[n, i]  = sum_k values[places[k]] dy[n, col_ids[k]]  over those of column i          dy (N, O) -> dx (N, I)
    csr_dw    dw[k]     = sum_n dy[n, row of k] x[n, ids[k]]         at the entries alone            dy, x -> (V,)

2 N nnz FLOPs each. An entry brings one float of the weight and its index, and N of the activation: samples are what vectors
lie along, so activations are transposed first (`csr_transposed`), neurons before samples, once for the forward pass and dw, and
once for dx and dw. Sums repeat bit by bit; what is padding has the gradient 0.

rows and cols, `layouts.rows.RowLists`, thin out: y and dy hold the kept neurons alone, x and dx the kept inputs, and entries
of others are left out, with a dw of 0. That is how sparse activations come: as a list of live inputs, which all samples of a
batch share. A list for each sample (x as CSR) would leave vectors of samples half empty, and cost a search an entry: at 50 %
zeros, as ReLU leaves, all of 16 neighbours are 0 once in 65,536 times.

On the CPU (`cpu_loops`) the ceiling is what the second-level cache gives, 32 bytes a cycle for 4 a multiply-add; on CUDA the
same lines come from L2, coalesced along samples, and a warp shares an entry. An ELL is no faster than a CSR here: that its rows
are equally long saves two numbers a row.
"""

from __future__ import annotations

import numpy as np

from ...layouts.entries import Entries, entries
from ...layouts.rows import RowLists
from ...runtime.expect import INT32, expect


# --- reference --------------------------------------------------------------------------------------------------------
def _dense_reference(values, at, rows=None, cols=None):
    """(w, which value each element is), float64 and int: 0 and -1 where there is none, or nothing is kept."""
    w, of = np.zeros((at.starts.size, at.col_starts.size)), np.full((at.starts.size, at.col_starts.size), -1)
    for o, (start, stop) in enumerate(zip(at.starts, at.stops)):
        w[o, at.ids[start:stop]], of[o, at.ids[start:stop]] = values[start:stop], np.arange(start, stop)
    rows = np.arange(len(w)) if rows is None else np.asarray(rows.indices)
    cols = np.arange(w.shape[1]) if cols is None else np.asarray(cols.indices)
    return w[np.ix_(rows, cols)], of[np.ix_(rows, cols)]


def csr_reference(x, values, at, bias=None, relu=False, rows=None, cols=None, transposed=None):
    """y = act(x w.T + b) in float64, w dense"""
    y = np.float64(x) @ _dense_reference(values, at, rows, cols)[0].T
    if bias is not None:
        y = y + (bias if rows is None else bias[np.asarray(rows.indices)])
    return np.maximum(y, 0) if relu else y


def csr_dx_reference(dy, values, at, rows=None, cols=None, transposed=None):
    """dx = dy w in float64, w dense"""
    return np.float64(dy) @ _dense_reference(values, at, rows, cols)[0]


def csr_dw_reference(dy, x, at, rows=None, cols=None, dy_transposed=None, x_transposed=None):
    """dy.T x in float64 at the entries, 0 in padding"""
    of, dw = _dense_reference(np.zeros(at.ids.size), at, rows, cols)[1], np.zeros(at.ids.size)
    dw[of[of >= 0]] = (np.float64(dy).T @ np.float64(x))[of >= 0]
    return dw


# --- what both need ---------------------------------------------------------------------------------------------------
def _lists(op, at, rows, cols):
    """The lists by name, as `expect` takes them; K and J of the O rows and I columns are kept."""
    if not isinstance(at, Entries) or not all(lists is None or isinstance(lists, RowLists) for lists in (rows, cols)):
        raise TypeError(f"{op}: at must be Entries, rows and cols RowLists or None")
    found = {f"at.{name}": (array, (length,), INT32) for name, array, length in zip(at._fields, at, "OOVIIBB")}
    for name, lists, kept, whole in (("rows", rows, "K", "O"), ("cols", cols, "J", "I")):
        if lists is not None:
            found |= {f"{name}.indices": (lists.indices, (kept,), INT32), f"{name}.inverse": (lists.inverse, (whole,), INT32)}
    return found


def check(op, at, rows, cols, **arrays):
    """The lengths by name: O, I, V values, B entries, N samples, K and J kept of O and I. Shapes of the arrays say K and J,
    whatever is kept; ValueError or TypeError where something does not fit."""
    names = {"K": "O" if rows is None else "K", "J": "I" if cols is None else "J"}
    found = expect(
        op,
        **_lists(op, at, rows, cols),
        **{name: (array, tuple(names.get(n, n) for n in shape)) for name, (array, shape) in arrays.items()},
    )
    found = {"K": found["O"], "J": found["I"], **found}
    for kept, whole in ("KO", "JI"):
        if found[kept] > found[whole]:
            raise ValueError(f"{op}: {found[kept]} are kept of the {found[whole]} that there are")
    return found


def lists_of(lists):
    """(indices, inverse), None for all"""
    return (None, None) if lists is None else (lists.indices, lists.inverse)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    def structure():
        """A tenth of the weight at random, in order; the first row is empty, the last one whole."""
        mask = a.indices(10, O, I) == 0
        mask[0], mask[-1] = False, True
        rows, columns = np.nonzero(mask)
        ends = np.cumsum(np.bincount(rows, minlength=O)).astype(np.int32)
        return entries(np.concatenate([[0], ends[:-1]]), ends, columns.astype(np.int32), I)

    def kept(n):
        indices, places = np.arange(0, n, 2, dtype=np.int32), np.full(n, -1, np.int32)
        places[indices] = np.arange(indices.size)
        return RowLists(places, np.zeros(n, np.int32), indices)

    half = {"rows": kept(O), "cols": kept(I)}

    def product(**options):
        at = structure()
        return dev.csr(a(N, -(-I // 2) if options else I), a(at.ids.size), at, bias=a(O), relu=True, **options)

    def dx(**options):
        at = structure()
        return dev.csr_dx(a(N, -(-O // 2) if options else O), a(at.ids.size), at, **options)

    def dw(**options):
        shapes = ((N, -(-n // 2) if options else n) for n in (O, I))
        return dev.csr_dw(*(a(*shape) for shape in shapes), structure(), **options)

    return {
        "csr": product,
        "csr, thinned": lambda: product(**half),
        "csr_dx": dx,
        "csr_dx, thinned": lambda: dx(**half),
        "csr_dw": dw,
        "csr_dw, thinned": lambda: dw(**half),
    }
