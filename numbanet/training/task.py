"""A task defines the batches, the loss, the predictions and the score of one kind of learning, such as classification,
regression or language modelling.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbanet_kernels.runtime.interrupt import deferred

from .. import ops
from ..autograd import no_grad, of_leaves
from ..device import Device, device
from ..layers import Context, Flow, Sequential, Symbols
from ..losses import OF_CLASSES, OF_NUMBERS, Loss, loss_named
from ..parallel.parts import parts
from ..tensor import Tensor
from .data import Batch, Data
from .inference import Predictor


class Constant(NamedTuple):
    """The best constant prediction (`answer`, such as "the mean"), its score and its loss."""

    answer: str
    score: float
    loss: float


class Task(abc.ABC):
    """Base class of the tasks. A task defines the batches of an epoch, the loss, the predictions and their score."""

    recordable: ClassVar[bool] = False
    weight_axes: ClassVar[int] = 1  # number of axes of the weights of a batch
    stateful: ClassVar[bool] = False  # True if recurrent layers start each step with the final states of the previous step

    @property
    def records(self) -> bool:
        """True if `loss` and `answer` always issue the same launches for inputs of the same shape, so that steps may be
        recorded. Each class must set `recordable = True` itself: a subclass may issue other launches.
        """
        return bool(vars(type(self)).get("recordable", False))

    def batches(self, data: Data, size: int, rng: np.random.Generator, dev: Device) -> Iterator[Batch]:
        """Yield the batches of one epoch; by default those of the data."""
        return data.batches(size, rng, dev)

    def validate(self, stepper: Any, data: Data) -> tuple[float, float]:
        """Return (loss, score) on validation samples."""
        rows, ranks = np.arange(len(data)), stepper.ranks
        rows = data.at(rows if ranks is None or ranks.sharded else rows[ranks.part(len(rows))])
        policy = stepper.policy.inference_policy(stepper.epoch)
        output = Predictor(stepper.model, stepper.session_options, policy)(data.X, rows) if len(rows) else None
        found: Any = output, data.y[rows], None if data.weights is None else data.weights[rows]
        output, targets, weights = found if ranks is None else ranks.joint(found)
        return self.judge(output, targets, weights, stepper.session_options)

    def judge(
        self, output: np.ndarray, targets: np.ndarray, weights: np.ndarray | None, session_options: dict[str, Any]
    ) -> tuple[float, float]:
        """Return (loss, score) of the output of a model, computed on the host."""
        host = device("cpu")
        with host.session(**session_options):
            shares = None if weights is None else np.float32(weights / weights.sum())
            loss = self.loss(Tensor(output), targets, shares).item()
        return loss, self.score(targets, self.answer(host, output), weights)

    def constant(self, targets: np.ndarray, weights: np.ndarray | None) -> Constant | None:
        """Return the best constant prediction for `targets`, with which a trained model is compared; None if it is unknown."""
        return None

    def figures(self, record: dict[str, Any], samples: int) -> dict[str, float]:
        """Return additional figures for the record of an epoch with `samples` samples."""
        return {}

    def learn(self, model: Sequential, flow: Flow, context: Context, batch: Batch) -> tuple[Any, Any]:
        """Make the forward and the backward pass of a batch, which stores gradients in the parameters. Return two device
        arrays: the loss and the predictions."""
        output = model.forward(flow, context).dense()
        loss = self.loss(output, batch.targets, batch.weights)
        loss.backward()
        return loss.data, self.answer(context.device, output.data)

    @abc.abstractmethod
    def loss(self, output: Tensor, targets: Any, weights: Any) -> Tensor:
        """Return the loss of a batch as one number. The weights sum to 1; None stands for 1/N for each sample."""

    @abc.abstractmethod
    def answer(self, dev: Device, output: Any) -> Any:
        """Return the predictions for the output of a model; both are device arrays."""

    @abc.abstractmethod
    def score(self, targets: np.ndarray, answers: np.ndarray, weights: np.ndarray | None) -> float:
        """Return the score of the predictions `answers`; larger is better."""


class Supervised(Task):
    """Base class of the tasks whose loss can be chosen.

    Parameters
    ----------
    loss : Loss, str or callable
        As for `loss_named`.
    """

    known: ClassVar[dict[str, type[Loss]]]  # maps the name of a loss to its class

    def __init__(self, loss: Any) -> None:
        self.criterion = loss_named(loss, self.known)

    @property
    def records(self):
        return super().records and self.criterion.records

    def loss(self, output, targets, weights):
        return self.criterion.mean(output, targets, weights)

    def linked(self, dev: Device, output: Any) -> Any:
        """Return the predictions that the inverse link of the loss computes for `output`, a device array; None if the loss has
        no inverse link.

        Raises
        ------
        TypeError, ValueError
            If the inverse link does not return a tensor of the output's shape.
        """
        with no_grad():
            prediction = self.criterion.inverse_link(Tensor.wrap(output, dev))
        if prediction is None:
            return None
        if not isinstance(prediction, Tensor):
            raise TypeError(f"{self.criterion!r}: the inverse link must give a Tensor, not {type(prediction).__name__}")
        if prediction.shape != tuple(output.shape):
            raise ValueError(
                f"{self.criterion!r}: the inverse link must give the shape {tuple(output.shape)} of the output, "
                f"not {prediction.shape}"
            )
        return prediction.data


class Classification(Supervised):
    """Each sample has one of several classes: the loss is softmax cross-entropy, the prediction is the most probable class, and
    the score is accuracy. Targets are class indices.

    Parameters
    ----------
    loss : Loss, str or callable, default="cross_entropy"
        For example `CrossEntropy(label_smoothing=0.1)`.
    """

    recordable = True
    known = OF_CLASSES

    def __init__(self, loss: Any = "cross_entropy") -> None:
        super().__init__(loss)

    @property
    def link(self) -> str | None:
        """The operation that computes probabilities from the output; None if the loss has an inverse link of its own."""
        return None if self.criterion.linked else "softmax"

    def probabilities(self, dev: Device, output: Any) -> Any:
        """Return the probability of each class, a device array (N, C)."""
        linked = self.linked(dev, output)
        return dev.softmax(output) if linked is None else linked

    def answer(self, dev, output):
        linked = self.linked(dev, output)
        return dev.argmax(output if linked is None else linked)

    def score(self, targets, answers, weights):
        return float(np.average(targets == answers, weights=weights)) if len(targets) else math.nan

    def constant(self, targets, weights):
        counts = np.bincount(targets, weights)
        _, loss = self.criterion.best_constant(targets, weights) or ("", 0.0)
        return Constant("the most frequent class", float(counts.max() / counts.sum()), loss)


class StepClassification(Classification):
    """Each time step has one of several classes; this is `Classification` in which each time step is a sample. The model
    returns (n, T, classes), for n sequences of T time steps; targets and weights are (n, T). Time steps after the end of a
    sequence have weight 0. If weights are None, all time steps have equal weights.

    Parameters
    ----------
    loss : Loss, str or callable, default="cross_entropy"
        The loss of outputs (n T, classes) for targets (n T,).
    """

    recordable = True
    weight_axes = 2

    def loss(self, output, targets, weights):
        steps, dev = math.prod(output.shape[:2]), output.device
        targets, weights = (None if x is None else dev.reshape(x, (steps,)) for x in (targets, weights))
        return super().loss(output.reshape(steps, output.shape[2]), targets, weights)

    def linked(self, dev, output):
        linked = super().linked(dev, dev.reshape(output, (math.prod(output.shape[:2]), output.shape[2])))
        return None if linked is None else dev.reshape(linked, output.shape)

    def score(self, targets, answers, weights):
        return super().score(targets.reshape(-1), answers.reshape(-1), None if weights is None else weights.reshape(-1))

    def constant(self, targets, weights):
        return super().constant(targets.reshape(-1), None if weights is None else weights.reshape(-1))


class Labelling(Task):
    """Each sample has several independent labels. Targets (n, labels) are 0 and 1. The loss is sigmoid cross-entropy, summed
    over labels as in scikit-learn, so that the gradient of each label is as large as with one label. Labels with a probability
    above 1/2 are predicted. The score is the share of samples of which all labels are predicted correctly.
    """

    recordable = True
    link = "sigmoid"

    def loss(self, output, targets, weights):
        return ops.sigmoid_cross_entropy(output, target=targets, weights=weights) * targets.shape[1]

    def answer(self, dev, output):
        return output

    def score(self, targets, answers, weights):
        return float(np.average(np.all((answers > 0) == (targets > 0), axis=1), weights=weights))

    def constant(self, targets, weights):
        from scipy.special import xlogy

        _, inverse = np.unique(targets, axis=0, return_inverse=True)
        score = np.bincount(inverse.reshape(-1), weights).max() / (len(targets) if weights is None else weights.sum())
        p = np.average(targets, axis=0, weights=weights)
        return Constant("the most frequent labels", float(score), float(-(xlogy(p, p) + xlogy(1 - p, 1 - p)).sum()))


class Regression(Supervised):
    """Targets are numbers. The loss is the squared error or another `Loss`. The loss defines the score, which is R² for the
    squared error.

    Parameters
    ----------
    loss : Loss, str or callable, default="squared_error"
        For example "absolute_error", `Huber(delta=0.5)` or `Quantile(level=0.9)`.
    """

    recordable = True
    known = OF_NUMBERS

    def __init__(self, loss: Any = "squared_error") -> None:
        super().__init__(loss)

    def answer(self, dev, output):
        linked = self.linked(dev, output)
        return output if linked is None else linked

    def score(self, targets, answers, weights):
        return self.criterion.score(targets, answers, weights)

    def constant(self, targets, weights):
        best = self.criterion.best_constant(targets, weights)
        return None if best is None else Constant(best[0], 0.0, best[1])


class LanguageModelling(Task):
    """The target at each position of a text is the next word. The loss is cross-entropy, the prediction is the most probable
    word, and the score is accuracy.

    The text is cut into `batch_size` segments, which are read in parallel, `steps` words at a time. States are carried over to
    the next step, gradients are not (truncated back-propagation through time). Samples are positions in the text, inputs are
    integers (T, N), and the model returns (T, N, V), for N segments and V words.

    If a step has more than `MOST_LOGITS` logits, the last layer and the loss are computed in chunks of some time steps. Forward
    and backward pass of a chunk follow each other, so that only the logits of one chunk are in memory; the gradients of the
    last weight are summed. Such steps are not recorded, because the number of chunks depends on the number of time steps.

    Parameters
    ----------
    steps : int
        T, the number of time steps per training step.
    """

    MOST_LOGITS = 1 << 24  # logits of 64 MiB, and gradients of the same size

    recordable = True
    stateful = True

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def batches(self, data, size, rng, dev):
        """Yield the batches of one pass over the text. Words at its end are left out if segments would have unequal lengths."""
        length = (len(data.y) - 1) // size
        first = np.arange(size) * length
        for start in range(0, length, self.steps):
            positions = first + np.arange(start, min(start + self.steps, length))[:, None]
            rows = (positions + 1).reshape(-1)
            yield Batch(
                rows, None, dev.upload(data.y[rows]), None, rows.size, np.ascontiguousarray(data.X[positions]), start == 0
            )

    def learn(self, model, flow, context, batch):
        steps, n = flow.x.shape[:2]
        if context.ranks is not None:  # the largest share of a rank, so that all ranks do the same
            n = math.ceil(batch.total / (steps * context.ranks.size))
        most = self._most(model, n)
        if steps <= most:
            return super().learn(model, flow, context, batch)
        flow, last = model.before_last(flow, context)
        flow, dev, losses, gradients = flow.applied(), context.device, [], []
        answers = dev.empty(batch.targets.shape, np.int32)
        for chunk, words in self._pieces(flow.x, most):
            output, n = last(flow._replace(x=chunk)).dense(), words.stop - words.start
            loss = self.loss(output, dev.part(batch.targets, words.start, words.stop), dev.full((n,), 1 / batch.total))
            with of_leaves.within(None):  # later chunks add to the gradient of the last weight
                loss.backward()
            dev.copy(self.answer(dev, output.data), out=dev.part(answers, words.start, words.stop))
            losses.append(dev.reshape(loss.data, (1,)))
            if chunk.requires_grad:
                gradients.append(chunk.gradient.dense(dev))
        if gradients:  # none if the layers below the last one are frozen
            flow.x.backward(Tensor.wrap(dev.concatenate(gradients, 0), dev))
        return dev.sum(dev.concatenate(losses, 0)), answers

    def _most(self, model: Sequential, n: int) -> int:
        """Return the largest number of time steps of n segments that have at most `MOST_LOGITS` logits."""
        return max(1, self.MOST_LOGITS // max(1, n * (model.symbols or 1)))

    def _pieces(self, x: Tensor, most: int) -> Iterator[tuple[Tensor, slice]]:
        """Cut x (T, N, …) into chunks of at most `most` time steps. Yield (chunk, slice) for each: the chunk is the leaf of a
        new graph, and the slice gives its words among the T N words.
        """
        steps, n = x.shape[:2]
        for start in range(0, steps, most):
            stop = min(start + most, steps)
            chunk = Tensor.wrap(x.device.part(x.data, start, stop), x.device, x.requires_grad)
            yield chunk, slice(start * n, stop * n)

    def loss(self, output, targets, weights):
        return ops.softmax_cross_entropy(output.reshape(-1, output.shape[-1]), labels=targets, weights=weights)

    def answer(self, dev, output):
        return dev.argmax(dev.reshape(output, (-1, output.shape[-1])))

    def score(self, targets, answers, weights):
        return float(np.mean(targets == answers)) if len(targets) else float("nan")

    def validate(self, stepper, data):
        """Return (loss, -loss), where the loss is log(perplexity), the mean over all words but the first of each segment."""
        state, total, count, dev, model = {}, 0.0, 0, stepper.dev, stepper.model
        with no_grad(), dev.session(**stepper.session_options):
            size, ranks = min(stepper.batch_size, max((len(data.y) - 1) // 2, 1)), stepper.ranks
            whole = ranks is None or ranks.sharded or size < ranks.size
            for batch in self.batches(data, size, None, dev) if whole else parts(self, data, size, None, dev, ranks):
                flow = Flow(Tensor.wrap(dev.upload(batch.ids), dev), Symbols(batch.ids))
                flow, last = model.before_last(flow, Context(dev, state=state))
                flow = flow.applied()
                for chunk, words in self._pieces(flow.x, self._most(model, flow.x.shape[1])):
                    targets = dev.part(batch.targets, words.start, words.stop)
                    total += self.loss(last(flow._replace(x=chunk)).dense(), targets, None).item() * (words.stop - words.start)
                count += batch.rows.size
                deferred.poll()
        if ranks is not None:
            total, count = ranks.sum(np.array([total, count], np.float64)).tolist()
        return total / max(count, 1), -total / max(count, 1)

    def figures(self, record, samples):
        losses = {"perplexity": record["loss"], "validation_perplexity": record.get("validation_loss", math.nan)}
        figures = {name: perplexity(loss) for name, loss in losses.items() if not math.isnan(loss)}
        return {**figures, "tokens_per_second": samples / max(record["seconds"], 1e-9)}


def perplexity(loss: float) -> float:
    """Return exp(loss), for a loss above 700 exp(700), because the exponential of larger numbers is no float64."""
    return math.exp(min(loss, 700.0))
