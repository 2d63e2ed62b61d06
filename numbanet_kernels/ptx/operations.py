"""Arithmetic instructions: this module maps an opcode and its modifiers to the types of the result and of the sources, and to a
NumPy function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import arithmetic as A
from .parse import Instruction, PtxError

TYPES = A.DTYPES


def types(instruction: Instruction) -> list[str]:
    """Return the modifiers of an instruction that name types, in order."""
    return [m for m in instruction.modifiers if m in TYPES or m == "tf32"]


def _shift(shift: Callable) -> Callable:
    """Return a shift by at most the number of bits; NumPy needs an amount of the same type."""
    return lambda a, n: shift(a, np.minimum(n, 8 * a.dtype.itemsize).astype(a.dtype))


COMPARISONS = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "ne": lambda a, b: (a != b) & (a == a) & (b == b),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
    **{
        f"{name}u": lambda a, b, f=f: f(a, b) | (a != a) | (b != b)
        for name, f in (
            ("eq", np.equal),
            ("ne", np.not_equal),
            ("lt", np.less),
            ("le", np.less_equal),
            ("gt", np.greater),
            ("ge", np.greater_equal),
        )
    },
}
LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
# maps an opcode to (type of the result, types of the sources, function); t is the last type of the instruction
SAME = ("t", "t t")
BITS = {
    **{name: (*SAME, f) for name, f in LOGIC.items()},
    "add": (*SAME, np.add),
    "sub": (*SAME, np.subtract),
    "div": (*SAME, A.divided),
    "rem": (*SAME, A.remainder),
    "min": (*SAME, np.minimum),
    "max": (*SAME, np.maximum),
    "neg": ("t", "t", np.negative),
    "abs": ("t", "t", np.abs),
    "not": ("t", "t", np.invert),
    "mov": ("t", "t", lambda a: a),
    "shl": ("t", "t u32", _shift(np.left_shift)),
    "shr": ("t", "t u32", _shift(np.right_shift)),
    "bfe": ("t", "t u32 u32", A.field),
    "bfi": ("t", "t t u32 u32", A.inserted),
    "prmt": ("b32", "b32 b32 u32", A.permuted),
    "popc": ("u32", "t", lambda a: np.bitwise_count(a).astype(np.uint32)),
    "clz": ("u32", "t", A.leading_zeros),
    "brev": ("t", "t", A.reversed_bits),
    "selp": ("t", "t t pred", lambda a, b, p: np.where(p, a, b)),
    "copysign": (*SAME, lambda a, b: np.copysign(b, a)),
}
FLOATS = {
    "add": (*SAME, np.add),
    "sub": (*SAME, np.subtract),
    "mul": (*SAME, np.multiply),
    "div": (*SAME, np.divide),
    "min": (*SAME, A.extreme(np.fmin, np.bitwise_or)),
    "max": (*SAME, A.extreme(np.fmax, np.bitwise_and)),
    **{
        name: ("t", "t", f)
        for name, f in (
            ("ex2", np.exp2),
            ("lg2", np.log2),
            ("rsqrt", lambda x: 1 / np.sqrt(x)),
            ("rcp", lambda x: 1 / x),
            ("sqrt", np.sqrt),
            ("sin", np.sin),
            ("cos", np.cos),
            ("tanh", np.tanh),
        )
    },
}
# the instructions that support rounding modes other than to nearest
DIRECTED = {*(("f32", op) for op in ("add", "sub", "mul", "fma", "mad")), ("f16", "fma")}
IGNORED = {"membar", "fence", "nanosleep", "prefetch", "discard"}
KNOWN = {
    *A.ROUNDINGS,
    "rni",
    "rzi",
    "rmi",
    "rpi",
    "rna",
    "approx",
    "full",
    "ftz",
    "sat",
    "NaN",
    "lo",
    "hi",
    "wide",
    "l",
    "r",
    "wrap",
    "clamp",
    "shiftamt",
}


def arithmetic(i: Instruction) -> tuple[str, list[str], Callable] | None:
    """Return (type of the result, types of the sources, function) of a per-thread instruction; None for others."""
    op, m, kind = i.opcode, i.modifiers, (types(i) or [""])[-1]
    if kind in ("f16x2", "bf16x2", "bf16") and op not in ("mov", "cvt") or set(m) - KNOWN - set(types(i)):
        return None
    if op == "cvt":
        return _conversion(m, types(i))
    if op == "lop3":
        return "b32", ["b32"] * 3, functools.partial(A.looked_up, table=i.operands[4].value)
    if op == "shf":
        return "b32", ["b32", "b32", "u32"], functools.partial(A.funnel, left="l" in m, wrap="wrap" in m)
    if op == "bfind":
        return "u32", [kind], functools.partial(A.highest, shift="shiftamt" in m)
    if kind in ("f16", "f32", "f64") and _rounding(m) != "rn" and (kind, op) not in DIRECTED:
        return None
    if op in ("fma", "mad") and kind in ("f16", "f32", "f64"):
        return kind, [kind] * 3, _float(functools.partial(A.fma, rounding=_rounding(m), dtype=TYPES[kind]), m)
    if kind in ("f16", "f32", "f64") and op in FLOATS:
        result, sources, function = FLOATS[op]
        if kind == "f32" and _rounding(m) != "rn":
            function = A.directed(op, _rounding(m))
        elif "approx" in m:
            function = A.approximate(function)
        elif "NaN" in m:
            function = A.with_nan(function)
        function = _float(function, m)
    elif op in ("mul", "mad"):
        return _product(op, m, kind)
    elif op in BITS and "sat" not in m:
        result, sources, function = BITS[op]
    else:
        return None
    return result.replace("t", kind), [kind if source == "t" else source for source in sources.split()], function


def _rounding(m: Sequence[str]) -> str:
    return next((r for r in A.ROUNDINGS if r in m), "rn")


def _product(op: str, m: Sequence[str], kind: str) -> tuple[str, list[str], Callable]:
    """Return (type of the result, types of the sources, function) for mul and mad of integers. The result is the lower half,
    the upper half, or the whole product.
    """
    result, function = kind, np.multiply
    if "hi" in m:
        function = A.high
    elif "wide" in m:
        result = f"{kind[0]}{2 * int(kind[1:])}"

        def function(a, b):
            return a.astype(TYPES[result]) * b.astype(TYPES[result])

    if op == "mul":
        return result, [kind, kind], function
    return result, [kind, kind, result], lambda a, b, c: function(a, b) + c


def _float(function: Callable, m: Sequence[str]) -> Callable:
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


def _conversion(m: Sequence[str], kinds: Sequence[str]) -> tuple[str, list[str], Callable]:
    to, source = kinds[:2]
    if "f16x2" in kinds or len(kinds) != 2 or (_rounding(m) != "rn" and TYPES[source].kind in "iu"):
        raise PtxError(f"cvt.{'.'.join(m)} is not in this machine")
    if to == "tf32":
        return "b32", ["f32"], lambda x: A.tf32(x, "rna" if "rna" in m else "rz").view(np.uint32)
    if to == "bf16":
        return "b16", [source], A.f32_to_bf16
    if source == "bf16":
        return to, ["b16"], A.bf16_to_f32
    target, before = TYPES[to], TYPES[source]
    whole = next((r for r in ("rni", "rzi", "rmi", "rpi") if r in m), None)
    if before.kind == "f" and target.kind in "iu":
        return to, [source], functools.partial(A.to_integer, rounding=whole or "rzi", dtype=target)
    if before.kind in "iu" and target.kind in "iu" and "sat" in m:
        return to, [source], functools.partial(A.clipped, dtype=target)
    if before.kind == "f" and whole:
        return to, [source], _float(functools.partial(A.to_integral, rounding=whole), m)
    if before.kind == "f" and target.itemsize < before.itemsize:
        return to, [source], _float(lambda x: A.narrowed(np.float64(x), _rounding(m), target), m)
    return to, [source], _float(lambda x: x.astype(target), m if target.kind == "f" else ())
