"""Functions that say what is available: a GPU, its compute capability, and the compiler for it."""

from __future__ import annotations

import functools
import importlib.util
import math
import textwrap
import warnings

import numba
from numba import float32

from . import driverless, emulation
from .declare import cuda, inlined, kernel
from .interrupt import deferred

NO_CUDA = (
    "this Numba has no CUDA support: pip install 'numba-cuda[cu13]'"
    if cuda is None
    else "NUMBA_ENABLE_CUDASIM is set: Numba's simulator compiles nothing"
    if numba.config.ENABLE_CUDASIM
    else None
)


@deferred  # signals wait, because the exception of a signal handler would be taken for a problem of the driver
def cuda_problem() -> str | None:
    """Return None if a kernel can be launched, else a sentence that says what is missing and how to get it."""
    if NO_CUDA:
        return NO_CUDA
    if driverless.posed:
        return "inside numbanet.emulated() there is no card but the emulated one, which device 'emulated' is, too"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if cuda.is_available():
                return nvvm_problem()
            reason = str(cuda.cuda_error() or "no NVIDIA GPU answers").strip().splitlines()[0]
    except Exception as error:  # a driver library may raise anything, and each failure means that CUDA is not available
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"no usable NVIDIA driver or GPU ({reason})"


@functools.cache
@deferred
def nvvm_problem() -> str | None:
    """Return None if a small kernel compiles, else a sentence that says what is missing and how to get it. The PTX of the
    kernel is cached on disk, like that of every kernel, and compiled again only if a compiler changes.
    """
    if NO_CUDA:
        return NO_CUDA
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _probe.ptx(emulation.EMULATED)
    except Exception as error:  # such as a missing library or a wrong version: nothing can be compiled
        if importlib.util.find_spec("numba_cuda") is None:
            return "numba-cuda is not installed: pip install 'numba-cuda[cu13]'"
        said = textwrap.shorten(str(error), 150, placeholder=" …")
        return f"a small kernel does not compile ({type(error).__name__}: {said}): pip install 'numba-cuda[cu13]'"
    return None


@inlined
def _exponential(x):
    return math.exp(x)


@kernel("void(f4[::1])")
def _probe(x):
    """A kernel with features that Numba's built-in CUDA target lacks or needs a driver for: an inlined function, aligned shared
    memory, and a function of libdevice.
    """
    tile = cuda.shared.array(32, float32, 16)
    t = cuda.threadIdx.x
    tile[t] = _exponential(x[t])
    cuda.syncthreads()
    x[t] = tile[31 - t]


_probe.made_by = __name__, "_probe"  # as if `kernels` had declared it, so that its PTX is cached


def capability() -> tuple[int, int]:
    """Return the compute capability of the GPU or of the emulated device."""
    return emulation.EMULATED if emulation.emulating() else _facts()[0]


def multiprocessors() -> int:
    """Return the number of multiprocessors of the GPU; on the emulated device, that of an H200."""
    return 132 if emulation.emulating() else _facts()[1]


def _facts() -> tuple[tuple[int, int], int]:
    """Return (compute capability, number of multiprocessors) of the GPU."""
    return _asked() if driverless.posed else _of_card()


def _asked() -> tuple[tuple[int, int], int]:
    device = cuda.get_current_device()
    return tuple(device.compute_capability), device.MULTIPROCESSOR_COUNT


_of_card = functools.cache(_asked)  # Numba asks the driver each time
