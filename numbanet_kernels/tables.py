"""Makes the table of operations of a device: a public function foo_cpu is the operation foo of the CPU, and foo_cuda is that of
CUDA."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from . import families, host, runtime


def modules() -> Iterator[ModuleType]:
    """Yield every module that may define operations."""
    for folder in (families, host, runtime):
        for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
            yield importlib.import_module(module.name)


def family_of(module: ModuleType) -> str:
    """Return the family of a module, such as "conv"; outside of `families`, the name of the module."""
    return module.__name__.split(".")[2]


def collected(device: str) -> dict[str, Callable[..., Any]]:
    """Return a dict that maps the name of each operation to its function: the functions whose names end in "_cpu" or "_cuda",
    according to `device`. Attributes of the function of the CPU are copied to those of other devices.
    """
    functions = {name: function for module in modules() for name, function in vars(module).items() if not name.startswith("_")}
    operations = {}
    for name, function in functions.items():
        op, _, suffix = name.rpartition("_")
        if suffix == device and op:
            function.__doc__ = function.__doc__ or functions[f"{op}_cpu"].__doc__
            operations[op] = function
    return operations


def stub() -> str:
    """Return the text of `numbanet/operations.pyi`: the operations of the CPU as methods, for type checkers (`make types`)."""

    def shown(p: inspect.Parameter) -> str:
        plain = p.default is p.empty or isinstance(p.default, (bool, int, float, str, type(None)))
        return str(p if plain else p.replace(default=...)).replace("Ellipsis", "...")

    def method(name: str, function: Callable[..., Any]) -> str:
        parameters = ", ".join(["self", *map(shown, inspect.signature(function).parameters.values())])
        return f"    def {name}({parameters}) -> Any: ..."

    return "\n".join(
        [
            "# The operations of a device, by the signatures of the CPU's. `make types` writes this file.",
            "from typing import Any",
            "",
            "class Operations:",
            *(method(name, function) for name, function in sorted(collected("cpu").items())),
            "",
        ]
    )


if __name__ == "__main__":
    print(stub(), end="")
