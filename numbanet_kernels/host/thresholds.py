"""Thresholds: sizes from which one of two implementations is faster on the CPU. The results of both agree up to rounding.

    shared_elements    a pass over fewer elements is faster on one thread
    shared_flops       a matrix product of fewer FLOPs is faster on one thread
    lazy_elements      the update of a weight of fewer elements is faster if it is not lazy (`families.update.lazy_sgd`)

There is no threshold below which a plan is applied as a mask: a product with a masked weight was slower than the product with
the kept part at every size, even for one tile. The defaults were measured on two cores of an AMD EPYC.
`numbanet devices --calibrate` measures this machine once, while it is idle, and writes the results to `path()`, where later
processes read them. The environment variable NUMBANET_COSTS names another file.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..runtime.files import cache_folder, write


class Thresholds(NamedTuple):
    """The sizes from which shared work and lazy updates are faster; the docstring of the module describes the fields."""

    shared_elements: int = 1 << 17
    shared_flops: int = 1 << 23
    lazy_elements: int = 1 << 21


def path() -> Path:
    """Return the path of the file that holds this machine's thresholds."""
    chosen = os.environ.get("NUMBANET_COSTS")
    return Path(chosen).expanduser() if chosen else cache_folder() / "costs.json"


def load() -> Thresholds:
    """Return the thresholds in this machine's file; if it is missing, or invalid (with a warning), the defaults."""
    try:
        content = path().read_bytes()
    except (OSError, RuntimeError):  # there is no such file, or no home folder
        return Thresholds()
    try:
        found = json.loads(content)
        if not all(isinstance(found[name], int) and found[name] >= 0 for name in Thresholds._fields):
            raise ValueError("sizes must be integers >= 0")
        return Thresholds(*(found[name] for name in Thresholds._fields))
    except (ValueError, KeyError, TypeError) as error:
        warnings.warn(
            f"{path()} is not used ({error!r}): write it again with `numbanet devices --calibrate`, or delete it", stacklevel=2
        )
        return Thresholds()


def save(found: Thresholds, library: str = "openblas") -> Path:
    """Write the thresholds and the name of the faster library to this machine's file, and return its path."""
    target = path()
    write(target, json.dumps({**found._asdict(), "blas": library}, indent=1).encode())
    return target


def faster_library() -> str | None:
    """Return the library whose matrix products were measured faster on this machine; None if that was never measured."""
    try:
        found = json.loads(path().read_bytes())["blas"]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # `load` warns if the file is invalid
        return None
    return found if isinstance(found, str) else None


current = load()


@contextlib.contextmanager
def using(chosen: Thresholds) -> Iterator[None]:
    """Return a context in which the thresholds are `chosen`; calibration and tests use it."""
    global current
    before, current = current, chosen
    try:
        yield
    finally:
        current = before
