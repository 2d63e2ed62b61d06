"""LSTM on CUDA: launches of the kernels of `cuda_steps`."""

from __future__ import annotations

from ...blocks.index_views import row_inverse
from ...runtime.expect import INT32, expect
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import THREADS, blocks_for, empty_cuda, full_cuda
from ..elementwise import affine_cuda
from ..indexing import transpose_cuda
from ..reduce import sum_rows_cuda
from . import cuda_steps
from .family import AFTER, STATE, check, check_seen, started


def _all(*axes):
    """Return an empty list, which means that nothing is dropped."""
    return empty_cuda(axes, INT32)


def _steps_grid(n, hidden):
    return ceil_div(hidden, cuda_steps.UNITS), ceil_div(n, cuda_steps.SAMPLES)


def lstm_cuda(z, w, h0, c0, units=None, scale=1.0, lengths=None):
    steps, n, hidden = check("lstm (cuda)", z, w, units, lengths, h0=(h0, STATE), c0=(c0, STATE))
    units, lengths = _all(0, 0) if units is None else units, _all(0) if lengths is None else lengths
    h, c = (started(empty_cuda, affine_cuda, first, steps) for first in (h0, c0))
    if hidden <= cuda_steps.SMALL:
        launch(
            cuda_steps.sequence(),
            ceil_div(n, cuda_steps.FEW),
            (hidden, 4),
            z,
            transpose_cuda(w, (1, 0)),
            units,
            lengths,
            scale,
            h,
            c,
        )
        return h, c
    for t in range(steps):
        launch(cuda_steps.step(), _steps_grid(n, hidden), cuda_steps.BLOCK, z, w, units, lengths, scale, t, h, c)
    return h, c


def lstm_grad_cuda(dy, gates, c, w, units=None, scale=1.0, lengths=None, dc=None, columns=None, threshold=0.0):
    steps, n, hidden = check(
        "lstm_grad (cuda)", gates, w, units, lengths, columns, dy=(dy, AFTER), c=(c, (len(dy) + 1, "N", "H")), dc=(dc, STATE)
    )
    dz = gates if columns is None else empty_cuda((steps, n, columns.size))
    dc0, dh0 = (full_cuda((n, hidden), 0.0) if dc is None else affine_cuda(dc)), empty_cuda((n, hidden))
    order, seen = (_all(0, 0), hidden) if units is None else (_ordered(units, hidden), units.shape[1])
    kept = (_all(0), _all(0)) if columns is None else (columns, row_inverse(columns, 4 * hidden))
    before = dy, gates, c, w, order, seen, *kept, _all(0) if lengths is None else lengths, scale, threshold
    if hidden <= cuda_steps.SMALL:
        launch(cuda_steps.sequence_back(), ceil_div(n, cuda_steps.FEW), (hidden, 4), *before, dz, dc0, dh0)
        return dz, dh0, dc0
    for t in reversed(range(-1, steps)):
        launch(cuda_steps.step_back(), _steps_grid(n, hidden), cuda_steps.BLOCK, *before, t, dz, dc0, dh0)
    return dz, dh0, dc0


def _ordered(units, hidden):
    """Return an int32 array (S, H): in each row first the listed units, then all other units."""
    order = empty_cuda((units.shape[0], hidden), INT32)
    launch(cuda_steps.ordered(), blocks_for(order.size), THREADS, units, order)
    return order


def lstm_scores_cuda(dy, gates, c, lengths=None):
    found = expect(
        "lstm_scores (cuda)",
        dy=(dy, AFTER),
        gates=(gates, ("T", "N", 4 * dy.shape[-1])),
        c=(c, (len(dy) + 1, "N", "H")),
        lengths=(lengths, ("N",), INT32),
    )
    totals = empty_cuda((max(min(found["T"], cuda_steps.SHARES), 1), 4 * found["H"]))
    launch(
        cuda_steps.scores(),
        (ceil_div(found["H"], cuda_steps.ACROSS), totals.shape[0]),
        (cuda_steps.ACROSS, cuda_steps.ROWS),
        dy,
        gates,
        c,
        _all(0) if lengths is None else lengths,
        totals,
    )
    return sum_rows_cuda(totals)


def lstm_seen_cuda(h, units):
    check_seen("lstm_seen (cuda)", h, units)
    y = full_cuda(h.shape, 0.0)
    launch(cuda_steps.seen(), blocks_for(units.size * h.shape[1]), THREADS, h, units, y)
    return y
