"""Dynamic sparse graphs: before a layer is computed, this policy predicts which of its neurons will have large outputs, and
then only these neurons are computed.

x is the input of a layer, and w is the row of its weight for one neuron. A random projection f to k numbers nearly preserves
inner products, so that f(x) . f(w) estimates the output x . w. The share 1 - rate of the neurons with the largest estimates is
computed (*Dynamic Sparse Graph for Efficient Deep Learning*, ICLR 2019: dimension-reduction search and double-mask selection).
This is a selection, not dropout, so nothing is scaled. f(w) is recomputed at the start of an epoch, and then every `refresh`
steps, for some rows of the weight at a time. The policy applies to hidden Linear and Conv2d layers. A layer that pruning has
made sparse is computed completely from then on. A set of neurons may be shared by

    batch    a whole batch: the set is predicted from some of its samples. The layer is a dense product with the kept neurons,
             whose compact output, input gradient and weight gradient are all smaller
    tile     a group of samples: the set is predicted from some samples of the group. Each group is a dense product with its set
    sample   nothing: each sample has its own set, as in the paper. Single pairs of samples and neurons are multiplied

With N samples, I inputs, O outputs and S projected samples (S = N for "sample"), the choice costs S I k / 3 additions and
2 S k O FLOPs per step, and O I k / 3 additions in the first step of an epoch and every `refresh` steps. The product itself
costs 2 N I O (1 - rate) FLOPs.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from numbanet_kernels.layouts.windows import Window

from ..arguments import is_integer, is_real
from ..autograd import no_grad
from ..device import Device
from ..layers import BatchNorm1d, BatchNorm2d, Conv2d, Flow, PerSample, Tree
from ..parallel.scores import joint_scores, share_of
from ..plans import IndexPlan, SamplePlan
from ..tensor import Tensor
from .base import Dropout, Style
from .guesses import Guesses, johnson_lindenstrauss
from .schedule import Rate

SAMPLES = {"batch": 16, "tile": 16, "sample": 1}  # projected samples per set
SHARING = 4  # sets whose thresholds the others share
WINDOWS = 4  # projected windows per image


class DynamicSparseGraph(Dropout):
    """dsg: computes the neurons of each layer whose outputs a random projection predicts to be largest.

        r = the K = round((1 - p) O) largest f(x) · f(w[o]) + b[o];  y = relu(x w[r, c]ᵀ + b[r]);  dx = g w[r, c];
        dW[r, c] = gᵀ x;  s = 1

    Unless `share="sample"`, r holds the neurons with the largest sums over samples of the ReLU of f(x) · f(w[o]) + b[o].

    Parameters
    ----------
    rate : float, callable, or sequence of these, default=0.5
        Share of the neurons that is not computed, in [0, 1), or a function that maps an epoch to this share. A sequence holds
        one rate or function for each layer.
    epsilon : float, default=0.5
        Relative error of distances, in (0, 1), which determines the dimension k of the projection (`johnson_lindenstrauss`).
        The default is the paper's.
    share : {"batch", "tile", "sample"}, default="batch"
        Which samples share a set of neurons: all samples of a batch, each group of `group` consecutive samples, or no samples,
        as in the paper; then each sample has its own set. "batch" is fastest. For convolutions "batch" is the only option; a
        set then consists of channels.
    refresh : int, default=50
        Number of steps after which each row of a weight is projected again; projecting all rows takes as long as a product with
        k / 6 samples. A step projects a multiple of 256 rows, or all rows if there are fewer. The first step of an epoch
        projects all rows of every layer, so that an epoch depends only on the weights at its start. The default is the paper's.
    threshold : {"exact", "shared"}, default="exact"
        If "exact", each set has exactly its share of the neurons. If "shared", a set has all neurons whose score is above a
        threshold, which is determined from the first few sets (the paper's inter-sample sharing). Predictions for "sample" are
        "exact", so that they do not depend on the samples beside a sample.
    group : int, default=64
        Number of samples of a group for "tile". Smaller groups choose better, but their products are smaller.
    samples : int, optional
        Number of samples, evenly spaced, from which a set is predicted; by default 16 of a batch or a group. The score of a
        neuron is the sum of its estimated outputs ReLU(f(x) . f(w) + b) over these samples. (Magnitudes instead of ReLU would
        keep neurons that are far below 0.)
    double : bool, default=True
        Whether dropped entries are also 0 after batch normalisation (double-mask selection). With "batch" they always are.
    select_in_prediction : bool, optional
        Whether predictions select neurons, too; otherwise they use all neurons. By default only "sample" selects in
        predictions, because its networks were not trained to sum all neurons. With "batch" and "tile", the prediction for a
        sample would depend on the samples beside it.
    seed : int, default=0
        Seed of the projection, which is fixed for a run.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    Neurons that are not computed are not trained, so the accuracy after a few epochs is below that of dense training. On
    Fashion-MNIST at a rate of .6 it is lower by .6 ("tile") to .9 points ("sample"). With a random choice it is lower by 4 to 6
    points. With a choice by the true outputs of each sample it is the same, so the lower accuracy is due to errors of the
    estimates (`python -m bench papers-dsg`, three seeds). If the rate is 0 in the last epoch, so that predictions with all
    neurons match training, the accuracy was lower by .5 ("tile", "sample") and .6 points ("batch"). In single runs with
    `share="batch"` a larger learning rate reduced the difference, and 64 samples reduced it further. Selecting in predictions
    helped in most runs; it requires samples in random order, as in training. Four changes gained nothing: projecting weights
    more often, a smaller epsilon, a first epoch without selection, and scores averaged over steps.
    """

    name, data_dependent, agrees, style = "dsg", True, True, Style("#7aa874", (0, (5, 1, 1, 1, 1, 1)), "D")
    drops = "the neurons or channels that a random projection predicts to be smallest: a selection, nothing is scaled"
    computes, makes = "(1 − p)² of the products, and the projections", IndexPlan

    def __init__(
        self,
        rate: Rate = 0.5,
        epsilon: float = 0.5,
        share: str = "batch",
        refresh: int = 50,
        threshold: str = "exact",
        group: int = 64,
        samples: int | None = None,
        double: bool = True,
        select_in_prediction: bool | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(rate)
        if not is_real(epsilon) or not 0 < epsilon < 1:
            raise ValueError(
                f"epsilon must be a number between 0 and 1, got {epsilon!r}; a larger one makes the projection "
                "cheaper and its estimates worse"
            )
        for name, value, known in (("share", share, tuple(SAMPLES)), ("threshold", threshold, ("exact", "shared"))):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
        samples = SAMPLES[share] if samples is None else samples
        for name, number, least in (("refresh", refresh, 1), ("group", group, 1), ("samples", samples, 1), ("seed", seed, 0)):
            if not is_integer(number) or number < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {number!r}")
        self.epsilon, self.share, self.refresh, self.threshold, self.group = epsilon, share, refresh, threshold, group
        self.samples, self.double, self.seed = samples, double, seed
        self.select_in_prediction = share == "sample" if select_in_prediction is None else select_in_prediction
        self._guesses = Guesses(epsilon, refresh, seed)

    def sites(self, model):
        """Return the sites of Linear and Conv2d layers. A sequence of rates also has a rate for each other hidden layer, so
        that it stays valid if pruning makes some layers sparse.
        """
        sites = super().sites(model)
        super().check(len(sites))
        return tuple(site for site in sites if site.chosen)

    def fits(self, site):
        """Return True if the site supports sets for a whole batch; other sets are refused when they are chosen."""
        return self.share != "batch" or super().fits(site)

    def check(self, layers):
        """Raise ValueError unless there are layers whose neurons can be chosen; `sites` checks the number of rates."""
        if not layers:
            raise ValueError(
                "dsg: it chooses neurons of hidden Linear and Conv2d layers, and there are none; choose another "
                "dropout, or 'none'"
            )

    def plan(self, site, rng):
        return None

    @property
    def alike(self):
        return self.share == "batch" or self.threshold == "exact"

    def calibrated(self, model, x):
        return self._with(self.rate)

    def _with(self, rate):
        """Return a copy with other rates, which projects all weights again, so that an epoch depends only on the weights at its
        start.
        """
        return self.changed(rate=rate, _guesses=self._guesses.restarted())

    def inference_policy(self, epoch):
        if not self.select_in_prediction:
            return None
        threshold = "exact" if self.share == "sample" else self.threshold  # a shared one depends on the samples beside a sample
        guesses = Guesses(self.epsilon, None, self.seed)  # weights do not change
        return self.at(epoch).changed(refresh=None, threshold=threshold, _guesses=guesses)

    def caution(self, site):
        outputs, inputs = site.shape[0], math.prod(site.shape[1:])
        if self.rate_of(site) and (k := johnson_lindenstrauss(outputs, self.epsilon)) >= inputs:
            return (
                f"dsg: a layer of {inputs} inputs and {outputs} outputs would be projected to {k} numbers, which saves "
                "nothing, so its exact outputs are used. A larger epsilon projects to fewer"
            )
        return None

    def cautions(self, model):
        """Return the warnings of the base class, and one if there is a batch norm between a product and its ReLU."""
        tree = Tree(model)
        chosen = {tree.owners[site.path] for site in self.sites(tree) if self.rate_of(site)}
        early = [
            (layer, norm)
            for holder in tree.layers.values()
            for (_, layer), (_, norm) in itertools.pairwise(holder.children())
            if layer in chosen and isinstance(norm, (BatchNorm1d, BatchNorm2d))
        ]
        return super().cautions(model) + [
            f"dsg: {norm!r} is between {layer!r} and its ReLU, but neurons are chosen by ReLU of the product; "
            "put it after ReLU (product, ReLU, batch norm)"
            for layer, norm in early
        ]

    def choose_from_flow(self, site, flow, layer, rng):
        if not self.rate_of(site):
            return None
        w = layer.weight
        count = kept_of(w.shape[0], self.rate_of(site))
        if w.ndim > 2 and (self.share != "batch" or layer.groups > 1):
            raise ValueError(
                f"dsg: {layer!r}: for convolutions without groups it chooses channels for a whole batch; use "
                "share='batch', or a rate of 0 for this layer"
            )
        if count == w.shape[0]:
            return None  # nothing is chosen, in recorded steps either: ranks sum scores equally often
        bits = np.asarray(w.device.download(self._bits(flow, layer, count)))
        if self.share == "batch":
            chosen = np.unpackbits(bits.astype("<i4").view(np.uint8), count=w.shape[0], bitorder="little")
            return IndexPlan(w.shape[0], np.flatnonzero(chosen))
        samples = flow.layout.samples.plan.samples if isinstance(flow.layout, PerSample) else flow.x.shape[0]
        return SamplePlan(samples, w.shape[0], self._group, bits, self.double)

    @property
    def on_device(self):
        return self.threshold == "exact"

    @property
    def chooses_by(self):
        return self._guesses.projections, self.epsilon, self.share, self.group, self.samples, self.double, self.seed

    def choose_into(self, site, flow, layer, given):
        dev, plan = layer.weight.device, given.plan
        with self._guesses.uncounted():
            bits = self._bits(flow, layer, kept_of(plan.n, self.rate_of(site)))
        if isinstance(plan, SamplePlan):
            dev.copy(bits, out=given.lists.bits)
            return
        inverse, indices = dev.bit_lists(bits, plan.n, plan.count)
        dev.copy(inverse, out=given.inverse)
        dev.copy(indices, out=given.indices)

    def prepare(self, model):
        tree = model if isinstance(model, Tree) else Tree(model)

        @functools.cache
        def weights():
            return [tree.owners[site.path].weight for site in self.sites(tree) if self.rate_of(site)]

        return lambda finish: self._guesses.prepare(weights(), finish)

    @property
    def _group(self) -> int:
        return 1 if self.share == "sample" else self.group

    def _bits(self, flow: Flow, layer: Any, count: int) -> Any:
        """Return the neurons to compute, as bits on the device: a row for each set."""
        w, bias = layer.weight, layer.bias
        with no_grad():
            if self.share == "batch":
                trains = self.refresh is not None
                some = _evenly(flow, share_of(self.samples) if trains else self.samples).expanded()
                scores = self._guesses.scores([some.data if w.ndim == 2 else _windows(some, layer)], w, bias)
                if trains:  # all ranks compute the same neurons
                    joint_scores(w.device, scores)
                return w.device.top_k(scores, count)
            x = flow.dense()
            scores = self._guesses.outputs(x.data, w, bias) if self._group == 1 else self._of_groups(x, w, bias)
            return self._chosen(w.device, scores, count)

    def _of_groups(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Any:
        """Return the scores (groups, O) of the O neurons for each group of samples."""
        groups = (Flow(x[first : first + self.group]) for first in range(0, x.shape[0], self.group))
        return self._guesses.scores([_evenly(flow, self.samples).x.data for flow in groups], w, bias)

    def _chosen(self, dev: Device, scores: Any, count: int) -> Any:
        """Return a bit mask of the neurons that each row of `scores` keeps: the `count` largest scores, or, if `threshold` is
        "shared", those above the shared threshold.
        """
        if self.threshold == "exact":
            return dev.top_k(scores, count)
        few = np.asarray(dev.download(dev.getitem(scores, slice(0, SHARING))))
        shared = float(np.partition(few, few.shape[1] - count)[:, few.shape[1] - count].mean())
        least = shared if self.share == "sample" else max(shared, np.finfo(np.float32).tiny)  # excludes scores of 0
        return dev.above(scores, least)

    def progress(self, model):
        weights = {site.path: model.owners[site.path].weight for site in self.sites(model)}
        return {path: saved for path, w in weights.items() if (saved := self._guesses.projection(w)) is not None}

    def go_on(self, model, progress):
        for path, saved in progress.items():
            self._guesses.project(model.owners[path].weight, *saved)

    def pop_flops(self):
        return self._guesses.pop_flops()


def kept_of(n: int, rate: float) -> int:
    """Return the number of neurons out of n that are kept; it is at least 1."""
    return max(round((1 - rate) * n), 1)


def _evenly(flow: Flow, count: int) -> Flow:
    """Return a flow with `count` samples of a batch, evenly spaced; with all samples if there are fewer."""
    flow = flow if flow.layout.plan is None else flow.with_(flow.dense())
    n, dev = flow.x.shape[0], flow.x.device
    if n <= count:
        return flow
    every = n // count
    return flow._replace(x=Tensor.wrap(dev.getitem(flow.x.data, slice(0, every * count, every)), dev))


def _windows(x: Tensor, layer: Conv2d) -> Any:
    """Return an array (N WINDOWS, C KH KW): WINDOWS windows of each image of x (N, H, W, C), evenly spaced over the inside of
    the image. Their values are in the order of a row of the weight. Images smaller than the kernel give partial windows."""
    dev, at, taps = x.device, *_places(x.shape, layer.window, x.device)
    return dev.reshape(dev.take_rows(dev.reshape(x.data, (x.size, 1)), at), (x.shape[0] * WINDOWS, taps))


@functools.lru_cache(maxsize=64)
def _places(shape: tuple[int, int, int, int], window: Window, dev: Device) -> tuple[Any, int]:
    """Return the indices, on the device, of the values of `_windows` in an array of this shape, and the number of values of a
    window.
    """
    (n, height, width, channels), axes = shape, []
    for axis, length in enumerate((height, width)):
        begins = np.arange(window.positions(height, width)[axis]) * window.stride[axis] - window.padding[axis]
        reach = (window.kernel[axis] - 1) * window.dilation[axis]
        inside = begins[(begins >= 0) & (begins + reach < length)]
        axes.append(inside if inside.size else begins[:1])
    count = len(axes[0]) * len(axes[1])
    chosen = (np.arange(n * WINDOWS) * 7919) % count  # steps of a prime number spread the windows over the images
    taps = [np.arange(size) * apart for size, apart in zip(window.kernel, window.dilation)]
    h = np.clip(axes[0][chosen // len(axes[1])][:, None] + taps[0], 0, height - 1)
    v = np.clip(axes[1][chosen % len(axes[1])][:, None] + taps[1], 0, width - 1)
    image = np.repeat(np.arange(n), WINDOWS)[:, None, None, None]
    at = ((image * height + h[:, None, :, None]) * width + v[:, None, None, :]) * channels + np.arange(channels)[:, None, None]
    return dev.upload(at.reshape(-1).astype(np.int32)), math.prod(at.shape[1:])
