"""What each op did: with NUMBANET_PROFILE=1, one line an op with its shapes, plan, milliseconds and the FLOPs skipped."""
from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

ENABLED = os.environ.get("NUMBANET_PROFILE", "") not in ("", "0")


@contextlib.contextmanager
def _timed(name: str, *arrays: Any, static: dict[str, Any] | None = None) -> Iterator[None]:
    start = time.perf_counter()
    yield
    milliseconds = 1e3 * (time.perf_counter() - start)
    plans = [plan for plan in (static or {}).values() if hasattr(plan, "density")]
    done = 1.0
    for plan in plans:
        done *= plan.density
    shapes = " ".join(str(tuple(a.shape)) for a in arrays)
    what = f"  {' '.join(map(str, plans))}  skipped {1 - done:.1%}" if plans else ""
    print(f"{name:24s} {milliseconds:9.3f} ms  {shapes}{what}", file=sys.stderr)


NOTHING = contextlib.nullcontext()


def timed(name: str, *arrays: Any, static: dict[str, Any] | None = None):
    """A context that times one op where profiling is on; kernels of other devices are timed by their launch alone."""
    return _timed(name, *arrays, static=static) if ENABLED else NOTHING
