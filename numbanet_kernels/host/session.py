"""Sessions: a session is a context for work on a device. It sets up BLAS or the precision once, and signals are handled at its
end."""

from __future__ import annotations

import contextlib

from ..runtime.interrupt import deferred
from ..runtime.precision import tf32
from . import threads


def session_cpu(limit=None, precision="float32"):
    """Return a session on the CPU with at most `limit` threads; by default with as many as BLAS has.

    BLAS is set up once, and signals are handled at the end. `precision` is ignored: products are always float32.
    """
    return threads.session(limit)


@contextlib.contextmanager
def _imprecise():
    with deferred, tf32():
        yield


def session_cuda(limit=None, precision="float32"):
    """Return a session on the GPU: signals are handled at its end. If `precision` is "tf32", GPUs with tensor cores round the
    operands of products to 10 bits of mantissa. `limit` is ignored, because it applies to the CPU.
    """
    return _imprecise() if precision == "tf32" else deferred


def workers_cpu():
    """Return the number of threads that share work."""
    return threads.count()


def workers_cuda():
    """Return 1, because threads of the CPU share no work of the GPU."""
    return 1
