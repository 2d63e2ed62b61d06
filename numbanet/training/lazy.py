"""Missed steps: blocks of a weight that nobody reads are left alone, and brought up to date when somebody does.

A step of SGD without a gradient is linear, (w, v) -> M (w, v), so that k missed ones are M^k
(`numbanet_kernels.families.update.lazy_sgd`).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbanet_kernels.layouts.packed import LazyBlocks

from ..device import Device
from ..plans import DevicePlan


@functools.lru_cache(maxsize=64)
def _every_block(blocks: tuple[int, int], dev: Device) -> tuple[Any, Any]:
    """Device arrays: int32, none lags, and bool, all are wanted."""
    return dev.upload(np.zeros(blocks, np.int32)), dev.upload(np.ones(blocks, bool))


@functools.lru_cache(maxsize=64)
def _powers(dev: Device, count: int, numbers: tuple) -> Any:
    return dev.sgd_powers(count, *numbers)


class LazyUpdates:
    """The steps that the blocks of one weight miss. Its arrays stay, because recorded updates read them.

    shape and block are rows and columns of the weight, and of a block of it; numbers are learning rate, momentum, nesterov and
    weight decay: what a step without a gradient does.
    """

    LIMIT = 256  # steps that a block can miss: then all of the weight is brought up to date

    def __init__(self, dev: Device, shape: tuple[int, int], block: tuple[int, int], numbers: tuple) -> None:
        self.dev, self.block, self.numbers, self.count = dev, block, numbers, 0
        self.none, self.every = _every_block(tuple(-(-n // size) for n, size in zip(shape, block, strict=True)), dev)
        self.lag, self.after = (dev.copy(self.none) for _ in range(2))
        self.current, self.wanted = (dev.copy(self.every) for _ in range(2))
        self.powers = dev.copy(_powers(dev, self.LIMIT + 1, numbers))
        self.partly = False  # whether some blocks are not wanted

    @property
    def blocks(self) -> LazyBlocks:
        """What the kernels take."""
        return LazyBlocks(self.lag, self.after, self.current, self.wanted, self.powers, self.block)

    def want(self, kept: DevicePlan | None) -> None:
        """What will be read before the next step; None: everything."""
        wanted = None if kept is None or self.count + 1 >= self.LIMIT else kept.wanted
        self.partly = wanted is not None
        self.dev.copy(self.every if wanted is None else wanted, out=self.wanted)

    def stepped(self) -> None:
        """A step was done: what it wrote is what the next one reads."""
        self.lag, self.after, self.current, self.wanted = self.after, self.lag, self.wanted, self.current
        self.count = self.count + 1 if self.partly else 0

    def settled(self) -> None:
        """All blocks are up to date."""
        self.dev.copy(self.none, out=self.lag)
        self.dev.copy(self.every, out=self.current)
        self.count = 0

    def renumber(self, numbers: tuple) -> None:
        """Steps have other numbers from here on, where all blocks are up to date."""
        self.dev.copy(_powers(self.dev, self.LIMIT + 1, numbers), out=self.powers)
        self.numbers = numbers
