"""The emulated card under the numba.cuda that is built into Numba, which calls the driver through ctypes."""

from __future__ import annotations

import functools
import linecache
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import model, patches
from .driver import Driver, refuse
from .modules import Kernel, Module

ONE, TWO = 1, 2
# the number of results of each function, which come first among the arguments, by reference
RESULTS = {
    **dict.fromkeys(("cuMemGetInfo", "cuMemGetAddressRange", "cuOccupancyMaxPotentialBlockSize"), TWO),
    **dict.fromkeys(
        (
            "cuCtxGetCurrent",
            "cuCtxGetDevice",
            "cuCtxPopCurrent",
            "cuDeviceCanAccessPeer",
            "cuDeviceGet",
            "cuDeviceGetAttribute",
            "cuDeviceGetCount",
            "cuDeviceGetUuid",
            "cuDevicePrimaryCtxRetain",
            "cuDriverGetVersion",
            "cuEventCreate",
            "cuEventElapsedTime",
            "cuMemAlloc",
            "cuMemAllocManaged",
            "cuMemHostAlloc",
            "cuMemHostGetDevicePointer",
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            "cuPointerGetAttribute",
            "cuStreamCreate",
        ),
        ONE,
    ),
}


class ByReference:
    """The functions of the driver as Numba's ctypes bindings have them: results by reference, numbers in ctypes."""

    def __init__(self, driver: Driver) -> None:
        from numba.cuda.cudadrv import enums

        start = "CU_DEVICE_ATTRIBUTE_"
        self.driver, self.attributes = driver, {code: name for name, code in vars(enums).items() if name.startswith(start)}

    def __getattr__(self, name: str) -> Callable[..., None]:
        function, results = getattr(self.driver, name), RESULTS.get(name, 0)

        def call(*arguments: Any) -> None:
            found = function(*map(_plain, arguments[results:]))
            for place, value in zip(arguments[:results], found if isinstance(found, tuple) else (found,)):
                place._obj.value = value  # noqa: SLF001  what byref refers to

        return call

    def cuDeviceGet(self, place: Any, number: int) -> None:
        """Leave the number 0; raise the driver's error for any other device."""
        if number:
            raise self.driver.fail("CUDA_ERROR_INVALID_DEVICE", f"there is one emulated card, number 0, not {number}")

    def cuDeviceGetAttribute(self, place: Any, code: int, device: int) -> None:
        """Write an attribute of the device."""
        named = SimpleNamespace(name=self.attributes.get(code, ""))
        place._obj.value = self.driver.cuDeviceGetAttribute(named, device)  # noqa: SLF001

    def cuDeviceGetName(self, text: Any, size: int, device: int) -> None:
        """Write the name of the device."""
        text.value = model.NAME.encode()

    def cuDeviceGetUuid(self, place: Any, device: int) -> None:
        """Write nothing: the identifier stays 0."""

    def cuOccupancyMaxPotentialBlockSize(self, grid: Any, block: Any, *given: Any) -> None:
        """Write the numbers of blocks and threads that fill the card."""
        grid._obj.value, block._obj.value = model.SHEET.multiprocessors, model.THREADS  # noqa: SLF001


def _plain(value: Any) -> Any:
    """Return a number of ctypes as an int; a null pointer as 0."""
    value = getattr(value, "value", value)
    return 0 if value is None else value


def _line_of_def(file: str, first: int) -> int:
    """Return the line of a function's def after its decorators, the first of which is in the line `first`."""
    source = enumerate(linecache.getlines(file)[first - 1 :], first)
    return next((line for line, text in source if text.lstrip().startswith("def ")), first)


class Loaded:
    """A kernel as Numba's `Function`."""

    def __init__(self, module: Any, kernel: Kernel) -> None:
        found = kernel.attributes
        self.module, self.kernel, self.handle, self.name = module, kernel, kernel, kernel.name
        self.attrs = SimpleNamespace(
            regs=found.num_regs,
            const=found.const_size_bytes,
            local=found.local_size_bytes,
            shared=found.shared_size_bytes,
            maxthreads=found.max_threads_per_block,
        )

    def cache_config(self, **options: bool) -> None:
        """Do nothing: what is set is about speed."""


class Patches(patches.Patches):
    """The exchange of attributes of the modules of Numba itself."""

    def _made(self, tracked: bool) -> Driver:
        from numba.cuda.cudadrv import driver, enums

        def fail(code: str, message: str) -> Exception:
            return driver.CudaAPIError(getattr(enums, code), message)

        numbers = SimpleNamespace(CUdeviceptr=int, CUcontext=int, CUstream=int, CUevent=int)
        return Driver(numbers, fail, tracked)

    def _driver(self) -> None:
        from numba.cuda.cudadrv import devices, driver

        emulated = ByReference(self.driver)
        self._common(emulated)
        self.renew(devices._runtime.gpus)  # noqa: SLF001
        self.put(driver._ActiveContext, "_tls_cache", threading.local())  # noqa: SLF001
        self.put(driver, "launch_kernel", self._started)

    def _arrays(self) -> None:
        """Numba's own conversions need no driver but this one."""

    def _compiler(self) -> None:
        from numba.cuda import codegen, target

        self.put(codegen.CUDACodeLibrary, "get_cufunc", lambda library: self._loaded(library))
        self.put(codegen.CUDACodeLibrary, "get_cubin", patches.no_cubin)
        make = target.CUDATargetContext.generate_kernel_wrapper

        # Numba says that this function calls the kernel in the line of its decorator: without a line errors do not name it
        @functools.wraps(make)
        def wrapper(context: Any, *given: Any) -> Any:
            *others, debug, lineinfo, file, line = given
            return make(context, *others, debug, lineinfo, file, _line_of_def(file, line) if debug else 0)

        self.put(target.CUDATargetContext, "generate_kernel_wrapper", wrapper)

    def _launch(self) -> None:
        from numba.core import config
        from numba.cuda import dispatcher

        self._kernels(dispatcher, config)

    def _started(self, kernel: Kernel, *given: Any, cooperative: bool = False) -> None:
        """Stand in for driver.launch_kernel."""
        *shape, shared, stream, arguments = given
        kernel.launch(shape[:3], shape[3:], int(shared), arguments, _plain(stream))

    def _loaded(self, library: Any) -> Loaded:
        """Stand in for CUDACodeLibrary.get_cufunc: load the PTX of a library, and return its kernel."""
        from numba.cuda.cudadrv import devices, driver, drvapi

        if library not in self.kernels:
            module, context = self._linked(library), devices.get_context()

            def symbol(name: str) -> tuple[Any, int]:
                address, size = self.driver.cuLibraryGetGlobal(module.handle, name.encode())
                return driver.MemoryPointer(context, drvapi.cu_device_ptr(address), size), size

            held = SimpleNamespace(get_global_symbol=symbol, context=context)
            self.kernels[library] = Loaded(held, module.get_kernel(library._entry_name))  # noqa: SLF001
        return self.kernels[library]

    def _with_lines(self, args: tuple[Any, ...], options: dict[str, Any]) -> str:
        """Return the PTX of a kernel with lines of Python; what it does before its first line has that of its def."""
        code = args[0].__code__
        line = _line_of_def(code.co_filename, code.co_firstlineno)
        return re.sub(r"(?m)^(\s*\.loc\s+\d+) 0 ", rf"\g<1> {line} ", super()._with_lines(args, options))

    def _linked(self, library: Any) -> Module:
        """Return the module of a library: its PTX, and what is linked to it."""
        from numba.cuda.cudadrv import nvrtc

        texts = [library.get_asm_str(model.CAPABILITY)]
        for path in library._linking_files:  # noqa: SLF001
            kind = Path(path).suffix
            if kind == ".cu":
                texts.append(nvrtc.compile(Path(path).read_text(), Path(path).name, model.CAPABILITY)[0])
            elif kind == ".ptx":
                texts.append(Path(path).read_text())
            elif "cudadevrt" not in path:
                raise refuse(f"linking {path}: machine code of cards", "; PTX and CUDA C++ can be linked")
        return Module(self.driver, [text.decode() if isinstance(text, bytes) else text for text in texts])
