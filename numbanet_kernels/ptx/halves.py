"""Arithmetic of float16 and bfloat16, single (f16, bf16) and in pairs (f16x2, bf16x2).

NumPy computes float16 +, -, x, / and sqrt in float32 and rounds once more, which gives the nearest float16, because float32 has
more than 2 x 11 + 1 bits. bfloat16 has no dtype in NumPy: its bits are converted to float64, where sums are rounded to odd, and
rounded to bfloat16 once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as A

PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}  # types of pairs, and that of their elements
F16 = np.dtype("f2")


def element(kind: str) -> str:
    """Return the type of the elements of a pair; of other types, the type itself."""
    return PAIRS.get(kind, kind)


def parts(x: Any) -> np.ndarray:
    """Return the bits of pairs as an array (n, 2) of uint16, the lower half first."""
    bits = np.ascontiguousarray(np.atleast_1d(x))
    return bits.view(np.uint16).reshape(-1, 2)


def joined(x: np.ndarray) -> np.ndarray:
    """Return pairs (n, 2) of 16-bit numbers as (n,) numbers of 32 bits."""
    return np.ascontiguousarray(x).view(np.uint32).ravel()


def of_pairs(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of pairs for one of their elements."""
    held = A.DTYPES[element(kind)]
    return lambda *values: joined(function(*(parts(v).view(held) for v in values)))


def wide(bits: Any) -> np.ndarray:
    """Convert the bits of bfloat16 to float64."""
    return A.bf16_to_f32(np.asarray(bits)).astype(np.float64)


def f64_to_bf16(x: np.ndarray, rounding: str = "rn") -> np.ndarray:
    """Return the bits (uint16) of x rounded once to bfloat16: to nearest ("rn"), by way of a float32 rounded to odd, or towards
    0 ("rz").
    """
    x = np.asarray(x, np.float64)
    cut = A.narrowed(x, "rz")
    if rounding == "rz":
        return np.where(np.isnan(x), np.uint16(0x7FFF), (cut.view(np.uint32) >> np.uint32(16)).astype(np.uint16))
    inexact = (cut.astype(np.float64) != x) & ~np.isnan(x)
    return A.f32_to_bf16((cut.view(np.uint32) | inexact).view(np.float32))


SIGN = np.uint16(0x8000)
BF16: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: f64_to_bf16(A.odd_sum(wide(a), wide(b))),
    "sub": lambda a, b: f64_to_bf16(A.odd_sum(wide(a), -wide(b))),
    "mul": lambda a, b: f64_to_bf16(wide(a) * wide(b)),
    "fma": lambda a, b, c: f64_to_bf16(A.odd_sum(wide(a) * wide(b), wide(c))),
    "neg": lambda a: np.asarray(a) ^ SIGN,
    "abs": lambda a: np.asarray(a) & ~SIGN,
    "ex2": lambda a: f64_to_bf16(np.exp2(wide(a))),
    "tanh": lambda a: f64_to_bf16(np.tanh(wide(a))),
    "min": lambda a, b: _picked(np.fmin, np.bitwise_or, a, b),
    "max": lambda a, b: _picked(np.fmax, np.bitwise_and, a, b),
}


def _picked(pick: Callable[..., Any], join: Callable[..., Any], a: Any, b: Any) -> np.ndarray:
    return A.f32_to_bf16(A.extreme(pick, join)(*(A.bf16_to_f32(np.asarray(x)) for x in (a, b))))


def relu(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Return the function with the modifier .relu: a negative result becomes 0, NaN the canonical NaN."""

    def run(*values: Any) -> np.ndarray:
        bits = np.asarray(function(*values)).view(np.uint16)
        number = wide(bits) if kind == "bf16" else bits.view(F16)
        bits = np.where(np.isnan(number), np.uint16(0x7FFF), np.where(number > 0, bits, np.uint16(0)))
        return bits if kind == "bf16" else bits.view(F16)

    return run


def nan_wins(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of two bfloat16 with the modifier .NaN."""
    return lambda a, b: np.where(np.isnan(wide(a)) | np.isnan(wide(b)), np.uint16(0x7FFF), function(a, b))
