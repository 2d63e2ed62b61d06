"""`BlockSensitiveDropout`: blocks of a convolution's im2col matrix are dropped, sensitive ones less often (`sensitive`)."""

from __future__ import annotations

import math

import numpy as np

from numbanet_kernels.layouts.windows import Window

from ..arguments import check_count
from ..layers import Conv2d
from ..plans import BlockPlan, ChannelBlockPlan
from .base import Rate
from .sensitive import SensitiveDropout

COLUMNS = 64  # maximal columns of a block: with fewer, products with its rows of the weight are short
THREADS = 2  # minimal number of block rows, if images are not split
ROWS = 512  # approximate rows of a block: with fewer, reading its rows of the weight takes longer than the product
NARROW = 16  # largest number of channels for which images that keep the same blocks are computed together, without gathering
ROWS_TOGETHER = 128  # approximate rows of a block then: with fewer, more positions than those of the block are computed
LEAST, MANY = 64, 128  # channels from which there are blocks of channels, of 16, and of 32: at least four in a block row


class BlockSensitiveDropout(SensitiveDropout):
    """bsdp: blocks of a convolution's im2col matrix are dropped, the same number in every block row (5.2.2).

        M = 1 in kept blocks of A, else 0;  y = act(s (A ∘ M) wᵀ + b);  dA = g w ∘ M;  dW = gᵀ (A ∘ M);
        s = 1, or 1 / (1 - p) by `scale`

    Each block row keeps the first blocks of a random order, in which blocks with lower rates tend to come first.

    Parameters
    ----------
    rate, sample, most, votes, sensitive, contrast, scale, thresholds
        As for `SensitiveDropout`; each block is a region.
    channels : bool, default=False
        If True, a block consists of all kernel taps of 32 channels, at all positions of some images, in convolutions with 3 x 3
        windows, stride 1, and at least 128 channels, a multiple of 32; with at least 64 channels, of 16. Winograd's filtering
        then computes the kept blocks only.
    together : int, default=16
        Number of consecutive images of the batch that keep the same blocks, if their convolution has at most 16 channels; only
        the first image is sampled then. On the CPU a multiple of 16 is fastest, because vectors hold 16 images. The share that
        is dropped is the same, but images of a group are not dropped independently. If `rows` does not divide the output
        positions of an image, or with 1, each image keeps other blocks.
    rows, columns : int, optional
        Size of a block. By default, `rows` is a divisor of the number of output positions of an image, or a multiple of it; it
        is at most 512 and at most half of all positions, so that two threads have work. By default, `columns` is the number of
        channels of a kernel tap, up to 64. Blocks of channels have sizes of their own.

    Notes
    -----
    Blocks of channels are adjacent columns if the im2col matrix has the taps of a channel side by side, as in Caffe and
    PyTorch; here, adjacent columns are channels of one tap. They change the method: a group of images then drops some input
    channels as a whole, as in SpatialDropout (Tompson et al. 2015), and no longer reads a dropped channel by other taps.
    """

    name, computes, makes = "bsdp", "1 − p of the convolutions", BlockPlan
    drops = "blocks of the input matrix of convolutions, the same number in every block row"

    def __init__(
        self,
        rate: Rate = 0.5,
        sample: float = 0.3,
        most: int = 16,
        votes: float = 0.5,
        sensitive: float = 0.3,
        contrast: float = 0.5,
        scale: str = "none",
        thresholds: dict[int, float] | None = None,
        rows: int | None = None,
        columns: int | None = None,
        together: int = 16,
        channels: bool = False,
    ) -> None:
        super().__init__(rate, sample, most, votes, sensitive, contrast, scale, thresholds)
        for name, value in (("rows", rows), ("columns", columns)):
            if value is not None:
                check_count(name, value)
        check_count("together", together)
        if not isinstance(channels, bool):
            raise ValueError(f"channels must be True or False, got {channels!r}")
        self.rows, self.columns, self.together, self.channels = rows, columns, together, channels

    def _images(self, layer, x):
        """Return how many images a block row spans, if blocks consist of channels. Return None if they do not: `channels` is
        False, or the convolution has another window than 3 x 3 with stride 1, or groups, or another number of channels than
        blocks of channels need.
        """
        channels, unpadded = layer.in_channels, layer.window._replace(padding=(0, 0))
        if not self.channels or unpadded != Window((3, 3)) or layer.groups > 1 or channels < LEAST or channels % _width(layer):
            return None
        positions = max(math.prod(layer.window.positions(*x.shape[1:3])), 1)
        return max(min(ROWS // positions, x.shape[0] // THREADS), 1)

    def grid(self, layer, x):
        if (images := self._images(layer, x)) is None:
            return super().grid(layer, x)
        height, width = x.shape[1:3]
        return self.changed(rows=images * height * width, columns=_width(layer)), Window((1, 1)), (height, width)

    def planned(self, plan, layer, x):
        if (images := self._images(layer, x)) is None:
            return plan
        grid = x.shape[0], *layer.window.positions(*x.shape[1:3])
        taps = math.prod(layer.window.kernel)
        return ChannelBlockPlan(grid, images, taps, layer.in_channels, _width(layer), plan.chosen, plan.scale)

    def group(self, positions, window, channels):
        divides = self.rows is None or positions % self.rows == 0
        return self.together if channels <= NARROW and divides else 1

    def region(self, images, positions, window, channels):
        if self.group(positions, window, channels) > 1:
            rows = max(d for d in range(1, min(positions, ROWS_TOGETHER) + 1) if positions % d == 0)
        else:
            most = max(min(ROWS, images * positions // THREADS), 1)
            rows = positions * max(most // max(positions, 1), 1) if positions <= most else _divisor(positions, most)
        columns = _divisor(channels, COLUMNS) if channels > 4 else channels * window.kernel[1]
        return self.rows or rows, self.columns or columns

    def choose_regions(self, sensitive, images, shape, region, rates, scale, kept, rng):
        count = sensitive.shape[1]
        wanted = (1 - (sensitive.mean() * rates[0] + (1 - sensitive.mean()) * rates[1])) * count if sensitive.size else count
        keep = min(int(wanted + rng.random()), count)
        order = rng.standard_exponential(sensitive.shape, np.float32) / np.where(sensitive, *(np.float32(1 - r) for r in rates))
        chosen = np.sort(np.argpartition(order, min(keep, count - 1), axis=1)[:, :keep], axis=1)
        total = -(-shape[0] // region[0])
        if total == len(chosen):
            return BlockPlan(shape, *region, chosen, scale)
        grouped = chosen.reshape(-(-images // self.together), total // images, keep)
        whole = np.repeat(grouped, self.together, axis=0)[:images].reshape(total, keep)
        return BlockPlan(shape, *region, whole, scale, self.together)


def _width(layer: Conv2d) -> int:
    """Return the number of channels of a block of channels."""
    return 32 if layer.in_channels >= MANY else 16


def _divisor(n: int, most: int) -> int:
    """Return the largest divisor of n that is at most `most`, or min(n, most) if that divisor is less than half of it."""
    best = max(d for d in range(1, min(n, most) + 1) if n % d == 0)
    return best if 2 * best >= min(n, most) else min(n, most)
