"""Parameter updates of a weight (o, i), against a step of torch.optim.SGD and Adam on a dense gradient.

Memory bandwidth limits them: SGD with momentum reads w, v, g and writes w, v, 20 bytes per weight. A packed gradient holds only
the rows or tiles that the plan kept. All of w and v is still read and written, because momentum moves every weight. So the
ceiling is 20 / (16 + 4 * share of the weight that the plan kept).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numbanet.plans import RowPlan, TilePlan, on_device
from numbanet.plans.on_device import packing
from numbanet_kernels.families.update import adam_reference, sgd_reference
from numbanet_kernels.layouts.packed import AdamUpdate, SGDUpdate, adam_numbers

from .. import kernels
from ..machinery.harness import Case, Options
from . import Kernel

SUITE = "update"
PERIODS, TILE = (2, 4, 8), 32
RATE, MOMENTUM, ADAM = 0.01, 0.9, (0.001, 0.9, 0.999, 1e-8)


def _rows(o, i, dp):
    return RowPlan(o, dp, dp - 1), RowPlan(i, dp, dp // 2)


def _tiles(o, i, dp):
    return TilePlan((o, i), TILE, dp, dp // 2)


def _row_mask(o, i, dp):
    rows, cols = _rows(o, i, dp)
    return np.outer(rows.mask(), cols.mask())


def _inputs(mask):
    """Return weights w, velocities v and gradients g. v and g are 0 for dropped weights: repeated updates would make v
    denormal."""

    def inputs(rng, o, i, dp=1):
        w, v, g = (rng.standard_normal((o, i), np.float32) for _ in range(3))
        m = mask(o, i, dp)
        return w, v * m, g * m

    return inputs


def _sgd(dev, w, v, g, **_):
    def run():
        dev.sgd([SGDUpdate(w, v, g)], RATE, MOMENTUM)
        return w, v

    return run


def _packed_sgd(dev, w, v, g, packing, shape):
    """A step whose gradient is packed, as in training."""
    row_pos, row_class, cols, _ = (np.asarray(dev.download(a)) for a in packing)
    values, dense = np.zeros(shape, np.float32), dev.download(g)
    for r in np.flatnonzero(row_pos >= 0):
        columns = cols[row_class[r]]
        values[row_pos[r], : columns.size] = np.where(columns >= 0, dense[r, columns], 0)
    values = dev.upload(values)

    def run():
        dev.sgd([SGDUpdate(w, v, values, packing)], RATE, MOMENTUM)
        return w, v

    return run


def _sgd_rows(dev, w, v, g, o, i, dp):
    rows, cols = _rows(o, i, dp)
    return _packed_sgd(dev, w, v, g, packing(on_device(rows, dev), on_device(cols, dev)), (rows.count, cols.count))


def _sgd_tiles(dev, w, v, g, o, i, dp):
    plan = _tiles(o, i, dp)
    return _packed_sgd(dev, w, v, g, on_device(plan, dev).packing, plan.pattern.packed_shape)


def _torch_sgd(t, w, v, g, **_):
    parameter = t.nn.Parameter(w)
    parameter.grad = g
    optimizer = t.optim.SGD([parameter], lr=RATE, momentum=MOMENTUM)
    optimizer.state[parameter]["momentum_buffer"] = v

    def run():
        optimizer.step()
        return parameter, optimizer.state[parameter]["momentum_buffer"]

    return run


def _reference(w, v, g, **_):
    return sgd_reference(w, v, g, RATE, MOMENTUM)


def _adam_inputs(rng, o, i):
    """w, m, s, g"""
    w, g = (rng.standard_normal((o, i), np.float32) for _ in range(2))
    return w, np.zeros_like(w), np.zeros_like(w), g


def _adam(dev, w, m, s, g, **_):
    steps = iter(range(1, 1 << 62))

    def run():
        dev.adam([AdamUpdate(w, m, s, g)], dev.upload(np.float32(adam_numbers(*ADAM, next(steps)))))
        return w, m, s

    return run


def _torch_adam(t, w, m, s, g, **_):
    parameter = t.nn.Parameter(w)
    parameter.grad = g
    rate, beta1, beta2, eps = ADAM
    optimizer = t.optim.Adam([parameter], lr=rate, betas=(beta1, beta2), eps=eps)

    def run():
        optimizer.step()
        state = optimizer.state[parameter]
        return parameter, state["exp_avg"], state["exp_avg_sq"]

    return run


def _sgd_kernel(numbanet, mask):
    def moved(o, i, dp=1):
        return 16.0 * o * i + 4.0 * np.count_nonzero(mask(o, i, dp))

    return Kernel(
        _inputs(mask), numbanet, _torch_sgd, _reference, bytes=moved, ceiling=lambda o, i, dp=1: 20.0 * o * i / moved(o, i, dp)
    )


KERNELS = {
    "sgd": _sgd_kernel(_sgd, lambda o, i, dp: np.ones((o, i), bool)),
    "sgd_rows": _sgd_kernel(_sgd_rows, _row_mask),
    "sgd_tiles": _sgd_kernel(_sgd_tiles, lambda o, i, dp: _tiles(o, i, dp).mask()),
    "adam": Kernel(
        _adam_inputs,
        _adam,
        _torch_adam,
        lambda w, m, s, g, **_: adam_reference(w, m, s, g, *ADAM, 1),
        bytes=lambda o, i: 28.0 * o * i,
    ),
}


def cases(options: Options) -> Iterator[Case]:
    """The square weight of 784-2048-2048-10."""
    [(_, i, o)] = options.sizes((1, 96, 64), (1, 2048, 2048))
    size = {"o": o, "i": i}
    packed = [(op, {**size, "dp": dp}) for op in ("sgd_rows", "sgd_tiles") for dp in PERIODS]
    return kernels.cases(SUITE, [("sgd", size), *packed, ("adam", size)], options)
