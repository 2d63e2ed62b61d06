"""The one door to `numba.cuda`: how kernels are declared, compiled, cached and launched.

A kernel is declared with its only signature and compiled at its first launch, never at import:

    @kernels                                   # lru_cache over the tile sizes, and a place in the list of kernels
    def _kernels(tile=16):
        @kernel("void(f4[::1], f4[::1], i4)")
        def double(x, y, n):
            i = cuda.grid(1)
            if i < n:
                y[i] = x[i] + x[i]
        return double

    launch(_kernels(), ceil_div(n, 256), 256, x, y, n)

One signature a kernel means: scalars arrive as declared (no 64-bit index arithmetic by accident), nothing is compiled twice
because of an array's layout, and the tests assemble exactly what a card would run.
"""
from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import inspect
import math
import pathlib
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numba
import numpy as np

try:
    from numba import cuda
    from numba.cuda import extending
except ImportError:  # a Numba without its CUDA half: kernels can be listed, not launched
    from numba import extending

    cuda = None

SIMULATED = bool(numba.config.ENABLE_CUDASIM)
_FACTORIES: list[Callable[..., Any]] = []


# --- declaring --------------------------------------------------------------------------------------------------------
class Kernel:
    """A CUDA kernel: a Python function and its one signature, compiled for the current card at the first launch.

    `family` is the file it stands in, `variant` the constants that its factory fixed, such as "tile=32", `least` the lowest
    compute capability that has its instructions, and `bounds`, if any, (threads of a block, blocks that a multiprocessor shall
    hold): what a thread's registers must leave room for.
    """

    def __init__(self, function: Callable[..., None], signature: str, fastmath: bool, least: tuple[int, int],
                 bounds: tuple[int, int] | None) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.signature = signature
        self.least = least
        self.options = {"fastmath": fastmath}
        if bounds and not SIMULATED and _takes_bounds():
            self.options["launch_bounds"] = bounds
        self.family = function.__module__.rpartition(".")[2]
        constants = inspect.getclosurevars(function).nonlocals
        self.variant = ", ".join(f"{name}={value}" for name, value in sorted(constants.items())
                                 if isinstance(value, (int, tuple)))

    @functools.cached_property
    def dispatcher(self) -> Any:
        if SIMULATED:
            return cuda.jit(self.function)
        try:
            return cuda.jit(self.signature, cache=True, **self.options)(self.function)
        except (RuntimeError, OSError):  # no writable place for a cache: compile in this process only
            return cuda.jit(self.signature, **self.options)(self.function)

    @functools.cached_property
    def parameters(self) -> list[tuple[str, str]]:
        """(dtype, axes or "") of each parameter, such as ("f4", "[:, ::1]"); a tuple's elements are parameters of their own."""
        flat = re.sub(r"UniTuple\((.*?), (\d+)\)", lambda found: f"{found[1]}, " * int(found[2]), self.signature)
        return re.findall(r"(\w\d)(\[.*?\])?", flat.partition("(")[2])

    @property
    def program(self) -> Any:
        """What the emulated device runs: the compiled kernel, read by the PTX machine."""
        return _program(self, EMULATED)

    def ptx(self, compute_capability: tuple[int, int]) -> str:
        """PTX text for a compute capability such as (8, 0). Needs NVVM (extra `cuda`) but no GPU and no driver."""
        text, _ = cuda.compile_ptx(self.function, self.signature, cc=compute_capability, **self.options)
        return text.decode() if isinstance(text, bytes) else text


@functools.cache
def _takes_bounds() -> bool:
    """Whether this Numba can be told how many threads and blocks a kernel shall leave room for."""
    return "launch_bounds" in inspect.signature(cuda.jit).parameters


@functools.cache
def _program(kernel: Kernel, compute_capability: tuple[int, int]) -> Any:
    from . import ptx

    return ptx.parse(kernel.ptx(compute_capability))


def kernel(signature: str, fastmath: bool = False, least: tuple[int, int] = (7, 5),
           bounds: tuple[int, int] | None = None) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a CUDA kernel by its one signature, for example "void(f4[:, ::1], i4)"."""
    return lambda function: Kernel(function, signature, fastmath, least, bounds)


def intrinsic(*key: Any) -> Callable[[Callable[..., Any]], Any]:
    """Declare LLVM code that kernels call, as `numba.cuda.extending.intrinsic` does; `key` tells those of one factory apart.

    Numba keeps compiled kernels by what their closures hold. Here an intrinsic is the same in every process, until a source
    file of the kernels changes.
    """
    def declare(function: Callable[..., Any]) -> Any:
        made = extending.intrinsic(function)
        if hasattr(made, "_set_uuid"):
            made._set_uuid(f"{function.__module__}.{function.__qualname__}.{key}.{_sources()}")
        return made

    return declare


@functools.cache
def _sources() -> str:
    """A digest of the files of this folder."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kernels(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a factory of kernels: called once for each choice of its arguments, and listed by `all_kernels`."""
    cached = functools.lru_cache(maxsize=None)(factory)
    _FACTORIES.append(cached)
    return cached


def all_kernels() -> Iterator[Kernel]:
    """Every declared kernel at its default tile sizes, family by family."""
    for factory in _FACTORIES:
        made = factory()
        yield from made if isinstance(made, tuple) else (made,)


def host_kernel(signature: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a CPU loop by its one signature: Numba compiles it at the first call and caches it on disk.

    A loop runs on the thread that calls it, without the GIL: `threads.share` calls it on parts of its arrays at the same time.
    """
    def declare(function: Callable[..., None]) -> Callable[..., None]:
        @functools.cache
        def compiled() -> Callable[..., None]:
            options = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}
            try:
                return numba.njit(signature, cache=True, **options)(function)
            except (RuntimeError, OSError):  # no writable place for a cache: compile in this process only
                return numba.njit(signature, **options)(function)

        @functools.wraps(function)
        def call(*args: Any) -> None:
            compiled()(*args)

        return call

    return declare


# --- launching --------------------------------------------------------------------------------------------------------
def ceil_div(a: int, b: int) -> int:
    """ceil(a / b) for non-negative integers: how many tiles of b cover a."""
    return -(-a // b)


def launch(kernel: Kernel, grid: int | Sequence[int], block: int | Sequence[int], *args: Any) -> None:
    """Launch on the default stream, or list the launch while launches are recorded; a grid with a zero in it (an empty plan, an
    empty batch) launches nothing."""
    grid, block = (shape if isinstance(shape, tuple) else (shape,) for shape in (grid, block))
    if 0 in grid:
        return
    if (calls := _recording.get()) is not None:
        calls.append((kernel, grid, block, args))
    elif emulating():
        emulate(kernel, grid, block, args)
    else:
        kernel.dispatcher[grid, block](*args)


@contextlib.contextmanager
def _within(variable: contextvars.ContextVar, value: Any) -> Iterator[Any]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


_recording: contextvars.ContextVar[list | None] = contextvars.ContextVar("recording", default=None)


def recording() -> contextlib.AbstractContextManager[list]:
    """Launches inside, by this thread, are not done but listed: (kernel, grid, block, arguments) one after the other."""
    return _within(_recording, [])


class NotRecorded(RuntimeError):
    """Something was asked of the device that is no launch, and would not be done again with those that were recorded."""


def refuse_to_record(what: str) -> None:
    """NotRecorded while launches are recorded."""
    if _recording.get() is not None:
        raise NotRecorded(f"{what} cannot be recorded: only launches can")


def trusted(check: Callable[[], float]) -> Callable[[], bool]:
    """Whether something fast may serve on this card: once in a process, `check` runs it and gives the error it found.

    A card on which the error is not small, or which cannot run it, is told about, and what is simple serves. On the emulated
    device tests have checked.
    """
    @functools.cache
    def passed() -> bool:
        try:
            error = check()
            problem = None if error < 1e-4 else f"its error is {error:.1e}"
        except Exception as raised:  # a card or a driver that this was never run on: whatever happens, it is not used
            problem = f"{type(raised).__name__}: {' '.join(str(raised).split())}"
        if problem:
            warnings.warn(f"{check.__module__}: its fast way is not taken on this card, {problem}; the simple one is",
                          stacklevel=2)
        return problem is None

    def ask() -> bool:
        return emulating() or passed()

    ask.passed, ask.check = passed, check
    return ask


_tf32 = contextvars.ContextVar("tf32", default=False)


def imprecise() -> bool:
    """Whether products may keep 10 bits of their operands."""
    return _tf32.get()


def tf32() -> contextlib.AbstractContextManager[None]:
    """Products called inside, by this thread, keep 10 bits of their operands, on tensor cores where the card has them."""
    return _within(_tf32, True)


# --- emulating --------------------------------------------------------------------------------------------------------
EMULATED = (8, 0)  # the compute capability that kernels are compiled for to be emulated
_emulating = contextvars.ContextVar("emulating", default=False)
counters: dict[Kernel, Any] = {}  # of every kernel that was emulated; clear it to count anew
_counting = threading.Lock()      # launches take turns


def emulating() -> bool:
    """Whether operations of CUDA run on the PTX machine, their arrays in the memory of the host."""
    return _emulating.get()


def emulated(on: bool = True) -> contextlib.AbstractContextManager[None]:
    """Operations of CUDA, called inside and by this thread, run on the PTX machine."""
    return _within(_emulating, on)


def emulate(kernel: Kernel, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
    """Launch on the PTX machine."""
    from . import ptx

    args = [part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,))]
    for argument, (code, axes) in zip(args, kernel.parameters, strict=True):
        if axes and (argument.dtype != np.dtype(code) or argument.ndim != axes.count(",") + 1):
            raise TypeError(f"{kernel.__name__}: an argument is {argument.dtype} with {argument.ndim} axes, not {code}{axes}")
    program = kernel.program
    with _counting:
        found = counters.get(kernel)
        if found is None or found.program is not program:
            found = counters[kernel] = ptx.Counters(program)
        ptx.run(program, grid, block, args, counters=found, name=kernel.__name__)


class EmulatedArray(np.ndarray):
    """Host memory that stands for memory of the emulated device, with the methods of a device array that launchers use."""

    def copy_to_host(self) -> np.ndarray:
        return np.array(self)

    def copy_to_device(self, values: Any) -> None:
        self[...] = values


def device_array(shape: int | Sequence[int], dtype: Any = np.float32) -> Any:
    """An array of unset values on the card; of NaN and -1 on the emulated device, aligned as on a card."""
    if not emulating():
        return cuda.device_array(shape, dtype)
    size = math.prod(shape if isinstance(shape, Sequence) else (shape,)) * np.dtype(dtype).itemsize
    memory = np.full(size + ALIGNMENT, 255, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start:start + size].view(dtype).reshape(shape).view(EmulatedArray)


ALIGNMENT = 256


def to_device(host: Any) -> Any:
    """A copy of a host array on the card or the emulated device."""
    refuse_to_record("an upload")
    if not emulating():
        return cuda.to_device(host)
    array = device_array(host.shape, host.dtype)
    array.copy_to_device(host)
    return array


def device_cache(maxsize: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """lru_cache for functions that make device arrays: one for cards, one for the emulated device."""
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        caches = {on: functools.lru_cache(maxsize)(lambda *args, on=on: function(*args)) for on in (False, True)}
        return functools.wraps(function)(lambda *args: caches[emulating()](*args))

    return decorate


def capability() -> tuple[int, int]:
    """The compute capability of the card or the emulated device; none of the simulator's."""
    if emulating():
        return EMULATED
    return (0, 0) if SIMULATED else tuple(cuda.get_current_device().compute_capability)


def multiprocessors() -> int:
    """How many the card has; the emulated device as many as an H200."""
    return 132 if emulating() or SIMULATED else cuda.get_current_device().MULTIPROCESSOR_COUNT


def synchronize() -> None:
    """Wait until the card has done what it was given."""
    if not (SIMULATED or emulating()):
        cuda.default_stream().synchronize()  # not the whole card, on which another thread may be recording


# --- memory -----------------------------------------------------------------------------------------------------------
lent: dict[int, Any] = {}  # memory in use: Numba counts the references to a pointer, and somebody has to hold it till then


def device_array_in(context: Any, memory: Any, address: int, size: int, shape: tuple[int, ...], dtype: Any, owner: Any) -> Any:
    """A device array in bytes address … address + size - 1, which lie in another; `owner` is held until it and all its views
    are gone."""
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import AutoFreePointer

    pointer = AutoFreePointer(weakref.proxy(context), type(memory.gpu_data.device_pointer)(address), size,
                              finalizer=lambda: lent.pop(key))
    key = id(pointer)
    lent[key] = pointer, owner
    strides = tuple(math.prod(shape[i + 1:]) * dtype.itemsize for i in range(len(shape)))
    return DeviceNDArray(shape, strides, dtype, gpu_data=pointer.own())


# --- what is here -----------------------------------------------------------------------------------------------------
def cuda_problem() -> str | None:
    """None where a kernel can be launched, else one sentence: what is missing and how to get it."""
    if SIMULATED:
        return None
    if cuda is None:
        return "this Numba has no CUDA support: pip install 'numba-cuda[cu13]'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if cuda.is_available():
                return None
            reason = str(cuda.cuda_error() or "no NVIDIA GPU answers").strip().splitlines()[0]
    except Exception as error:  # whatever breaks inside a driver library means the same to a user: no CUDA here
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"no usable NVIDIA driver or GPU ({reason})"


def nvvm_problem() -> str | None:
    """None where PTX can be compiled, else one sentence: what is missing and how to get it."""
    if SIMULATED or cuda is None:
        return "the simulator compiles nothing" if SIMULATED else "this Numba has no CUDA support"
    try:
        from numba.cuda.cudadrv import nvvm

        nvvm.NVVM()
    except Exception as error:  # missing library, wrong version: all mean that nothing can be compiled
        first = str(error).strip().splitlines()
        return f"NVVM is missing ({first[0] if first else type(error).__name__}): pip install 'numba-cuda[cu13]'"
    return None
