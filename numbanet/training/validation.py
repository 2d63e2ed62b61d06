"""After every epoch: `BatchStatistics` renews the running values of batch normalisation, `Validation` scores held-out samples,
and `EarlyStopping` keeps the best weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from ..autograd import no_grad
from ..layers import Context, Flow, walk
from ..layers.flow import DENSE, Symbols
from ..layers.norm import BatchNorm
from ..plans import Plans
from ..tensor import Tensor
from ..user_warnings import warn
from .data import Data, on_host, rows_of
from .hooks import Hook, monitored
from .run import Snapshot

TOLERANCE = 1e-4  # a score must exceed the best one by this number to count as an improvement


class BatchStatistics(Hook):
    """The hook that computes the running values of batch normalisation anew after each epoch in which something was dropped,
    and when Ctrl-C ends training within one.

    Under dropout the inputs of a batch norm have another variance, and if dropped values count as 0 without being scaled,
    another mean, than in predictions, which compute everything: predictions by the running values of dropped batches can be far
    off (Li et al. 2019, "Understanding the Disharmony between Dropout and Batch Normalization by Variance Shift"). So they
    become the means over some batches without dropout (Wu & Johnson 2021, "Rethinking "Batch" in BatchNorm", section 3).

    Parameters
    ----------
    data : Data
        Training samples; up to `SAMPLES` of them are read, evenly spaced.
    size : int
        Samples of a batch.
    whole : bool
        True if `data` holds all training samples. If it is a part of them, as for `partial_fit`, with fewer than `LEAST`, they
        are too few: then nothing is changed.
    """

    SAMPLES = 1024  # with as many, means are off by a thirtieth of the deviation, or less in convolutions
    LEAST = 256

    watches = False

    def __init__(self, data: Data, size: int, whole: bool) -> None:
        self.data, self.size, self.whole, self.norms = data, size, whole, list[BatchNorm]()
        self.total = 0  # number of samples of all ranks
        self.due = False  # True if training was interrupted within an epoch

    @property
    def settles(self):
        return bool(self.norms)

    def epoch_start(self, run, epoch):
        stepper = run.stepper
        dense = stepper.policy.inference_policy(epoch) is None and not stepper.task.stateful  # predictions drop nothing
        drops = dense and stepper.rate() > 0
        self.norms = [layer for _, layer in walk(run.model) if isinstance(layer, BatchNorm)] if drops else []
        if self.norms:
            self.total = run.samples(len(self.data))
            if not self.whole and self.total < self.LEAST:
                self.norms = []

    def epoch_end(self, run, record):
        if self.norms:
            self._renew(run)

    def interrupted(self, run):
        self.due = bool(run.done and self.norms) and run.stepper.ranks is None

    def fit_end(self, run):
        if self.due:  # only now: a checkpoint goes on with the values of the steps
            run.settle()
            self._renew(run)

    def _renew(self, run):
        """Compute the running values of the layers."""
        run.stepper.finish()
        data, dev, ranks = self.data, run.dev, run.stepper.ranks
        most = min(self.SAMPLES, self.total)
        positions = np.linspace(0, len(data) - 1, max(most * len(data) // self.total, 1)).astype(np.int32)
        count = max(most // self.size, 1)  # equal on all ranks; no batch is smaller than those of training
        with run.session(), no_grad(), contextlib.ExitStack() as stack:
            for norm in self.norms:
                stack.enter_context(norm.averaging())
            for i in range(count):
                some = positions[i::count] if len(positions) >= count else positions
                if ranks is not None and not ranks.sharded and len(some) >= ranks.size:
                    some = some[ranks.part(len(some))]
                rows = data.at(some).astype(np.int32)
                symbols = np.asarray(data.X[rows], np.int32) if on_host(data.X) else None
                x = rows_of(data.X, rows, dev) if symbols is None else dev.upload(symbols)
                flow = Flow(Tensor.wrap(x, dev), DENSE if symbols is None else Symbols(symbols))
                run.model.forward(flow, Context(dev, Plans(dev), training=True, ranks=ranks))


class Validation(Hook):
    """The hook that adds validation_loss and validation_score to the record of each epoch.

    Parameters
    ----------
    data : Data
        The held-out samples, in the form of training samples.
    score : callable, optional
        A function without arguments that returns the score; larger is better. By default the score of the task is used.

    Raises
    ------
    TypeError
        In training, if the score is not a number.
    TypeError, ValueError
        If the function raises one of Python's usual errors; the message begins with "scoring".
    """

    def __init__(self, data: Data, score: Callable[[], float] | None = None) -> None:
        self.data, self.score = data, score

    def epoch_end(self, run, record):
        # no NumPy warnings here: if weights are no longer finite, the loss of the next epoch shows it
        with np.errstate(over="ignore", invalid="ignore"):
            loss, score = run.stepper.task.validate(run.stepper, self.data)
        if self.score is not None:
            score = self.scored()
        return {"validation_loss": loss, "validation_score": float(score)}

    def scored(self) -> Any:
        """Return the score that the function gives."""
        assert self.score is not None
        try:
            score = self.score()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"scoring: {type(error).__name__}: {error}") from error
        if not isinstance(score, numbers.Real):
            raise TypeError(f"scoring must give a number, larger is better, and gave {score!r}")
        return score


class EarlyStopping(Hook):
    """The hook that stops training if validation_score has not improved for `patience` epochs, and restores the weights of the
    best epoch. Scores of NaN and -inf are no improvement; if there are no others, the last weights stay, and the hook warns.

    The optimiser then starts with a new state, because its state is not saved with these weights.

    Parameters
    ----------
    patience : int
        Number of epochs without improvement.
    """

    def __init__(self, patience: int) -> None:
        self.patience, self.waited = patience, 0
        self.best: tuple[float, int, Snapshot] | None = None  # the best score, its epoch, the weights of that epoch

    @property
    def best_epoch(self) -> int | None:
        """The number, in the history, of the epoch whose weights are kept; None if no epoch could be the result."""
        return self.best and self.best[1]

    def epoch_recorded(self, run, record):
        if not run.final:
            return
        score = monitored("early_stopping", record, "validation_score")
        if score > (-math.inf if self.best is None else self.best[0] + TOLERANCE):
            self.best, self.waited = (score, record["epoch"], run.snapshot(weights_only=True)), 0
        else:
            self.waited += 1
        if self.waited >= self.patience:
            run.stop()

    def fit_end(self, run):
        if self.best is not None:
            run.restore(self.best[2])
        elif self.waited:
            warn("early_stopping: validation_score was NaN or -inf in all epochs; the last weights stay: see scoring")
        elif run.epoch == run.epochs.stop:
            warn(
                "early_stopping: no epoch could be the result, because the network was still becoming sparse; train for "
                "more epochs, or give sparsity a larger fine_tuning"
            )

    def checkpoint(self, run):
        best = self.best and (*self.best[:2], [np.array(tensor.device.download(a)) for tensor, _, a in self.best[2].tensors])
        return best, self.waited

    def resume(self, run, saved):
        best, self.waited = saved
        if best is not None:
            score, epoch, arrays = best
            now = run.snapshot(weights_only=True)
            tensors = [(tensor, dev, dev.upload(a)) for (tensor, dev, _), a in zip(now.tensors, arrays, strict=True)]
            self.best = score, epoch, dataclasses.replace(now, tensors=tensors)

    def state(self) -> Any:
        return self.best, self.waited

    def restore(self, state: Any) -> None:
        self.best, self.waited = state
