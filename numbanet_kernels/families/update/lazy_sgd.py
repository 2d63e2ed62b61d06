"""Steps that sgd left undone in blocks of a weight, done at once.

A step without a gradient is linear, (w, v) -> M (w, v), so sgd (`family`) can leave it undone where nobody reads w, and do
k such steps at once as M^k when somebody will. With lazy, a `layouts.packed.LazyBlocks`, w is divided into U x B blocks:

    lag (U, B)       int32, how many steps each block misses
    after (U, B)     int32, the same after this step: what the update writes
    current (U, B)   bool, the blocks that were wanted for this step: they are up to date and take the step with g
    wanted (U, B)    bool, the blocks that will be read before the next step: they catch up; all others fall behind
    powers (K, 4)    float32, M^0, M^1, …, row by row (`sgd_powers`); lag + 1 is less than K everywhere
    block            (rows, columns) of a block; those at the far edges may stick out

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
    """(count, 4): M^0, M^1, … row by row, M the step (w, v) -> M (w, v) that sgd makes where g = 0."""
    v = np.array([decay, momentum])
    ahead = np.array([decay, 0.0]) + momentum * v if nesterov else v
    step = np.array([[1.0, 0.0] - lr * ahead, v])
    powers = [np.eye(2)]
    for _ in range(count - 1):
        powers.append(step @ powers[-1])
    return np.reshape(powers, (-1, 4))


def sgd_settle_reference(w, v, lazy):
    """(w, v) after the steps that each block misses, float64."""
    steps = np.kron(lazy.lag, np.ones(lazy.block, int))[: w.shape[0], : w.shape[1]]
    ww, wv, vw, vv = np.moveaxis(np.float64(lazy.powers)[steps], -1, 0)
    return ww * w + wv * v, vw * w + vv * v


# --- CPU --------------------------------------------------------------------------------------------------------------
def lazy_pays_cpu(elements):
    """Whether a weight of so many elements is updated sooner by blocks than as a whole."""
    return elements >= thresholds.current.lazy_elements


def sgd_powers_cpu(count, lr, momentum=0.0, nesterov=False, decay=0.0):
    """M^0, M^1, … row by row, M the step (w, v) -> M (w, v) that sgd makes where g = 0"""
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
    """(w, v) -> M^lag (w, v) in every block, in place: all that `sgd` left undone"""
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
        """One thread, one weight: the steps that its block missed, as one."""
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
    """True: a launch takes the same time either way."""
    return True


def sgd_powers_cuda(count, lr, momentum=0.0, nesterov=False, decay=0.0):
    return to_device(sgd_powers_cpu(count, lr, momentum, nesterov, decay))


def sgd_settle_cuda(w, v, lazy):
    check_update("sgd_settle (cuda)", SGDUpdate(w, v, w, lazy=lazy))
    launch(_settling(), blocks_for(w.size), THREADS, w, v, lazy.lag, lazy.powers, *lazy.block)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def lazy_example(a, O, I, block=(9, 20)):
    """The state of a weight in blocks: some current, some wanted, some left alone."""
    blocks = tuple(map(ceil_div, (O, I), block))
    current, wanted, lag = a.indices(2, *blocks) == 0, a.indices(2, *blocks) == 0, a.indices(3, *blocks) + np.int32(1)
    lag, after = np.where(current, np.int32(0), lag), np.zeros_like(lag)
    return LazyBlocks(lag, after, current, wanted, sgd_powers_cpu(8, 0.1, 0.9), block)


def examples(dev, a, N, I, O):
    return {"sgd_settle": lambda: dev.sgd_settle(a(O, I), a(O, I), lazy_example(a, O, I))}
