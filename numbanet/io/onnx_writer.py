"""Layers -> nodes of ONNX: a function for each class of layers.

An activation has here the shape that it has in prediction: (N, F), (N, C, H, W), (N, T, F), or (T, N, F) in a language model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..layers import ActivationSpec, Layer
from ..layers.recurrent import BIASES, WEIGHTS
from ..ops.border import border_indices
from ..plans import Plans
from .classes import class_of
from .onnx_graph import Graph

GATES = {"LSTM": ((0, 3, 1, 2), 4), "GRU": ((1, 0, 2), 3)}  # ONNX's order of gates, as places in PyTorch's; number of gates


class Value(NamedTuple):
    """An activation of the graph.

    Attributes
    ----------
    name : str
    shape : tuple
        Its shape for one sample; None is a length that is not known.
    lengths : str
        The name of the lengths of its sequences (N,) int32; empty if all have all steps.
    path : str
        The path of the layer that takes it.
    states : int, optional
        Number of the recurrent layers so far, whose states are inputs and outputs; None unless the model is a language model.
    """

    name: str
    shape: tuple[int | None, ...]
    lengths: str = ""
    path: str = ""
    states: int | None = None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)


Writer = Callable[[Graph, Any, Value], str | Value]  # the name of the output, or a value that has more that is new


# --- layers -----------------------------------------------------------------------------------------------------------
def _weight(graph: Graph, layer: Any, value: Value, name: str) -> str:
    return graph.constant(getattr(layer, name).numpy(), f"{value.path}.{name}" if value.path else name)


def _parts(graph: Graph, layer: Any, value: Value, *names: str) -> list[str]:
    return [_weight(graph, layer, value, name) for name in names if getattr(layer, name) is not None]


def _linear(graph: Graph, layer: Any, value: Value, dense: np.ndarray | None = None) -> str:
    weight = _weight(graph, layer, value, "weight") if dense is None else graph.constant(dense, f"{value.path}.weight")
    bias = _parts(graph, layer, value, "bias")
    if value.rank == 2:
        return graph.add("Gemm", value.name, weight, *bias, transB=1)
    y = graph.add("MatMul", value.name, graph.add("Transpose", weight, perm=[1, 0]))
    return graph.add("Add", y, *bias) if bias else y


def _conv(graph: Graph, layer: Any, value: Value) -> str:
    x = value.name
    for axis, padding in enumerate(layer.border, 2):
        if padding:
            at = border_indices(_side(layer, value, axis), padding, layer.padding_mode)
            x = graph.add("Gather", x, graph.constant(np.int64(at)), axis=axis)
    return graph.add(
        "Conv",
        x,
        *_parts(graph, layer, value, "weight", "bias"),
        **_window(layer.window),
        dilations=list(layer.window.dilation),
        group=layer.groups,
    )


def _window(window: Any) -> dict[str, Any]:
    """The kernel, strides and padding of a window."""
    return {"kernel_shape": list(window.kernel), "strides": list(window.stride), "pads": [*window.padding, *window.padding]}


def _side(layer: Any, value: Value, axis: int) -> int:
    """The length of an axis of images; raise TypeError if it is not known."""
    if (side := value.shape[axis]) is None:
        raise TypeError(f"layer {value.path}: {layer!r} needs images of a known size")
    return side


def _pool(graph: Graph, op: str, layer: Any, value: Value, **attributes: Any) -> str:
    """A pooling. What the last windows of `ceil_mode` have beyond the image becomes padding that is never counted, because
    runtimes differ in what they do beyond it.
    """
    x, window = value.name, _window(layer.window)
    if layer.ceil_mode:
        sides = [_side(layer, value, axis) for axis in (2, 3)]
        ends = [
            max(p, (o - 1) * s + (k - 1) * d + 1 - p - n)
            for n, o, k, s, p, d in zip(sides, layer.window.positions(*sides), *layer.window)
        ]
        if attributes.get("count_include_pad") and any(layer.window.padding):
            x = _padded(graph, x, layer.window.padding, layer.window.padding, 0.0)
            window["pads"] = [0, 0, *(end - p for end, p in zip(ends, layer.window.padding))]
        elif any(end >= k for end, k in zip(ends, layer.window.kernel)):  # which runtimes refuse: a dilated kernel is longer
            x = _padded(graph, x, layer.window.padding, ends, -np.inf)
            window["pads"] = [0, 0, 0, 0]
        else:
            window["pads"] = [*layer.window.padding, *ends]
        attributes = {name: 0 if name == "count_include_pad" else given for name, given in attributes.items()}
    return graph.add(op, x, **window, **attributes)


def _padded(graph: Graph, x: str, before: Sequence[int], after: Sequence[int], number: float) -> str:
    """Images with rows and columns of a number around them."""
    return graph.add("Pad", x, graph.constant(np.array([0, 0, *before, 0, 0, *after])), graph.constant(np.float32(number)))


def _adaptive(graph: Graph, layer: Any, value: Value) -> str:
    """Windows of equal size are those of an average pooling; others are products with matrices of averages."""
    sides = [n for n in value.shape[2:] if n is not None]
    if len(sides) == 2 and all(side % count == 0 for side, count in zip(sides, layer.window, strict=True)):
        kernel = [side // count for side, count in zip(sides, layer.window, strict=True)]
        return graph.add("AveragePool", value.name, kernel_shape=kernel, strides=kernel)
    sides = [_side(layer, value, axis) for axis in (2, 3)]
    rows, columns = (_averages(side, count) for side, count in zip(sides, layer.window, strict=True))
    return graph.add("MatMul", graph.add("MatMul", graph.constant(rows), value.name), graph.constant(columns.T))


def _averages(side: int, count: int) -> np.ndarray:
    """(count, side): row i averages the pixels from floor(i side / count) to ceil((i + 1) side / count) - 1."""
    matrix = np.zeros((count, side), np.float32)
    for i in range(count):
        first, stop = i * side // count, -(-(i + 1) * side // count)
        matrix[i, first:stop] = 1 / (stop - first)
    return matrix


def _layer_norm(graph: Graph, layer: Any, value: Value) -> str:
    scale = _parts(graph, layer, value, "weight") or [graph.constant(np.ones(layer.normalized_shape, np.float32))]
    others = _parts(graph, layer, value, "bias")
    axes = len(layer.normalized_shape)
    return graph.add("LayerNormalization", value.name, *scale, *others, axis=-axes, epsilon=layer.eps)


def _batch_norm(graph: Graph, layer: Any, value: Value) -> str:
    parts = _parts(graph, layer, value, "weight", "bias", "running_mean", "running_var")
    if layer.weight is None:
        parts = [*(graph.constant(np.full(layer.num_features, number, np.float32)) for number in (1, 0)), *parts]
    return graph.add("BatchNormalization", value.name, *parts, epsilon=layer.eps)


def _gelu(graph: Graph, value: Value) -> str:
    """x / 2 (1 + erf(x / sqrt(2)))"""
    half, one, root = (graph.constant(np.float32(number)) for number in (0.5, 1.0, math.sqrt(0.5)))
    phi = graph.add("Add", graph.add("Erf", graph.add("Mul", value.name, root)), one)
    return graph.add("Mul", graph.add("Mul", value.name, half), phi)


def _normalize(graph: Graph, layer: Any, value: Value) -> str:
    shape = (1, -1, *(1,) * (value.rank - 2))
    mean, std = (
        graph.constant(getattr(layer, name).numpy().reshape(shape), f"{value.path}.{name}") for name in ("mean", "std")
    )
    return graph.add("Div", graph.add("Sub", value.name, mean), std)


def _gather(graph: Graph, value: Value, index: np.ndarray, mean: np.ndarray | None = None) -> str:
    x = value.name if mean is None else graph.add("Sub", value.name, graph.constant(mean))
    return graph.add("Gather", x, graph.constant(np.int64(index)), axis=1)


def _embedding(graph: Graph, layer: Any, value: Value) -> Value:
    if layer.padding_idx is not None and value.rank == 2:
        steps = graph.add("Gather", graph.add("Shape", value.name), graph.constant(np.int64(1)))
        one = graph.constant(np.int64(1))
        counts = graph.add("Range", one, graph.add("Add", steps, one), one)
        padded = graph.add("Equal", value.name, graph.constant(np.int64(layer.padding_idx)))
        ends = graph.add("Where", padded, one, counts)
        value = value._replace(lengths=graph.add("Cast", graph.add("ReduceMax", ends, axes=[1], keepdims=0), to=6))  # int32
    return value._replace(name=graph.add("Gather", _weight(graph, layer, value, "weight"), value.name))


def _recurrent(graph: Graph, layer: Any, value: Value) -> Value:
    """One node for each layer of the stack. ONNX has its own order of gates, and both directions in one array."""
    kind = "LSTM" if layer.gates == 4 else "GRU"
    options = {"hidden_size": layer.hidden_size, "direction": "bidirectional" if layer.bidirectional else "forward"}
    options |= {"linear_before_reset": 1} if kind == "GRU" else {}
    x = graph.add("Transpose", value.name, perm=[1, 0, 2]) if layer.batch_first else value.name
    number, ends = value.states, []
    given = [] if number is None else [_state(graph, layer, f"{name}{number}") for name in "hc"[: layer.states]]
    for at, cells in enumerate(layer._layers()):  # noqa: SLF001  the names of the cells' parameters
        w, r, b = _cells(graph, layer, cells, kind, value.path)
        first = [graph.add("Slice", name, *(graph.constant(np.array([i])) for i in (at, at + 1, 0))) for name in given]
        y, *last = graph.add(kind, x, w, r, b, value.lengths, *first, outputs=1 + layer.states, **options)
        ends.append(last)
        y = graph.add("Transpose", y, perm=[0, 2, 1, 3])  # (T, directions, N, H) -> (T, N, directions, H)
        x = graph.add("Reshape", y, graph.constant(np.array([0, 0, layer.output_size])))
    if number is not None:
        left = [graph.add("Concat", *parts, axis=0) for parts in zip(*ends, strict=True)]
        shape = [layer.num_layers, "samples", layer.hidden_size]
        for name, part in zip("hc", left):
            graph.rename(part, f"{name}{number}_out")
            graph.outputs[f"{name}{number}_out"] = np.float32, shape
    y = graph.add("Transpose", x, perm=[1, 0, 2]) if layer.batch_first else x
    return value._replace(name=y, states=None if number is None else number + 1)


def _state(graph: Graph, layer: Any, name: str) -> str:
    graph.inputs[name] = np.float32, [layer.num_layers, "samples", layer.hidden_size]
    return name


def _cells(graph: Graph, layer: Any, cells: Sequence[str], kind: str, path: str) -> list[str]:
    """The weights, recurrent weights and biases of the cells of a layer of the stack, in ONNX's order."""
    order, gates = GATES[kind]

    def ordered(name: str, cell: str) -> np.ndarray:
        values = getattr(layer, f"{name}_{cell}").numpy()
        return np.concatenate([values.reshape(gates, layer.hidden_size, -1)[gate] for gate in order]).reshape(values.shape)

    arrays = [np.stack([ordered(name, cell) for cell in cells]) for name in WEIGHTS]
    biases = [
        np.concatenate([ordered(name, cell) for name in BIASES])
        if layer.has_bias
        else np.zeros(2 * gates * layer.hidden_size, np.float32)
        for cell in cells
    ]
    names = [f"{path}.{name}_{cells[0]}" for name in (*WEIGHTS, "bias")]
    return [graph.constant(values, name) for values, name in zip([*arrays, np.stack(biases)], names, strict=True)]


def _last_step(graph: Graph, layer: Any, value: Value) -> Value:
    if value.lengths:
        one = graph.constant(np.int64(1))
        index = graph.add("Sub", graph.add("Cast", value.lengths, to=7), one)  # int64
        index = graph.add("Unsqueeze", index, graph.constant(np.array([1])))
        last = graph.add("GatherND", value.name, index, batch_dims=1)
    else:
        last = graph.add("Gather", value.name, graph.constant(np.int64(-1)), axis=1)
    ended = value._replace(lengths="")
    if not layer.bidirectional:
        return ended._replace(name=last)
    half = (value.shape[2] or 0) // 2
    first = graph.add("Gather", value.name, graph.constant(np.int64(0)), axis=1)
    ahead = graph.add("Gather", last, graph.constant(np.arange(half)), axis=1)
    back = graph.add("Gather", first, graph.constant(np.arange(half, 2 * half)), axis=1)
    return ended._replace(name=graph.add("Concat", ahead, back, axis=1))


def _plain(op: str, **attributes: Any) -> Writer:
    return lambda graph, layer, value: graph.add(op, value.name, **attributes)


WRITERS: dict[str, Writer] = {
    "AdaptiveAvgPool2d": _adaptive,
    "AvgPool2d": lambda graph, layer, value: _pool(
        graph, "AveragePool", layer, value, count_include_pad=int(layer.count_include_pad)
    ),
    "BatchNorm1d": _batch_norm,
    "BatchNorm2d": _batch_norm,
    "Conv2d": _conv,
    "Embedding": _embedding,
    "Flatten": _plain("Flatten", axis=1),
    "GELU": lambda graph, layer, value: _gelu(graph, value),
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "LastStep": _last_step,
    "LayerNorm": _layer_norm,
    "Linear": _linear,
    "MaxPool2d": lambda graph, layer, value: _pool(graph, "MaxPool", layer, value, dilations=list(layer.window.dilation)),
    "Normalize": _normalize,
    "ReLU": _plain("Relu"),
    "Select": lambda graph, layer, value: _gather(graph, value, layer.plan.indices()),
    "Shuffle": lambda graph, layer, value: _gather(graph, value, layer.order.order, layer.order.mean),
    "Sigmoid": _plain("Sigmoid"),
    "SparseLinear": lambda graph, layer, value: _linear(graph, layer, value, layer.weight.dense()),
    "Tanh": _plain("Tanh"),
}


def write(graph: Graph, layer: Layer, value: Value) -> Value:
    """Add the nodes of a layer; return its output."""
    name, path = class_of(layer, value.path, {*WRITERS, "Sequential"}), value.path
    if name == "Sequential":
        for i, part in enumerate(layer.layers):  # type: ignore[attr-defined]
            value = write(graph, part, value._replace(path=f"{path}.{i}" if path else str(i)))
        return value._replace(path=path)
    output = WRITERS[name](graph, layer, value)
    output = output if isinstance(output, Value) else value._replace(name=output)
    return output._replace(shape=tuple(layer.cost(ActivationSpec(value.shape), Plans())[1].shape))
