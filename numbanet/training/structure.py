"""Structure: the seam by which a network's structure changes while it trains.

    enter(trainer)      before each epoch, the trainer.epoch-th from 0 on
    shrink(trainer)     after each update: it may change weights in place
    compact(trainer)    after each epoch, all weights up to date: it may change their shapes, and the layers themselves
    report()            what the record of the epoch says of it
    leave(trainer)      when training ends, however it does

By default nothing happens. What decides is read from the weights and the epoch, so that a fit can go back to where it was
(`Checkpoint`); `enter` finds it anew. Arrays of other shapes go through `Optimizer.resize`, which takes what the optimiser
carries along; `compact` says whether shapes or layers have changed, and the trainer then forgets what it had drawn, counted and
recorded.
"""
from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

from ..device import Device
from ..layers import Sequential

if TYPE_CHECKING:
    from .trainer import Trainer


class Structure:
    """Of one estimator's network, from its first epoch to its last; here one that stays as it is.

    Attributes
    ----------
    changing : bool
        Whether `shrink` or `compact` do something in the present epoch. Updates are then never put off (`SGD`), and all weights
        are up to date at its end.
    final : bool
        Whether the network of the present epoch may be the result: early stopping looks for the best weights among those.
    share : float
        FLOPs of a dense step over those of the network as it was at first.
    """

    changing, final, share = False, True, 1.0

    def enter(self, trainer: Trainer) -> None:
        """Find out what holds in the epoch that begins."""

    def shrink(self, trainer: Trainer) -> None:
        """Change weights in place, after an update with `trainer.optimizer.learning_rate`."""

    def compact(self, trainer: Trainer) -> bool:
        """Change shapes or layers; returns whether any has changed."""
        return False

    def report(self) -> dict[str, Any]:
        """What the record of an epoch says of it, after `compact`."""
        return {}

    def leave(self, trainer: Trainer) -> None:
        """Leave nothing in layers that only training needs: the epoch may have been broken off."""


class Sparsity(abc.ABC):
    """Base of what an estimator is given as `sparsity`: a pure value, which says how its structures become sparse."""

    name: ClassVar[str]

    @abc.abstractmethod
    def begin(self, model: Sequential, shape: tuple[int, ...], epochs: int, dev: Device) -> Structure:
        """The structure of a network that is about to be trained.

        Parameters
        ----------
        model : Sequential
            As it is at first.
        shape : tuple of int
            Of a batch of its inputs.
        epochs : int
            How many it will be trained.
        dev : Device
            Where it lives.

        Raises
        ------
        ValueError
            If there is nothing in the model that it is for.
        """
