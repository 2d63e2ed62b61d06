"""Numba without a GPU driver: this module answers what Numba asks a driver, and replaces Numba's advice to install one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .context import Scoped

try:
    from numba.cuda.cudadrv.error import CudaSupportError
except ImportError:  # Numba without its CUDA part, which finds no driver either
    CudaSupportError = ImportError

EMULATED = (8, 0)  # the compute capability for which kernels are compiled to be emulated
posed = False  # True while the emulated card (`numbanet_kernels.card`) poses as a card to numba.cuda
_compiled_for = Scoped("compiled for", EMULATED)


class NoCard(CudaSupportError):
    """An operation needs a GPU, and there is none."""


def no_card(error: Exception) -> Exception:
    """Return the error to raise instead of `error`: a NoCard if Numba found no driver (CudaSupportError), else `error`."""
    if not isinstance(error, CudaSupportError):
        return error
    return NoCard(
        "no card answers, and this asks for one. The emulated device needs none: inside `with emulated():` of "
        "numbanet_kernels.runtime.emulation it runs kernels that @kernel of .declare declared and launch of .launch "
        "starts, on NumPy arrays or those of to_device and device_array of .arrays. Plain code of numba.cuda, such as "
        "@cuda.jit kernels, runs without a card inside `with numbanet.emulated():`, and in files by `numbanet check FILE`"
    )


def compiling_for(compute_capability: tuple[int, int]) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which device functions are compiled for this compute capability if there is no GPU."""
    return _compiled_for.within(compute_capability)


def answer_for_cards() -> None:
    """Make Numba compile device functions without a driver, of which it needs only the compute capability."""
    from numba.cuda import dispatcher

    ask = dispatcher.get_current_device

    def current_device() -> Any:
        try:
            return ask()
        except CudaSupportError:
            return SimpleNamespace(compute_capability=_compiled_for.get())

    dispatcher.get_current_device = current_device


def explain_to(whom: Callable[[], bool]) -> None:
    """Make Numba raise NoCard if it asks a missing driver, as long as whom() is true."""
    from numba.cuda.cudadrv.driver import Driver

    ask = Driver.__getattr__

    def answer(driver: Driver, name: str) -> Any:
        try:
            return ask(driver, name)
        except CudaSupportError as error:
            if whom():
                raise no_card(error) from error
            raise

    Driver.__getattr__ = answer
