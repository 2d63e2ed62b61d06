"""Declaring kernels: how they are written, compiled and cached.

A kernel is declared with its only signature and compiled at its first launch, never at import:

    @kernels("elementwise")                    # its family; cached by tile size, and listed by `all_kernels`
    def _kernels(tile=16):
        @kernel("void(f4[::1], f4[::1], i4)")
        def double(x, y, n):
            i = cuda.grid(1)
            if i < n:
                y[i] = x[i] + x[i]
        return double

    launch(_kernels(), ceil_div(n, 256), 256, x, y, n)

With one signature per kernel scalars have the declared type (no accidental 64-bit index arithmetic), a kernel is not compiled
again for another array layout, and the tests assemble exactly the code that a GPU runs.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import inspect
import os
import pathlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite
import numba
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

from . import driverless, files
from .context import Scoped
from .expect import declared, kinds_of
from .interrupt import deferred

try:
    from numba import cuda
    from numba.cuda import extending
except ImportError:  # Numba without its CUDA part: kernels can be listed, but not launched
    from numba import extending

    cuda = None
if cuda is not None and not numba.config.ENABLE_CUDASIM:
    driverless.answer_for_cards()

PACKAGE = pathlib.Path(__file__).parents[1]
_FACTORIES: list[Callable[..., Any]] = []
# the tape to which calls of compiled CPU loops are written (`runtime.tape`); None if they are executed
tape = Scoped("tape", None)


class Kernel:
    """A CUDA kernel: a Python function and its one signature, compiled for the current GPU at the first launch.

    `family` is set by `kernels`, `variant` names the constants that its factory fixed, such as "tile=32", `least` is the lowest
    compute capability that has its instructions, and `bounds`, if given, is (threads of a block, least blocks per
    multiprocessor): launch bounds for register allocation.
    """

    __name__: str  # the name of the Python function
    family, made_by = "", None  # `kernels` sets them to the family, and to the factory and its arguments
    loaded: Any = None  # to the GPU, by `driver.load`

    def __init__(
        self,
        function: Callable[..., None],
        signature: str,
        fastmath: bool,
        least: tuple[int, int],
        bounds: tuple[int, int] | None,
    ) -> None:
        function = getattr(function, "py_func", function)  # the Python function of a @cuda.jit kernel
        functools.update_wrapper(self, function)
        self.function, self.signature, self.least = function, signature, least
        self.options = {"fastmath": fastmath}
        if bounds and _takes_bounds():
            self.options["launch_bounds"] = bounds
        constants = sorted(inspect.getclosurevars(function).nonlocals.items())
        self.variant = ", ".join(f"{name}={value}" for name, value in constants if isinstance(value, (int, tuple)))

    def __call__(self, *given: Any) -> None:
        """Raise TypeError, for kernel(x) and kernel[grid, block](x): `launch` starts a kernel."""
        started = f"launch({self.__name__}, grid, block, *arguments)"
        raise TypeError(f"{self.__name__}: start it by {started}, a function of numbanet_kernels.runtime.launch")

    __getitem__ = __call__

    @functools.cached_property
    def kinds(self) -> tuple[Any, ...]:
        """The types of the arguments; raises TypeError if the signature cannot be read, or does not fit the function."""
        return kinds_of(self.__name__, self.signature, inspect.signature(self.function).parameters)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """The dispatcher of Numba that compiles and launches; its machine code is cached on disk."""
        return _cached(cuda.jit, self.kinds, self.function, self.options, self._named())

    def _named(self) -> str | None:
        """Return what determines the machine code, apart from sources, signature and architecture; None if it is not known."""
        return self.made_by and repr((self.made_by, sorted(self.options.items()), _compilers()))

    @functools.cached_property
    def arguments(self) -> list[tuple[str, str, int | None, str]]:
        """A list of (name, dtype, number of axes or None, layout) of each argument, such as ("x", "float32", 2, "C"); the
        elements of a tuple t are t[0], t[1], …; layouts are "C", "F" (Fortran order), "A" (any) and "" for a number.
        """
        names = inspect.signature(self.function).parameters
        return [found for name, kind in zip(names, self.kinds, strict=True) for found in declared(name, kind)]

    def ptx(self, compute_capability: tuple[int, int], lines: bool = False) -> str:
        """Return the PTX text for a compute capability such as (8, 0). This needs NVVM (extra `cuda`), but no GPU and no
        driver.

        With `lines` it contains the Python line of each instruction; a few instructions may then differ. The PTX of this
        package's kernels is cached on disk, until a source file or a compiler changes.
        """

        def compiled() -> str:
            with driverless.compiling_for(compute_capability):
                text, _ = cuda.compile_ptx(self.function, self.kinds, cc=compute_capability, lineinfo=lines, **self.options)
            return text.decode() if isinstance(text, bytes) else text

        if self.made_by is None:
            return compiled()
        decides = digest(PACKAGE), _compilers(), self.signature, sorted(self.options.items())
        return files.cached((self.made_by, compute_capability, lines), decides, compiled)


@functools.cache
def _compilers() -> tuple[Any, ...]:
    """Return what determines the PTX of a kernel, apart from the sources: the versions of the compilers."""
    from numba.cuda.cudadrv import libs

    library = pathlib.Path(libs.get_cudalib("nvvm"))
    found = library.stat() if library.is_file() else None
    numba_cuda = getattr(sys.modules.get("numba_cuda"), "__version__", None)
    settings = [os.environ.get(name) for name in ("NUMBA_OPT", "NUMBA_CUDA_DEBUGINFO")]
    versions = sys.version, llvmlite.__version__, numba.__version__, numba_cuda
    return *versions, str(library), found and (found.st_size, found.st_mtime_ns), settings


@deferred  # signals wait, because a time-out in a signal handler may be raised as OSError
def _cached(
    jit: Callable[..., Any], signature: Any, function: Callable[..., None], options: dict[str, Any], named: str | None = None
) -> Any:
    """Return jit(signature)(function), cached on disk by Numba, or compiled in this process if the cache cannot be used.

    Numba checks only the file of the function for changes, not those of the functions it calls: the cache folder is therefore
    named by a digest of all sources. `named`, what determines a CUDA kernel apart from them, takes the place of the pickled
    contents of its closure, which depend on the modules that are imported.
    """
    folder = files.version("compiled", digest(PACKAGE)[:16])
    try:
        if folder is not None:
            with _caching_in(folder), _keyed_by(named), event.install_listener("numba:compile", _COMPILES):
                return jit(signature, cache=True, **options)(function)
    # the cache folder is not writable, or there is an error that compiling raises again below
    except (RuntimeError, OSError, ImportError, numba.core.errors.NumbaError):
        pass
    except Exception as error:  # reading a damaged cache file may raise anything
        warnings.warn(
            f"Numba's cache of {function.__qualname__} in {folder} is damaged ({error!r}) and not used: delete that folder",
            stacklevel=2,
        )
    return jit(signature, **options)(function)


@contextlib.contextmanager
def _caching_in(folder: pathlib.Path) -> Iterator[None]:
    """Return a context in which functions that this thread declares are cached in `folder`; only one thread at a time may be
    inside, because Numba has one global setting. Python collects no garbage inside, and what was made inside counts as old
    afterwards: looking through the compiler's objects, most of which stay alive, took a tenth of the time of a first fit.
    """
    with global_compiler_lock:
        numba.config.reload_config()  # otherwise the compiler would read the configuration inside the context
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            numba.config.CACHE_DIR = before
            if collecting:
                if not gc.get_freeze_count():  # what others have frozen stays frozen
                    gc.freeze()
                    gc.unfreeze()  # all objects are of the oldest generation now
                gc.enable()


@contextlib.contextmanager
def _keyed_by(named: str | None) -> Iterator[None]:
    """Return a context in which Numba's cache finds a CUDA kernel by its signature, the GPU's architecture and `named`."""
    if named is None:
        yield
        return
    from numba.cuda.dispatcher import CUDACache

    def key(cache: Any, signature: Any, codegen: Any) -> tuple:
        return signature, codegen.magic_tuple(), named

    name = "_index_key"  # there is no public way
    before = getattr(CUDACache, name)
    setattr(CUDACache, name, key)
    try:
        yield
    finally:
        setattr(CUDACache, name, before)


class _Compiles(event.Listener):
    """Says on a terminal that Numba compiles, once in a process, as soon as that has taken a while."""

    PATIENCE = 1.0  # seconds; compiling a few small loops needs no word

    def __init__(self) -> None:
        self.spent, self.depth, self.began, self.said = 0.0, 0, 0.0, False
        self.timer: threading.Timer | None = None

    def on_start(self, event):
        self.depth += 1
        if self.depth > 1 or self.said or sys.stderr is None or not sys.stderr.isatty():
            return
        self.began = time.perf_counter()
        self.timer = threading.Timer(max(self.PATIENCE - self.spent, 0.0), self.say)  # one loop may take many seconds
        self.timer.daemon = True
        self.timer.start()

    def on_end(self, event):
        self.depth -= 1
        if self.timer is not None and not self.depth:
            self.timer.cancel()
            self.timer, self.spent = None, self.spent + time.perf_counter() - self.began

    def say(self) -> None:
        """Say it, unless that was done."""
        if not self.said:
            self.said = True
            print("numbanet: compiling once; later runs read the compiled loops from the cache", file=sys.stderr, flush=True)


_COMPILES = _Compiles()


@functools.cache
def _takes_bounds() -> bool:
    """Return True if this version of Numba supports launch bounds."""
    return "launch_bounds" in inspect.signature(cuda.jit).parameters


def kernel(
    signature: str, fastmath: bool = False, least: tuple[int, int] = (7, 5), bounds: tuple[int, int] | None = None
) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a CUDA kernel by its one signature, for example "void(f4[:, ::1], i4)"; from a Python function, or from a
    @cuda.jit kernel, whose options are ignored.
    """
    if callable(signature):
        raise TypeError(f'@kernel: state the signature of {signature.__name__}, such as @kernel("void(f4[:, ::1], i4)")')
    return lambda function: Kernel(function, signature, fastmath, least, bounds)


def intrinsic(*key: Any) -> Callable[[Callable[..., Any]], Any]:
    """Declare LLVM code for kernels, like `numba.cuda.extending.intrinsic`; `key` distinguishes the intrinsics of one factory.

    Numba caches compiled kernels by the contents of their closures. An intrinsic declared here is the same in every process,
    until a source file of the kernels changes.
    """

    def declare(function: Callable[..., Any]) -> Any:
        made = extending.intrinsic(function)
        if hasattr(made, "_set_uuid"):
            made._set_uuid(  # noqa: SLF001  there is no public way
                f"{function.__module__}.{function.__qualname__}.{key}.{digest(PACKAGE)}"
            )
        return made

    return declare


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a function that is inlined into kernels. Each factory must make its own: Numba caches compiled kernels by the
    contents of their closures, and would not notice a change of a global function.
    """
    return cuda.jit(device=True, inline="always")(function) if cuda else function


@functools.cache
def digest(folder: pathlib.Path) -> str:
    """Return a digest of the source files in a folder and its subfolders, without the PTX machine and the emulated card, which
    only read kernels. It is computed once per process, in a few milliseconds.
    """
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if path.parent not in (folder / "ptx", folder / "card"):
            found.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()


def kernels(family: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for a factory of a family's kernels: the factory's results are cached by its arguments, and
    `all_kernels` yields those of a call without arguments.
    """

    def decorate(factory: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def cached(*args: Any, **options: Any) -> Any:
            made = factory(*args, **options)
            for place, kernel in enumerate(made if isinstance(made, tuple) else (made,)):
                kernel.family = family
                if factory.__module__.startswith(f"{PACKAGE.name}."):  # True if the factory is in a file that `digest` covers
                    kernel.made_by = factory.__module__, factory.__qualname__, args, sorted(options.items()), place
            return made

        _FACTORIES.append(cached)
        return cached

    return decorate


def all_kernels() -> Iterator[Kernel]:
    """Yield every declared kernel at its default tile sizes, family by family."""
    for factory in _FACTORIES:
        made = factory()
        yield from made if isinstance(made, tuple) else (made,)


# Sums of a loop may be reordered. Reciprocals may not be estimated ("arcp"): vectors and single elements would round
# differently, and which of them a loop uses may depend on where its arrays lie, because it looks whether they overlap.
# There is no wrapper for callers in C, which would take a tenth of the time to compile.
HOST_KERNEL = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}, "no_cfunc_wrapper": True}
NEW_ARRAYS = {"empty", "empty_like", "full", "zeros"}  # functions that make arrays in compiled loops


def host_kernel(signature: str, makes_arrays: bool | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a CPU loop by its one signature: Numba compiles it at the first call and caches it on disk.

    A loop runs on the calling thread, without the GIL: `threads.share` calls it on parts of its arrays concurrently. It takes
    arrays and numbers. While a tape is being written, the call is recorded instead.

    References are counted only if the loop makes arrays, because this takes time in compiling and in each call. None means that
    it makes arrays if it calls one of NEW_ARRAYS. State True if it assigns an array to a part of another, which Numba may copy
    before; without it, Numba refuses with "NRT required".
    """
    digest(PACKAGE)  # computed now: at the first call of the loop, the source files may be newer than the imported ones

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        loop = None
        counts = not NEW_ARRAYS.isdisjoint(function.__code__.co_names) if makes_arrays is None else makes_arrays

        @functools.wraps(function)
        def call(*args: Any) -> None:
            nonlocal loop
            if loop is None:
                loop = _cached(numba.njit, signature, function, {**HOST_KERNEL, "_nrt": counts})
            writer = tape.get()
            if writer is None:
                loop(*args)
            else:
                writer.call(loop, args)

        return call

    return declare


def host_ufunc(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare an elementwise function of arrays by its one signature: Numba compiles it at the first call, and caches it."""
    digest(PACKAGE)  # now, as in `host_kernel`

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        ufunc = functools.cache(lambda: _cached(numba.vectorize, signature, function, {}))
        return lambda *args: ufunc()(*args)

    return declare


HOST_FUNCTION = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}


def host_function(function: Callable[..., Any]) -> Any:
    """Declare a function for CPU loops: it has no Python wrapper, which would also be compiled, and does not count references
    to its arrays, which would take longer than a short loop over them. So it must not make arrays.
    """
    return numba.njit(function, **HOST_FUNCTION)


def inlined_function(function: Callable[..., Any]) -> Any:
    """Declare a function for CPU loops that LLVM should vectorise: Numba copies its statements into the loop. LLVM does not
    vectorise a loop that calls a function of several results, even though it inlines the call.
    """
    return numba.njit(function, inline="always", **HOST_FUNCTION)
