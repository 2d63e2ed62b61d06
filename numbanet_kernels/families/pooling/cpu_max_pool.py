"""Max pooling on the CPU, with argmax: first along the height of a window, then along its width.

A line of pixels is W C floats. The first pass computes the elementwise maximum over the lines of a window, and the index of the
line of the maximum. The second pass computes, for each pixel, the maximum of it and of the pixels to its right that belong to
the same window; windows use only every stride-th result. Both passes run over whole lines, so they are vectorised even if there
are few channels.
"""

from __future__ import annotations

import numpy as np

from ...host.simd import VECTOR, copy_vectors
from ...runtime.declare import host_function, host_kernel
from ...runtime.memory import empty_cpu
from .family import KINDS


@host_function
def _down(image, top, step, taps, best, places):
    """best[k] = max image[top + i step, k] over the i < taps for which this line is in the image, and places[k] = the i of the
    maximum. If there is no such i, best is -inf and places is 0.
    """
    fresh = True
    for i in range(taps):
        h, place = top + i * step, places.dtype.type(i)
        if 0 <= h < image.shape[0]:
            line = image[h]
            for k in range(line.size if fresh else 0):
                best[k], places[k] = line[k], place
            for k in range(0 if fresh else line.size):
                value, before, at = line[k], best[k], places[k]  # all loads come first, so that LLVM vectorises the loop
                larger = (value > before) | (value != value)
                best[k], places[k] = value if larger else before, place if larger else at
            fresh = False
    for k in range(best.size if fresh else 0):
        best[k], places[k] = -np.inf, 0


@host_function
def _across(values, downs, step, taps, best, places):
    """best[k] = max values[k + j step] over j < taps, and places[k] = downs[k + j step] taps + j for the j of the maximum. Of
    equal values the first j is taken, of NaNs the last.
    """
    many = places.dtype.type(taps)
    for k in range(best.size):
        best[k], places[k] = values[k], downs[k] * many
    for j in range(1, taps):
        right, beside, tap = values[j * step :], downs[j * step :], places.dtype.type(j)
        for k in range(best.size):
            value, place, before, at = right[k], beside[k] * many + tap, best[k], places[k]
            larger = (value > before) | ((value == before) & (place < at))
            larger |= (value != value) & ((before == before) | (place > at))
            best[k], places[k] = value if larger else before, places.dtype.type(place) if larger else at


@host_function
def _pick(source, room, target, channels, step):
    """target = the first `channels` of every `step` floats of the source; `room` is a buffer with space for one more vector."""
    for at in range(0, target.size, channels):
        copy_vectors(source, at // channels * step, room, at, channels)
    for k in range(target.size):
        target[k] = room[k]


def _largest(x, y, places, channels, numbers, floats, marks, start, stop):
    """Compute the rows start … stop - 1 of y and places.   x (N, H, W C), y, places (N OH, OW C)

    floats and marks are buffers of three lines. Their first lines are filled with -inf and kh, the maximum and the index of a
    line of padding, so that padding is not chosen even if all pixels of a window are -inf.
    """
    kh, kw, sh, sw, ph, pw, dh, dw = numbers
    for k in range(floats.shape[1]):
        floats[0, k], marks[0, k] = -np.inf, kh
    tall, edge, step = y.shape[0] // x.shape[0], pw * channels, sw * channels
    inner, downs = floats[0, edge : edge + x.shape[2]], marks[0, edge : edge + x.shape[2]]
    seen = (y.shape[1] // channels - 1) * step + channels
    for row in range(start, stop):
        _down(x[row // tall], row % tall * sh - ph, dh, kh, inner, downs)
        _across(floats[0], marks[0], dw * channels, kw, floats[1, :seen], marks[1, :seen])
        _pick(floats[1], floats[2], y[row], channels, step)
        _pick(marks[1], marks[2], places[row], channels, step)


_LARGEST = {
    small: host_kernel(
        f"void(f4[:, :, ::1], f4[:, ::1], {kind}[:, ::1], i8, UniTuple(i8, 8), f4[:, ::1], {kind}[:, ::1], i8, i8)"
    )(_largest)
    for small, kind in KINDS.items()
}


def largest(x, y, places, numbers, start, stop):
    """Compute y[n, oh, ow, c] and places[n, oh, ow, c] for the rows start … stop - 1 of all (n, oh): the maximum of x in the
    window, which `numbers` describe, and kh KW + kw of the first pixel that has it. NaN is larger than any number.
    """
    n, height, width, channels = x.shape
    _, kw, _, sw, _, pw, _, dw = numbers
    size = max(width + 2 * pw, (y.shape[2] - 1) * sw + (kw - 1) * dw + 1) * channels + VECTOR
    floats, marks = empty_cpu((3, size)), empty_cpu((3, size), places.dtype)
    lines = len(y) * y.shape[1], y.shape[2] * channels
    loop = _LARGEST[places.dtype.itemsize == 1]
    loop(
        x.reshape(n, height, width * channels),
        y.reshape(lines),
        places.reshape(lines),
        channels,
        numbers,
        floats,
        marks,
        start,
        stop,
    )
