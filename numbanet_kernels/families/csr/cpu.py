"""`csr` on the CPU."""
from __future__ import annotations

from ...runtime.expect import expect
from ...runtime.memory import empty_cpu, full_cpu
from . import cpu_loops
from .family import _check, _parts


def csr_turned_cpu(x):
    """x (N, I) in the form that entries meet it, neurons before samples: prepared once for two products."""
    expect("csr_turned (cpu)", x=(x, ("N", "I")))
    return cpu_loops.turned(x)


def _panels(op, x, turned):
    """x as panels: those that were made of it, or new ones."""
    if turned is None:
        return cpu_loops.turned(x)
    expect(op, turned=(turned, (cpu_loops.panels_of(x.shape[0]), x.shape[1], cpu_loops.SAMPLES)))
    return turned


def csr_cpu(x, values, at, bias=None, relu=False, rows=None, cols=None, turned=None):
    """y[n, o] = act(sum_k values[k] x[n, ids[k]] + b[o]) over the entries k of row o of a sparse weight"""
    found = _check("csr (cpu)", at, rows, cols, x=(x, ("N", "J")), values=(values, ("V",)), bias=(bias, ("O",)))
    turned, y = _panels("csr (cpu)", x, turned), empty_cpu((found["N"], found["K"]))
    cpu_loops.product(turned, at.starts, at.stops, at.ids, values, y, _parts(rows)[0], _parts(cols)[1], bias, relu)
    return y


def csr_dx_cpu(dy, values, at, rows=None, cols=None, turned=None):
    """dx[n, i] = sum_k values[places[k]] dy[n, col_ids[k]] over the entries k of column i"""
    found = _check("csr_dx (cpu)", at, rows, cols, dy=(dy, ("N", "K")), values=(values, ("V",)))
    turned, dx = _panels("csr_dx (cpu)", dy, turned), empty_cpu((found["N"], found["J"]))
    of_columns = cpu_loops.by_column(values, at.places)
    cpu_loops.product(turned, at.col_starts, at.col_stops, at.col_ids, of_columns, dx, _parts(cols)[0], _parts(rows)[1])
    return dx


def csr_dw_cpu(dy, x, at, rows=None, cols=None, dy_turned=None, x_turned=None):
    """dw[k] = sum_n dy[n, o] x[n, ids[k]] at the entries k of row o, 0 in padding"""
    found = _check("csr_dw (cpu)", at, rows, cols, dy=(dy, ("N", "K")), x=(x, ("N", "J")))
    dys, xs = _panels("csr_dw (cpu)", dy, dy_turned), _panels("csr_dw (cpu)", x, x_turned)
    whole = rows is None and found["V"] == found["B"] and found["N"]
    dw = empty_cpu((found["V"],)) if whole else full_cpu((found["V"],), 0.0)
    cpu_loops.entries(dys, xs, at.starts, at.stops, at.ids, dw, _parts(rows)[0], _parts(cols)[1])
    return dw
