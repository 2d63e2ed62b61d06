"""GroupLasso: training that learns a compact structure by a fused loss of error, sparsity and time, and then fine-tunes it.

    fused loss = error + strength sum_g sqrt(n_g) (1 - cost_weight + cost_weight cost_g) |w_g|

(Wen et al. 2016, "Learning structured sparsity in deep neural networks", eqs. 3 and 4, for the groups g of n_g weights; Yuan &
Lin 2006 for sqrt(n_g); *Performance of Training Sparse Deep Neural Networks on GPUs*, II, for the fused loss.) The error's
gradient is followed by the optimiser; the norms, which have no gradient at zero, by a proximal step after each update:

    w_g <- w_g max(0, 1 - step strength sqrt(n_g) (…) / |w_g|)

which makes groups exactly zero. By default norms are weighed by r / |w_g|, r the present mean of those that a weight had when
the epoch began (adaptive group lasso: Wang & Leng 2008, with the weights of Candès, Wakin & Boyd 2008, section 2.3): what is
large is shrunk little, so that groups that stay keep what they have learned, and what is small goes sooner.

After each epoch groups that are zero leave the network (`compaction`), so that its products become smaller while it learns. The
last epochs fine-tune what is left, without a penalty.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...arguments import is_real
from ...autograd import no_grad
from ...device import Device
from ...layers import Context, Conv2d, Flow, Layer, Linear, Sequential
from ...tensor import Tensor
from ..optim import matrix
from ..run import Run
from ..user_warnings import warn
from . import compaction
from .base import Sparsity, Thinning
from .joints import Joint, joints, places, trainable

TILE = 32  # rows and columns of a tile, as those of `TilePlan`
MEASURED = 5  # times that a layer is timed
REFRESHED = 16  # steps after which the mean norm is taken anew: on a card that waits for the last step


class Group(NamedTuple):
    """The groups of one weight: pieces of height x width of it as (R, C)."""

    layer: Linear | Conv2d
    height: int
    width: int


def _rows(joint: Joint, _: Layer | None) -> Group | None:
    source = joint.source
    return Group(source, 1, source.weight.shape[1]) if isinstance(source, Linear) else None


def _filters(joint: Joint, _: Layer | None) -> Group | None:
    source = joint.source
    return Group(source, 1, math.prod(source.weight.shape[1:])) if isinstance(source, Conv2d) else None


def _columns(joint: Joint, _: Layer | None) -> Group | None:
    shape = joint.reader.weight.shape
    can_leave = joint.source is not None or (joint.flat and isinstance(joint.reader, Linear))
    return Group(joint.reader, shape[0], math.prod(shape[2:])) if can_leave else None


def _tiles(joint: Joint, last: Layer | None) -> Group | None:
    return Group(joint.reader, TILE, TILE) if isinstance(joint.reader, Linear) and joint.reader is not last else None


GROUPS: dict[str, Callable[[Joint, Layer | None], Group | None]] = {
    "rows": _rows,
    "columns": _columns,
    "tiles": _tiles,
    "filters": _filters,
}


def check_share(name: str, value: Any, open_end: bool = False) -> None:
    """ValueError unless the value is a number in [0, 1], or [0, 1)."""
    if not is_real(value) or not 0 <= value <= 1 or (open_end and value == 1):
        raise ValueError(f"{name} must be a number in [0, 1{')' if open_end else ']'}, got {value!r}")


@dataclasses.dataclass(frozen=True)
class GroupLasso(Sparsity):
    """Structured sparsity: whole groups of weights become zero while a network learns, and leave it (`Net`, sparsity).

    Layers other than `Linear` and `Conv2d` without groups, frozen weights, and weights that several layers share are left
    alone. The last layer keeps its outputs. Layers inside of a layer of one's own, such as a residual block, take part if it
    calls the `Sequential` that holds them: that keeps the width of its inputs and outputs, as what is around depends on them.

    Parameters
    ----------
    strength : float
        Of the penalty, not negative: coefficient of the groups' norms in the loss, each times the square root of its size.
    groups : {"rows", "columns", "tiles", "filters"} or tuple of these, default="rows"
        What becomes zero together. "rows": the weights of a neuron of a `Linear` layer. "columns": those that read an input of
        a `Linear` layer, be it a neuron of the layer before or a feature of the samples, or a channel of a `Conv2d` layer.
        "filters": the weights of a filter of a `Conv2d` layer. "tiles": 32 x 32 blocks of the weight of a `Linear` layer but
        the last, which becomes a `SparseLinear` of tiles when fine-tuning begins. Of several, each is shrunk in turn:
        ("filters", "rows") is for networks of convolutions.
    cost_weight : float, default=0.0
        In [0, 1]: how far groups are weighed by what they cost, seconds for a weight of their layer over the network's mean, as
        measured on the device before the first epoch. FLOPs would miss that small products take longer than theirs. A weight
        of a convolution costs a hundred times one of a linear layer, so that 0.02 is much where there are both. Measured costs
        are rounded to powers of 2; still two fits may differ, so that by default all weights cost the same.
    fine_tuning : float, default=0.5
        In [0, 1): share of the epochs, the last ones, that train what is left at fixed structure, without a penalty.
    keep : float, default=0.0
        In [0, 1]: fine-tuning begins earlier, after the first epoch that leaves at most this share of the weights.
    adaptive : bool, default=True
        Whether norms are weighed by how small they are; without, all groups are shrunk by the same amount, and lose about all
        at once what they are to lose.

    Raises
    ------
    ValueError
        If a number is out of range or a group unknown; before training, if the network has no such groups.

    Warns
    -----
    UserWarning
        If a layer has no weight left: the strength is too large for it.

    Notes
    -----
    The length of a proximal step is the learning rate over 1 - momentum, as far as SGD goes along a constant gradient, so that
    weights settle where the fused loss is least; for other optimisers it is the learning rate.

    Which strength does it depends on how many steps there are to shrink in: over those, step times strength has to add up to
    the root mean square of initial weights at least. With batches of 128, on 784-1024-1024-10, half of Fashion-MNIST and Adam
    at 0.002, 0.06 left 7 % of the weights in four epochs; on LeNet-5, a fifth of MNIST and SGD at 0.03, 0.0015 for ("filters",
    "rows") with cost_weight=0.02 left 7 % in three. `python -m bench papers-fssl` trains both on all images.

    Early stopping looks for the best weights among the epochs of fine-tuning.
    """

    name: ClassVar[str] = "lasso"
    strength: float
    groups: str | tuple[str, ...] = "rows"
    cost_weight: float = 0.0
    fine_tuning: float = 0.5
    keep: float = 0.0
    adaptive: bool = True

    def __post_init__(self) -> None:
        given = self.strength
        if not is_real(given) or not 0 <= given < math.inf:
            raise ValueError(f"GroupLasso: strength must be a finite number, not negative, got {given!r}")
        kinds = (self.groups,) if isinstance(self.groups, str) else self.groups
        if not (isinstance(kinds, (tuple, list)) and kinds and all(isinstance(kind, str) and kind in GROUPS for kind in kinds)):
            raise ValueError(f"GroupLasso: there are no groups {self.groups!r}; choose from {', '.join(map(repr, GROUPS))}")
        check_share("GroupLasso: cost_weight", self.cost_weight)
        check_share("GroupLasso: fine_tuning", self.fine_tuning, open_end=True)
        check_share("GroupLasso: keep", self.keep)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The groups, each kind once."""
        return tuple(dict.fromkeys((self.groups,) if isinstance(self.groups, str) else self.groups))

    def of(self, model: Sequential, shape: tuple[int, ...]) -> list[Group]:
        """The groups of a model for inputs of this shape, in the order in which they are shrunk."""
        found, last = joints(model, shape), next(reversed(trainable(model)), None)
        return [group for kind in self.kinds for group in (GROUPS[kind](joint, last) for joint in found) if group]

    def begin(self, model, shape, epochs, dev):
        for kind in self.kinds:
            if not dataclasses.replace(self, groups=kind).of(model, shape):
                raise ValueError(f"GroupLasso: there are no {kind} that could leave {model!r}")
        costs = seconds(model, shape, dev) if self.cost_weight else {}
        return Lasso(self, model, shape, epochs, costs)


class Lasso(Thinning):
    """Shrinks a network as a `GroupLasso` says."""

    def __init__(
        self, chosen: GroupLasso, model: Sequential, shape: tuple[int, ...], epochs: int, costs: dict[Layer, float]
    ) -> None:
        self.chosen, self.shape = chosen, shape
        self.first = compaction.count_nonzero(model), compaction.flops(model, shape)
        self.until = max(1, round(epochs * (1 - chosen.fine_tuning)))
        self.costs = costs
        self.means: dict[Group, float] = {}  # the groups, and the mean of their root mean squares
        self.counts: dict[Group, int] = {}  # how many were not zero when the epoch began
        self._norms: dict[Group, Any] = {}  # after the last step
        self._said: dict[str, Any] = {}

    def epoch_start(self, run, epoch):
        self._norms = {}
        groups = self.chosen.of(run.model, self.shape)
        self.means, self.counts, self._steps = dict.fromkeys(groups, 0.0), {}, 0
        self.share = compaction.flops(run.model, self.shape) / self.first[1]
        self.final = epoch >= self.until or self._left(run) <= self.chosen.keep
        self.changes = not self.final

    def after_update(self, run):
        if self.final:
            return
        optimizer = run.optimizer
        step = optimizer.learning_rate / (1 - getattr(optimizer, "momentum", 0.0))
        for group, mean in self.means.items():
            if group.layer.weight.requires_grad:
                self._norms[group] = _shrunk(group, step * sum(self._factors(group)), mean)
        if self.chosen.adaptive and self._steps % REFRESHED == 0:
            self._weigh()
        self._steps += 1

    def _left(self, run: Run) -> float:
        return compaction.count_nonzero(run.model) / self.first[0]

    def _weigh(self) -> None:
        """Take the means that norms are compared with."""
        for group, norms in self._norms.items():
            roots = group.layer.weight.device.download(norms) / np.sqrt(_sizes(group))
            self.counts.setdefault(group, max(int(np.count_nonzero(roots)), 1))
            mean = float(roots.sum() / self.counts[group])
            self.means[group] = mean if math.isfinite(mean) else 0.0  # what has broken is dealt with after the epoch

    def _factors(self, group: Group) -> tuple[float, float]:
        """By what sqrt(n_g) |w_g| is multiplied in the loss: for sparsity, and for time."""
        strength, share = self.chosen.strength, self.chosen.cost_weight
        return strength * (1 - share), strength * share * self.costs.get(group.layer, 1.0)

    def compact(self, run):
        parts = [
            np.array(self._factors(group)) * _weighed(group, group.layer.weight.device.download(norms).astype(np.float64))
            for group, norms in self._norms.items()
        ]
        self._said = dict(zip(("sparsity_loss", "time_loss"), map(float, sum(parts, np.zeros(2)))))
        self._norms = {}
        changed = not self.final and compaction.compact(run.model, run.optimizer, self.shape)
        self._said["weights_kept"] = left = self._left(run)
        if dead := [group.layer for group in parts and self.means if not group.layer.weight.numpy().any()]:
            warn(
                f"GroupLasso: all weights of {dead[0]!r} are zero; try a smaller strength than {self.chosen.strength}"
                f"{', or a smaller cost_weight' * bool(self.costs)}"
            )
        if "tiles" in self.chosen.kinds and not self.final and (run.epoch + 1 >= self.until or left <= self.chosen.keep):
            changed |= self._by_tiles(run)
        return changed

    def _by_tiles(self, run: Run) -> bool:
        """Keep of weights with tiles that are zero the others alone; returns whether there are such weights."""
        groups = dataclasses.replace(self.chosen, groups="tiles").of(run.model, self.shape)
        some = [
            group.layer
            for group in groups
            if isinstance(group.layer, Linear) and not group.layer.weight.device.download(_shrunk(group, 0.0, 0.0)).all()
        ]
        known = places(run.model, self.shape)
        for layer in some:
            compaction.to_sparse(known[layer], run.optimizer, TILE)
        return bool(some)

    def report(self):
        return self._said

    def __getstate__(self):
        return {**vars(self), "_norms": {}}


def _sizes(group: Group) -> np.ndarray:
    """How many weights each group has: those at the edges are smaller."""
    shape = group.layer.weight.shape
    return np.outer(
        *(
            np.minimum(side, n - np.arange(0, n, side))
            for n, side in ((shape[0], group.height), (math.prod(shape[1:]), group.width))
        )
    )


def _weighed(group: Group, norms: np.ndarray) -> float:
    """sum_g sqrt(n_g) |w_g|"""
    return float((np.sqrt(_sizes(group)) * norms).sum())


def _shrunk(group: Group, threshold: float, mean: float) -> Any:
    """The norms of the groups of a weight after they were shrunk."""
    weight = group.layer.weight
    return weight.device.shrink(matrix(weight, weight.data), group.height, group.width, threshold, mean)[1]


def seconds(model: Sequential, shape: tuple[int, ...], dev: Device) -> dict[Layer, float]:
    """Of each layer that can be changed, forward, for a weight of it over the network's mean, to powers of 2."""
    found: dict[Linear | Conv2d, float] = {}
    rng = np.random.default_rng(0)
    with no_grad(), dev.session():
        for layer, place in places(model, shape).items():
            x, times = Tensor(rng.standard_normal([n or 1 for n in place.spec.shape], np.float32), dev), []
            for _ in range(MEASURED):
                began = time.perf_counter()
                layer.forward(Flow(x), Context(dev))
                dev.synchronize()
                times.append(time.perf_counter() - began)
            found[layer] = min(times)
    mean = sum(found.values()) / sum(layer.weight.size for layer in found)
    return {layer: 2.0 ** round(math.log2(spent / layer.weight.size / mean)) for layer, spent in found.items()}
