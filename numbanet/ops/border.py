"""Padding of images, channels last, by pixels of the image; dy is the gradient of the result."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..autograd import op
from ..device import Device

BORDERS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # PyTorch's names of the modes of numpy.pad


def border_indices(length: int, padding: int, mode: str) -> np.ndarray:
    """Return the pixel of an axis of `length` pixels for each of its length + 2 padding pixels after padding.

    Raises
    ------
    ValueError
        If the axis is too short for the mode.
    """
    most = {"reflect": length - 1, "circular": length}.get(mode, padding if length else 0)
    if padding > most:
        raise ValueError(f"pad2d: {length} pixels cannot be padded by {padding} more in the mode {mode!r}, at most by {most}")
    return np.pad(np.arange(length), padding, BORDERS[mode])  # type: ignore[call-overload]


@op
def pad2d(dev: Device, x, *, padding: tuple[int, int], mode: str):
    """y = images x with `padding` more pixels at each edge, along the height and the width.

    x (N, H, W, C) -> y (N, H + 2 PH, W + 2 PW, C). Modes as in PyTorch: "reflect" mirrors the image without its edge,
    "replicate" repeats its edge, "circular" continues with its opposite side.

    Raises
    ------
    ValueError
        If x has other axes, the mode is unknown, or the image is too small.
    """
    if len(x.shape) != 4 or mode not in BORDERS:
        raise ValueError(f"pad2d: x {tuple(x.shape)} must be images (N, H, W, C), and mode one of {[*BORDERS]}, not {mode!r}")
    shape, channels = tuple(x.shape), x.shape[3]
    of = shape[:3], tuple(padding), mode, dev
    padded = (shape[0], shape[1] + 2 * padding[0], shape[2] + 2 * padding[1], channels)
    y = dev.take_rows(dev.reshape(x, (math.prod(shape[:3]), channels)), _source(*of))

    def dx(dy):
        order, starts = _grouped(*of)  # predictions need neither
        return dev.reshape(dev.sum_by_row(dev.reshape(dy, (math.prod(padded[:3]), channels)), order, starts), shape)

    return dev.reshape(y, padded), (dx,)


def _pixels(shape: tuple[int, int, int], padding: tuple[int, int], mode: str) -> np.ndarray:
    """Return the pixel of x for each pixel of y."""
    n, height, width = shape
    down, across = (border_indices(length, p, mode) for length, p in zip((height, width), padding))
    return ((np.arange(n)[:, None, None] * height + down[:, None]) * width + across).reshape(-1)


@functools.lru_cache(maxsize=8)  # of large batches of images the lists are large
def _source(shape: tuple[int, int, int], padding: tuple[int, int], mode: str, dev: Device) -> Any:
    """Return the pixel of x for each pixel of y, on the device."""
    return dev.upload(np.ascontiguousarray(_pixels(shape, padding, mode), np.int32))


@functools.lru_cache(maxsize=8)
def _grouped(shape: tuple[int, int, int], padding: tuple[int, int], mode: str, dev: Device) -> tuple[Any, Any]:
    """Return the pixels of y grouped by those of x, and the start of each group, on the device."""
    rows = _pixels(shape, padding, mode)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=math.prod(shape)))])
    order = np.argsort(rows, kind="stable")
    first, second = (dev.upload(np.ascontiguousarray(part, np.int32)) for part in (order, starts))
    return first, second
