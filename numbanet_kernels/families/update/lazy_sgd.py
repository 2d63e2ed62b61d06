"""Lazy SGD: blocks of a weight w skip steps, and later make all skipped steps at once.

With a gradient of zero, a step of sgd (`family`) is a linear map of an element w and its velocity v: (w, v) -> M (w, v), where
M is a 2 x 2 matrix. So sgd can skip the steps of a block while nothing reads the block, and later replace k steps by M^k.
If an update has `lazy`, a `layouts.packed.LazyBlocks`, w is divided into U x B blocks:

    lag (U, B)       int32: the number of steps that each block has skipped
    after (U, B)     int32: the same number after this step; the update writes it
    current (U, B)   bool: the block was wanted for this step, so it is up to date; it makes the step with the gradient g
    wanted (U, B)    bool: the block is read before the next step, so it makes all skipped steps now
    powers (K, 4)    float32: row k holds the elements of M^k, row by row (`sgd_powers`); lag + 1 < K in every block
    block            (rows, columns) of a block; blocks at the far edges may be smaller

A block that is neither current nor wanted skips this step. The operation `sgd_settle` maps (w, v) to M^lag (w, v) in every
block.
"""

from __future__ import annotations

import numpy as np

from ...host import threads, thresholds
from ...layouts.packed import LazyBlocks, SGDUpdate
from ...runtime.arrays import to_device
from ...runtime.declare import cuda, host_function, host_kernel, kernel, kernels
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import THREADS, blocks_for
from .packed import check_update


# --- reference --------------------------------------------------------------------------------------------------------
def sgd_powers_reference(count, lr, momentum=0.0, nesterov=False, decay=0.0):
    """Return an array (count, 4) whose row k holds the elements of M^k, row by row; the 2 x 2 matrix M is defined by a step of
    sgd with gradient 0: (w, v) -> M (w, v).
    """
    v = np.array([decay, momentum])
    ahead = np.array([decay, 0.0]) + momentum * v if nesterov else v
    step = np.array([[1.0, 0.0] - lr * ahead, v])
    powers = [np.eye(2)]
    for _ in range(count - 1):
        powers.append(step @ powers[-1])
    return np.reshape(powers, (-1, 4))


def sgd_settle_reference(w, v, lazy):
    """Return (w, v), in float64, after each block has made its skipped steps."""
    steps = np.kron(lazy.lag, np.ones(lazy.block, int))[: w.shape[0], : w.shape[1]]
    ww, wv, vw, vv = np.moveaxis(np.float64(lazy.powers)[steps], -1, 0)
    return ww * w + wv * v, vw * w + vv * v


# --- CPU --------------------------------------------------------------------------------------------------------------
TINY = np.finfo(np.float32).tiny  # the smallest normal number


def lazy_pays_cpu(elements):
    """Return True if updating a weight of this many elements by blocks is faster than updating it as a whole."""
    return elements >= thresholds.current.lazy_elements


def sgd_powers_cpu(count, lr, momentum=0.0, nesterov=False, decay=0.0):
    """powers[k] = the elements of M^k, row by row, for k = 0 … count - 1.   powers (count, 4)

    The 2 x 2 matrix M is defined by a step of sgd with gradient 0: (w, v) -> M (w, v).
    """
    powers = sgd_powers_reference(count, lr, momentum, nesterov, decay).astype(np.float32)
    powers[np.abs(powers) < TINY] = 0  # see `flushed`
    return powers


@host_function
def flushed(number):
    """Return the number, or 0 if it is subnormal. Velocities and moments of elements without a gradient become subnormal, with
    a momentum of 0.9 after some 800 steps. They would stay so, because a product with 0.9 rounds the smallest numbers to
    themselves, and arithmetic with subnormal numbers takes many times as long.
    """
    return np.float32(0) if abs(number) < TINY else number


@host_function
def make_skipped(row, velocity, power):
    """(w, v) -> M^k (w, v) for a part of a row, in place; `power` holds the elements of M^k"""
    ww, wv, vw, vv = power[0], power[1], power[2], power[3]
    for c in range(row.size):
        before = row[c]
        row[c] = ww * before + wv * velocity[c]
        velocity[c] = flushed(vw * before + vv * velocity[c])


@host_kernel("void(f4[:, ::1], f4[:, ::1], i4[:, ::1], f4[:, ::1], i8, i8)")
def _settle(w, v, lag, powers, height, width):
    for r in range(w.shape[0]):
        for b in range(lag.shape[1]):
            steps = min(lag[r // height, b], powers.shape[0] - 1)
            if steps > 0:
                make_skipped(w[r, b * width : (b + 1) * width], v[r, b * width : (b + 1) * width], powers[steps])


def sgd_settle_cpu(w, v, lazy):
    """(w, v) -> M^lag (w, v) in every block, in place: each block makes all steps that `sgd` skipped"""
    check_update("sgd_settle (cpu)", SGDUpdate(w, v, w, lazy=lazy))

    def work(part):
        units, height = part.of(lazy.lag.shape[0]), lazy.block[0]
        rows = slice(units.start * height, units.stop * height)
        _settle(w[rows], v[rows], lazy.lag[units], lazy.powers, *lazy.block)

    threads.share(work, w.size)


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("update")
def _settling():
    @kernel("void(f4[:, ::1], f4[:, ::1], i4[:, ::1], f4[:, ::1], i4, i4)")
    def settle(w, v, lag, powers, height, width):
        """Each thread makes the skipped steps of one element of the weight, as one step."""
        i = cuda.grid(1)
        if i < w.size:
            r, c = i // w.shape[1], i % w.shape[1]
            steps = min(lag[r // height, c // width], powers.shape[0] - 1)
            if steps > 0:
                before, velocity = w[r, c], v[r, c]
                w[r, c] = powers[steps, 0] * before + powers[steps, 1] * velocity
                v[r, c] = powers[steps, 2] * before + powers[steps, 3] * velocity

    return settle


TIMES = 16  # as many elements as on a CPU: a GPU updates 2^25 of them in 0.1 ms, and a step that is not lazy can be queued


def lazy_pays_cuda(elements):
    return elements >= TIMES * thresholds.current.lazy_elements


def sgd_powers_cuda(count, lr, momentum=0.0, nesterov=False, decay=0.0):
    return to_device(sgd_powers_cpu(count, lr, momentum, nesterov, decay))


def sgd_settle_cuda(w, v, lazy):
    check_update("sgd_settle (cuda)", SGDUpdate(w, v, w, lazy=lazy))
    launch(_settling(), blocks_for(w.size), THREADS, w, v, lazy.lag, lazy.powers, *lazy.block)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def lazy_example(a, O, I, block=(9, 20)):
    """Return the `LazyBlocks` of a weight (O, I): some blocks are current, some are wanted, and some are neither."""
    blocks = tuple(map(ceil_div, (O, I), block))
    current, wanted, lag = a.indices(2, *blocks) == 0, a.indices(2, *blocks) == 0, a.indices(3, *blocks) + np.int32(1)
    lag, after = np.where(current, np.int32(0), lag), np.zeros_like(lag)
    return LazyBlocks(lag, after, current, wanted, sgd_powers_cpu(8, 0.1, 0.9), block)


def examples(dev, a, N, I, O):
    return {"sgd_settle": lambda: dev.sgd_settle(a(O, I), a(O, I), lazy_example(a, O, I))}
