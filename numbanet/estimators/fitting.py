"""`Fitting`: how the training calls of estimators begin that learn from samples and targets."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from ..training.augment import Augmentation, FlipsAndCrops
from ..training.data import Data, on_device
from ..training.large.streamed import Streamed
from ..training.run import Run
from ..training.validation import Validation
from ..user_warnings import warn
from .base import Estimator
from .build import are_layers, check_image_shape
from .held_out import HeldOut
from .joint import count
from .placing import Placing
from .settings import FitSettings
from .streaming import Streaming


class Fitting(Placing, HeldOut, Streaming, Estimator):
    """What `fit` and `partial_fit` do before they train. The subclass checks data and builds networks."""

    def _begun(self, X, y, sample_weight, dropout, dropout_rate, validation, batches, saver) -> tuple[Run, Data]:
        """Return the arguments of `train` for `fit`."""
        if saver:
            dropout, dropout_rate = map(saver.arguments.get, ("dropout", "dropout_rate"))
        self._settings(dropout, dropout_rate)  # called only for its errors, which come before the data are checked
        trained = self._unfinished is not None or (bool(self.warm_start) and self._goes_on("warm_start"))
        if batches is None and X is not None:
            data = Data(*self._check_data(X, y, sample_weight, reset=not trained, again=trained))
        else:
            data = self._streamed(batches, X, y, sample_weight, validation, reset=not trained)
        self._check_images(data)
        settings = self._settings(dropout, dropout_rate, count(len(data)))
        if isinstance(data, Streamed):
            settings = dataclasses.replace(settings, batch_size=data.largest)
        if self._unfinished is not None:
            arguments = {"dropout": dropout, "dropout_rate": dropout_rate}
            self._start_again(settings, (settings.batch_size, *self.input_shape_), len(data), arguments)
            self.loss_ = self._criterion()
        else:
            self._start(data, settings, self.model_ if trained else None)
        run, data = self._prepare(data, settings, settings.epochs, trained, validation)
        if saver:
            saver.join(run, data)
        return run, data

    def _continued(self, X, y, sample_weight, dropout, dropout_rate, **target_options) -> tuple[Run, Data]:
        """Return the arguments of `train` for `partial_fit`."""
        self._refuse_balanced("partial_fit")
        settings = dataclasses.replace(self._settings(dropout, dropout_rate), patience=None)
        trained = self._goes_on("partial_fit")
        data = Data(*self._check_data(X, y, sample_weight, reset=not trained, **target_options))
        self._check_images(data)
        if self.batch_size is None:
            settings = dataclasses.replace(settings, batch_size=self._batch(count(len(data))))
        if trained:
            self._warn_of_sparsity()
            self._take_changes()
        else:
            if hasattr(self, "target_scale_") and self._criterion().standardised and (np.abs(data.y).max(axis=0) < 0.5).any():
                warn(
                    "partial_fit: the mean and the scale of targets are those of the first call, whose y is constant, so that"
                    " later targets may be far too large or too small; begin with more samples"
                )
            self._start(data, settings)
        return self._prepare(data, settings, 1, trained)

    def _take_changes(self) -> None:
        """Go on with the loss and the optimiser that the parameters describe now; raise ValueError if the loss does not fit."""
        before, loss = self._loss(), self._criterion()
        if loss.standardised != before.standardised:
            raise ValueError(
                f"partial_fit: the network was trained with {before!r}, for which targets have another scale than for "
                f"loss={self.loss!r}: set loss back, or fit anew"
            )
        if loss != before:
            self.loss_ = loss
            self._check_layers(self.model_)
        self.optimizer_ = self._renewed(self.optimizer_, self.model_)

    def _check_images(self, data: Data) -> None:
        """Raise ValueError if `image_shape`, which widths of layers would ignore, or `augment` does not fit the samples."""
        if not (isinstance(self.layers, str) or are_layers(self.layers)):  # others have used it to make images
            check_image_shape(self.image_shape, self.input_shape_)
        if isinstance(self.augment, FlipsAndCrops):
            self.augment.check(data.X.shape[1:])

    def _prepare(
        self, given: Data, settings: FitSettings, epochs: int, trained: bool, validation: tuple | None = None
    ) -> tuple[Run, Data]:
        """Return the arguments of `train`."""
        if not trained:  # training may have made all layers sparse that the policy knows
            settings.policy.check(len(settings.policy.sites(self.model_)))
        settings.policy.check_in(self.model_)
        settings, watching = self._placed(settings, given, trained)
        run, scorer, watched = self._run(settings, epochs, trained), settings.scorer, None
        X, y, data = given.X, given.y, given.on(run.dev)
        if validation is not None:
            X_val, *targets = self._check_validation(validation)
            watched = Validation(Data(on_device(X_val, run.dev), *targets), scorer and (lambda: scorer(self, *validation)))
        elif settings.patience:
            rows, held = self._split(y, given.weights)
            data, rest = dataclasses.replace(data, rows=rows), dataclasses.replace(data, rows=held)
            watched = Validation(rest, scorer and functools.partial(self._scored, scorer, X[held], y[held]))
        self._hook(run, settings, data, watched, *([Augmentation(self.augment)] if self.augment else []), *watching)
        return run, data
