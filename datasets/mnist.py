"""MNIST and Fashion-MNIST: four idx files each, 60,000 training and 10,000 test images of 28 x 28 grey values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from .files import read_data_file, search_folders
from .idx import parse_idx

Splits: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

SIDE, CLASSES = 28, 10

# --- the original files: their URLs and their SHA-256 (compressed, and not) -------------------------------------------
MNIST_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
MNIST_DIGESTS = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION_MNIST_MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # the authors' server; http is safe: the SHA-256 is checked
)
FASHION_MNIST_DIGESTS = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


# --- loaders ----------------------------------------------------------------------------------------------------------
def load_mnist(folder: str | os.PathLike[str] | None = None, download: bool = True, flat: bool = True) -> Splits:
    """MNIST handwritten digits: X_train (60000, 784), y_train (60000,), X_test (10000, 784), y_test (10000,).

    Parameters
    ----------
    folder : path, optional
        The folder of the four idx files, `train-images-idx3-ubyte.gz`, ..., or the same names without `.gz`. By default
        `$NUMBANET_DATA/mnist` if it has them, else `mnist` in numbanet's folder of the user's cache.
    download : bool, default True
        Download missing files (12 MB in all) to `folder`, or to the cache if `folder` is None.
    flat : bool, default True
        If True, X is (n, 784), as dense layers take it; else (n, 1, 28, 28), as convolutions take it.

    Returns
    -------
    X_train, y_train, X_test, y_test : ndarrays
        X is float32 in [0, 1], (n, 784) or (n, 1, 28, 28), pixels in row-major order; y is int64 in 0 ... 9, (n,).

    Raises
    ------
    FileNotFoundError
        If a file is missing, and `download` is False or no mirror delivers it.
    ValueError
        If a file is truncated, corrupt, or not the original.

    References
    ----------
    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document recognition",
    Proceedings of the IEEE 86(11), 1998, pages 2278-2324.

    Examples
    --------
    >>> X_train, y_train, X_test, y_test = load_mnist()  # doctest: +SKIP
    """
    return load_splits(search_folders("mnist", folder), MNIST_MIRRORS, MNIST_DIGESTS, download, flat)


def load_fashion_mnist(folder: str | os.PathLike[str] | None = None, download: bool = True, flat: bool = True) -> Splits:
    """Fashion-MNIST, images of clothes in MNIST's format: X_train (60000, 784), y_train, X_test (10000, 784), y_test.

    Classes 0 ... 9: T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot.

    Parameters
    ----------
    folder : path, optional
        The folder of the four idx files, `train-images-idx3-ubyte.gz`, ..., or the same names without `.gz`. By default
        `$NUMBANET_DATA/fashion-mnist` if it has them, else `fashion-mnist` in numbanet's folder of the user's cache.
    download : bool, default True
        Download missing files (31 MB in all) to `folder`, or to the cache if `folder` is None.
    flat : bool, default True
        If True, X is (n, 784), as dense layers take it; else (n, 1, 28, 28), as convolutions take it.

    Returns
    -------
    X_train, y_train, X_test, y_test : ndarrays
        X is float32 in [0, 1], (n, 784) or (n, 1, 28, 28), pixels in row-major order; y is int64 in 0 ... 9, (n,).

    Raises
    ------
    FileNotFoundError
        If a file is missing, and `download` is False or no mirror delivers it.
    ValueError
        If a file is truncated, corrupt, or not the original.

    References
    ----------
    H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning
    algorithms", arXiv:1708.07747, 2017.
    """
    return load_splits(search_folders("fashion-mnist", folder), FASHION_MNIST_MIRRORS, FASHION_MNIST_DIGESTS, download, flat)


def load_splits(
    folders: Sequence[os.PathLike[str]], mirrors: Sequence[str], digests: Mapping[str, str], download: bool, flat: bool = True
) -> Splits:
    """Find, check and parse the four files of a data set in MNIST's format."""
    splits: list[np.ndarray] = []
    for split in ("train", "t10k"):
        images, images_path = read_data_file(f"{split}-images-idx3-ubyte", folders, mirrors, digests, download)
        labels, labels_path = read_data_file(f"{split}-labels-idx1-ubyte", folders, mirrors, digests, download)
        X, y = pair(parse_idx(images, 3, images_path), parse_idx(labels, 1, labels_path), images_path, labels_path)
        splits += X if flat else X.reshape(-1, 1, SIDE, SIDE), y
    return tuple(splits)


def pair(images: np.ndarray, labels: np.ndarray, images_path: object, labels_path: object) -> tuple[np.ndarray, np.ndarray]:
    """Convert uint8 images (n, 28, 28) and labels (n,) to X float32 (n, 784) in [0, 1] and y int64 (n,).

    ValueError if the images have another size, if the lengths differ, or if a label is not in 0 ... 9.
    """
    if images.shape[1:] != (SIDE, SIDE):
        raise ValueError(f"{images_path}: images of {SIDE} x {SIDE} expected, found shape {images.shape}")
    if len(images) != len(labels):
        raise ValueError(
            f"{labels_path}: {len(images)} labels expected, one for each image of {images_path}, found {len(labels)}"
        )
    wrong = np.flatnonzero(labels >= CLASSES)
    if wrong.size:
        raise ValueError(f"{labels_path}: labels 0 to {CLASSES - 1} expected, found {labels[wrong[0]]} for image {wrong[0]}")
    X = np.divide(images.reshape(len(images), SIDE * SIDE), np.float32(255), dtype=np.float32)
    return X, labels.astype(np.int64)
