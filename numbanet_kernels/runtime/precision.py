"""How precise products are to be: float32, or TF32 where a thread says so."""

from __future__ import annotations

import contextlib

from .context import Scoped

_tf32 = Scoped("tf32", False)


def imprecise() -> bool:
    """Whether products may keep 10 bits of their operands."""
    return _tf32.get()


def tf32() -> contextlib.AbstractContextManager[None]:
    """Products called inside, by this thread, keep 10 bits of their operands, on tensor cores where the card has them."""
    return _tf32.within(True)
