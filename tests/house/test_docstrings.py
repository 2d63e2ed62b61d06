"""Every public name says what it is; a method that overrides another one has its docstring. Examples in docstrings run."""

import doctest
import functools
import importlib
import inspect
import pkgutil

import pytest

import numbanet
from numbanet_kernels import runtime


def modules():
    """numbanet, its data sets, and what kernels are declared and run with."""
    for package in (numbanet, runtime):
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name != "numbanet.__main__" and not found.name.startswith("numbanet.bench"):
                yield importlib.import_module(found.name)


MODULES = list(modules())


def silent(module):
    """The public names that a module defines and that have no docstring, of their own or of what they override."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        said = vars(module).get(f"{name.removesuffix('_cuda')}_cpu", value)  # an operation, by its name on the CPU
        if inspect.isroutine(value) and not (inspect.getdoc(value) or inspect.getdoc(said)):
            yield name
        if inspect.isclass(value):
            yield from () if value.__doc__ else (name,)
            for attribute, member in vars(value).items():
                method = inspect.isroutine(member) or isinstance(member, (property, functools.cached_property))
                above = [vars(kind).get(attribute) for kind in value.__mro__]
                if method and not attribute.startswith("_") and not any(getattr(other, "__doc__", None) for other in above):
                    yield f"{name}.{attribute}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_names_have_docstrings(module):
    assert module.__doc__
    assert list(silent(module)) == []


@pytest.mark.parametrize(
    "module", [module for module in MODULES if ">>>" in inspect.getsource(module)], ids=lambda module: module.__name__
)
def test_examples_in_docstrings_run(module):
    assert doctest.testmod(module).failed == 0
