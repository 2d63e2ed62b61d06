"""Checks of arguments: numbers, arrays, and files that can be written. Numbers of Python and NumPy are accepted. A bool is
refused as a number, because it is more likely an argument in the wrong position.
"""

from __future__ import annotations

import inspect
import numbers
import os
import reprlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

PAGES, GRAPHS = (".html", ".htm"), (".onnx",)  # endings of files by what they hold
KNOWN = "builtins", "numpy", "numbanet", "numbanet_kernels"  # whose types need no name of the library


def is_real(value: Any) -> TypeGuard[float]:
    """Return True if `value` is a real number and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_integer(value: Any) -> TypeGuard[int]:
    """Return True if `value` is an integer and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, most: int | None = None, least: int = 1) -> int:
    """Return `value` as an int; raise ValueError, beginning with `name`, unless it is an integer from `least` to `most`."""
    if not is_integer(value) or value < least or (most is not None and value > most):
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {wanted}{'' if most is None else f' of at most {most}'}, got {value!r}")
    return int(value)


def check_counts(owner: str, **sizes: Any) -> list[int]:
    """Return the sizes, arguments of `owner`, as a list of int; raise ValueError unless they are positive integers."""
    return [check_count(f"{owner}: {name}", size) for name, size in sizes.items()]


def check_returned(owner: Any, method: str, value: Any, kind: type) -> Any:
    """Return what a user's method has returned; raise TypeError unless it is of the class `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{type(owner).__name__}.{method} must return a {kind.__name__}, got {reprlib.repr(value)}")
    return value


def check_takes(name: str, function: Callable[..., Any], wanted: str, *arguments: Any) -> None:
    """Raise TypeError, beginning with `name`, if a user's function is a class, or does not take `arguments`; `wanted` says in
    words what it must take.
    """
    if isinstance(function, type):
        raise TypeError(f"{name}: {function.__name__} is a class; give an object of it, {function.__name__}(...)")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{name}: {function!r} must take {wanted} ({error})") from None
    except ValueError:  # a callable whose signature Python does not know
        pass


def unpacked(given: tuple) -> Any:
    """Return the integers that a method is given, as several arguments or as one tuple."""
    return given[0] if len(given) == 1 and not isinstance(given[0], numbers.Integral) else given


def numpy_options(name: str, given: dict[str, Any], correction: float | None = None) -> dict[str, Any]:
    """Return the options of an op from the keyword arguments with which NumPy calls the method `name` of a tensor: np.sum(t) is
    t.sum(axis=None, dtype=None, out=None), and np.var also gives `ddof`, another name of `correction`. Raise TypeError if they
    ask for anything else, or give both.
    """
    options = {} if correction is None else {"correction": correction}
    if name in ("var", "std") and "ddof" in given:
        if options:
            raise TypeError(f"{name}: correction and ddof are two names of one number; give one of them")
        options = {"correction": given["ddof"]}
    instead = f"use np.{name}(tensor.numpy(), …)"
    for key, value in given.items():
        if key in ("dtype", "out") and value is not None:
            raise TypeError(f"{name}: {key} is not for tensors, whose results are new tensors; {instead}")
        if key not in ("dtype", "out") and not (key == "ddof" and options):
            meant = {"dim": "axis", "keepdim": "keepdims"}.get(key)  # as PyTorch calls them
            way_out = f"did you mean {meant!r}?" if meant else f"for all options of NumPy {instead}"
            raise TypeError(f"{name}() got an unexpected keyword argument {key!r}; {way_out}")
    return options


def type_name(value: Any) -> str:
    """Return the name of the type of `value`; types of other libraries with the library: torch.Tensor."""
    library = type(value).__module__.partition(".")[0]
    return type(value).__name__ if library in KNOWN else f"{library}.{type(value).__name__}"


def is_array(value: Any) -> bool:
    """Return True if `value` can be read as an array of the host by NumPy: through `__array__` or DLPack."""
    return not isinstance(value, type) and (hasattr(value, "__array__") or hasattr(value, "__dlpack__"))


def host_array(name: str, values: Any, dtype: Any = None) -> np.ndarray:
    """Return numbers, nested lists of numbers, or an array of any library as a writable NumPy array, which shares the
    memory of one that is.

    Raises
    ------
    TypeError
        If NumPy cannot read the values, for example of a PyTorch tensor that requires a gradient, or is on a GPU, or if an
        integer is too large for `dtype`. The message begins with `name`.
    """
    try:
        if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
            values = np.from_dlpack(values)
        array = np.asarray(values, dtype)
    except (TypeError, ValueError, OverflowError, RuntimeError, BufferError) as error:
        what = "numbers" if dtype is None else f"{np.dtype(dtype)} numbers"
        raise TypeError(f"{name}: cannot read {type_name(values)} as {what} ({error})") from error
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name}: cannot read {type_name(values)} as numbers, its values are {array.dtype}")
    return array if array.flags.writeable else array.copy()  # compiled loops take no read-only arrays


def same_kind(name: str, array: Any, before: Any) -> Any:
    """Return `array`, which is to take the place of the array `before`.

    Raises
    ------
    TypeError
        If it is not an array on the same device of the same dtype, in C order. The message begins with `name`.
    ValueError
        If its shape is another one.
    """
    there, here = ((hasattr(a, "copy_to_host"), hasattr(a, "flags")) for a in (array, before))
    if there != here:
        where = "of the host" if not here[0] else "of the tensor's device"
        raise TypeError(f"{name} must be an array {where}, not {type_name(array)}")
    if isinstance(before, np.ndarray) and not (isinstance(array, np.ndarray) and array.flags.writeable):
        what = "one that is read-only" if isinstance(array, np.ndarray) else type_name(array)
        raise TypeError(f"{name} must be a writable array of NumPy, not {what}")
    if array.dtype != before.dtype or not array.flags["C_CONTIGUOUS"]:
        order = "" if array.flags["C_CONTIGUOUS"] else " with gaps"
        raise TypeError(f"{name} must be a contiguous {before.dtype} array as before, not {array.dtype}{order}")
    if tuple(array.shape) != tuple(before.shape):
        raise ValueError(f"{name} must keep the shape {tuple(before.shape)}, not {tuple(array.shape)}; make a new Tensor")
    return array


def check_target(path: str | os.PathLike, endings: Sequence[str] = ()) -> Path:
    """Return `path` if a file can be written there, and its name has one of the endings, if any are given; else raise an
    error. Call this before long work starts.
    """
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"cannot save to {str(path)!r}: there is no folder {str(path.absolute().parent)!r}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise PermissionError(f"cannot save to {str(path)!r}: the folder {str(path.absolute().parent)!r} cannot be written to")
    if path.is_dir():
        raise IsADirectoryError(f"cannot save to {str(path)!r}: it is a folder; give the name of a file in it")
    if endings and path.suffix.lower() not in endings:
        raise ValueError(f"cannot save to {str(path)!r}: the file name must end in {' or '.join(endings)}")
    return path
