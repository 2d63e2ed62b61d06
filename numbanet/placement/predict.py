"""`Predictor`: times of layers whose shapes were not measured, from those that were, with the error of cross-validation.

For each kind of layer, device and direction the time is a sum of non-negative multiples of FLOPs, bytes and 1,

    ms = a flops + b bytes + c ,   or   ms = a flops + b inputs + c outputs + d parameters + e ,

fitted by non-negative least squares in relative error: a roofline (Williams et al. 2009) whose corner is rounded. It may be
corrected by the residuals of similar shapes, and small and large shapes may have sums of their own, because a device computes
them by different loops. Cross-validation decides between these, and its error is reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..layers import Cost, Layer, Sequential
from . import facts, stages as staging
from .energy import stated
from .figures import ESTIMATED, NONE, Figure
from .measure import amount
from .table import LayerTimes, Profile, Stage

# columns of _numbers that a sum has
SUMS = {"flops, bytes": (0, 4, 5), "flops, inputs, outputs, parameters": (0, 1, 2, 3, 5)}
SPLIT, CLEARER, FOLDS = (1, 2, 3, 6, 7), 0.8, 5  # columns by which samples may be split, if the error falls to this share
LEAST = 5  # samples of a kind; with fewer, all kinds of a device and a direction are one
WIDTH, TRUST = np.log(2.0), 0.3  # residuals count within about a factor of 2 of the shape, against this weight of 0


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
        return Prediction(Figure(group.fit.of(_numbers(stage, flops, moved)), ESTIMATED), group.error, len(group.ms))

    @property
    def errors(self) -> dict[tuple[str, ...], tuple[float, int]]:
        """{(kind, device, direction), or (device, direction): (mean relative error in cross-validation, n samples)}."""
        return {key: (group.error, len(group.ms)) for key, group in self._groups.items()}

    def profile(
        self, model: str | Sequential | Sequence[Layer], shape: Sequence[int] | None = None, training: bool = True
    ) -> Profile:
        """Return a profile of a model that was not measured: all its times are estimates. Transfers, devices and the power in
        watts are those of the profiles."""
        net, batch, name = staging.network(model, shape)
        table = staging.stages(net, batch)
        devices = {each.name: each for found in self.profiles for each in found.devices}
        transfers = {(each.source, each.target): each for found in self.profiles for each in found.transfers}
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
        return Profile(*made, tuple(devices.values()), stages, tuple(entries), tuple(transfers.values()), settings)

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
    of a number of channels or of values, are clearly better than one, the samples are split there.
    """

    def __init__(self, numbers: np.ndarray, ms: np.ndarray, depth: int = 2) -> None:
        self.leaf, self.split = None, _split(numbers, ms) if depth else None
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
        self.fit, order = _Fit(numbers, self.ms), np.random.default_rng(0).permutation(len(samples))
        errors = []
        for part in np.array_split(order, FOLDS) if len(samples) > FOLDS else ():
            rest = np.setdiff1d(order, part)
            fit = _Fit(numbers[rest], self.ms[rest])
            errors += [abs(fit.of(numbers[i]) / self.ms[i] - 1) for i in part]
        self.error = float(np.mean(errors)) if errors else 1.0


class _Leaf:
    """The best of the sums for some samples, by leave-one-out cross-validation."""

    def __init__(self, numbers: np.ndarray, ms: np.ndarray) -> None:
        self.numbers, self.ms = numbers, ms
        ways = {way: self._error(*way) for way in itertools.product(SUMS.values(), (False, True))}
        (self.columns, self.smooth), _ = min(ways.items(), key=lambda item: item[1])
        self.weights = _fitted(numbers[:, self.columns], ms)

    def of(self, numbers: np.ndarray) -> float:
        """Return the milliseconds at these sizes."""
        return _predicted(numbers, self.numbers, self.ms, self.weights, self.columns, self.smooth)

    def _error(self, columns: tuple[int, ...], smooth: bool) -> float:
        """Return the mean relative error if each sample is predicted from the others; inf if there are too few."""
        n, errors = len(self.ms), []
        if n <= 2:
            return float(smooth)
        for i in range(n):
            rest = np.arange(n) != i
            X, ms = self.numbers[rest], self.ms[rest]
            found = _predicted(self.numbers[i], X, ms, _fitted(X[:, columns], ms), columns, smooth)
            errors.append(abs(found / self.ms[i] - 1))
        return float(np.mean(errors))


def _split(numbers: np.ndarray, ms: np.ndarray) -> tuple[int, float] | None:
    """Return (column, bound) of the best split of the samples; None if one sum is nearly as good."""
    best, found = CLEARER * _left_out(numbers, ms).sum(), None
    for column in SPLIT:
        values = np.unique(numbers[:, column])
        for bound in (values[1:] + values[:-1]) / 2:
            left = numbers[:, column] < bound
            if LEAST < left.sum() < len(ms) - LEAST:
                error = _left_out(numbers[left], ms[left]).sum() + _left_out(numbers[~left], ms[~left]).sum()
                if error < best:
                    best, found = error, (column, float(bound))
    return found


def _left_out(numbers: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Return the relative errors of least squares, each sample left out in turn, by the diagonal of the hat matrix."""
    A = numbers[:, SUMS["flops, inputs, outputs, parameters"]]
    A = A / np.maximum(A.max(0), 1e-30) / ms[:, None]
    hat = A @ np.linalg.solve(A.T @ A + 1e-9 * np.trace(A.T @ A) * np.eye(A.shape[1]), A.T)
    return np.minimum(np.abs(1 - hat.sum(1)) / np.maximum(1 - np.diag(hat), 1e-6), 1.0)


def _fitted(X: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Return the weights w >= 0 with the least relative error: they minimise sum ((X w - ms) / ms)^2."""
    from scipy.optimize import nnls  # takes long to import

    scale = np.maximum(X.max(0), 1e-30)
    return nnls(X / scale / ms[:, None], np.ones(len(ms)))[0] / scale


def _predicted(
    x: np.ndarray, X: np.ndarray, ms: np.ndarray, weights: np.ndarray, columns: tuple[int, ...], smooth: bool
) -> float:
    """Return the time at the sizes x: the sum, corrected if `smooth` by the residuals of the samples near x."""
    found = max(float(x[list(columns)] @ weights), 1e-9)
    if not smooth:
        return found
    residuals = np.log(ms / np.maximum(X[:, columns] @ weights, 1e-9))
    distances = ((np.log(X[:, :4] + 1) - np.log(x[:4] + 1)) ** 2).sum(1)
    near = np.exp(-distances / (2 * WIDTH**2))
    return found * float(np.exp(near @ residuals / (near.sum() + TRUST)))


def _numbers(stage: Stage, flops: float, moved: float) -> np.ndarray:
    """Return the sizes on which a time depends: FLOPs, n values of inputs, outputs and parameters, bytes moved, 1, and the
    channels or units of the inputs and the outputs."""
    sizes = np.prod(stage.inputs), np.prod(stage.outputs), stage.parameters
    channels = [(*shape, 1, 1)[1] for shape in (stage.inputs, stage.outputs)]
    return np.array([flops, *sizes, moved, 1.0, *channels], np.float64)


def _samples(found: Profile) -> Iterator[Sample]:
    """Yield the measured times of a profile."""
    kinds: dict[str, Any] = {stage.path: stage for stage in found.stages}
    for entry in found.entries:
        if entry.ms.tag != ESTIMATED and entry.ms.value:
            stage = kinds[entry.path]
            numbers = _numbers(stage, entry.flops, entry.bytes)
            yield Sample(stage.kind, entry.device, entry.direction, numbers, entry.ms.value)
