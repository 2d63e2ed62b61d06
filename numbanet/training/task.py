"""Task: what an estimator learns, apart from how. Classification, regression, language modelling."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbanet_kernels.runtime.interrupt import deferred

from .. import ops
from ..autograd import no_grad
from ..device import Device, device
from ..layers import Context, Flow, Sequential, Symbols
from ..losses import OF_CLASSES, OF_NUMBERS, Loss, loss_named
from ..tensor import Tensor
from .data import Batch, Data, in_order
from .inference import forward


class Constant(NamedTuple):
    """The best answer that is always the same, and what it is worth."""

    answer: str
    score: float
    loss: float


class Task(abc.ABC):
    """Base of the tasks."""

    recordable: ClassVar[bool] = False
    stateful: ClassVar[bool] = False  # whether layers begin a step with the states that they ended the one before with

    @property
    def records(self) -> bool:
        """Whether `loss` and `answer` always launch the same for inputs of the same shape, so that passes may be recorded. A
        class says so for itself alone (`recordable = True`): a subclass may do something else."""
        return bool(vars(type(self)).get("recordable", False))

    def batches(self, data: Data, size: int, rng: np.random.Generator, dev: Device) -> Iterator[Batch]:
        """The batches of one epoch; here in random order."""
        return in_order(data, data.at(rng.permutation(len(data))), size, dev)

    def validate(self, stepper: Any, data: Data) -> tuple[float, float]:
        """(loss, score) on samples that are not trained on."""
        dev, rows = stepper.dev, data.at(np.arange(len(data)))
        output = forward(
            stepper.model, dev, data.X, rows, stepper.session_options, stepper.policy.inference_policy(stepper.epoch)
        )
        return self.judge(output, data.y[rows], None if data.weights is None else data.weights[rows], stepper.session_options)

    def judge(
        self, output: np.ndarray, targets: np.ndarray, weights: np.ndarray | None, session_options: dict[str, Any]
    ) -> tuple[float, float]:
        """(loss, score) of a model's output, on the host."""
        host = device("cpu")
        with host.session(**session_options):
            shares = None if weights is None else np.float32(weights / weights.sum())
            loss = self.loss(Tensor(output), targets, shares).item()
        return loss, self.score(targets, self.answer(host, output), weights)

    def constant(self, targets: np.ndarray, weights: np.ndarray | None) -> Constant | None:
        """The best constant answer for some targets: what has learned anything is better. None where it is not known."""
        return None

    def figures(self, record: dict[str, Any], samples: int) -> dict[str, float]:
        """What the record of an epoch of so many samples says besides."""
        return {}

    def learn(self, model: Sequential, flow: Flow, context: Context, batch: Batch) -> tuple[Any, Any]:
        """Forward and backward pass of a batch: leaves gradients in the parameters, and gives arrays of the device, the loss
        and what was predicted."""
        output = model.forward(flow, context).dense()
        loss = self.loss(output, batch.targets, batch.weights)
        loss.backward()
        return loss.data, self.answer(context.device, output.data)

    @abc.abstractmethod
    def loss(self, output: Tensor, targets: Any, weights: Any) -> Tensor:
        """One number, the loss of a batch, its weights summing to 1 or None."""

    @abc.abstractmethod
    def answer(self, dev: Device, output: Any) -> Any:
        """What is predicted, as an array, from the model's output, an array of the device."""

    @abc.abstractmethod
    def score(self, targets: np.ndarray, answers: np.ndarray, weights: np.ndarray | None) -> float:
        """How good answers are; larger is better."""


class Supervised(Task):
    """Base of the tasks with a loss that can be chosen.

    Parameters
    ----------
    loss : Loss, str or callable
        As `loss_named` takes it.
    """

    known: ClassVar[dict[str, type[Loss]]]  # losses by name

    def __init__(self, loss: Any) -> None:
        self.criterion = loss_named(loss, self.known)

    @property
    def records(self):
        return super().records and self.criterion.records

    def loss(self, output, targets, weights):
        return self.criterion.mean(output, targets, weights)

    def linked(self, dev: Device, output: Any) -> Any:
        """What the loss says that an output, an array of the device, predicts; None: it says nothing.

        Raises
        ------
        TypeError, ValueError
            If that is no tensor of the output's shape.
        """
        with no_grad():
            found = self.criterion.inverse_link(Tensor.wrap(output, dev))
        if found is None:
            return None
        if not isinstance(found, Tensor):
            raise TypeError(f"{self.criterion!r}: the inverse link must give a Tensor, not {type(found).__name__}")
        if found.shape != tuple(output.shape):
            raise ValueError(
                f"{self.criterion!r}: the inverse link must give the shape {tuple(output.shape)} of the output, "
                f"not {found.shape}"
            )
        return found.data


class Classification(Supervised):
    """One of several classes: softmax cross-entropy, the most probable class, accuracy. Targets are positions of classes.

    Parameters
    ----------
    loss : Loss, str or callable, default="cross_entropy"
        Such as `CrossEntropy(label_smoothing=0.1)`.
    """

    recordable = True
    known = OF_CLASSES

    def __init__(self, loss: Any = "cross_entropy") -> None:
        super().__init__(loss)

    def probabilities(self, dev: Device, output: Any) -> Any:
        """Of each class, an array of the device (N, C)."""
        found = self.linked(dev, output)
        return dev.softmax(output) if found is None else found

    def answer(self, dev, output):
        found = self.linked(dev, output)
        return dev.argmax(output if found is None else found)

    def score(self, targets, answers, weights):
        return float(np.average(targets == answers, weights=weights)) if len(targets) else math.nan

    def constant(self, targets, weights):
        counts = np.bincount(targets, weights)
        _, loss = self.criterion.best_constant(targets, weights) or ("", 0.0)
        return Constant("the most frequent class", float(counts.max() / counts.sum()), loss)


class StepClassification(Classification):
    """One of several classes at each time step: as `Classification` of all steps, each a sample of its own. The model gives
    (n, T, classes); targets are (n, T), and so are weights, 0 for steps after a sequence's end, or None: all count the same.

    Parameters
    ----------
    loss : Loss, str or callable, default="cross_entropy"
        Of outputs (n T, classes) and targets (n T,).
    """

    recordable = True

    def loss(self, output, targets, weights):
        steps, dev = math.prod(output.shape[:2]), output.device
        targets, weights = (None if x is None else dev.reshape(x, (steps,)) for x in (targets, weights))
        return super().loss(output.reshape(steps, output.shape[2]), targets, weights)

    def linked(self, dev, output):
        found = super().linked(dev, dev.reshape(output, (math.prod(output.shape[:2]), output.shape[2])))
        return None if found is None else dev.reshape(found, output.shape)

    def score(self, targets, answers, weights):
        return super().score(targets.reshape(-1), answers.reshape(-1), None if weights is None else weights.reshape(-1))

    def constant(self, targets, weights):
        return super().constant(targets.reshape(-1), None if weights is None else weights.reshape(-1))


class Labelling(Task):
    """Any of several labels, each by itself: sigmoid cross-entropy, summed over labels as scikit-learn has it, so that each is
    learned as fast as one alone; those more probable than not; the share of samples of which all are right. Targets are 0 and
    1, (n, labels)."""

    recordable = True

    def loss(self, output, targets, weights):
        return ops.sigmoid_cross_entropy(output, target=targets, weights=weights) * targets.shape[1]

    def answer(self, dev, output):
        return output

    def score(self, targets, answers, weights):
        return float(np.average(np.all((answers > 0) == (targets > 0), axis=1), weights=weights))

    def constant(self, targets, weights):
        from scipy.special import xlogy

        _, places = np.unique(targets, axis=0, return_inverse=True)
        score = np.bincount(places.reshape(-1), weights).max() / (len(targets) if weights is None else weights.sum())
        p = np.average(targets, axis=0, weights=weights)
        return Constant("the most frequent labels", float(score), float(-(xlogy(p, p) + xlogy(1 - p, 1 - p)).sum()))


class Regression(Supervised):
    """Numbers, by least squares or another loss, and by its score: R² of the squared error.

    Parameters
    ----------
    loss : Loss, str or callable, default="squared_error"
        Such as "absolute_error", `Huber(delta=0.5)` or `Quantile(level=0.9)`.
    """

    recordable = True
    known = OF_NUMBERS

    def __init__(self, loss: Any = "squared_error") -> None:
        super().__init__(loss)

    def answer(self, dev, output):
        found = self.linked(dev, output)
        return output if found is None else found

    def score(self, targets, answers, weights):
        return self.criterion.score(targets, answers, weights)

    def constant(self, targets, weights):
        found = self.criterion.best_constant(targets, weights)
        return None if found is None else Constant(found[0], 0.0, found[1])


class LanguageModelling(Task):
    """The next word, at each position of a text: cross-entropy, the most probable word, the share that is right.

    The text is cut into as many pieces as a batch has samples, which are read side by side, `steps` words at a time; what
    layers remember is carried over, gradients are not (truncated back-propagation through time). Samples are positions in the
    text, inputs integers (T, N), and the model gives (T, N, V).

    Where the logits of a step are more than `MOST_LOGITS`, the last layer and the loss go by pieces of some time steps, forward
    and backward, so that the logits of one piece stand in memory at a time; the gradient of the last weight is their sum. It is
    not recorded then: how many pieces there are depends on the time steps.

    Parameters
    ----------
    steps : int
        Words of a piece in a step, T.
    """

    MOST_LOGITS = 1 << 24  # 64 MiB, and as much for their gradients

    recordable = True
    stateful = True

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def batches(self, data, size, rng, dev):
        """One pass over the text; the last words, fewer than pieces, are left out."""
        length = (len(data.y) - 1) // size
        first = np.arange(size) * length
        for start in range(0, length, self.steps):
            places = first + np.arange(start, min(start + self.steps, length))[:, None]
            rows = (places + 1).reshape(-1)
            yield Batch(rows, None, dev.upload(data.y[rows]), None, rows.size, np.ascontiguousarray(data.X[places]), start == 0)

    def learn(self, model, flow, context, batch):
        if flow.x.shape[0] <= self._most(model, flow.x):
            return super().learn(model, flow, context, batch)
        flow, last = model.before_last(flow, context)
        flow, dev, found = flow.applied(), context.device, []
        answers = dev.empty(batch.targets.shape, np.int32)
        for own, words in self._pieces(model, flow.x):
            output, n = last(flow._replace(x=own)).dense(), words.stop - words.start
            loss = self.loss(output, dev.part(batch.targets, words.start, words.stop), dev.full((n,), 1 / batch.total))
            loss.backward()
            dev.copy(self.answer(dev, output.data), out=dev.part(answers, words.start, words.stop))
            found.append((dev.reshape(loss.data, (1,)), own.gradient.dense(dev)))
        losses, gradients = (dev.concatenate(arrays, 0) for arrays in zip(*found))
        flow.x.backward(Tensor.wrap(gradients, dev))
        return dev.sum(losses), answers

    def _most(self, model: Sequential, x: Tensor) -> int:
        """How many time steps have at most `MOST_LOGITS`."""
        return max(1, self.MOST_LOGITS // max(1, x.shape[1] * (model.symbols or 1)))

    def _pieces(self, model: Sequential, x: Tensor) -> Iterator[tuple[Tensor, slice]]:
        """(some time steps of x (T, N, …), the first of their graph; which of the T N words they are)"""
        most, (steps, n) = self._most(model, x), x.shape[:2]
        for start in range(0, steps, most):
            stop = min(start + most, steps)
            own = Tensor.wrap(x.device.part(x.data, start, stop), x.device, x.requires_grad)
            yield own, slice(start * n, stop * n)

    def loss(self, output, targets, weights):
        return ops.softmax_cross_entropy(output.reshape(-1, output.shape[-1]), labels=targets, weights=weights)

    def answer(self, dev, output):
        return dev.argmax(dev.reshape(output, (-1, output.shape[-1])))

    def score(self, targets, answers, weights):
        return float(np.mean(targets == answers)) if len(targets) else float("nan")

    def validate(self, stepper, data):
        """(loss, -loss): log(perplexity), the mean over all words but the first of each piece, and what is larger if better."""
        state, total, count, dev, model = {}, 0.0, 0, stepper.dev, stepper.model
        with no_grad(), dev.session(**stepper.session_options):
            for batch in self.batches(data, min(stepper.batch_size, max((len(data.y) - 1) // 2, 1)), None, dev):
                flow = Flow(Tensor.wrap(dev.upload(batch.ids), dev), Symbols(batch.ids))
                flow, last = model.before_last(flow, Context(dev, state=state))
                flow = flow.applied()
                for own, words in self._pieces(model, flow.x):
                    targets = dev.part(batch.targets, words.start, words.stop)
                    total += self.loss(last(flow._replace(x=own)).dense(), targets, None).item() * (words.stop - words.start)
                count += batch.total
                deferred.poll()
        return total / max(count, 1), -total / max(count, 1)

    def figures(self, record, samples):
        losses = {"perplexity": record["loss"], "validation_perplexity": record.get("validation_loss", math.nan)}
        found = {name: math.exp(min(loss, 700.0)) for name, loss in losses.items() if not math.isnan(loss)}
        return {**found, "tokens_per_second": samples / max(record["seconds"], 1e-9)}
