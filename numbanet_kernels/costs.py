"""Costs: from which size on one way of doing the same work is the faster one on the CPU. Results are the same to rounding.

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
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Costs(NamedTuple):
    """The sizes from which on sharing and lazy updates pay."""

    shared_elements: int = 1 << 17
    shared_flops: int = 1 << 23
    lazy_elements: int = 1 << 21


def path() -> Path:
    """The file of this machine's costs."""
    chosen = os.environ.get("NUMBANET_COSTS")
    if chosen:
        return Path(chosen).expanduser()
    from numba.misc.appdirs import AppDirs  # Numba keeps compiled kernels by the same customs

    return Path(AppDirs("numbanet", appauthor=False).user_cache_dir) / "costs.json"


def load() -> Costs:
    """What this machine's file says; the defaults where there is none, and, with a warning, where it makes no sense."""
    try:
        text = path().read_text(encoding="utf-8")
    except (OSError, RuntimeError):  # no such file, no home folder
        return Costs()
    try:
        found = json.loads(text)
        if not all(isinstance(found[name], int) and found[name] >= 0 for name in Costs._fields):
            raise ValueError("sizes must be whole numbers from 0 on")
        return Costs(*(found[name] for name in Costs._fields))
    except (ValueError, KeyError, TypeError) as error:
        warnings.warn(f"{path()} is not used ({error!r}): write it anew by `numbanet devices --calibrate`, or delete it",
                      stacklevel=2)
        return Costs()


def save(found: Costs) -> Path:
    """Write the file of this machine, whole or not at all; returns where."""
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, prefix=target.name, delete=False) as file:
        json.dump(found._asdict(), file, indent=1)
    os.replace(file.name, target)
    return target


current = load()


@contextlib.contextmanager
def using(chosen: Costs) -> Iterator[None]:
    """Other costs for a while: what calibration and tests compare."""
    global current
    before, current = current, chosen
    try:
        yield
    finally:
        current = before
