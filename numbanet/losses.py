"""Losses. A loss defines the function that training minimises, how outputs of a network become predictions, and how
predictions are scored.

loss = Huber(delta=0.5)
loss(output, target).backward()             # in a training loop: tensors, the mean over the samples
NetRegressor(loss=loss)                     # or "huber", or a function of tensors
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from . import ops
from .arguments import is_real
from .tensor import Tensor


class Loss(abc.ABC):
    """Base class of the losses. A subclass defines `__call__`, and also `inverse_link` if the outputs of the network are not
    themselves the predictions.
    """

    recordable: ClassVar[bool] = False  # True if steps may be recorded (`records`)
    standardised: ClassVar[bool] = False  # True if a regressor may train on (y - mean) / deviation instead of y

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__call__" in vars(cls) and "mean" not in vars(cls):
            cls.mean = Loss.mean  # type: ignore[method-assign]  # a parent's `mean` would compute the parent's loss

    @abc.abstractmethod
    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        output : Tensor of shape (N, O)
            The network's output.
        target : Tensor
            (N, O) float32 for a regressor; (N,) int32 class indices for a classifier.

        Returns
        -------
        Tensor
            Of shape (N,), one loss per sample, or (), their mean. Only the former can be weighted by sample.
        """

    def inverse_link(self, output: Tensor) -> Tensor | None:
        """Return the predictions for `output`, which have the same shape: class probabilities of a classifier, or values of a
        regressor. If the method returns None, as it does by default, the predictions are softmax(output) of a classifier and
        the output itself of a regressor.
        """
        return None

    def mean(self, output: Tensor, target: Any, weights: Any) -> Tensor:
        """Return the loss of a batch as a tensor of one number: the weighted mean over the samples.

        Parameters
        ----------
        output : Tensor of shape (N, O)
            As for `__call__`.
        target : array
            As for `__call__`; a device array.
        weights : array of shape (N,) or None
            One weight per sample, on the device; the weights sum to 1. None stands for 1/N for each sample.

        Raises
        ------
        TypeError
            If `__call__` does not return a tensor.
        ValueError
            If the shape of the loss is neither (N,) nor (), or is () although samples have weights.
        """
        loss, n = self(output, target if isinstance(target, Tensor) else Tensor.wrap(target, output.device)), output.shape[0]
        if not isinstance(loss, Tensor):
            raise TypeError(f"{self!r} must give a Tensor of shape ({n},) or (), not {type(loss).__name__}")
        if loss.shape not in ((n,), ()):
            raise ValueError(f"{self!r} must give a Tensor of shape ({n},), a loss for each sample, or (); not {loss.shape}")
        if loss.shape == () and weights is not None:
            raise ValueError(
                f"{self!r} gives one number for all samples, which cannot be weighted: to train with weights, "
                f"return one loss per sample, shape ({n},)"
            )
        if loss.shape == ():
            return loss
        return loss.mean() if weights is None else (loss * Tensor.wrap(weights, output.device)).sum()

    @property
    def records(self) -> bool:
        """Return True if outputs of the same shape always lead to the same kernel launches, so that training steps may be
        recorded. Each class must itself set `recordable = True`; a subclass does not inherit it, because it may compute
        something else.
        """
        return bool(vars(type(self)).get("recordable", False))

    @property
    def linked(self) -> bool:
        """True if `inverse_link` may turn outputs into other predictions."""
        return type(self).inverse_link is not Loss.inverse_link

    @property
    def weighs(self) -> bool:
        """True if `mean` accepts weights for any input, so that equal samples may be merged into one with a larger weight."""
        return type(self).mean is not Loss.mean

    def score(self, targets: np.ndarray, predictions: np.ndarray, weights: np.ndarray | None) -> float:
        """Return the score of a regressor's predictions, by default R²: 1 is perfect; NaN for fewer than 2 samples."""
        from sklearn.metrics import r2_score

        return float(r2_score(targets, predictions, sample_weight=weights)) if len(targets) > 1 else float("nan")

    def best_constant(self, targets: np.ndarray, weights: np.ndarray | None) -> tuple[str, float] | None:
        """Return (name, loss) of the best constant prediction, such as ("the mean", 0.2); None if it is not known."""
        return None


class RegressionLoss(Loss):
    """Base class of the regression losses that are the mean of a function of the error, prediction - target."""

    standardised = True
    named_constant: ClassVar[str]  # the name of the best constant prediction, for messages

    @abc.abstractmethod
    def values(self, d: np.ndarray) -> np.ndarray:
        """Return the function of the errors d, element by element, in float64."""

    @abc.abstractmethod
    def constant(self, targets: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """Return an array (O,) that holds, for each column of targets (N, O), the constant prediction with the least loss."""

    def __call__(self, output, target):
        return self.mean(output, target, None)

    def score(self, targets, predictions, weights):
        """Return D² = 1 - loss / (loss of the best constant prediction), averaged over outputs; R² for squared errors."""
        if len(targets) < 2:
            return float("nan")
        losses, least = (
            np.average(self.values(found - targets), axis=0, weights=weights)
            for found in (np.asarray(predictions, np.float64), self.constant(targets, weights))
        )
        shares = np.divide(losses, least, out=np.where(losses > 0, 1.0, 0.0), where=least > 0)
        return float(np.mean(1 - shares))

    def best_constant(self, targets, weights):
        constant = self.constant(targets, weights)
        loss = float(np.average(self.values(constant - targets), axis=0, weights=weights).mean())
        return (self.named_constant, loss) if loss else None


@dataclasses.dataclass(frozen=True)
class SquaredError(RegressionLoss):
    """(prediction - target)², averaged over the outputs. Of all constant predictions the mean of the targets minimises this
    loss, so outliers weigh heavily.
    """

    recordable = True
    named_constant = "the mean"

    def mean(self, output, target, weights):
        return ops.squared_error(output, target=target, weights=weights)

    def values(self, d):
        return np.square(d)

    def constant(self, targets, weights):
        return np.average(np.asarray(targets, np.float64), axis=0, weights=weights)

    def score(self, targets, predictions, weights):
        return Loss.score(self, targets, predictions, weights)


@dataclasses.dataclass(frozen=True)
class AbsoluteError(RegressionLoss):
    """|prediction - target|, averaged over the outputs. Of all constant predictions the median of the targets minimises this
    loss, so outliers hardly matter.
    """

    recordable = True
    named_constant = "the median"

    def mean(self, output, target, weights):
        return ops.absolute_error(output, target=target, weights=weights)

    def values(self, d):
        return np.abs(d)

    def constant(self, targets, weights):
        return _quantiles(targets, weights, 0.5)


@dataclasses.dataclass(frozen=True)
class Huber(RegressionLoss):
    """d²/2 if |d| <= delta, else delta (|d| - delta/2), where d = prediction - target; averaged over the outputs (Huber 1964).

    Parameters
    ----------
    delta : float, default=1.0
        An error with |d| > delta counts as an outlier. delta must be above 0; the default is that of PyTorch. `NetRegressor`
        trains on standardised targets, so there the unit of delta is the standard deviation of y.

    Raises
    ------
    ValueError
        If delta is not a number above 0.
    """

    delta: float = 1.0

    recordable = True
    named_constant = "the centre"

    def __post_init__(self) -> None:
        _check("Huber: delta", self.delta, float("inf"))

    def mean(self, output, target, weights):
        return ops.huber_error(output, target=target, delta=self.delta, weights=weights)

    def values(self, d):
        least = np.minimum(np.abs(d), self.delta)
        return least * (np.abs(d) - least / 2)

    def constant(self, targets, weights):
        """Return the constant at which the derivative of the loss is 0. The derivative increases, so bisection finds it."""
        low, high = np.min(targets, axis=0).astype(np.float64), np.max(targets, axis=0).astype(np.float64)
        for _ in range(40):
            middle = (low + high) / 2
            above = np.average(np.clip(middle - targets, -self.delta, self.delta), axis=0, weights=weights) > 0
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return (low + high) / 2


@dataclasses.dataclass(frozen=True)
class Quantile(RegressionLoss):
    """max(level e, (level - 1) e), where e = target - prediction; averaged over the outputs (Koenker & Bassett 1978).

    Parameters
    ----------
    level : float, default=0.5
        In (0, 1). Predictions estimate the quantile below which a share `level` of the targets lies; level 0.5 is the median.

    Raises
    ------
    ValueError
        If the level is not a number in (0, 1).
    """

    level: float = 0.5

    recordable = True
    named_constant = "the quantile"

    def __post_init__(self) -> None:
        _check("Quantile: level", self.level, 1)

    def mean(self, output, target, weights):
        return ops.quantile_error(output, target=target, level=self.level, weights=weights)

    def values(self, d):
        return np.maximum((1 - self.level) * d, -self.level * d)

    def constant(self, targets, weights):
        return _quantiles(targets, weights, self.level)


@dataclasses.dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log p, where p is the probability that softmax(output) gives to the true class.

    Parameters
    ----------
    label_smoothing : float, default=0.0
        In [0, 1): the share of each label that is spread over all classes (Szegedy et al. 2016, section 7). This keeps the
        outputs bounded and makes the probabilities less extreme.

    Raises
    ------
    ValueError
        If it is not a number in [0, 1).
    """

    label_smoothing: float = 0.0

    recordable = True

    def __post_init__(self) -> None:
        if self.label_smoothing != 0:
            _check("CrossEntropy: label_smoothing", self.label_smoothing, 1, "[")

    def __call__(self, output, target):
        return self.mean(output, target, None)

    def mean(self, output, target, weights):
        return ops.softmax_cross_entropy(output, labels=target, weights=weights, label_smoothing=self.label_smoothing)

    def best_constant(self, targets, weights):
        """Return the best constant prediction for class indices, and its loss: the entropy of the distribution of classes. All
        classes up to the largest index count, because labels are spread over all of them.
        """
        counts = np.bincount(targets, weights)
        shares = (1 - self.label_smoothing) * counts / counts.sum() + self.label_smoothing / counts.size
        shares = shares[shares > 0]
        return "the most frequent class", float(-(shares * np.log(shares)).sum())


@dataclasses.dataclass(frozen=True)
class FunctionLoss(Loss):
    """A loss that is defined by a function of tensors.

    Parameters
    ----------
    function : callable
        function(output, target) -> Tensor of shape (N,) or (), as `Loss.__call__`.
    link : callable, optional
        link(output) -> prediction, as `Loss.inverse_link`.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    link: Callable[[Tensor], Tensor] | None = None

    def __call__(self, output, target):
        return self.function(output, target)

    @property
    def linked(self):
        return self.link is not None

    def inverse_link(self, output):
        return None if self.link is None else self.link(output)


# --- by name ----------------------------------------------------------------------------------------------------------
OF_NUMBERS: dict[str, type[Loss]] = {
    "squared_error": SquaredError,
    "absolute_error": AbsoluteError,
    "huber": Huber,
    "quantile": Quantile,
}
OF_CLASSES: dict[str, type[Loss]] = {"cross_entropy": CrossEntropy}
ELSEWHERE = {  # the name of a loss in other libraries: the name here
    **dict.fromkeys(("mse", "mean_squared_error", "l2", "squared_loss"), "squared_error"),
    **dict.fromkeys(("mae", "mean_absolute_error", "l1"), "absolute_error"),
    **dict.fromkeys(("log_loss", "nll", "categorical_crossentropy", "sparse_categorical_crossentropy"), "cross_entropy"),
}
COUNTS = "FunctionLoss(lambda output, y: (output.exp() - y * output).sum(axis=1), link=lambda output: output.exp())"


def loss_named(loss: Any, known: Mapping[str, type[Loss]] = OF_NUMBERS) -> Loss:
    """Return the loss with the name `loss`. A `Loss` is returned unchanged, and a function of tensors becomes a `FunctionLoss`.

    Parameters
    ----------
    loss : str, Loss or callable
        The name, or the loss itself.
    known : dict of str to class
        The accepted losses by name: `OF_NUMBERS` or `OF_CLASSES`. User-defined losses are always accepted.

    Raises
    ------
    ValueError
        If the name is unknown, or the loss is for another kind of target.
    """
    if isinstance(loss, str) and loss in known:
        return known[loss]()
    names = ", ".join(map(repr, known))
    if isinstance(loss, Loss):
        if type(loss) in {*OF_NUMBERS.values(), *OF_CLASSES.values()} - {*known.values()}:
            raise ValueError(f"loss: {loss!r} is for another kind of target; choose {names}, or a Loss subclass")
        return loss
    if isinstance(loss, type) or not callable(loss):
        here = ELSEWHERE.get(loss, "") if isinstance(loss, str) else ""
        said = f" here it is {here!r};" * (here in known)
        said = f" give an object of the class, such as {loss.__name__}();" if isinstance(loss, type) else said
        said = f" for counts give {COUNTS};" if loss == "poisson" and "squared_error" in known else said
        raise ValueError(f"there is no loss {loss!r};{said} choose {names}, or give a Loss or a function(output, target)")
    return FunctionLoss(loss)


def _check(name: str, value: Any, high: float, begin: str = "(") -> None:
    """Raise ValueError unless `value` is a number between 0 and `high`; `begin` is "[" if it may be 0."""
    if not is_real(value) or not 0 <= value < high or (value == 0 and begin == "("):
        raise ValueError(f"{name} must be a number in {begin}0, {high:g}), got {value!r}")


def _quantiles(targets: np.ndarray, weights: np.ndarray | None, level: float) -> np.ndarray:
    """Return for each column of targets (N, O) the smallest one at which the cumulative share of weights reaches `level`."""
    order = np.argsort(targets, axis=0)
    shares = np.ones(len(targets)) if weights is None else np.asarray(weights, np.float64)
    reached = np.cumsum(shares[order], axis=0) >= level * shares.sum() * (1 - 1e-12)
    first = np.take_along_axis(order, np.argmax(reached, axis=0)[None], 0)
    return np.take_along_axis(np.asarray(targets, np.float64), first, 0)[0]
