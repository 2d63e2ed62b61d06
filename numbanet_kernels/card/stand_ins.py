"""What stands in for the classes of `cuda.core` that numba-cuda uses, which need a driver: device, stream, launch, compiler."""

from __future__ import annotations

import dataclasses
import functools
from collections import namedtuple
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import model
from .driver import Driver, refuse
from .modules import Kernel, Module

Capability = namedtuple("Capability", "major minor")


def device_class(driver: Driver) -> type:
    """Return the class that stands in for `cuda.core.Device`."""

    class Device:
        """The emulated card."""

        def __init__(self, number: int = 0) -> None:
            if number:
                raise driver.fail("CUDA_ERROR_INVALID_DEVICE", f"there is one emulated card, number 0, not {number}")
            self.device_id, self.name, self.uuid = 0, model.NAME, model.UUID
            self.compute_capability = Capability(*model.CAPABILITY)
            self.context = SimpleNamespace(handle=driver.context, _handle=driver.context)

        def set_current(self) -> None:
            """Make the context of the card the current one of this thread."""
            if not driver.stack:
                driver.cuCtxPushCurrent(driver.context)

        def create_stream(self) -> Stream:
            """Return a new stream."""
            return Stream(int(driver.cuStreamCreate(0)))

        def sync(self) -> None:
            """Do nothing: all work is done."""

        def create_graph_builder(self) -> Any:
            raise refuse("a CUDA graph")

    return Device


class Stream:
    """Stands in for `cuda.core.Stream`. A stream of the emulated card is a number."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @classmethod
    def from_handle(cls, handle: Any) -> Stream:
        """Return the stream with this handle."""
        return cls(int(handle))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def __bool__(self) -> bool:
        return bool(self.handle)

    def sync(self) -> None:
        """Do nothing: all work is done."""


@dataclasses.dataclass
class LaunchConfig:
    """Stands in for `cuda.core.LaunchConfig`."""

    grid: Any
    block: Any
    shmem_size: int = 0
    is_cooperative: bool = False
    cooperative_launch: bool = False


def launch(stream: Any, config: LaunchConfig, kernel: Kernel, *arguments: Any) -> None:
    """Stand in for `cuda.core.launch`: run a kernel on the PTX machine."""
    grid, block = (shape if isinstance(shape, Sequence) else (shape,) for shape in (config.grid, config.block))
    kernel.launch(grid, block, int(config.shmem_size or 0), arguments, int(getattr(stream, "handle", 0) or 0))


def object_code_class(driver: Driver) -> type:
    """Return the class that stands in for `cuda.core.ObjectCode`: only PTX can be loaded."""

    class ObjectCode(Module):
        """Loaded code: PTX texts, which are linked."""

        def __init__(self, *texts: str, registers: int = 0) -> None:
            super().__init__(driver, texts, registers)

        @classmethod
        def from_ptx(cls, text: str | bytes, name: str = "") -> ObjectCode:
            """Return the code of a PTX text."""
            return cls(text.decode() if isinstance(text, bytes) else text)

    for kind in ("cubin", "fatbin", "object", "library", "ltoir"):
        setattr(ObjectCode, f"from_{kind}", staticmethod(functools.partial(_no_code, kind)))
    return ObjectCode


def _no_code(kind: str, *args: Any, **options: Any) -> Any:
    raise refuse(f"linking or loading machine code of cards ({kind})", "; PTX and CUDA C++ can be linked")


def errors() -> tuple[type[Exception], type[Exception]]:
    """Return the exceptions of `cuda.core` for errors of the driver and of NVRTC."""
    try:
        from cuda.core._utils.cuda_utils import CUDAError, NVRTCError
    except ImportError:  # they are not public
        return RuntimeError, RuntimeError
    return CUDAError, NVRTCError


class Program:
    """Stands in for `cuda.core.Program`: CUDA C++ that NVRTC compiles to PTX, without asking a driver."""

    def __init__(self, code: str, kind: str, options: Any) -> None:
        self.code, self.options = code, options

    def compile(self, kind: str, logs: Any = None) -> SimpleNamespace:
        """Return an object whose `code` is PTX, whatever is asked for. Raise NVRTCError with the compiler's messages."""
        include = self.options.include_path or []
        given = [f"--gpu-architecture={self.options.arch}", "--relocatable-device-code=true", "-std=c++17"]
        given += [f"--include-path={path}" for path in ([include] if isinstance(include, str) else include)]
        text, said = _compiled(self.code, str(self.options.name or "linked"), tuple(given))
        if said and logs is not None:
            logs.write(said)
        return SimpleNamespace(code=text, code_type="ptx")


@functools.lru_cache(64)  # kernels link the same few sources
def _compiled(code: str, name: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Return the PTX of CUDA C++, and what the compiler said."""
    from cuda.bindings import nvrtc

    def done(result: tuple[Any, ...]) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise errors()[1](f"{result[0].name}")
        return result[1] if len(result) == 2 else None

    unit = done(nvrtc.nvrtcCreateProgram(code.encode(), name.encode(), 0, [], []))
    try:
        status = nvrtc.nvrtcCompileProgram(unit, len(options), [option.encode() for option in options])[0]
        # NVRTC writes to these: of b" " Python has only one, which an empty log would make NUL everywhere; b"\0" stays as it is
        log = bytes(done(nvrtc.nvrtcGetProgramLogSize(unit)))
        done(nvrtc.nvrtcGetProgramLog(unit, log))
        said = log.rstrip(b"\0 \n").decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise errors()[1](f"{status.name}: {said}")
        text = bytes(done(nvrtc.nvrtcGetPTXSize(unit)))
        done(nvrtc.nvrtcGetPTX(unit, text))
    finally:
        nvrtc.nvrtcDestroyProgram(unit)
    return text.rstrip(b"\0 "), said


def linker_class(base: type, code: type) -> type:
    """Return the class that stands in for `base`, Numba's linker: it links PTX, and CUDA C++ that it compiles to PTX."""

    class Linker(base):  # type: ignore[misc, valid-type]
        """A linker of PTX texts."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "lto": False})
            self.texts: list[str] = []

        def add_ptx(self, ptx: Any, name: str = "") -> None:
            self.texts.append(ptx.decode() if isinstance(ptx, bytes) else ptx)

        def add_cu(self, cu: Any, name: str = "linked.cu") -> None:
            from numba.cuda.cudadrv import nvrtc

            self.add_ptx(nvrtc.compile(cu, name, self.cc)[0].code)

        def add_library(self, lib: Any, name: str = "") -> None:
            if "cudadevrt" not in name:  # the machine has the functions of this library that Numba calls
                _no_code(f"the library {name}")

        def add_file(self, path: Any, kind: Any) -> None:
            if "cudadevrt" not in str(path):
                super().add_file(path, kind)

        def complete(self) -> Module:
            """Return the module of the texts."""
            self._info_log, self._error_log, self._complete, self.linker = "", "", True, self
            return code(*self.texts, registers=self.max_registers or 0)

        def get_linked_ptx(self) -> bytes:
            """Return the texts."""
            self.complete()
            return "\n".join(self.texts).encode()

    for kind in ("cubin", "fatbin", "object", "ltoir"):
        setattr(Linker, f"add_{kind}", lambda linker, code, name="", kind=kind: _no_code(f"the {kind} {name}"))
    return Linker


class View:
    """What Numba reads of an array argument (`cuda.core.utils.StridedMemoryView`); it keeps the array alive."""

    def __init__(self, array: Any) -> None:
        found = array._strided_memory_view_shim  # noqa: SLF001  Numba's own view, which does not keep the array
        self.ptr, self.shape, self.dtype, self.size = found.ptr, found.shape, found.dtype, found.size
        self._layout, self.array = found._layout, array  # noqa: SLF001


def strided_view(obj: Any, stream: Any = 0, copy: bool = True, user_explicit: bool = False) -> tuple[Any, bool]:
    """Stand in for `devicearray._to_strided_memory_view`: return (view of a device array, True if it is a copy of `obj`)."""
    from numba.cuda.cudadrv import devicearray, driver

    if driver.is_device_memory(obj):
        return obj._strided_memory_view_shim, False  # noqa: SLF001
    host = obj if hasattr(obj, "__cuda_array_interface__") or isinstance(obj, np.void) else np.asanyarray(obj)
    array, made = devicearray.auto_device(host, stream=0, copy=copy, user_explicit=user_explicit)
    return View(array), made


def host_view(obj: Any, *, stream_ptr: Any) -> SimpleNamespace:
    """Stand in for `devicearray._make_strided_memory_view` of host arrays: return an object with their address, `ptr`."""
    from numba.cuda.cudadrv import driver

    array = obj if isinstance(obj, np.void) else np.asanyarray(obj)
    return SimpleNamespace(ptr=driver.host_pointer(array, readonly=not isinstance(array, np.void)))
