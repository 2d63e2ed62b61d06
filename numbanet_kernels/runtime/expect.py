"""Checks of the arguments of operations, before any computation, so that no loop or kernel reads or writes outside an array,
and of the signatures of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from numba.core import sigutils, types
from numba.np import numpy_support

FLOAT32, INT32, BOOL = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.bool_)


def expect(op: str, **arrays: Any) -> dict[str, Any]:
    """Check arrays, each of which is given as name=(array, shape) or name=(array, shape, dtype); an array that is None is
    skipped.

    A shape is a tuple of numbers and of names of lengths, such as ("N", 3); or the name of a whole shape, such as "S"; or None,
    which accepts any shape. A name stands for the same length, or the same shape, everywhere. name=array is short for
    name=(array, "S"); the default dtype is float32.

    Returns
    -------
    dict
        Maps each name of a length or of a shape to its value.

    Raises
    ------
    TypeError
        If an argument is not an array, has another dtype or is not contiguous.
    ValueError
        If the shapes do not fit together.
    """
    return check(op, arrays)


def check(op: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Do the same as `expect`, for arrays in a dict."""
    found: dict[str, Any] = {}
    for name, given in arrays.items():
        if given.__class__ is tuple:
            array, shape = given[0], given[1]
            dtype = given[2] if len(given) > 2 else FLOAT32
        else:
            array, shape, dtype = given, "S", FLOAT32
        if array is None:
            continue
        kind = getattr(array, "dtype", None)
        if (kind is not dtype and kind != dtype) or not (hasattr(array, "flags") and array.flags["C_CONTIGUOUS"]):
            raise TypeError(f"{op}: {name} must be a contiguous {dtype} array, not {_kind(array)}")
        there = array.shape
        if shape.__class__ is str:
            fits = found.setdefault(shape, there) == there
        elif shape is None or shape == there:
            continue
        elif fits := len(shape) == len(there):
            for length, wanted in zip(there, shape):
                if length != (found.setdefault(wanted, length) if wanted.__class__ is str else wanted):
                    fits = False
        if not fits:
            wanted = found[shape] if shape.__class__ is str else tuple(found.get(n, n) for n in shape)
            raise ValueError(_misfit(op, name, str(wanted).replace("'", ""), arrays))
    return found


def shapes(op: str, **specs: str) -> Callable[..., tuple[int, ...]]:
    """Return a check of float32 arrays for operations of every training step, for which the loop of `expect` takes too long.

    Parameters
    ----------
    op : str
        The name of the operation in errors, which are those of `expect`.
    **specs : str
        For each array, a letter for the length of each axis. An array may be None if the ones before it have all its letters.

    Returns
    -------
    callable
        A function that takes the arrays, in this order, and returns the lengths, in the order in which letters first appear.
    """
    known: list[str] = []
    unpacked, tests = [], []
    for name, letters in specs.items():
        kind = f"{name}.dtype is FLOAT32 and {name}.flags['C_CONTIGUOUS']"
        if set(letters) <= set(known):
            tests.append(f"({name} is None or {name}.shape == ({', '.join(letters)},) and {kind})")
            continue
        unpacked.append(f"{', '.join(n + '_' if n in known else n for n in letters)}, = {name}.shape")
        tests += [f"{n}_ == {n}" for n in letters if n in known] + [kind]
        known += [n for n in letters if n not in known]
    arrays, lengths = ", ".join(specs), ", ".join(known)
    given = ", ".join(f"{name!r}: ({name}, {tuple(letters)})" for name, letters in specs.items())
    source = (
        f"def shapes({arrays}):\n    try:\n        {'; '.join(unpacked)}\n        if {' and '.join(tests)}:\n"
        f"            return {lengths},\n    except (AttributeError, TypeError, ValueError):\n        pass\n"
        f"    found = check({op!r}, {{{given}}})\n    return tuple([found[n] for n in {known}])\n"
    )
    scope: dict[str, Any] = {"FLOAT32": FLOAT32, "check": check}
    exec(source, scope)
    return scope["shapes"]


def pair(op: str, name: str, given: Any) -> tuple[Any, Any]:
    """Return `given`, which must be a pair; (None, None) if it is None."""
    if given is None:
        return None, None
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"{op}: {name} is a pair of arrays, not {_kind(given)}")
    return tuple(given)


def _kind(array: Any) -> str:
    if not (hasattr(array, "dtype") and hasattr(array, "flags")):
        return f"a {type(array).__name__}"
    return f"{array.dtype} {array.shape}{'' if array.flags['C_CONTIGUOUS'] else ' in pieces'}"


def _misfit(op: str, name: str, wanted: str, arrays: dict[str, Any]) -> str:
    arrays = {other: given[0] if type(given) is tuple else given for other, given in arrays.items()}
    shapes = {other: array.shape for other, array in arrays.items() if hasattr(array, "shape")}
    if len(shapes) == 1:
        return f"{op}: {name} {shapes[name]} does not match {wanted}"
    return f"{op}: {', '.join(f'{other} {shape}' for other, shape in shapes.items())} do not match: {name} must be {wanted}"


# --- signatures of kernels --------------------------------------------------------------------------------------------
def kinds_of(kernel: str, signature: str, parameters: Collection[str]) -> tuple[Any, ...]:
    """Return Numba's types of the arguments of a kernel; raise TypeError if its signature cannot be read, or does not have a
    type for each of its parameters.
    """
    begin, example = f"@kernel: the signature of {kernel}, {signature!r},", 'such as "void(f4[:, ::1], i4)"'
    try:
        kinds, result = sigutils.normalize_signature(signature)
    except Exception as error:  # Numba evaluates the text, which may raise anything
        raise TypeError(f"{begin} cannot be read ({error}): write one {example}") from None
    if result not in (None, types.void):
        raise TypeError(f"{begin} says that it returns {result}, and kernels return nothing: write one {example}")
    if len(kinds) != len(parameters):
        names = ", ".join(parameters)
        raise TypeError(f"{begin} has {len(kinds)} types, and the function has {len(parameters)} parameters, {names}")
    return kinds


def declared(name: str, kind: Any) -> Iterator[tuple[str, str, int | None, str]]:
    """Yield the entries of `Kernel.arguments` for an argument of this type."""
    if isinstance(kind, types.BaseTuple):
        for k, part in enumerate(kind):
            yield from declared(f"{name}[{k}]", part)
    elif isinstance(kind, types.Array):
        yield name, str(numpy_support.as_dtype(kind.dtype)), kind.ndim, kind.layout
    else:
        yield name, str(numpy_support.as_dtype(kind)), None, ""
