"""An operation that samples the im2col matrix A of a convolution (`family`) without building it:

    count_large    counts[b, q] = the number of sampled values of region (b, q) of A whose magnitude exceeds a threshold

`positions` are the numbers of rows of A along the height and the width of an image, by default those of the window; if there
are more, they read 0 beyond the image. A is cut into regions of height x width. Every region is sampled at the same `offsets`
(S, 2) from its first row and column. If a sample is beyond the last row, the last row is read instead; a sample beyond the last
column counts as small.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numba import int32, int64, uint64

from ...host import threads
from ...layouts.windows import Window
from ...runtime.declare import cuda, host_function, host_kernel, kernel, kernels, tape
from ...runtime.expect import INT32, expect
from ...runtime.launch import launch
from ...runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat, full_cpu, upload_cuda
from . import cpu_im2col_loops as loops
from .cpu_im2col import padded
from .family import im2col_reference


# --- reference --------------------------------------------------------------------------------------------------------
def count_large_reference(x, window, height, width, offsets, threshold, positions=None):
    """Return the counts of count_large, an array (number of regions along the rows, along the columns)."""
    down, across = window.positions(*x.shape[1:3]) if positions is None else positions
    more = [(0, n * step) for n, step in zip((down, across), window.stride)]
    wide = np.pad(x, ((0, 0), *more, (0, 0)))
    depth = math.prod(window.kernel) * x.shape[3]
    a = np.abs(im2col_reference(wide, window)[0]).reshape(len(x), *window.positions(*wide.shape[1:3]), depth)
    a = a[:, :down, :across].reshape(len(x) * down * across, depth)
    rows, columns = (-(-n // side) for n, side in zip(a.shape, (height, width)))
    found = np.zeros((rows, columns))
    for row, column in np.asarray(offsets):
        at = np.minimum(np.arange(rows) * height + row, len(a) - 1)
        across = np.arange(columns) * width + column
        inside = across < a.shape[1]
        found[:, inside] += a[at][:, across[inside]] > threshold
    return found


def _checked(op, x, window, height, width, offsets, positions):
    """Check the arguments. Return (numbers of regions along the rows and along the columns), `geometry` of the images, and
    `segments` of single columns.
    """
    expect(op, x=(x, ("N", "H", "W", "C")), offsets=(offsets, ("S", 2), INT32))
    if min(*window.kernel, *window.stride, *window.dilation) < 1 or min(window.padding) < 0:
        raise ValueError(f"{op}: {window} must have sizes from 1 and paddings from 0 on")
    positions = window.positions(*x.shape[1:3]) if positions is None else tuple(positions)
    if min(positions) < 0:
        raise ValueError(f"{op}: the numbers of positions must be from 0 on, got {positions}")
    total, depth = x.shape[0] * math.prod(positions), math.prod(window.kernel) * x.shape[3]
    if min(height, width) < 1:
        raise ValueError(f"{op}: regions of {height} x {width} must be at least 1 x 1")
    geometry = loops.geometry(window, x.shape, positions)
    return (-(-total // height), -(-depth // width)), geometry, _single(window, x.shape[3])


@functools.lru_cache(maxsize=256)
def _single(window, channels):
    return loops.segments(window, channels, channels, 1)[0]


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_function
def _sees(segment, top, left, height, line):
    """Return True if a column of a patch at this position is inside the image."""
    return 0 <= top + segment[0] < height and 0 <= left + segment[1] < line


@host_kernel("void(f4[::1], i8, i8[::1], i8[:, ::1], i8, i8, i8, i4[:, ::1], f4, i4[:, ::1], i8, i8)")
def _count(pixels, channels, geometry, table, rows, height, width, offsets, threshold, counts, first, stop):
    """Count large values in the regions of the block rows first … stop - 1."""
    numbers, found, samples = loops.unpacked(geometry), (-geometry[7], int64(0), int64(0)), offsets.shape[0]
    tall, line, down, across = numbers[0], numbers[1] * channels, numbers[8], numbers[9]
    reach = np.full((counts.shape[1], samples), -1, np.int64)  # offset of each sample from its patch's first float
    for q in range(reach.shape[0]):
        for s in range(samples):
            column = q * width + offsets[s, 1]
            if 0 <= column < table.shape[0]:
                reach[q, s] = table[column, 0] * line + table[column, 1]
    tops, lefts, origins = np.empty(samples, np.int64), np.empty(samples, np.int64), np.empty(samples, np.int64)
    each, complete = 0 if (offsets[:, 0] == offsets[0, 0]).all() else 1, (reach >= 0).all()  # 0: all samples are of one row
    for b in range(first, stop):
        inside = True
        for s in range(samples if each else 1):
            row = min(b * height + offsets[s, 0], rows - 1)
            found = loops.patch_origin(row, numbers, found)
            tops[s], lefts[s] = found[2], loops.patch_left(row, numbers, found, channels)
            origins[s] = (found[1] + tops[s]) * line + lefts[s]
            inside = inside and 0 <= tops[s] < tall - down and 0 <= lefts[s] <= line - across
        for q in range(counts.shape[1]):
            total = int32(0)
            if inside and complete:  # without branches
                for s in range(samples):
                    total += int32(abs(pixels[uint64(origins[each * s] + reach[q, s])]) > threshold)
                counts[b, q] = total
                continue
            for s in range(samples):
                at = each * s
                if reach[q, s] >= 0 and (inside or _sees(table[q * width + offsets[s, 1]], tops[at], lefts[at], tall, line)):
                    total += int32(abs(pixels[uint64(origins[at] + reach[q, s])]) > threshold)
            counts[b, q] = total


def count_large_cpu(x, window, height, width, offsets, threshold, positions=None):
    """counts[b, q] = the number of sampled values of region (b, q) of A whose magnitude exceeds a threshold"""
    shape, geometry, table = _checked("count_large (cpu)", x, window, height, width, offsets, positions)
    if not len(offsets):
        return full_cpu(shape, 0, np.int32)
    if tape.get() is None and offsets.min() < 0:  # replays read other offsets, which a policy draws
        raise ValueError(f"count_large (cpu): offsets must be from 0 on, got {offsets.min()}")
    counts = empty_cpu(shape, np.int32)
    rows = x.shape[0] * int(geometry[6] * geometry[7])
    x, window = padded(x, window)
    geometry = loops.geometry(window, x.shape, tuple(geometry[6:8]))

    def work(part):
        own = part.of(shape[0])
        _count(x.reshape(-1), x.shape[3], geometry, table, rows, height, width, offsets, threshold, counts, own.start, own.stop)

    threads.share(work, 4 * counts.size * len(offsets))
    return counts


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("conv")
def _counting():
    @kernel("void(f4[::1], f4, i4[:, ::1], i4[::1], i4[:, ::1], i4[:, ::1], i4, i4, i4)")
    def count(pixels, threshold, offsets, geometry, table, counts, rows, height, width):
        """Each thread counts in one region."""
        i = cuda.grid(1)
        if i < counts.size:
            b, q, found = i // counts.shape[1], i % counts.shape[1], int32(0)
            tall, line, places = geometry[0], geometry[1], geometry[6] * geometry[7]
            for s in range(offsets.shape[0]):
                row, column = min(b * height + offsets[s, 0], rows - 1), q * width + offsets[s, 1]
                if 0 <= column < table.shape[0] and row >= 0:
                    place = row % places
                    h = place // geometry[7] * geometry[2] - geometry[4] + table[column, 0]
                    at = (place % geometry[7] * geometry[3] - geometry[5]) * geometry[8] + table[column, 1]
                    inside = 0 <= h < tall and 0 <= at < line
                    if inside and abs(pixels[(row // places * tall + h) * line + at]) > threshold:
                        found += int32(1)
            counts[b, q] = found

    return count


def count_large_cuda(x, window, height, width, offsets, threshold, positions=None):
    shape, geometry, table = _checked("count_large (cuda)", x, window, height, width, offsets, positions)
    counts, channels = empty_cuda(shape, np.int32), x.shape[3]
    numbers = np.array([geometry[0], geometry[1] * channels, *geometry[2:8], channels], np.int32)
    launch(
        _counting(),
        blocks_for(counts.size),
        THREADS,
        flat(x),
        threshold,
        offsets,
        upload_cuda(numbers),
        upload_cuda(table[:, :2].astype(np.int32)),
        counts,
        x.shape[0] * int(geometry[6] * geometry[7]),
        height,
        width,
    )
    return counts


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    window = Window((3, 3), (1, 1), (1, 1))
    return {"count_large": lambda: dev.count_large(a(4, 9, 8, 4), window, 2, 5, a.indices(5, 7, 2), 0.5)}
