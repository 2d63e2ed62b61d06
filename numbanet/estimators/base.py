"""What the estimators share: parameters, checks, and the training run."""
from __future__ import annotations

import contextlib
import copy
import dataclasses
import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ..device import device
from ..dropout import Dropout, Rate, policy
from ..layers import ACTIVATIONS, Form, Layer, Sequential, Step, to
from ..training import schedule
from ..training.data import Data, on_device
from ..training.forward import forward
from ..training.loop import Epochs
from ..training.optim import SGD, Adam, Optimizer
from ..training.progress import Progress
from ..training.streams import Streams
from ..training.structure import Sparsity, Structure
from ..training.task import Task
from ..training.trainer import Trainer
from .build import as_images, build, merged, some
from .parameters import SHARED, storing
from .zoo import MODELS, network

PRECISIONS = ("float32", "tf32")


class BaseNet(BaseEstimator):
    """What classifier and regressor share: checking, building, training."""

    least_to_score = 1  # samples
    task: Task
    __init__ = storing(SHARED)

    # --- public -------------------------------------------------------------------------------------------------------
    def fit(self, X, y, sample_weight=None, *, dropout: str | Dropout | None = None, dropout_rate: Rate | None = None,
            validation_data: tuple | None = None):
        """Train from new weights.

        Ctrl-C ends training after the present step and keeps what was learned, with a warning, if at least one epoch is done;
        before that it raises KeyboardInterrupt and leaves the Net as it was.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Finite numbers; (n_samples, …) for layers that take samples of such a shape.
        y : array_like of shape (n_samples,)
            Labels, or target values; (n_samples, n_outputs) for a regressor with several outputs.
        sample_weight : array_like of shape (n_samples,), optional
            How much each sample counts, not negative.
        dropout, dropout_rate : optional
            Replace the Net's own for this call.
        validation_data : tuple (X, y), optional
            Scored after every epoch as `validation_score`; early stopping watches it.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data or a parameter is unfit; the Net is then as it was before.
        FloatingPointError
            If the loss is not finite in the first epoch; the Net is then as it was before.
        """
        with self._unchanged_on_error():
            settings = self._settings(dropout, dropout_rate)
            X, y, weights = self._check_data(X, y, sample_weight, reset=True)
            self._start(X, weights, settings)
            self._train(X, y, weights, self.epochs, settings, validation_data)
        return self

    def check(self) -> None:
        """Raise what `fit` would raise for the parameters, before any data is at hand."""
        self._settings(None, None)

    def partial_fit(self, X, y, sample_weight=None, *, dropout: str | Dropout | None = None, dropout_rate: Rate | None = None):
        """One pass over the samples, going on from the present weights and optimiser state; parameters as for `fit`."""
        return self._partial_fit(X, y, sample_weight, dropout, dropout_rate)

    def _partial_fit(self, X, y, sample_weight, dropout, dropout_rate, **target_options):
        with self._unchanged_on_error():
            settings = self._settings(dropout, dropout_rate)
            fresh = not hasattr(self, "model_")
            X, y, weights = self._check_data(X, y, sample_weight, reset=fresh, **target_options)
            if fresh:
                self._start(X, weights, settings)
            elif self.sparsity != self._sparsity:
                warnings.warn(f"partial_fit: the network goes on with sparsity={self._sparsity!r}, with which it began; fit "
                              f"begins anew, with {self.sparsity!r}", stacklevel=3)
            settings["early_stopping"] = False
            self._train(X, y, weights, 1, settings, None)
        return self

    # --- checking -----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _unchanged_on_error(self):
        """Put the attributes and the weights back as they were if an error leaves the block."""
        before = dict(vars(self))
        fitted = hasattr(self, "model_")
        if fitted:
            layers, parameters = list(self.model_.layers), list(self.optimizer_.parameters)
            weights = [(tensor, tensor.device, tensor.numpy().copy()) for _, tensor, _ in self.model_.named()]
            optimizer, history, streams = self.optimizer_.snapshot(), list(self.history_), self._streams.state()
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            if fitted:
                self.model_.layers[:] = layers
                self.model_.reshaped()
                for tensor, dev, saved in weights:
                    tensor.move(dev)
                    tensor.assign(dev.upload(saved))
                self.optimizer_.parameters[:] = parameters
                self.optimizer_.zero_grad()
                self.optimizer_.restore(optimizer)
                self.history_[:] = history
                self._streams.restore(streams)
            raise

    def _settings(self, dropout, dropout_rate) -> dict[str, Any]:
        """The checked parameters of one fit, before anything is changed."""
        for name, low in (("epochs", 1), ("batch_size", 1), ("patience", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
                raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
        if not (isinstance(self.validation_fraction, numbers.Real) and 0 < self.validation_fraction < 1):
            raise ValueError(f"validation_fraction must be a number in (0, 1), got {self.validation_fraction!r}")
        if not isinstance(self.activation, str) or self.activation not in ACTIVATIONS:
            raise ValueError(f"there is no activation {self.activation!r}; choose one of {', '.join(map(repr, ACTIVATIONS))}")
        if self.callbacks is not None and not (isinstance(self.callbacks, Sequence) and all(map(callable, self.callbacks))):
            raise ValueError(f"callbacks must be a list of functions callback(net, record), got {self.callbacks!r}")
        if self.augment is not None and not callable(self.augment):
            raise ValueError(f"augment must be a function augment(x, rng, dev), such as FlipsAndCrops(), got {self.augment!r}")
        if self.sparsity is not None and not isinstance(self.sparsity, Sparsity):
            raise ValueError(f"sparsity must be None or a Sparsity, such as GroupLasso(1e-4), got {self.sparsity!r}")
        self._make_optimizer([])
        self._session_options()
        if dropout_rate is not None and isinstance(self.dropout if dropout is None else dropout, Dropout):
            raise ValueError("dropout_rate cannot change a policy object; give its rate to the policy")
        chosen = policy(self.dropout if dropout is None else dropout,
                        self.dropout_rate if dropout_rate is None else dropout_rate)
        if (places := self._places(chosen)) is not None:
            chosen.check(places)
        return {"policy": chosen, "averaged": chosen.averaged(self.epochs), "device": device(self.device),
                "schedule": schedule.named(self.schedule, self.epochs), "early_stopping": self.early_stopping}

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
            return SGD(parameters, self.learning_rate, self.momentum, self.nesterov, self.weight_decay, self.clip_norm)
        if self.optimizer == "adam":
            return Adam(parameters, self.learning_rate, weight_decay=self.weight_decay, clip_norm=self.clip_norm)
        if callable(self.optimizer):
            return self.optimizer(parameters, self.learning_rate)
        raise ValueError(f"there is no optimizer {self.optimizer!r}; choose 'sgd' or 'adam', or give a class")

    def _check_data(self, X, y, sample_weight, reset, **target_options):
        X, y = self._checked(X, y, reset=reset)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float32, ensure_non_negative=True)
            if not weights.sum() > 0:
                raise ValueError("sample_weight must not be zero for every sample")
        if len(y) <= self.batch_size:
            X, y, weights = merged(X, y, weights)
        return X, *self._check_target(y, weights, reset, **target_options)

    def _checked(self, X, *y, reset=False, **options):
        """X, or X and y, as training takes them; layers that were given may take samples of any shape, and integers."""
        own = self._given_layers() or isinstance(self.layers, str)
        symbols = Sequential(self.layers).symbols if self._given_layers() else None
        found = validate_data(self, X, *y, dtype="numeric" if symbols else np.float32, order="C", reset=reset, allow_nd=own,
                              **(self._y_options() if y else {}), **options)
        X, *y = found if y else (found,)
        X = as_images(X, self.image_shape)
        if symbols:
            if X.dtype.kind not in "iu" or X.min() < 0 or X.max() >= symbols:
                raise ValueError(f"X holds {X.dtype} from {X.min()} to {X.max()}, and {self.layers[0]!r} takes integers from 0 "
                                 f"to {symbols - 1}")
            X = X.astype(np.int32, copy=False)
        if reset:
            self.input_shape_ = X.shape[1:]
        elif X.shape[1:] != self.input_shape_:
            raise ValueError(f"X has samples of shape {X.shape[1:]}, and {type(self).__name__} expects {self.input_shape_}")
        return (X, *y) if y else X

    def _y_options(self) -> dict[str, Any]:
        return {}

    # --- building and training ----------------------------------------------------------------------------------------
    def _start(self, X, weights, settings) -> None:
        """A new model and optimiser."""
        self._streams = Streams.from_seed(check_random_state(self.random_state).randint(2**31))
        if self._given_layers():
            model = Sequential(copy.deepcopy(list(self.layers)))
        elif isinstance(self.layers, str):
            model = Sequential(network(self.layers, self.input_shape_, self._outputs(), self._streams.weights))
            settings["policy"].check(len(settings["policy"].sites(model)))
        else:
            model = build(X, weights, (X.shape[1], *self._widths(), self._outputs()), self.activation, settings["averaged"],
                          self._streams.weights, settings["device"])
        self._check_layers(model)
        to(model, settings["device"])
        self.model_, self.history_ = model, []
        self.optimizer_ = self._make_optimizer(model.parameters())
        self._sparsity = self.sparsity
        self._structure = Structure() if self.sparsity is None else self.sparsity.begin(
            model, (self.batch_size, *self.input_shape_), self.epochs, settings["device"])

    def _check_layers(self, model: Sequential) -> None:
        """ValueError unless the layers take the samples and give the outputs."""
        if not any(True for _ in model.parameters()):
            raise ValueError(f"layers: there is nothing to train in {model}")
        shape = model.cost(Form((self.batch_size, *self.input_shape_)), Step("cpu"))[1].shape
        if len(shape) != 2 or shape[1] not in (None, self._outputs()):
            raise ValueError(f"layers: the last one must give {self._outputs()} outputs, not {shape[1:]} a sample; got {model}")

    def _train(self, X, y, weights, epochs, settings, validation_data) -> None:
        dev = settings["device"]
        if next(self.model_.parameters()).device is not dev:
            state = self.optimizer_.snapshot()
            to(self.model_, dev)
            self.optimizer_.restore(state)
        validation = rows = None
        if validation_data is not None:
            validation = Data(*self._check_validation(validation_data))
            validation.X = on_device(validation.X, dev)
        elif settings["early_stopping"]:
            rows, held = self._split(y)
        data, chosen = Data(on_device(X, dev), y, weights, rows), settings["policy"]
        trainer = Trainer(self.model_, self.optimizer_, chosen, self.task, self._streams, dev, self.batch_size,
                          self._session_options(), augment=self.augment, samples=some(data, dev, chosen),
                          structure=self._structure)
        self._run(trainer, data, dataclasses.replace(data, rows=held) if rows is not None else validation, epochs, settings)

    def _run(self, trainer: Trainer, data: Data, validation: Data | None, epochs: int, settings: dict[str, Any]) -> None:
        """So many epochs, with what is shown and told of them."""
        numbers = range(len(self.history_), len(self.history_) + epochs)
        policies = {chosen.rate: chosen for chosen in map(settings["policy"].at, numbers)}.values()
        for message in dict.fromkeys(said for chosen in policies for said in chosen.concerns(self.model_)):
            warnings.warn(message, stacklevel=4)
        with contextlib.ExitStack() as stack:
            bar = stack.enter_context(Progress(epochs * len(data))) if self.verbose else None

            def report(record: dict) -> bool:
                self.policy_ = trainer.policy
                if bar:
                    bar.show(record, len(data))
                said = [callback(self, record) for callback in self.callbacks or ()]
                return any(isinstance(answer, (bool, np.bool_)) and answer for answer in said)

            Epochs(trainer, data, self.history_, validation=validation, schedule=settings["schedule"],
                   patience=self.patience if settings["early_stopping"] else None, report=report, watched=bool(self.callbacks),
                   **({"tick": bar.tick} if bar else {})).run(epochs)
        self.n_iter_ = len(self.history_)

    def _check_validation(self, validation_data):
        try:
            X, y = validation_data
        except (TypeError, ValueError):
            raise ValueError("validation_data must be a pair (X, y)") from None
        X, y = self._checked(X, y, ensure_min_samples=self.least_to_score)
        return X, *self._check_target(y, None, reset=False)

    def _split(self, y):
        """The numbers of the training samples, and of the validation samples held out of them."""
        seed = int(self._streams.rows.integers(2**31))
        try:
            rows, held = train_test_split(np.arange(len(y)), test_size=self.validation_fraction, random_state=seed,
                                          stratify=self._strata(y))
            if len(held) < self.least_to_score:
                raise ValueError(f"the score needs {self.least_to_score} held-out samples, not {len(held)}")
        except ValueError as error:
            raise ValueError(f"early_stopping: {len(y)} samples cannot be split with validation_fraction="
                             f"{self.validation_fraction} ({error})") from error
        return rows, held

    def _output(self, X) -> np.ndarray:
        """The model's output for host samples X."""
        check_is_fitted(self)
        X, dev = self._checked(X), next(self.model_.parameters()).device
        return forward(self.model_, dev, on_device(X, dev), np.arange(len(X)), self._session_options(),
                       self.policy_.predicting(len(self.history_) - 1))
