"""Suites: a suite is one file in a folder of bench that says its name, and a family of kernels is one without any file.

    SUITE      its name on the command line, and in the rows of its results
    cases      (options) -> cases, which the harness verifies and times; or
    run        (options, results, say) -> rows, where there is more to do
    plot       (results, path) -> None, where the usual picture of ratios says little
    RECORDED   the arguments of the commands whose results stand in bench/results

The first line of its docstring says what it measures. Help, `bench list` and bench/README.md have suites from here.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from numbanet_kernels import examples
from numbanet_kernels.tables import family_of

BENCH = __package__.rpartition(".")[0]  # `bench`, or `numbanet.bench` where it is installed


@functools.cache
def files() -> dict[str, ModuleType]:
    """{suite: its file}, folder by folder but for the machinery.

    Raises
    ------
    ValueError
        If two files say the same name.
    """
    found: dict[str, ModuleType] = {}
    for folder in pkgutil.iter_modules([str(Path(__file__).parents[1])], f"{BENCH}."):
        package = importlib.import_module(folder.name) if folder.ispkg and folder.name != __package__ else None
        for entry in pkgutil.iter_modules(package.__path__, f"{folder.name}.") if package else ():
            file = importlib.import_module(entry.name)
            if hasattr(file, "SUITE") and found.setdefault(file.SUITE, file) is not file:
                raise ValueError(f"{file.__name__} and {found[file.SUITE].__name__} both say SUITE = {file.SUITE!r}")
    return found


@functools.cache
def families() -> dict[str, ModuleType]:
    """{family of kernels: the module of numbanet_kernels that has its examples}"""
    found: dict[str, ModuleType] = {}
    for module in examples.families().values():
        if ".families." in module.__name__:
            found.setdefault(family_of(module), module)
    return found


@functools.cache
def suites() -> dict[str, str]:
    """{suite: what it measures}, families first."""
    named = {**families(), **files()}
    return {name: module.__doc__.splitlines()[0] for name, module in named.items()}


def stands_alone(suite: str) -> bool:
    """Whether it does more than time cases, and takes no other suite beside it."""
    return suite not in families() and hasattr(files()[suite], "run")


def recorded(suite: str) -> tuple[str, ...]:
    """The arguments of the commands whose results stand in bench/results."""
    return getattr(files().get(suite), "RECORDED", ())
