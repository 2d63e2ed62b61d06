"""Launches and copies by direct calls of the CUDA driver.

Numba's dispatcher asks for the current device, and looks at the type of every argument, at each launch: on an H200's host that
takes 30 µs for two arguments and 150 µs for a product of matrices, while a GPU needs 5 µs for a small kernel. Here the kernel's
signature decides once how each argument is passed, and what is passed for an array is computed once for each array.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba.core import sigutils, types

from . import driverless
from .declare import Kernel, cuda

_here = threading.local()  # its `ready` is True in a thread that has a CUDA context


def words(array: Any) -> tuple[int, ...]:
    """Return what kernels get for a device array: two zeros, number of elements, bytes of each, address, shape and strides."""
    try:
        return array.words
    except AttributeError:
        pass
    address = array.device_ctypes_pointer.value or 0
    array.words = 0, 0, array.size, array.dtype.itemsize, address, *array.shape, *array.strides
    return array.words


# --- launches ---------------------------------------------------------------------------------------------------------
def start(kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], stream: Any = None) -> None:
    """Launch a kernel on the default stream, or on `stream`, which may be a `GraphBuilder` of cuda.core.

    Raises
    ------
    TypeError
        If the arguments are not those of the kernel's signature; an array must be a device array with as many axes. Its dtype
        and its order are not looked at, as Numba does not.
    OverflowError
        If an integer does not fit the type of its argument.
    """
    found, passing = load(kernel)
    if passing is None:
        kernel.dispatcher[(grid, block) if stream is None else (grid, block, stream)](*args)
        return
    given: list[Any] = []
    try:
        for put, value in zip(passing, args, strict=True):
            put(given, value)
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(f"{kernel.__name__}: the arguments are not those of {kernel.signature}: {error}") from error
    except OverflowError as error:
        raise OverflowError(f"{kernel.__name__}: {error}") from None
    from numba.cuda import dispatcher

    if stream is None:
        stream = _default_stream(driverless.posed)
    dispatcher.launch(stream, _config(dispatcher.LaunchConfig, grid, block), found, *given)


def load(kernel: Kernel) -> tuple[Any, list[Callable[[list[Any], Any], None]] | None]:
    """Compile a kernel, if need be, and load it to the GPU. Return (the loaded kernel, for each argument what passes it), where
    the list is None if only Numba can pass them.
    """
    _have_context()
    if driverless.posed:  # another emulated card may follow
        return _load(kernel)
    if kernel.loaded is None:
        kernel.loaded = _load(kernel)
    return kernel.loaded


def _load(kernel: Kernel) -> tuple[Any, list[Callable[[list[Any], Any], None]] | None]:
    compiled = next(iter(kernel.dispatcher.overloads.values()))
    kinds, _ = sigutils.normalize_signature(kernel.signature)
    try:
        return compiled._codelibrary.get_cufunc().kernel, [_passing(kind) for kind in kinds]  # noqa: SLF001
    except (KeyError, AttributeError):  # a type that the kernels of this package do not have, or another Numba
        return None, None


def _have_context() -> None:
    """Make Numba's CUDA context that of this thread."""
    if driverless.posed:
        cuda.current_context()
    elif not getattr(_here, "ready", False):
        cuda.current_context()
        _here.ready = True


def _passing(kind: Any) -> Callable[[list[Any], Any], None]:
    """Return a function of (list, value) that appends what is passed for a value of this type; raise KeyError if it is not
    known.
    """
    if isinstance(kind, types.Array):
        length = 5 + 2 * kind.ndim

        def put_array(given: list[Any], value: Any) -> None:
            own = words(value)
            if len(own) != length:
                raise TypeError(f"an array with {kind.ndim} axes, not {tuple(value.shape)}")
            given += own

        return put_array
    if isinstance(kind, types.BaseTuple):
        parts = [_passing(part) for part in kind]

        def put_parts(given: list[Any], values: Any) -> None:
            for put, value in zip(parts, values, strict=True):
                put(given, value)

        return put_parts
    if isinstance(kind, types.Integer):
        return _passing_integers(kind)
    make = _NUMBERS[kind]
    return lambda given, value: given.append(make(value))


def _passing_integers(kind: Any) -> Callable[[list[Any], Any], None]:
    """Return the function of `_passing` for a type of integers. The driver reads as many bytes as the type has, so a number
    that does not fit is refused. A type without a sign takes -1 for its largest value, as in C.
    """
    index, least, most = operator.index, min(kind.minval, -(1 << kind.bitwidth - 1)), kind.maxval

    def put_integer(given: list[Any], value: Any) -> None:
        number = index(value)
        if not least <= number <= most:
            raise OverflowError(f"an argument is {number}, which {kind} cannot hold: give it fewer elements at once")
        given.append(number)

    return put_integer


_NUMBERS = {types.float32: ctypes.c_float, types.float64: ctypes.c_double, types.boolean: bool}


@functools.lru_cache(maxsize=1 << 12)
def _config(make: Callable[..., Any], grid: tuple[int, ...], block: tuple[int, ...]) -> Any:
    return make(grid=grid, block=block, shmem_size=0)


@functools.cache
def _default_stream(posed: bool) -> Any:
    from numba.cuda.cudadrv import driver

    return driver._to_core_stream(0)  # noqa: SLF001


# --- copies -----------------------------------------------------------------------------------------------------------
STAGED = 1 << 16  # bytes; what is smaller is copied to memory of the driver before the call returns


def copy(x: Any, y: Any) -> None:
    """Copy the bytes of x, an array of the host or of the device, to the device array y of as many bytes, in the order of the
    default stream; both are contiguous. If x is an array of the host, the caller may write to it as soon as this returns.
    """
    to = words(y)
    size = to[2] * to[3]
    if not size:
        return
    _have_context()
    if isinstance(x, np.ndarray) and size > STAGED:
        error, *_ = _binding().cuMemcpyHtoD(to[4], x.ctypes.data, size)
    else:
        # a small array is copied before, because the driver stages only memory that is not page-locked
        own = x.copy() if isinstance(x, np.ndarray) else x
        source = own.ctypes.data if own is not x else words(x)[4]
        error, *_ = _binding().cuMemcpyAsync(to[4], source, size, 0)
    if error:
        raise RuntimeError(f"a copy of {size} bytes to the GPU failed: {error.name}")


@functools.cache
def _binding() -> Any:
    from numba.cuda.cudadrv import driver

    return driver.binding
