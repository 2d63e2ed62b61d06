"""Examples: small calls of the operations, for tests on the emulated device, for counting instructions, and for benchmarks.

    example("sum, rows")        returns an operation and its arguments, arrays on the host
    counted("sum")              runs all examples of an operation on the emulated device, and returns a dict from each kernel
                                to its Counters

The function `examples(dev, a, N, I, O)` of a family returns a dict of its examples. The name of an example is that of the
operation, to which a comma and a special case may be added.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .runtime import declare, emulation
from .tables import family_of, modules

SIZES = 128, 256, 192  # batch N, inputs I, outputs O: each is a few whole blocks


class Example(NamedTuple):
    """A call of an operation."""

    op: str
    arguments: tuple
    options: dict[str, Any]

    def on(self, dev: Any) -> Example:
        """Return the same call with its arrays on the device `dev`."""
        return _uploaded(self, dev)

    def run(self, dev: Any) -> Any:
        """Return the result of the operation on the device `dev`, where the arguments must be."""
        return getattr(dev, self.op)(*self.arguments, **self.options)


def _uploaded(value: Any, dev: Any) -> Any:
    if isinstance(value, np.ndarray):
        return dev.upload(value)
    if isinstance(value, dict):
        return {name: _uploaded(part, dev) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_uploaded(part, dev) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


class _Calls:
    """A device that lists calls of operations instead of running them."""

    def __getattr__(self, op: str) -> Any:
        return lambda *arguments, **options: Example(op, arguments, options)


class _Arrays:
    """Makes reproducible random arrays."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __call__(self, *shape: int, above: float | None = None) -> np.ndarray:
        values = self.rng.standard_normal(shape, np.float32)
        return values if above is None else above + np.abs(values)

    def indices(self, below: int, *shape: int) -> np.ndarray:
        return self.rng.integers(below, size=shape).astype(np.int32)


@functools.cache
def families() -> dict[str, ModuleType]:
    """Return a dict that maps the name of each example to the module that defines it."""
    return {name: module for module in modules() if hasattr(module, "examples") for name in module.examples(None, None, *SIZES)}


def example(name: str, sizes: tuple[int, int, int] = SIZES) -> Example:
    """Return the example with this name; `sizes` are N samples, I inputs and O outputs."""
    return families()[name].examples(_Calls(), _Arrays(), *sizes)[name]()


def counted(op: str, sizes: tuple[int, int, int] = SIZES) -> dict[declare.Kernel, Any]:
    """Return the counters of the kernels that the examples of an operation or of a family launch, as a dict; `sizes` are N
    samples, I inputs and O outputs. If `op` is "path/to/file.py:function", return the counters of the kernels that this
    function launches. Raise ValueError if no kernel is launched.
    """
    from . import emulated

    if op.endswith(".py"):
        raise ValueError(f"{op}: name a function of the file that launches kernels, as in {op}:show")
    path, _, function = op.rpartition(":")
    if path.endswith(".py"):
        return _counting(_own(path, function))
    names = [name for name in families() if op in (name, name.partition(",")[0])] or [
        name for name, module in families().items() if op == family_of(module)
    ]
    if not names:
        ops = dict.fromkeys(name.partition(",")[0] for name in families())
        raise ValueError(f"there is no example of {op!r}; choose from {', '.join(ops)}")
    return _counting(lambda: [example(name, sizes).on(emulated).run(emulated) for name in names])


def _own(path: str, name: str) -> Callable[[], Any]:
    """Load a function of a user's file by its name; it must take no arguments."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found) or isinstance(found, declare.Kernel):
        raise ValueError(f"{path} has no function {name!r}: name one without arguments that launches the kernel")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ValueError(
            f"{name} of {path} cannot be called without arguments ({error}): name a function without arguments that makes the "
            "arrays and launches the kernel"
        ) from None
    except ValueError:  # a callable whose signature Python does not know
        pass
    return found


def _counting(run: Callable[[], Any]) -> dict[declare.Kernel, Any]:
    """Call run() on the emulated device; return the counters of the kernels that it launches."""
    before = dict(emulation.counters)
    emulation.counters.clear()
    try:
        with emulation.emulated():
            run()
        return dict(emulation.counters)
    finally:
        emulation.counters.clear()
        emulation.counters.update(before)
