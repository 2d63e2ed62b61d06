"""Windows that slide over images: the pixels that an output position of a convolution or a pooling layer reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Window(NamedTuple):
    """A window that slides over images. Output (oh, ow) reads the pixel (oh stride - padding + kh dilation, ow stride - padding
    + kw dilation) for each tap (kh, kw) of the kernel. Each field is a pair (along the height, along the width).
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def positions(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and the width of the output; a number below 1 means that the window does not fit."""
        return tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1 if n + 2 * p >= d * (k - 1) + 1 else 0
            for n, k, s, p, d in zip((height, width), *self)
        )


class CeilWindow(Window):
    """A window of pooling whose last position may extend beyond the padded image, if it begins before the padding at the end
    (PyTorch's `ceil_mode`). What is beyond belongs to no mean and is no maximum.
    """

    __slots__ = ()

    def positions(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and the width of the output."""
        counts = []
        for n, k, s, p, d in zip((height, width), *self):
            count = -((d * (k - 1) + 1 - n - 2 * p) // s) + 1
            counts.append(max(count - ((count - 1) * s >= n + p), 0))
        return counts[0], counts[1]

    def __eq__(self, other: object) -> bool:
        return type(other) is CeilWindow and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((CeilWindow, tuple(self)))


def tile_of(height: int, width: int, sides: Sequence[int] = (2, 4)) -> int:
    """Return the side of tiles for which Winograd's filtering needs fewest multiplications; of equal ones the first."""
    return min(sides, key=lambda m: -(-height // m) * -(-width // m) * (m + 2) ** 2)


class Blocks(NamedTuple):
    """Kept blocks of a convolution's im2col matrix: block row b keeps the increasing block columns kept[b].

    If `channels` is given, block rows consist of whole images, and all taps keep the same blocks of channels, which are these;
    the last one is not narrower. Then `kept` follows from it.
    """

    kept: Any  # (block rows, Q) int32
    height: int  # number of rows of a block, which are output positions; they are counted through all images
    width: int  # number of columns of a block; the last block may be narrower
    channels: Any = None  # (block rows, Q / taps) int32, increasing
    together: int = 1  # each group of this many consecutive images keeps the same blocks; above 1, the height divides an image


class Positions(NamedTuple):
    """Kept rows of a convolution's im2col matrix: an increasing list, which may be padded to the number of all rows with
    numbers beyond the last row. Each group of `together` consecutive images keeps the same output positions. The list may
    instead have a row for each group, with the kept positions of an image, padded to the number of positions with numbers
    beyond the last one.

    If `tiles` is given, the kept rows are the positions of these tiles: images are cut into tiles of side x side positions, cut
    off at the edges, and numbered by image, line and column. This list may be padded in the same way.

    `share` is the share of the rows that such lists keep on average, from which the fastest way is chosen; by default, that of
    this list.
    """

    kept: Any  # (rows,) or (groups, positions) int32, increasing
    together: int = 1
    tiles: Any = None  # (tiles,) int32, increasing
    side: int = 1
    share: float | None = None


class Bins(NamedTuple):
    """Windows of adaptive pooling: of `height` outputs along an axis of H pixels, output i reads the pixels from floor(i H /
    height) to ceil((i + 1) H / height) - 1, and the same along the width.
    """

    height: int
    width: int

    def positions(self, height: int, width: int) -> tuple[int, int]:
        """Return the numbers of outputs along the height and along the width, which do not depend on the size of the image."""
        return self.height, self.width


def check_pooling(name: str, window: Window | Bins) -> None:
    """Raise ValueError unless the window can pool images: its lengths are positive, and padding is at most half the kernel."""
    if isinstance(window, Bins):
        if min(window) < 1:
            raise ValueError(f"{name}: output_size {tuple(window)} must be positive")
        return
    kernel, stride, padding, dilation = window
    if min(*kernel, *stride, *dilation) < 1:
        raise ValueError(f"{name}: kernel_size {kernel}, stride {stride} and dilation {dilation} must be positive")
    if min(padding) < 0 or any(2 * p > k for p, k in zip(padding, kernel)):
        raise ValueError(f"{name}: padding {padding} must be from 0 to half the kernel_size {kernel}")


def pooled(name: str, window: Window | Bins, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape (N, OH, OW, C) of pooled images (N, H, W, C); raise ValueError if the window does not fit."""
    check_pooling(name, window)
    if len(shape) != 4:
        raise ValueError(f"{name}: x {tuple(shape)} must be images, channels last: (N, H, W, C)")
    n, height, width, channels = shape
    positions = window.positions(height, width)
    if min(height, width, *positions) < 1:
        raise ValueError(f"{name}: images of {height} x {width} pixels are smaller than the window: {window}")
    return n, *positions, channels
