"""BLAS is the library that computes matrix products on the CPU, that of NumPy or MKL. This module calls it and sets its number
of threads.

    matmul(a, b, out=c)      computes c = a b for float32 matrices of any strides, on the threads of the library
    multiply(entry(), …)     computes the same product inside a compiled loop, without the GIL
    threads()                returns the number of threads of each thread pool of the library
    set_threads(counts)      sets these numbers
    OWN_FLOPS                products of fewer FLOPs run on one thread, whatever number of threads is set

The environment variable NUMBANET_BLAS chooses the library: "openblas" is NumPy's, "mkl" is Intel's
(`pip install numbanet[mkl]`). "auto", the default, is the library that `numbanet devices --calibrate` found faster on this
machine, or NumPy's if this was never measured.

A recorded step calls SGEMM by its address, as compiled loops do. An unrecorded step calls NumPy, which calls the same function
with the same arguments, so that results are bitwise equal. If an axis has length 1, NumPy calls another function of BLAS; such
products call SGEMM in both cases. So do all products if the chosen library is not NumPy's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import os
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import threadpoolctl
from llvmlite import ir
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from ..runtime.callees import address_of
from ..runtime.declare import host_function, host_kernel, tape
from . import thresholds

OWN_FLOPS = 1 << 19
LIBRARIES = "auto", "openblas", "mkl"


@functools.cache
def library() -> str:
    """Return the chosen library: "mkl", or "openblas", which stands for the library of NumPy, whichever that is.

    Raises
    ------
    ValueError
        If NUMBANET_BLAS is set, but not to one of LIBRARIES.
    ImportError
        If NUMBANET_BLAS is "mkl" and MKL is not installed.
    """
    name = os.environ.get("NUMBANET_BLAS", "") or "auto"
    if name not in LIBRARIES:
        raise ValueError(f"NUMBANET_BLAS must be one of {', '.join(LIBRARIES)}; it is {name!r}")
    if name == "auto":
        name = "mkl" if thresholds.faster_library() == "mkl" and mkl() else "openblas"
    if name == "mkl" and not mkl():
        raise ImportError("NUMBANET_BLAS is 'mkl', and MKL is not installed: pip install 'numbanet[mkl]'")
    return name


@functools.cache
def mkl() -> list[Any]:
    """Load MKL and return its thread pools; an empty list if it is not installed."""
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    for file in files:
        if "mkl_rt" in file.name and (".so" in file.name or file.name.endswith((".dll", ".dylib"))):
            with contextlib.suppress(OSError):  # for example, if the file is for another architecture
                ctypes.CDLL(str(file.locate().resolve()))
    return threadpoolctl.ThreadpoolController().select(internal_api="mkl").lib_controllers


def matmul(a, b, out=None):
    """out = a b for float32 matrices, also transposed views, or arrays that np.matmul takes; by default a new array."""
    writer = tape.get()
    if writer is not None and out is not None and not out.size:
        return out
    if numba.config.DISABLE_JIT or out is None or a.ndim != 2 or b.ndim != 2 or 0 in a.shape or 0 in b.shape:
        return np.matmul(a, b, out=out) if writer is None else writer.refuse(f"the product of {a.shape} and {b.shape}")
    if writer is None and 1 not in a.shape and 1 not in b.shape and _is_numpys():
        return np.matmul(a, b, out=out)
    if not (_in_rows(out) and (_in_rows(a) or _in_rows(a.T)) and (_in_rows(b) or _in_rows(b.T))):
        return np.matmul(a, b, out=out) if writer is None else writer.refuse("a product of matrices in pieces")
    if writer is not None and address_of(a) == address_of(b):
        writer.refuse("the product of a matrix with itself")  # for such products NumPy calls another function of BLAS, SSYRK
    product(entry(), a, b, out)
    return out


@functools.cache
def _is_numpys():
    """Return True if NumPy calls the SGEMM of `entry`, which is assumed if four products of both are bitwise equal."""
    if library() == "mkl":
        return False
    rng = np.random.default_rng(0)
    for m, k, n in ((2, 3, 4), (9, 70, 33), (64, 20, 32), (48, 64, 64)):
        a, b, c = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (n, k), (m, n)))
        product(entry(), a, b.T, c)
        if c.tobytes() != np.matmul(a, b.T).tobytes():
            return False
    return True


def _in_rows(matrix):
    """Return True if the elements of each row are contiguous and the stride between rows is one that NumPy passes to BLAS."""
    (rows, columns), (across, along) = matrix.shape, matrix.strides
    return (along == 4 or columns == 1) and (across % 4 == 0 and across >= 4 * columns or rows == 1)


@functools.cache
def numpys() -> list[Any]:
    """Return the thread pools of NumPy's BLAS; they are found once, and cached.

    Pools of other libraries, such as SciPy's, are left out: they compute no products here, and setting their threads takes
    time. If the path of no library contains "numpy", the pools of all libraries are returned.
    """
    controllers = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return [pool for pool in controllers if "numpy" in pool.filepath] or controllers


@functools.cache
def _pools() -> list[Any]:
    """Return the thread pools of the chosen library."""
    return mkl() if library() == "mkl" else numpys()


def threads() -> list[int]:
    """Return the number of threads of each pool of the library."""
    return [pool.get_num_threads() for pool in _pools()]


def set_threads(counts: Sequence[int]) -> None:
    """Set the number of threads of each pool of the library.

    In threadpoolctl 3.8, the first Python thread that sets OpenBLAS's number is the only one that can set it, until the
    controlling thread is cleared. So it is cleared before and after.
    """
    for pool, count in zip(_pools(), counts, strict=True):
        if pool.get_num_threads() == count:
            continue
        let_go = getattr(pool, "clear_controlling_thread", lambda force: None)
        let_go(force=True)
        pool.set_num_threads(count)
        let_go(force=True)


# --- products inside compiled loops -----------------------------------------------------------------------------------
# SGEMM's Fortran interface takes the addresses of its integers. They are stored with 64 bits; a library that reads 32 bits
# reads the lower half, because all platforms of NumPy's BLAS are little-endian.
NAMES = ("scipy_sgemm_64_", "sgemm_64_", "scipy_sgemm_", "sgemm_", "sgemm")


@functools.cache
def entry(library: str | None = None) -> int:
    """Return the address of SGEMM in a library, by default in the chosen one, whose threads `set_threads` sets. If the library
    does not export SGEMM, return the address of SciPy's.
    """
    for pool in {None: _pools, "mkl": mkl, "openblas": numpys}[library]():
        for name in NAMES:
            if symbol := getattr(pool.dynlib, name, None):
                return ctypes.cast(symbol, ctypes.c_void_p).value
    return get_cython_function_address("scipy.linalg.cython_blas", "sgemm")


@intrinsic
def _sgemm(typing_context, address, ta, tb, m, n, k, a, a_row, b, b_row, beta, c, c_row):
    """c (m, n) = A B + beta c. A row-major matrix is a column-major transpose, so SGEMM computes c.T = B.T A.T + beta c.T."""

    def generate(context, builder, signature, arguments):
        address, ta, tb, m, n, k, a, a_row, b, b_row, beta, c, c_row = arguments
        number, real, letter = ir.IntType(64), ir.FloatType(), ir.IntType(8)

        def stored(value):
            return cgutils.alloca_once_value(builder, value)

        def transposed(flag):
            return stored(builder.select(flag, letter(ord("T")), letter(ord("N"))))

        def data(position, value):
            return context.make_array(signature.args[position])(context, builder, value).data

        kinds = [letter] * 2 + [number] * 3 + [real, real, number, real, number, real, real, number]
        function = ir.FunctionType(ir.VoidType(), [kind.as_pointer() for kind in kinds]).as_pointer()
        builder.call(
            builder.inttoptr(address, function),
            [
                transposed(tb),
                transposed(ta),
                *map(stored, (n, m, k)),
                stored(real(1.0)),
                data(8, b),
                stored(b_row),
                data(6, a),
                stored(a_row),
                stored(beta),
                data(11, c),
                stored(c_row),
            ],
        )
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(
        integer, numba.boolean, numba.boolean, integer, integer, integer, a, integer, b, integer, numba.float32, c, integer
    ), generate


@host_function
def multiply(entry, a, b, c, ta=False, tb=False, beta=0.0):
    """c = A B + beta c, where A is a.T if `ta`, else a, and B is b.T if `tb`, else b.

    The elements of each row of a, b and c must be contiguous. `entry` is the address of SGEMM. If beta is 0, c is not read.
    Shapes are not checked.
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
    _sgemm(
        entry,
        ta,
        tb,
        m,
        n,
        depth,
        a,
        max(a.strides[0] // 4, a.shape[1]),
        b,
        max(b.strides[0] // 4, b.shape[1]),
        np.float32(beta),
        c,
        max(c.strides[0] // 4, n),
    )


@host_function
def _rows_lie(matrix):
    """Return True if the elements of each row are contiguous and the rows do not overlap."""
    (rows, columns), (across, along) = matrix.shape, matrix.strides
    return (along == 4 or columns == 1) and (across >= 4 * columns or rows == 1)


@host_kernel("void(i8, f4[:, :], f4[:, :], f4[:, :])")
def product(entry, a, b, c):
    """c = a b. The elements of each row of c must be contiguous, and those of each row or of each column of a and of b."""
    ta, tb, depth = not _rows_lie(a), not _rows_lie(b), a.shape[1]
    a_row, b_row = a.strides[1] if ta else a.strides[0], b.strides[1] if tb else b.strides[0]
    _sgemm(
        entry,
        ta,
        tb,
        c.shape[0],
        c.shape[1],
        depth,
        a,
        max(a_row // 4, c.shape[0] if ta else depth),
        b,
        max(b_row // 4, depth if tb else c.shape[1]),
        np.float32(0),
        c,
        max(c.strides[0] // 4, c.shape[1]),
    )
