"""When barriers are complete: which of the waiting threads may go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .program import Program
from .races import BIT_OF_LANE
from .spaces import WARP
from .wave import Wave


def whole_warps(wave: Wave, threads: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return those of the waiting `threads` whose barrier is complete: each thread in its mask also waits, or has returned.
    members (T,), uint32, holds the mask of each thread.
    """
    if (threads | ~wave.alive).all():
        return threads
    here = threads.reshape(-1, WARP)
    wanted = members.reshape(-1, WARP)[:, :, None] & BIT_OF_LANE != 0  # wanted[w, i, j]: lane i of warp w waits for lane j
    missing = wanted & wave.alive.reshape(-1, 1, WARP) & ~here[:, None, :]
    return (here & ~missing.any(axis=2)).ravel()


def whole_blocks(wave: Wave, threads: np.ndarray) -> np.ndarray:
    """Return those of the waiting `threads` whose barrier is complete: each thread of the block also waits, or has returned."""
    size = wave.warps_a_block * WARP
    here = (threads | ~wave.alive).reshape(-1, size).all(axis=1)
    return threads & here[wave.blocks]


def whole_grid(wave: Wave, threads: np.ndarray) -> np.ndarray:
    """Return those of the waiting `threads` whose barrier is complete: all threads of the grid that have not returned wait, and
    some of each block do. All blocks of a grid that synchronises are in one wave.
    """
    blocks = np.bincount(wave.blocks[threads], minlength=wave.blocks[-1] + 1)
    return threads & bool((threads | ~wave.alive).all() and blocks.all())


def some_threads(program: Program, number: int, count: Callable[[Wave], Any]) -> Callable[[Wave, np.ndarray], np.ndarray]:
    """Return the function for barrier `number` of `count` threads of a block: those of the waiting threads in whose block that
    many wait at this barrier, at any instruction, or have arrived there. Warps count as a whole.
    """

    def complete(wave: Wave, threads: np.ndarray) -> np.ndarray:
        from .instructions import steps

        decoded = steps(program)
        waiting = np.zeros(wave.count, bool)
        for place, others in wave.held.items():
            if decoded[place[-1]].number == number:
                waiting |= others
        warps = waiting.reshape(-1, wave.warps_a_block, WARP).any(axis=2).sum(axis=1) * WARP + wave.arrived.get(number, 0)
        return threads & (warps[wave.blocks] >= np.broadcast_to(count(wave), wave.count))

    return complete
