"""`ell` on CUDA."""

from __future__ import annotations

import numpy as np
from numba import float32

from ...layouts.slabs import LANES, ROWS
from ...runtime.declare import cuda, kernel, kernels
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import empty_cuda, flat, full_cuda, upload_cuda
from .family import check, check_samples

GROUPS, SHARE = 4, 4  # row groups that a block computes at the same time, and one after the other; not tuned on a device


@kernels("ell")
def _slabs():
    @kernel("void(f4[::1], i4[:, ::1], f4[:, ::1], f4[::1], f4, i4[::1], i4, i4[::1], i4[::1], f4[::1], i4[::1], i4)")
    def ell(x, indices, values, bias, ceiling, order, groups, lanes, alive, y, live, inputs):
        """Each thread computes a group of outputs of one sample; the threads of a warp have adjacent samples and the same
        weights."""
        tx, slab = cuda.threadIdx.x, cuda.blockIdx.x
        n, rows, some = slab * LANES + tx, order.size, False
        number = groups + rows - groups * ROWS
        on, source = n < live.size, n
        if on and lanes.size:
            source = min(max(lanes[n], 0), x.size // inputs - 1)
        if on and alive.size:
            on = alive[n] != 0
        start = source // LANES * inputs * LANES + source % LANES
        for turn in range(SHARE):
            g = (cuda.blockIdx.y * SHARE + turn) * GROUPS + cuda.threadIdx.y
            if g < number:
                r = g * ROWS if g < groups else g + groups * (ROWS - 1)
                last = ROWS - 1 if g < groups else 0
                o0, o1 = min(max(order[r], 0), rows - 1), min(max(order[r + min(last, 1)], 0), rows - 1)
                o2, o3 = min(max(order[r + min(last, 2)], 0), rows - 1), min(max(order[r + last], 0), rows - 1)
                t0, t1, t2, t3 = bias[o0], bias[o1], bias[o2], bias[o3]
                for k in range(indices.shape[1] if on else 0):
                    sample = x[start + min(max(indices[o0, k], 0), inputs - 1) * LANES]
                    t0 += values[o0, k] * sample
                    t1 += values[o1, k] * sample
                    t2 += values[o2, k] * sample
                    t3 += values[o3, k] * sample
                for i in range(last + 1):
                    o = o0 if i == 0 else o1 if i == 1 else o2 if i == 2 else o3
                    total = t0 if i == 0 else t1 if i == 1 else t2 if i == 2 else t3
                    total = float32(0) if total < float32(0) or not on else ceiling if total > ceiling else total
                    y[(slab * rows + o) * LANES + tx] = total
                    some |= total != float32(0)
        if some:
            cuda.atomic.max(live, n, 1)

    return ell


@kernels("ell")
def _spreading():
    @kernel("void(i4[::1], i4[::1], f4[::1], f4[::1], i4)")
    def in_slabs(starts, columns, values, x, inputs):
        """Each thread writes one sample: first zeros, then its values."""
        n = cuda.grid(1)
        first = n // LANES * inputs * LANES + n % LANES
        if first < x.size:
            for i in range(inputs):
                x[first + i * LANES] = float32(0)
            if n < starts.size - 1:
                for k in range(max(starts[n], 0), min(starts[n + 1], columns.size)):
                    x[first + min(max(columns[k], 0), inputs - 1) * LANES] = values[k]

    return in_slabs


def samples_together_cuda():
    return 1  # multiplications are counted per living sample, although a warp takes the time of all its lanes


def empty_slabs_cuda(slabs, neurons):
    return empty_cuda((slabs, neurons, LANES))


def ell_cuda(x, indices, values, bias, ceiling, lanes=None, alive=None, rows=None, out=None):
    """Do the same as `ell_cpu`, but do not check indices, lanes and rows: numbers that are out of range are clamped."""
    count, inputs = check("ell (cuda)", x, indices, values, bias, lanes, alive, rows, out), x.shape[1]
    slabs, total = ceil_div(count, LANES), len(indices)
    order, groups = rows or (upload_cuda(np.arange(total, dtype=np.int32)), 0)
    y = empty_slabs_cuda(slabs, total) if out is None else out
    live, every = full_cuda((count,), 0, np.int32), upload_cuda(np.zeros(0, np.int32))
    launch(
        _slabs(),
        (slabs, ceil_div(total - (ROWS - 1) * groups, GROUPS * SHARE)),
        (LANES, GROUPS),
        flat(x),
        indices,
        values,
        bias,
        ceiling,
        order,
        groups,
        every if lanes is None else lanes,
        every if alive is None else alive,
        flat(y),
        live,
        inputs,
    )
    return y, live


def in_slabs_cuda(starts, columns, values, inputs, out=None):
    shape = check_samples("in_slabs (cuda)", starts, columns, values, inputs, out)
    x = empty_slabs_cuda(*shape[:2]) if out is None else out
    launch(_spreading(), shape[0], LANES, starts, columns, values, flat(x), inputs)
    return x
