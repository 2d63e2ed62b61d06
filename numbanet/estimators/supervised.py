"""Supervised: estimators that are given samples and targets; checking data, building networks, training them."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from numbanet_kernels.runtime.interrupt import deferred

from ..arguments import is_integer
from ..dropout import Dropout, Rate
from ..layers import ACTIVATIONS, INITS, ActivationSpec, Layer, Sequential
from ..losses import Loss, loss_named
from ..plans import Plans
from ..training.augment import Augmentation
from ..training.baseline_check import verdict
from ..training.data import Data, on_device
from ..training.inference import forward
from ..training.loop import train
from ..training.run import Run
from ..training.user_warnings import warn
from ..training.validation import Validation
from .base import Estimator
from .build import as_images, build, merged
from .settings import FitSettings
from .whole import whole
from .zoo import MODELS, network


class Supervised(Estimator):
    """What classifier and regressor share: checking data, building, training."""

    least_to_score = 1  # samples
    by_samples = ("epochs", "batch_size")
    _by_step = False  # whether each time step has a target
    losses: ClassVar[Mapping[str, type[Loss]]]  # that may be named

    # --- public -------------------------------------------------------------------------------------------------------
    @whole
    def fit(
        self,
        X,
        y,
        sample_weight=None,
        *,
        dropout: str | Dropout | None = None,
        dropout_rate: Rate | None = None,
        validation: tuple | None = None,
    ):
        """Train from new weights, or with `warm_start` from those that are there.

        Warns where the network ends no better than one that always gives the most frequent class, or the mean.

        Ctrl-C ends training after the present step and raises KeyboardInterrupt, so that whatever called `fit`, such as a grid
        search, stops as well. If an epoch at least is done, the Net keeps what was learned: it predicts, scores, is saved, and
        goes on by `partial_fit`, as one that was trained for fewer epochs, with `n_iter_` and `history_` of those that are
        whole; with early stopping, the weights are the best so far. Where the epoch that was broken off has left weights that
        are not finite, the Net goes back to the last copy of them, after fewer epochs. Without one, or before an epoch is done,
        it is as it was. So it is after an exception that the handler of any other signal raises, such as a time-out's: handlers
        written in Python run between two training steps, and at once while a callback runs; other functions that were given,
        such as a schedule, are not interrupted.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n_samples, n_features)
            Finite numbers; (n_samples, …) for layers that take samples of such a shape. A sparse matrix is made dense.
        y : array_like of shape (n_samples,)
            Labels, or target values; (n_samples, n_outputs) for a regressor with several outputs, or 0 and 1 for labels of
            which a sample may have several; (n_samples, n_steps) for a classifier whose layers give outputs for each time step.
        sample_weight : array_like of shape (n_samples,), optional
            How much each sample counts, not negative.
        dropout, dropout_rate : optional
            Replace the Net's own for this call.
        validation : tuple (X, y), optional
            Scored after every epoch: validation_loss, and validation_score, which early stopping watches (`scoring`).

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data or a parameter is unfit; the Net is then as it was before.
        FloatingPointError
            If the loss is not finite in the first epoch; the Net is then as it was before.
        KeyboardInterrupt
            If it is interrupted.
        """
        settings = self._settings(dropout, dropout_rate)
        trained = bool(self.warm_start) and self._goes_on("warm_start")
        X, y, weights = self._check_data(X, y, sample_weight, reset=not trained)
        if trained:
            self._check_same(y)
        if None in (self.epochs, self.batch_size):
            settings = self._settings(dropout, dropout_rate, len(X))
        self._start(X, weights, settings, self.model_ if trained else None)
        run, data = self._prepare(X, y, weights, settings, settings.epochs, trained, validation)
        train(run, data)
        if message := verdict(run.stepper, data, self.history_[-1]):
            warn(message)
        return self

    @whole
    def partial_fit(self, X, y, sample_weight=None, *, dropout: str | Dropout | None = None, dropout_rate: Rate | None = None):
        """One pass over the samples, going on from the present weights and optimiser state; parameters as for `fit`.

        A second copy of weights and state stays on the device from call to call: what a call that fails goes back to.
        """
        train(*self._continued(X, y, sample_weight, dropout, dropout_rate))
        return self

    # --- checking -----------------------------------------------------------------------------------------------------
    def _check_data(self, X, y, sample_weight, reset, **target_options):
        X, y = self._checked(X, y, reset=reset)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float32, ensure_non_negative=True)
            if not weights.sum() > 0:
                raise ValueError("sample_weight must not be zero for every sample")
        if len(y) <= self._batch(len(y)) and self._criterion().weighs:
            X, y, weights = merged(X, y, weights)
        return X, *self._check_target(X, y, weights, reset, **target_options)

    def _check_same(self, y) -> None:
        """ValueError unless `warm_start` can go on with these targets; where they are numbers, all will do."""

    def _checked(self, X, *y, reset=False, **options):
        """X, or X and y, as training takes them; layers that were given may take samples of any shape, and integers."""
        own = self._given_layers() or isinstance(self.layers, str)
        symbols = Sequential(self.layers).symbols if self._given_layers() else None
        given = not reset and self._given_layers()  # which say themselves what they take (`_takes`)
        found = validate_data(
            self,
            X,
            *y,
            dtype="numeric" if symbols else np.float32,
            order="C",
            reset=reset,
            allow_nd=own,
            ensure_2d=not given,
            accept_sparse=("csr", "csc", "coo"),
            **(self._y_options() if y else {}),
            **options,
        )
        X, *y = found if y else (found,)
        X = X.toarray(order="C") if issparse(X) else X
        X = as_images(X, self.image_shape)
        if symbols:
            if X.dtype.kind not in "iu" or X.min() < 0 or X.max() >= symbols:
                raise ValueError(
                    f"X holds {X.dtype} from {X.min()} to {X.max()}, and {self.layers[0]!r} takes integers from 0 "
                    f"to {symbols - 1}"
                )
            X = X.astype(np.int32, copy=False)
        if reset:
            self.input_shape_ = X.shape[1:]
        elif X.shape[1:] != self.input_shape_ and not (given and self._takes(X.shape)):
            raise ValueError(f"X has samples of shape {X.shape[1:]}, and {type(self).__name__} expects {self.input_shape_}")
        return (X, *y) if y else X

    def _takes(self, shape: tuple[int, ...]) -> bool:
        """Whether the trained layers take samples of another shape than those before, such as longer sequences."""
        try:
            out = self.model_.cost(ActivationSpec(shape), Plans())[1].shape
        except ValueError:
            return False
        outputs = ((None,), (self._outputs(),))
        return len(shape) == 1 + len(self.input_shape_) and out[1 + self._by_step :] in outputs

    def _y_options(self) -> dict[str, Any]:
        return {}

    def _criterion(self) -> Loss:
        """The loss that the parameter means, or ValueError."""
        return loss_named(self.loss, self.losses)

    def _loss(self) -> Loss:
        """What trained the network, or will; one that was saved before it was kept has that of the parameter."""
        return getattr(self, "loss_", None) or self._criterion()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _settings(self, dropout, dropout_rate, samples=None):
        if not isinstance(self.activation, str) or self.activation not in ACTIVATIONS:
            raise ValueError(f"there is no activation {self.activation!r}; choose one of {', '.join(map(repr, ACTIVATIONS))}")
        if not isinstance(self.init, str) or self.init not in INITS:
            raise ValueError(f"there is no init {self.init!r}; choose one of {', '.join(map(repr, INITS))}")
        if self.augment is not None and not callable(self.augment):
            raise ValueError(f"augment must be a function augment(x, rng, dev), such as FlipsAndCrops(), got {self.augment!r}")
        self._criterion()
        return super()._settings(dropout, dropout_rate, samples)

    def _places(self, chosen: Dropout) -> int | None:
        """How many places a policy has rates for; None: that is known when the layers are made."""
        if not isinstance(self.layers, str):
            given = self._given_layers()
            return len(chosen.sites(Sequential(self.layers)) if given else self._widths() * (chosen.kind != "patches"))
        if self.layers not in MODELS:
            raise ValueError(f"there is no network {self.layers!r}; choose {', '.join(map(repr, MODELS))}, or give layers")
        return None

    def _given_layers(self) -> bool:
        return isinstance(self.layers, Sequence) and len(self.layers) > 0 and all(isinstance(x, Layer) for x in self.layers)

    def _widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers, or ValueError."""
        widths = (self.layers,) if isinstance(self.layers, numbers.Integral) else self.layers
        if (
            isinstance(widths, (str, bytes))
            or not isinstance(widths, (Sequence, np.ndarray))
            or not all(is_integer(n) and n > 0 for n in widths)
        ):
            raise ValueError(
                f"layers must be the widths of the hidden layers, such as (256, 256), or a list of layers; got {self.layers!r}"
            )
        return tuple(int(n) for n in widths)

    # --- building -----------------------------------------------------------------------------------------------------
    def _architecture(self):
        if isinstance(self.layers, str):
            return {"layers": self.layers}
        if self._given_layers():
            return {"layers": tuple(self.layers)}
        return {"layers": self._widths(), "activation": self.activation}

    def _sample(self):
        return self.input_shape_

    def _start(self, X, weights, settings: FitSettings, model: Sequential | None = None) -> None:
        """Begin with a new model, unless one is given."""
        fresh, self._streams = model is None, self._new_streams()
        model = self._new_model(X, weights, settings) if model is None else model
        self._check_layers(model)
        self.loss_ = self._criterion()
        self._adopt(model, settings, (settings.batch_size, *self.input_shape_), fresh)

    def _new_model(self, X, weights, settings) -> Sequential:
        if self._given_layers():
            model = Sequential(copy.deepcopy(list(self.layers)))
            if self.random_state is not None:
                model.redraw(self._streams.weights)
            return model
        if isinstance(self.layers, str):
            model = Sequential(network(self.layers, self.input_shape_, self._outputs(), self._streams.weights))
            settings.policy.check(len(settings.policy.sites(model)))
            return model
        return build(
            X,
            weights,
            (X.shape[1], *self._widths(), self._outputs()),
            self.activation,
            self.init,
            settings.at_mean_rate,
            self._streams.weights,
            settings.device,
        )

    def _check_layers(self, model: Sequential) -> None:
        """ValueError unless the layers take the samples and give the outputs."""
        if not any(tensor.requires_grad for tensor in model.parameters()):
            raise ValueError(f"layers: there is nothing to train in {model!r}")
        shape = model.cost(ActivationSpec((self._batch(None), *self.input_shape_)), Plans())[1].shape
        if len(shape) != 2 + self._by_step or shape[-1] not in (None, self._outputs()):
            which = f"{self._outputs()} outputs{' for each time step' * self._by_step}"
            raise ValueError(f"layers: the last one must give {which}, not {shape[1:]} a sample; got {model!r}")

    # --- training -----------------------------------------------------------------------------------------------------
    def _continued(self, X, y, sample_weight, dropout, dropout_rate, **target_options) -> tuple[Run, Data]:
        """What `train` takes for one more pass."""
        settings = dataclasses.replace(self._settings(dropout, dropout_rate), patience=None)
        trained = self._goes_on("partial_fit")
        X, y, weights = self._check_data(X, y, sample_weight, reset=not trained, **target_options)
        if self.batch_size is None:
            settings = dataclasses.replace(settings, batch_size=self._batch(len(X)))
        if trained:
            self._warn_of_sparsity()
        else:
            self._start(X, weights, settings)
        return self._prepare(X, y, weights, settings, 1, trained)

    def _prepare(
        self, X, y, weights, settings: FitSettings, epochs: int, trained: bool, validation: tuple | None = None
    ) -> tuple[Run, Data]:
        """What `train` takes."""
        run, scorer, watched = self._run(settings, epochs, trained), settings.scorer, None
        data = Data(on_device(X, run.dev), y, weights)
        if validation is not None:
            X_val, *others = self._check_validation(validation)
            watched = Validation(Data(on_device(X_val, run.dev), *others), scorer and (lambda: scorer(self, *validation)))
        elif settings.patience:
            rows, held = self._split(y)
            data, others = dataclasses.replace(data, rows=rows), dataclasses.replace(data, rows=held)
            watched = Validation(others, scorer and functools.partial(self._scored, scorer, X[held], y[held]))
        self._hook(run, settings, data, watched, *([] if self.augment is None else [Augmentation(self.augment)]))
        return run, data

    def _scored(self, scorer, X, y) -> float:
        """What a scorer says of samples as training has them: it is given them as the user would."""
        X = X if X.shape[1] == self.n_features_in_ else X.reshape(len(X), -1)  # given flat, with image_shape
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            return scorer(self, X, self._as_given(y))

    @abc.abstractmethod
    def _as_given(self, y: np.ndarray) -> np.ndarray:
        """Targets of training as the user gives them."""

    def _check_validation(self, validation):
        try:
            X, y = validation
        except (TypeError, ValueError):
            raise ValueError("validation must be a pair (X, y)") from None
        X, y = self._checked(X, y, ensure_min_samples=self.least_to_score)
        return X, *self._check_target(X, y, None, reset=False)

    def _split(self, y):
        """The numbers of the training samples, and of the validation samples held out of them."""
        seed = int(self._streams.rows.integers(2**31))
        try:
            rows, held = train_test_split(
                np.arange(len(y)), test_size=self.validation_fraction, random_state=seed, stratify=self._strata(y)
            )
            if len(held) < self.least_to_score:
                raise ValueError(f"the score needs {self.least_to_score} held-out samples, not {len(held)}")
        except ValueError as error:
            raise ValueError(
                f"early_stopping: {len(y)} samples cannot be split with validation_fraction="
                f"{self.validation_fraction} ({error})"
            ) from error
        return rows, held

    @deferred  # what others do to the process while they check X, too
    def _output(self, X) -> np.ndarray:
        """The model's output for host samples X."""
        check_is_fitted(self)
        X, dev = self._checked(X), next(self.model_.parameters()).device
        return forward(
            self.model_,
            dev,
            on_device(X, dev),
            np.arange(len(X)),
            self._session_options(),
            self.policy_.inference_policy(self.n_iter_ - 1),
        )
