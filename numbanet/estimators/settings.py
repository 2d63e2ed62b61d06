"""`Settings`: the parameters of an estimator, and their checks."""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.metrics import check_scoring
from sklearn.utils import check_random_state

from ..arguments import check_takes, is_integer, is_real
from ..device import Device, device
from ..dropout import Dropout, Together, policy
from ..layers import Sequential
from ..parallel.joining import check_joining
from ..tensor import Tensor
from ..training import schedule
from ..training.adam import Adam, AdamW
from ..training.hooks import Hook
from ..training.optim import Optimizer
from ..training.sgd import SGD
from ..training.sparsity import Sparsity
from .parameters import hint

PRECISIONS = ("float32", "tf32")
OF_OPTIMIZERS = {"momentum": "SGD", "nesterov": "SGD", "weight_decay": "Adam", "clip_norm": "Adam"}  # and who takes them
EPOCHS, STEPS = 20, 1000  # defaults of a fit: 20 epochs, or on few samples as many as give 1000 steps
# defaults: 128 samples per batch; on few samples, 1/32 of the samples, but at least 32
BATCH, LEAST_BATCH, BATCHES = 128, 32, 32


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """The checked parameters of one call of `fit` or `partial_fit`.

    Attributes
    ----------
    policy : Dropout
    at_mean_rate : Dropout
        The policy with each rate averaged over the epochs; it determines the variance of initial weights.
    epochs : int
        Number of epochs of a fit.
    batch_size : int
    device : Device
    session : dict
        Options of the device's sessions (`Stepper`).
    learning_rate_schedule : callable or None
        A function that maps an epoch to the factor of the learning rate.
    patience : int or None
        Number of epochs without improvement before early stopping; None if there is no early stopping.
    scorer : callable or None
        A function scorer(estimator, X, y) that returns the score; None stands for the estimator's method `score`.
    """

    policy: Dropout
    at_mean_rate: Dropout
    epochs: int
    device: Device
    batch_size: int
    session: dict[str, Any]
    learning_rate_schedule: Callable[[int], float] | None = None
    patience: int | None = None
    scorer: Callable[..., float] | None = None


class Settings(BaseEstimator):
    """Base class of the estimators. Parameters are stored unchanged, and checked when they are used.

    A subclass defines `rates`, which maps the name of an optimiser to its default learning rate; `flags`, the names of the
    boolean parameters; and `_site_count`, the number of sites of its network for which a dropout policy has rates.
    """

    rates: ClassVar[Mapping[str, float]]
    by_samples: ClassVar[tuple[str, ...]] = ()  # parameters that may be None: the default then depends on the number of samples
    kinds: ClassVar[tuple[str, ...] | None] = None  # the names of policies that messages offer; None: all
    flags: ClassVar[tuple[str, ...]] = ("nesterov", "early_stopping", "warm_start")

    def set_params(self, **parameters):
        """Set parameters by name. The error for a parameter of scikit-learn's networks says what it is called here."""
        for name in parameters:
            if other := hint(name, self.get_params(deep=False)):
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}{other}")
        return super().set_params(**parameters)

    def check(self) -> None:
        """Raise the errors that `fit` would raise for the parameters; needs no data."""
        self._settings(None, None)

    def _check_callbacks(self) -> None:
        """Raise ValueError unless `callbacks` is None or a list, and TypeError unless it holds functions and hooks."""
        given = () if self.callbacks is None else self.callbacks
        if not (isinstance(given, Sequence) and all(isinstance(callback, Hook) or callable(callback) for callback in given)):
            raise ValueError(
                f"callbacks must be a list of functions callback(estimator, record) and of Hook objects, got {self.callbacks!r}"
            )
        for callback in given:
            if not isinstance(callback, Hook):
                check_takes("callbacks", callback, "two arguments, the estimator and the record of an epoch", self, {})

    def _check_seed(self) -> None:
        """Raise ValueError if `random_state` is invalid."""
        try:
            check_random_state(self.random_state)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"random_state must be None, a seed or a RandomState, got {self.random_state!r} ({error})"
            ) from None

    def _check_rates(self, chosen: Dropout) -> None:
        """Raise ValueError if a policy, or one that it combines, has more or fewer rates than sites, if these are known."""
        if (sites := self._site_count(chosen)) is not None:
            chosen.check(sites)
        for part in chosen.policies if isinstance(chosen, Together) else ():
            if part.kind in ("output", "tiles") and (sites := self._site_count(part)):
                part.check(sites)

    def _settings(self, dropout, dropout_rate, samples: int | None = None) -> FitSettings:
        """Return the checked parameters of one fit on `samples` samples; it does not change the estimator."""
        for name, low in (("epochs", 1), ("batch_size", 1), ("patience", 1)):
            value = getattr(self, name)
            if not (is_integer(value) and value >= low or (value is None and name in self.by_samples)):
                raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
        for name in self.flags:
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not isinstance(self.verbose, (numbers.Integral, np.bool_)) or self.verbose < 0:
            raise ValueError(f"verbose must be 0 or 1, got {self.verbose!r}")
        if not (is_real(self.validation_fraction) and 0 < self.validation_fraction < 1):
            raise ValueError(f"validation_fraction must be a number in (0, 1), got {self.validation_fraction!r}")
        self._check_callbacks()
        check_joining(self.parallel, self.shard)
        self._check_seed()
        if self.sparsity is not None and not isinstance(self.sparsity, Sparsity):
            raise ValueError(f"sparsity must be None or a Sparsity, such as GroupLasso(1e-4), got {self.sparsity!r}")
        if callable(self.optimizer):
            self._refuse_for_own_optimizers()
        if callable(self.optimizer) and not inspect.isclass(self.optimizer):
            # not called here: it may choose among the parameters
            check_takes("optimizer", self.optimizer, "parameters and a learning rate", [], 0.1)
        else:
            self._make_optimizer([])
        epochs = self._epochs(samples)
        chosen = self._policy(dropout, dropout_rate, samples).over(epochs)
        self._check_rates(chosen)
        return FitSettings(
            chosen,
            chosen.at_mean_rate(epochs),
            epochs,
            device(self.device),
            self._batch(samples),
            self._session_options(),
            schedule.named(self.learning_rate_schedule, epochs),
            self.patience if self.early_stopping else None,
            self._scorer(),
        )

    def _epochs(self, samples: int | None) -> int:
        """Return the number of epochs of a fit: the parameter `epochs`, or a default that depends on the number of samples;
        without a number, that of the last fit, because `partial_fit` goes on with its schedules.
        """
        if self.epochs is not None:
            return self.epochs
        if samples is None:
            return self._fit_epochs or EPOCHS
        return max(EPOCHS, math.ceil(STEPS / math.ceil(samples / self._batch(samples))))

    def _batch(self, samples: int | None) -> int:
        """Return the batch size of a fit: the parameter, or a default that depends on the number of samples."""
        if self.batch_size is not None:
            return self.batch_size
        return BATCH if samples is None else min(BATCH, max(LEAST_BATCH, samples // BATCHES))

    def _policy(self, dropout, dropout_rate, samples: int | None = None) -> Dropout:
        """Return the policy of a fit of `samples` samples; the arguments of the call replace the parameters."""
        dropout = self.dropout if dropout is None else dropout
        if dropout_rate is not None and isinstance(dropout, Dropout):
            raise ValueError("dropout_rate cannot change a policy object; give its rate to the policy")
        return policy(dropout, self.dropout_rate if dropout_rate is None else dropout_rate, kinds=self.kinds)

    def _scorer(self) -> Callable[..., float] | None:
        """Return the function scorer(estimator, X, y) of the parameter `scoring`; None stands for the method `score`."""
        if self.scoring is None:
            return None
        try:
            if not (isinstance(self.scoring, str) or callable(self.scoring)):
                raise TypeError(f"it is a {type(self.scoring).__name__}")
            scorer = check_scoring(self, self.scoring)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "scoring must be None, the name of a scikit-learn scorer or a function scorer(estimator, X, y), "
                f"got {self.scoring!r}: {error}"
            ) from error
        if callable(self.scoring):
            check_takes("scoring", self.scoring, "three arguments, the estimator, X and y", self, None, None)
        return scorer

    def _session_options(self) -> dict:
        """Return the options of the sessions of the device (`Stepper`); raise ValueError if they are invalid."""
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            raise ValueError(f"precision must be {' or '.join(map(repr, PRECISIONS))}, got {self.precision!r}")
        if self.n_jobs is None:
            return {"precision": self.precision}
        if not is_integer(self.n_jobs) or self.n_jobs == 0:
            raise ValueError(f"n_jobs must be None or an integer other than 0, got {self.n_jobs!r}")
        return {"limit": effective_n_jobs(int(self.n_jobs)), "precision": self.precision}

    def _new_optimizer(self, model: Sequential) -> Optimizer:
        """Return an optimiser of all parameters, including frozen ones, so that they can be unfrozen later. Those that a
        function left out, which made the optimiser, rest.
        """
        parameters = list(model.parameters())
        given = [tensor for tensor in parameters if tensor.requires_grad]
        optimizer = self._make_optimizer(given)
        resting = frozenset(given) - set(optimizer.parameters)
        if resting and self.sparsity is not None:
            raise ValueError(
                "sparsity changes all weights that are trained, also those that the function in optimizer leaves out: freeze "
                "them by requires_grad_(False) instead"
            )
        optimizer.rest(resting)
        optimizer.parameters[:] = parameters
        self._optimizer_of = self._of_optimizer()
        return optimizer

    def _of_optimizer(self) -> dict[str, Any]:
        """Return the parameters that determine the optimiser."""
        return {name: getattr(self, name) for name in ("optimizer", "learning_rate", *OF_OPTIMIZERS) if hasattr(self, name)}

    def _renewed(self, old: Optimizer, model: Sequential) -> Optimizer:
        """Return the optimiser that the parameters describe: `old`, unless they have changed since it was made. A new one of
        the same class continues with its state, and with its learning rate, which callbacks may have changed, unless the
        parameter has changed.
        """
        now = self._of_optimizer()
        if not hasattr(self, "_optimizer_of"):  # an estimator of an older pickle
            self._optimizer_of = now
        if now == (before := self._optimizer_of):
            return old
        new = self._new_optimizer(model)
        if type(old) is type(new) and [*map(id, old.parameters)] == [*map(id, new.parameters)]:
            rate, resting = new.learning_rate, new.resting
            new.restore(old.snapshot())
            new.rest(resting)
            if any(now[name] != before[name] for name in ("optimizer", "learning_rate")):
                new.adjust(rate)
        return new

    def _make_optimizer(self, parameters) -> Optimizer:
        parameters = list(parameters) or [Tensor(0.0, requires_grad=True)]  # in a check of settings, or if all are frozen
        chosen, rate = self.optimizer, self.learning_rate
        if rate is None:
            adam = chosen in ("adam", "adamw") or (inspect.isclass(chosen) and issubclass(chosen, Adam))
            rate = self.rates["adam" if adam else "sgd"]
        if chosen == "sgd":
            return SGD(
                parameters,
                rate,
                self.momentum,
                nesterov=self.nesterov,
                weight_decay=self.weight_decay,
                clip_norm=self.clip_norm,
            )
        if chosen in ("adam", "adamw"):
            kind = Adam if chosen == "adam" else AdamW
            return kind(parameters, rate, weight_decay=self.weight_decay, clip_norm=self.clip_norm)
        if callable(chosen):
            made = chosen(parameters, rate)
            if not isinstance(made, Optimizer):
                raise TypeError(
                    f"optimizer: {chosen!r} must make an Optimizer, such as SGD(parameters, rate), and made {made!r}"
                )
            if type(made).step is not Optimizer.step:
                raise TypeError(f"optimizer: {type(made).__name__} overrides step, which fits do not call: override update")
            return made
        lower = chosen.lower() if isinstance(chosen, str) else None
        meant = f"did you mean {lower!r}? Choose" if lower in ("sgd", "adam", "adamw") else "choose"
        raise ValueError(f"there is no optimizer {chosen!r}; {meant} 'sgd', 'adam' or 'adamw', or give a class")

    def _refuse_for_own_optimizers(self) -> None:
        """Raise ValueError if a parameter is set that a function or a class does not get when it makes the optimiser."""
        defaults = inspect.signature(type(self)).parameters
        for name, kind in OF_OPTIMIZERS.items():
            value = getattr(self, name)
            if name in defaults and value != defaults[name].default:
                given = f"momentum={self.momentum!r}, nesterov=True" if name == "nesterov" else f"{name}={value!r}"
                raise ValueError(
                    f"{name}={value!r} has no effect if optimizer is a function or a class, which gets only parameters and a "
                    f"learning rate: give optimizer={kind.lower()!r} with it, or set it in a function, "
                    f"optimizer=lambda parameters, rate: {kind}(parameters, rate, {given})"
                )
