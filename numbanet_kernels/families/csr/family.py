"""Matrix product with a sparse weight w (O, I), which is a CSR or an ELL (`layouts.sparse`). values (V,) are its values, and
`at`, an `Entries`, gives their positions (starts, stops, ids, …):

    csr       y[n, o]   = act(sum_k values[k] x[n, ids[k]] + b[o]) over the entries k of row o          x (N, I) -> y (N, O)
    csr_dx    dx[n, i]  = sum_k values[order[k]] dy[n, col_ids[k]] over the entries k of column i       dy (N, O) -> dx (N, I)
    csr_dw    dw[k]     = sum_n dy[n, o] x[n, ids[k]] for the entries k of row o                        dy, x -> dw (V,)

act is ReLU if `relu`, else the identity. Each operation takes 2 N nnz FLOPs, where nnz is the number of entries. An entry reads
one float and one index of the weight, and N floats of the activation. Vectors lie along the samples, so activations are first
transposed to neurons before samples (`csr_transposed`): x once for the forward pass and dw, dy once for dx and dw. Results are
bitwise reproducible; values that are padding have gradient 0.

If `rows` or `cols`, `layouts.rows.RowLists`, are given, y and dy hold only the kept neurons (rows), and x and dx only the kept
inputs (cols). Entries of dropped neurons or inputs are skipped, and their dw is 0. Sparse activations also use this, as one
list of live inputs that all samples of a batch share. A separate list for each sample would leave vectors of samples half empty
and need a search per entry: with the 50 % zeros of a ReLU, 16 consecutive samples are all 0 once in 65,536 times.

On the CPU (`cpu_loops`) the bandwidth of the L2 cache limits the speed: it delivers 32 bytes a cycle, and a multiply-add takes
4 bytes. On CUDA the activations come from the L2 cache, coalesced along samples, and the threads of a warp share each entry. An
ELL is no faster here than a CSR, because the equal lengths of its rows save only two numbers a row.
"""

from __future__ import annotations

import numpy as np

from ...layouts.entries import Entries, entries
from ...layouts.rows import RowLists
from ...runtime.expect import INT32, expect


# --- reference --------------------------------------------------------------------------------------------------------
def _dense_reference(values, at, rows=None, cols=None):
    """Return two arrays with the kept rows and columns of w: the elements of w in float64, and the index of the value of each
    element. Elements without an entry are 0, and their index is -1.
    """
    w, of = np.zeros((at.starts.size, at.col_starts.size)), np.full((at.starts.size, at.col_starts.size), -1)
    for o, (start, stop) in enumerate(zip(at.starts, at.stops)):
        w[o, at.ids[start:stop]], of[o, at.ids[start:stop]] = values[start:stop], np.arange(start, stop)
    rows = np.arange(len(w)) if rows is None else np.asarray(rows.indices)
    cols = np.arange(w.shape[1]) if cols is None else np.asarray(cols.indices)
    return w[np.ix_(rows, cols)], of[np.ix_(rows, cols)]


def csr_reference(x, values, at, bias=None, relu=False, rows=None, cols=None, transposed=None):
    """Return y = act(x w.T + b) in float64, computed with a dense w."""
    y = np.float64(x) @ _dense_reference(values, at, rows, cols)[0].T
    if bias is not None:
        y = y + (bias if rows is None else bias[np.asarray(rows.indices)])
    return np.maximum(y, 0) if relu else y


def csr_dx_reference(dy, values, at, rows=None, cols=None, transposed=None):
    """Return dx = dy w in float64, computed with a dense w."""
    return np.float64(dy) @ _dense_reference(values, at, rows, cols)[0]


def csr_dw_reference(dy, x, at, rows=None, cols=None, dy_transposed=None, x_transposed=None):
    """Return the elements of dy.T x at the entries, in float64; 0 in padding."""
    of, dw = _dense_reference(np.zeros(at.ids.size), at, rows, cols)[1], np.zeros(at.ids.size)
    dw[of[of >= 0]] = (np.float64(dy).T @ np.float64(x))[of >= 0]
    return dw


# --- checks, for CPU and CUDA -----------------------------------------------------------------------------------------
def _lists(op, at, rows, cols):
    """Return a dict of the index lists, as `expect` takes them; K of the O rows and J of the I columns are kept."""
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
    """Return a dict of the sizes: O, I, V values, B entries, N samples, and the K of O rows and J of I columns that are kept.
    Raise ValueError or TypeError if the arguments do not fit.
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
    """Return (indices, inverse) of a `RowLists`; (None, None) if it is None, because everything is kept."""
    return (None, None) if lists is None else (lists.indices, lists.inverse)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    def structure():
        """Return the `Entries` of a random tenth of the weight; the first row is empty, and the last one is full."""
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
