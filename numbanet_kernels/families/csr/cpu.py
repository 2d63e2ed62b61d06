"""`csr` on the CPU."""

from __future__ import annotations

from ...runtime.expect import expect
from ...runtime.memory import empty_cpu, full_cpu
from . import cpu_loops
from .family import check, lists_of


def csr_transposed_cpu(x):
    """panels[p, i, s] = x[p SAMPLES + s, i], with samples along the last axis (`cpu_loops`); computed once for two products"""
    expect("csr_transposed (cpu)", x=(x, ("N", "I")))
    return cpu_loops.transposed(x)


def _panels(op, x, transposed):
    """Return the panels of x: the checked argument `transposed`, or new panels if it is None."""
    if transposed is None:
        return cpu_loops.transposed(x)
    expect(op, transposed=(transposed, (cpu_loops.panels_of(x.shape[0]), x.shape[1], cpu_loops.SAMPLES)))
    return transposed


def csr_cpu(x, values, at, bias=None, relu=False, rows=None, cols=None, transposed=None):
    """y[n, o] = act(sum_k values[k] x[n, ids[k]] + b[o]) over the entries k of row o of a sparse weight"""
    sizes = check("csr (cpu)", at, rows, cols, x=(x, ("N", "J")), values=(values, ("V",)), bias=(bias, ("O",)))
    transposed, y = _panels("csr (cpu)", x, transposed), empty_cpu((sizes["N"], sizes["K"]))
    cpu_loops.product(transposed, at.starts, at.stops, at.ids, values, y, lists_of(rows)[0], lists_of(cols)[1], bias, relu)
    return y


def csr_dx_cpu(dy, values, at, rows=None, cols=None, transposed=None):
    """dx[n, i] = sum_k values[order[k]] dy[n, col_ids[k]] over the entries k of column i"""
    sizes = check("csr_dx (cpu)", at, rows, cols, dy=(dy, ("N", "K")), values=(values, ("V",)))
    transposed, dx = _panels("csr_dx (cpu)", dy, transposed), empty_cpu((sizes["N"], sizes["J"]))
    of_columns = cpu_loops.by_column(values, at.order)
    cpu_loops.product(transposed, at.col_starts, at.col_stops, at.col_ids, of_columns, dx, lists_of(cols)[0], lists_of(rows)[1])
    return dx


def csr_dw_cpu(dy, x, at, rows=None, cols=None, dy_transposed=None, x_transposed=None):
    """dw[k] = sum_n dy[n, o] x[n, ids[k]] at the entries k of row o, 0 in padding"""
    sizes = check("csr_dw (cpu)", at, rows, cols, dy=(dy, ("N", "K")), x=(x, ("N", "J")))
    dys, xs = _panels("csr_dw (cpu)", dy, dy_transposed), _panels("csr_dw (cpu)", x, x_transposed)
    all_written = rows is None and sizes["V"] == sizes["B"] and sizes["N"] and sizes["J"]
    dw = empty_cpu((sizes["V"],)) if all_written else full_cpu((sizes["V"],), 0.0)
    cpu_loops.entries(dys, xs, at.starts, at.stops, at.ids, dw, lists_of(rows)[0], lists_of(cols)[1])
    return dw
