"""Thresholds: from which size on one way of doing the same work is the faster one on the CPU. Results are the same to rounding.

    shared_elements    passes over fewer elements of memory are done sooner than handed over to other threads
    shared_flops       products of fewer FLOPs, likewise
    lazy_elements      smaller weights are updated sooner as a whole than where two plans need it

There is none for masks: to multiply by the mask of a plan instead of by what it keeps was slower at every size, one tile
included. The defaults are those of two cores of an AMD EPYC. `numbanet devices --calibrate` measures this machine once, while
it is idle, and writes what it finds to `path()`, where later processes read it; NUMBANET_COSTS names another file.
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
    """The sizes from which on sharing and lazy updates pay."""

    shared_elements: int = 1 << 17
    shared_flops: int = 1 << 23
    lazy_elements: int = 1 << 21


def path() -> Path:
    """The file of this machine's thresholds."""
    chosen = os.environ.get("NUMBANET_COSTS")
    return Path(chosen).expanduser() if chosen else cache_folder() / "costs.json"


def load() -> Thresholds:
    """What this machine's file says; the defaults where there is none, and, with a warning, where it makes no sense."""
    try:
        content = path().read_bytes()
    except (OSError, RuntimeError):  # no such file, no home folder
        return Thresholds()
    try:
        found = json.loads(content)
        if not all(isinstance(found[name], int) and found[name] >= 0 for name in Thresholds._fields):
            raise ValueError("sizes must be whole numbers from 0 on")
        return Thresholds(*(found[name] for name in Thresholds._fields))
    except (ValueError, KeyError, TypeError) as error:
        warnings.warn(
            f"{path()} is not used ({error!r}): write it anew by `numbanet devices --calibrate`, or delete it", stacklevel=2
        )
        return Thresholds()


def save(found: Thresholds, library: str = "openblas") -> Path:
    """Write the file of this machine, with the faster library of products (`blas`); returns where."""
    target = path()
    write(target, json.dumps({**found._asdict(), "blas": library}, indent=1).encode())
    return target


def faster_library() -> str | None:
    """The library of products that was measured faster on this machine; None if none was."""
    try:
        found = json.loads(path().read_bytes())["blas"]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # `load` warns of a file that makes no sense
        return None
    return found if isinstance(found, str) else None


current = load()


@contextlib.contextmanager
def using(chosen: Thresholds) -> Iterator[None]:
    """Other thresholds for a while: what calibration and tests compare."""
    global current
    before, current = current, chosen
    try:
        yield
    finally:
        current = before
