"""The operations of a device, collected: a public function foo_cpu is the CPU's operation foo, foo_cuda that of CUDA."""
from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from . import families, host, runtime


def modules() -> Iterator[ModuleType]:
    """Every module that may have operations."""
    for room in (families, host, runtime):
        for found in pkgutil.iter_modules(room.__path__):
            yield importlib.import_module(f"{room.__name__}.{found.name}")


def collected(device: str) -> dict[str, Callable[..., Any]]:
    """{name: function} of the functions whose names end in this device's; what the CPU's says of itself holds for all."""
    found = {}
    for module in modules():
        for name, function in vars(module).items():
            op, _, of = name.rpartition("_")
            if of == device and op and not op.startswith("_"):
                function.__doc__ = function.__doc__ or getattr(module, f"{op}_cpu", function).__doc__
                found[op] = function
    return found


def stub() -> str:
    """The text of `numbanet/operations.pyi`: the operations of the CPU as methods, for type checkers (`make types`)."""
    def shown(p: inspect.Parameter) -> str:
        plain = p.default is p.empty or isinstance(p.default, (bool, int, float, str, type(None)))
        return str(p if plain else p.replace(default=...)).replace("Ellipsis", "...")

    def method(name: str, function: Callable[..., Any]) -> str:
        parameters = ", ".join(["self", *map(shown, inspect.signature(function).parameters.values())])
        return f"    def {name}({parameters}) -> Any: ..."

    return "\n".join(["# The operations of a device, by the signatures of the CPU's. `make types` writes this file.",
                      "from typing import Any", "", "class Operations:",
                      *(method(name, function) for name, function in sorted(collected("cpu").items())), ""])


if __name__ == "__main__":
    print(stub(), end="")
