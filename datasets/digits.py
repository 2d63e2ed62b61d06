"""Digits: the handwritten digits of 8 x 8 pixels that scikit-learn contains; they need no download."""

from __future__ import annotations

import numpy as np


def load_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Handwritten digits of 8 x 8 pixels: X_train (1437, 64), y_train (1437,), X_test (360, 64), y_test (360,).

    The split is 80/20, stratified by class, and always the same, so that scores can be compared between runs.

    Returns
    -------
    X_train, y_train, X_test, y_test : ndarrays
        X is float32 in [0, 1], (n, 64): the pixels of an image in row-major order; y is int64 in 0 ... 9, (n,).

    References
    ----------
    E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
    as bundled with scikit-learn (the test part of the data set, 1797 images).

    Examples
    --------
    >>> X_train, y_train, X_test, y_test = load_digits()
    >>> X_train.shape, X_test.shape
    ((1437, 64), (360, 64))
    """
    from sklearn.datasets import load_digits as bundled_digits  # importing scikit-learn takes a second
    from sklearn.model_selection import train_test_split

    X, y = bundled_digits(return_X_y=True)
    X = np.divide(X, 16).astype(np.float32)  # a grey value is the number of black pixels in a block of 4 x 4, 0 to 16
    X_train, X_test, y_train, y_test = train_test_split(X, y.astype(np.int64), test_size=0.2, stratify=y, random_state=0)
    return X_train, y_train, X_test, y_test
