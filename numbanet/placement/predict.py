"""`Predictor`: times of layers whose shapes were not measured, from those that were, with the error of cross-validation.

For each kind of layer, device and direction the time is a sum of non-negative multiples of FLOPs, bytes and 1,

    ms = a flops + b bytes + c ,   or   ms = a flops + b inputs + c outputs + d parameters + e ,

fitted by non-negative least squares in relative error: a roofline (Williams et al. 2009) whose corner is rounded. The FLOPs may
be those of Winograd's filtering, which CPUs and libraries use for convolutions of 3 x 3; the sum of our own filtering has what
its loops do, and what of it caches do not hold. The sum may be corrected by what samples of similar shapes differ from it, the
less the farther their logarithms of samples, channels and pixels are (Gaussian process regression, Rasmussen and Williams 2006,
eq. 2.25; a length for each of them). And small and large shapes may have sums of their own, because a device computes them by
different loops. Cross-validation decides between these, and its error is reported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbanet_kernels.layouts import filtering
from numbanet_kernels.layouts.windows import Window, tile_of

from ..layers import Cost, Layer, Sequential
from . import facts, stages as staging
from .energy import stated
from .figures import ESTIMATED, NONE, Figure
from .measure import amount
from .table import UPDATE, LayerTimes, Profile, Stage

# columns of _numbers that a sum has
SUMS = {
    "flops, bytes": (0, 4, 5),
    "flops, inputs, outputs, parameters": (0, 1, 2, 3, 5),
    "Winograd's flops, inputs, outputs, parameters": (9, 1, 2, 3, 5),
    "our filtering": (14, 15, 16, 17, 1, 18, 2, 19, 5),
}
SPLIT, SAVED, OURS = (1, 2, 3, 6, 7), 8, 15  # columns that may split samples
CLEARER, FOLDS = 0.8, 5  # they are split if the error falls to this share; parts of cross-validation
NEAR_CACHE, FAR_CACHE = 1 << 18, 1 << 20  # elements that the caches of a core hold, and the next ones
PANEL = 32  # outputs that the products of our filtering compute together, where vectors have 16 elements
LEAST = 5  # samples of a kind; with fewer, all kinds of a device and a direction are one
NEAR = slice(10, 14)  # columns of the logarithms that say which shapes are similar
LENGTHS, NOISES = (0.7, 1.5, 3.0), (0.03, 0.1, 0.3)  # of the correction: e^0.7 is a factor of 2; share of what is not explained


class Sample(NamedTuple):
    """A time that was measured: of what kind of layer, where, in which direction, at which sizes."""

    kind: str
    device: str
    direction: str
    numbers: np.ndarray
    ms: float


class Prediction(NamedTuple):
    """A predicted time, the mean relative error of such predictions in cross-validation, and the n of samples."""

    ms: Figure
    error: float
    samples: int


class Predictor:
    """Predicts times from profiles of one machine.

    Parameters
    ----------
    profiles : iterable of Profile
        Profiles; their estimated times are ignored.

    Raises
    ------
    ValueError
        If the profiles are of several machines, or hold no measured times.
    """

    def __init__(self, profiles: Iterable[Profile]) -> None:
        self.profiles = list(profiles)
        if len({found.machine for found in self.profiles}) > 1:
            raise ValueError("Predictor: the profiles are of several machines; times of one do not predict those of another")
        samples = [sample for found in self.profiles for sample in _samples(found)]
        if not samples:
            raise ValueError("Predictor: the profiles hold no measured times")
        groups: dict[tuple[str, ...], list[Sample]] = {}
        for sample in samples:
            for key in ((sample.kind, sample.device, sample.direction), (sample.device, sample.direction)):
                groups.setdefault(key, []).append(sample)
        self._groups = {key: _Group(group) for key, group in groups.items() if len(key) == 2 or len(group) >= LEAST}

    def predict(self, stage: Stage, cost: Cost, device: str, direction: str) -> Prediction:
        """Return the predicted time of a stage; unavailable if nothing was measured on this device in this direction."""
        return self.sized(stage, *amount(stage, cost, direction), device, direction)

    def sized(self, stage: Stage, flops: float, moved: float, device: str, direction: str) -> Prediction:
        """Return the predicted time of a stage whose FLOPs and bytes moved are known; as `predict`."""
        group = self._groups.get((stage.kind, device, direction)) or self._groups.get((device, direction))
        if group is None:
            return Prediction(NONE, float("nan"), 0)
        return Prediction(Figure(group.fit.of(_numbers(stage, direction, flops, moved)), ESTIMATED), group.error, len(group.ms))

    @property
    def errors(self) -> dict[tuple[str, ...], tuple[float, int]]:
        """{(kind, device, direction), or (device, direction): (mean relative error in cross-validation, n samples)}."""
        return {key: (group.error, len(group.ms)) for key, group in self._groups.items()}

    def profile(
        self, model: str | Sequential | Sequence[Layer], shape: Sequence[int] | None = None, training: bool = True
    ) -> Profile:
        """Return a profile of a model that was not measured: all its times are estimates. Transfers, changes of device, devices
        and the power in watts are those of the profiles."""
        net, batch, name = staging.network(model, shape)
        table = staging.stages(net, batch)
        devices = {each.name: each for found in self.profiles for each in found.devices}
        transfers = {(each.source, each.target): each for found in self.profiles for each in found.transfers}
        changes = {(each.source, each.target): each for found in self.profiles for each in found.changes}
        entries, errors = [], []
        for (stage, cost), device in itertools.product(table, devices):
            for direction in stage.directions(training):
                found = self.predict(stage, cost, device, direction)
                if found.ms.known:
                    watts = self._watts(device, direction)
                    entries.append(
                        LayerTimes(
                            stage.path,
                            stage.layer,
                            device,
                            direction,
                            found.ms,
                            *amount(stage, cost, direction),
                            *stated(watts, found.ms),
                        )
                    )
                    errors.append(found.error)
        first, settings = self.profiles[0], {"model": name, "error": float(np.mean(errors)) if errors else None}
        made = first.machine, facts.now(), first.versions, batch, training
        stages = tuple(stage for stage, _ in table)
        moves, between = tuple(transfers.values()), tuple(changes.values())
        return Profile(*made, tuple(devices.values()), stages, tuple(entries), moves, settings, between)

    def _watts(self, device: str, direction: str) -> float | None:
        """Return the mean power of a device in a direction; None if it is unavailable."""
        known = [
            entry.watts.value
            for found in self.profiles
            for entry in found.entries
            if entry.device == device and entry.direction == direction and entry.watts.value is not None
        ]
        return float(np.mean(known)) if known else None


class _Fit:
    """A tree of sums for some samples. A device computes small and large shapes by different loops: if two sums, on both sides
    of a number of channels or of values, are clearly better than one, the samples are split there; first, if `filtered`, at a
    number of multiplications that Winograd's filtering saves.
    """

    def __init__(self, numbers: np.ndarray, ms: np.ndarray, depth: int = 2, filtered: bool = False) -> None:
        split = _filtered(numbers, ms) if filtered else None
        self.leaf, self.split = None, split or (_split(numbers, ms) if depth else None)
        if self.split is None:
            self.leaf = _Leaf(numbers, ms)
        else:
            column, bound = self.split
            left = numbers[:, column] < bound
            self.sides = _Fit(numbers[left], ms[left], depth - 1), _Fit(numbers[~left], ms[~left], depth - 1)

    def of(self, numbers: np.ndarray) -> float:
        """Return the milliseconds at these sizes."""
        if self.leaf is not None:
            return self.leaf.of(numbers)
        column, bound = self.split or (0, 0.0)
        return self.sides[int(numbers[column] >= bound)].of(numbers)


class _Group:
    """What predicts the times of a kind of layer on a device in a direction, with its error in cross-validation."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        numbers, self.ms = np.array([sample.numbers for sample in samples]), np.array([sample.ms for sample in samples])
        ways = [
            (_validated(numbers, self.ms, filtered), filtered) for filtered in (False, True)[: 1 + np.any(numbers[:, SAVED])]
        ]
        self.error, filtered = min(ways)
        self.fit = _Fit(numbers, self.ms, filtered=filtered)


def _validated(numbers: np.ndarray, ms: np.ndarray, filtered: bool) -> float:
    """Return the mean relative error of cross-validation; 1 if there are too few samples."""
    order, errors = np.random.default_rng(0).permutation(len(ms)), []
    for part in np.array_split(order, FOLDS) if len(ms) > FOLDS else ():
        rest = np.setdiff1d(order, part)
        fit = _Fit(numbers[rest], ms[rest], filtered=filtered)
        errors += [abs(fit.of(numbers[i]) / ms[i] - 1) for i in part]
    return float(np.mean(errors)) if errors else 1.0


class _Leaf:
    """The best of the sums for some samples, with or without a correction, by leave-one-out cross-validation."""

    def __init__(self, numbers: np.ndarray, ms: np.ndarray) -> None:
        self.near, self.lengths, self.pull = numbers[:, NEAR], np.ones(4), np.zeros(len(ms))
        ways = {columns: float(np.mean(_left_out(numbers, ms, columns))) for columns in SUMS.values()}
        self.columns = min(ways, key=lambda columns: ways[columns])
        best = ways[self.columns] if len(ms) > 2 else 0.0
        self.weights = _fitted(numbers[:, self.columns], ms)
        for columns in SUMS.values() if len(ms) > LEAST else ():
            weights = _fitted(numbers[:, columns], ms)
            off = np.log(ms / np.maximum(numbers[:, columns] @ weights, 1e-9))
            error, lengths, pull = _correction(self.near, off)
            if error < best:
                best, self.columns, self.weights, self.lengths, self.pull = error, columns, weights, lengths, pull

    def of(self, numbers: np.ndarray) -> float:
        """Return the milliseconds at these sizes."""
        found = max(float(numbers[list(self.columns)] @ self.weights), 1e-9)
        likeness = np.exp(-0.5 * (((self.near - numbers[NEAR]) / self.lengths) ** 2).sum(1))
        return found * float(np.exp(likeness @ self.pull))


def _correction(near: np.ndarray, off: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return (error, lengths, pull): off(x) = sum_i exp(-|(near_i - x) / lengths|^2 / 2) pull_i, and the mean absolute error of
    the best such correction if each sample is left out in turn (Rasmussen and Williams 2006, eq. 5.12)."""
    squares, best = (near[:, None] - near[None]) ** 2, (float("inf"), np.ones(4), np.zeros(len(off)))
    used = [LENGTHS if np.ptp(column) > 0 else LENGTHS[:1] for column in near.T]  # a size that does not vary has no length
    for lengths in itertools.product(*used):
        likeness = np.exp(-0.5 * (squares / np.square(lengths)).sum(2))
        for noise in NOISES:
            inverse = np.linalg.inv(likeness + noise * np.eye(len(off)))
            pull = inverse @ off
            error = float(np.mean(np.abs(pull / np.diag(inverse))))
            if error < best[0]:
                best = error, np.array(lengths), pull
    return best


def _split(numbers: np.ndarray, ms: np.ndarray) -> tuple[int, float] | None:
    """Return (column, bound) of the best split of the samples; None if one sum is nearly as good."""
    best, found = CLEARER * _left_out(numbers, ms).sum(), None
    for column, bound, left in _halves(numbers, SPLIT):
        error = _left_out(numbers[left], ms[left]).sum() + _left_out(numbers[~left], ms[~left]).sum()
        if error < best:
            best, found = error, (column, bound)
    return found


def _filtered(numbers: np.ndarray, ms: np.ndarray) -> tuple[int, float] | None:
    """Return (column, bound) of the number of saved multiplications from which on Winograd's filtering seems to be used, or of
    the samples that our loops filter; None if no bound makes predictions better."""
    best, found = _corrected(numbers, ms), None
    for column, bound, left in (*_halves(numbers, (SAVED,)), (OURS, 0.5, numbers[:, OURS] == 0)):
        if not _enough(left):
            continue
        terms = "our filtering" if column == OURS else "Winograd's flops, inputs, outputs, parameters"
        error = _corrected(numbers[left], ms[left]) + _corrected(numbers[~left], ms[~left], terms)
        if error < best:
            best, found = error, (column, bound)
    return found


def _halves(numbers: np.ndarray, columns: Iterable[int]) -> Iterator[tuple[int, float, np.ndarray]]:
    """Yield (column, bound, which samples are below), with enough samples on each side."""
    for column in columns:
        values = np.unique(numbers[:, column])
        for bound in (values[1:] + values[:-1]) / 2:
            left = numbers[:, column] < bound
            if _enough(left):
                yield column, float(bound), left


def _enough(left: np.ndarray) -> bool:
    """Return True if more than LEAST samples are on each side."""
    return bool(LEAST < left.sum() < len(left) - LEAST)


def _corrected(numbers: np.ndarray, ms: np.ndarray, terms: str = "Winograd's flops, inputs, outputs, parameters") -> float:
    """Return the sum of the errors of one of the sums with one fixed correction, each sample left out in turn."""
    columns = SUMS[terms]
    off = np.log(ms / np.maximum(numbers[:, columns] @ _fitted(numbers[:, columns], ms), 1e-9))
    squares = ((numbers[:, None, NEAR] - numbers[None, :, NEAR]) ** 2).sum(2)
    inverse = np.linalg.inv(np.exp(-0.5 * squares / LENGTHS[1] ** 2) + NOISES[1] * np.eye(len(ms)))
    return float(np.abs(inverse @ off / np.diag(inverse)).sum())


def _left_out(numbers: np.ndarray, ms: np.ndarray, columns: tuple[int, ...] = (9, 1, 2, 3, 5)) -> np.ndarray:
    """Return the relative errors of least squares, each sample left out in turn, by the diagonal of the hat matrix."""
    A = numbers[:, columns]
    A = A / np.maximum(A.max(0), 1e-30) / ms[:, None]
    hat = A @ np.linalg.solve(A.T @ A + 1e-9 * np.trace(A.T @ A) * np.eye(A.shape[1]), A.T)
    return np.minimum(np.abs(1 - hat.sum(1)) / np.maximum(1 - np.diag(hat), 1e-6), 1.0)


def _fitted(X: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Return the weights w >= 0 with the least relative error: they minimise sum ((X w - ms) / ms)^2."""
    from scipy.optimize import nnls  # takes long to import

    scale = np.maximum(X.max(0), 1e-30)
    return nnls(X / scale / ms[:, None], np.ones(len(ms)))[0] / scale


def _numbers(stage: Stage, direction: str, flops: float, moved: float) -> np.ndarray:
    """Return the sizes on which a time depends: FLOPs, n values of inputs, outputs and parameters (of an update those that it
    changes), bytes moved, 1, the channels or units of the inputs and the outputs, the multiplications that Winograd's filtering
    saves and the FLOPs that it has (those of others for what it does not compute), and the logarithms of samples, channels of
    both, and pixels."""
    sizes = np.prod(stage.inputs), np.prod(stage.outputs), stage.updated if direction == UPDATE else stage.parameters
    channels = [(*shape, 1, 1)[1] for shape in (stage.inputs, stage.outputs)]
    pixels, share = int(np.prod(stage.inputs[2:])), 1.0
    if stage.kind.startswith("Conv2d 3x3") and "/" not in stage.kind.partition(" +")[0] and len(stage.inputs) == 4:
        height, width = stage.inputs[2:]
        side = tile_of(height, width)
        share = -(-height // side) * -(-width // side) * (side + 2) ** 2 / (9 * pixels)
    saved = stage.inputs[0] * channels[0] * channels[1] * 9 * pixels * (1 - share)
    near = np.log([stage.inputs[0], *channels, pixels])
    ours = _filtering(stage) if share < 1 else [0] * 6
    return np.array([flops, *sizes, moved, 1.0, *channels, saved, flops * share, *near, *ours], np.float64)


def _filtering(stage: Stage) -> list[int]:
    """Return what our loops do if they filter a convolution of 3 x 3: multiplications, with outputs padded to whole panels;
    elements of the transformed weight, and again if the caches do not hold them; inputs and outputs that they do not hold.
    Zeros if they do not filter it.
    """
    (count, channels, height, width), outs = stage.inputs, stage.outputs[1]
    if not filtering.suits(Window((3, 3), padding=(1, 1)), (count, height, width, channels), outs):
        return [0] * 6
    side = tile_of(height, width)
    tiles, weight = count * -(-height // side) * -(-width // side), (side + 2) ** 2 * channels * -(-outs // PANEL) * PANEL
    beyond = [size * (size > NEAR_CACHE) for size in map(math.prod, (stage.inputs, stage.outputs))]
    return [tiles * weight, weight, weight * (weight > NEAR_CACHE), weight * (weight > FAR_CACHE), *beyond]


def _samples(found: Profile) -> Iterator[Sample]:
    """Yield the measured times of a profile."""
    kinds: dict[str, Any] = {stage.path: stage for stage in found.stages}
    for entry in found.entries:
        if entry.ms.tag != ESTIMATED and entry.ms.value:
            stage = kinds[entry.path]
            numbers = _numbers(stage, entry.direction, entry.flops, entry.bytes)
            yield Sample(stage.kind, entry.device, entry.direction, numbers, entry.ms.value)
