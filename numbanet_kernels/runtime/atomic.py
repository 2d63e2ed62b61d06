"""Atomic counters, with which CPU threads that run compiled loops at the same time wait for each other.

load(counters, i)                   returns counters[i], read from memory in each call; the compiler may keep the result of a
                                    plain read in a register
add(counters, i, n)                 adds n to counters[i] as one atomic operation, and returns the value before
wait(counters, i, least, pauses)    waits until counters[i] >= least: it spins, then yields the core to other threads, then
                                    sleeps
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

LOOKS = 2_000  # reads before the first yield: about 10 us
# Yields before the first sleep, about 1 ms: each is a system call. After a sleep some virtual machines run both threads on one
# core for a while: with 200 yields instead, steps of 2.2 ms took 3 ms.
YIELDS = 2_000
NAP = 50  # us: the length of a sleep


def _place(context, builder, signature, arguments):
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


@intrinsic
def load(typing_context, counters, i):
    """Return counters[i], an int64, by an atomic read from memory."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_place(context, builder, signature, arguments), "acquire", 8)

    return int64(counters, int64), generate


@intrinsic
def add(typing_context, counters, i, n):
    """Add n to counters[i] atomically; return the value before."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _place(context, builder, signature, arguments), arguments[2], "seq_cst")

    return int64(counters, int64, int64), generate


@intrinsic
def _pause(typing_context, function, number):
    """Call int function(unsigned number), given the address of the function."""

    def generate(context, builder, signature, arguments):
        status = ir.IntType(32)
        kind = ir.FunctionType(status, [status]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), [builder.trunc(arguments[1], status)])
        return context.get_dummy_value()

    return numba.void(int64, int64), generate


@functools.cache
def pauses() -> np.ndarray:
    """Return the addresses of two functions, an int64 array (2,): the function that yields the core to other threads, and the
    function that sleeps. The latter takes a time in us, on Windows in ms.
    """
    library = ctypes.windll.kernel32 if os.name == "nt" else ctypes.CDLL(None)
    names = ("SwitchToThread", "Sleep") if os.name == "nt" else ("sched_yield", "usleep")
    return np.array([ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names], np.int64)


@host_function
def wait(counters, i, least, pauses):
    """Wait until counters[i] >= least; `pauses` is the array of `pauses()`."""
    turn = 0
    while load(counters, i) < least:
        turn += 1
        if turn > LOOKS + YIELDS:
            _pause(pauses[1], NAP)
        elif turn > LOOKS:
            _pause(pauses[0], 0)
