"""What the source of a kernel says of its shared arrays, so that errors can name them."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from ..ptx.program import Program
from .faults import Array

_NAME = re.compile(r"_cudapy_smem_(\d+)")


def shared_arrays(program: Program, function: Callable[..., Any] | None, kinds: dict[str, Any], dynamic: int) -> list[Array]:
    """Return the shared arrays of a kernel, with addresses in shared memory; [] if they are not as many as in its source.

    `kinds` holds Numba's types of its variables, and `dynamic` is the bytes of dynamic shared memory of the launch.
    """
    names = sorted(filter(_NAME.fullmatch, {*program.shared, *program.dynamic}), key=lambda name: int(_NAME.fullmatch(name)[1]))
    try:
        declared = list(_declared(function))
    except (OSError, TypeError, SyntaxError):  # there is no source
        return []
    if len(declared) != len(names):
        return []
    found = []
    for variable, (name, shape) in zip(names, declared):
        kind = kinds.get(name)
        dtype = f"{getattr(kind, 'dtype', '')}"
        width = getattr(getattr(kind, "dtype", None), "bitwidth", 0) // 8
        place = program.shared[variable] if variable in program.shared else None
        start, size = (place.offset, place.size) if place else (program.next("shared", 16), dynamic)
        if not width:
            continue
        lengths = _lengths(function, shape)
        if lengths is None or math.prod(lengths) * width != size:
            lengths = (size // width,)
        strides = [width * math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
        found.append(Array(name, start, list(lengths), strides, dtype, width))
    return found


def _declared(function: Any) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, expression of the shape) of each shared array of a function, in the order of its source."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for name, made in zip(target.elts, value.elts) if both else [(target, value)]:  # type: ignore[attr-defined]
            if isinstance(made, ast.Call) and isinstance(name, ast.Name) and ast.unparse(made.func).endswith("shared.array"):
                yield name.id, made.args[0] if made.args else made.keywords[0].value


def _lengths(function: Any, shape: ast.expr) -> tuple[int, ...] | None:
    """Return the shape that an expression of constants has; None if it is another one."""
    if any(isinstance(node, ast.Call) for node in ast.walk(shape)):
        return None
    seen = inspect.getclosurevars(function)
    known = {**vars(builtins), **seen.globals, **seen.nonlocals}
    try:
        found = eval(compile(ast.Expression(shape), "shape", "eval"), dict(known))
        return tuple(int(n) for n in found) if isinstance(found, (tuple, list)) else (int(found),)
    except Exception:
        return None
