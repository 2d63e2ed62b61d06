"""Sensitivity-aware dropout for convolutions (*DNN Training Acceleration via Exploring GPGPU Friendly Sparsity*, section 5).

    rsdp    drops rows of the im2col matrix, which are output positions; each row is dropped at its rate (5.2.1)
    bsdp    drops blocks of the im2col matrix; every block row keeps the same number, preferably sensitive ones (5.2.2)

The im2col matrix is divided into regions, and some values of each region are sampled. A region is sensitive if more than a
given share of the sampled values exceed a threshold. Sensitive regions are dropped at a rate m, which is lower than the rate n
of the other regions (5.1). Both rates follow from the requested rate p and the share s of sensitive regions in the step:
m = (1 - contrast) p, and s m + (1 - s) n = p.

Results of `papers-cnn` for LeNet-5: on MNIST the accuracy of `rsdp` equals that without dropout up to p = 0.6 with rates that
rise and fall (`SkewNormalSchedule`), and is somewhat lower with a constant rate; on 10000 images of CIFAR-10 it is some points
lower. The accuracy of `bsdp` is lower in each case and decreases with p, most of all in the first convolution, whose sums have
few terms. Sensitivity gains little: with a random choice (contrast=0) the accuracy is within the range of the seeds, on both
data sets.
"""

from __future__ import annotations

import abc
import collections
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbanet_kernels.layouts.windows import Window, tile_of

from ..arguments import check_count, is_integer, is_real
from ..autograd import no_grad
from ..device import Device
from ..layers import Context, Conv2d, Tree
from ..plans import GroupPlan, Plan, Plans, PositionPlan, PositionTilePlan, Site
from ..tensor import Tensor
from .base import Dropout, Rate

MOST = 0.95  # upper bound of the rate of a region
SCALED_BY = 4096  # values from which the scale of an input is estimated
STEPS = 12  # bisection steps of the search for a threshold
LOOKS = 12  # random samples of each step; with a single one, the share of sensitive regions is off by up to .11
SIDES, CHANNELS = (2, 4), 16  # of tiles, and least number of channels and filters for which they are dropped


class SensitiveDropout(Dropout):
    """Base class of rsdp and bsdp. It determines which regions are sensitive, and the rates of sensitive and other regions.

    Parameters
    ----------
    rate : float, sequence of float, or function of the epoch, default=0.5
        Share of the im2col matrix that is dropped, in [0, 1): one number for all convolutions, or one for each.
    sample : float, default=0.3
        Share of the values of a region that is sampled, in [0, 1], but at least one value (k in the paper, whose example is
        0.3).
    most : int, default=16
        Largest number of sampled values per region. The paper has no such bound. But if a region has 4608 values, reading a
        share of them is no better than reading a few, and would cost more time than the product saves.
    votes : float, default=0.5
        A region is sensitive if more than this share of the sampled values is large (t in the paper, whose example is 0.5).
    sensitive : float, default=0.3
        Share of the regions that are sensitive with the thresholds of `calibrated`.
    contrast : float, default=0.5
        How much the rate of sensitive regions is reduced, in [0, 1]: it is (1 - contrast) p, where p is `rate`. If contrast is
        0, all regions have the same rate.
    scale : {"none", "rate"}, default="none"
        Kept values are multiplied by 1, or by 1 / (1 - p), so that sums have the same mean as without dropout.
    thresholds : dict of int to float, optional
        Maps the index of a convolution to the magnitude from which a value counts as large, divided by the mean magnitude of
        the convolution's input. `fit` computes missing thresholds from some of the training data (`calibrated`).

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    kind, data_dependent, alike, agrees = "patches", True, True, True  # each rank drops rows of its own images
    sample: float
    most: int
    votes: float
    sensitive: float

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
    ) -> None:
        super().__init__(rate)
        for name, value, low, high in (
            ("sample", sample, 0, 1),
            ("votes", votes, 0, 1),
            ("sensitive", sensitive, 0, 1),
            ("contrast", contrast, 0, 1),
        ):
            if not is_real(value) or not low <= value <= high:
                raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}")
        for number, threshold in (thresholds or {}).items():
            if not is_integer(number) or number < 0 or not is_real(threshold) or not threshold >= 0:
                raise ValueError(f"thresholds: {number!r}: {threshold!r} is no index of a convolution with a number from 0 on")
        check_count("most", most)
        if scale not in ("none", "rate"):
            raise ValueError(f"scale must be 'none' or 'rate', got {scale!r}")
        self.sample, self.most, self.votes, self.sensitive = sample, most, votes, sensitive
        self.contrast, self.scale, self.thresholds = contrast, scale, dict(thresholds or {})
        self._given = self.thresholds
        self._seen: dict[int, list] = collections.defaultdict(list)

    # --- for subclasses -----------------------------------------------------------------------------------------------
    @abc.abstractmethod
    def region(self, images: int, positions: int, window: Any, channels: int) -> tuple[int, int]:
        """Return the numbers of rows and columns of the im2col matrix that form a region, for `images` images with `positions`
        output positions each.
        """

    def grid(self, layer: Conv2d, x: Tensor) -> tuple[SensitiveDropout, Window, tuple[int, int]]:
        """Return (policy, window, positions) for images x: `policy` draws regions of the im2col matrix in which each image has
        positions[0] x positions[1] positions of the window.
        """
        return self, layer.window, layer.window.positions(*x.shape[1:3])

    def planned(self, plan: Plan, layer: Conv2d, x: Tensor) -> Plan:
        """Return the plan of a layer for images x from that of the matrix that `grid` names."""
        return plan

    def group(self, positions: int, window: Window, channels: int) -> int:
        """Return the number of consecutive images that drop the same regions; the first of them is sampled."""
        return 1

    def offsets(self, size: tuple[int, int], count: int, rng: np.random.Generator) -> np.ndarray:
        """Return an array (count, 2): the position of each sampled value of a region, as (row, column) from the first row and
        column of the region.
        """
        return np.stack([rng.integers(max(side, 1), size=count) for side in size], 1)

    @abc.abstractmethod
    def choose_regions(
        self,
        sensitive: np.ndarray,
        images: int,
        shape: tuple[int, int],
        region: tuple[int, int],
        rates: tuple[float, float],
        scale: float,
        kept: float,
        rng: np.random.Generator,
    ) -> Plan:
        """Draw the plan for an im2col matrix of shape `shape`. `sensitive` (region rows, region columns) is True for
        sensitive regions; of each group of images (`group`) it has only those of the first image. `images` is the number of
        images, `region` the shape of a region, `rates` are the rates of sensitive and of other regions, `scale` multiplies kept
        values, and `kept` is the share that is kept on average.
        """

    # --- sensitivity --------------------------------------------------------------------------------------------------
    def plan(self, site, rng):
        return None

    def choose_from_flow(self, site, flow, layer, rng):
        rate = self.rate_of(site)
        if not rate:
            return None
        x = flow.expanded()
        policy, window, positions = self.grid(layer, x)
        count = policy.counting(window, positions, x)
        shape, region, counts, looked = count(rng, self.thresholds.get(site.number, 1.0))
        sensitive = counts > self.votes * looked
        share = np.count_nonzero(sensitive) / max(sensitive.size, 1)
        rates, scale = rates_of(rate, share, self.contrast), 1.0 if self.scale == "none" else 1 / (1 - rate)
        plan = policy.choose_regions(sensitive, x.shape[0], shape, region, rates, scale, 1 - rate, rng)
        plan = self.planned(plan, layer, x)
        self._seen[site.number].append((1 - plan.density, share))
        return plan

    def counting(self, window: Window, places: tuple[int, int], x: Tensor) -> Callable[..., tuple]:
        """Return a function (rng, threshold) -> (shape of the im2col matrix, shape of a region, number of large values in each
        region, number of sampled values per region).
        """
        dev, n, channels = x.device, x.shape[0], x.shape[3]
        positions, depth = math.prod(places), math.prod(window.kernel) * channels
        region = self.region(n, positions, window, channels)
        size = min(region[0], n * positions), min(region[1], depth)
        looked = max(min(math.ceil(self.sample * math.prod(size)), self.most), 1)
        x = _first_of(x, self.group(positions, window, channels))
        scale = scale_of(x)

        def count(rng: np.random.Generator, threshold: float) -> tuple:
            offsets = dev.upload(np.sort(self.offsets(size, looked, rng), axis=0).astype(np.int32, copy=False))
            counts = dev.download(dev.count_large(x.data, window, *region, offsets, threshold * scale, positions=places))
            return (n * positions, depth), region, counts, looked

        return count

    def calibrated(self, model, x):
        """Return this policy with the missing thresholds. They are computed from the inputs of the convolutions for the samples
        x, so that the share `sensitive` of the regions is sensitive. A threshold is relative to the mean magnitude of an input,
        which changes during training. The distribution of an input changes, too, so `fit` recomputes the thresholds before each
        epoch.
        """
        tree = Tree(model)
        thresholds, sites = dict(self._given), set(filter(self.fits, self.sites(tree)))

        def look(site, flow, layer):
            if site in sites and site.number not in thresholds:
                thresholds[site.number] = self._threshold(site, layer, flow.expanded())

        with no_grad():
            model(x, Context(x.device, Plans(x.device, tree.sites, choose=look)))
        seen = {site.number: [] for site in self.sites(tree)}  # also of convolutions that are left out
        return self.changed(thresholds=thresholds, _seen=collections.defaultdict(list, seen))

    def _threshold(self, site: Site, layer: Conv2d, x: Tensor) -> float:
        policy, window, positions = self.grid(layer, x)
        count, low, high = policy.counting(window, positions, x), 0.0, 64.0
        for _ in range(STEPS):
            middle, rng = (low + high) / 2, np.random.default_rng(site.number)
            found = [count(rng, middle)[2:] for _ in range(LOOKS)]
            share = np.mean([counts > self.votes * looked for counts, looked in found])
            low, high = (middle, high) if share > self.sensitive else (low, middle)
        return (low + high) / 2

    def progress(self, model):
        return {"thresholds": dict(self.thresholds), "seen": {number: list(seen) for number, seen in self._seen.items()}}

    def go_on(self, model, progress):
        self.thresholds.update(progress["thresholds"])  # in place: the policies of other epochs share them
        self._seen.clear()
        self._seen.update(progress["seen"])

    def report(self):
        """Return a dict with two lists, each with one entry per convolution, averaged over the steps since the last call:
        "dropped" is the share of the im2col matrix that was dropped, "sensitive" the share of sensitive regions; both are 0 for
        a convolution that is left out."""
        means = [np.mean(seen, axis=0) if seen else (0.0, 0.0) for _, seen in sorted(self._seen.items())]
        for seen in self._seen.values():
            seen.clear()
        return {name: [float(mean[i]) for mean in means] for i, name in enumerate(("dropped", "sensitive"))}


def _first_of(x: Tensor, group: int) -> Tensor:
    """Return the first image of each group of consecutive images."""
    if group == 1:
        return x
    count, *shape = x.shape
    values = x.device.take_rows(x.device.reshape(x.data, (count, math.prod(shape))), _every(group, count, x.device))
    return Tensor.wrap(x.device.reshape(values, (-(-count // group), *shape)), x.device)


def scale_of(x: Tensor) -> float:
    """Return the mean magnitude of some values of a tensor."""
    if not x.size:
        return 0.0
    step = max(x.size // SCALED_BY, 1) | 1  # odd, because channels are often a power of two
    values = x.device.take_rows(x.device.reshape(x.data, (x.size, 1)), _every(step, x.size, x.device))
    return float(np.abs(x.device.download(values)).mean())


@functools.lru_cache(maxsize=64)
def _every(step: int, size: int, dev: Device) -> Any:
    """The indices 0, step, 2 step, … below `size`, on the device."""
    return dev.upload(np.arange(0, size, step, dtype=np.int32))


def rates_of(rate: float, share: float, contrast: float) -> tuple[float, float]:
    """Return (m, n): the rate m of sensitive regions, which are a share `share` of all regions, and the rate n of the other
    regions. Their mean, weighted by these shares, is `rate`.
    """
    low = (1 - contrast) * rate
    high = low if share >= 1 else min((rate - share * low) / (1 - share), max(MOST, rate))
    return (rate if share >= 1 else low if share == 0 else (rate - (1 - share) * high) / share), high


class RowSensitiveDropout(SensitiveDropout):
    """rsdp: rows of a convolution's im2col matrix are dropped; its output is 0 at their positions (5.2.1).

        r = kept rows of A;  y[r] = s act(A[r] wᵀ + b), else 0;  dA[r] = g w, else 0;  dW = gᵀ A[r];
        s = 1, or 1 / (1 - p) by `scale`

    Parameters
    ----------
    rate, sample, most, votes, sensitive, contrast, scale, thresholds
        As for `SensitiveDropout`.
    rows : int, default=8
        Number of adjacent rows in a region. Adjacent rows read nearly the same pixels, so they are sensitive together. But
        whether a row is dropped is drawn independently for each row.
    together : int, default=16
        Number of consecutive images of the batch that drop the same positions. Only the first image is sampled, and its
        sensitive regions are used for all. On the CPU a multiple of 16 is fastest, because vectors hold 16 images. The accuracy
        of LeNet-5 is the same as with 1, where rows are drawn for each image (`papers-cnn`, `each`).
    tile : {None, "auto", 2, 4}, default=None
        If given, adjacent output positions are dropped together, in tiles of this many positions along each axis, in
        convolutions with 3 x 3 windows, stride 1 and at least 16 channels and filters. Winograd's filtering then computes the
        kept tiles only. A region is a tile; values are sampled from all pixels that its positions read; each image has tiles of
        its own. A smaller side is taken where an image would not have more than one tile along each axis, and where even 2 is
        too large, positions are dropped as without tiles. "auto" chooses the side that needs fewest multiplications.

    Notes
    -----
    Winograd's filtering of all positions takes about a quarter of the multiplications. So the CPU computes all positions of
    convolutions with 3 x 3 windows, stride 1 and many channels, and sets the dropped ones to 0, up to rates of about 0.45 for
    images of 7 x 7 and 0.65 for large ones. What is said to be skipped are dropped positions, also where all are computed.

    Tiles change the method: what is dropped is correlated in space, as in DropBlock (Ghiasi, Lin and Le 2018), whose blocks may
    begin anywhere. A dropped position is then no longer seen through its
    neighbours, so that the same rate regularises more, and the number of dropped positions of an image varies more. Each
    position is still dropped at its rate.
    """

    name, computes, makes = "rsdp", "1 − p of the convolutions", PositionPlan
    drops = "output positions of convolutions: rows of the input matrix, sensitive ones less often"

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
        rows: int = 8,
        together: int = 16,
        tile: int | str | None = None,
    ) -> None:
        super().__init__(rate, sample, most, votes, sensitive, contrast, scale, thresholds)
        for name, value in (("rows", rows), ("together", together)):
            check_count(name, value)
        if isinstance(tile, bool) or tile not in (None, "auto", *SIDES):
            raise ValueError(f"tile must be None, 'auto', 2 or 4, got {tile!r}")
        self.rows, self.together, self.tile = rows, together, tile

    def side(self, layer: Conv2d, positions: tuple[int, int]) -> int:
        """Return the side of the tiles of a convolution with this many output positions; 1 if there are no tiles."""
        unpadded, least = layer.window._replace(padding=(0, 0)), min(layer.in_channels, layer.out_channels)
        if self.tile is None or unpadded != Window((3, 3)) or layer.groups > 1 or least < CHANNELS:
            return 1
        most = max(SIDES) if isinstance(self.tile, str) else self.tile
        sides = [m for m in SIDES if m <= min(most, *(n - 1 for n in positions))]
        return tile_of(*positions, sides) if self.tile == "auto" and sides else max(sides, default=1)

    def grid(self, layer, x):
        _, window, positions = super().grid(layer, x)
        if (side := self.side(layer, positions)) == 1:
            return self, window, positions
        reach = tuple(n + side - 1 for n in window.kernel)
        tiles = Window(reach, (side, side), window.padding)
        return self.changed(rows=1, together=1), tiles, tuple(-(-n // side) for n in positions)

    def planned(self, plan, layer, x):
        positions = layer.window.positions(*x.shape[1:3])
        side = self.side(layer, positions)
        return plan if side == 1 else PositionTilePlan((x.shape[0], *positions), side, plan.indices(), plan.scale, plan.share)

    def region(self, images, positions, window, channels):
        return self.rows, math.prod(window.kernel) * channels

    def group(self, positions, window, channels):
        return self.together

    def offsets(self, size, count, rng):  # all in one row, so that the start of its patch is computed once
        found = np.empty((count, 2), np.int32)
        found[:, 0], found[:, 1] = rng.integers(max(size[0], 1)), rng.integers(max(size[1], 1), size=count)
        return found

    def choose_regions(self, sensitive, images, shape, region, rates, scale, kept, rng):
        low, high = (np.uint16(min(round(rate * 65536), 65535)) for rate in rates)
        watched, positions = -(-images // self.together), shape[0] // max(images, 1)
        below = np.repeat(np.where(sensitive[:, 0], low, high), self.rows)[: watched * positions].reshape(watched, positions)
        drawn = np.frombuffer(rng.bytes(2 * below.size), np.uint16)  # faster than rng.integers
        mask = drawn.reshape(below.shape) >= below
        if self.together > 1:
            return GroupPlan(images, mask, scale, self.together, kept)
        return PositionPlan(shape[0], np.flatnonzero(mask), scale, share=kept)
