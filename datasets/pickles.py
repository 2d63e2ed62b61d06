"""Pickles: parse a pickle as data, without calling any function that it names.

A pickle is a program for a small stack machine. This machine knows the instructions that Python 2 wrote for dicts, lists,
strings, numbers and NumPy arrays (protocol 2). An instruction that would call a function pushes a `Call` on the stack instead.
A pickle that names any function but the three that NumPy arrays need is refused. So no code in a file can run.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Name:
    """A function or class that a pickle names, written "module name"."""

    name: str


@dataclasses.dataclass(eq=False)
class Call:
    """A call that a pickle contains: function(*arguments), after which the result's __setstate__(state) would be called."""

    function: Any
    arguments: Any
    state: Any = None


_NAMES = ("numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype")
_MARK = object()
_VALUES = ("BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING")
_CONSTANTS = {"NONE": None, "NEWFALSE": False, "NEWTRUE": True, "MARK": _MARK}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def parse_pickle(content: bytes, source: object) -> Any:
    """Parse a pickle of protocol 2: its object, with byte strings as str (Latin-1) and NumPy arrays as `Call`.

    `uint8_array` converts such a `Call` to an array.

    Parameters
    ----------
    content : bytes
        The whole file.
    source : path or str
        The file, for error messages.

    Raises
    ------
    ValueError
        If `content` is not one complete pickle, or if it has an instruction or names a function that plain data do not need.
    """
    import pickletools  # the command line, which imports all loaders, starts sooner without it

    stack: list[Any] = []
    memo: dict[int, Any] = {}
    position = 0  # of the current instruction
    try:
        for code, argument, position in pickletools.genops(content):  # noqa: B007  the message below names it
            if code.name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif code.name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif code.name not in ("PROTO", "STOP"):
                _do(code.name, argument, stack)
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{source}: a pickle of plain data (Python 2, protocol 2) expected, found {len(content)} bytes that "
            f"are not valid from byte {position} on: {error}"
        ) from error
    if len(stack) != 1 or position + 1 != len(content):
        raise ValueError(
            f"{source}: one pickle of {len(content)} bytes expected, found its end at byte {position} and "
            f"{len(stack)} values in it"
        )
    return stack[0]


def _do(name: str, argument: Any, stack: list[Any]) -> None:
    """Execute one instruction; ValueError if plain data do not need it."""
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name in _TUPLES:
        stack.append(tuple(_popped(stack, _TUPLES[name])))
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name in ("APPEND", "APPENDS", "SETITEMS"):
        _fill(name, stack)
    elif name == "GLOBAL":
        if argument not in _NAMES:
            raise ValueError(f"the pickle names the function {argument!r}")
        stack.append(Name(argument))
    elif name == "REDUCE":
        stack.append(Call(*_popped(stack, 2)))
    elif name == "BUILD":
        (state,) = _popped(stack, 1)
        _top(stack, Call).state = state
    else:
        raise ValueError(f"the pickle has the instruction {name}")


def _fill(name: str, stack: list[Any]) -> None:
    """Execute APPEND, APPENDS or SETITEMS: pop values, and add them to the list or dict below them on the stack."""
    if name == "APPEND":
        _top(stack[:-1], list).append(stack.pop())
        return
    items = _since_mark(stack)
    if name == "APPENDS":
        _top(stack, list).extend(items)
        return
    if not all(isinstance(key, str) for key in items[::2]):
        raise ValueError("a dict has keys that are not strings")
    _top(stack, dict).update(zip(items[::2], items[1::2], strict=True))


def _popped(stack: list[Any], count: int) -> list[Any]:
    """Pop `count` values; return them in the order in which they were pushed."""
    if len(stack) < count:
        raise ValueError(f"{count} values expected, found {len(stack)}")
    values = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return values


def _since_mark(stack: list[Any]) -> list[Any]:
    """Pop the values above the last mark, and the mark; return the values."""
    count = stack[::-1].index(_MARK)
    values = _popped(stack, count)
    stack.pop()
    return values


def _top(stack: list[Any], kind: type) -> Any:
    """The top of the stack, which must be of type `kind`."""
    if not stack or type(stack[-1]) is not kind:
        raise ValueError(f"a {kind.__name__} expected, found {type(stack[-1]).__name__ if stack else 'nothing'}")
    return stack[-1]


# --- arrays -----------------------------------------------------------------------------------------------------------
def uint8_array(value: Any, source: object) -> np.ndarray:
    """Convert the `Call` by which `parse_pickle` represents a NumPy array to a read-only uint8 array.

    Raises
    ------
    ValueError
        If the value is not an array, or not one of uint8 in C order.
    """
    match value:
        case Call(
            Name("numpy.core.multiarray _reconstruct"),
            (Name("numpy ndarray"), (0,), "b"),
            (1, (*shape,), Call(Name("numpy dtype"), ("u1", 0, 1)), False, str(values)),
        ):
            if all(type(n) is int and n >= 0 for n in shape) and len(values) == math.prod(shape):
                return np.frombuffer(values.encode("latin-1"), np.uint8).reshape(shape)
            raise ValueError(f"{source}: an array of shape {tuple(shape)} expected, found {len(values)} bytes")
    raise ValueError(
        f"{source}: an array of uint8 in C order expected, found "
        f"{'another one' if isinstance(value, Call) else type(value).__name__}"
    )
