"""Precision of products: float32, or TF32 if a thread requests it."""

from __future__ import annotations

import contextlib

from .context import Scoped

_tf32 = Scoped("tf32", False)


def imprecise() -> bool:
    """Return True if products may round their operands to 10 bits."""
    return _tf32.get()


def tf32() -> contextlib.AbstractContextManager[None]:
    """Return a context in which products of this thread round operands to 10 bits, if the GPU has tensor cores."""
    return _tf32.within(True)
