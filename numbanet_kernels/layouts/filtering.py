"""Where the CPU computes convolutions by Winograd's filtering (`cpu_winograd`)."""

from __future__ import annotations

import math

from .windows import Window, tile_of

# measured on two cores of an AMD EPYC against gathered patches and the direct loops
SIDES = 2, 4  # of tiles for which there are matrices
WIDE = 12  # least ratio of products to channels plus outputs: those are multiplied, these are transformed
SAVED = 1 << 22  # least number of multiplications that are saved


def suits(window: Window, images: tuple[int, ...], outs: int, side: int | None = None) -> bool:
    """True if convolving images (N, H, W, C) so is faster than from gathered patches or directly; `side` is that of tiles, if
    given.
    """
    count, height, width, channels = images
    positions = window.positions(height, width)
    if window._replace(padding=(0, 0)) != Window((3, 3)) or max(window.padding) > 2 or not min(positions):
        return False
    m = side or tile_of(*positions)
    if m not in SIDES:
        return False
    saved = 9 * math.prod(positions) - math.prod(-(-n // m) for n in positions) * (m + 2) ** 2
    return channels * outs >= WIDE * (channels + outs) and count * channels * outs * saved >= SAVED
