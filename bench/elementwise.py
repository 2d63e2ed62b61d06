"""Elementwise maps and their backward maps on activations (n, width), against PyTorch. Memory binds them."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numbanet_kernels import elementwise as E

from . import kernels
from .harness import Case, Options
from .kernels import Kernel


def _one(rng, n, width):
    return (rng.standard_normal((n, width), np.float32),)


def _two(rng, n, width):
    return rng.standard_normal((n, width), np.float32), rng.standard_normal((n, width), np.float32)


def _slope(rng, n, width):
    """dy, and y of a function into (-1, 1)."""
    return rng.standard_normal((n, width), np.float32), rng.uniform(-1, 1, (n, width)).astype(np.float32)


def _map(name, inputs, reference, torch, arrays):
    """The kernel called `name`: one pass over `arrays` arrays, so PyTorch moves the same bytes."""
    return Kernel(
        inputs=inputs,
        numbanet=lambda dev, *a, **_: lambda: getattr(dev, name)(*a),
        torch=lambda t, *a, **_: lambda: torch(t, *a),
        reference=lambda *a, **_: reference(*a),
        bytes=lambda n, width: 4.0 * arrays * n * width,
    )


KERNELS = {
    "relu": _map("relu", _one, E.relu_reference, lambda t, x: t.relu(x), 2),
    "gelu": _map("gelu", _one, E.gelu_reference, lambda t, x: t.nn.functional.gelu(x), 2),
    "tanh": _map("tanh", _one, lambda x: np.tanh(np.float64(x)), lambda t, x: t.tanh(x), 2),
    "sigmoid": _map("sigmoid", _one, E.sigmoid_reference, lambda t, x: t.sigmoid(x), 2),
    "exp": _map("exp", _one, lambda x: np.exp(np.float64(x)), lambda t, x: t.exp(x), 2),
    "add": _map("add", _two, lambda a, b: np.float64(a) + b, lambda t, a, b: a + b, 3),
    "mul": _map("mul", _two, lambda a, b: np.float64(a) * b, lambda t, a, b: a * b, 3),
    "relu_grad": _map("relu_grad", _two, E.relu_grad_reference,
                      lambda t, dy, y: t.ops.aten.threshold_backward(dy, y, 0), 3),
    "gelu_grad": _map("gelu_grad", _two, E.gelu_grad_reference, lambda t, dy, x: t.ops.aten.gelu_backward(dy, x), 3),
    "tanh_grad": _map("tanh_grad", _slope, E.tanh_grad_reference, lambda t, dy, y: t.ops.aten.tanh_backward(dy, y), 3),
    "sigmoid_grad": _map("sigmoid_grad", _slope, E.sigmoid_grad_reference,
                         lambda t, dy, y: t.ops.aten.sigmoid_backward(dy, y), 3),
}


def cases(options: Options) -> Iterator[Case]:
    """Each map on the activations of a batch, and on a large array."""
    shapes = [(32, 64)] if options.quick else [(128, 2048), (2048, 2048)]
    chosen = [(op, {"n": n, "width": width}) for op in KERNELS for n, width in shapes]
    return kernels.cases("elementwise", chosen, options)
