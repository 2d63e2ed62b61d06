"""Task: what an estimator learns, apart from how. Classification, regression."""
from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from .. import ops
from ..device import Device
from ..tensor import Tensor
from .data import Batch, Data, in_order


class Task(abc.ABC):
    """Base of the tasks."""

    recordable: ClassVar[bool] = False

    @property
    def records(self) -> bool:
        """Whether `loss` and `answer` always launch the same for inputs of the same shape, so that passes may be recorded. A
        class says so for itself alone (`recordable = True`): a subclass may do something else."""
        return bool(vars(type(self)).get("recordable", False))

    def batches(self, data: Data, size: int, rng: np.random.Generator, dev: Device) -> Iterator[Batch]:
        """The batches of one epoch; here in random order."""
        return in_order(data, data.at(rng.permutation(len(data))), size, dev)

    @abc.abstractmethod
    def loss(self, output: Tensor, targets: Any, weights: Any) -> Tensor:
        """One number, the loss of a batch, its weights summing to 1 or None."""

    @abc.abstractmethod
    def answer(self, dev: Device, output: Any) -> Any:
        """What is predicted, as an array, from the model's output, an array of the device."""

    @abc.abstractmethod
    def score(self, targets: np.ndarray, answers: np.ndarray, weights: np.ndarray | None) -> float:
        """How good answers are; larger is better."""


class Classification(Task):
    """One of several classes: softmax cross-entropy, the most probable class, accuracy. Targets are positions of classes."""

    recordable = True

    def loss(self, output, targets, weights):
        return ops.softmax_cross_entropy(output, labels=targets, weights=weights)

    def answer(self, dev, output):
        return dev.argmax(output)

    def score(self, targets, answers, weights):
        from sklearn.metrics import accuracy_score
        return float(accuracy_score(targets, answers, sample_weight=weights))


class Regression(Task):
    """Numbers, by least squares; R²."""

    recordable = True

    def loss(self, output, targets, weights):
        return ops.squared_error(output, target=targets, weights=weights)

    def answer(self, dev, output):
        return output

    def score(self, targets, answers, weights):
        from sklearn.metrics import r2_score
        return float(r2_score(targets, answers, sample_weight=weights)) if len(targets) > 1 else float("nan")
