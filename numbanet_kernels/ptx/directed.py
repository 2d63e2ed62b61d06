"""Rounding towards 0, down and up, where NumPy only rounds to nearest: the result is moved to its neighbour if the exact value
is on the wrong side, which Python's fractions decide. Kernels use these instructions rarely, so they may be slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

NEAREST: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rcp": lambda x: x.dtype.type(1) / x,
    "sqrt": np.sqrt,
}
# whether one addend of a sum is negative, or -0
NEGATIVE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: np.signbit(a) | np.signbit(b),
    "sub": lambda a, b: np.signbit(a) | ~np.signbit(b),
    "fma": lambda a, b, c: (np.signbit(a) ^ np.signbit(b)) | np.signbit(c),
}
# the sign of (exact value - y), for each operation
SIDES: dict[str, Callable[..., Any]] = {
    "add": lambda y, a, b: a + b - y,
    "sub": lambda y, a, b: a - b - y,
    "mul": lambda y, a, b: a * b - y,
    "div": lambda y, a, b: (a - y * b) * (1 if b > 0 else -1),
    "rcp": lambda y, x: (1 - y * x) * (1 if x > 0 else -1),
    "sqrt": lambda y, x: x - y * y,
    "fma": lambda y, a, b, c: a * b + c - y,
}


def moved(y: np.ndarray, side: np.ndarray, rounding: str) -> np.ndarray:
    """Return `y`, moved to its neighbour where the exact value is on the wrong side of it for the rounding mode; `side` holds
    the signs of exact value - y.
    """
    if rounding == "rm":
        wrong, towards = side < 0, -math.inf
    elif rounding == "rp":
        wrong, towards = side > 0, math.inf
    else:
        wrong, towards = side * np.sign(y) < 0, 0.0
    return np.where(wrong, np.nextafter(y, y.dtype.type(towards)), y)


def directed(operation: str, rounding: str, nearest: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return the function of add, sub, mul, div, rcp, sqrt or fma in the rounding mode "rz", "rm" or "rp"; `nearest` is the
    function that rounds to nearest, by default NumPy's.
    """
    nearest, exact = nearest or NEAREST[operation], SIDES[operation]

    def side(y: float, *values: float) -> int:
        if not all(map(math.isfinite, values)) or math.isnan(y) or (operation in ("div", "rcp") and values[-1] == 0):
            return 0
        if math.isinf(y):  # a finite result that is too large
            return -1 if y > 0 else 1
        difference = exact(*map(Fraction, (y, *values)))
        return (difference > 0) - (difference < 0)

    def run(*values: Any) -> np.ndarray:
        given = np.broadcast_arrays(*map(np.asarray, values))
        y = np.asarray(nearest(*given))
        found = [side(*map(float, all_of)) for all_of in zip(y.ravel(), *(v.ravel() for v in given), strict=True)]
        sides = np.array(found).reshape(y.shape)
        if rounding == "rm" and operation in NEGATIVE:  # rounded down, x - x is -0
            y = np.where((y == 0) & (sides == 0) & NEGATIVE[operation](*given), y.dtype.type(-0.0), y)
        return moved(y, sides, rounding)

    return run
