"""Device: a name, and a table of the operations that run on it.

    dev = device("auto")
    y = dev.gemm(x, w, tb=True)      # x, w: arrays of this device

Modules that use a `Device` are written once for all devices; the operations in `numbanet_kernels` are written for each device.
"""

from __future__ import annotations

import functools
import importlib
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .operations import Operations  # a stub, generated from the signatures of the CPU's functions
else:
    Operations = object

NAMES = ("cpu", "cuda", "emulated")
THREADS = re.compile(r"cpu:[1-9]\d*")
UNLIMITED = {"session", "records", "rehearses", "asides", "second_stream", "synchronize"}  # operations that compute nothing


class DeviceFailure(RuntimeError):
    """A device could not compute a layer; the message names both."""


class Device(Operations):
    """A device that computes: it has a `name`, and one attribute, a function, for each operation of its table.

    The name "cpu:2" stands for the CPU with at most two threads, whatever the session allows.

    The function `device` makes one object per name, so devices can be compared by identity. A device is pickled as its name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        base, _, threads = name.partition(":")
        table = operations(importlib.import_module(f"numbanet_kernels.{base}" if base in NAMES else foreign()[base]))
        self.__dict__.update(_limited(table, int(threads)) if threads else table)

    if not TYPE_CHECKING:  # type checkers read the operations from the stub

        def __getattr__(self, op: str) -> Any:
            raise AttributeError(f"device {self.name!r} has no operation {op!r}; `numbanet kernels` lists them")

    def __repr__(self) -> str:
        return f"device({self.name!r})"

    def __reduce__(self) -> tuple:
        return device, (self.name,)


def operations(table: ModuleType) -> dict[str, Any]:
    """Return the operations that a table module defines, as a dict from name to function."""
    return {name: f for name, f in vars(table).items() if callable(f) and not name.startswith("_")}


def _limited(table: dict[str, Any], threads: int) -> dict[str, Any]:
    """Return a table whose operations use at most n = `threads` threads. It records nothing, as a tape has its own threads."""
    session = table["session"]

    def limited(operation: Any) -> Any:
        @functools.wraps(operation)
        def run(*args: Any, **options: Any) -> Any:
            with session(limit=threads):
                return operation(*args, **options)

        return run

    own = {name: limited(operation) for name, operation in table.items() if name not in UNLIMITED}
    return {**table, **own, "records": lambda: False}


@functools.cache
def foreign() -> dict[str, str]:
    """Return {name: module} of the devices that packages bring by an entry point of the group "numbanet.devices".

    The module holds the operations of the device as functions, with the names and signatures of `numbanet_kernels.cpu`, whose
    functions it may import. It raises ImportError if the device cannot be used; the message says what to install.
    """
    from importlib import metadata  # not before it is needed: reading what is installed takes long

    found = metadata.entry_points(group="numbanet.devices")
    return {point.name: point.value for point in found if point.name not in NAMES}


def available() -> list[str]:
    """Return the names of the devices that can be used on this machine."""
    return [name for name in (*NAMES, *foreign()) if problem(name) is None]


def problem(name: str) -> str | None:
    """Return None if the device with this name can be used, else a sentence that says what is missing and how to get it."""
    if name == "cpu" or THREADS.fullmatch(name):
        return None
    if name not in NAMES:
        if name not in foreign():
            return "no package that is installed brings it"
        try:
            importlib.import_module(foreign()[name])
        except ImportError as error:
            return str(error)
        except Exception as error:  # whatever another package raises
            return f"its table {foreign()[name]} cannot be imported ({type(error).__name__}: {error})"
        return None
    from numbanet_kernels.runtime import availability  # not before a device is used: numba.cuda takes long to import

    if name == "emulated":
        return availability.nvvm_problem()
    missing = availability.cuda_problem()
    return missing and (
        f"{missing}; it needs an NVIDIA GPU, its driver and: pip install 'numba-cuda[cu13]'. Without a GPU, device "
        "'emulated' runs the same kernels on the CPU, for study and tests"
    )


@functools.cache
def _made(name: str) -> Device:
    return Device(name)


def device(name: str | Device = "auto") -> Device:
    """Return the device with this name: "cpu", "cuda" or "emulated"; "auto" means "cuda" if a GPU is available, else "cpu".
    "cpu:1" is the CPU with one thread, "cpu:2" with at most two, and so on; it records no steps. "torch" is the CPU with
    PyTorch's products and convolutions; packages bring further devices (`foreign`).

    The emulated device runs the compiled CUDA kernels on the CPU (`numbanet_kernels.ptx`): slowly, and with checks.

    Raises
    ------
    ValueError
        If the name is unknown.
    RuntimeError
        If the device is not available on this machine; the message says why, and what to install.
    """
    if isinstance(name, Device):
        return name
    if name == "auto":
        return _made("cpu" if problem("cuda") else "cuda")
    known = isinstance(name, str) and (name in NAMES or THREADS.fullmatch(name) or name in foreign())  # a long search: last
    if not known:
        raise ValueError(f"there is no device {name!r}; choose one of 'auto', {', '.join(map(repr, (*NAMES, *foreign())))}")
    missing = problem(name)
    if missing:
        raise RuntimeError(f"device {name!r} is not available here: {missing}. device='auto' or 'cpu' runs without it")
    return _made(name)


def shared_sums(ranks: Any) -> Any:
    """Return the `SharedSums` of ranks that are processes of this machine; all of them call this.

    Raises
    ------
    OSError
        On all ranks, if one of them cannot share memory.
    """
    from numbanet_kernels.host.shared_sums import SharedSums  # imports Numba's compiler

    return SharedSums(ranks)
