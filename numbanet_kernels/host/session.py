"""Sessions: periods of work on a device that set up BLAS or precision once, and during which signals wait."""

from __future__ import annotations

import contextlib

from ..runtime.interrupt import deferred
from ..runtime.precision import tf32
from . import threads


def session_cpu(limit=None, precision="float32"):
    """A context for work on the device, with at most `limit` threads: BLAS is set up once, and signals wait. Products are
    float32 at any precision.
    """
    return threads.session(limit)


@contextlib.contextmanager
def _imprecise():
    with deferred, tf32():
        yield


def session_cuda(limit=None, precision="float32"):
    """A context for work on the device: signals wait until its end. With "tf32", products round operands to 10 bits on GPUs
    with tensor cores; `limit` is for the CPU only.
    """
    return _imprecise() if precision == "tf32" else deferred


def workers_cpu():
    """The number of threads that share work."""
    return threads.count()


def workers_cuda():
    """1: threads of the CPU share nothing."""
    return 1
