"""Arithmetic of PTX on NumPy arrays: one element per thread. Rounding is that of the instruction, not that of the host.

float32 +, -, x, /, sqrt to nearest are NumPy's own. Other rounding modes, and fma with its single rounding, are computed in
float64, which holds the product of two float32 exactly, and rounded there *to odd*: an inexact result becomes the odd one of
its two neighbours, so that the second rounding, to float32, sees on which side the exact value is (Boldo & Melquiond 2008:
correct in every mode if 53 >= 24 + 2 bits). Approximate functions of the GPU (ex2, rcp, …) are rounded to nearest here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

DTYPES = {
    **{
        f"{kind}{bits}": np.dtype(f"{code}{bits // 8}")
        for kind, code in (("b", "u"), ("u", "u"), ("s", "i"))
        for bits in (8, 16, 32, 64)
    },
    **{
        name: np.dtype(code)
        for name, code in (
            ("f16", "f2"),
            ("bf16", "u2"),
            ("f16x2", "u4"),
            ("bf16x2", "u4"),
            ("f32", "f4"),
            ("f64", "f8"),
            ("pred", "?"),
        )
    },
}
BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
ROUNDINGS = ("rn", "rz", "rm", "rp")
# a float64 has 29 more bits than a float32: the lowest one, a mask of all of them, and the highest one
ONE, LOWER_BITS, HALFWAY = np.uint64(1), np.uint64((1 << 29) - 1), np.uint64(1 << 28)
# a float64 with the bits b is subnormal as float32, and not 0, if 2 b - 1 is below this in unsigned arithmetic
SUBNORMAL = np.uint64((1023 - 126 << 53) - 1)
UPPER_HALF = np.uint64(0xFFFFFFFF << 32)
# faster functions for fma to nearest, by dtype, with the same results except for the bits of NaN; `runtime.fused` compiles them
FUSED: dict[np.dtype, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {}


# --- rounding ---------------------------------------------------------------------------------------------------------
def odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a + b in float64, rounded to odd."""
    total, error = _two_sum(a, b)
    # the bit patterns of adjacent floats differ by one
    bits, away = total.view(np.int64), np.where((error > 0) == (total > 0), 1, -1)
    return (bits + away * ((error > 0) | (error < 0)) * (bits & 1 == 0)).view(np.float64)


def narrowed(x: np.ndarray, rounding: str = "rn", dtype: np.dtype = DTYPES["f32"]) -> np.ndarray:
    """Convert float64 to float32 (or float16), rounded to nearest, towards 0, down or up."""
    y = x.astype(dtype)
    if rounding == "rn":
        return y
    back = y.astype(np.float64)
    if rounding == "rz":
        wrong, towards = np.abs(back) > np.abs(x), np.zeros((), dtype)
    elif rounding == "rm":
        wrong, towards = back > x, np.full((), -np.inf, dtype)
    else:
        wrong, towards = back < x, np.full((), np.inf, dtype)
    return np.where(wrong, np.nextafter(y, towards), y)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray, rounding: str = "rn", dtype: np.dtype = DTYPES["f32"]) -> np.ndarray:
    """Return a b + c with a single rounding; for float64 it can only be to nearest."""
    if rounding == "rn" and dtype in FUSED:
        return FUSED[dtype](a, b, c)
    if dtype == np.float64:
        return _fma64(*np.broadcast_arrays(a, b, c))
    product, c = np.float64(a) * np.float64(b), np.float64(c)
    if rounding == "rn" and dtype == np.float32 and not _ties(total := product + c):
        return total.astype(dtype)
    return narrowed(_signed_zero(odd_sum(product, c), product, c, rounding), rounding, dtype)


def _signed_zero(total: np.ndarray, a: np.ndarray, b: np.ndarray, rounding: str) -> np.ndarray:
    """Return the sum of a and b with the sign that zero has in a rounding mode: rounded down, x - x is -0."""
    return np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total) if rounding == "rm" else total


def _ties(x: np.ndarray) -> bool:
    """Return True if a float64 may be halfway between two float32: only then does the earlier rounding matter."""
    bits = x.view(np.uint64)
    # counted instead of any(), which takes as long as the comparison of a thousand numbers
    return bool(np.count_nonzero(bits & LOWER_BITS == HALFWAY) or np.count_nonzero((bits << ONE) - ONE < SUBNORMAL))


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)  # Knuth's two-sum: a + b = total + error exactly


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Veltkamp's split of a float64 into two halves of its bits
    (a1, a0), (b1, b0) = ((t - (t - x), x - (t - (t - x))) for x in (a, b) for t in [x * (2.0**27 + 1)])
    product = a * b
    return product, ((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0  # Dekker's product: a b = product + error exactly


def _fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a b + c in float64, rounded once (Boldo & Melquiond 2008); with Python's Fraction if a step could overflow."""
    # the result if an operand is zero, infinite or NaN; a finite product is not infinite
    result = np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(c), c, a * b + c)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0) & (c != 0)
    usual = finite & (np.abs(c) < 2.0**1000)
    for x in (a, b):
        usual &= (np.abs(x) > 2.0**-480) & (np.abs(x) < 2.0**480)
    product, low = _two_product(*(np.where(usual, x, 1.0) for x in (a, b)))
    t, t_low = _two_sum(c, low)
    v, v_low = _two_sum(product, t)
    result = np.where(usual, v + odd_sum(t_low, v_low), result)
    for i in np.flatnonzero(finite & ~usual):
        exact = Fraction(a[i]) * Fraction(b[i]) + Fraction(c[i])
        try:
            result[i] = float(exact)
        except OverflowError:
            result[i] = math.inf if exact > 0 else -math.inf
    return result


def directed(operation: str, rounding: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the function for add, sub or mul of float32 with a rounding mode other than to nearest."""

    def total(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _signed_zero(odd_sum(a, b), a, b, rounding)

    exact = {"add": total, "sub": lambda a, b: total(a, -b), "mul": lambda a, b: a * b}[operation]
    return lambda a, b: narrowed(exact(np.float64(a), np.float64(b)), rounding)


def flushed(x: np.ndarray) -> np.ndarray:
    """Replace subnormal numbers by 0 of the same sign (.ftz)."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def saturated(x: np.ndarray) -> np.ndarray:
    """Clamp to [0, 1]; NaN becomes 0 (.sat)."""
    return np.where(np.isnan(x), x.dtype.type(0), np.clip(x, x.dtype.type(0), x.dtype.type(1)))


def tf32(x: np.ndarray, rounding: str = "rz") -> np.ndarray:
    """Return float32 numbers with 10 bits of mantissa. The default mode truncates them, as mma does with its operands; "rna"
    and "rn" round to nearest: of ties, "rna" takes the one away from 0, and "rn" the even one.
    """
    bits = x.view(np.uint32)
    if rounding != "rz":
        half = np.uint32(0x1000) if rounding == "rna" else np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
        bits = np.where(np.isfinite(x), bits + half, bits)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """Convert bf16, the upper half of the bits of a float32, to float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(x: np.ndarray) -> np.ndarray:
    """Round float32 to bf16, to nearest, ties to even."""
    bits = np.asarray(x).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (np.where(np.isnan(x), np.uint32(0x7FFFFFFF), rounded) >> np.uint32(16)).astype(np.uint16)


# --- integers ---------------------------------------------------------------------------------------------------------
def divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b, rounded towards 0; if b is 0, all bits of the result are set."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "i":
        minus_one = safe == -1
        q = np.floor_divide(a, np.where(minus_one, a.dtype.type(1), safe))
        q = q + ((q < 0) & (q * safe != a)).astype(a.dtype)  # from rounding down to rounding towards 0
        q = np.where(minus_one, np.negative(a), q)
    else:
        q = a // safe
    return np.where(b == 0, ~np.zeros((), b.dtype), q)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a - (a / b) b, where / rounds towards 0, so that the result has the sign of a; if b is 0, return a."""
    return np.where(b == 0, a, a - divided(a, b) * b)


def high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the upper half of the bits of the product a b."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return (a.astype(wide) * b.astype(wide) >> wide.type(bits)).astype(a.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x, y = a.view(np.uint64), b.view(np.uint64)
    x1, x0, y1, y0 = x >> half, x & low, y >> half, y & low
    middle = x1 * y0 + (x0 * y0 >> half)
    upper = x1 * y1 + (middle >> half) + (x0 * y1 + (middle & low) >> half)
    if a.dtype.kind == "i":  # the product of signed numbers in two's complement
        upper = upper - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return upper.view(a.dtype)


def field(a: np.ndarray, position: np.ndarray, length: np.ndarray) -> np.ndarray:
    """bfe: return `length` bits of a from `position` on; if a is signed, the bits above repeat the sign."""
    width = 8 * a.dtype.itemsize
    position, length = (np.uint64(x) & np.uint64(255) for x in (position, length))
    wide = a.astype(np.int64 if a.dtype.kind == "i" else np.uint64)
    shifted = wide >> np.minimum(position, np.uint64(63)).astype(wide.dtype)
    room = np.minimum(length, np.uint64(width) - np.minimum(position, np.uint64(width)))
    spare = (np.uint64(64) - np.maximum(room, np.uint64(1))).astype(wide.dtype)
    inside = shifted << spare >> spare
    beyond = np.where(wide < 0, wide.dtype.type(-1), wide.dtype.type(0)) if a.dtype.kind == "i" else wide.dtype.type(0)
    empty = wide.dtype.type(0)
    return np.where(length == 0, empty, np.where(room == 0, beyond, inside)).astype(a.dtype)


def inserted(a: np.ndarray, b: np.ndarray, position: np.ndarray, length: np.ndarray) -> np.ndarray:
    """bfi: return b with `length` bits from `position` on replaced by the low bits of a."""
    position, length = (np.minimum(np.uint64(x) & np.uint64(255), np.uint64(64)) for x in (position, length))
    ones = np.where(length == 64, ~np.uint64(0), (np.uint64(1) << length) - np.uint64(1))
    mask = ones << position
    return ((np.uint64(b) & ~mask) | (np.uint64(a) << position & mask)).astype(a.dtype)


def funnel(a: np.ndarray, b: np.ndarray, amount: np.ndarray, left: bool, wrap: bool) -> np.ndarray:
    """shf: shift the 64 bits of b (upper half) and a left or right; return the upper half of the result if `left`, else the
    lower half. The amount is taken modulo 32 if `wrap`, else it is at most 32.
    """
    amount = np.uint64(amount)
    amount = amount & np.uint64(31) if wrap else np.minimum(amount, np.uint64(32))
    both = np.uint64(b) << np.uint64(32) | np.uint64(a)
    return (both << amount >> np.uint64(32) if left else both >> amount).astype(np.uint32)


def permuted(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """prmt: return four of the eight bytes of b and a. Each byte is chosen by four bits of the selector: three are its number;
    if the fourth is set, the sign of the byte is repeated instead.
    """
    both, result = np.uint64(b) << np.uint64(32) | np.uint64(a), np.uint32(0)
    for i in range(4):
        nibble = np.uint64(selector) >> np.uint64(4 * i) & np.uint64(15)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        byte = np.where(nibble & np.uint64(8), np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0)), byte)
        result = result | (byte << np.uint64(8 * i)).astype(np.uint32)
    return result


def looked_up(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: int) -> np.ndarray:
    """lop3: return a function of the bits of a, b and c; its truth table has eight bits."""
    result = a.dtype.type(0)
    for i in range(8):
        if table >> i & 1:
            result = result | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return result


def leading_zeros(a: np.ndarray) -> np.ndarray:
    """clz: return the number of leading zeros."""
    n, bits = np.full(np.shape(a), 8 * a.dtype.itemsize, np.uint32), a.copy()
    for _ in range(8 * a.dtype.itemsize):
        n -= (bits != 0).astype(np.uint32)
        bits = bits >> bits.dtype.type(1)
    return n


def highest(a: np.ndarray, shift: bool) -> np.ndarray:
    """bfind: return the position of the highest bit that is set or, if `shift`, its distance from the top. For negative numbers
    it is the highest bit that is not set.
    """
    zeros = leading_zeros(np.where(a < 0, ~a, a))
    bits = 8 * a.dtype.itemsize
    return np.where(zeros == bits, np.uint32(0xFFFFFFFF), zeros if shift else np.uint32(bits - 1) - zeros)


def reversed_bits(a: np.ndarray) -> np.ndarray:
    """brev: return the bits in reversed order."""
    result, one = np.zeros_like(a), a.dtype.type(1)
    for i in range(8 * a.dtype.itemsize):
        result = result << one | a >> a.dtype.type(i) & one
    return result


def dotted(a: np.ndarray, b: np.ndarray, c: np.ndarray, parts: int, upper: bool) -> np.ndarray:
    """dp4a: return c plus the scalar product of the four bytes of a and of b; dp2a: of the two halves of a with the two lower
    or upper bytes of b.
    """

    def split(x: np.ndarray, count: int) -> np.ndarray:
        kind = np.dtype(f"{x.dtype.kind}{4 // count}")
        return np.ascontiguousarray(np.atleast_1d(x)).view(kind).reshape(-1, count).astype(np.int64)

    left, right = split(a, parts), split(b, 4)
    if parts == 2:
        right = right[:, 2:] if upper else right[:, :2]
    return ((left * right).sum(axis=1) + c).astype(c.dtype)


def product24(a: np.ndarray, b: np.ndarray, upper: bool) -> np.ndarray:
    """mul24: return the lower 32 bits, or the upper 32 of 48 bits, of the product of the lower 24 bits of a and b."""
    eight = a.dtype.type(8)
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    product = np.multiply(*((x << eight >> eight).astype(wide) for x in (a, b)))
    return (product >> wide(16) if upper else product).astype(a.dtype)


def saturated_sum(a: np.ndarray, b: np.ndarray, subtract: bool) -> np.ndarray:
    """add.sat and sub.sat: return a + b or a - b of int32, clamped to the range of int32."""
    wide = np.int64(a) - np.int64(b) if subtract else np.int64(a) + np.int64(b)
    return clipped(wide, np.dtype(np.int32))


# --- floats -----------------------------------------------------------------------------------------------------------
def extreme(pick: Callable[..., np.ndarray], join: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return the function for min or max. Of NaN and a number the result is the number. -0 is below +0, so `join` combines the
    signs of two zeros by "or" for min, and by "and" for max.
    """

    def of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        bits = BITS[a.dtype.itemsize]
        return np.where((a == 0) & (b == 0), join(a.view(bits), b.view(bits)).view(a.dtype), pick(a, b))

    return of


def with_nan(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return the function with the modifier .NaN: of NaN and a number, the result is NaN."""
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), function(a, b))


def clipped(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert integers to another integer type, clamped to its range."""
    to, of = np.iinfo(dtype), np.iinfo(x.dtype)
    return np.clip(x, max(to.min, of.min), min(to.max, of.max)).astype(dtype)


def to_integer(x: np.ndarray, rounding: str, dtype: np.dtype) -> np.ndarray:
    """Convert floats to integers in the rounding mode rni, rzi, rmi or rpi, clamped to the range of the type. NaN becomes the
    upper bit alone if a float64 is converted, or if the integers have 64 bits; else 0.
    """
    x = np.asarray(x)
    nan, most = np.isnan(x), np.iinfo(dtype)
    of_nan = 1 << 8 * dtype.itemsize - 1 if x.dtype.itemsize == 8 or dtype.itemsize == 8 else 0
    x = to_integral(np.float64(x), rounding)
    above, below = x >= float(most.max), x <= float(most.min)
    inside = np.where(above | below | nan, 0.0, x).astype(dtype)
    clamped = np.where(above, dtype.type(most.max), np.where(below, dtype.type(most.min), inside))
    return np.where(nan, np.array(of_nan, f"u{dtype.itemsize}").view(dtype), clamped)


def to_integral(x: np.ndarray, rounding: str) -> np.ndarray:
    """Return x rounded to a whole number, in the mode rni (ties to even), rzi, rmi or rpi."""
    return {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding](x)


def approximate(
    function: Callable[[np.ndarray], np.ndarray], dtype: np.dtype = DTYPES["f32"]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of the GPU's special function unit, which is computed in float64 here. The unit gives the upper half of
    a float64; the lower one is 0.
    """
    if dtype.itemsize < 8:
        return lambda *values: function(*map(np.float64, values)).astype(dtype)

    def of(*values: np.ndarray) -> np.ndarray:
        exact = np.asarray(function(*values))
        rounded = (exact.view(np.uint64) + np.uint64(1 << 31) & UPPER_HALF).view(np.float64)
        return np.where(np.isfinite(exact), rounded, exact)

    return of


TESTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of testp
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
    "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
}
