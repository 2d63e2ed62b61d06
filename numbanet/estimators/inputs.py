"""Functions that validate the samples and targets of a fit, in memory or in a memory-mapped file."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_y, validate_data

from ..training.large.mapped import Mapped, is_large


def validated(net: Any, X: Any, y: tuple[Any, ...], y_options: dict[str, Any], **options: Any) -> Any:
    """Return what scikit-learn's `validate_data` returns for X, or for X and y. If X is a large memory-mapped array of numbers,
    it becomes a `Mapped`, which is read once here, in chunks, to find numbers that are not finite.
    """
    shape = getattr(X, "shape", ())
    if len(shape) > 2 and not options["allow_nd"]:
        raise ValueError(
            f"X {tuple(shape)}: layers that are given by their widths take flat samples, X.reshape(len(X), -1); images are for "
            "a network of convolutions, such as layers='lenet5', and sequences for a list of layers"
        )
    if not is_large(X) or options["dtype"] == "numeric":
        try:
            return validate_data(net, X, *y, **options, **(y_options if y else {}))
        except ValueError as error:
            if "could not convert string" not in str(error):
                raise
            if y and y_options.get("y_numeric") and not _are_numbers(y[0]):
                raise ValueError(f"y holds texts ({error}): NetRegressor learns numbers, and Net classes") from error
            raise ValueError(
                f"X holds texts ({error}): a network takes numbers; encode columns of texts first, for example by "
                "make_column_transformer((OneHotEncoder(), columns), remainder=StandardScaler()) of scikit-learn in a pipeline"
            ) from error
    some = np.array(X[:2])
    if y and y[0] is None:
        validate_data(net, some, None, **options)  # which raises the error
    validate_data(net, np.zeros_like(some), **options)  # what is wrong with numbers is found below
    X = Mapped(X)
    if y:
        target = _check_y(y[0], estimator=net, **y_options)
        check_consistent_length(X, target)
    X.check_finite("X")
    return (X, target) if y else X


def _are_numbers(y: Any) -> bool:
    """Return True if an array of objects can be converted to numbers."""
    try:
        np.asarray(y, float)
    except (TypeError, ValueError):
        return False
    return True


def indicators(y: np.ndarray) -> np.ndarray:
    """Return an array (n, labels), float32, that is 1 if the sample has the label, else 0; raise ValueError if y has other
    values."""
    values = np.unique(y)
    if not np.isin(values, (0, 1)).all():
        raise ValueError(
            f"y has shape {y.shape} with the values {values[:5].tolist()}: several labels for each sample are columns of 0 and "
            "1, or of False and True; for one class each, give one label per sample"
        )
    return y.astype(np.float32)
