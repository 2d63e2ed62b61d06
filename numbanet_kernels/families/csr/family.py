"""Matrix product with a sparse weight w (O, I), CSR or ELL (`layouts.sparse`); `at` is its `Entries`:

    csr       y[n, o]   = act(sum_k values[k] x[n, ids[k]] + b[o])   over the entries k of row o     x (N, I) -> y (N, O)
    csr_dx    dx[n, i]  = sum_k values[order[k]] dy[n, col_ids[k]]  over those of column i          dy (N, O) -> dx (N, I)
    csr_dw    dw[k]     = sum_n dy[n, row of k] x[n, ids[k]]         at the entries alone            dy, x -> (V,)

2 N nnz FLOPs each. An entry reads one float and one index of the weight, and N floats of the activation. Vectors lie along the
samples, so activations are transposed first (`csr_transposed`), neurons before samples: x once for the forward pass and dw, dy
once for dx and dw. Results are bitwise reproducible; padding has gradient 0.

With rows and cols, `layouts.rows.RowLists`, y and dy hold only the kept neurons and x and dx only the kept inputs; entries of
dropped ones are skipped, with dw 0. Sparse activations use this: a list of live inputs that all samples of a batch share. A
list per sample (x as CSR) would leave vectors of samples half empty and need a search per entry: with the 50 % zeros of a ReLU,
16 consecutive samples are all 0 once in 65,536 times.

On the CPU (`cpu_loops`) the ceiling is the bandwidth of the L2 cache, 32 bytes a cycle with 4 bytes per multiply-add; on CUDA
the lines come from L2, coalesced along samples, and a warp shares each entry. An ELL is no faster here than a CSR: its equal
row
lengths save two numbers a row.
"""

from __future__ import annotations

import numpy as np

from ...layouts.entries import Entries, entries
from ...layouts.rows import RowLists
from ...runtime.expect import INT32, expect


# --- reference --------------------------------------------------------------------------------------------------------
def _dense_reference(values, at, rows=None, cols=None):
    """(w, index of the value of each element), float64 and int: 0 and -1 for elements without an entry or dropped."""
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


# --- checks, for CPU and CUDA -----------------------------------------------------------------------------------------
def _lists(op, at, rows, cols):
    """The index lists by name, as `expect` takes them; K of the O rows and J of the I columns are kept."""
    if not isinstance(at, Entries) or not all(lists is None or isinstance(lists, RowLists) for lists in (rows, cols)):
        raise TypeError(f"{op}: at must be Entries, rows and cols RowLists or None")
    expected = {f"at.{name}": (array, (length,), INT32) for name, array, length in zip(at._fields, at, "OOVIIBB")}
    for name, lists, count, length in (("rows", rows, "K", "O"), ("cols", cols, "J", "I")):
        if lists is not None:
            expected |= {
                f"{name}.indices": (lists.indices, (count,), INT32),
                f"{name}.inverse": (lists.inverse, (length,), INT32),
            }
    return expected


def check(op, at, rows, cols, **arrays):
    """The sizes by name: O, I, V values, B entries, N samples, K and J kept of O and I. Without lists the arrays may have any K
    <= O and J <= I; ValueError or TypeError if the arguments do not fit.
    """
    names = {"K": "O" if rows is None else "K", "J": "I" if cols is None else "J"}
    sizes = expect(
        op,
        **_lists(op, at, rows, cols),
        **{name: (array, tuple(names.get(n, n) for n in shape)) for name, (array, shape) in arrays.items()},
    )
    sizes = {"K": sizes["O"], "J": sizes["I"], **sizes}
    for count, length in ("KO", "JI"):
        if sizes[count] > sizes[length]:
            raise ValueError(f"{op}: cannot keep {sizes[count]} of {sizes[length]} neurons")
    return sizes


def lists_of(lists):
    """(indices, inverse), None for all"""
    return (None, None) if lists is None else (lists.indices, lists.inverse)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    def structure():
        """A random tenth of the weight, sorted; the first row is empty, the last one full."""
        mask = a.indices(10, O, I) == 0
        mask[0], mask[-1] = False, True
        rows, columns = np.nonzero(mask)
        ends = np.cumsum(np.bincount(rows, minlength=O)).astype(np.int32)
        return entries(np.concatenate([[0], ends[:-1]]), ends, columns.astype(np.int32), I)

    def every_other(n):
        indices, inverse = np.arange(0, n, 2, dtype=np.int32), np.full(n, -1, np.int32)
        inverse[indices] = np.arange(indices.size)
        return RowLists(inverse, np.zeros(n, np.int32), indices)

    half = {"rows": every_other(O), "cols": every_other(I)}

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
