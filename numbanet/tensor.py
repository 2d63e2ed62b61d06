"""Tensor: an array on a device that knows how it was computed; op: the one place where arithmetic meets autograd.

    y = f(x_1, …, x_n)   ->   dx_i = vjp_i(dy),   one vector-Jacobian product an input, called only where a gradient is needed.

`op` lifts `fn(dev, *arrays, **static) -> (array, vjps)` to tensors. Everything that is differentiated runs through it.
"""
from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from . import profile
from .device import Device, device, problem
from .lists import PackedGradient

_recording = contextvars.ContextVar("recording", default=True)  # one for each thread


class Tensor:
    """A float32 array on a device, with the means to differentiate what is computed from it.

    Parameters
    ----------
    data : array_like
        Values; anything NumPy converts to float32. A C-contiguous, writable float32 NumPy array is used as it is,
        without a copy.
    device : str or Device, default="cpu"
        Where the array lives: "cpu", "cuda", "emulated" or "auto".
    requires_grad : bool, default=False
        Whether `backward` should leave a gradient here.

    Raises
    ------
    TypeError
        If the values are not numbers.
    """

    __slots__ = ("data", "device", "requires_grad", "gradient", "node", "__weakref__")
    __array_ufunc__ = None  # numpy_array * tensor is a tensor; np.exp(tensor), which would lose the graph, a TypeError

    def __init__(self, data: Any, device: str | Device = "cpu", requires_grad: bool = False) -> None:
        if isinstance(data, Tensor):
            raise TypeError("Tensor: the values are a Tensor already; use .detach() or .to(device)")
        if data is None or (isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data)):
            raise TypeError("Tensor: the values are missing" if data is None else
                            "Tensor: a list of tensors would lose their graph; use concatenate, or .numpy()")
        self.device = _device(device)
        try:
            host = np.asarray(data, np.float32)
        except (TypeError, ValueError) as error:
            raise TypeError(f"Tensor: cannot read {type(data).__name__} as float32 numbers ({error})") from error
        host = host if host.flags.writeable else host.copy()
        self._set(self.device.upload(host), requires_grad)

    def _set(self, data: Any, requires_grad: bool = False) -> None:
        self.data, self.requires_grad, self.gradient, self.node = data, requires_grad, None, None

    @classmethod
    def wrap(cls, array: Any, dev: Device, requires_grad: bool = False) -> Tensor:
        """A tensor around an array that lives on the device already."""
        tensor = cls.__new__(cls)
        tensor.device = dev
        tensor._set(array, requires_grad)
        return tensor

    # --- what it is ---------------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        where = "" if self.device.name == "cpu" else f", device={self.device.name!r}"
        values = np.array2string(self.numpy(), precision=4, threshold=50, prefix="Tensor(", separator=", ")
        return f"Tensor({values}{where}{', requires_grad=True' if self.requires_grad else ''})"

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return self.item()

    def item(self) -> float:
        """The one value of a tensor of size 1."""
        if self.size != 1:
            raise ValueError(f"item: a tensor of shape {self.shape} has not one value but {self.size}")
        return float(self.numpy().reshape(()))

    # --- in and out ---------------------------------------------------------------------------------------------------
    def numpy(self) -> np.ndarray:
        """The values as a NumPy array; on the CPU the same memory."""
        return self.device.download(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.numpy()
        if copy is False and self.device.name != "cpu":
            raise ValueError("a tensor on another device cannot become a NumPy array without a copy")
        return np.array(values, dtype) if copy or (dtype is not None and dtype != values.dtype) else values

    @property
    def __cuda_array_interface__(self) -> dict:
        return self.device.cuda_array_interface(self.data)

    def __dlpack__(self, **options: Any) -> Any:
        return self.device.to_dlpack(self.data, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack_device(self.data)

    def to(self, other: str | Device) -> Tensor:
        """This tensor on another device, outside the graph; itself where it is there already."""
        other = device(other)
        return self if other is self.device else Tensor(self.numpy(), other, self.requires_grad)

    def move(self, other: Device) -> None:
        """Take this tensor itself to another device; its gradient is forgotten."""
        if other is not self.device:
            host, self.device = self.numpy(), other
            self._set(other.upload(host), self.requires_grad)

    def detach(self) -> Tensor:
        """The same memory, outside the graph."""
        return Tensor.wrap(self.data, self.device)

    def __reduce__(self) -> tuple:
        return _restored, (self.numpy(), self.device.name, self.requires_grad)

    # --- gradients ----------------------------------------------------------------------------------------------------
    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` left, dense; None where there is none."""
        if self.gradient is None:
            return None
        return Tensor.wrap(_dense(self.gradient, self.device), self.device)

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.gradient = None

    def backward(self, dy: Any = None) -> None:
        """Add d(sum(dy * self)) / dx to the gradient of every tensor x that requires one.

        Parameters
        ----------
        dy : array_like or Tensor, optional
            The gradient of what follows, of this tensor's shape; may be left out for a tensor of size 1, where it is 1.

        Raises
        ------
        RuntimeError
            If nothing here requires a gradient, or an earlier `backward` has freed the graph.
        ValueError
            If `dy` is missing or has the wrong shape.
        """
        if not self.requires_grad:
            raise RuntimeError("backward: this tensor was computed from none that requires a gradient")
        if dy is None and self.size != 1:
            raise ValueError(f"backward: a tensor of shape {self.shape} needs dy, the gradient of what follows")
        order = _topological(self)
        known = dy is None and self.node is not None and all(hasattr(vjp, "of_one") for vjp in self.node.vjps)
        if not known:
            self._accumulate(self._given(np.ones(self.shape, np.float32) if dy is None else dy))
        for tensor in reversed(order):
            node, dy = tensor.node, tensor.gradient
            tensor.node, tensor.gradient = _FREED, None  # gradients and activations of inner nodes are freed on the way
            if callable(dy) and not isinstance(node.vjps, Fusing):
                with profile.timed(f"{node.op}.backward", static=node.static):
                    dy = dy()
            for x, vjp in zip(node.inputs, node.vjps, strict=True):
                if x is not None and x.requires_grad:
                    with profile.timed(f"{node.op}.backward", *(() if dy is None or callable(dy) else (dy,)),
                                       static=node.static):
                        x._accumulate(vjp.of_one if dy is None else vjp(dy))

    def _given(self, dy: Any) -> Any:
        """A copy of a gradient that was given, on this tensor's device."""
        if isinstance(dy, Tensor):
            common_device("backward", (self, dy))
        dy = self.device.copy(dy.data if isinstance(dy, Tensor) else self.device.upload(np.asarray(dy, np.float32)))
        if tuple(dy.shape) != self.shape:
            raise ValueError(f"backward: dy {tuple(dy.shape)} does not match the tensor {self.shape}")
        return dy

    def _accumulate(self, dx: Any) -> None:
        if self.gradient is None:
            self.gradient = dx() if callable(dx) and self.node is None else dx
            return
        self.gradient = self.device.add(_dense(self.gradient, self.device), _dense(dx, self.device))

    # --- arithmetic: the operations are functions of `ops` ------------------------------------------------------------
    def __add__(self, other):
        return ops.add(self, other)

    def __sub__(self, other):
        return ops.sub(self, other)

    def __mul__(self, other):
        return ops.mul(self, other)

    def __truediv__(self, other):
        return ops.div(self, other)

    def __rsub__(self, other):
        return ops.sub(other, self)

    def __rtruediv__(self, other):
        return ops.div(other, self)

    __radd__, __rmul__ = __add__, __mul__

    def __matmul__(self, other):
        return ops.matmul(self, other)

    def __rmatmul__(self, other):
        return ops.matmul(other, self)

    def __pow__(self, exponent):
        if isinstance(exponent, Tensor):
            raise TypeError("x ** e: the exponent must be a number; for tensors write (x.log() * e).exp()")
        return ops.power(self, exponent=float(exponent))

    def __rpow__(self, base):
        if not (isinstance(base, (int, float)) and base > 0):
            raise TypeError(f"b ** x: the base must be a number above 0, got {base!r}")
        return ops.exp(ops.affine(self, mul=math.log(base)))

    def __abs__(self):
        return ops.abs(self)

    def __neg__(self):
        return ops.affine(self, mul=-1.0)

    def __getitem__(self, key):
        return ops.getitem(self, key=key)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    @property
    def T(self) -> Tensor:
        return ops.transpose(self)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        return ops.reshape(self, shape=shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def transpose(self, *axes: int) -> Tensor:
        return ops.transpose(self, axes=axes or None)

    def sum(self, axis=None, keepdims: bool = False) -> Tensor:
        return ops.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis=None, keepdims: bool = False) -> Tensor:
        return ops.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis=None, keepdims: bool = False) -> Tensor:
        return ops.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis=None, keepdims: bool = False) -> Tensor:
        return -ops.max(-self, axis=axis, keepdims=keepdims)

    def exp(self) -> Tensor:
        return ops.exp(self)

    def log(self) -> Tensor:
        return ops.log(self)

    def sqrt(self) -> Tensor:
        return ops.sqrt(self)

    def abs(self) -> Tensor:
        return ops.abs(self)

    def tanh(self) -> Tensor:
        return ops.tanh(self)

    def sigmoid(self) -> Tensor:
        return ops.sigmoid(self)

    def relu(self) -> Tensor:
        return ops.relu(self)

    def gelu(self) -> Tensor:
        return ops.gelu(self)

    def softmax(self) -> Tensor:
        return ops.softmax(self)

    def log_softmax(self) -> Tensor:
        return ops.log_softmax(self)


def _dense(gradient: Any, dev: Device) -> Any:
    """A gradient, whatever its form, as an array."""
    if isinstance(gradient, PackedGradient):
        return gradient.dense(dev)
    return gradient() if callable(gradient) else gradient


def _restored(values: np.ndarray, name: str, requires_grad: bool) -> Tensor:
    """A pickled tensor, on its device, or on the CPU where that is not there."""
    missing = problem(name)
    if missing:
        warnings.warn(f"a tensor of device {name!r} was loaded to the CPU: {missing}", stacklevel=2)
    return Tensor(values, "cpu" if missing else name, requires_grad)


def _device(name: str | Device) -> Device:
    return device(name)  # inside Tensor.__init__ the name `device` is its parameter


class Fusing(tuple):
    """vjps that take, in place of dy, a function (where=None, scale=1.0) -> dy of a product that is still to be done: what they
    do to it first, where a ReLU let nothing through, is done on its way. Other vjps are given what it gives."""


class Node:
    """How a tensor was computed: the op's name, its inputs, one vjp an input, and what carries no gradient."""

    __slots__ = ("inputs", "op", "static", "vjps")

    def __init__(self, op: str, inputs: tuple[Tensor | None, ...], vjps: Sequence[Callable], static: dict[str, Any]) -> None:
        self.op, self.inputs, self.vjps, self.static = op, inputs, vjps, static


_FREED = Node("freed", (), (), {})


def _topological(root: Tensor) -> list[Tensor]:
    """The tensors between `root` and the leaves, inputs before outputs; iterative, so that depth is no limit."""
    order, seen, stack = [], set(), [(root, False)]
    while stack:
        tensor, expanded = stack.pop()
        if expanded:
            order.append(tensor)
        elif tensor.node is not None and id(tensor) not in seen:
            if tensor.node is _FREED:
                raise RuntimeError("backward: the graph was freed by an earlier backward; compute the tensor again")
            seen.add(id(tensor))
            stack.append((tensor, True))
            stack.extend((x, False) for x in tensor.node.inputs if x is not None and x.requires_grad)
    return order


# --- op ---------------------------------------------------------------------------------------------------------------
def op(fn: Callable[..., tuple[Any, Sequence[Callable]]]) -> Callable[..., Tensor]:
    """Lift `fn(dev, *arrays, **static) -> (array, vjps)` to tensors.

    Inputs are tensors on one device (arrays and numbers are taken there), or None. What carries no gradient is
    keyword-only. Each vjp maps the gradient of the result to the gradient of its input; if it has an attribute `of_one`, that
    is vjp(1), which costs nothing where the result is what `backward` starts from.
    """
    name = fn.__name__.strip("_")

    @functools.wraps(fn)
    def run(*inputs: Any, **static: Any) -> Tensor:
        dev = common_device(name, inputs)
        tensors = tuple(x if isinstance(x, Tensor) or x is None else Tensor(x, dev) for x in inputs)
        with profile.timed(name, *(t.data for t in tensors if t is not None), static=static):
            array, vjps = fn(dev, *(None if t is None else t.data for t in tensors), **static)
        result = Tensor.wrap(array, dev)
        if _recording.get() and any(t is not None and t.requires_grad for t in tensors):
            result.requires_grad = True
            left_out = (None,) * (len(vjps) - len(tensors))
            result.node = Node(name, tensors + left_out, vjps, static)
        return result

    return run


def common_device(name: str, inputs: Sequence[Any]) -> Device:
    """The one device of the tensors among the inputs, or ValueError; the CPU where there is none."""
    devices = {t.device for t in inputs if isinstance(t, Tensor)}
    if len(devices) > 1:
        raise ValueError(f"{name}: the inputs are on {' and '.join(sorted(d.name for d in devices))}; "
                         "move them to one device with .to(device)")
    return devices.pop() if devices else device("cpu")


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing inside: what is computed here has no gradient and keeps no activations alive."""
    token = _recording.set(False)
    try:
        yield
    finally:
        _recording.reset(token)


def from_dlpack(array: Any, device: str | Device | None = None) -> Tensor:
    """A tensor around another library's array (NumPy, PyTorch, CuPy), without a copy where the device allows.

    Parameters
    ----------
    array : object
        Anything with `__dlpack__` or `__cuda_array_interface__`; float32, otherwise it is converted.
    device : str or Device, optional
        Where the tensor shall live; where the array is, if left out.

    Raises
    ------
    TypeError
        If the object is no such array.
    """
    if not (hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack__")):
        raise TypeError(f"from_dlpack: {type(array).__name__} has neither __dlpack__ nor __cuda_array_interface__")
    dev = _device("cuda" if hasattr(array, "__cuda_array_interface__") else "cpu")
    tensor = Tensor.wrap(dev.from_foreign(array), dev)
    return tensor if device is None else tensor.to(device)


from . import ops  # noqa: E402  the operations need Tensor and op, and Tensor's methods need the operations
