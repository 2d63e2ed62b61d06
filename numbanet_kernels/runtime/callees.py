"""Callees are compiled loops that are called by their addresses, without the interpreter, to replay a tape (`tape`).

Callee(loop)      holds the address of a loop, and knows how its arguments are packed into memory
run(entries, …)   makes calls in order, in one compiled loop
move(words, …)    writes the address of a view into the packed arguments of a call
address_of(array) returns the address of an array's first element
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

import numpy as np
from llvmlite import ir
from numba import int32, int64
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np import numpy_support

from . import atomic
from .declare import host_kernel
from .launch import NotRecorded

NONE = -2  # the status of a loop that returns None, which means success, as 0 does
PLACE = 4  # index of the address among the numbers that represent an array


class Callee:
    """The address of a compiled loop, the kinds of its arguments, and `trampoline`, which calls it with arguments from memory.

    Numba passes an array as 5 + 2 ndim numbers: two owners, which may be 0, the number of elements, the bytes of an element,
    the address, the length of each axis and the stride of each axis in bytes.
    """

    def __init__(self, loop: Any) -> None:
        ((_, compiled),) = loop.overloads.items()
        described = compiled.fndesc
        self.loop, self.function = loop, compiled.library.get_pointer_to_function(described.llvm_func_name)
        kind = compiled.target_context.call_conv.get_function_type(described.restype, described.argtypes)
        self.trampoline = _trampoline(tuple(kind.args))
        self.kinds = [
            (numpy_support.as_dtype(kind.dtype), kind.ndim, kind.layout) if isinstance(kind, types.Array) else None
            for kind in described.argtypes
        ]
        self.pack = struct.Struct("<" + "".join(map(_packed, described.argtypes))).pack


def address_of(array: np.ndarray) -> int:
    """Return the address of the first element. A recording asks for thousands of addresses, and `array.ctypes.data` takes eight
    times as long. NumPy's C interface fixes where an array object holds its address: behind the header of all objects.
    """
    return ctypes.c_size_t.from_address(id(array) + object.__basicsize__).value


SCALARS = {
    types.float32: "f4x",
    types.float64: "d",
    types.boolean: "B7x",
    types.int32: "i4x",
    types.int64: "q",
    types.uint32: "I4x",
    types.uint64: "Q",
}  # formats of `struct`, each padded to eight bytes


def _packed(kind: Any) -> str:
    if isinstance(kind, types.Array):
        return "q" * (5 + 2 * kind.ndim)
    if isinstance(kind, types.UniTuple):
        return kind.count * _packed(kind.dtype)
    if kind not in SCALARS:
        raise NotRecorded(f"a compiled loop takes a {kind}")
    return SCALARS[kind]


_libraries: list[Any] = []  # the compiled trampolines, which must be kept alive


@functools.cache
@global_compiler_lock
def _trampoline(kinds: tuple[Any, ...]) -> int:
    """Return the address of a compiled function, int32 trampoline(function, place). It calls the loop `function` with the
    arguments that are stored at the address `place`, eight bytes each. The first two arguments of the loop, the addresses for
    its result and its exception, are not stored there: the trampoline passes local variables.
    """
    codegen = cpu_target.target_context.codegen()
    library = codegen.create_library(f"numbanet.trampoline{len(_libraries)}")
    module = library.create_ir_module(library.name)
    number, status = ir.IntType(64), ir.IntType(32)
    function = ir.Function(module, ir.FunctionType(status, [number, number]), library.name)
    builder = ir.IRBuilder(function.append_basic_block())
    target, place = function.args
    given = [builder.alloca(kind.pointee) for kind in kinds[:2]]
    for unset in given:
        builder.store(unset.type.pointee(None), unset)
    for i, kind in enumerate(kinds[2:]):
        given.append(builder.load(builder.inttoptr(builder.add(place, number(8 * i)), kind.as_pointer())))
    callee = builder.inttoptr(target, ir.FunctionType(status, kinds).as_pointer())
    builder.ret(builder.call(callee, given))
    library.add_ir_module(module)
    library.finalize()
    _libraries.append(library)
    return library.get_pointer_to_function(library.name)


callee_of = functools.lru_cache(maxsize=None)(Callee)


@intrinsic
def _call(typing_context, trampoline, function, place):
    """Call trampoline(function, place), where all three are addresses."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * 2).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], kind), arguments[1:])

    return int32(int64, int64, int64), generate


@intrinsic
def _copy(typing_context, source, target, size):
    """Copy `size` bytes from one address to another."""

    def generate(context, builder, signature, arguments):
        source, target = (builder.inttoptr(place, cgutils.voidptr_t) for place in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(int64, int64, int64), generate


BARRIER, COPY = 0, 1  # numbers that stand in place of a trampoline's address
ELSEWHERE = -1  # stands for the number of a call in `failed`, if the interpreter raised an exception between two calls of `run`
LEFT = 1 << 60  # number of arrivals from which barriers are passed at once, because a thread has left


@host_kernel("void(i8[:, ::1], i8[::1], i8[::1], i8, i8[::1])")
def run(entries, failed, arrived, threads, pauses):
    """Execute the entries in order. There are three kinds of entries:

    (trampoline, function, address of the arguments, number of the call)    call a loop
    (COPY, source, target, bytes)                                           copy memory
    (BARRIER, 0, 0, 0)                                                      wait until all `threads` threads are here

    arrived[0] counts arrivals at barriers. If a call fails, its number is stored in failed[0]. While this is not 0, only
    barriers are executed.
    """
    for i in range(entries.shape[0]):
        if entries[i, 0] == BARRIER:
            before = atomic.add(arrived, 0, 1)
            if before < LEFT:
                atomic.wait(arrived, 0, (before // threads + 1) * threads, pauses)
        elif failed[0] != 0:
            continue
        elif entries[i, 0] == COPY:
            _copy(entries[i, 1], entries[i, 2], entries[i, 3])
        else:
            status = _call(entries[i, 0], entries[i, 1], entries[i, 2])
            if status != 0 and status != NONE:
                failed[0] = entries[i, 3]


@host_kernel("void(i8[::1], i8, i8, i4[::1], i8, i4[::1], i8)")
def move(words, at, start, rows, row_bytes, cols, col_bytes):
    """words[at] = start + rows[0] * row_bytes + cols[0] * col_bytes; if a list is empty, its term is left out."""
    place = start
    if rows.size:
        place += rows[0] * row_bytes
    if cols.size:
        place += cols[0] * col_bytes
    words[at] = place
