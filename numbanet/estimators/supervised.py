"""`Supervised`: the base class of estimators that learn from samples and targets."""

from __future__ import annotations

import abc
import copy
import math
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from numbanet_kernels.runtime.interrupt import deferred

from ..arguments import check_takes
from ..dropout import Dropout, Rate, automatic
from ..layers import ActivationSpec, Layer, Sequential, walk
from ..layers.norm import BatchNorm
from ..layers.sparse import sparse_layers
from ..losses import Loss, loss_named
from ..plans import Plans
from ..training.baseline_check import unfinished, verdict
from ..training.data import Data, on_device
from ..training.inference import Predictor
from ..training.large.rows import Rows, SparseRows, is_large
from ..training.loop import train
from ..training.run import Run
from ..user_warnings import warn
from . import saving
from .build import are_layers, as_images, as_rows, build, check_build, check_samples_first, merged, widths_of
from .fitting import Fitting
from .inputs import check_symbols, validated
from .joint import sharded
from .placing import check_objective
from .settings import FitSettings
from .whole import whole
from .zoo import MODELS, network

PLAIN = np.dtype(np.float32), np.dtype(np.float64)
PREDICTORS: weakref.WeakKeyDictionary[Supervised, Predictor] = weakref.WeakKeyDictionary()  # not copied or pickled


class Supervised(Fitting):
    """Base class of the classifier and the regressor. It checks the data, builds the network, and trains it."""

    by_samples = ("epochs", "batch_size")
    _by_step = False  # True if each time step has a target
    _trained_layers: tuple[Layer, ...] | None = None  # the layers of a file, which stand for the given ones
    losses: ClassVar[Mapping[str, type[Loss]]]  # the losses by name

    # --- public -------------------------------------------------------------------------------------------------------
    @whole
    def fit(
        self,
        X=None,
        y=None,
        sample_weight=None,
        *,
        dropout: str | Dropout | None = None,
        dropout_rate: Rate | None = None,
        validation: tuple | None = None,
        checkpoint: str | os.PathLike | None = None,
        every: str | int | None = None,
        keep: int | None = None,
        batches: Iterable | Callable[[int], Iterable] | None = None,
    ):
        """Train from new weights; if `warm_start` is True, from the existing weights.

        It warns if the network is no better than always predicting the most frequent class, or the mean, or still learning.

        Ctrl-C ends training after a step. The Net keeps complete epochs (`n_iter_`) and the weights of the last step, or with
        early stopping the best ones. Without any it is unchanged, as if the handler of another signal raises an exception.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n_samples, n_features)
            Finite numbers; (n_samples, …) for layers that take such samples. From 64 MiB on, only the rows of a batch are dense
            of a sparse matrix, and in memory of a memory-mapped array (`numpy.load(name, mmap_mode="r")`).
        y : array_like of shape (n_samples,)
            Labels, or target values; (n_samples, n_outputs) for a regressor with several outputs, or 0 and 1 for a classifier
            with several labels per sample; (n_samples, n_steps) for a classifier with outputs for each time step.
        sample_weight : array_like of shape (n_samples,), optional
            Weight of each sample, not negative.
        dropout, dropout_rate : optional
            If given, they replace the parameters of the Net in this call.
        validation : tuple (X, y), optional
            Samples that are scored after every epoch: validation_loss, and validation_score, which early stopping monitors.
        checkpoint, every, keep : optional
            A folder for checkpoints, from which `resume` goes on; how often they are written beside SIGTERM and Ctrl-C: "epoch"
            (default), a number of steps, or a time such as "10 min"; and how many are kept (default 2).
        batches : iterable or callable, optional
            Instead of X and y: a list, or another iterable that can be read again, such as PyTorch's DataLoader, of (X, y) or
            (X, y, sample_weight), each one training step; or a function of the epoch, counted from 0, that returns them.
            Before training, they are read once as a whole, and then the first ones once more. Samples may have another shape in
            each batch, such as sequences of another length, if the layers take it.

        Raises
        ------
        ValueError, TypeError
            If the data or a parameter is invalid, or a checkpoint is of another fit or cannot hold a layer; nothing is changed.
        FloatingPointError
            If the loss is not finite in the first epoch; the Net is unchanged.
        KeyboardInterrupt, DeviceFailure
            If training is interrupted, or a device fails (`objective`).
        """
        saver = self._saver(checkpoint, every, keep, dropout=dropout, dropout_rate=dropout_rate)
        run, data = self._begun(X, y, sample_weight, dropout, dropout_rate, validation, batches, saver)
        train(run, data)
        self._warn_of_result(run, data)
        return self

    @whole
    def partial_fit(self, X, y, sample_weight=None, *, dropout: str | Dropout | None = None, dropout_rate: Rate | None = None):
        """Train for one epoch, from the current weights and the current state of the optimiser; parameters are as for `fit`.
        If parameters of the optimiser or the loss have changed, they hold from now on; the state of the optimiser is kept if
        its class has not changed.

        Between calls the device keeps a second copy of the weights and of the optimiser's state; a failing call restores it.
        """
        train(*self._continued(X, y, sample_weight, dropout, dropout_rate))
        return self

    def __sklearn_clone__(self):
        """Copy the estimator without what it has learned, as `sklearn.base.clone` does; layers are copied together, so that
        they share what they shared. Loaded layers are copied with new weights.
        """
        other = super().__sklearn_clone__()
        if not self._given_layers():
            return other
        loaded = self._trained_layers == tuple(self.layers)
        return other.set_params(layers=saving.untrained(self.layers) if loaded else copy.deepcopy(self.layers))

    # --- checking -----------------------------------------------------------------------------------------------------
    def _check_data(self, X, y, sample_weight, reset, again=False, **target_options):
        """Return X, the targets and the weights, checked and in the form for training; `again`: as `warm_start` needs them."""
        X, y = self._checked(X, y, reset=reset)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, y, dtype=np.float32, ensure_non_negative=True)
            if not weights.sum() > 0:
                raise ValueError("sample_weight must not be zero for every sample")
        whole, kept = len(y) <= self._batch(len(y)) and not isinstance(X, Rows), None
        if whole and self._criterion().weighs and not sharded() and not self.early_stopping and not self._joins(reset):
            X, y, weights = merged(X, y, weights)
            kept = weights > 0
        y, weights = self._target(X, y, weights, reset, **target_options)  # finds all classes, also those of weight 0
        if again:
            self._check_same(y)
        return (X, y, weights) if kept is None or kept.all() else (X[kept], y[kept], weights[kept])

    def _joins(self, reset: bool) -> bool:
        """Return True if the network, or the one that will be made, has statistics of batches, which count equal samples."""
        layers = self.layers if reset and self._given_layers() else () if reset else self.model_.layers
        return any(isinstance(layer, BatchNorm) for _, layer in walk(Sequential(list(layers))))

    def _check_same(self, y) -> None:
        """Raise ValueError if `warm_start` cannot continue with the targets y. `Net` needs all classes."""

    def _checked(self, X, *y, reset=False, **options):
        """Return X, or (X, y), validated and in the form for training. If the user has passed layers, samples may have any
        shape, and may be integers."""
        if reset:
            self._made_of = {}  # there is no network yet
        layers = self._made_of.get("layers", self.layers)  # of a network, even if the parameter has changed since
        any_shape = (given := are_layers(layers)) or isinstance(layers, str)
        symbols, image_shape = Sequential(layers).symbols if given else None, self.image_shape if any_shape else None
        if image_shape is not None and (reset or self.n_features_in_ == math.prod(image_shape)):
            X = as_rows(X, image_shape)  # so that all forms of an image count as the same features
        given = given and not reset  # given layers check shapes themselves (`_takes`)
        try:
            checked = validated(
                self,
                X,
                y,
                self._y_options(),
                dtype="numeric" if symbols else np.float32,
                order="C",
                reset=reset,
                allow_nd=any_shape,
                ensure_2d=not given,
                accept_sparse=("csr", "csc", "coo"),
                **options,
            )
        except (TypeError, ValueError):
            if symbols:
                check_symbols(X, layers[0], symbols)
            raise
        X, *y = checked if y else (checked,)
        if issparse(X):
            X = SparseRows(X) if is_large(X.shape) and not symbols else X.toarray(order="C")
        X = as_images(X, image_shape)
        if symbols:
            check_symbols(X, layers[0], symbols)
            X = X.astype(np.int32, copy=False)
        if reset:
            self.input_shape_ = X.shape[1:]
        elif X.shape[1:] != self.input_shape_ and not (given and self._takes(X.shape)):
            raise ValueError(f"X has samples of shape {X.shape[1:]}, and {type(self).__name__} expects {self.input_shape_}")
        return (X, *y) if y else X

    def _takes(self, shape: tuple[int, ...]) -> bool:
        """Return True if the given layers take samples of this shape, for example longer sequences."""
        model = self.model_ if self._made_of else Sequential(self.layers)  # before training there is no network yet
        try:
            out, usual = (
                model.cost(ActivationSpec((shape[0], *sample)), Plans())[1].shape for sample in (shape[1:], self.input_shape_)
            )
        except ValueError:
            return False
        return len(shape) == 1 + len(self.input_shape_) and len(out) == len(usual) and out[-1] == usual[-1]

    def _y_options(self) -> dict[str, Any]:
        return {}

    def _criterion(self) -> Loss:
        """Return the loss that the parameter `loss` stands for; raise ValueError if it is invalid."""
        return loss_named(self.loss, self.losses)

    def _loss(self) -> Loss:
        """Return the loss of the training if the estimator is fitted and has stored it; else the loss of the parameter."""
        return getattr(self, "loss_", None) or self._criterion()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _settings(self, dropout, dropout_rate, samples=None):
        check_build(self.activation, self.init, self.output_init)
        if self.augment is not None and not callable(self.augment):
            raise ValueError(f"augment must be a function augment(x, rng, dev), such as FlipsAndCrops(), got {self.augment!r}")
        if self.augment is not None:
            check_takes("augment", self.augment, "three arguments, x, rng and dev", None, None, None)
        self._criterion()
        check_objective(self.objective, self.device)
        return super()._settings(dropout, dropout_rate, samples)

    def _policy(self, dropout, dropout_rate, samples=None):
        wanted = self.dropout if dropout is None else dropout
        if not isinstance(wanted, str) or wanted != "auto":
            return super()._policy(dropout, dropout_rate, samples)
        plain = samples is not None and not isinstance(self.layers, str) and not self._given_layers()
        widths = (*self.input_shape_, *self._widths(), self._outputs()) if plain else None
        return automatic(widths, self.dropout_rate if dropout_rate is None else dropout_rate, samples)

    def _site_count(self, chosen: Dropout) -> int | None:
        """Return the number of sites for which a policy has rates; None if it is known only when the layers are built."""
        if not isinstance(self.layers, str):
            if self._given_layers():
                given = Sequential(self.layers)
                return len(chosen.sites(given)) or (None if sparse_layers(given) else 0)  # training may have made them sparse
            return len(self._widths()) + (chosen.answer and chosen.kind == "tiles") if chosen.kind != "patches" else 0
        if self.layers not in MODELS:
            raise ValueError(f"there is no network {self.layers!r}; choose {', '.join(map(repr, MODELS))}, or give layers")
        return None

    def _given_layers(self) -> bool:
        return are_layers(self.layers)

    def _widths(self) -> tuple[int, ...]:
        return widths_of(self.layers)

    # --- building -----------------------------------------------------------------------------------------------------
    def _architecture(self):
        if (given := self._given_layers()) or isinstance(self.layers, str):
            return {"layers": tuple(self.layers) if given else self.layers}
        return {"layers": self._widths(), "activation": self.activation}

    def _sample(self):
        return self.input_shape_

    def _start(self, data: Data, settings: FitSettings, model: Sequential | None = None) -> None:
        """Start with `model`; if it is None, with a new model."""
        fresh, self._streams = model is None, self._new_streams()
        model = self._new_model(data, settings) if model is None else model
        self._check_layers(model)
        self.loss_ = self._criterion()
        self._adopt(model, settings, (settings.batch_size, *self.input_shape_), fresh)

    def _new_model(self, data: Data, settings: FitSettings) -> Sequential:
        if self._given_layers():
            model = Sequential(copy.deepcopy(list(self.layers)))
            if self.random_state is not None:
                model.redraw(self._streams.weights)
            return model
        if isinstance(self.layers, str):
            return Sequential(network(self.layers, self.input_shape_, self._outputs(), self._streams.weights))
        return build(
            data.X,
            data.weights,
            (data.X.shape[1], *self._widths(), self._outputs()),
            self.activation,
            self.init,
            self.output_init,
            self._output_bias(*data.targets()),
            settings.at_mean_rate,
            self._streams.weights,
            settings.device,
        )

    def _output_bias(self, y, weights) -> np.ndarray | None:
        """Return initial biases of the last layer, if `layers` are widths; None stands for those of `build`."""
        return None

    def _check_layers(self, model: Sequential) -> None:
        """Raise ValueError unless the layers take the samples and have the right output shape."""
        check_samples_first(model)
        if not any(tensor.requires_grad for tensor in model.parameters()):
            raise ValueError(f"layers: there is nothing to train in {model!r}")
        shape = model.cost(ActivationSpec((self._batch(None), *self.input_shape_)), Plans())[1].shape
        if len(shape) != 2 + self._by_step or shape[-1] not in (None, self._outputs()):
            which = f"{self._outputs()} outputs{' for each time step' * self._by_step}"
            each = ", one for each class of y" if hasattr(self, "classes_") else ""
            raise ValueError(f"layers: the last one must give {which}, not {shape[1:]} per sample{each}; got {model!r}")

    # --- after training ---------------------------------------------------------------------------------------------------
    def _warn_of_result(self, run: Run, data: Data) -> None:
        """Warn if the network is hardly better than a constant prediction, or could clearly learn more."""
        message = verdict(run.stepper, data.sample(run.dev), self.history_[-1])
        policy = run.stepper.policy
        constant = self.sparsity is None and policy.at(0) is policy  # otherwise the loss may fall because less is dropped
        if message is None and self.epochs is None and self.n_iter_ == len(run.epochs) and constant:
            losses, scores = ([r[key] for r in self.history_ if key in r] for key in ("loss", "validation_score"))
            message = unfinished(losses, scores, bool(self.early_stopping), policy.name != "none")
        if message and run.speaks:
            warn(message)

    @abc.abstractmethod
    def _as_given(self, y: np.ndarray) -> np.ndarray:
        """Return targets in the form in which the user passed them."""

    def _check_fitted(self) -> None:
        """Raise scikit-learn's NotFittedError before the first fit."""
        if "model_" not in vars(self):  # which takes a hundredth of the time
            check_is_fitted(self)

    @deferred  # signals wait until the prediction is complete
    def _output(self, X, link: str | None = None) -> np.ndarray:
        """Return the output of the model for samples X on the host, or the result of the operation `link` for it."""
        self._check_fitted()
        X = self._checked(X) if (plain := self._plain(X)) is None else plain
        predictor = self._predictor()
        return predictor(on_device(X, predictor.dev), link=link)

    def _plain(self, X) -> np.ndarray | None:
        """Return what `_checked` returns for X, in a tenth of the time, if X is a usual array without problems; else None."""
        if (
            type(X) is not np.ndarray
            or X.dtype not in PLAIN
            or not X.flags.c_contiguous
            or X.ndim != 2
            or not len(X)
            or not X.shape[1:] == (self.n_features_in_,) == self.input_shape_
            or hasattr(self, "feature_names_in_")  # X without feature names leads to a warning
            or self.image_shape is not None
            or self.model_.symbols is not None
        ):
            return None
        if X.dtype != np.float32:
            with np.errstate(all="ignore"):
                X = X.astype(np.float32)
        # BLAS takes less time than `isfinite`, and raises no warning if the sum of squares overflows
        return X if math.isfinite(np.vdot(X, X)) or np.isfinite(X).all() else None

    def _predictor(self) -> Predictor:
        """Return the predictor of the last call if at most the values of weights have changed since; else a new one."""
        arguments = self.model_, self._session_options(), self._inference_policy()
        found = PREDICTORS.get(self)
        if found is None or not found.fits(*arguments):
            PREDICTORS[self] = found = Predictor(*arguments)
        return found
