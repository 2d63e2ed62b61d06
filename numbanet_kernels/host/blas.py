"""The library behind matrix products on the CPU, and how many threads it uses: NumPy's BLAS.

    matmul(a, b, out=c)      c = a b for float32 of any strides, on the thread that calls it and those of the library's own
    threads()                how many threads each pool of the library has
    set_threads(counts)      as many for each
    OWN_FLOPS                the library does smaller products on one thread of its own accord
    multiply(entry(), …)     the same product from within a compiled loop, without the GIL

Another library stands here once it has these five.
"""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import threadpoolctl
from llvmlite import ir
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from ..runtime.declare import host_function

matmul = np.matmul
OWN_FLOPS = 1 << 19


@functools.cache
def _pools() -> list[Any]:
    """NumPy's, which is loaded by the time of the first use; where no library's place says that it is NumPy's own, all: another
    one, such as SciPy's, does none of the work here, and to set it takes as long."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return [pool for pool in found if "numpy" in pool.filepath] or found


def threads() -> list[int]:
    """How many threads each pool has."""
    return [pool.get_num_threads() for pool in _pools()]


def set_threads(counts: Sequence[int]) -> None:
    """Set the pools. threadpoolctl 3.8 heeds only the first Python thread that sets OpenBLAS's, until told to let go."""
    for pool, count in zip(_pools(), counts, strict=True):
        if pool.get_num_threads() == count:
            continue
        let_go = getattr(pool, "clear_controlling_thread", lambda force: None)
        let_go(force=True)
        pool.set_num_threads(count)
        let_go(force=True)


# --- from within compiled loops ---------------------------------------------------------------------------------------
# SGEMM as Fortran knows it takes the addresses of its numbers. They are stored with 64 bits: a library that reads 32 finds the
# lower ones there, where machines put them first, as all do that NumPy's BLAS is built for.
NAMES = ("scipy_sgemm_64_", "sgemm_64_", "scipy_sgemm_", "sgemm_", "sgemm")


@functools.cache
def entry() -> int:
    """Where SGEMM begins in memory: that of the library behind `matmul`, so that `set_threads` holds for it; SciPy's where
    that one cannot be asked."""
    for pool in _pools():
        for name in NAMES:
            if found := getattr(pool.dynlib, name, None):
                return ctypes.cast(found, ctypes.c_void_p).value
    return get_cython_function_address("scipy.linalg.cython_blas", "sgemm")


@intrinsic
def _sgemm(typing_context, address, ta, tb, m, n, k, a, a_row, b, b_row, beta, c, c_row):
    """c (m, n) = A B + beta c. Fortran's columns are rows here: it computes the transpose, from B and A in that order."""
    def generate(context, builder, signature, arguments):
        address, ta, tb, m, n, k, a, a_row, b, b_row, beta, c, c_row = arguments
        number, real, letter = ir.IntType(64), ir.FloatType(), ir.IntType(8)

        def placed(value):
            return cgutils.alloca_once_value(builder, value)

        def transposed(flag):
            return placed(builder.select(flag, letter(ord("T")), letter(ord("N"))))

        def data(place, value):
            return context.make_array(signature.args[place])(context, builder, value).data

        kinds = [letter] * 2 + [number] * 3 + [real, real, number, real, number, real, real, number]
        function = ir.FunctionType(ir.VoidType(), [kind.as_pointer() for kind in kinds]).as_pointer()
        builder.call(builder.inttoptr(address, function), [
            transposed(tb), transposed(ta), *map(placed, (n, m, k)), placed(real(1.0)), data(8, b), placed(b_row), data(6, a),
            placed(a_row), placed(beta), data(11, c), placed(c_row)])
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(integer, numba.boolean, numba.boolean, integer, integer, integer, a, integer, b, integer, numba.float32,
                      c, integer), generate


@host_function
def multiply(entry, a, b, c, ta=False, tb=False, beta=0.0):
    """c = A B + beta c, A = a or, with ta, its transpose, B likewise; rows of all three lie contiguous.

    Nothing is read of c where beta is 0. The shapes must fit: nobody looks.
    """
    m, n = c.shape
    depth = a.shape[0] if ta else a.shape[1]
    if m == 0 or n == 0:
        return
    if depth == 0:
        for i in range(m):
            for j in range(n):
                c[i, j] = np.float32(beta) * c[i, j] if beta != 0.0 else np.float32(0)
        return
    _sgemm(entry, ta, tb, m, n, depth, a, max(a.strides[0] // 4, 1), b, max(b.strides[0] // 4, 1), np.float32(beta), c,
           max(c.strides[0] // 4, 1))
