"""`op` makes a function of arrays differentiable; `backward` computes gradients along the graph that ops have recorded.

    y = f(x_1, …, x_n)   ->   dx_i = vjp_i(dy)

vjp_i is the vector-Jacobian product (vjp) for input i. It is called only if the gradient of x_i is needed. `op` turns a
function `fn(dev, *arrays, **static)`, which returns (array, vjps), into a function of tensors. Every differentiable operation
is defined with `op`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbanet_kernels.runtime.context import Scoped

from . import profile
from .device import Device, device
from .gradients import Dense, Gradient, One, Pending
from .tensor import Tensor

_recording = Scoped("recording", True)
# an object with two methods, or None: `backward` computes the gradients of leaves in the context `lending()`, and calls
# `complete(leaf)` with each leaf whose gradient is complete, while it computes the others
of_leaves = Scoped("leaves", None)


class Node:
    """A node of the graph: it holds how a tensor was computed. `op` is the name of the op, `inputs` its inputs, `vjps` one vjp
    per input, and `static` its keyword arguments. `fuses` is True if the vjps accept a `Gradient` (see `op`).
    """

    __slots__ = ("fuses", "inputs", "op", "static", "vjps")

    def __init__(
        self, op: str, inputs: tuple[Tensor | None, ...], vjps: Sequence[Callable], static: dict[str, Any], fuses: bool = False
    ) -> None:
        self.op, self.inputs, self.vjps, self.static, self.fuses = op, inputs, vjps, static, fuses


FREED = Node("freed", (), (), {})


# --- op ---------------------------------------------------------------------------------------------------------------
def op(
    fn: Callable[..., tuple[Any, Sequence[Callable]]] | None = None, *, fuses: bool = False, floats: bool = False
) -> Callable[..., Any]:
    """Turn `fn(dev, *arrays, **static) -> (array, vjps)` into a differentiable function of tensors.

    Inputs are tensors on one device, or None; arrays and numbers are moved to that device. Arguments without a gradient are
    keyword-only. Each vjp maps dy, the gradient of the result, to the gradient of its input: an array or a `Gradient`.

    Parameters
    ----------
    fuses : bool, default=False
        True if the vjps take dy as a `Gradient`, which may be a product that is not computed yet. By default they take an
        array.
    floats : bool, default=False
        True if tensors of integers are converted to float32. By default they are given to `fn` as they are.

    Raises
    ------
    TypeError
        When the op is called: if `fn` does not return (array, vjps), or not as many vjps as it has inputs.
    ValueError
        If the inputs are on several devices; in `backward`, if a vjp's gradient does not have the shape of its input.
    """
    if fn is None:
        return functools.partial(op, fuses=fuses, floats=floats)
    name = fn.__name__.strip("_")
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())[1:]  # callers give no device
    kinds = [p.kind for p in parameters]
    many = inspect.Parameter.VAR_POSITIONAL in kinds
    most = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @functools.wraps(fn)
    def run(*inputs: Any, **static: Any) -> Tensor:
        if len(inputs) > most and not many:
            raise TypeError(_too_many(name, parameters, len(inputs)))
        dev = common_device(name, inputs)
        tensors = tuple([x if isinstance(x, Tensor) or x is None else Tensor(x, dev) for x in inputs])
        if floats:
            tensors = tuple([t if t is None else as_floats(t) for t in tensors])
        arrays = [None if t is None else t.data for t in tensors]
        with profile.timed(name, arrays, static) if profile.ENABLED else profile.NOTHING:
            found = fn(dev, *arrays, **static)
        if not (type(found) is tuple and len(found) == 2 and isinstance(found[1], (tuple, list))):
            raise TypeError(f"{name}: it must return (array, vjps), where vjps is a tuple that has a function for each input")
        array, vjps = found
        if len(vjps) != (len(tensors) if many else most):
            raise TypeError(f"{name}: it gives {len(vjps)} vjps for {len(tensors) if many else most} inputs")
        if not (_recording.get() and any([t is not None and t.requires_grad for t in tensors])):
            return Tensor.wrap(array, dev)
        left_out = (None,) * (len(vjps) - len(tensors))
        return Tensor.wrap(array, dev, True, Node(name, tensors + left_out, vjps, static, fuses))

    vars(run)["__signature__"] = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return run


def _too_many(name: str, parameters: Sequence[inspect.Parameter], given: int) -> str:
    """Return the text of the error of an op that is given more inputs than it has."""
    inputs, others = ([p.name for p in parameters if (p.kind is p.KEYWORD_ONLY) is static] for static in (False, True))
    named = f"; give the others by name: {', '.join(f'{other}=…' for other in others)}" * bool(others)
    return f"{name}: {given} inputs given, but it has {len(inputs)}, {', '.join(inputs)}{named}"


def common_device(name: str, inputs: Sequence[Any]) -> Device:
    """Return the device of the tensors among `inputs`, or the CPU if there is none; raise ValueError if devices differ."""
    devices = {t.device for t in inputs if isinstance(t, Tensor)}
    if len(devices) > 1:
        raise ValueError(
            f"{name}: the inputs are on {' and '.join(sorted(d.name for d in devices))}; "
            "move them to one device with .to(device)"
        )
    return devices.pop() if devices else device("cpu")


def as_floats(x: Tensor) -> Tensor:
    """Return x, or a tensor of the same numbers as float32 if it holds integers, which are converted on the host."""
    return x if x.dtype == np.float32 else Tensor.wrap(x.device.upload(x.numpy(), np.float32), x.device)


def move(x: Tensor, dev: Device) -> Tensor:
    """Return x on the device `dev`; the vjp moves the gradient back. Devices that compute on NumPy arrays share them."""
    if x.device is dev:
        return x
    array, source = dev.upload(x.device.download(x.data)), x.device
    if not (_recording.get() and x.requires_grad):
        return Tensor.wrap(array, dev)
    return Tensor.wrap(array, dev, True, Node("move", (x,), (lambda dy: source.upload(dev.download(dy)),), {}))


def no_grad() -> contextlib.AbstractContextManager[bool]:
    """Return a context in which this thread records no graph: results require no gradient and keep no activations alive."""
    return _recording.within(False)


def recording() -> bool:
    """Return True unless this thread is in `no_grad`: an op may then need what it computes for the gradient."""
    return _recording.get()


# --- backward ---------------------------------------------------------------------------------------------------------
def backward(root: Tensor, dy: Any = None) -> None:
    """Compute gradients from the root to the leaves (`Tensor.backward`). Gradients of inner nodes are freed after their use."""
    if not root.requires_grad:
        raise RuntimeError("backward: this tensor does not depend on a tensor that requires a gradient")
    if dy is None and root.size != 1:
        raise ValueError(f"backward: a tensor of shape {root.shape} needs dy, the gradient of the loss with respect to it")
    order = _topological(root)
    accumulate(root, One(root.shape) if dy is None else Dense(_given(root, dy)), "backward")
    leaves = of_leaves.get()
    missing = Counter() if leaves is None else Counter(x for tensor in order for x in _leaves(tensor))
    for tensor in reversed(order):
        node, gradient = tensor.release(FREED)
        if not node.fuses:
            pending = profile.ENABLED and isinstance(gradient, Pending)
            with profile.timed(f"{node.op}.backward", (), node.static) if pending else profile.NOTHING:
                gradient = gradient.dense(tensor.device)
        used = [getattr(gradient, "values", None) if node.fuses else gradient]
        for x, vjp in zip(node.inputs, node.vjps, strict=True):
            if x is not None and x.requires_grad:
                arrays = () if node.fuses else (gradient,)
                with profile.timed(f"{node.op}.backward", arrays, node.static) if profile.ENABLED else profile.NOTHING:
                    if leaves is None or x.node is not None:
                        accumulate(x, vjp(gradient), node.op, used)
                        continue
                    with leaves.lending():
                        dx = vjp(gradient)
                    accumulate(x, dx, node.op, used)
                    missing[x] -= 1
                    if not missing[x]:
                        leaves.complete(x)


def _leaves(tensor: Tensor) -> list[Tensor]:
    """Return the leaves that require a gradient among the inputs of a tensor's node; a leaf that is used twice occurs twice."""
    return [x for x in tensor.node.inputs if x is not None and x.requires_grad and x.node is None]


def accumulate(x: Tensor, dx: Any, name: str, used: list[Any] | None = None) -> None:
    """Add dx, an array or a `Gradient`, to the gradient of the tensor x; `name` is the op that computed dx, for messages.

    `used` is a list of arrays that hold gradients of other tensors; the array of dx is added to it. If dx shares memory with
    one of them, a leaf gets a copy.
    """
    if not isinstance(dx, Gradient):
        if not hasattr(dx, "shape"):
            raise TypeError(f"{name}: a vjp gives {type(dx).__name__}, not an array or a Gradient")
        dx = Dense(dx)
    if dx.shape != x.shape:
        raise ValueError(f"{name}: a vjp gives a gradient of shape {dx.shape} for an input of shape {x.shape}")
    if used is not None and isinstance(dx, Dense):
        dx = _own(x, dx, used)
    x.receive(dx)


def _own(x: Tensor, dx: Dense, used: list[Any]) -> Dense:
    """Return dx, or a copy if x is a leaf that would keep memory of the arrays `used`; add its array to `used`."""
    dev, array = x.device, dx.values
    if x.node is None and x.gradient is None and any(a is not None and dev.overlap(array, a) for a in used):
        return Dense(dev.affine(array) if array.flags["C_CONTIGUOUS"] else dev.copy(array))  # `copy` is not recorded on a GPU
    used.append(array)
    return dx


def _given(root: Tensor, dy: Any) -> Any:
    """Return a copy of dy, which the user gave as the gradient of `root`, on the device of `root`."""
    if isinstance(dy, Tensor):
        common_device("backward", (root, dy))
    dy = root.device.copy(dy.data if isinstance(dy, Tensor) else root.device.upload(np.asarray(dy, np.float32)))
    if tuple(dy.shape) != root.shape:
        raise ValueError(f"backward: dy {tuple(dy.shape)} does not match the tensor {root.shape}")
    return dy


def _topological(root: Tensor) -> list[Tensor]:
    """Return the tensors from `root` to the leaves, inputs of an op before its result; not recursive, as graphs may be deep."""
    order, seen, stack = [], set(), [(root, False)]
    while stack:
        tensor, expanded = stack.pop()
        if expanded:
            order.append(tensor)
        elif tensor.node is not None and id(tensor) not in seen:
            if tensor.node is FREED:
                raise RuntimeError("backward: the graph was freed by an earlier backward; compute the tensor again")
            seen.add(id(tensor))
            stack.append((tensor, True))
            stack.extend((x, False) for x in tensor.node.inputs if x is not None and x.requires_grad)
    return order
