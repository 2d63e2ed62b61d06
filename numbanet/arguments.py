"""Checks of arguments: numbers, and files that can be written. Numbers of Python and NumPy are accepted. A bool is refused,
because it is more likely an argument in the wrong position.
"""

from __future__ import annotations

import numbers
import os
from pathlib import Path
from typing import Any, TypeGuard


def is_real(value: Any) -> TypeGuard[float]:
    """Return True if `value` is a real number and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_integer(value: Any) -> TypeGuard[int]:
    """Return True if `value` is an integer and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, most: int | None = None, least: int = 1) -> int:
    """Return `value` as an int; raise ValueError, beginning with `name`, unless it is an integer from `least` to `most`."""
    if not is_integer(value) or value < least or (most is not None and value > most):
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {wanted}{'' if most is None else f' of at most {most}'}, got {value!r}")
    return int(value)


def check_target(path: str | os.PathLike) -> Path:
    """Return `path` if a file can be written there, else raise an error. Call this before long work starts."""
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"cannot save to {str(path)!r}: there is no folder {str(path.absolute().parent)!r}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise PermissionError(f"cannot save to {str(path)!r}: the folder {str(path.absolute().parent)!r} cannot be written to")
    if path.is_dir():
        raise IsADirectoryError(f"cannot save to {str(path)!r}: it is a folder; give the name of a file in it")
    return path
