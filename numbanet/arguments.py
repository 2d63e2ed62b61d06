"""What numbers an argument may be: Python's and NumPy's, and no bool, which is more likely a misplaced switch than 0 or 1."""

from __future__ import annotations

import numbers
from typing import Any, TypeGuard


def is_real(value: Any) -> TypeGuard[float]:
    """Whether a value is a real number, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, most: int | None = None) -> int:
    """The value as an int, or ValueError unless it is a positive integer, of at most `most`."""
    if not is_integer(value) or value < 1 or (most is not None and value > most):
        raise ValueError(f"{name} must be a positive integer{'' if most is None else f' of at most {most}'}, got {value!r}")
    return int(value)
