"""`HeldOut`: validation samples, which an estimator is given, or holds out for early stopping."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split


class HeldOut:
    """What an estimator does with validation samples; the base class of estimators that learn from samples."""

    least_to_score = 1  # the smallest number of samples that `score` takes
    validation_fraction: float
    n_features_in_: int
    _streams: Any
    _as_given: Any

    def _scored(self, scorer, X, y) -> float:
        """Return the value of a scorer for samples in the form for training; they are converted back to the user's form."""
        X = X if X.shape[1] == self.n_features_in_ else X.reshape(len(X), -1)  # the user passed flat X
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            return scorer(self, X, self._as_given(y))

    def _check_validation(self, validation):
        try:
            X, y = validation
        except (TypeError, ValueError):
            raise ValueError("validation must be a pair (X, y)") from None
        try:
            X, y = self._checked(X, y, ensure_min_samples=self.least_to_score)
            alike = copy.copy(self)
            vars(alike)["class_weight"] = None  # all of these samples count alike
            return X, *alike._check_target(X, y, None, reset=False)
        except ValueError as error:
            raise ValueError(f"validation: {error}") from error

    def _split(self, y, weights):
        """Return the indices of the training samples, and those of the held-out validation samples, which have weights above 0
        if any have.
        """
        seed, each = int(self._streams.rows.integers(2**31)), np.arange(len(y))
        counted = each if weights is None or not weights.any() else np.flatnonzero(weights.reshape(len(y), -1).any(1))
        try:
            rows, held = train_test_split(
                counted, test_size=self.validation_fraction, random_state=seed, stratify=self._strata(y[counted])
            )
            if len(held) < self.least_to_score:
                raise ValueError(f"the score needs {self.least_to_score} held-out samples, not {len(held)}")
        except ValueError as error:
            which = f"{len(y)} samples"
            if len(counted) < len(y):
                which = f"{len(counted)} of {len(y)} samples have a weight above 0 (sample_weight, class_weight), and"
            raise ValueError(
                f"early_stopping: {which} cannot be split with validation_fraction={self.validation_fraction} ({error})"
            ) from error
        return np.concatenate([rows, np.setdiff1d(each, counted)]), held
