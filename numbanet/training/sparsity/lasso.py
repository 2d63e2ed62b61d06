"""GroupLasso: adds penalties for weights and for time to the loss, removes groups of weights that become zero, and fine-tunes
the rest.

    fused loss = error + strength sum_g sqrt(n_g) (1 - cost_weight + cost_weight cost_g) |w_g|

(Wen et al. 2016, "Learning structured sparsity in deep neural networks", eqs. 3 and 4, for the groups g of n_g weights; Yuan &
Lin 2006 for sqrt(n_g); *Performance of Training Sparse Deep Neural Networks on GPUs*, II, for the fused loss.) The optimiser
follows the error's gradient; a proximal step after each update handles the norms, which are not differentiable at zero:

    w_g <- w_g max(0, 1 - step strength sqrt(n_g) (…) / |w_g|)

It makes groups exactly zero. By default norms are weighted by r / |w_g|, where r is the current mean norm of those groups of a
weight that were nonzero at the start of the epoch (adaptive group lasso: Wang & Leng 2008, with the weights of Candès, Wakin &
Boyd 2008, section 2.3): large groups shrink little, and small ones become zero sooner.

After each epoch zero groups are removed from the network (`compaction`), so that its products become smaller during training.
The last epochs fine-tune the rest, without a penalty.
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
from ...layers.sparse import sparse_layers
from ...tensor import Tensor
from ...user_warnings import warn
from ..optim import Proximal, matrix
from ..run import Run
from . import compaction
from .base import Sparsity, Thinning, check_share, rounded_up
from .joints import Joint, joints, places, trainable

TILE = 32  # rows and columns of a tile, as in `TilePlan`
MEASURED = 5  # number of timings of each layer
REFRESHED = 16  # number of steps between updates of the mean norm; on a GPU, reading the norm waits for the device


class Group(NamedTuple):
    """The groups of the weight of one layer: the weight, reshaped to a matrix with weight.shape[0] rows, is divided into blocks
    of `height` rows and `width` columns, and each block is a group.
    """

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


@dataclasses.dataclass(frozen=True)
class GroupLasso(Sparsity):
    """Structured sparsity: whole groups of weights become zero during training and are removed (`Net`, sparsity).

    Only `Linear` layers and `Conv2d` layers without groups are changed, and only weights that are neither frozen nor shared.
    The last layer keeps its outputs. Layers inside a user's layer, such as a residual block, take part if it calls the
    `Sequential` that holds them; the inputs and outputs of that `Sequential` keep their width, because others depend on it.

    Parameters
    ----------
    strength : float
        Strength of the penalty, not negative: the coefficient of the groups' norms in the loss, each times the square root of
        the group's size.
    groups : {"rows", "columns", "tiles", "filters"} or tuple of these, default="rows"
        The weights that become zero together. "rows": the weights of a neuron of a `Linear` layer. "columns": the weights that
        read one input of a `Linear` layer (a neuron of the previous layer or a feature), or one channel of a `Conv2d` layer.
        "filters": the weights of a filter of a `Conv2d` layer. "tiles": 32 x 32 blocks of the weight of each `Linear` layer
        except the last; such a layer becomes a `SparseLinear` of tiles when fine-tuning starts. Several kinds are applied in
        turn: ("filters", "rows") is for convolutional networks.
    cost_weight : float, default=0.0
        In [0, 1]: weight of the cost of a group in its penalty. The cost is the time per weight of the group's layer, divided
        by the mean over the network; it is measured on the device before the first epoch, because small products take longer
        than their FLOPs suggest. A weight of a convolution costs a hundred times one of a linear layer, so 0.02 is a large
        value if the network has both. Measured costs are rounded to powers of 2; two fits may still differ, which is why by
        default all weights cost the same.
    fine_tuning : float, default=0.5
        In [0, 1): share of the epochs, at the end, that train the rest with a fixed structure and no penalty.
    keep : float, default=0.0
        In [0, 1]: fine-tuning starts earlier, after the first epoch that leaves at most this share of the weights.
    adaptive : bool, default=True
        If True, norms are weighted by their inverse size. If False, all groups shrink equally, and most of those that become
        zero do so in the same epoch.

    Raises
    ------
    ValueError
        If a number is out of range or a group unknown; before training, if the network has no such groups.

    Warns
    -----
    UserWarning
        If all weights of a layer are zero: the strength is too large for it. If no group has become zero before fine-tuning:
        the strength is too small.

    Notes
    -----
    The length of a proximal step is the learning rate / (1 - momentum), the distance that SGD moves along a constant unit
    gradient, so that weights converge to the minimum of the fused loss; for other optimisers it is the learning rate.

    The right strength depends on the number of steps that shrink: over these, the sum of step length times strength must be at
    least the root mean square of the initial weights. With batches of 128 and He's initial weights, on 784-1024-1024-10, half
    of Fashion-MNIST and Adam at 0.002, 0.06 left 7 % of the weights in four epochs; on LeNet-5, a fifth of MNIST and SGD at
    0.03, 0.0015 for ("filters", "rows") with cost_weight=0.02 left 7 % in three. `python -m bench papers-fssl` trains both on
    all images.

    Early stopping chooses among the epochs of fine-tuning.
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
        """The names of the kinds of groups, such as "rows", without duplicates."""
        return tuple(dict.fromkeys((self.groups,) if isinstance(self.groups, str) else self.groups))

    def of(self, model: Sequential, shape: tuple[int, ...]) -> list[Group]:
        """Return the groups of a model, in the order in which they are shrunk; `shape` is the shape of a batch of inputs."""
        found, last = joints(model, shape), next(reversed(trainable(model)), None)
        return [group for kind in self.kinds for group in (GROUPS[kind](joint, last) for joint in found) if group]

    def begin(self, model, shape, epochs, dev):
        for kind in self.kinds:
            if not dataclasses.replace(self, groups=kind).of(model, shape):
                raise ValueError(f"GroupLasso: there are no {kind} that can be removed in {model!r}")
        costs = seconds(model, shape, dev) if self.cost_weight else {}
        return Lasso(self, model, shape, epochs, costs)

    def again(self, model, shape, epochs, dev):
        return Lasso(self, model, shape, epochs, {})

    def further(self, model, shape, epochs, dev):
        tiled = any(layer.tile for layer in sparse_layers(model))
        if "tiles" not in self.kinds or not tiled:
            return self.begin(model, shape, epochs, dev)
        whole = dataclasses.replace(self, groups="tiles").of(model, shape)  # of layers that had no zero tile
        costs = seconds(model, shape, dev) if whole and self.cost_weight else {}
        return Lasso(self, model, shape, epochs if whole else 0, costs)


class Shrinking(Proximal):
    """The proximal step of a group lasso.

    Parameters
    ----------
    groups : list of Group
        The groups, in the order in which they are shrunk.
    factors : list of float
        For each of them, the factor of its norms in the loss.
    """

    def __init__(self, groups: list[Group], factors: list[float]) -> None:
        self.factors = factors
        self.means: dict[Group, float] = {}  # r, the mean of the groups' root mean squares
        # the norms after the last step
        self.norms = {group: group.layer.weight.device.full(_sizes(group).shape, 0.0) for group in groups}
        self.arrays = list(self.norms.values())

    def serves(self, groups: list[Group], factors: list[float]) -> bool:
        """Return True if the step is that of these groups, and their number has not changed."""
        sizes = [tuple(norms.shape) for norms in self.arrays]
        return list(self.norms) == groups and factors == self.factors and sizes == [_sizes(group).shape for group in groups]

    def restart(self) -> None:
        """Shrink all groups equally until there are new means."""
        self.means = dict.fromkeys(self.norms, 0.0)

    def seen(self) -> list[tuple[Group, Any]]:
        """Return the groups that are not frozen, and their norms after the last step."""
        return [(group, norms) for group, norms in self.norms.items() if group.layer.weight.requires_grad]

    def numbers(self, optimizer):
        step = optimizer.learning_rate / (1 - getattr(optimizer, "momentum", 0.0))
        return tuple([n for factor, mean in zip(self.factors, self.means.values()) for n in (step * factor, mean)])

    def apply(self, numbers):
        places = {group: 2 * i for i, group in enumerate(self.norms)}
        for group, norms in self.seen():
            weight, at = group.layer.weight, places[group]
            own = weight.device.part(numbers, at, at + 2)
            weight.device.shrink(matrix(weight, weight.data), group.height, group.width, own, norms=norms)


class Lasso(Thinning):
    """The hook that applies a `GroupLasso`."""

    def __init__(
        self, chosen: GroupLasso, model: Sequential, shape: tuple[int, ...], epochs: int, costs: dict[Layer, float]
    ) -> None:
        self.chosen, self.shape = chosen, shape
        self.first = compaction.count_nonzero(model), compaction.flops(model, shape)
        self.until = max(1, round(epochs * (1 - chosen.fine_tuning))) if epochs else 0  # 0: it stays as it is
        self.costs = costs
        self.step: Shrinking | None = None  # the proximal step of the current epoch
        self.counts: dict[Group, int] = {}  # number of nonzero groups at the start of the epoch
        self._said: dict[str, Any] = {}

    def epoch_start(self, run, epoch):
        self.counts, self._steps = {}, 0
        self.share = compaction.flops(run.model, self.shape) / self.first[1]
        self.final = epoch >= self.until or self._left(run) <= self.chosen.keep
        self._choose_step(run)

    def _choose_step(self, run: Run) -> None:
        """Set the proximal step of the optimiser: none in fine-tuning."""
        if self.final:
            self.step = None
        else:
            groups = self.chosen.of(run.model, self.shape)
            factors = [sum(self._factors(group)) for group in groups]
            if self.step is None or not self.step.serves(groups, factors):  # recorded steps are those of an object
                self.step = Shrinking(groups, factors)
            self.step.restart()
        run.optimizer.end_with(self.step)

    def fit_end(self, run):
        run.optimizer.end_with(None)

    def checkpoint(self, run):
        saved = {"first": self.first, "until": self.until, "costs": list(self.costs.items()), "within": None}
        if run.done:
            groups = list(self.step.norms) if self.step else []
            counts, means = [self.counts.get(group) for group in groups], [self.step.means[g] for g in groups if self.step]
            saved["within"] = {"final": self.final, "steps": self._steps, "counts": counts, "means": means}
        return saved

    def resume(self, run, saved):
        self.first, self.costs, within = saved["first"], dict(saved["costs"]), saved["within"]
        self.until = saved.get("until", self.until)
        if within is None or not run.position:
            return
        self.final, self._steps = within["final"], within["steps"]
        self._choose_step(run)
        if self.step is not None:
            groups = list(self.step.norms)
            self.step.means.update(zip(groups, within["means"], strict=True))
            self.counts = {group: count for group, count in zip(groups, within["counts"], strict=True) if count is not None}

    def after_update(self, run):
        if self.step is None:
            return
        if self.chosen.adaptive and self._steps % REFRESHED == 0:
            run.stepper.finish()
            self._weigh(self.step)
        self._steps += 1

    def _left(self, run: Run) -> float:
        return compaction.count_nonzero(run.model) / self.first[0]

    def _weigh(self, step: Shrinking) -> None:
        """Update r, the mean norm of a layer's nonzero groups, of which the adaptive factors are r / |w_g|."""
        for group, norms in step.seen():
            roots = group.layer.weight.device.download(norms) / np.sqrt(_sizes(group))
            self.counts.setdefault(group, max(int(np.count_nonzero(roots)), 1))
            mean = float(roots.sum() / self.counts[group])
            step.means[group] = mean if math.isfinite(mean) else 0.0  # non-finite weights are handled after the epoch

    def _factors(self, group: Group) -> tuple[float, float]:
        """Return the two factors of sqrt(n_g) |w_g| in the loss: the one for sparsity and the one for time."""
        strength, share = self.chosen.strength, self.chosen.cost_weight
        return strength * (1 - share), strength * share * self.costs.get(group.layer, 1.0)

    def compact(self, run):
        parts = [
            np.array(self._factors(group)) * _weighed(group, group.layer.weight.device.download(norms).astype(np.float64))
            for group, norms in (self.step.seen() if self.step else ())
        ]
        self._said = dict(zip(("sparsity_loss", "time_loss"), map(float, sum(parts, np.zeros(2)))))
        changed = not self.final and compaction.compact(run.model, run.optimizer, self.shape)
        self._said["weights_kept"] = left = self._left(run)
        if dead := [group.layer for group in (self.step.means if self.step else ()) if not group.layer.weight.numpy().any()]:
            warn(
                f"GroupLasso: all weights of {dead[0]!r} are zero; try a smaller strength than {self.chosen.strength}"
                f"{', or a smaller cost_weight' * bool(self.costs)}"
            )
        if self.step and self._steps and left == 1 and self.chosen.strength and run.epoch + 1 >= self.until:
            self._warn_of_weakness(run, self.step)
        if "tiles" in self.chosen.kinds and not self.final and (run.epoch + 1 >= self.until or left <= self.chosen.keep):
            changed |= self._by_tiles(run)
        return changed

    def _warn_of_weakness(self, run: Run, step: Shrinking) -> None:
        """Warn that nothing became zero; the strength that is named follows from the notes of `GroupLasso`."""
        weights = np.concatenate([group.layer.weight.numpy().reshape(-1) for group in step.means])
        moved = self._steps * self.until * run.optimizer.learning_rate / (1 - getattr(run.optimizer, "momentum", 0.0))
        epochs = f"{self.until} epoch{'s' * (self.until != 1)}"
        least = max(math.sqrt(np.square(weights).mean()) / (moved or math.inf), 2 * self.chosen.strength)
        more = f"about {rounded_up(least):.1g} would remove groups at this learning rate" if moved else "the learning rate is 0"
        warn(f"GroupLasso: strength={self.chosen.strength} has removed nothing in {epochs} of {self._steps} steps; {more}")

    def _by_tiles(self, run: Run) -> bool:
        """Replace each `Linear` layer that has a zero tile by a `SparseLinear`; return True if there is any."""
        groups = dataclasses.replace(self.chosen, groups="tiles").of(run.model, self.shape)
        some = [
            group.layer
            for group in groups
            if isinstance(group.layer, Linear) and not group.layer.weight.device.download(_norms(group)).all()
        ]
        known = places(run.model, self.shape)
        for layer in some:
            compaction.to_sparse(known[layer], run.optimizer, TILE)
        return bool(some)

    def report(self):
        return self._said

    def __getstate__(self):
        return {**vars(self), "step": None}


def _sizes(group: Group) -> np.ndarray:
    """Return n_g, the number of weights of each group; groups at the edges of the weight are smaller."""
    shape = group.layer.weight.shape
    return np.outer(
        *(
            np.minimum(side, n - np.arange(0, n, side))
            for n, side in ((shape[0], group.height), (math.prod(shape[1:]), group.width))
        )
    )


def _weighed(group: Group, norms: np.ndarray) -> float:
    """Return sum_g sqrt(n_g) |w_g|, where `norms` holds |w_g|."""
    return float((np.sqrt(_sizes(group)) * norms).sum())


def _norms(group: Group) -> Any:
    """Return the norms of the groups of a weight: a proximal step of length 0 does not change the weight."""
    weight = group.layer.weight
    return weight.device.shrink(matrix(weight, weight.data), group.height, group.width, 0.0)[1]


def seconds(model: Sequential, shape: tuple[int, ...], dev: Device) -> dict[Layer, float]:
    """Return a dict from each changeable layer to its cost: the seconds of its forward pass per weight, divided by the mean of
    the network, and rounded to a power of 2.
    """
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
