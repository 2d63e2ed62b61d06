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
