"""The operations of a device, collected: a public function foo_cpu is the CPU's operation foo, foo_cuda that of CUDA."""
from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from . import families, host, runtime


def modules() -> Iterator[ModuleType]:
    """Every module that may have operations."""
    for folder in (families, host, runtime):
        for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
            yield importlib.import_module(module.name)


def family_of(module: ModuleType) -> str:
    """The family that a module belongs to, as "conv" of numbanet_kernels.families.conv.cpu; of other folders, its own name."""
    return module.__name__.split(".")[2]


def collected(device: str) -> dict[str, Callable[..., Any]]:
    """{name: function} of the functions whose names end in this device's; what the CPU's says of itself holds for all."""
    functions = {name: function for module in modules() for name, function in vars(module).items() if not name.startswith("_")}
    operations = {}
    for name, function in functions.items():
        op, _, suffix = name.rpartition("_")
        if suffix == device and op:
            function.__doc__ = function.__doc__ or functions[f"{op}_cpu"].__doc__
            operations[op] = function
    return operations
