"""What is here: a card, its capability, and what compiles for it."""
from __future__ import annotations

import warnings

import numba

from . import emulation
from .declare import cuda

NO_CUDA = ("this Numba has no CUDA support: pip install 'numba-cuda[cu13]'" if cuda is None else
           "NUMBA_ENABLE_CUDASIM is set: Numba's simulator compiles nothing" if numba.config.ENABLE_CUDASIM else None)


def cuda_problem() -> str | None:
    """None where a kernel can be launched, else one sentence: what is missing and how to get it."""
    if NO_CUDA:
        return NO_CUDA
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
    if NO_CUDA:
        return NO_CUDA
    try:
        from numba.cuda.cudadrv import nvvm

        nvvm.NVVM()
    except Exception as error:  # missing library, wrong version: all mean that nothing can be compiled
        first = str(error).strip().splitlines()
        return f"NVVM is missing ({first[0] if first else type(error).__name__}): pip install 'numba-cuda[cu13]'"
    return None


def capability() -> tuple[int, int]:
    """The compute capability of the card or the emulated device."""
    return emulation.EMULATED if emulation.emulating() else tuple(cuda.get_current_device().compute_capability)


def multiprocessors() -> int:
    """How many the card has; the emulated device as many as an H200."""
    return 132 if emulation.emulating() else cuda.get_current_device().MULTIPROCESSOR_COUNT
