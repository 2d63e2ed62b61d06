"""What threads that run compiled loops at the same time see of each other: numbers in memory, and how to wait for them.

load(counters, i)                   counters[i] from memory, each time: of a plain read the compiler makes one for all
add(counters, i, n)                 counters[i] += n, whole; returns what was there before
wait(counters, i, least, pauses)    until counters[i] >= least: looks for a while, then lets others have the core, then naps
"""

from __future__ import annotations

import ctypes
import functools
import os

import numba
import numpy as np
from llvmlite import ir
from numba import int64
from numba.extending import intrinsic

from .declare import host_function

LOOKS = 2_000  # about 10 us
YIELDS = 200  # from then on: a call to the system each
NAP = 50  # us


def _place(context, builder, signature, arguments):
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


@intrinsic
def load(typing_context, counters, i):
    """counters[i] from memory."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_place(context, builder, signature, arguments), "acquire", 8)

    return int64(counters, int64), generate


@intrinsic
def add(typing_context, counters, i, n):
    """counters[i] += n, whole; what was there before."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _place(context, builder, signature, arguments), arguments[2], "seq_cst")

    return int64(counters, int64, int64), generate


@intrinsic
def _pause(typing_context, function, number):
    """int function(unsigned number), by its address."""

    def generate(context, builder, signature, arguments):
        status = ir.IntType(32)
        kind = ir.FunctionType(status, [status]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), [builder.trunc(arguments[1], status)])
        return context.get_dummy_value()

    return numba.void(int64, int64), generate


@functools.cache
def pauses() -> np.ndarray:
    """(2,) int64: the addresses of what lets other threads have the core, and of what sleeps for some us, of Windows for some
    ms."""
    library = ctypes.windll.kernel32 if os.name == "nt" else ctypes.CDLL(None)
    names = ("SwitchToThread", "Sleep") if os.name == "nt" else ("sched_yield", "usleep")
    return np.array([ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names], np.int64)


@host_function
def wait(counters, i, least, pauses):
    """Until counters[i] >= least."""
    turn = 0
    while load(counters, i) < least:
        turn += 1
        if turn > LOOKS + YIELDS:
            _pause(pauses[1], NAP)
        elif turn > LOOKS:
            _pause(pauses[0], 0)
