"""Position: where in an epoch a run is, between two steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...tensor import Tensor
from ..run import Run
from ..stepper import StepResult


class Position(NamedTuple):
    """The steps of an epoch that are done: what the record of the epoch needs of them."""

    seconds: float  # since the epoch began
    order: Any  # state of the stream of rows when the epoch began; it determines the order of the samples
    losses: np.ndarray  # of each step
    answers: np.ndarray  # predictions of all steps
    lengths: list[int]  # number of predictions of each step
    flops: list[float]
    dense: list[float]

    @classmethod
    def of(cls, run: Run) -> Position:
        """Return the position of a run; all its steps must be computed."""
        results, dev = [result for _, result in run.done], run.dev
        answers = [np.array(dev.download(result.answer)) for result in results]
        return cls(
            time.perf_counter() - run.began,
            run.order,
            np.array([result.loss.item() for result in results], np.float32),
            np.concatenate(answers),
            list(map(len, answers)),
            [float(result.flops) for result in results],
            [float(result.dense) for result in results],
        )

    def results(self, run: Run) -> Iterator[StepResult]:
        """Yield the result of each step."""
        ends = np.cumsum(self.lengths)
        for i, end in enumerate(ends):
            answer = run.dev.upload(np.array(self.answers[end - self.lengths[i] : end]))
            loss = Tensor.wrap(run.dev.upload(np.array(self.losses[i])), run.dev)
            yield StepResult(loss, answer, self.flops[i], self.dense[i])
