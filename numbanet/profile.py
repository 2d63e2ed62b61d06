"""Profiling: with NUMBANET_PROFILE=1 each op prints its shapes, plan, milliseconds and the share of FLOPs skipped."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

ENABLED = os.environ.get("NUMBANET_PROFILE", "") not in ("", "0")


@contextlib.contextmanager
def timed(name: str, arrays: Sequence[Any], static: dict[str, Any]) -> Iterator[None]:
    """Return a context that measures and prints the time of one op. On a GPU, this is only the time of the launch."""
    start = time.perf_counter()
    yield
    milliseconds = 1e3 * (time.perf_counter() - start)
    plans = [plan for plan in static.values() if hasattr(plan, "density")]
    done = 1.0
    for plan in plans:
        done *= plan.density
    shapes = " ".join(str(tuple(a.shape)) for a in arrays if a is not None)
    what = f"  {' '.join(map(str, plans))}  skipped {1 - done:.1%}" if plans else ""
    print(f"{name:24s} {milliseconds:9.3f} ms  {shapes}{what}", file=sys.stderr)


NOTHING = contextlib.nullcontext()
