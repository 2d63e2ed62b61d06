"""Products with kept rows (and columns) of a weight (o, i), one in dp kept, against a dense product and a mask.

The peer is a dense product and a multiplication by the mask, as a user would write it in PyTorch.

forward  rows of w dropped, x dense                          ceiling dp
both     rows and columns dropped, x and y compact           ceiling dp²
dx       gradient of `both` with respect to x                ceiling dp²
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numbanet.plans import RowPlan, on_device
from numbanet_kernels.families.gemm_rows import gemm_rows_masked

from .. import kernels
from ..machinery.harness import Case, Options
from . import Kernel

SUITE = "gemm_rows"
PERIODS = (1, 2, 4, 8)


def _plans(o, i, dp):
    """Plans of the outputs and of the inputs. Their biases differ, so that swapping them gives a wrong result."""
    return RowPlan(o, dp, dp - 1), RowPlan(i, dp, dp // 2)


def _mask(plan):
    return plan.mask().astype(np.float32)


def _weight(rng, o, i):
    return rng.standard_normal((o, i), np.float32) / np.float32(np.sqrt(i))


def _forward_inputs(rng, n, o, i, dp):
    """x, w, b, mask of the outputs"""
    return (
        rng.standard_normal((n, i), np.float32),
        _weight(rng, o, i),
        rng.standard_normal(o, np.float32),
        _mask(_plans(o, i, dp)[0]),
    )


def _both_inputs(rng, n, o, i, dp):
    """x with zeros for the neurons that the layer before dropped, w, b, mask of the outputs"""
    x, w, b, mask = _forward_inputs(rng, n, o, i, dp)
    return x * _mask(_plans(o, i, dp)[1]), w, b, mask


def _masked_inputs(rng, n, o, i, dp):
    """x, w, mask of the outputs"""
    x, w, _, mask = _forward_inputs(rng, n, o, i, dp)
    return x, w, mask


def _back_inputs(rng, n, o, i, dp):
    """dy with zeros for the neurons that this layer dropped, w, mask of the inputs"""
    rows, cols = _plans(o, i, dp)
    return rng.standard_normal((n, o), np.float32) * _mask(rows), _weight(rng, o, i), _mask(cols)


def _compact(dev, x, plan):
    return dev.upload(np.ascontiguousarray(dev.download(x)[:, plan.bias :: plan.dp]))


def _forward(dev, x, w, b, mask, n, o, i, dp):
    rows = on_device(_plans(o, i, dp)[0], dev).index
    return lambda: dev.gemm_rows(x, w, rows, None, bias=b, relu=True)


def _both(dev, x, w, b, mask, n, o, i, dp):
    rows, cols = _plans(o, i, dp)
    indices, x = (on_device(rows, dev).index, on_device(cols, dev).index), _compact(dev, x, cols)
    return lambda: dev.gemm_rows(x, w, *indices, bias=b, relu=True)


def _dx(dev, dy, w, mask, n, o, i, dp):
    rows, cols = _plans(o, i, dp)
    indices, dy = (on_device(rows, dev).index, on_device(cols, dev).index), _compact(dev, dy, rows)
    return lambda: dev.gemm_rows_dx(dy, w, *indices)


def _masked(dev, x, w, mask, n, o, i, dp):
    row_mask = dev.upload(dev.download(mask).astype(bool))
    return lambda: gemm_rows_masked(x, w, row_mask)


def _reference(x, w, b, mask, **_):
    return np.maximum(np.float64(x) @ np.float64(w).T + b, 0) * mask


def _torch(t, x, w, b, mask, **_):
    return lambda: t.relu(t.nn.functional.linear(x, w, b)) * mask


def _expanded(which):
    """The dense form of a compact result: along the outputs (0) or the inputs (1)."""

    def dense(y, n, o, i, dp):
        plan = _plans(o, i, dp)[which]
        if y.shape[1] == plan.n:
            return y
        wide = np.zeros((n, plan.n), y.dtype)
        wide[:, plan.bias :: plan.dp] = y
        return wide

    return dense


def _flops(n, o, i, dp):
    return 2.0 * n * _plans(o, i, dp)[0].count * i


def _both_flops(n, o, i, dp):
    rows, cols = _plans(o, i, dp)
    return 2.0 * n * rows.count * cols.count


def _work(flops):
    return {"flops": flops, "ceiling": lambda n, o, i, dp: 2.0 * n * o * i / flops(n, o, i, dp)}


KERNELS = {
    "forward": Kernel(_forward_inputs, _forward, _torch, _reference, _expanded(0), op="gemm_rows", **_work(_flops)),
    "both": Kernel(_both_inputs, _both, _torch, _reference, _expanded(0), **_work(_both_flops)),
    "dx": Kernel(
        _back_inputs,
        _dx,
        lambda t, dy, w, mask, **_: lambda: (dy @ w) * mask,
        lambda dy, w, mask, **_: (np.float64(dy) @ w) * mask,
        _expanded(1),
        op="gemm_rows_dx",
        **_work(_both_flops),
    ),
    # the first version of the kernel on CUDA: its grid includes dropped rows, whose blocks return at once
    "masked": Kernel(
        _masked_inputs,
        _masked,
        lambda t, x, w, mask, **_: lambda: t.nn.functional.linear(x, w) * mask,
        lambda x, w, mask, **_: (np.float64(x) @ np.float64(w).T) * mask,
        **_work(_flops),
    ),
}


def cases(options: Options) -> Iterator[Case]:
    """The square layer of 784-2048-2048-10 at batch 128, with every period."""
    [(n, i, o)] = options.sizes((32, 48, 64), (128, 2048, 2048))
    ops = [op for op in KERNELS if op != "masked" or options.device == "cuda"]
    chosen = [(op, {"n": n, "o": o, "i": i, "dp": dp}) for op in ops for dp in PERIODS]
    return kernels.cases(SUITE, chosen, options)
