"""Windows that slide over images: the pixels that an output position of a convolution or a pooling layer reads."""

from __future__ import annotations

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
        """Return the numbers of output positions along the height and along the width of an image; a number is below 1 if the
        window does not fit.
        """
        return tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1 if n + 2 * p >= d * (k - 1) + 1 else 0
            for n, k, s, p, d in zip((height, width), *self)
        )


class Blocks(NamedTuple):
    """Kept blocks of a convolution's im2col matrix: block row b keeps the block columns kept[b, 0], kept[b, 1], …,
    increasing.
    """

    kept: Any  # (block rows, Q) int32
    height: int  # rows of a block: output positions, counted through all images
    width: int  # columns of a block; the last one may be narrower
    together: int = 1  # each group of so many consecutive images keeps the same blocks; above 1, the height divides an image


class Positions(NamedTuple):
    """Kept rows of a convolution's im2col matrix: a list that is padded to the number of all rows with numbers beyond the last
    row. Each group of `together` consecutive images keeps the same output positions. The list may have a row for each group
    instead, of the kept positions of an image, padded to the number of positions with numbers beyond the last one.
    """

    kept: Any  # (rows,) or (groups, positions) int32, increasing
    together: int


class Bins(NamedTuple):
    """Windows of adaptive pooling: of `height` outputs along an axis of H pixels, output i reads the pixels from floor(i H /
    height) to ceil((i + 1) H / height) - 1, and the same along the width.
    """

    height: int
    width: int

    def positions(self, height: int, width: int) -> tuple[int, int]:
        """The number of output positions, whatever the size of the image."""
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
    """(N, OH, OW, C), the shape of pooled images (N, H, W, C); ValueError if x has other axes, or is smaller than a window."""
    check_pooling(name, window)
    if len(shape) != 4:
        raise ValueError(f"{name}: x {tuple(shape)} must be images, channels last: (N, H, W, C)")
    n, height, width, channels = shape
    positions = window.positions(height, width)
    if min(height, width, *positions) < 1:
        raise ValueError(f"{name}: images of {height} x {width} pixels are smaller than the window: {window}")
    return n, *positions, channels
