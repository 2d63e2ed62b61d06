"""NumPy's elementwise functions (ufuncs) in a form that a tape can record.

    apply(np.exp, x, out=y)         computes y = exp(x) by NumPy; during a recording, it records a call of NumPy's compiled loop
                                    by its address

A ufunc has a compiled loop for each type, which NumPy chooses for this processor, and stores its address in the function object
(`PyUFuncObject`, part of NumPy's C interface). NumPy calls this loop once for contiguous arrays, and so does a tape, so that
results are bitwise equal.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from ..runtime.declare import host_kernel, tape
from ..runtime.memory import flat, full_cpu


class _Described(ctypes.Structure):
    """The first fields of a PyUFuncObject."""

    _fields_ = [
        ("head", ctypes.c_byte * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
    ]


@functools.cache
def _loop(ufunc: np.ufunc) -> tuple[int, int] | None:
    """Return (address of the loop for float32, its `data` argument); None if the function object has an unexpected layout."""
    if sys.implementation.name != "cpython" or not isinstance(ufunc, np.ufunc):
        return None
    there, kinds = _Described.from_address(id(ufunc)), "f" * ufunc.nin + "->f"
    fits = (there.nin, there.nout, there.nargs, there.ntypes) == (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes)
    if not fits or there.name != ufunc.__name__.encode() or kinds not in ufunc.types:
        return None
    place = ufunc.types.index(kinds)
    return there.functions[place], there.data[place] or 0 if there.data else 0


@intrinsic
def _call(typing_context, loop, data, arrays, steps, count):
    """Call loop(addresses of the arrays, &count, strides in bytes, data), as NumPy does."""

    def generate(context, builder, signature, arguments):
        loop, data, arrays, steps, count = arguments
        number, byte = ir.IntType(64), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number.as_pointer(), number.as_pointer(), byte]).as_pointer()
        addresses = [
            context.make_array(of)(context, builder, array).data
            for of, array in zip(signature.args[2], cgutils.unpack_tuple(builder, arrays))
        ]
        placed = cgutils.pack_array(builder, [builder.bitcast(address, byte) for address in addresses])
        strides = cgutils.pack_array(builder, cgutils.unpack_tuple(builder, steps))
        places = [
            builder.bitcast(cgutils.alloca_once_value(builder, value), of)
            for value, of in ((placed, byte.as_pointer()), (count, number.as_pointer()), (strides, number.as_pointer()))
        ]
        builder.call(builder.inttoptr(loop, kind), [*places, builder.inttoptr(data, byte)])
        return context.get_dummy_value()

    return numba.void(loop, data, arrays, steps, count), generate


@host_kernel("void(i8, i8, f4[::1], f4[::1])")
def _unary(loop, data, x, y):
    _call(loop, data, (x, y), (numba.int64(4), numba.int64(4)), numba.int64(y.size))


@host_kernel("void(i8, i8, f4[::1], f4[::1], f4[::1])")
def _binary(loop, data, a, b, y):
    """y = loop(a, b); an array with one element is repeated."""
    steps = numba.int64(4 * (a.size > 1)), numba.int64(4 * (b.size > 1)), numba.int64(4)
    _call(loop, data, (a, b, y), steps, numba.int64(y.size))


def apply(ufunc: Any, *given: Any, out: np.ndarray) -> np.ndarray:
    """out = ufunc(*given), float32 arrays or numbers; raise NotRecorded during a recording if the loop's address is unknown."""
    writer = tape.get()
    if writer is None:
        return ufunc(*given, out=out)
    loop = _loop(ufunc)
    if loop is None:
        writer.refuse(f"{ufunc.__name__} of NumPy")
    if out.size:
        arrays = [flat(x) if isinstance(x, np.ndarray) else full_cpu((1,), x) for x in given]
        (_unary if len(given) == 1 else _binary)(*loop, *arrays, flat(out))
    return out
