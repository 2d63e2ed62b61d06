"""Functions that validate the samples and targets of a fit, in memory or in a memory-mapped file."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_y, validate_data

from ..arguments import is_real
from ..training.large.mapped import Mapped, is_large


def validated(net: Any, X: Any, y: tuple[Any, ...], y_options: dict[str, Any], **options: Any) -> Any:
    """Return what scikit-learn's `validate_data` returns for X, or for X and y. If X is a large memory-mapped array of numbers,
    it becomes a `Mapped`, which is read once here, in chunks, to find numbers that are not finite. Raise ValueError, too, if y
    holds None.
    """
    numeric = bool(y and y_options.get("y_numeric"))
    if numeric and issparse(y[0]):
        raise TypeError(f"y is a sparse {type(y[0]).__name__}, and NetRegressor takes dense targets: give y.toarray()")
    checked = _validated(net, X, y, y_options, **options)
    if numeric and checked[1].dtype.kind in "US":
        _refuse_texts(checked[1].tolist())
    if y and isinstance(target := checked[1], np.ndarray) and target.dtype.kind in "Of":
        flat = target.reshape(-1)  # among floats None has become NaN
        missing = np.isnan(flat) if flat.dtype.kind == "f" else np.array([label is None for label in flat], bool)
        if missing.any():
            first = int(missing.argmax()) * len(target) // target.size
            raise ValueError(f"y holds None, first for sample {first}: leave samples without a target out")
    return checked


def _validated(net: Any, X: Any, y: tuple[Any, ...], y_options: dict[str, Any], **options: Any) -> Any:
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
            if y and y_options.get("y_numeric"):
                _refuse_texts(y[0])
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


def check_symbols(X: Any, first: Any, symbols: int) -> None:
    """Raise ValueError unless X holds integers from 0 to `symbols` - 1: the layer `first`, such as an `Embedding`, reads these.
    Sparse and empty X are not checked. The message says what X holds, and the way out.
    """
    if (wrong := _not_symbols(X, symbols)) is not None:
        found, way = wrong
        raise ValueError(f"X holds {found}, but {first!r} takes integers from 0 to {symbols - 1} in an array (N, T): {way}")


def _not_symbols(X: Any, symbols: int) -> tuple[str, str] | None:
    """Return what X holds instead of integers from 0 to `symbols` - 1, and the way out; None if nothing is wrong."""
    pad = "pad sequences to one length with an integer, and name it by padding_idx of the Embedding"
    if issparse(X):
        return None
    try:
        X = np.asarray(X)
    except ValueError:
        return "lists of different lengths", pad
    if not X.size:
        return None
    if X.dtype.kind in "OUS":
        other = next(([value] for value in X.reshape(-1).tolist() if not is_real(value)), None)
        if other is None:
            return f"numbers of type {X.dtype}", "convert them by X.astype(int)"
        if isinstance(other[0], (str, bytes)):
            return (
                f"texts, such as {other[0][:20]!r}",
                "give each word a number, for example by Vocabulary.of(words).encode(words)",
            )
        return f"{other[0]!r:.40}", pad
    low, high = X.min(), X.max()
    if X.dtype.kind in "iu":
        way = "number the symbols from 0, or make the Embedding larger"
        return None if low >= 0 and high < symbols else (f"{X.dtype} from {low} to {high}", way)
    if X.dtype.kind == "f" and not np.isfinite(X).all():
        return "NaN or infinity", pad
    return f"{X.dtype} from {low} to {high}", "convert whole numbers by X.astype(int)"


def _refuse_texts(y: Any) -> None:
    """Raise ValueError if targets cannot be converted to numbers."""
    try:
        np.asarray(y, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y holds texts ({error}): NetRegressor learns numbers, and Net classes") from error


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


def check_targets(y: np.ndarray, spread: bool) -> None:
    """Raise ValueError if targets (n, outputs), float64, are too large for predictions in float32 or, if `spread`, which these
    will be divided by, too near each other.
    """
    kind = np.finfo(np.float32)
    if (largest := np.abs(y).max(initial=0)) > kind.max:
        raise ValueError(
            f"y: {largest:g} is beyond float32, in which networks compute: scale y, as TransformedTargetRegressor does"
        )
    range_ = np.ptp(y, axis=0) if spread and len(y) else np.zeros(1)
    if (small := range_[(0 < range_) & (range_ < kind.tiny)]).size:
        raise ValueError(
            f"y: values differ by {small[0]:g}, which float32 cannot hold: scale y, as TransformedTargetRegressor does"
        )
