"""The emulated card under numba.cuda: `Patches` exchanges what Numba has of a driver, and puts it back.

Numba's own Python stays in use: types, overloads, conversions of arguments, device arrays, deallocation. Exchanged are the
driver's functions, the classes of `cuda.core` that need a driver, and the step from a compiled kernel to a loaded one.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import warnings
import weakref
from typing import Any

from ..runtime import driverless
from . import lines, stand_ins
from .driver import Driver, refuse, refused
from .faults import Array, fields_of
from .ptx_text import linked

FINALIZERS = ("_alloc", "_hostalloc", "_pin", "_event", "_stream", "_module")


class Patches:
    """The exchange of attributes of Numba's modules; `tracked` is that of `Heap`."""

    def __init__(self, tracked: bool) -> None:
        self.driver = self._made(tracked)
        self.changed: list[tuple[Any, str, Any]] = []
        self.states: list[tuple[Any, dict[str, Any]]] = []
        self.kernels: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # the loaded kernel of each library
        self.driver.loaded = self.kernels

    def _made(self, tracked: bool) -> Driver:
        """Return the driver."""
        from numba.cuda.cudadrv import driver as module

        def fail(code: str, message: str) -> Exception:
            return module.CudaAPIError(getattr(module.binding.CUresult, code), message)

        def fail_to_launch(code: str, message: str) -> Exception:
            return stand_ins.errors()[0](f"{code}: {message}")

        made = Driver(module.binding, fail, tracked)
        made.fail_to_launch = fail_to_launch
        self.code = stand_ins.object_code_class(made)
        return made

    # --- exchange -----------------------------------------------------------------------------------------------------
    def put(self, owner: Any, name: str, value: Any) -> None:
        """Exchange an attribute."""
        self.changed.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def renew(self, owner: Any, **state: Any) -> None:
        """Exchange all attributes of an object."""
        self.states.append((owner, dict(vars(owner))))
        vars(owner).clear()
        vars(owner).update(state)

    def remove(self) -> None:
        """Put back what was there."""
        for owner, state in reversed(self.states):
            vars(owner).clear()
            vars(owner).update(state)
        for owner, name, value in reversed(self.changed):
            setattr(owner, name, value)
        self.states.clear()
        self.changed.clear()

    def apply(self) -> None:
        """Exchange everything."""
        try:
            self._driver()
            self._arrays()
            self._compiler()
            self._launch()
        except BaseException:
            self.remove()
            raise

    # --- what is exchanged --------------------------------------------------------------------------------------------
    def _driver(self) -> None:
        from cuda import core
        from numba.cuda.cudadrv import devices, driver
        from numba.cuda.memory_management import nrt

        self._common(self.driver)
        device = stand_ins.device_class(self.driver)
        self.put(driver, "ExperimentalDevice", device)
        self.put(driver, "ExperimentalStream", stand_ins.Stream)
        self.put(driver, "ObjectCode", self.code)
        for name, value in (("Device", device), ("Stream", stand_ins.Stream), ("ObjectCode", self.code)):
            self.put(core, name, value)
        for name in filter(self.driver.has, vars(driver.binding)):
            self.put(driver.binding, name, _with_status(driver, getattr(self.driver, name)))
        for name in ("CUipcMemHandle", *filter(self.driver.refuses, vars(driver.binding))):
            self.put(driver.binding, name, _refusing("cuIpcOpenMemHandle" if name.startswith("CU") else name))
        self.put(driver._ActiveContext, "_tls_cache", threading.local())  # noqa: SLF001
        self.put(devices._DeviceList, "lst", property(_devices()))  # noqa: SLF001
        self.renew(nrt.rtsys, _memsys_module=None, _memsys=None, _initialized=False)

    def _common(self, emulated: Any) -> None:
        """Exchange what both kinds of numba.cuda have: the functions of the driver, and who finds them."""
        from numba.cuda.cudadrv import devices, driver

        for device in driver.driver.devices.values():  # a card's memory is given back when its driver is back
            if (context := device.primary_context) is not None:
                for waiting in (context.deallocations, context.memory_manager.deallocations):
                    self.put(waiting, "_disable_count", waiting._disable_count + 1)  # noqa: SLF001
        real = vars(driver.driver)
        self.driver.elsewhere = lambda name: None if driverless.posed else real.get(name)
        if not hasattr(driver, "_logger"):
            driver._logger = driver.make_logger()  # noqa: SLF001  Numba makes it when it first calls a driver
        self.put(driverless, "posed", True)
        self.put(driver.Driver, "__getattr__", lambda self, name: getattr(emulated, name))
        self.renew(driver.driver, devices={}, is_initialized=True, initialization_error=None, pid=None, lib=None)
        self.put(driver.Stream, "add_callback", _call_back)
        for name in FINALIZERS:  # those of emulated memory belong to the emulated driver, when the context has ended, too
            found = getattr(driver, f"{name}_finalizer")
            names = {**found.__globals__, "driver": emulated}
            self.put(driver, f"{name}_finalizer", types.FunctionType(found.__code__, names, found.__name__))
        self.renew(devices._runtime, **{**vars(devices._runtime), "_tls": threading.local()})  # noqa: SLF001

    def _arrays(self) -> None:
        from numba.cuda.cudadrv import devicearray

        self.put(devicearray, "_to_strided_memory_view", stand_ins.strided_view)
        self.put(devicearray, "_make_strided_memory_view", stand_ins.host_view)

    def _compiler(self) -> None:
        from numba.cuda import codegen
        from numba.cuda.cudadrv import driver, nvrtc
        from numba.cuda.memory_management import nrt

        self.put(nvrtc, "Program", stand_ins.Program)
        linker = stand_ins.linker_class(driver._Linker, self.code)  # noqa: SLF001
        self.put(driver, "_Linker", linker)
        self.put(nrt, "_Linker", linker)
        self.put(codegen.CUDACodeLibrary, "get_cufunc", lambda library: self._loaded(library))
        self.put(codegen.CUDACodeLibrary, "get_cubin", no_cubin)

    def _launch(self) -> None:
        from cuda import core
        from numba.cuda import dispatcher
        from numba.cuda.core import config
        from numba.cuda.memory_management import nrt

        for module in (dispatcher, nrt, core):
            self.put(module, "launch", stand_ins.launch)
            self.put(module, "LaunchConfig", stand_ins.LaunchConfig)
        self._kernels(dispatcher, config)

    def _kernels(self, dispatcher: Any, config: Any) -> None:
        """Exchange how kernels are made and started, so that errors know their names, lines and arrays."""
        for about_speed in ("CUDA_LOW_OCCUPANCY_WARNINGS", "CUDA_WARN_ON_IMPLICIT_COPY"):
            self.put(config, about_speed, 0)
        configure = dispatcher.CUDADispatcher.configure
        self.put(dispatcher.CUDADispatcher, "configure", configure.__wrapped__)  # its cache would keep emulated streams
        make, start = dispatcher._Kernel.__init__, dispatcher._Kernel.launch  # noqa: SLF001

        @functools.wraps(make)
        def remember(kernel: Any, *args: Any, **options: Any) -> None:
            kernel.made_with = args, options
            make(kernel, *args, **{**options, "link": list(options.get("link") or ())})

        @functools.wraps(start)
        def named(kernel: Any, args: Any, *shape: Any, **options: Any) -> None:
            self.driver.asked += 1
            loaded, function = kernel._codelibrary.get_cufunc().kernel, getattr(kernel, "py_func", None)  # noqa: SLF001
            if function is not None:
                loaded.called = function.__name__
                names = list(inspect.signature(function).parameters)
                loaded.names = {id(value): name for name, value in zip(names, args)}
                loaded.types = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kernel.argument_types))
                loaded.source = function, getattr(getattr(kernel, "_type_annotation", None), "typemap", None) or {}
            if loaded.lines is None and hasattr(kernel, "made_with") and not kernel.debug:
                loaded.lines = functools.partial(self._with_lines, *kernel.made_with)
            loaded.arrays.clear()
            loaded.pointers = False
            start(kernel, args, *shape, **options)

        self.put(dispatcher._Kernel, "__init__", remember)  # noqa: SLF001
        self.put(dispatcher._Kernel, "launch", named)  # noqa: SLF001
        self._described(dispatcher)

    def _described(self, dispatcher: Any) -> None:
        """Let the arrays of a launch be noted with their names."""
        prepare, kinds = dispatcher._Kernel._prepare_args, dispatcher.types  # noqa: SLF001

        @functools.wraps(prepare)
        def described(kernel: Any, kind: Any, value: Any, stream: Any, retr: Any, given: list[Any]) -> None:
            place = len(given)
            prepare(kernel, kind, value, stream, retr, given)
            loaded = kernel._codelibrary.get_cufunc().kernel  # noqa: SLF001
            if isinstance(kind, kinds.Array) and len(given) == place + 5 + 2 * kind.ndim:
                width, address, *shape = (int(getattr(n, "value", n) or 0) for n in given[place + 3 :])
                name = loaded.names.get(id(value), "of the arguments")
                fields = fields_of(kind.dtype)
                dtype = f"records ({', '.join(field.name for field in fields)})" if fields else f"{kind.dtype}"
                loaded.arrays.append(Array(name, address, shape[: kind.ndim], shape[kind.ndim :], dtype, width, fields))
            elif not isinstance(kind, (kinds.Number, kinds.Boolean, kinds.BaseTuple)):
                loaded.pointers = True

        self.put(dispatcher._Kernel, "_prepare_args", described)  # noqa: SLF001

    # --- compiled kernels ---------------------------------------------------------------------------------------------
    def _loaded(self, library: Any) -> Any:
        """Stand in for CUDACodeLibrary.get_cufunc: load the PTX of a library, and return its kernel."""
        from numba.cuda.cudadrv import devices

        if library._entry_name is None:  # noqa: SLF001
            raise RuntimeError("Missing entry_name - are you trying to get the cufunc for a device function?")
        if library not in self.kernels:
            context = devices.get_context()
            module = context.create_module_image(
                self._linked(library),
                library._setup_functions,  # noqa: SLF001
                library._teardown_functions,  # noqa: SLF001
            )
            self.kernels[library] = module.get_function(library._entry_name)  # noqa: SLF001
        return self.kernels[library]

    def _linked(self, library: Any) -> Any:
        """Return the module of a library: its PTX, and what is linked to it."""
        from numba.cuda.cudadrv import driver

        capability = library._ensure_cc(None)  # noqa: SLF001
        linker = driver._Linker(max_registers=library._max_registers, cc=capability)  # noqa: SLF001
        library._link_all(linker, capability)  # noqa: SLF001
        return linker.complete()

    def _with_lines(self, args: tuple[Any, ...], options: dict[str, Any]) -> str:
        """Return the PTX of a kernel with lines of Python."""
        again = lines.compiled(args, options)
        return linked(self._linked(again._codelibrary).texts, again.entry_name)  # noqa: SLF001


def _devices() -> Any:
    """Return a function that returns the list of the emulated card's device, as Numba's list of devices has it."""
    found: list[Any] = []

    def lst(self: Any) -> list[Any]:
        from numba.cuda.cudadrv import devices, driver

        if not found:
            found.append(devices._DeviceContextManager(driver.driver.get_device(0)))  # noqa: SLF001
        return found

    return lst


def _with_status(module: Any, function: Any) -> Any:
    """Return a function of the driver that returns its status first, as `cuda.bindings.driver` has it."""

    def call(*args: Any) -> tuple[Any, ...]:
        try:
            result = function(*args)
        except module.CudaAPIError as error:
            return error.code, None
        return module.binding.CUresult.CUDA_SUCCESS, *(result if isinstance(result, tuple) else (result,))

    return call


def _refusing(name: str) -> Any:
    """Return what refuses to be called, for a function of the driver."""

    def refuse_it(*args: Any, **options: Any) -> None:
        raise refused(name)

    return refuse_it


def _call_back(stream: Any, callback: Any, arg: Any = None) -> None:
    """Stand in for Stream.add_callback: all work of the stream is done, so call back now."""
    try:
        callback(stream, 0, arg)
    except Exception as error:  # Numba's own words
        warnings.warn(f"Exception in stream callback: {error}", stacklevel=2)


def no_cubin(library: Any, cc: Any = None) -> Any:
    """Stand in for CUDACodeLibrary.get_cubin: refuse."""
    raise refuse("machine code of a card (SASS, cubin)", "; inspect_asm has the PTX that runs")
