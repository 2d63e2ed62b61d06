"""CIFAR-10: six batches of 10,000 colour images of 32 x 32 pixels, from the official binary or Python version.

Both versions store an image as 3072 bytes: 32 x 32 red values in row-major order, then the green and the blue values.

    binary    data_batch_1.bin ... data_batch_5.bin, test_batch.bin: records of one label and the image, 3073 bytes
    Python    data_batch_1 ... data_batch_5, test_batch: pickles of a dict with `data` (n, 3072) uint8 and `labels`
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .files import read_data_file, read_file, search_folders
from .mnist import Splits
from .pickles import parse_pickle, uint8_array

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE, RECORD = (3, 32, 32), 1 + 3 * 32 * 32

TRAINING, TEST = [f"data_batch_{number}" for number in range(1, 6)], "test_batch"
ENDINGS = (".bin.gz", ".bin", "")  # tried in this order; files of the Python version have no ending
PLACES = ("", "cifar-10-batches-bin", "cifar-10-batches-py")  # subfolders; the official archives unpack to the last two

# --- the official archive: its URL and its SHA-256 --------------------------------------------------------------------
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
CIFAR10_MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR10_DIGESTS = {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"}


# --- loader -----------------------------------------------------------------------------------------------------------
def load_cifar10(folder: str | os.PathLike[str] | None = None, download: bool = True, flat: bool = False) -> Splits:
    """CIFAR-10, colour images of ten classes: X_train (50000, 3, 32, 32), y_train, X_test (10000, 3, 32, 32), y_test.

    The names of classes 0 ... 9 are in `CIFAR10_CLASSES`: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.

    Parameters
    ----------
    folder : path, optional
        A folder with the batches of the binary version (`data_batch_1.bin`, ..., `test_batch.bin`, or the same names with
        `.gz`), those of the Python version (`data_batch_1`, ..., `test_batch`), or the archive `cifar-10-binary.tar.gz`. The
        batches may also be in its subfolder `cifar-10-batches-bin` or `cifar-10-batches-py`. Training batches may be missing,
        but not all of them. By default `$NUMBANET_DATA/cifar10` if it has such files, else `cifar10` in numbanet's folder of
        the user's cache.
    download : bool, default True
        If no file is found, download the official archive (170 MB) to `folder`, or to the cache if `folder` is None.
    flat : bool, default False
        If True, X is (n, 3072), as scikit-learn's estimators take it; else (n, 3, 32, 32), as convolutions take it.

    Returns
    -------
    X_train, y_train, X_test, y_test : ndarrays
        X is float32 in [0, 1], (n, 3, 32, 32) or (n, 3072), with the channels red, green, blue; y is int64 in 0 ... 9, (n,).

    Raises
    ------
    FileNotFoundError
        If a file is missing, and `download` is False or no mirror delivers it.
    ValueError
        If a file is truncated, corrupt, or not a batch of CIFAR-10. Pickles are parsed as data: no code in them is run.

    References
    ----------
    A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

    Examples
    --------
    >>> X_train, y_train, X_test, y_test = load_cifar10()  # doctest: +SKIP
    """
    folders = search_folders("cifar10", folder)
    batches = find_batches(folders)
    parts = {batch: read_batch(path) for batch, path in batches.items()} or read_archive(
        folders, CIFAR10_MIRRORS, CIFAR10_DIGESTS, download
    )
    splits: list[np.ndarray] = []
    for names in (TRAINING, [TEST]):
        images, labels = (np.concatenate(arrays) for arrays in zip(*(parts[name] for name in names if name in parts)))
        X = np.divide(images, np.float32(255), dtype=np.float32)
        splits += X if flat else X.reshape(-1, *SHAPE), labels.astype(np.int64)
    return tuple(splits)


# --- find and read batches --------------------------------------------------------------------------------------------
def find_batches(folders: Sequence[Path]) -> dict[str, Path]:
    """The files of the first folder that has any batch, by name of batch; an empty dict if no folder has one.

    Raises
    ------
    FileNotFoundError
        If this folder has no training batch, or no test batch.
    """
    for place in (folder / name for folder in folders for name in PLACES):
        files = {
            batch: place / f"{batch}{ending}"
            for ending in ENDINGS[::-1]
            for batch in (*TRAINING, TEST)
            if (place / f"{batch}{ending}").is_file()
        }
        if files and (TEST not in files or len(files) == 1):
            missing = TRAINING[0] if TEST in files else TEST
            raise FileNotFoundError(
                f"{place} has {', '.join(sorted(path.name for path in files.values()))} but not "
                f"{missing}.bin.gz (or {missing}.bin, or {missing} of the Python version). "
                f"The official files come from {HOME}"
            )
        if files:
            return files
    return {}


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a batch of either version: uint8 images (n, 3072), uint8 labels (n,)."""
    content = read_file(path)
    return parse_records(content, path) if ".bin" in path.suffixes else parse_python(content, path)


def read_archive(
    folders: Sequence[Path], mirrors: Sequence[str], digests: Mapping[str, str], download: bool
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Find or download the official archive, and read its batches, by name; nothing is unpacked to disk."""
    try:
        content, path = read_data_file("cifar-10-binary.tar", folders, mirrors, digests, download)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"CIFAR-10: found neither batches, such as {TRAINING[0]}.bin.gz, nor their archive: {error}. "
            f"The official files come from {HOME}"
        ) from error
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for batch in (*TRAINING, TEST):
                member = f"{PLACES[1]}/{batch}.bin"
                found[batch] = parse_records(archive.extractfile(member).read(), f"{path}: {member}")
    except (tarfile.TarError, LookupError) as error:
        raise ValueError(f"{path}: a tar file with {PLACES[1]}/ expected, found {len(content)} bytes: {error}") from error
    return found


# --- parse a batch ----------------------------------------------------------------------------------------------------
def parse_records(content: bytes, source: object) -> tuple[np.ndarray, np.ndarray]:
    """Parse a batch of the binary version: read-only uint8 images (n, 3072), labels (n,).

    Raises
    ------
    ValueError
        If the length is not a positive multiple of the 3073 bytes of a record, or if a label is not in 0 ... 9.
    """
    if not content or len(content) % RECORD:
        raise ValueError(
            f"{source}: truncated, or not a batch of CIFAR-10: records of {RECORD} bytes expected, found "
            f"{len(content)} bytes, {len(content) % RECORD} more than {len(content) // RECORD} records"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return records[:, 1:], _checked(records[:, 0], source)


def parse_python(content: bytes, source: object) -> tuple[np.ndarray, np.ndarray]:
    """Parse a batch of the Python version: read-only uint8 images (n, 3072), labels (n,).

    Raises
    ------
    ValueError
        If `content` is not a pickled dict whose `data` and `labels` have equal lengths, or if a label is not in 0 ... 9.
    """
    batch = parse_pickle(content, source)
    if not isinstance(batch, dict) or not {"data", "labels"} <= batch.keys():
        found = sorted(batch) if isinstance(batch, dict) else type(batch).__name__
        raise ValueError(f"{source}: a dict with 'data' and 'labels' expected, found {found}")
    images, labels = uint8_array(batch["data"], source), batch["labels"]
    if not isinstance(labels, list) or not labels or not all(type(label) is int for label in labels):
        raise ValueError(f"{source}: 'labels' must be a list of integers, at least one")
    if images.shape != (len(labels), RECORD - 1):
        raise ValueError(
            f"{source}: 'data' of shape {(len(labels), RECORD - 1)} expected, because there are {len(labels)} labels, "
            f"found {images.shape}"
        )
    return images, _checked(np.array(labels), source)


def _checked(labels: np.ndarray, source: object) -> np.ndarray:
    """The labels as uint8; ValueError if one is not in 0 ... 9."""
    wrong = np.flatnonzero((labels < 0) | (labels >= len(CIFAR10_CLASSES)))
    if wrong.size:
        raise ValueError(
            f"{source}: labels 0 to {len(CIFAR10_CLASSES) - 1} expected, found {labels[wrong[0]]} for image {wrong[0]}"
        )
    return labels.astype(np.uint8)
