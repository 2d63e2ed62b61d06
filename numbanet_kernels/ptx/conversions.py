"""The instruction cvt: which function converts between two types, with the rounding of its modifiers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import arithmetic as A, directed, halves
from .program import PtxError

TYPES, WHOLE = A.DTYPES, ("rni", "rzi", "rmi", "rpi")


def rounding_of(m: Sequence[str]) -> str:
    """Return the rounding mode of floats among the modifiers of an instruction; by default "rn"."""
    return next((r for r in A.ROUNDINGS if r in m), "rn")


def with_modifiers(function: Callable, m: Sequence[str]) -> Callable:
    """Return a function that also flushes subnormal numbers and saturates the result, if the modifiers say so."""
    if not {"ftz", "sat"} & set(m):
        return function

    def run(*values: Any) -> Any:
        if "ftz" in m:
            values = tuple(A.flushed(np.asarray(v)) for v in values)
        result = function(*values)
        result = A.saturated(result) if "sat" in m else result
        return A.flushed(result) if "ftz" in m else result

    return run


def conversion(m: Sequence[str], kinds: Sequence[str], sources: int) -> tuple[str, list[str], Callable]:
    """Return (type of the result, types of the sources, function) of cvt with the modifiers `m` and `sources` sources."""
    to, source = kinds[:2]
    if to in halves.PAIRS and sources == 2 and len(kinds) == 2:  # the first source becomes the upper half
        one = _converted(halves.element(to), source, m)
        return "b32", [source] * 2, lambda a, b: halves.joined(np.stack(np.broadcast_arrays(one(b), one(a)), axis=-1))
    if len(kinds) != 2 or source in halves.PAIRS or to in halves.PAIRS:
        raise PtxError(f"cvt.{'.'.join(m)} is not in this machine")
    if to == "tf32":
        return "b32", ["f32"], _to_tf32(m, source)
    return _held(to), [_held(source)], _converted(to, source, m)


def _held(kind: str) -> str:
    return "b16" if kind == "bf16" else kind


def _to_tf32(m: Sequence[str], source: str) -> Callable:
    """Return the function of cvt from float32 to the bits of TF32; raise PtxError if PTX has no such instruction."""
    words = tuple(word for word in m if word not in ("tf32", source))
    if source != "f32" or words not in (("rna",), ("rn",), ("rz",), ("rn", "relu"), ("rz", "relu")):
        raise PtxError(f"cvt.{'.'.join(m)} is not in this machine")

    def run(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        bits = np.where(np.isnan(x), np.uint32(0x7FFFFFFF), A.tf32(x, words[0]).view(np.uint32))
        return np.where(x <= 0, np.uint32(0), bits) if "relu" in words else bits

    return run


def _converted(to: str, source: str, m: Sequence[str]) -> Callable:
    if "ftz" in m:
        return _flushing(_converted(to, source, [word for word in m if word != "ftz"]), source, to)
    if source == "bf16":
        function = _converted(to, "f32", m)
        return lambda x: function(A.bf16_to_f32(np.asarray(x)))
    function = functools.partial(_to_bf16, m=m) if to == "bf16" else _between(to, source, m)
    return halves.relu(function, to) if "relu" in m else function


def _flushing(function: Callable, source: str, to: str) -> Callable:
    """Return the function with the modifier .ftz, which flushes subnormal float32, and no numbers of other types."""

    def run(x: np.ndarray) -> np.ndarray:
        result = function(A.flushed(np.asarray(x)) if source == "f32" else x)
        return A.flushed(np.asarray(result)) if to == "f32" else result

    return run


def _to_bf16(x: np.ndarray, m: Sequence[str]) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype.kind in "iu":
        return halves.f64_to_bf16(_wide(x), rounding_of(m))
    return halves.f64_to_bf16(with_modifiers(lambda y: y, m)(x.astype(np.float64)), rounding_of(m))


def _between(to: str, source: str, m: Sequence[str]) -> Callable:
    """Return the function between types that NumPy has."""
    target, before = TYPES[to], TYPES[source]
    whole = next((r for r in WHOLE if r in m), None)
    if before.kind == "f" and target.kind in "iu":
        return functools.partial(A.to_integer, rounding=whole or "rzi", dtype=target)
    if before.kind in "iu" and target.kind in "iu":
        return functools.partial(A.clipped, dtype=target) if "sat" in m else lambda x: x.astype(target)
    if before.kind in "iu":
        return with_modifiers(functools.partial(from_integers, rounding=rounding_of(m), dtype=target), m)
    if whole:
        return with_modifiers(functools.partial(A.to_integral, rounding=whole), m)
    if target.itemsize < before.itemsize:
        return _narrowing(target, m)
    return with_modifiers(lambda x: x.astype(target), m)


def _narrowing(target: np.dtype, m: Sequence[str]) -> Callable:
    return with_modifiers(lambda x: A.narrowed(np.float64(x), rounding_of(m), target), m)


def from_integers(x: np.ndarray, rounding: str, dtype: np.dtype) -> np.ndarray:
    """Convert integers to floats, rounded once."""
    x = np.asarray(x)
    if rounding == "rn" and dtype.itemsize > 2:
        return x.astype(dtype)
    if dtype.itemsize == 8 and x.dtype.itemsize == 8:
        high, low = _halves(x)
        total = high + low
        return directed.moved(total, np.sign(low - (total - high)), rounding)
    return A.narrowed(_wide(x), rounding, dtype)


def _wide(x: np.ndarray) -> np.ndarray:
    """Convert integers to float64, rounded to odd if they have more than 53 bits."""
    return x.astype(np.float64) if x.dtype.itemsize < 8 else A.odd_sum(*_halves(x))


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the upper and the lower 32 bits of integers, as float64 numbers whose sum is x."""
    return (x >> x.dtype.type(32)).astype(np.float64) * 2.0**32, (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
