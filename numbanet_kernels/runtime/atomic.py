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
import time

import numba
import numpy as np
from llvmlite import ir
from numba import int64
from numba.core import cgutils
from numba.extending import intrinsic

from .declare import host_function

LOOKS = 2_000  # number of reads before the first yield, about 10 us
# Number of yields before the first sleep, about 1 ms, because each is a system call. After a sleep some virtual machines run
# both threads on one core for a while: with 200 yields instead, steps of 2.2 ms took 3 ms.
YIELDS = 2_000
NAP = 50  # length of a sleep in us
TAKEN = 20_000  # ns; if a yield takes longer, another thread needed the core, and the waiting thread sleeps from then on
LOST = 4  # index in `pauses()` of the ns that threads of this process have waited from such a yield on


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


@intrinsic
def _now(typing_context, function, clock):
    """Return the nanoseconds of a clock, given the address of clock_gettime; 0 if the address is 0."""

    def generate(context, builder, signature, arguments):
        number, status = ir.IntType(64), ir.IntType(32)
        parts = cgutils.alloca_once_value(builder, ir.Constant(ir.ArrayType(number, 2), [0, 0]))
        builder.store(ir.Constant(ir.ArrayType(number, 2), [0, 0]), parts)
        with builder.if_then(builder.icmp_signed("!=", arguments[0], ir.Constant(number, 0))):
            kind = ir.FunctionType(status, [status, parts.type]).as_pointer()
            builder.call(builder.inttoptr(arguments[0], kind), [builder.trunc(arguments[1], status), parts])
        seconds, rest = (builder.extract_value(builder.load(parts), i) for i in (0, 1))
        return builder.add(builder.mul(seconds, ir.Constant(number, 1_000_000_000)), rest)

    return int64(int64, int64), generate


@functools.cache
def pauses() -> np.ndarray:
    """Return an int64 array (5,): the address of the function that yields the core to other threads; of the function that
    sleeps, which takes a time in us, on Windows in ms; of the function that reads a clock, 0 on Windows; the number of the
    clock; and the counter LOST.
    """
    library = ctypes.windll.kernel32 if os.name == "nt" else ctypes.CDLL(None)
    names = ("SwitchToThread", "Sleep") if os.name == "nt" else ("sched_yield", "usleep", "clock_gettime")
    found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]
    return np.array([*found, *[0] * (3 - len(found)), getattr(time, "CLOCK_MONOTONIC", 0), 0], np.int64)


@host_function
def yields(pauses):
    """Yield the core to other threads. Return False if one of them used it for long, which is counted in pauses[LOST];
    `pauses` is the array of `pauses()`.
    """
    before = _now(pauses[2], pauses[3])
    _pause(pauses[0], 0)
    taken = _now(pauses[2], pauses[3]) - before
    if taken < TAKEN:
        return True
    add(pauses, LOST, taken)
    return False


@host_function
def wait(counters, i, least, pauses):
    """Wait until counters[i] >= least; `pauses` is the array of `pauses()`."""
    turn, since = 0, 0
    while load(counters, i) < least:
        turn += 1
        if turn > LOOKS + YIELDS:
            _pause(pauses[1], NAP)
        elif turn > LOOKS and not yields(pauses):
            turn, since = LOOKS + YIELDS, _now(pauses[2], pauses[3])
    if since:
        add(pauses, LOST, _now(pauses[2], pauses[3]) - since)
