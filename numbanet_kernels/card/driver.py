"""The driver of the emulated card: the functions of CUDA's driver API that Numba calls, by their names.

Arguments and results are those of `cuda.bindings.driver` without the status: failure is an exception. Work is done when it is
asked for, so streams and events are in order, and synchronizing has nothing to wait for.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

from . import model
from .heap import LEAK, Allocation, Heap, Owed
from .streams import Order


class NotEmulated(RuntimeError):
    """Something of CUDA that the emulated card does not have."""


def refuse(what: str, instead: str = "") -> NotEmulated:
    """Return the error for `what`, which the emulated card does not have; `instead` is appended to the message."""
    return NotEmulated(f"{what} is not in the emulated card, which runs kernels one after the other in one process{instead}")


REFUSED = {
    "cuIpc": "sharing memory with other processes (IPC)",
    "cuTex": "texture memory",
    "cuSurf": "surface memory",
    "cuArray": "texture memory",
    "cuGraphics": "memory of a graphics library",
    "cuGraph": "a CUDA graph",
    "cuStreamBeginCapture": "capturing a stream in a graph",
    "cuCtxEnablePeerAccess": "access to another card",
    "cuMemPool": "a memory pool of the driver",
}


def refused(name: str) -> NotEmulated:
    """Return the error for a function of the driver that the emulated card does not have."""
    return refuse(next((what for start, what in REFUSED.items() if name.startswith(start)), name) + f" ({name})")


def raised(error: Exception) -> None:
    """Raise the error of a launch."""
    raise error


class Driver:
    """The functions of the driver, as methods `cu…`. `binding` is the module of the handles' types; `fail` makes the exception
    for an error of the driver from its code and a sentence.
    """

    def __init__(self, binding: Any, fail: Callable[[str, str], Exception], tracked: bool) -> None:
        self.binding, self.fail, self.heap = binding, fail, Heap(tracked)
        self.fail_to_launch = fail
        # finds a function of the driver of a card, once it is back: Numba may have noted ours for memory of that card
        self.elsewhere: Callable[[str], Callable[..., None] | None] = lambda name: None
        self.order = Order()
        self.asked = 0  # launches, whatever became of them
        self.report = raised  # what is done with the error of a launch
        self.counting: list[Any] = []  # the `Counted` of the contexts that count, which are told of every launch
        self.lock = threading.RLock()  # one launch or copy at a time
        self.context = binding.CUcontext(1)
        self.stacks = threading.local()
        self.handles = itertools.count(0x1000, 16)
        self.events: dict[int, float] = {}
        self.modules: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by handle
        self.loaded: MutableMapping[Any, Any] = {}  # what keeps loaded kernels, and forgets them if the context is reset
        self.running = False
        self.freed: list[int] = []  # what is freed while a kernel runs: garbage may be collected at any time
        self.symbols: dict[tuple[int, str], tuple[int, int]] = {}  # (module, name): (address, bytes)

    @classmethod
    def has(cls, name: str) -> bool:
        """Return True if a function of the driver is here."""
        return name.startswith("cu") and name in vars(cls)

    @classmethod
    def refuses(cls, name: str) -> bool:
        """Return True if a function of the driver is refused by what it is for."""
        return name.startswith(tuple(REFUSED)) and not cls.has(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refused(name)

    # --- the device and its context -----------------------------------------------------------------------------------
    def cuInit(self, flags: int) -> None:
        """Do nothing."""

    def cuDriverGetVersion(self) -> int:
        return model.DRIVER

    def cuDeviceGetCount(self) -> int:
        return 1

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> int:
        return model.ATTRIBUTES.get(attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_"), 0)

    def cuDeviceCanAccessPeer(self, device: Any, peer: Any) -> int:
        return 0

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        return self.context

    def cuDevicePrimaryCtxRelease(self, device: int) -> None:
        """Do nothing."""

    def cuDevicePrimaryCtxReset(self, device: int) -> None:
        """Free all memory, and unload all modules."""
        with self.lock:
            for start in list(self.heap.starts):
                self.heap.free(start)
            for module in self.modules.values():
                module.tables.clear()
            self.symbols.clear()
            self.loaded.clear()

    @property
    def stack(self) -> list[Any]:
        """The contexts that this thread has pushed."""
        if not hasattr(self.stacks, "pushed"):
            self.stacks.pushed = []
        return self.stacks.pushed

    def cuCtxGetCurrent(self) -> Any:
        return self.stack[-1] if self.stack else self.binding.CUcontext(0)

    def cuCtxCreate(self, *given: Any) -> Any:
        """Push a context that is not the device's primary one, and that Numba refuses."""
        self.stack.append(self.binding.CUcontext(next(self.handles)))
        return self.stack[-1]

    def cuCtxDestroy(self, context: Any) -> None:
        """Pop a context."""
        self.stack[:] = [other for other in self.stack if int(other) != int(context)]

    def cuCtxGetDevice(self) -> int:
        return 0

    def cuCtxPushCurrent(self, context: Any) -> None:
        self.stack.append(context)

    def cuCtxPopCurrent(self) -> Any:
        return self.stack.pop()

    def cuCtxSynchronize(self) -> None:
        """Note that all work is done."""
        self.order.all_ended()

    def cuProfilerStart(self) -> None:
        """Do nothing."""

    def cuProfilerStop(self) -> None:
        """Do nothing."""

    # --- memory -------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Return a context in which a kernel runs: no other one does, and memory is freed at its end."""
        with self.lock:
            self.heap.begin()
            self.running = True
            try:
                yield
            finally:
                self.running = False
                due, self.freed = self.freed, []
                for address in due:
                    self.heap.free(address)

    def _owed(self, made: Allocation) -> int:
        """Return the address of an allocation. If the caller is not Numba, which frees what is garbage, note the line."""
        frame = sys._getframe(1)  # noqa: SLF001
        while frame is not None and frame.f_globals.get("__name__", "").startswith(__package__):
            frame = frame.f_back
        if frame is not None and not frame.f_globals.get("__name__", "").startswith("numba."):
            line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            self.heap.owed[made.start] = Owed(made.size, line, f"{LEAK}, made at {line}, never freed")
        return made.start

    def cuMemAlloc(self, size: int) -> Any:
        with self.lock:
            try:
                return self.binding.CUdeviceptr(self._owed(self.heap.allocate(int(size))))
            except MemoryError as error:
                raise self.fail("CUDA_ERROR_OUT_OF_MEMORY", f"cuMemAlloc: {error}") from None

    def cuMemAllocManaged(self, size: int, flags: int) -> Any:
        with self.lock:
            return self.binding.CUdeviceptr(self._owed(self.heap.share(int(size))))

    def cuMemFree(self, pointer: Any) -> None:
        with self.lock:
            if self.running:
                self.freed.append(int(pointer))
            elif int(pointer) and self.heap.at(int(pointer)) is None and (free := self.elsewhere("cuMemFree")) is not None:
                free(pointer)
            elif int(pointer) and not self.heap.free(int(pointer)):
                raise self.fail("CUDA_ERROR_INVALID_VALUE", f"cuMemFree: {int(pointer):#x} is not the start of an allocation")

    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        return int(self.cuMemAllocManaged(size, flags))

    cuMemFreeHost = cuMemFree

    def cuMemHostRegister(self, pointer: int, size: int, flags: int) -> None:
        if self.heap.at(int(pointer)) is not None:
            raise self.fail("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", f"cuMemHostRegister: {int(pointer):#x} is registered")
        self._owed(self.heap.register(int(pointer), int(size)))

    cuMemHostUnregister = cuMemFree

    def cuMemHostGetDevicePointer(self, pointer: int, flags: int) -> Any:
        return self.binding.CUdeviceptr(int(pointer))

    def cuMemGetInfo(self) -> tuple[int, int]:
        from .heap import TOTAL

        return TOTAL - self.heap.used, TOTAL

    def cuMemGetAddressRange(self, pointer: Any) -> tuple[Any, int]:
        found = self.heap.at(int(pointer))
        if found is None:
            raise self.fail("CUDA_ERROR_NOT_FOUND", f"cuMemGetAddressRange: {int(pointer):#x} is in no allocation")
        return self.binding.CUdeviceptr(found.start), found.size

    def cuPointerGetAttribute(self, attribute: Any, pointer: Any) -> Any:
        if attribute.name == "CU_POINTER_ATTRIBUTE_DEVICE_POINTER":
            return self.binding.CUdeviceptr(int(pointer))
        if attribute.name == "CU_POINTER_ATTRIBUTE_CONTEXT":
            return self.context
        raise refuse(attribute.name)

    def _moved(self, what: str, move: Callable[..., None], *arguments: Any) -> None:
        with self.lock:
            if not what.endswith("Async"):
                self.order.all_ended()
            if not int(arguments[-1]):  # no bytes, for which a null address will do
                return
            try:
                move(*map(int, arguments))
            except IndexError as error:
                raise self.fail("CUDA_ERROR_INVALID_VALUE", f"{what}: {error}") from None

    def cuMemcpyHtoD(self, target: Any, source: int, size: int) -> None:
        self._moved("cuMemcpyHtoD", self.heap.write, target, source, size)

    def cuMemcpyDtoH(self, target: int, source: Any, size: int) -> None:
        self._moved("cuMemcpyDtoH", self.heap.read, target, source, size)

    def cuMemcpyDtoD(self, target: Any, source: Any, size: int) -> None:
        self._moved("cuMemcpyDtoD", self.heap.copy, target, source, size)

    def cuMemsetD8(self, target: Any, value: int, size: int) -> None:
        self._moved("cuMemsetD8", self.heap.fill, target, value, size)

    def cuMemcpyHtoDAsync(self, target: Any, source: int, size: int, stream: Any) -> None:
        self._moved("cuMemcpyHtoDAsync", self.heap.write, target, source, size)

    def cuMemcpyDtoHAsync(self, target: int, source: Any, size: int, stream: Any) -> None:
        self._moved("cuMemcpyDtoHAsync", self.heap.read, target, source, size)

    def cuMemcpyDtoDAsync(self, target: Any, source: Any, size: int, stream: Any) -> None:
        self._moved("cuMemcpyDtoDAsync", self.heap.copy, target, source, size)

    def cuMemcpyAsync(self, target: Any, source: int, size: int, stream: Any) -> None:
        on_card = [self.heap.at(int(address)) is not None for address in (target, source)]
        move = {(True, True): self.heap.copy, (True, False): self.heap.write, (False, True): self.heap.read}
        self._moved("cuMemcpyAsync", move.get(tuple(on_card), self.heap.copy), target, source, size)

    def cuMemsetD8Async(self, target: Any, value: int, size: int, stream: Any) -> None:
        self._moved("cuMemsetD8Async", self.heap.fill, target, value, size)

    # --- streams and events -------------------------------------------------------------------------------------------
    def cuStreamCreate(self, flags: int) -> Any:
        return self.binding.CUstream(next(self.handles))

    def cuStreamDestroy(self, stream: Any) -> None:
        """Do nothing."""

    def cuStreamSynchronize(self, stream: Any) -> None:
        """Note that the work of a stream is done."""
        self.order.ended(int(stream))

    cuStreamQuery = cuStreamSynchronize

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        """Note that a stream waits for an event."""
        self.order.waits(int(stream), int(event))

    def cuEventCreate(self, flags: int) -> Any:
        return self.binding.CUevent(next(self.handles))

    def cuEventDestroy(self, event: Any) -> None:
        self.events.pop(int(event), None)

    def cuEventRecord(self, event: Any, stream: Any) -> None:
        self.events[int(event)] = time.perf_counter()
        self.order.recorded(int(event), int(stream))

    def cuEventSynchronize(self, event: Any) -> None:
        """Note that what was before an event is done."""
        self.order.event_ended(int(event))

    cuEventQuery = cuEventSynchronize

    def cuEventElapsedTime(self, start: Any, stop: Any) -> float:
        """Return milliseconds of this machine's time, not of a card's."""
        if int(start) not in self.events or int(stop) not in self.events:
            raise self.fail("CUDA_ERROR_INVALID_HANDLE", "cuEventElapsedTime: an event was not recorded")
        return 1000 * (self.events[int(stop)] - self.events[int(start)])

    # --- modules ------------------------------------------------------------------------------------------------------
    def cuLibraryGetGlobal(self, module: Any, name: bytes) -> tuple[Any, int]:
        if (int(module), name.decode()) not in self.symbols and (loaded := self.modules.get(int(module))) is not None:
            loaded.place_all()
        found = self.symbols.get((int(module), name.decode()))
        if found is None:
            raise self.fail("CUDA_ERROR_NOT_FOUND", f"cuLibraryGetGlobal: there is no variable {name.decode()}")
        return self.binding.CUdeviceptr(found[0]), found[1]

    def cuLibraryUnload(self, module: Any) -> None:
        """Free the variables of a module."""
        if (loaded := self.modules.get(int(module))) is not None:
            loaded.tables.clear()
        for key in [key for key in self.symbols if key[0] == int(module)]:
            self.cuMemFree(self.symbols.pop(key)[0])

    def cuKernelSetAttribute(self, attribute: Any, value: int, kernel: Any, device: int) -> None:
        """Set how much dynamic shared memory a kernel may have. All other attributes are about speed."""
        if int(getattr(attribute, "value", attribute)) != model.MOST_DYNAMIC:
            return
        most = model.SHARED_MOST - kernel.shared
        if not 0 <= int(value) <= most:
            raise self.fail(
                "CUDA_ERROR_INVALID_VALUE",
                f"cuKernelSetAttribute: {kernel.called} may have up to {most} bytes of dynamic shared memory, not {int(value)}",
            )
        kernel.allowed = int(value)

    def cuFuncSetAttribute(self, kernel: Any, attribute: Any, value: int) -> None:
        self.cuKernelSetAttribute(attribute, value, kernel, 0)

    def cuKernelSetCacheConfig(self, kernel: Any, flag: Any, device: int) -> None:
        """Do nothing: what is set is about speed."""

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, kernel: Any, threads: int, dynamic: int) -> int:
        return model.blocks_that_fit(int(threads), int(dynamic) + kernel.shared)

    def cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(self, kernel: Any, threads: int, dynamic: int, flags: int) -> int:
        return self.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, threads, dynamic)
