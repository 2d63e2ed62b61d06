"""Arrays on the GPU and on the emulated device."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .declare import cuda
from .driverless import no_card
from .emulation import emulating
from .launch import refuse_to_record

ALIGNMENT = 256


class EmulatedArray(np.ndarray):
    """Host memory that represents memory of the emulated device, with the device-array methods that launchers use."""

    def copy_to_host(self) -> np.ndarray:
        """Return a copy as a NumPy array, like the method of a device array."""
        return np.array(self)

    def copy_to_device(self, values: Any) -> None:
        """Copy `values` into the array, like the method of a device array."""
        self[...] = values


def device_array(shape: int | Sequence[int], dtype: Any = np.float32) -> Any:
    """Return an uninitialised array on the GPU. On the emulated device it is filled with NaN or -1, and aligned as on a GPU."""
    if not emulating():
        return _on_card(cuda.device_array, shape, dtype)
    size = math.prod(shape if isinstance(shape, Sequence) else (shape,)) * np.dtype(dtype).itemsize
    memory = np.full(size + ALIGNMENT, 255, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape).view(EmulatedArray)


def to_device(host: Any) -> Any:
    """Return a copy of a host array on the GPU or the emulated device; Fortran order is preserved."""
    refuse_to_record("an upload")
    if not emulating():
        return _on_card(cuda.to_device, host)
    transposed = host.flags.f_contiguous and not host.flags.c_contiguous
    array = device_array(host.shape[::-1], host.dtype).T if transposed else device_array(host.shape, host.dtype)
    array.copy_to_device(host)
    return array


def _on_card(make: Callable[..., Any], *args: Any) -> Any:
    """Return make(*args), an array on the GPU; raise NoCard if there is no GPU."""
    try:
        return make(*args)
    except ImportError as error:
        raise no_card(error) from error


def device_cache(maxsize: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that makes device arrays with one lru_cache for GPUs, and one for the emulated device."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        caches = {on: functools.lru_cache(maxsize)(lambda *args, on=on: function(*args)) for on in (False, True)}
        return functools.wraps(function)(lambda *args: caches[emulating()](*args))

    return decorate


lent: dict[int, Any] = {}  # keeps owners of memory alive: Numba counts only references to the pointer, whose id is the key


def device_array_in(context: Any, memory: Any, address: int, size: int, shape: tuple[int, ...], dtype: Any, owner: Any) -> Any:
    """Return a device array in the bytes address … address + size - 1 of existing memory. `owner` is kept alive until the array
    and all its views are gone.
    """
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import AutoFreePointer

    pointer = AutoFreePointer(
        weakref.proxy(context), type(memory.gpu_data.device_pointer)(address), size, finalizer=lambda: lent.pop(key)
    )
    key = id(pointer)
    lent[key] = pointer, owner
    strides = tuple(math.prod(shape[i + 1 :]) * dtype.itemsize for i in range(len(shape)))
    return DeviceNDArray(shape, strides, dtype, gpu_data=pointer.own())
