"""Position: where in an epoch a run is, between two steps."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...tensor import Tensor
from ..data import Batch
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
    targets: str = ""  # the digest of the targets of the steps

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
            _digest(run, [batch for batch, _ in run.done]),
        )

    def check(self, run: Run, batches: Sequence[Batch]) -> None:
        """Raise ValueError unless the batches of the steps have the targets that they had."""
        if self.targets and self.targets != _digest(run, batches):
            raise ValueError(
                "resume: the batches of the epoch within which the checkpoint was written are now others: give a list, or a "
                "function of the epoch whose result depends on the epoch alone"
            )

    def results(self, run: Run) -> Iterator[StepResult]:
        """Yield the result of each step."""
        ends = np.cumsum(self.lengths)
        for i, end in enumerate(ends):
            answer = run.dev.upload(np.array(self.answers[end - self.lengths[i] : end]))
            loss = Tensor.wrap(run.dev.upload(np.array(self.losses[i])), run.dev)
            yield StepResult(loss, answer, self.flops[i], self.dense[i])


def _digest(run: Run, batches: Sequence[Batch]) -> str:
    """Return the SHA-256 of the targets of some batches."""
    found = hashlib.sha256()
    for batch in batches:
        found.update(np.ascontiguousarray(run.dev.download(batch.targets)).data)
    return found.hexdigest()
