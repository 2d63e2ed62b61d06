"""Arrays on the GPU and on the emulated device."""

from __future__ import annotations

import functools
import math
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


@functools.cache
def _card_array() -> Any:
    """Return the class of device arrays in memory that a pool lent."""
    from numba.cuda.cudadrv import devicearray, devices, driver, dummyarray

    class CardArray(devicearray.DeviceNDArray):
        """A contiguous array in existing memory on the GPU. `words` are its description for kernels (`driver.words`), and
        `owner` is kept alive by the array and all its views.

        Numba's own array is described several times when it is made, which takes longer than a small kernel. This one makes
        the descriptions that it has inherited when they are asked for.
        """

        @functools.cached_property
        def gpu_data(self) -> Any:
            """Numba's pointer to the memory."""
            pointer = driver.binding.CUdeviceptr(self.words[4])
            return driver.MemoryPointer(devices.get_context(), pointer, self.alloc_size, owner=self.owner)

        @functools.cached_property
        def _dummy(self) -> Any:
            return dummyarray.Array.from_desc(0, self.shape, self.strides, self.dtype.itemsize)

        def reshape(self, *shape: Any, **options: Any) -> Any:
            """Return a view with another shape."""
            shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
            if options or math.prod(shape) != self.size or "owner" not in vars(self) or -1 in shape:
                return super().reshape(*shape, **options)
            return array_at(self.words[4], shape, self.dtype, self.owner)

    return CardArray


def array_at(address: int, shape: tuple[int, ...], dtype: np.dtype, owner: Any) -> Any:
    """Return a device array at an address of existing memory. `owner` is kept alive until the array and all its views are
    gone.
    """
    shape = tuple(map(int, shape))  # integers of NumPy would be passed to kernels with their own number of bytes
    kind, itemsize, size, strides = _card_array(), dtype.itemsize, 1, []
    for n in reversed(shape):
        strides.append(size * itemsize)
        size *= n
    strides.reverse()
    array = kind.__new__(kind)
    array.shape, array.strides, array.dtype, array.ndim, array.stream = shape, tuple(strides), dtype, len(shape), 0
    array.size, array.alloc_size, array.owner = size, size * itemsize, owner
    array.words = 0, 0, size, itemsize, address, *shape, *strides
    return array


def part_at(x: Any, start: int, stop: int) -> Any:
    """Return x[start:stop] of an array that `array_at` made, or None of another one."""
    if "owner" not in vars(x):
        return None
    rows = range(x.shape[0])[start:stop]
    address = x.words[4] + rows.start * x.strides[0] if x.size else x.words[4]
    return array_at(address, (len(rows), *x.shape[1:]), x.dtype, x.owner)
