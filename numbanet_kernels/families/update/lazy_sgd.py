"""Lazy SGD: blocks of a weight skip steps and later make all of them at once.

A step without a gradient is linear, (w, v) -> M (w, v). So sgd (`family`) can skip it while the block is not read, and later
replace k such steps by M^k. If an update has `lazy`, a `layouts.packed.LazyBlocks`, w is divided into U x B blocks:

    lag (U, B)       int32, number of steps that each block has skipped
    after (U, B)     int32, the same after this step: the update writes it
    current (U, B)   bool, blocks wanted for this step: they are up to date and take the step with g
    wanted (U, B)    bool, blocks that are read before the next step: they catch up; all others skip this step
    powers (K, 4)    float32, M^0, M^1, …, row by row (`sgd_powers`); lag + 1 is less than K everywhere
    block            (rows, columns) of a block; those at the far edges may be cut off

    settle           (w, v) -> M^lag (w, v) in every block
"""

from __future__ import annotations

import numpy as np

from ...host import threads, thresholds
from ...layouts.packed import LazyBlocks, SGDUpdate
from ...runtime.arrays import to_device
from ...runtime.declare import cuda, host_kernel, kernel, kernels
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import THREADS, blocks_for
from .packed import check_update


# --- reference --------------------------------------------------------------------------------------------------------
def sgd_powers_reference(count, lr, momentum=0.0, nesterov=False, decay=0.0):
    """(count, 4): M^0, M^1, … row by row; M is the step (w, v) -> M (w, v) of sgd with g = 0."""
    v = np.array([decay, momentum])
    ahead = np.array([decay, 0.0]) + momentum * v if nesterov else v
    step = np.array([[1.0, 0.0] - lr * ahead, v])
    powers = [np.eye(2)]
    for _ in range(count - 1):
        powers.append(step @ powers[-1])
    return np.reshape(powers, (-1, 4))


def sgd_settle_reference(w, v, lazy):
    """(w, v) after the skipped steps of each block, in float64."""
    steps = np.kron(lazy.lag, np.ones(lazy.block, int))[: w.shape[0], : w.shape[1]]
    ww, wv, vw, vv = np.moveaxis(np.float64(lazy.powers)[steps], -1, 0)
    return ww * w + wv * v, vw * w + vv * v


# --- CPU --------------------------------------------------------------------------------------------------------------
def lazy_pays_cpu(elements):
    """True if updating a weight of this many elements by blocks is faster than updating it as a whole."""
    return elements >= thresholds.current.lazy_elements


def sgd_powers_cpu(count, lr, momentum=0.0, nesterov=False, decay=0.0):
    """M^0, M^1, … row by row; M is the step (w, v) -> M (w, v) of sgd with g = 0"""
    return sgd_powers_reference(count, lr, momentum, nesterov, decay).astype(np.float32)


@host_kernel("void(f4[:, ::1], f4[:, ::1], i4[:, ::1], f4[:, ::1], i8, i8)")
def _settle(w, v, lag, powers, height, width):
    for r in range(w.shape[0]):
        for b in range(lag.shape[1]):
            steps = min(lag[r // height, b], powers.shape[0] - 1)
            if steps > 0:
                row, velocity = w[r, b * width : (b + 1) * width], v[r, b * width : (b + 1) * width]
                ww, wv, vw, vv = powers[steps, 0], powers[steps, 1], powers[steps, 2], powers[steps, 3]
                for c in range(row.size):
                    before = row[c]
                    row[c] = ww * before + wv * velocity[c]
                    velocity[c] = vw * before + vv * velocity[c]


def sgd_settle_cpu(w, v, lazy):
    """(w, v) -> M^lag (w, v) in every block, in place: all steps that `sgd` skipped"""
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


def lazy_pays_cuda(elements):
    """True for every number of elements: a launch takes about the same time either way."""
    return True


def sgd_powers_cuda(count, lr, momentum=0.0, nesterov=False, decay=0.0):
    return to_device(sgd_powers_cpu(count, lr, momentum, nesterov, decay))


def sgd_settle_cuda(w, v, lazy):
    check_update("sgd_settle (cuda)", SGDUpdate(w, v, w, lazy=lazy))
    launch(_settling(), blocks_for(w.size), THREADS, w, v, lazy.lag, lazy.powers, *lazy.block)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def lazy_example(a, O, I, block=(9, 20)):
    """The state of a weight in blocks: some current, some wanted, some neither."""
    blocks = tuple(map(ceil_div, (O, I), block))
    current, wanted, lag = a.indices(2, *blocks) == 0, a.indices(2, *blocks) == 0, a.indices(3, *blocks) + np.int32(1)
    lag, after = np.where(current, np.int32(0), lag), np.zeros_like(lag)
    return LazyBlocks(lag, after, current, wanted, sgd_powers_cpu(8, 0.1, 0.9), block)


def examples(dev, a, N, I, O):
    return {"sgd_settle": lambda: dev.sgd_settle(a(O, I), a(O, I), lazy_example(a, O, I))}
