"""Suites: finds the suites. A suite is a file in a folder of bench; a family of kernels is a suite that needs no file.

    SUITE      its name on the command line and in the rows of its results
    cases      (options) -> cases, which the harness verifies and times; or
    run        (options, results, say) -> rows, if the suite does more than time cases
    plot       (results, path) -> None, optional; by default a plot of ratios
    RECORDED   arguments of the commands whose results are in bench/results

The first line of its docstring describes the suite in help texts, in `bench list` and in bench/README.md.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from numbanet_kernels import examples
from numbanet_kernels.tables import family_of

BENCH = __package__.rpartition(".")[0]  # `bench` in a checkout, `numbanet.bench` in an installed package


@functools.cache
def files() -> dict[str, ModuleType]:
    """{suite: its module}, from all folders except bench/machinery.

    Raises
    ------
    ValueError
        If two files have the same name in SUITE.
    """
    modules: dict[str, ModuleType] = {}
    for folder in pkgutil.iter_modules([str(Path(__file__).parents[1])], f"{BENCH}."):
        package = importlib.import_module(folder.name) if folder.ispkg and folder.name != __package__ else None
        for entry in pkgutil.iter_modules(package.__path__, f"{folder.name}.") if package else ():
            file = importlib.import_module(entry.name)
            if hasattr(file, "SUITE") and modules.setdefault(file.SUITE, file) is not file:
                raise ValueError(f"{file.__name__} and {modules[file.SUITE].__name__} both define SUITE = {file.SUITE!r}")
    return modules


@functools.cache
def families() -> dict[str, ModuleType]:
    """{family of kernels: the module of numbanet_kernels that defines its examples}"""
    modules: dict[str, ModuleType] = {}
    for module in examples.families().values():
        if ".families." in module.__name__:
            modules.setdefault(family_of(module), module)
    return modules


@functools.cache
def suites() -> dict[str, str]:
    """{suite: first line of its docstring}, families of kernels first."""
    named = {**families(), **files()}
    return {name: module.__doc__.splitlines()[0] for name, module in named.items()}


def stands_alone(suite: str) -> bool:
    """Whether the suite does more than time cases; then a command can run no other suite beside it."""
    return suite not in families() and hasattr(files()[suite], "run")


def recorded(suite: str) -> tuple[str, ...]:
    """Arguments of the suite's commands whose results are in bench/results."""
    return getattr(files().get(suite), "RECORDED", ())
