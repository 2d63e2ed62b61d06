"""Arithmetic instructions: this module maps an opcode and its modifiers to the types of the result and of the sources, and to a
NumPy function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from . import arithmetic as A, halves
from .conversions import conversion, rounding_of, with_modifiers
from .directed import directed
from .program import Instruction

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
    "sad": ("t", "t t t", lambda a, b, c: np.where(a > b, a - b, b - a) + c),
    "cnot": ("t", "t", lambda a: (a == 0).astype(a.dtype)),
    "testp": ("pred", "t", None),  # see `A.TESTS`
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
# the instructions whose rounding modes other than to nearest need no fractions
DIRECTED = {*(("f32", op) for op in ("add", "sub", "mul", "fma", "mad")), ("f16", "fma")}
EXACTLY = {"add", "sub", "mul", "div", "rcp", "sqrt", "fma"}
IGNORED = {"nanosleep", "prefetch", "prefetchu", "discard", "applypriority", "brkpt", "pmevent", "griddepcontrol"}
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
    "relu",
    "noftz",
    *A.TESTS,
}


def arithmetic(i: Instruction) -> tuple[str, list[str], Callable] | None:
    """Return (type of the result, types of the sources, function) of an arithmetic instruction of a thread; None if it is
    another kind of instruction, or has modifiers that this machine does not know."""
    op, m, kind = i.opcode, i.modifiers, (types(i) or [""])[-1]
    if op == "cvt":
        return conversion(m, types(i), len(i.operands) - 1) if set(m) - KNOWN <= set(types(i)) else None
    if set(m) - KNOWN - set(types(i)):
        return None
    if kind in ("f16x2", "bf16x2", "bf16") and op != "mov":
        return _halves(op, m, kind)
    if op == "lop3":
        return "b32", ["b32"] * 3, functools.partial(A.looked_up, table=i.operands[4].value)
    if op == "shf":
        return "b32", ["b32", "b32", "u32"], functools.partial(A.funnel, left="l" in m, wrap="wrap" in m)
    if op == "bfind":
        return "u32", [kind], functools.partial(A.highest, shift="shiftamt" in m)
    if op in ("dp4a", "dp2a"):
        first, second = types(i)
        result = "s32" if "s32" in (first, second) else "u32"
        return result, [first, second, result], functools.partial(A.dotted, parts=int(op[2]), upper="hi" in m)
    if op in ("mul24", "mad24") and "sat" not in m:
        function = functools.partial(A.product24, upper="hi" in m)
        return kind, [kind] * (2 if op == "mul24" else 3), lambda a, b, *c: sum(c, function(a, b))
    if (op in FLOATS or op in ("fma", "mad")) and kind in ("f16", "f32", "f64"):
        return _of_floats(op, m, kind)
    if op in ("mul", "mad"):
        return _product(op, m, kind)
    if op not in BITS or ("sat" in m and (op not in ("add", "sub") or kind != "s32")):
        return None
    if "relu" in m and (op not in ("min", "max") or kind != "s32"):
        return None
    result, sources, function = BITS[op]
    if op == "testp":
        function = next(A.TESTS[name] for name in m if name in A.TESTS)
    elif "sat" in m:
        function = functools.partial(A.saturated_sum, subtract=op == "sub")
    elif "relu" in m:
        function = _not_negative(function)
    elif "ftz" in m:  # of abs and neg
        function = with_modifiers(function, m)
    return result.replace("t", kind), _sources(sources, kind), function


def _not_negative(function: Callable) -> Callable:
    """Return a function of integers whose negative results are replaced by 0 (.relu)."""
    return lambda a, b: np.maximum(function(a, b), 0)


def _sources(sources: str, kind: str) -> list[str]:
    return [kind if source == "t" else source for source in sources.split()]


def _of_floats(op: str, m: Sequence[str], kind: str) -> tuple[str, list[str], Callable] | None:
    """Return (type of the result, types of the sources, function) of an instruction on float16, float32 or float64."""
    rounding, dtype = rounding_of(m), TYPES[kind]
    if op in ("fma", "mad"):
        sources, function = "t t t", functools.partial(A.fma, rounding=rounding, dtype=dtype)
        if rounding != "rn" and (kind, op) not in DIRECTED:
            function = directed("fma", rounding, functools.partial(A.fma, dtype=dtype))
    else:
        _, sources, function = FLOATS[op]
        if rounding != "rn" and (kind, op) in DIRECTED:
            function = A.directed(op, rounding)
        elif rounding != "rn" and op in EXACTLY:
            function = directed(op, rounding)
        elif rounding != "rn":
            return None
        elif "approx" in m and (kind != "f64" or "ftz" in m):  # the assembler refines rsqrt.approx.f64 to within 1 ulp
            function = A.approximate(function, dtype)
        elif "NaN" in m:
            function = A.with_nan(function)
    function = with_modifiers(function, m)
    return kind, _sources(sources, kind), halves.relu(function, kind) if "relu" in m else function


def _halves(op: str, m: Sequence[str], kind: str) -> tuple[str, list[str], Callable] | None:
    """Return (type of the result, types of the sources, function) of an instruction on bfloat16 or on pairs."""
    one = halves.element(kind)
    if one == "bf16":
        function = halves.BF16.get(op)
        if function is None or "sat" in m or rounding_of(m) != "rn":
            return None
        function = halves.nan_wins(function) if "NaN" in m else function
        function = halves.relu(function, one) if "relu" in m else function
        count = {"fma": 3, "neg": 1, "abs": 1, "ex2": 1, "tanh": 1}.get(op, 2)
    else:
        found = _of_floats(op, m, one) if op in FLOATS or op == "fma" else None
        if found is None:
            if op not in ("neg", "abs"):
                return None
            found = one, [one], with_modifiers(BITS[op][2], m)
        count, function = len(found[1]), found[2]
    if kind == one:
        return "b16", ["b16"] * count, function
    return "b32", ["b32"] * count, halves.of_pairs(kind, function)


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
    if "sat" in m:  # mad.hi.sat.s32
        return result, [kind, kind, result], lambda a, b, c: A.saturated_sum(function(a, b), c, subtract=False)
    return result, [kind, kind, result], lambda a, b, c: function(a, b) + c
