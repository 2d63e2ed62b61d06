"""Shrinking groups of a weight towards zero: the proximal step of a group lasso (Yuan & Lin 2006, eq. 2.4; Wen et al. 2016).

    shrink    w_g <- w_g max(0, 1 - t sqrt(n_g) / |w_g|),    then norms[g] = |w_g|

w (R, C) is cut into groups w_g of height x width values; groups at the edges may be smaller. n_g is the number of values of
group g, and t is the threshold. Rows of w are groups of 1 x C, columns are groups of R x 1; in a convolution, filters are
groups of 1 x (C KH KW), and input channels are groups of R x (KH KW). A group that is shrunk to zero is exactly zero.

If a reference r > 0 is given, t is first multiplied by r sqrt(n_g) / |w_g|: groups whose root mean square is above r shrink
less, and other groups more, as with a penalty on log |w_g| (Candès, Wakin & Boyd 2008, section 2.3).

The threshold and the reference may be given as one device array (2,) in place of the threshold, so that a recorded step can be
replayed with others.

A group is read twice, for its norm and to shrink it. On CUDA, the second read is from the L1 cache if the groups of the thread
blocks that share the cache fit into it. On the CPU, all groups of a block row that a thread shrinks must fit into it, because
the thread reads all of them before it shrinks the first one.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, int32

from ..host import threads
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, empty_cpu, empty_cuda, full_cpu, full_cuda

ACROSS, DOWN = 32, 8  # threads of a block that shrinks ACROSS groups of one column each
BLOCK = ACROSS * DOWN
TINY = 1e-30  # a group with a smaller sum of squares counts as zero, because the reciprocal of its norm may overflow


# --- reference --------------------------------------------------------------------------------------------------------
def shrink_reference(w, height, width, threshold, reference=0.0):
    """Return (w, norms) after shrinking, in float64."""
    threshold, reference = (threshold, reference) if np.isscalar(threshold) else np.float64(threshold)
    w = np.array(w, np.float64)
    norms = np.zeros(_groups(w, height, width))
    for u, b in np.ndindex(*norms.shape):
        group = w[u * height : (u + 1) * height, b * width : (b + 1) * width]
        norm = np.linalg.norm(group) if not (group * group).sum() < TINY else 0.0
        weighed = reference * math.sqrt(group.size) / norm if reference and norm else 1.0
        norms[u, b] = max(0.0, norm - threshold * weighed * math.sqrt(group.size))
        group *= norms[u, b] / norm if norm else 0.0
    return w, norms


def _groups(w, height, width):
    """Return the numbers of groups along the rows and along the columns of w."""
    return ceil_div(w.shape[0], height), ceil_div(w.shape[1], width)


def _checked(op, empty, full, w, height, width, threshold, reference, norms):
    """Return (numbers, norms): a device array of the threshold and the reference, and the array for the norms."""
    expect(op, w=(w, ("R", "C")))
    if min(height, width) < 1:
        raise ValueError(f"{op}: groups of {height} x {width} of w {tuple(w.shape)} must be at least 1 x 1")
    if np.isscalar(threshold):
        if not (0 <= threshold < math.inf and 0 <= reference < math.inf):
            raise ValueError(f"{op}: the threshold {threshold} and the reference {reference} must be finite and not negative")
        numbers = empty((2,))
        for part, value in ((numbers[:1], threshold), (numbers[1:], reference)):
            full((1,), value, out=part)
    else:
        numbers = threshold
    groups = _groups(w, height, width)
    expect(op, numbers=(numbers, (2,)), norms=(norms, groups))
    return numbers, empty(groups) if norms is None else norms


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, ::1], i8, i8, f4[::1], f4[:, ::1], i8, i8, i8, i8)")
def _shrink(w, height, width, numbers, norms, first, stop, left, right):
    """Shrink the groups in the block rows first … stop - 1 and the block columns left … right - 1."""
    threshold, reference = numbers[0], numbers[1]
    sums = np.empty(right - left, np.float32)
    begin, end = left * width, min(right * width, w.shape[1])
    for u in range(first, stop):
        sums[:] = 0
        top, bottom = u * height, min((u + 1) * height, w.shape[0])
        for r in range(top, bottom):
            row = w[r, begin:end]
            if width == 1:
                for c in range(row.size):
                    sums[c] += row[c] * row[c]
            else:
                for b in range(sums.size):
                    part, total = row[b * width : min((b + 1) * width, row.size)], np.float32(0)
                    for c in range(part.size):
                        total += part[c] * part[c]
                    sums[b] += total
        for b in range(sums.size):
            size = (bottom - top) * (min((b + 1) * width, end - begin) - b * width)
            norm, less = math.sqrt(sums[b]), np.float32(threshold * math.sqrt(size))
            if sums[b] < TINY:
                norm = np.float32(0)
            elif reference > 0:
                less *= np.float32(reference * math.sqrt(size)) / norm
            norms[u, left + b] = np.float32(0) if norm <= less else norm - less
            sums[b] = np.float32(0) if norm <= less else np.float32(1) - less / norm
        for r in range(top, bottom):
            row = w[r, begin:end]
            if width == 1:
                for c in range(row.size):
                    row[c] *= sums[c]
            else:
                for b in range(sums.size):
                    part, factor = row[b * width : min((b + 1) * width, row.size)], sums[b]
                    for c in range(part.size):
                        part[c] *= factor


def shrink_cpu(w, height, width, threshold, reference=0.0, norms=None):
    """w_g <- w_g max(0, 1 - threshold sqrt(n_g) / |w_g|) for each group of height x width, in place; returns (w, norms)

    If `norms` is given, the norms are written to it. `threshold` may be an array (2,) of the threshold and the reference.
    """
    numbers, norms = _checked("shrink (cpu)", empty_cpu, full_cpu, w, height, width, threshold, reference, norms)
    down, across = norms.shape

    def work(part):
        down_span, across_span = (part.of(down), slice(0, across)) if down >= part.count else (slice(0, down), part.of(across))
        _shrink(w, height, width, numbers, norms, down_span.start, down_span.stop, across_span.start, across_span.stop)

    if norms.size:
        threads.share(work, 2 * w.size)
    return w, norms


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("group_shrink")
def _groups_kernel():
    @kernel("void(f4[:, ::1], i4, i4, f4[::1], f4[:, ::1])")
    def groups(w, height, width, numbers, norms):
        """Each block shrinks one group; adjacent threads read adjacent columns."""
        shared, threshold, reference = cuda.shared.array(THREADS, float32), numbers[0], numbers[1]
        t = int32(cuda.threadIdx.x)
        u, b = int32(cuda.blockIdx.x // norms.shape[1]), int32(cuda.blockIdx.x % norms.shape[1])
        top, left = u * height, b * width
        across = min(int32(width), int32(w.shape[1] - left))
        size, total = across * min(int32(height), int32(w.shape[0] - top)), float32(0)
        for i in range(t, size, THREADS):
            value = w[top + i // across, left + i % across]
            total += value * value
        shared[t] = total
        cuda.syncthreads()
        half = int32(THREADS // 2)
        while half > 0:  # a sum over the threads, by a tree
            if t < half:
                shared[t] += shared[t + half]
            cuda.syncthreads()
            half //= 2
        norm, less = math.sqrt(shared[0]), threshold * math.sqrt(float32(size))
        if shared[0] < float32(TINY):
            norm = float32(0)
        elif reference > 0:
            less *= reference * math.sqrt(float32(size)) / norm
        factor = float32(0) if norm <= less else float32(1) - less / norm
        for i in range(t, size, THREADS):
            w[top + i // across, left + i % across] *= factor
        if t == 0:
            norms[u, b] = float32(0) if norm <= less else norm - less

    return groups


@kernels("group_shrink")
def _columns_kernel():
    @kernel("void(f4[:, ::1], i4, f4[::1], f4[:, ::1])")
    def columns(w, height, numbers, norms):
        """Each block shrinks 32 groups (ACROSS) of one column each; the columns are adjacent, so that loads are coalesced."""
        shared, threshold, reference = cuda.shared.array(BLOCK, float32), numbers[0], numbers[1]
        tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        blocks = (w.shape[1] + ACROSS - 1) // ACROSS
        u, c = int32(cuda.blockIdx.x // blocks), int32(cuda.blockIdx.x % blocks * ACROSS) + tx
        top, bottom = u * height, min(int32((u + 1) * height), int32(w.shape[0]))
        total = float32(0)
        if c < w.shape[1]:
            for r in range(top + ty, bottom, DOWN):
                total += w[r, c] * w[r, c]
        shared[ty * ACROSS + tx] = total
        cuda.syncthreads()
        total = float32(0)
        for j in range(DOWN):
            total += shared[j * ACROSS + tx]
        norm, less = math.sqrt(total), threshold * math.sqrt(float32(bottom - top))
        if total < float32(TINY):
            norm = float32(0)
        elif reference > 0:
            less *= reference * math.sqrt(float32(bottom - top)) / norm
        factor = float32(0) if norm <= less else float32(1) - less / norm
        if c < w.shape[1]:
            for r in range(top + ty, bottom, DOWN):
                w[r, c] *= factor
            if ty == 0:
                norms[u, c] = float32(0) if norm <= less else norm - less

    return columns


def shrink_cuda(w, height, width, threshold, reference=0.0, norms=None):
    numbers, norms = _checked("shrink (cuda)", empty_cuda, full_cuda, w, height, width, threshold, reference, norms)
    down, across = norms.shape
    if width == 1:
        launch(_columns_kernel(), down * ceil_div(across, ACROSS), (ACROSS, DOWN), w, height, numbers, norms)
    else:
        launch(_groups_kernel(), norms.size, THREADS, w, height, width, numbers, norms)
    return w, norms


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    groups = {"rows": (1, I), "columns": (O, 1), "tiles": (32, 32), "channels": (O, 9)}
    return {
        **{f"shrink, {name}": lambda shape=shape: dev.shrink(a(O, I), *shape, 0.98) for name, shape in groups.items()},
        "shrink, weighed": lambda: dev.shrink(a(O, I), 1, I, 0.98, 1.1),
        "shrink, numbers of a device": lambda: dev.shrink(a(O, I), 1, I, np.array([0.98, 1.1], np.float32)),
    }
