"""Sessions: stretches of work on a device, within which what they need is set up once, and signals wait."""

from __future__ import annotations

import contextlib

from ..runtime.interrupt import deferred
from ..runtime.precision import tf32
from . import threads


def session_cpu(limit=None, precision="float32"):
    """A context for a stretch of work on the device, with at most `limit` threads: BLAS is set up once, and signals wait.
    Products are float32 in any precision."""
    return threads.session(limit)


@contextlib.contextmanager
def _imprecise():
    with deferred, tf32():
        yield


def session_cuda(limit=None, precision="float32"):
    """A context for a stretch of work on the device: signals wait for its end. In "tf32", products keep 10 bits of what they
    multiply, where the card has tensor cores; `limit` is for the CPU."""
    return _imprecise() if precision == "tf32" else deferred
