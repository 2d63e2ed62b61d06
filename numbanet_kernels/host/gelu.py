"""`gelus`: gelu and its gradient on the CPU; apart from other maps, because most networks need not compile them."""

from __future__ import annotations

import math

import numpy as np
from numba import float32

from ..runtime.declare import host_kernel

ROOT_HALF = math.sqrt(0.5)
NORMAL_DENSITY = 1 / math.sqrt(2 * math.pi)
LOG2_E, LOG_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))


@host_kernel("void(b1, f4[:, ::1], f4[:, ::1], f4[:, ::1], i8, i8)")
def gelus(gradient, dense_a, dense_b, dense_out, start, stop):
    """Compute the columns start … stop - 1 of out = a Phi(a), or out = a (Phi(b) + b phi(b)) if `gradient`.

    Loops run over slices of rows, so that LLVM vectorises them.
    """
    zero, half, one = float32(0), float32(0.5), float32(1)
    for n in range(dense_out.shape[0]):
        a, b, out = dense_a[n, start:stop], dense_b[n, start:stop], dense_out[n, start:stop]
        # Phi(-|x|) = e t q(t) / 2 with e = exp(-x^2/2), t = 1/(1 + p |x|/sqrt 2): Abramowitz and Stegun 7.1.26, within
        # 1e-7; e = 2^k r(z) is written out, as calls to the C library would keep the loop from being vectorised
        for i in range(out.size):
            x = b[i] if gradient else a[i]
            power = -half * x * x
            k = np.floor(power * LOG2_E + half)
            z = power - k * LOG_2
            r = float32(1 / 24) + z * (float32(1 / 120) + z * float32(1 / 720))
            r = one + z * (one + z * (half + z * (float32(1 / 6) + z * r)))
            e = r * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
            e = e if power > float32(-87) else zero
            t = one / (one + abs(x) * float32(0.3275911 * ROOT_HALF))
            q = float32(1.421413741) + t * (float32(-1.453152027) + t * float32(1.061405429))
            tail = half * e * t * (float32(0.254829592) + t * (float32(-0.284496736) + t * q))
            share = one - tail if x > zero else tail
            out[i] = a[i] * (share + x * float32(NORMAL_DENSITY) * e) if gradient else x * share
