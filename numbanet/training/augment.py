"""Augmentation: random changes of the samples of a training step; prediction and validation do not use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arguments import is_integer
from ..device import Device
from .hooks import Hook


@dataclasses.dataclass(frozen=True)
class FlipsAndCrops:
    """Shifts images by up to `padding` pixels, and mirrors them with probability 1/2; use `Net(augment=FlipsAndCrops())`.

    The result is a random crop of the zero-padded image, which may be flipped horizontally, as is usual for CIFAR-10 (He et
    al., "Deep residual learning for image recognition", 2016, section 4.2). The zeros are black pixels if the first layer is a
    `Normalize`, and mean pixels if X is normalised already.

    Parameters
    ----------
    padding : int, default=4
        The largest shift in pixels, up, down, left and right; 4 is usual for images of 32 x 32.
    flip : bool, default=True
        If True, images are mirrored at random; set it to False for digits and letters.

    Raises
    ------
    ValueError
        If the padding is not an integer or below 0; when called, if samples are not of shape (C, H, W), or not larger than the
        padding, by which they could be shifted away.
    """

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if not is_integer(self.padding) or self.padding < 0:
            raise ValueError(f"{self!r}: padding must be an integer of at least 0")

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return int32 (count, 3): for each image, the vertical and the horizontal offset of the crop, and 1 to mirror it."""
        moves = rng.integers(-self.padding, self.padding, (count, 2), np.int32, endpoint=True)
        return np.hstack([moves, rng.integers(2 if self.flip else 1, size=(count, 1), dtype=np.int32)])

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError if samples of the shape (C, H, W) can be shifted out of the image."""
        if len(shape) == 3 and self.padding >= min(shape[1:]):
            raise ValueError(f"{self!r}: padding must be smaller than the images, of shape (C, H, W) = {tuple(shape)}")

    def __call__(self, x: Any, rng: np.random.Generator, dev: Device) -> Any:
        """Return the images x (n, C, H, W), a device array, randomly shifted and mirrored."""
        if len(x.shape) != 4:
            raise ValueError(f"{self!r}: samples of shape (C, H, W) expected, got {tuple(x.shape[1:])}")
        self.check(x.shape[1:])
        return dev.crop_flip(x, dev.upload(self.draw(x.shape[0], rng)))


class Augmentation(Hook):
    """The hook that changes the inputs of each step by a function augment(x, rng, dev).

    The random numbers come from the stream that shuffles the samples, so that plans are the same as without augmentation. Of
    several processes each takes them from a stream of its own, because all draw the order of samples alike.
    """

    watches = False

    def __init__(self, augment: Callable[..., Any]) -> None:
        self.augment = augment

    def before_step(self, run, batch):
        if batch.ids is not None:
            raise ValueError(f"augment: {self.augment!r} cannot change integers, which are rows of a table")
        x = batch.inputs
        alone = run.stepper.ranks is None or run.stepper.ranks.size == 1
        made = self.augment(x, run.streams.rows if alone else run.streams.noise, run.dev)
        if getattr(made, "shape", None) != x.shape or made.dtype != x.dtype:
            raise ValueError(
                f"augment: {self.augment!r} must give {x.dtype} {x.shape} as it was given, not "
                f"{getattr(made, 'dtype', type(made).__name__)} {getattr(made, 'shape', '')}"
            )
        return batch._replace(inputs=made)
