"""Thresholds: sizes from which one implementation is faster than another on the CPU. Results agree up to rounding.

    shared_elements    a pass over fewer elements is faster on one thread
    shared_flops       a matrix product of fewer FLOPs is faster on one thread
    lazy_elements      a weight of fewer elements is updated faster as a whole than lazily, only the parts in use

Masks have no threshold: a product with a masked weight was slower than one with the plan's kept part at every size, even for
one tile. The defaults are those of two cores of an AMD EPYC. `numbanet devices --calibrate` measures this machine once, while
it is idle, and writes the results to `path()`, where later processes read them; NUMBANET_COSTS names another file.
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
    """The sizes from which shared work and lazy updates are faster; the module describes the fields."""

    shared_elements: int = 1 << 17
    shared_flops: int = 1 << 23
    lazy_elements: int = 1 << 21


def path() -> Path:
    """The file of this machine's thresholds."""
    chosen = os.environ.get("NUMBANET_COSTS")
    return Path(chosen).expanduser() if chosen else cache_folder() / "costs.json"


def load() -> Thresholds:
    """The thresholds in this machine's file; the defaults if there is no file. If it is invalid, a warning and the defaults."""
    try:
        content = path().read_bytes()
    except (OSError, RuntimeError):  # no such file, no home folder
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
    """Write this machine's file: the thresholds, and the faster library of matrix products (`blas`); returns its path."""
    target = path()
    write(target, json.dumps({**found._asdict(), "blas": library}, indent=1).encode())
    return target


def faster_library() -> str | None:
    """The library of matrix products that was measured faster on this machine; None if it was never measured."""
    try:
        found = json.loads(path().read_bytes())["blas"]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # `load` warns of an invalid file
        return None
    return found if isinstance(found, str) else None


current = load()


@contextlib.contextmanager
def using(chosen: Thresholds) -> Iterator[None]:
    """Use other thresholds inside, for calibration and tests."""
    global current
    before, current = current, chosen
    try:
        yield
    finally:
        current = before
