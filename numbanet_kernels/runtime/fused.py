"""The fused multiply-add of the PTX machine, compiled: NumPy has none, and takes forty operations for one of float64."""

from __future__ import annotations

import numpy as np
from numba.extending import intrinsic

from .declare import host_ufunc


@intrinsic
def _fma(context, a, b, c):
    """a b + c with a single rounding: an instruction of the CPU, or a function of the C library."""
    return a(a, a, a), lambda context, builder, signature, arguments: builder.fma(arguments[0], arguments[1], arguments[2])


def fused(a, b, c):
    """a b + c, rounded once"""
    return _fma(a, b, c)


FUSED = {np.dtype(kind): host_ufunc(f"{kind}({kind}, {kind}, {kind})")(fused) for kind in ("f4", "f8")}


def provide() -> None:
    """Let the PTX machine use the compiled functions."""
    from ..ptx import arithmetic

    arithmetic.FUSED.update(FUSED)
