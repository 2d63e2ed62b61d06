"""`Tensor`: an array on a device, and the graph node that computed it (`autograd`). Its methods call the functions of `ops`."""

from __future__ import annotations

import numbers
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arguments import host_array, is_array, numpy_options, same_kind, unpacked
from .device import Device, device as named, problem  # imported as `named`, because parameters are called `device`
from .gradients import Dense, Gradient, One, Pending


class Tensor:
    """A float32 array on a device; results that are computed from it can be differentiated.

    Comparisons work element by element, as in NumPy and PyTorch. They return masks, which are tensors of 1 and 0 without a
    gradient. So `a == b` is not a bool. Tensors hash by identity, so dicts and sets hold them safely. But `t in [a, b]`,
    `[a, b].index(t)` and weak references call `==`: use `is`, a set or `id` instead. If one of the two objects holds no
    numbers, such as None, the comparison is not made element by element: `==` returns False.

    Parameters
    ----------
    data : array_like
        Values; anything NumPy converts to float32, also arrays of other libraries (`from_dlpack`). A C-contiguous, writable
        float32 array of the host is used directly, without a copy.
    device : str or Device, default="cpu"
        The device of the array: "cpu", "cuda", "emulated" or "auto".
    requires_grad : bool, default=False
        Whether `backward` stores a gradient at this tensor.

    Raises
    ------
    TypeError
        If the values are not numbers.
    """

    __slots__ = ("_data", "device", "requires_grad", "gradient", "node", "__weakref__")
    __array_ufunc__ = None  # numpy_array * tensor gives a tensor; np.exp(tensor) raises TypeError, as it would lose the graph

    def __init__(self, data: Any, device: str | Device = "cpu", requires_grad: bool = False) -> None:
        if isinstance(data, Tensor):
            raise TypeError("Tensor: the values are a Tensor already; use .detach() or .to(device)")
        if data is None:
            raise TypeError("Tensor: the values are missing")
        if isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data):
            raise TypeError("Tensor: a list of tensors would lose their graph; use concatenate, or .numpy()")
        self.device = named(device)
        self._set(self.device, self.device.upload(host_array("Tensor", data, np.float32)), requires_grad)

    def _set(self, dev: Device, data: Any, requires_grad: bool = False, node: Any = None) -> None:
        self.device, self._data, self.requires_grad, self.node = dev, data, requires_grad, node
        self.gradient: Gradient | None = None

    @classmethod
    def wrap(cls, array: Any, dev: Device, requires_grad: bool = False, node: Any = None) -> Tensor:
        """Return a tensor that uses `array`, which is already on the device; `node` computed it (`autograd.Node`)."""
        tensor = cls.__new__(cls)
        tensor._set(dev, array, requires_grad, node)  # noqa: SLF001  an instance of this class
        return tensor

    # --- properties ---------------------------------------------------------------------------------------------------
    def _replace(self, array: Any) -> None:
        self._data = same_kind("tensor.data", array, self._data)

    # `attrgetter` takes half the time of a function of Python, in code that runs several times in each op
    data = property(operator.attrgetter("_data"), _replace, None, "The array on the device; another one must be of its kind.")

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(self.data.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.data.ndim

    @property
    def size(self) -> int:
        """The number of values."""
        return self.data.size

    @property
    def dtype(self) -> np.dtype:
        """float32, or int32 for tensors of indices."""
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

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format((float if self.dtype == np.float32 else int)(self), spec) if spec else str(self)

    def item(self) -> float:
        """Return the value of a tensor of size 1 as a float."""
        if self.size != 1:
            raise ValueError(f"item: a tensor of shape {self.shape} has {self.size} values instead of one")
        return float(self.numpy().reshape(()))

    __float__ = item

    # --- in and out ---------------------------------------------------------------------------------------------------
    def numpy(self) -> np.ndarray:
        """Return the values as a NumPy array; on the CPU it is a view of the same memory."""
        return self.device.download(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.numpy()
        converted = dtype is not None and dtype != values.dtype
        if copy is False and (converted or self.device.name != "cpu"):
            what = f"as {np.dtype(dtype)}" if converted else "on another device"
            raise ValueError(f"a {values.dtype} tensor cannot become a NumPy array {what} without a copy")
        return np.array(values, dtype) if copy or converted else values

    @property
    def __cuda_array_interface__(self) -> dict:
        return self.device.cuda_array_interface(self.data)

    def __dlpack__(self, **options: Any) -> Any:
        return self.device.to_dlpack(self.data, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack_device(self.data)

    def to(self, other: str | Device) -> Tensor:
        """Return a copy on the device `other`, detached from the graph; this tensor itself if it is already there."""
        if (other := named(other)) is self.device:
            return self
        return Tensor.wrap(other.upload(np.array(self.numpy())), other, self.requires_grad)  # copied, as devices may share it

    def move(self, other: Device) -> None:
        """Move this tensor to another device, in place, and delete its gradient."""
        if other is not self.device:
            self._set(other, other.upload(self.numpy()), self.requires_grad)

    def assign(self, values: Any) -> None:
        """Overwrite the values with an array of this tensor's device. Float tensors of the same shape keep their buffer, as
        recorded steps hold its address; index tensors get a new one, so that no cache of the old buffer is used."""
        if self.dtype == np.float32 and self.shape == tuple(values.shape):
            self.device.copy(values, out=self.data)
        else:
            self._set(self.device, self.device.copy(values), self.requires_grad)

    def detach(self) -> Tensor:
        """Return a tensor that uses the same memory and is detached from the graph."""
        return Tensor.wrap(self.data, self.device)

    def __reduce__(self) -> tuple:
        return _restored, (self.numpy(), self.device.name, self.requires_grad)

    # --- gradients ----------------------------------------------------------------------------------------------------
    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` computed, as a dense tensor; None if there is none."""
        return None if self.gradient is None else Tensor.wrap(self.gradient.dense(self.device), self.device)

    def zero_grad(self) -> None:
        """Delete the gradient."""
        self.gradient = None

    def receive(self, gradient: Gradient) -> None:
        """Add `gradient` to the gradient of this tensor; `backward` calls this."""
        if self.gradient is not None:
            self.gradient = self.gradient.add(gradient, self.device)
        elif self.node is None and isinstance(gradient, (Pending, One)):  # a leaf: no later vjp can fuse with it
            self.gradient = Dense(gradient.dense(self.device))
        else:
            self.gradient = gradient

    def release(self, freed: Any) -> tuple[Any, Any]:
        """Remove and return (node, gradient) of this tensor; `freed` becomes its node."""
        node, gradient = self.node, self.gradient
        self.node, self.gradient = freed, None
        return node, gradient

    def backward(self, dy: Any = None) -> None:
        """Add d(sum(dy * self)) / dx to the gradient of every tensor x that requires one.

        Parameters
        ----------
        dy : array_like or Tensor, optional
            The gradient of the loss with respect to this tensor, of its shape; by default 1, which requires a tensor of size 1.

        Raises
        ------
        RuntimeError
            If this tensor does not depend on one that requires a gradient, or an earlier `backward` has freed the graph.
        ValueError
            If `dy` is missing or has the wrong shape.
        """
        autograd.backward(self, dy)

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
        return ops.pow(self, exponent)

    def __rpow__(self, base):
        return ops.pow(base, self)

    def __abs__(self):
        return ops.abs(self)

    def __neg__(self):
        return ops.affine(self, mul=-1.0)

    # --- comparisons: masks of 1 and 0; see the docstring of the class ------------------------------------------------
    def __eq__(self, other):
        return ops.equal(self, other) if _comparable(other) else NotImplemented

    def __ne__(self, other):
        return ops.not_equal(self, other) if _comparable(other) else NotImplemented

    def __lt__(self, other):
        return ops.less(self, other) if _comparable(other) else NotImplemented

    def __le__(self, other):
        return ops.less_equal(self, other) if _comparable(other) else NotImplemented

    def __gt__(self, other):
        return ops.greater(self, other) if _comparable(other) else NotImplemented

    def __ge__(self, other):
        return ops.greater_equal(self, other) if _comparable(other) else NotImplemented

    __hash__ = object.__hash__

    def __getitem__(self, key):
        return ops.getitem(self, key=key)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    @property
    def T(self) -> Tensor:
        """The tensor with its axes in reversed order."""
        return ops.transpose(self)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the values in another shape, which is given as several integers or as one tuple (`ops.reshape`)."""
        return ops.reshape(self, shape=unpacked(shape))

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """Return the tensor with its axes in another order, given like a shape; by default reversed (`ops.transpose`)."""
        return ops.transpose(self, axes=unpacked(axes) or None)

    def sum(self, axis=None, keepdims: bool = False, **numpy: Any) -> Tensor:
        """Return the sum over the given axes, by default over all (`ops.sum`)."""
        return ops.sum(self, axis=axis, keepdims=keepdims, **numpy_options("sum", numpy))

    def mean(self, axis=None, keepdims: bool = False, **numpy: Any) -> Tensor:
        """Return the mean over the given axes, by default over all (`ops.mean`)."""
        return ops.mean(self, axis=axis, keepdims=keepdims, **numpy_options("mean", numpy))

    def max(self, axis=None, keepdims: bool = False, **numpy: Any) -> Tensor:
        """Return the largest value over the given axes, by default over all (`ops.max`)."""
        return ops.max(self, axis=axis, keepdims=keepdims, **numpy_options("max", numpy))

    def min(self, axis=None, keepdims: bool = False, **numpy: Any) -> Tensor:
        """Return the smallest value over the given axes, by default over all."""
        return -ops.max(-self, axis=axis, keepdims=keepdims, **numpy_options("min", numpy))

    def argmax(self, axis=None, keepdims: bool = False) -> Tensor:
        """Return the index of the largest value along an axis, by default in the flattened tensor (`ops.argmax`)."""
        return ops.argmax(self, axis=axis, keepdims=keepdims)

    def var(self, axis=None, correction: float | None = None, keepdims: bool = False, **numpy: Any) -> Tensor:
        """Return the variance over the given axes, by default over all, as in PyTorch: `correction` is 1 (`ops.var`)."""
        return ops.var(self, axis=axis, keepdims=keepdims, **numpy_options("var", numpy, correction))

    def std(self, axis=None, correction: float | None = None, keepdims: bool = False, **numpy: Any) -> Tensor:
        """Return the standard deviation over the given axes, by default over all, as `var` does (`ops.std`)."""
        return ops.std(self, axis=axis, keepdims=keepdims, **numpy_options("std", numpy, correction))

    def clip(self, low: float | None = None, high: float | None = None) -> Tensor:
        """Return the values limited to the range from `low` to `high` (`ops.clip`)."""
        return ops.clip(self, low=low, high=high)

    def exp(self) -> Tensor:
        """Return e^x for each element x (`ops.exp`)."""
        return ops.exp(self)

    def log(self) -> Tensor:
        """Return the natural logarithm of each element (`ops.log`)."""
        return ops.log(self)

    def sqrt(self) -> Tensor:
        """Return the square root of each element (`ops.sqrt`)."""
        return ops.sqrt(self)

    def abs(self) -> Tensor:
        """Return the absolute value of each element (`ops.abs`)."""
        return ops.abs(self)

    def tanh(self) -> Tensor:
        """Return tanh x for each element x (`ops.tanh`)."""
        return ops.tanh(self)

    def sigmoid(self) -> Tensor:
        """Return 1 / (1 + e^-x) for each element x (`ops.sigmoid`)."""
        return ops.sigmoid(self)

    def relu(self) -> Tensor:
        """Return max(x, 0) for each element x (`ops.relu`)."""
        return ops.relu(self)

    def gelu(self) -> Tensor:
        """Return x Φ(x) for each element x; Φ is the cumulative normal distribution function (`ops.gelu`)."""
        return ops.gelu(self)

    def softmax(self) -> Tensor:
        """Return the softmax over the last axis (`ops.softmax`)."""
        return ops.softmax(self)

    def log_softmax(self) -> Tensor:
        """Return the logarithm of the softmax over the last axis (`ops.log_softmax`)."""
        return ops.log_softmax(self)


def _comparable(other: Any) -> bool:
    """Return True if `==` and `<` compare element by element with `other`; objects without numbers, such as None, do not."""
    return isinstance(other, (Tensor, numbers.Real, list, tuple)) or is_array(other)


def _restored(values: np.ndarray, name: str, requires_grad: bool) -> Tensor:
    """Return an unpickled tensor on the device `name`, or on the CPU if that device is not available."""
    if missing := problem(name):
        warnings.warn(f"a tensor of device {name!r} was loaded to the CPU: {missing}", stacklevel=2)
    dev = named("cpu" if missing else name)
    return Tensor.wrap(dev.upload(np.array(values)), dev, requires_grad)  # a copy, as joblib may map `values` read-only


def from_dlpack(array: Any, device: str | Device | None = None) -> Tensor:
    """Wrap another library's array (NumPy, PyTorch, JAX, CuPy) as a tensor; memory that is float32, C-contiguous and writable
    is shared. The other way, `from_dlpack` of NumPy, PyTorch and JAX share the memory of a tensor; JAX only if it begins at a
    multiple of 64 bytes, as that of results of at least 64 KiB does.

    Parameters
    ----------
    array : object
        Anything with `__dlpack__` or `__cuda_array_interface__`. Dtypes other than float32 are converted.
    device : str or Device, optional
        The device of the tensor; by default the array's own.

    Raises
    ------
    TypeError
        If the object has neither interface.
    """
    if not (hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack__")):
        raise TypeError(f"from_dlpack: {type(array).__name__} has neither __dlpack__ nor __cuda_array_interface__")
    dev = named("cuda" if hasattr(array, "__cuda_array_interface__") else "cpu")
    tensor = Tensor.wrap(dev.from_foreign(array), dev)
    return tensor if device is None else tensor.to(device)


from . import autograd, ops  # noqa: E402  they need Tensor, and Tensor's methods need them
