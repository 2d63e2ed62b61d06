"""What the estimators share: parameters, checks, and the training run."""
from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from numbanet_kernels.runtime.interrupt import deferred

from ..device import Device
from ..dropout import Dropout, NoDropout, Rate, Together
from ..layers import Form, Sequential, to
from ..losses import Loss
from ..plans import Plans
from ..training.augment import Augmentation
from ..training.data import Data, on_device
from ..training.forward import forward
from ..training.hooks import Callback, Hook
from ..training.loop import train
from ..training.optim import Optimizer
from ..training.progress import Progress
from ..training.rates import Rates
from ..training.run import Run
from ..training.schedule import LearningRate
from ..training.streams import Streams
from ..training.trainer import Trainer
from ..training.validation import EarlyStopping, Validation
from ..training.verdict import verdict
from ..training.warned import warn
from . import saving
from .build import as_images, build, merged, some
from .parameters import SHARED
from .settings import Settings
from .whole import whole
from .zoo import network


class BaseNet(Settings):
    """What classifier and regressor share: checking data, building, training."""

    least_to_score = 1  # samples
    _by_step = False    # whether each time step has a target

    # --- public -------------------------------------------------------------------------------------------------------
    @whole
    def fit(self, X, y, sample_weight=None, *, dropout: str | Dropout | None = None, dropout_rate: Rate | None = None,
            validation_data: tuple | None = None):
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
        KeyboardInterrupt
            If it is interrupted.
        """
        settings = self._settings(dropout, dropout_rate)
        goes_on = self.warm_start and hasattr(self, "model_")
        X, y, weights = self._check_data(X, y, sample_weight, reset=not goes_on)
        if goes_on:
            self._check_same(y)
        self._start(X, weights, settings, self.model_ if goes_on else None)
        run, data = self._prepare(X, y, weights, self.epochs, settings, validation_data, goes_on)
        train(run, data)
        if message := verdict(run.stepper, data, self.history_[-1]):
            warn(message)
        return self

    @whole
    def partial_fit(self, X, y, sample_weight=None, *, dropout: str | Dropout | None = None, dropout_rate: Rate | None = None):
        """One pass over the samples, going on from the present weights and optimiser state; parameters as for `fit`."""
        return self._partial_fit(X, y, sample_weight, dropout, dropout_rate)

    def _partial_fit(self, X, y, sample_weight, dropout, dropout_rate, **target_options):
        settings = self._settings(dropout, dropout_rate)
        fresh = not hasattr(self, "model_")
        X, y, weights = self._check_data(X, y, sample_weight, reset=fresh, **target_options)
        if fresh:
            self._start(X, weights, settings)
        elif self.sparsity != self._sparsity:
            warn(f"partial_fit: the network goes on with sparsity={self._sparsity!r}, with which it began, or was "
                 f"loaded; fit begins anew, with {self.sparsity!r}")
        settings["early_stopping"] = False
        train(*self._prepare(X, y, weights, 1, settings, None, not fresh))
        return self

    def save(self, path: str | os.PathLike) -> None:
        """Write the trained estimator to one safetensors file: parameters and buffers by the names of `model_.state_dict()`,
        all else in the metadata.

        The optimiser's state is not in it: `partial_fit` of a loaded estimator begins with a new one. Random streams begin
        anew, too, and so does what `sparsity` does: the loaded network is as sparse as the saved one, but `partial_fit` does
        not keep it so, and warns; `fit` begins with `sparsity` again. Layers that were given (`layers`) are kept as they were
        trained, and tensors that were frozen (`requires_grad`) stay frozen.

        Parameters
        ----------
        path : str or path
            The file, which is replaced as a whole or stays as it was.

        Raises
        ------
        TypeError
            If a setting or a layer is of a class of one's own, or a function: files hold numbers and names. The message has the
            way out.
        FileNotFoundError, IsADirectoryError, PermissionError
            If no file can be written there.
        sklearn.exceptions.NotFittedError
            If nothing was trained.
        """
        saving.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike, device: str | Device | None = None) -> BaseNet:
        """The estimator that `save` wrote to a file. Nothing in the file is run or unpickled.

        Parameters
        ----------
        path : str or path
        device : str or Device, optional
            In place of the estimator's own, such as "cpu" for one that was trained on a card.

        Raises
        ------
        ValueError
            If the file is truncated, damaged, of a newer version, or holds something else; the message names it.
        FileNotFoundError
            If there is none.
        RuntimeError
            If the device is not there.
        """
        return saving.load((cls,), path, device)

    # --- checking -----------------------------------------------------------------------------------------------------
    def _check_data(self, X, y, sample_weight, reset, **target_options):
        X, y = self._checked(X, y, reset=reset)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float32, ensure_non_negative=True)
            if not weights.sum() > 0:
                raise ValueError("sample_weight must not be zero for every sample")
        if len(y) <= self.batch_size and self._criterion().weighs:
            X, y, weights = merged(X, y, weights)
        return X, *self._check_target(X, y, weights, reset, **target_options)

    def _check_same(self, y) -> None:
        """ValueError unless `warm_start` can go on with these targets; where they are numbers, all will do."""

    def _checked(self, X, *y, reset=False, **options):
        """X, or X and y, as training takes them; layers that were given may take samples of any shape, and integers."""
        own = self._given_layers() or isinstance(self.layers, str)
        symbols = Sequential(self.layers).symbols if self._given_layers() else None
        found = validate_data(self, X, *y, dtype="numeric" if symbols else np.float32, order="C", reset=reset, allow_nd=own,
                              accept_sparse=("csr", "csc", "coo"), **(self._y_options() if y else {}), **options)
        X, *y = found if y else (found,)
        X = X.toarray(order="C") if issparse(X) else X
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

    def _loss(self) -> Loss:
        """What trained the network, or will; one that was saved before it was kept has that of the parameter."""
        return getattr(self, "loss_", None) or self._criterion()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # --- building and training ----------------------------------------------------------------------------------------
    def _start(self, X, weights, settings, model: Sequential | None = None) -> None:
        """A new model, unless one is given, and a new optimiser."""
        self._streams = Streams.from_seed(check_random_state(self.random_state).randint(2**31))
        fresh, model = model is None, self._new_model(X, weights, settings) if model is None else model
        self._check_layers(model)
        if fresh:
            to(model, settings["device"])
            self._undo.forget()
        self.model_, self.history_, self.loss_ = model, [], self._criterion()
        self.optimizer_ = self._new_optimizer(model)
        self._sparsity = self.sparsity
        self._thinning = None if self.sparsity is None else self.sparsity.begin(
            model, (self.batch_size, *self.input_shape_), self.epochs, next(model.parameters()).device)

    def _new_model(self, X, weights, settings) -> Sequential:
        if self._given_layers():
            return Sequential(copy.deepcopy(list(self.layers)))
        if isinstance(self.layers, str):
            model = Sequential(network(self.layers, self.input_shape_, self._outputs(), self._streams.weights))
            settings["policy"].check(len(settings["policy"].sites(model)))
            return model
        return build(X, weights, (X.shape[1], *self._widths(), self._outputs()), self.activation, settings["averaged"],
                     self._streams.weights, settings["device"])

    def _new_optimizer(self, model: Sequential) -> Optimizer:
        """One for all parameters. Those that are frozen stay so, and are trained again when somebody thaws them."""
        frozen = [tensor for tensor in model.parameters() if not tensor.requires_grad]
        for tensor in frozen:
            tensor.requires_grad = True
        try:
            return self._make_optimizer(model.parameters())
        finally:
            for tensor in frozen:
                tensor.requires_grad = False

    def _check_layers(self, model: Sequential) -> None:
        """ValueError unless the layers take the samples and give the outputs."""
        if not any(tensor.requires_grad for tensor in model.parameters()):
            raise ValueError(f"layers: there is nothing to train in {model}")
        shape = model.cost(Form((self.batch_size, *self.input_shape_)), Plans())[1].shape
        if len(shape) != 2 + self._by_step or shape[-1] not in (None, self._outputs()):
            which = f"{self._outputs()} outputs{' for each time step' * self._by_step}"
            raise ValueError(f"layers: the last one must give {which}, not {shape[1:]} a sample; got {model}")

    def _prepare(self, X, y, weights, epochs, settings, validation_data, goes_on) -> tuple[Run, Data]:
        """What `train` takes."""
        trainer = Trainer(self.model_, self.optimizer_, settings["policy"], self._task(), self._streams, settings["device"],
                          self.batch_size, self._session_options())
        run = self._new_run(trainer, epochs)
        if goes_on:
            self._undo.copy(run)
        run.move()
        validation = rows = None
        if validation_data is not None:
            validation = Data(*self._check_validation(validation_data))
            validation = dataclasses.replace(validation, X=on_device(validation.X, trainer.dev))
        elif settings["early_stopping"]:
            rows, held = self._split(y)
        data = Data(on_device(X, trainer.dev), y, weights, rows)
        run.add(*self._hooks(data, dataclasses.replace(data, rows=held) if rows is not None else validation, settings, run))
        return run, data

    def _new_run(self, trainer: Trainer, epochs: int) -> Run:
        """A run without hooks, but those that the user gave, which may have a state."""
        users = [hook if isinstance(hook, Hook) else Callback(hook) for hook in self.callbacks or ()]
        return Run(trainer, self.history_, range(len(self.history_), len(self.history_) + epochs), users, self)

    def _hooks(self, data: Data, validation: Data | None, settings: dict[str, Any], run: Run) -> list[Hook]:
        """What happens between the steps, in order; then come the user's hooks."""
        chosen = settings["policy"]
        self._warn_of(chosen, run.epochs)
        self.policy_ = chosen
        hooks: list[Hook] = [Fitted(), Rates(some(data, run.dev, chosen))]
        if settings["schedule"]:
            hooks.append(LearningRate(settings["schedule"]))
        if self.augment is not None:
            hooks.append(Augmentation(self.augment))
        if self._thinning is not None:
            hooks.append(self._thinning)
        if validation is not None:
            hooks.append(Validation(validation))
        if settings["early_stopping"]:
            hooks.append(EarlyStopping(self.patience))
        if self.verbose:
            hooks.append(Progress(len(data), run.epochs, _named(chosen)))
        return hooks

    def _warn_of(self, chosen: Dropout, epochs: range) -> None:
        """Say what is unwise about a policy in some epochs."""
        if type(chosen) is NoDropout and chosen.rate not in (0, SHARED["dropout_rate"]):
            warn(f"dropout_rate={chosen.rate!r} drops nothing where dropout is 'none': choose 'bernoulli', 'rdp' or 'tdp'")
        policies = {tuple(part.rate for part in _parts(policy)): policy for policy in map(chosen.at, epochs)}.values()
        for message in dict.fromkeys(said for policy in policies for said in policy.concerns(self.model_)):
            warn(message)

    def _learned(self, run: Run, epochs: int) -> None:
        """After each epoch, and at the end: what is known of the training so far."""
        self.policy_, self.n_iter_ = run.stepper.policy, epochs

    def _check_validation(self, validation_data):
        try:
            X, y = validation_data
        except (TypeError, ValueError):
            raise ValueError("validation_data must be a pair (X, y)") from None
        X, y = self._checked(X, y, ensure_min_samples=self.least_to_score)
        return X, *self._check_target(X, y, None, reset=False)

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

    @deferred  # what others do to the process while they check X, too
    def _output(self, X) -> np.ndarray:
        """The model's output for host samples X."""
        check_is_fitted(self)
        X, dev = self._checked(X), next(self.model_.parameters()).device
        return forward(self.model_, dev, on_device(X, dev), np.arange(len(X)), self._session_options(),
                       self.policy_.predicting(self.n_iter_ - 1))


class Fitted(Hook):
    """Tells the estimator what it has learned."""

    watches = False

    def epoch_end(self, run, record):
        run.estimator._learned(run, run.epoch + 1)

    def fit_end(self, run):
        run.estimator._learned(run, run.epoch)


def _named(chosen: Dropout) -> str:
    """The kind of dropout, in a word."""
    return "+".join(part.name for part in _parts(chosen))


def _parts(chosen: Dropout) -> tuple[Dropout, ...]:
    """The policies that act together, or the one."""
    return chosen.policies if isinstance(chosen, Together) else (chosen,)
