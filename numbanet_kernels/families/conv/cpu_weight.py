"""Transposition of the weight of a convolution on the CPU, from (O, C / groups, KH, KW) to a matrix whose rows are taps and
channels and whose columns are outputs, and back.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32

from ...host import threads
from ...host.transpose import transpose_block
from ...runtime.declare import host_kernel
from ...runtime.memory import empty_cpu

# LINE outputs and CHANNELS of each at a time: this square stays in the L1 cache, and whole cache lines are written.
LINE, CHANNELS = 64, 32


@host_kernel("void(f4[:, ::1], i8, i8, f4[:, ::1], i8, i8)")
def transpose(w, taps, groups, wt, first, stop):
    """wt[g K + tap C + c, o] = w[g O + o, c taps + tap] for each group g, which has O outputs, C input channels and
    K = taps * C rows of wt. The outputs of each group are divided into lines of at most LINE outputs, numbered over all groups;
    this call writes the lines first … stop - 1.
    """
    depth, outs = w.shape[1], w.shape[0] // groups
    channels, lines = depth // taps, (outs + LINE - 1) // LINE
    room = np.empty((taps * CHANNELS, LINE), np.float32)
    for line in range(first, stop):
        g, o0 = line // lines, line % lines * LINE
        count = min(LINE, outs - o0)
        for c0 in range(0, channels, CHANNELS):
            width = min(CHANNELS, channels - c0)
            transpose_block(w, g * outs + o0, g * outs + o0 + count, c0 * taps, (c0 + width) * taps, room, 0, 0, True)
            for tap in range(taps):
                for c in range(width):
                    values, out = room[c * taps + tap], wt[g * depth + tap * channels + c0 + c, o0 : o0 + count]
                    for o in range(out.size):
                        out[o] = values[o]


def _lines(part, outs, groups):
    """Return (first, stop): a thread transposes the lines first … stop - 1, counted over all groups."""
    own = part.of(groups * -(-outs // groups // LINE))
    return own.start, own.stop


def transposed(w, groups=1):
    """Return the weight w (O, C / groups, KH, KW) as a matrix (groups K, O / groups), where K = KH KW C / groups."""
    flat = w.reshape(len(w), math.prod(w.shape[1:]))
    wt = empty_cpu((groups * flat.shape[1], len(w) // groups))
    threads.share(lambda part: transpose(flat, math.prod(w.shape[2:]), groups, wt, *_lines(part, len(w), groups)), w.size)
    return wt


@host_kernel("void(f4[:, :, ::1], i8, i8, f4[:, ::1], i8, i8)")
def transpose_back(terms, taps, groups, dw, first, stop):
    """dw[g O + o, c taps + tap] = sum_t terms[t, g K + tap C + c, o] for the lines first … stop - 1 of `transpose`."""
    depth, outs = dw.shape[1], dw.shape[0] // groups
    channels, lines = depth // taps, (outs + LINE - 1) // LINE
    room = np.empty((taps * CHANNELS, LINE), np.float32)
    for line in range(first, stop):
        g, o0 = line // lines, line % lines * LINE
        count = min(LINE, outs - o0)
        for c0 in range(0, channels, CHANNELS):
            width = min(CHANNELS, channels - c0)
            for tap in range(taps):
                for c in range(width):
                    values, k = room[c * taps + tap, :count], g * depth + tap * channels + c0 + c
                    for t in range(terms.shape[0]):
                        source = terms[t, k, o0 : o0 + count]
                        for o in range(source.size):
                            values[o] = values[o] + source[o] if t else source[o]
            transpose_block(room, 0, width * taps, 0, count, dw, g * outs + o0, c0 * taps, False)


def transposed_back(terms, shape, groups=1):
    """Return the gradient of a weight of shape `shape`, (O, C / groups, KH, KW), from the transposed gradients of T parts of
    the batch: sum `terms` (T, groups K, O / groups), K = KH KW C / groups, over the parts and transpose the sum back.
    """
    dw = empty_cpu(shape)
    flat, taps = dw.reshape(shape[0], math.prod(shape[1:])), math.prod(shape[2:])
    threads.share(lambda part: transpose_back(terms, taps, groups, flat, *_lines(part, shape[0], groups)), terms.size)
    return dw


@host_kernel("void(f4[:, :, :, :, :, ::1], i8, f4[:, :, :, ::1])")
def add_joined(terms, step, dw):
    """dw[o, c, kh, kw] = sum_t sum_i terms[t, kh, kw + i step, c, i, o] over threads t and joined positions i"""
    for o in range(dw.shape[0]):
        for c in range(dw.shape[1]):
            for kh in range(dw.shape[2]):
                for kw in range(dw.shape[3]):
                    total = float32(0)
                    for t in range(terms.shape[0]):
                        for i in range(terms.shape[4]):
                            total += terms[t, kh, kw + i * step, c, i, o]
                    dw[o, c, kh, kw] = total
