"""Images are shifted and mirrored for training, by random numbers for each image.

    crop_flip   y[n, c, h, w] = x[n, c, h + down, w' + right], 0 outside x      x, y (N, C, H, W), moves (N, 3)
                where (down, right, flipped) = moves[n], and w' = W - 1 - w if flipped is not 0, else w

The result is a crop of the zero-padded image with the size of the image, which may be mirrored. On the CPU, threads divide the
images, and a loop copies rows; on CUDA, each thread copies one element.
"""

from __future__ import annotations

import numpy as np
from numba import float32

from ..host import threads
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import INT32
from ..runtime.launch import launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat, output, overlap_cpu, overlap_cuda

IMAGES = ("N", "C", "H", "W")


# --- reference --------------------------------------------------------------------------------------------------------
def crop_flip_reference(x, moves):
    """y[n, c, h, w] = x[n, c, h + down, w' + right], 0 outside x; exact"""
    y, (height, width) = np.zeros_like(x), x.shape[2:]
    for n, (down, right, flipped) in enumerate(np.int64(moves)):
        for h in range(height):
            for w in range(width):
                row, column = h + down, (width - 1 - w if flipped else w) + right
                if 0 <= row < height and 0 <= column < width:
                    y[n, :, h, w] = x[n, :, row, column]
    return y


def _output(op, empty, overlap, x, moves, out):
    y = output(op, empty, out, IMAGES, x=(x, IMAGES), moves=(moves, ("N", 3), INT32))
    if out is not None and overlap(x, out):
        raise ValueError(f"{op}: out must not be x, or overlap it: later elements still read x")
    return y


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, :, :, ::1], i4[:, ::1], f4[:, :, :, ::1], i8, i8)")
def _crop_flip(x, moves, y, start, stop):
    """Compute the images start … stop - 1. Indices are unsigned, so that LLVM vectorises the loops."""
    height, width = x.shape[2], x.shape[3]
    for n in range(start, stop):
        down, right, flipped = np.int64(moves[n, 0]), np.int64(moves[n, 1]), moves[n, 2] != 0
        first, last = min(max(-right, 0), width), max(min(width - right, width), 0)  # range of the columns w' that are inside x
        count = np.uint64(last - first)
        for c in range(x.shape[1]):
            y[n, c] = 0
            plane_x, plane_y = x[n, c].reshape(height * width), y[n, c].reshape(height * width)
            for h in range(max(-down, 0), min(height - down, height)):
                source = np.uint64((h + down) * width + first + right)
                if flipped:
                    target = np.uint64(h * width + width - first - 1)
                    for k in range(count):
                        plane_y[target - k] = plane_x[source + k]
                else:
                    target = np.uint64(h * width + first)
                    for k in range(count):
                        plane_y[target + k] = plane_x[source + k]


def crop_flip_cpu(x, moves, out=None):
    """y[n, c, h, w] = x[n, c, h + down, w' + right], 0 outside x, for (down, right, flipped) = moves[n]; w' as in the module's
    docstring"""
    y = _output("crop_flip (cpu)", empty_cpu, overlap_cpu, x, moves, out)

    def work(part):
        span = part.of(len(x))
        _crop_flip(x, moves, y, span.start, span.stop)

    threads.share(work, y.size)
    return y


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("augment")
def _moving():
    @kernel("void(f4[::1], i4[:, ::1], f4[::1], i4, i4, i4)")
    def crop_flip(x, moves, y, channels, height, width):
        """Each thread copies one element; adjacent threads read and write adjacent elements."""
        i = cuda.grid(1)
        if i < y.size:
            w, rest = i % width, i // width
            h, plane = rest % height, rest // height
            n = plane // channels
            row = h + moves[n, 0]
            column = (width - 1 - w if moves[n, 2] != 0 else w) + moves[n, 1]
            inside = 0 <= row < height and 0 <= column < width
            y[i] = x[(plane * height + row) * width + column] if inside else float32(0)

    return crop_flip


def crop_flip_cuda(x, moves, out=None):
    y = _output("crop_flip (cuda)", empty_cuda, overlap_cuda, x, moves, out)
    launch(_moving(), blocks_for(y.size), THREADS, flat(x), moves, flat(y), *x.shape[1:])
    return y


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    n, height, width = N // 8 + 1, I // 16 + 1, O // 16 + 1
    return {"crop_flip": lambda: dev.crop_flip(a(n, 3, height, width), a.indices(9, n, 3) - np.int32(4))}
