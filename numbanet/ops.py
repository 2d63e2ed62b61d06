"""The operations on tensors: each states its formula, computes it on the device, and gives one vjp an input.

x, y, a, b, w are tensors; dy is the gradient of the result. Shapes are in the docstrings: N batch, I in, O out, K kept.
"""
from __future__ import annotations

import builtins
import functools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from .lists import PackedGradient
from .losses import absolute_error, sigmoid_cross_entropy, softmax_cross_entropy, squared_error  # noqa: F401  ops as well
from .plan import BernoulliPlan, Order, RowPlan, TilePlan, pack_rows
from .tensor import Fusing, Tensor, common_device, op


def _once(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """f, remembering its result: what several vjps of one op share is computed once."""
    memory: list[Any] = []

    def shared(dy: Any) -> Any:
        if not memory:
            memory.append(f(dy))
        return memory[0]

    return shared


def _through(dev: Any, dy: Any, y: Any, relu: bool, scale: float) -> Any:
    """dz = scale dy, with relu only where y > 0, else 0; dy may be a product that is still to be done (`Fusing`)."""
    if callable(dy):
        return dy(where=y if relu else None, scale=scale)
    return dev.relu_grad(dy, y, scale) if relu else dy if scale == 1.0 else dev.affine(dy, mul=scale)


def _weight_vjps(dev: Any, x: Any, b: Any, dz: Callable[[Any], Any], db_scale: float = 1.0) -> tuple[Callable, Callable]:
    """(dy -> dw, dy -> db) of z = x w.T + b: dw brings db, unless there is no b; db alone, of a frozen w, is a sum."""
    found: list[Any] = []

    def dw(dy):
        if b is None:
            return dev.gemm(dz(dy), x, ta=True)
        values, sums = dev.gemm_dw(dz(dy), x, db_scale)
        found.append(sums)
        return values

    return dw, lambda dy: found.pop() if found else dev.sum_rows(dz(dy), db_scale)


# --- shapes -----------------------------------------------------------------------------------------------------------
@op
def reshape(dev, x, *, shape: Sequence[int]):
    """y = x under another shape; one entry may be -1."""
    shape, before = tuple(shape), x.shape
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) > 1 or (known != x.size if -1 not in shape else known == 0 or x.size % known):
        raise ValueError(f"reshape: a tensor of shape {tuple(before)} cannot take the shape {shape}")
    return dev.reshape(x, shape), (lambda dy: dev.reshape(dy, before),)


@op
def transpose(dev, x, *, axes: Sequence[int] | None = None):
    """y[i_axes[0], i_axes[1], …] = x[i_0, i_1, …]; axes reversed by default."""
    axes = tuple(range(x.ndim))[::-1] if axes is None else tuple(a + x.ndim if a < 0 else a for a in axes)
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"transpose: axes {axes} are not a permutation of the {x.ndim} axes of {tuple(x.shape)}")
    inverse = tuple(axes.index(i) for i in range(x.ndim))
    return dev.transpose(x, axes), (lambda dy: dev.transpose(dy, inverse),)


@op
def broadcast_to(dev, x, *, shape: Sequence[int]):
    """y[…, i, …] = x[…, 0, …] along every axis that x lacks or has with length 1."""
    shape, before = tuple(shape), tuple(x.shape)
    if _broadcast_shape("broadcast_to", before, shape) != shape:
        raise ValueError(f"broadcast_to: a tensor of shape {before} cannot take the shape {shape}")
    added = len(shape) - len(before)
    spread = tuple(i for i, n in enumerate(shape) if i < added or (before[i - added] == 1 and n != 1))
    return dev.broadcast_to(x, shape), (lambda dy: dev.reshape(dev.sum(dy, axis=spread), before) if spread else dy,)


@op
def getitem(dev, x, *, key):
    """y = x[key]; key as in NumPy: integers, slices, integer arrays, boolean masks."""
    shape = x.shape
    return dev.getitem(x, key), (lambda dy: dev.putitem(dy, key, shape),)


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors joined along one axis; the other axes must agree."""
    if not tensors:
        raise ValueError("concatenate: needs at least one tensor")
    return _concatenate(*tensors, axis=axis)


@op
def _concatenate(dev, *xs, axis):
    (axis,) = _axes("concatenate", xs[0], axis)
    others = {tuple(n for i, n in enumerate(x.shape) if i != axis) for x in xs}
    if len(others) > 1:
        raise ValueError(f"concatenate: shapes {[tuple(x.shape) for x in xs]} differ in another axis than {axis}")
    stops = [builtins.sum(x.shape[axis] for x in xs[:i + 1]) for i in range(len(xs))]
    before = (slice(None),) * axis
    keys = [(*before, slice(stop - x.shape[axis], stop)) for x, stop in zip(xs, stops)]
    return dev.concatenate(xs, axis), tuple(lambda dy, key=key: dev.getitem(dy, key) for key in keys)


@op
def expand(dev, x, *, plan: RowPlan):
    """y[n, plan's k-th index] = x[n, k], 0 where dropped: the dense form of a compact activation.   (N, K) -> (N, n)"""
    return dev.expand(x, plan.positions(dev)), (lambda dy: dev.compact(dy, plan.kept(dev)),)


def _shuffled(name: str, x: Any, order: Order) -> None:
    if len(x.shape) != 2 or x.shape[1] != order.size:
        raise ValueError(f"{name}: x {tuple(x.shape)} must have two axes, the last one of {order.size} features")


@op
def shuffle(dev, x, *, order: Order):
    """y[n, j] = (x - order.mean)[n, order.order[j]].   x (N, I) -> y (N, I)

    Raises
    ------
    ValueError
        If x has another shape.
    """
    _shuffled("shuffle", x, order)
    there, back, shift = order.views(dev)
    return dev.compact(x, there, shift), (lambda dy: dev.compact(dy, back),)


# --- elementwise ------------------------------------------------------------------------------------------------------
def _binary(equal_shapes: Callable[..., Tensor]) -> Callable[[Any, Any], Tensor]:
    """An op on two tensors of one shape, with broadcasting before it: so the derivative of broadcasting is written once."""
    def run(a: Any, b: Any) -> Tensor:
        name = equal_shapes.__name__.strip("_")
        dev = common_device(name, (a, b))
        a, b = (x if isinstance(x, Tensor) else Tensor(x, dev) for x in (a, b))
        if a.shape != b.shape:
            shape = _broadcast_shape(name, a.shape, b.shape)
            a, b = (x if x.shape == shape else broadcast_to(x, shape=shape) for x in (a, b))
        return equal_shapes(a, b)

    run.__name__, run.__doc__ = equal_shapes.__name__, equal_shapes.__doc__
    return run


def _broadcast_shape(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    width = builtins.max(len(a), len(b))
    pairs = list(zip((1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b))
    if any(m != n and 1 not in (m, n) for m, n in pairs):
        raise ValueError(f"{name}: shapes {a} and {b} do not broadcast")
    return tuple(n if m == 1 else m for m, n in pairs)


def _number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


@_binary
@op
def _add(dev, a, b):
    return dev.add(a, b), (lambda dy: dy, lambda dy: dy)


@_binary
@op
def _sub(dev, a, b):
    return dev.sub(a, b), (lambda dy: dy, lambda dy: dev.affine(dy, mul=-1.0))


@_binary
@op
def _mul(dev, a, b):
    return dev.mul(a, b), (lambda dy: dev.mul(dy, b), lambda dy: dev.mul(dy, a))


@_binary
@op
def _div(dev, a, b):
    y = dev.div(a, b)
    return y, (lambda dy: dev.div(dy, b), lambda dy: dev.affine(dev.div(dev.mul(dy, y), b), mul=-1.0))


def add(a: Any, b: Any) -> Tensor:
    """y = a + b, with broadcasting."""
    a, b = (b, a) if _number(a) else (a, b)
    return affine(a, add=float(b)) if _number(b) else _add(a, b)


def sub(a: Any, b: Any) -> Tensor:
    """y = a - b, with broadcasting."""
    if _number(a):
        return affine(b, mul=-1.0, add=float(a))
    return affine(a, add=-float(b)) if _number(b) else _sub(a, b)


def mul(a: Any, b: Any) -> Tensor:
    """y = a b, with broadcasting."""
    a, b = (b, a) if _number(a) else (a, b)
    return affine(a, mul=float(b)) if _number(b) else _mul(a, b)


def div(a: Any, b: Any) -> Tensor:
    """y = a / b, with broadcasting."""
    return affine(a, mul=1.0 / b) if _number(b) and b else _div(a, b)


@_binary
@op
def maximum(dev, a, b):
    """y = max(a, b), with broadcasting; where they are equal the gradient goes to b."""
    larger = dev.greater(a, b)
    return dev.maximum(a, b), (lambda dy: dev.mul(dy, larger),
                               lambda dy: dev.mul(dy, dev.affine(larger, mul=-1.0, add=1.0)))


@_binary
@op
def minimum(dev, a, b):
    """y = min(a, b), with broadcasting; where they are equal the gradient goes to a."""
    larger = dev.greater(a, b)
    return dev.minimum(a, b), (lambda dy: dev.mul(dy, dev.affine(larger, mul=-1.0, add=1.0)),
                               lambda dy: dev.mul(dy, larger))


@op
def affine(dev, x, *, mul: float = 1.0, add: float = 0.0):
    """y = mul x + add, for numbers mul and add."""
    return dev.affine(x, mul=mul, add=add), (lambda dy: dev.affine(dy, mul=mul),)


@op
def power(dev, x, *, exponent: float):
    """y = x ** exponent, for a number exponent."""
    return dev.power(x, exponent), (
        lambda dy: (dev.mul(dy, dev.affine(dev.power(x, exponent - 1.0), mul=exponent)) if exponent else
                    dev.affine(dy, mul=0.0)),)


@op
def exp(dev, x):
    """y = e^x"""
    y = dev.exp(x)
    return y, (lambda dy: dev.mul(dy, y),)


@op
def log(dev, x):
    """y = ln x"""
    return dev.log(x), (lambda dy: dev.div(dy, x),)


@op
def sqrt(dev, x):
    """y = x ** 0.5"""
    y = dev.sqrt(x)
    return y, (lambda dy: dev.affine(dev.div(dy, y), mul=0.5),)


@op
def abs(dev, x):
    """y = |x|; the gradient at 0 is 0."""
    return dev.abs(x), (lambda dy: dev.mul(dy, dev.sign(x)),)


@op
def tanh(dev, x):
    """y = tanh x"""
    y = dev.tanh(x)
    return y, (lambda dy: dev.tanh_grad(dy, y),)


@op
def sigmoid(dev, x):
    """y = 1 / (1 + e^-x)"""
    y = dev.sigmoid(x)
    return y, (lambda dy: dev.sigmoid_grad(dy, y),)


@op
def relu(dev, x):
    """y = max(x, 0)"""
    y = dev.relu(x)
    return y, (lambda dy: dev.relu_grad(dy, y),)


@op
def gelu(dev, x):
    """y = x Phi(x), Phi the distribution function of the standard normal (Hendrycks & Gimpel 2016, eq. 1)"""
    return dev.gelu(x), (lambda dy: dev.gelu_grad(dy, x),)


# --- reductions -------------------------------------------------------------------------------------------------------
def _axes(name: str, x: Any, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, numbers.Integral) else axis
    if any(not -x.ndim <= a < x.ndim for a in axes):
        raise ValueError(f"{name}: axis {axis} is not among the {x.ndim} axes of {tuple(x.shape)}")
    return tuple(sorted({a % x.ndim for a in axes}))


def _with_ones(x: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(x.shape))


@op
def sum(dev, x, *, axis: int | Sequence[int] | None = None, keepdims: bool = False):
    """y = sum of x over the axes (all by default)."""
    axes, shape = _axes("sum", x, axis), x.shape
    kept = _with_ones(x, axes)
    return (dev.sum(x, axis=axes, keepdims=keepdims),
            (lambda dy: dev.broadcast_to(dev.reshape(dy, kept), shape),))


def mean(x: Tensor, *, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """y = mean of x over the axes (all by default)."""
    count = math.prod(x.shape[a] for a in _axes("mean", x, axis))
    return affine(sum(x, axis=axis, keepdims=keepdims), mul=1.0 / count if count else math.nan)


@op
def max(dev, x, *, axis: int | Sequence[int] | None = None, keepdims: bool = False):
    """y = largest of x over the axes (all by default); equal ones share the gradient."""
    axes, shape = _axes("max", x, axis), x.shape
    kept = _with_ones(x, axes)
    y = dev.max(x, axis=axes, keepdims=True)

    def vjp(dy):
        below = dev.greater(dev.broadcast_to(y, shape), x)
        winners = dev.affine(below, mul=-1.0, add=1.0)
        share = dev.div(dev.reshape(dy, kept), dev.sum(winners, axis=axes, keepdims=True))
        return dev.mul(winners, dev.broadcast_to(share, shape))

    return y if keepdims else dev.reshape(y, tuple(n for i, n in enumerate(shape) if i not in axes)), (vjp,)


@op
def softmax(dev, x):
    """y[…, c] = e^x[…, c] / sum_k e^x[…, k], over the last axis"""
    y = dev.softmax(x)
    return y, (lambda dy: dev.softmax_grad(dy, y),)


@op
def log_softmax(dev, x):
    """y[…, c] = x[…, c] - ln sum_k e^x[…, k], over the last axis"""
    y = dev.log_softmax(x)
    return y, (lambda dy: dev.log_softmax_grad(dy, y),)


# --- matrix products --------------------------------------------------------------------------------------------------
@op
def _matmul(dev, a, b):
    return dev.gemm(a, b), (lambda dy: dev.gemm(dy, b, tb=True), lambda dy: dev.gemm(a, dy, ta=True))


def matmul(a: Any, b: Any) -> Tensor:
    """y[…, m, n] = sum_k a[…, m, k] b[k, n]; vectors as in NumPy, b with at most two axes.

    Raises
    ------
    ValueError
        If the inner lengths differ, or b has more than two axes.
    """
    dev = common_device("matmul", (a, b))
    a, b = (x if isinstance(x, Tensor) else Tensor(x, dev) for x in (a, b))
    if not (a.ndim >= 1 and 1 <= b.ndim <= 2 and a.shape[-1] == b.shape[0]):
        raise ValueError(f"matmul: a {a.shape} does not match b {b.shape} (b must have one or two axes)")
    rows = reshape(a, shape=(math.prod(a.shape[:-1]), a.shape[-1]))
    columns = b if b.ndim == 2 else reshape(b, shape=(b.shape[0], 1))
    return reshape(_matmul(rows, columns), shape=a.shape[:-1] + b.shape[1:])


@op
def linear(dev, x, w, b=None, *, relu: bool = False, scale: float = 1.0):
    """y[n, o] = act(scale sum_i x[n, i] w[o, i] + b[o]).   x (N, I), w (O, I), b (O,) or None -> y (N, O), scale > 0"""
    y = dev.gemm(x, w, tb=True, bias=b, relu=relu, scale=scale)
    dz = _once(lambda dy: _through(dev, dy, y, relu, scale))
    dw, db = _weight_vjps(dev, x, b, dz, 1 / scale)  # dz is scaled, once for dx and dw, which are larger
    return y, Fusing((lambda dy: functools.partial(dev.gemm, dz(dy), w), dw, db))


@op
def linear_rows(dev, x, w, b=None, *, rows: RowPlan, cols: RowPlan, relu: bool = False):
    """y[n, k] = scale act(sum_j x[n, j] w[rows_k, cols_j] + b[rows_k]), x and y compact, scale = rows.scale.

    x (N, J) holds the J kept inputs, w (O, I), b (O,) or None -> y (N, K) holds the K kept outputs.
    """
    shape, scale, at = w.shape, rows.scale, (rows.index, cols.index)
    y = dev.gemm_rows(x, w, *at, bias=b, relu=relu, scale=scale)
    dz = _once(lambda dy: _through(dev, dy, y, relu, scale))
    dw, sums = _weight_vjps(dev, x, b, dz)

    def db(dy):
        return PackedGradient(dev.reshape(sums(dy), (1, rows.count)), pack_rows(RowPlan(1, 1, 0), rows, dev), (rows.n,))

    return y, Fusing((lambda dy: functools.partial(dev.gemm_rows_dx, dz(dy), w, *at),
                      lambda dy: PackedGradient(dw(dy), pack_rows(rows, cols, dev), shape), db))


@op
def _linear_tiles(dev, x, w, b=None, *, plan: TilePlan, relu: bool, order: Order | None):
    if order is not None:
        _shuffled("linear_tiles", x, order)
    shape, pattern, scale = w.shape, plan.pattern[1:], plan.scale
    blocks = dev.tile_blocks(w, *pattern) if plan.prepared is None else plan.prepared
    inputs = dev.tile_inputs(x, shape, *pattern, plan.meeting(order, dev))
    y = dev.gemm_tiles(x, w, *pattern, b=b, relu=relu, scale=scale, blocks=blocks, inputs=inputs)
    prepared = _once(lambda dy: dev.tile_outputs(dy, shape, *pattern, scale, y if relu else None))

    def product(like_dy, outputs, where=None, scale=1.0):
        values = dev.gemm_tiles_dx(like_dy, w, *pattern, scale=plan.scale, blocks=blocks, outputs=outputs, where=where)
        return values if scale == 1.0 else dev.affine(values, mul=scale)

    def dx(dy):
        values = functools.partial(product, *prepared(dy))
        return values if order is None else dev.compact(values(), order.views(dev)[1])

    @_once
    def both(dy):
        like_dy, outputs = prepared(dy)
        return dev.gemm_tiles_dw(like_dy, x, *pattern, scale=scale, blocks=blocks, inputs=inputs, outputs=outputs)

    return y, Fusing((dx, lambda dy: PackedGradient(both(dy)[0], plan.packing(dev), shape), lambda dy: both(dy)[1]))


def linear_tiles(x: Any, w: Any, b: Any = None, *, plan: TilePlan, relu: bool = False, order: Order | None = None) -> Tensor:
    """y[n, o] = act(scale sum_i x[n, i] (w * M)[o, i] + b[o]), M = plan.mask().   x (N, I) -> y (N, O), scale = plan.scale

    With an order, x is `shuffle`d first, on its way to the tiles. All tiles (dp = 1) are `linear`.
    """
    if plan.dp > 1:
        return _linear_tiles(x, w, b, plan=plan, relu=relu, order=order)
    return linear(x if order is None else shuffle(x, order=order), w, b, relu=relu, scale=plan.scale)


@op
def dropout(dev, x, *, plan: BernoulliPlan):
    """y = scale x where the plan's random bits keep it, else 0: linear and its own adjoint, so nothing is stored."""
    return (dev.dropout(x, plan.rate, plan.key, 0, scale=plan.scale),
            (lambda dy: dev.dropout(dy, plan.rate, plan.key, 0, scale=plan.scale),))
