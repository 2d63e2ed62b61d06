"""Exact rounding with Python's fractions, to compare the PTX machine with."""

import math
from fractions import Fraction

import numpy as np

# bits of the significand, least and largest exponent of normal numbers
FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
MODES = ("rn", "rz", "rm", "rp")
DTYPES = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}


def rounded(x, kind, mode):
    """An exact value (a Fraction, or a float that is not finite) in a format, as a Python float."""
    if not isinstance(x, Fraction):
        return x
    if x == 0:
        return 0.0
    bits, least, most = FORMATS[kind]
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    quantum = Fraction(2) ** (max(exponent, least) - bits + 1)
    steps = {"rz": math.trunc, "rm": math.floor, "rp": math.ceil, "rn": round}[mode](x / quantum)  # round: ties to even
    found = steps * quantum
    if abs(found) >= Fraction(2) ** (most + 1):
        outward = mode == "rn" or mode == ("rp" if x > 0 else "rm")
        largest = float((Fraction(2) ** bits - 1) * Fraction(2) ** (most - bits + 1))
        return math.copysign(math.inf if outward else largest, -1 if x < 0 else 1)
    return math.copysign(float(found), -1 if x < 0 else 1)


def floats(bits, kind):
    """Numbers of a format as float64; those of bf16 are given by their bits."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return ((bits.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else bits).astype(np.float64)


def some(kind, n=400, seed=0):
    """Numbers of a format: all bit patterns alike, some of like size, and special ones."""
    rng, dtype = np.random.default_rng(seed), np.dtype(DTYPES[kind])
    pattern = np.frombuffer(rng.bytes(n * dtype.itemsize), dtype)
    if kind == "bf16":
        near = (rng.standard_normal(n).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        special = np.array([0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 1, 0x8001, 0x7F7F, 0xFF7F, 0x0080], np.uint16)
    else:
        near, info = rng.standard_normal(n).astype(dtype), np.finfo(dtype)
        special = [
            0.0,
            -0.0,
            np.inf,
            -np.inf,
            np.nan,
            info.smallest_subnormal,
            -info.smallest_subnormal,
            info.max,
            info.min,
            info.tiny,
        ]
    return np.concatenate([pattern, near, np.array(special, dtype)])


def expected(function, kind, mode, *sources, of=None):
    """function(fractions) of each, rounded once to a format; where it has no such value, what float64 gives."""

    def one(*values):
        try:
            return rounded(function(*map(Fraction, values)), kind, mode)
        except (OverflowError, ValueError, ZeroDivisionError):  # not finite
            with np.errstate(all="ignore"):
                return float(function(*map(np.float64, values)))

    return np.array([one(*map(float, v)) for v in zip(*(floats(s, of or kind) for s in sources), strict=True)])
