"""Settings: the parameters of an estimator, and what is wrong with them."""
from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator

from ..device import device
from ..dropout import Dropout, policy
from ..layers import ACTIVATIONS, Layer, Sequential
from ..losses import Loss, loss_named
from ..training import schedule
from ..training.adam import Adam, AdamW
from ..training.hooks import Hook
from ..training.optim import SGD, Optimizer
from ..training.sparsity import Sparsity
from .parameters import SHARED, hint, storing
from .zoo import MODELS

PRECISIONS = ("float32", "tf32")
FLAGS = ("nesterov", "early_stopping", "warm_start")


class Settings(BaseEstimator):
    """Base of the estimators: parameters that are stored as they come, and checked when they are used."""

    losses: ClassVar[dict[str, type[Loss]]] = {}    # that may be named; without any there is no such parameter
    __init__ = storing(SHARED)

    def __getstate__(self):
        return {name: value for name, value in super().__getstate__().items() if name != "_undo"}

    def set_params(self, **parameters):
        """Set parameters by name, as scikit-learn does; ValueError names one that has another name here."""
        for name in parameters:
            if other := hint(name, self.get_params(deep=False)):
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}{other}")
        return super().set_params(**parameters)

    def check(self) -> None:
        """Raise what `fit` would raise for the parameters, before any data is at hand."""
        self._settings(None, None)

    def _settings(self, dropout, dropout_rate) -> dict[str, Any]:
        """The checked parameters of one fit, before anything is changed."""
        for name, low in (("epochs", 1), ("batch_size", 1), ("patience", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
                raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
        for name in FLAGS:
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not isinstance(self.verbose, (numbers.Integral, np.bool_)):
            raise ValueError(f"verbose must be 0 or 1, got {self.verbose!r}")
        if not (isinstance(self.validation_fraction, numbers.Real) and 0 < self.validation_fraction < 1):
            raise ValueError(f"validation_fraction must be a number in (0, 1), got {self.validation_fraction!r}")
        if not isinstance(self.activation, str) or self.activation not in ACTIVATIONS:
            raise ValueError(f"there is no activation {self.activation!r}; choose one of {', '.join(map(repr, ACTIVATIONS))}")
        if self.callbacks is not None and not (isinstance(self.callbacks, Sequence) and all(
                isinstance(callback, Hook) or callable(callback) for callback in self.callbacks)):
            raise ValueError("callbacks must be a list of functions callback(estimator, record) and of Hook objects, got "
                             f"{self.callbacks!r}")
        if self.augment is not None and not callable(self.augment):
            raise ValueError(f"augment must be a function augment(x, rng, dev), such as FlipsAndCrops(), got {self.augment!r}")
        if self.sparsity is not None and not isinstance(self.sparsity, Sparsity):
            raise ValueError(f"sparsity must be None or a Sparsity, such as GroupLasso(1e-4), got {self.sparsity!r}")
        self._make_optimizer([])
        if self.losses:
            self._criterion()
        self._session_options()
        if dropout_rate is not None and isinstance(self.dropout if dropout is None else dropout, Dropout):
            raise ValueError("dropout_rate cannot change a policy object; give its rate to the policy")
        chosen = policy(self.dropout if dropout is None else dropout,
                        self.dropout_rate if dropout_rate is None else dropout_rate)
        if (places := self._places(chosen)) is not None:
            chosen.check(places)
        return {"policy": chosen, "averaged": chosen.averaged(self.epochs), "device": device(self.device),
                "schedule": schedule.named(self.schedule, self.epochs), "early_stopping": self.early_stopping}

    def _criterion(self) -> Loss:
        """The loss that the parameter means, or ValueError."""
        return loss_named(self.loss, self.losses)

    def _places(self, chosen: Dropout) -> int | None:
        """How many places a policy has rates for; None: that is known when the layers are made."""
        if not isinstance(self.layers, str):
            given = self._given_layers()
            return len(chosen.sites(Sequential(self.layers)) if given else self._widths() * (chosen.kind != "patches"))
        if self.layers not in MODELS:
            raise ValueError(f"there is no network {self.layers!r}; choose {', '.join(map(repr, MODELS))}, or give layers")
        return None

    def _session_options(self) -> dict:
        """What sessions of the device are asked for (`Trainer`), or ValueError."""
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            raise ValueError(f"precision must be {' or '.join(map(repr, PRECISIONS))}, got {self.precision!r}")
        if self.n_jobs is None:
            return {"precision": self.precision}
        if isinstance(self.n_jobs, bool) or not isinstance(self.n_jobs, numbers.Integral) or self.n_jobs == 0:
            raise ValueError(f"n_jobs must be None or an integer other than 0, got {self.n_jobs!r}")
        return {"limit": effective_n_jobs(int(self.n_jobs)), "precision": self.precision}

    def _given_layers(self) -> bool:
        return isinstance(self.layers, Sequence) and len(self.layers) > 0 and all(isinstance(x, Layer) for x in self.layers)

    def _widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers, or ValueError."""
        widths = (self.layers,) if isinstance(self.layers, numbers.Integral) else self.layers
        if isinstance(widths, (str, bytes)) or not isinstance(widths, (Sequence, np.ndarray)) or not all(
                isinstance(n, numbers.Integral) and not isinstance(n, bool) and n > 0 for n in widths):
            raise ValueError(f"layers must be the widths of the hidden layers, such as (256, 256), or a list of layers; "
                             f"got {self.layers!r}")
        return tuple(int(n) for n in widths)

    def _make_optimizer(self, parameters) -> Optimizer:
        if self.optimizer == "sgd":
            return SGD(parameters, self.learning_rate, self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay,
                       clip_norm=self.clip_norm)
        if self.optimizer in ("adam", "adamw"):
            kind = Adam if self.optimizer == "adam" else AdamW
            return kind(parameters, self.learning_rate, weight_decay=self.weight_decay, clip_norm=self.clip_norm)
        if callable(self.optimizer):
            return self.optimizer(parameters, self.learning_rate)
        raise ValueError(f"there is no optimizer {self.optimizer!r}; choose 'sgd', 'adam' or 'adamw', or give a class")
