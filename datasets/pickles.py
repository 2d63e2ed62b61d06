"""Pickles read as data: what a pickle would call is written down, and nothing is called.

A pickle is a program for a small stack machine. This machine knows the instructions that Python 2 wrote for dicts, lists,
strings, numbers and NumPy arrays (protocol 2). Where the program would call a function, the stack gets a `Call`, and a program
that names any function but the three of an array is refused. So no code of a file can run.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Name:
    """A function or class that a pickle names, as "module name"."""

    name: str


@dataclasses.dataclass(eq=False)
class Call:
    """A call that a pickle asks for, and the state that the result would be given."""

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
    """What a pickle of protocol 2 holds: strings as str in Latin-1, NumPy arrays as `Call` (`uint8_array` takes them).

    Parameters
    ----------
    content : bytes
        The whole file.
    source : path or str
        Where the bytes come from, for the error message.

    Raises
    ------
    ValueError
        If it is no whole pickle, or has an instruction or names a function that plain data do not need.
    """
    import pickletools  # the command line, which imports all loaders, starts sooner without it

    stack: list[Any] = []
    memo: dict[int, Any] = {}
    position = 0  # of the instruction at hand
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
            f"are none from byte {position} on: {error}"
        ) from error
    if len(stack) != 1 or position + 1 != len(content):
        raise ValueError(
            f"{source}: one pickle of {len(content)} bytes expected, found its end at byte {position} and "
            f"{len(stack)} values in it"
        )
    return stack[0]


def _do(name: str, argument: Any, stack: list[Any]) -> None:
    """One instruction; ValueError where it is none of those that plain data need."""
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
            raise ValueError(f"it names the function {argument!r}")
        stack.append(Name(argument))
    elif name == "REDUCE":
        stack.append(Call(*_popped(stack, 2)))
    elif name == "BUILD":
        (state,) = _popped(stack, 1)
        _top(stack, Call).state = state
    else:
        raise ValueError(f"it has the instruction {name}")


def _fill(name: str, stack: list[Any]) -> None:
    """Add to a list or dict that is on the stack."""
    if name == "APPEND":
        _top(stack[:-1], list).append(stack.pop())
        return
    items = _since_mark(stack)
    if name == "APPENDS":
        _top(stack, list).extend(items)
        return
    if not all(isinstance(key, str) for key in items[::2]):
        raise ValueError("a dict has keys that are no strings")
    _top(stack, dict).update(zip(items[::2], items[1::2], strict=True))


def _popped(stack: list[Any], count: int) -> list[Any]:
    """The last values, taken off the stack."""
    if len(stack) < count:
        raise ValueError(f"{count} values expected, found {len(stack)}")
    values = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return values


def _since_mark(stack: list[Any]) -> list[Any]:
    """The values after the last mark, taken off the stack with it."""
    count = stack[::-1].index(_MARK)
    values = _popped(stack, count)
    stack.pop()
    return values


def _top(stack: list[Any], kind: type) -> Any:
    """The last value, which must be of that kind."""
    if not stack or type(stack[-1]) is not kind:
        raise ValueError(f"a {kind.__name__} expected, found {type(stack[-1]).__name__ if stack else 'nothing'}")
    return stack[-1]


# --- arrays -----------------------------------------------------------------------------------------------------------
def uint8_array(value: Any, source: object) -> np.ndarray:
    """A NumPy array of bytes in C order, as `parse_pickle` gives it, as a read-only array.

    Raises
    ------
    ValueError
        If the value is anything else.
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
