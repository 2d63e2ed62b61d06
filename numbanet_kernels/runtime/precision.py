"""How precise products are to be: float32, or TF32 where a thread says so."""
from __future__ import annotations

import contextlib
import contextvars

from .context import within

_tf32 = contextvars.ContextVar("tf32", default=False)


def imprecise() -> bool:
    """Whether products may keep 10 bits of their operands."""
    return _tf32.get()


def tf32() -> contextlib.AbstractContextManager[None]:
    """Products called inside, by this thread, keep 10 bits of their operands, on tensor cores where the card has them."""
    return within(_tf32, True)
