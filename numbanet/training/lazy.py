"""Lazy updates: a block of a weight that is not read skips the updates of SGD, and makes all skipped updates at once before it
is read.

A step of SGD without a gradient is a linear map of a weight w and its velocity v, (w, v) -> M (w, v). So k skipped steps are
one multiplication by M^k (`numbanet_kernels.families.update.lazy_sgd`).
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
    """Return two cached device arrays with an element per block: int32 zeros (no skipped steps), and bool ones (all wanted)."""
    return dev.upload(np.zeros(blocks, np.int32)), dev.upload(np.ones(blocks, bool))


@functools.lru_cache(maxsize=64)
def _powers(dev: Device, count: int, numbers: tuple) -> Any:
    return dev.sgd_powers(count, *numbers)


class LazyUpdates:
    """Holds how many steps each block of one weight has skipped. The arrays of this object are never replaced, because recorded
    updates read them.

    `shape` is (rows, columns) of the weight, and `block` is (rows, columns) of a block. `numbers` are the learning rate, the
    momentum, nesterov and the weight decay, which determine a step without a gradient.
    """

    LIMIT = 256  # number of lazy steps after which the whole weight is brought up to date

    def __init__(self, dev: Device, shape: tuple[int, int], block: tuple[int, int], numbers: tuple) -> None:
        self.dev, self.shape, self.block, self.numbers, self.count = dev, shape, block, numbers, 0
        self.none, self.every = _every_block(tuple(-(-n // size) for n, size in zip(shape, block, strict=True)), dev)
        self.lag, self.after = (dev.copy(self.none) for _ in range(2))
        self.current, self.wanted = (dev.copy(self.every) for _ in range(2))
        self.powers = dev.copy(_powers(dev, self.LIMIT + 1, numbers))
        self.partly = False  # True if the next step does not read all blocks

    def restored(self, state: dict[str, Any]) -> LazyUpdates:
        """Restore what `state` returned for an object with the same arguments; return this object."""
        self.count = state["count"]
        for name in ("lag", "current"):
            self.dev.copy(self.dev.upload(state[name]), out=getattr(self, name))
        return self

    def state(self) -> dict[str, Any]:
        """Return a dict of what the next step reads, with arrays on the host."""
        numbers = {name: getattr(self, name) for name in ("shape", "block", "numbers", "count")}
        return {**numbers, **{name: np.array(self.dev.download(getattr(self, name))) for name in ("lag", "current")}}

    @property
    def blocks(self) -> LazyBlocks:
        """The `LazyBlocks` that the update kernels take."""
        return LazyBlocks(self.lag, self.after, self.current, self.wanted, self.powers, self.block)

    def want(self, kept: DevicePlan | None) -> None:
        """Set the part of the weight that is read before the next step; None stands for the whole weight."""
        wanted = None if kept is None or self.count + 1 >= self.LIMIT else kept.wanted
        self.partly = wanted is not None
        self.dev.copy(self.every if wanted is None else wanted, out=self.wanted)

    def stepped(self) -> None:
        """Called after a step: the arrays that the step wrote become the arrays that the next step reads."""
        self.lag, self.after, self.current, self.wanted = self.after, self.lag, self.wanted, self.current
        self.count = self.count + 1 if self.partly else 0

    def settled(self) -> None:
        """Called when all blocks are up to date: no block has skipped a step."""
        self.dev.copy(self.none, out=self.lag)
        self.dev.copy(self.every, out=self.current)
        self.count = 0

    def renumber(self, numbers: tuple) -> None:
        """Set other numbers for the following steps; all blocks must be up to date."""
        self.dev.copy(_powers(self.dev, self.LIMIT + 1, numbers), out=self.powers)
        self.numbers = numbers
