"""Context variables that are set for a while, in one thread."""
from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def within(variable: contextvars.ContextVar, value: Any) -> Iterator[Any]:
    """The variable has this value inside, and what it had before after."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
