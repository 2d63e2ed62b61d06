"""Loaders: real formats parse to the right arrays, and anything damaged is refused by name, never half-loaded."""

import gzip
import hashlib
import http.client
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from numbanet.datasets.files import cache_folder, download_file, search_folders
from numbanet.datasets.idx import parse_idx
from numbanet.datasets.mnist import MNIST_DIGESTS, load_splits

import numbanet.datasets
from numbanet.datasets import load_digits, load_fashion_mnist, load_mnist

LOADERS = Path(numbanet.datasets.__path__[0])
DATA = os.environ.get("NUMBANET_DATA")
NAMES = [name for name in MNIST_DIGESTS if name.endswith(".gz")]
IMAGES, LABELS = NAMES[:2]


# --- small files in the real format -----------------------------------------------------------------------------------
def idx_bytes(array):
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def small_files(n_train=7, n_test=4, side=28):
    """Content of the four files, decompressed, by the name of the compressed file."""
    rng = np.random.default_rng(0)
    contents = []
    for n in (n_train, n_test):
        contents += [
            idx_bytes(rng.integers(0, 256, (n, side, side), dtype=np.uint8)),
            idx_bytes(rng.integers(0, 10, n, dtype=np.uint8)),
        ]
    return dict(zip(NAMES, contents, strict=True))


def write(folder, files):
    """Write name -> bytes, and return the digests under which these very files are accepted."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def write_small(folder, **sizes):
    return write(folder, {name: gzip.compress(content) for name, content in small_files(**sizes).items()})


def load_small(folder, digests, mirrors=()):
    return load_splits([folder], mirrors, digests, download=bool(mirrors))


# --- idx --------------------------------------------------------------------------------------------------------------
arrays = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))


@given(arrays)
def test_idx_round_trip(array):
    parsed = parse_idx(idx_bytes(array), array.ndim, "x")
    assert parsed.dtype == np.uint8 and parsed.shape == array.shape
    np.testing.assert_array_equal(parsed, array)


@given(arrays)
def test_idx_rejects_every_proper_prefix(array):
    content = idx_bytes(array)
    for length in range(len(content)):
        with pytest.raises(ValueError, match="file-name: truncated"):
            parse_idx(content[:length], array.ndim, "file-name")


@given(arrays, st.binary(min_size=1, max_size=4))
def test_idx_rejects_what_follows_the_values(array, extra):
    with pytest.raises(ValueError, match="file-name: too long"):
        parse_idx(idx_bytes(array) + extra, array.ndim, "file-name")


@given(arrays, st.integers(0, 2**32 - 1))
def test_idx_rejects_every_other_magic_number(array, magic):
    if magic != 0x0800 + array.ndim:
        with pytest.raises(ValueError, match=f"file-name: magic number {0x0800 + array.ndim} expected.*found {magic}"):
            parse_idx(struct.pack(">I", magic) + idx_bytes(array)[4:], array.ndim, "file-name")


# --- MNIST's format ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("compressed", [True, False])
def test_small_files_load(tmp_path, compressed):
    contents = small_files()
    digests = (
        write_small(tmp_path)
        if compressed
        else write(tmp_path, {name.removesuffix(".gz"): content for name, content in contents.items()})
    )
    arrays = load_small(tmp_path, digests)
    assert [a.shape for a in arrays] == [(7, 784), (7,), (4, 784), (4,)]
    assert [a.dtype for a in arrays] == [np.float32, np.int64] * 2
    for array, content, scale in zip(arrays, contents.values(), (255, 1) * 2, strict=True):
        expected = np.frombuffer(content[-array.size :], np.uint8).reshape(array.shape) / scale
        np.testing.assert_allclose(array, expected, rtol=1e-6)
    images = load_splits([tmp_path], (), digests, download=False, flat=False)
    assert [a.shape for a in images] == [(7, 1, 28, 28), (7,), (4, 1, 28, 28), (4,)]
    for image, row in zip(images, arrays, strict=True):
        np.testing.assert_array_equal(image.reshape(row.shape), row)


def repack(change):
    """A change of the idx bytes, inside a sound .gz."""
    return lambda packed: gzip.compress(change(gzip.decompress(packed)))


def with_label(value):
    return repack(lambda content: content[:10] + bytes([value]) + content[11:])


# What is wrong, the file it is in, the change, and what the message says. The digests are those of the damaged files:
# the parser must hold on its own, for it also reads what a wrong table of digests would let through.
DAMAGED = [
    ("gzip truncated", IMAGES, lambda packed: packed[:-100], "complete gzip file"),
    ("gzip truncated in its trailer", LABELS, lambda packed: packed[:-1], "complete gzip file"),
    ("gzip corrupt", IMAGES, lambda packed: packed[:10] + b"\xff" + packed[11:], "gzip file.*invalid block type"),
    ("gzip checksum wrong", LABELS, lambda packed: packed[:-8] + bytes(4) + packed[-4:], "gzip file"),
    ("not gzip", LABELS, lambda packed: b"<html>sign in to the network</html>", "gzip file.*Not a gzipped file"),
    ("idx empty", IMAGES, repack(lambda content: b""), "truncated: an idx header of 16 bytes expected, found 0"),
    ("idx truncated in its header", IMAGES, repack(lambda content: content[:15]), "header of 16 bytes.*found 15"),
    ("idx truncated", IMAGES, repack(lambda content: content[:-1]), r"truncated: 5504 bytes expected.*found 5503"),
    ("idx too long", LABELS, repack(lambda content: content + b"\0"), "too long: 15 bytes expected.*found 16"),
    (
        "labels given as images",
        IMAGES,
        lambda packed: gzip.compress(small_files()[LABELS]),
        "magic number 2051 expected.*found 2049, a file of labels",
    ),
    (
        "images given as labels",
        LABELS,
        lambda packed: gzip.compress(small_files()[IMAGES]),
        "magic number 2049 expected.*found 2051, a file of images",
    ),
    ("other type of value", IMAGES, repack(lambda content: b"\0\0\x0d" + content[3:]), "2051 expected.*found 3331"),
    (
        "other picture size",
        IMAGES,
        lambda packed: gzip.compress(small_files(side=27)[IMAGES]),
        r"28 x 28 expected, found shape \(7, 27, 27\)",
    ),
    (
        "labels of the other split",
        LABELS,
        lambda packed: gzip.compress(small_files()[NAMES[3]]),
        "7 labels expected.*train-images.*found 4",
    ),
    ("label 10", LABELS, with_label(10), "labels 0 to 9 expected, found 10 for image 2"),
    ("label 255", LABELS, with_label(255), "labels 0 to 9 expected, found 255 for image 2"),
]


@pytest.mark.parametrize("what, name, change, message", DAMAGED, ids=[case[0] for case in DAMAGED])
def test_damaged_file_is_refused_by_name(tmp_path, what, name, change, message):
    write_small(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    digests = write(tmp_path, files | {name: change(files[name])})
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / name))}: .*{message}"):
        load_small(tmp_path, digests)


@pytest.mark.parametrize("load", [load_mnist, load_fashion_mnist])
def test_wrong_digest_names_file_both_digests_and_way_out(tmp_path, load):
    found = write_small(tmp_path)[IMAGES]
    with pytest.raises(ValueError, match="expected, .*Delete it") as refused:
        load(folder=tmp_path)
    message = str(refused.value)
    assert str(tmp_path / IMAGES) in message and found in message


@pytest.mark.parametrize("load", [load_mnist, load_fashion_mnist])
def test_missing_file_names_file_folder_and_way_out(tmp_path, load):
    with pytest.raises(FileNotFoundError) as refused:
        load(folder=tmp_path, download=False)
    message = str(refused.value)
    assert IMAGES in message and str(tmp_path) in message and "NUMBANET_DATA" in message


# --- where files are looked for ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "platform, variable, usual",
    [
        ("linux", "XDG_CACHE_HOME", ".cache"),
        ("darwin", "XDG_CACHE_HOME", "Library/Caches"),
        ("win32", "LOCALAPPDATA", "AppData/Local"),
    ],
)
def test_cache_folder(tmp_path, monkeypatch, platform, variable, usual):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv(variable, raising=False)
    assert cache_folder() == tmp_path / usual / "numbanet"
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere" / "numbanet"


def test_search_order(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBANET_DATA", raising=False)
    assert search_folders("mnist") == [cache_folder() / "mnist"]
    monkeypatch.setenv("NUMBANET_DATA", str(tmp_path))
    assert search_folders("mnist") == [tmp_path / "mnist", cache_folder() / "mnist"]
    assert search_folders("mnist", tmp_path / "mine") == [tmp_path / "mine"]


# --- download ---------------------------------------------------------------------------------------------------------
class Dying(io.BytesIO):
    """A response that delivers half of its content, then raises `error`, or just ends if that is None."""

    def __init__(self, content, error):
        super().__init__(content[: len(content) // 2])
        self.error = error

    def read(self, *size):
        if block := super().read(*size):
            return block
        if self.error is not None:
            raise self.error
        return b""


def test_download_from_the_first_mirror_that_delivers(tmp_path):
    """The first mirror has nothing, the second a wrong file, the third the right one."""
    digests = write_small(tmp_path / "good")
    write_small(tmp_path / "wrong", n_train=3)
    mirrors = [(tmp_path / name).as_uri() + "/" for name in ("none", "wrong", "good")]
    cache = tmp_path / "cache" / "mnist"
    X_train, *_ = load_small(cache, digests, mirrors)
    assert X_train.shape == (7, 784)
    assert sorted(path.name for path in cache.iterdir()) == sorted(NAMES)
    assert {name: hashlib.sha256((cache / name).read_bytes()).hexdigest() for name in NAMES} == digests


def test_only_missing_files_are_downloaded(tmp_path, capsys):
    digests = write_small(tmp_path / "good")
    cache = tmp_path / "cache"
    shutil.copytree(tmp_path / "good", cache)
    (cache / LABELS).unlink()
    load_small(cache, digests, [(tmp_path / "good").as_uri() + "/"])
    messages = capsys.readouterr().err
    assert [name for name in NAMES if name in messages] == [LABELS]


@pytest.mark.parametrize(
    "error, raised",
    [
        (ConnectionResetError("reset"), FileNotFoundError),
        (TimeoutError("timed out"), FileNotFoundError),
        (http.client.IncompleteRead(b""), FileNotFoundError),
        (None, FileNotFoundError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (MemoryError(), MemoryError),
    ],
    ids=lambda case: getattr(case, "__name__", repr(case)),
)
def test_partial_download_leaves_nothing(tmp_path, monkeypatch, error, raised):
    content = gzip.compress(small_files()[IMAGES])
    urls = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: urls.append(url) or Dying(content, error))
    mirrors = ["https://one.invalid/", "https://two.invalid/"]
    with pytest.raises(raised) as refused:
        download_file(IMAGES, tmp_path, mirrors, hashlib.sha256(content).hexdigest())
    assert list(tmp_path.iterdir()) == []
    if raised is FileNotFoundError:
        assert urls == [mirror + IMAGES for mirror in mirrors]
        assert all(text in str(refused.value) for text in [*urls, IMAGES, str(tmp_path), "NUMBANET_DATA"])
    else:
        assert urls == [mirrors[0] + IMAGES]


# --- the loaders themselves -------------------------------------------------------------------------------------------
def test_digits():
    np.random.seed(1)  # noqa: NPY002  the split must not depend on the global generator
    first = load_digits()
    np.random.seed(2)  # noqa: NPY002
    for array, again in zip(first, load_digits(), strict=True):
        np.testing.assert_array_equal(array, again)
    X_train, y_train, X_test, y_test = first
    assert [a.shape for a in first] == [(1437, 64), (1437,), (360, 64), (360,)]
    assert [a.dtype for a in first] == [np.float32, np.int64] * 2
    for X in (X_train, X_test):
        assert X.min() == 0 and X.max() == 1
    train, test = np.bincount(y_train), np.bincount(y_test)
    assert len(train) == len(test) == 10
    assert np.all(np.abs(test - 0.2 * (train + test)) <= 1), "stratified: a fifth of every class"
    assert len(np.unique(np.concatenate([X_train, X_test]), axis=0)) == 1797, "no image is in both parts"


def needs(name):
    present = DATA is not None and all(Path(DATA, name, file).is_file() for file in NAMES)
    return pytest.mark.skipif(
        not present, reason=f"the four files of {name} are not in $NUMBANET_DATA/{name}, and tests download nothing"
    )


MNIST_COUNTS = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
REAL = [  # loader, first training labels, images of each class in both splits, mean training pixel (as published)
    pytest.param(load_mnist, [5, 0, 4, 1, 9], MNIST_COUNTS, 0.1307, marks=needs("mnist"), id="mnist"),
    pytest.param(
        load_fashion_mnist,
        [9, 0, 0, 3, 0],
        ([6000] * 10, [1000] * 10),
        0.2860,
        marks=needs("fashion-mnist"),
        id="fashion-mnist",
    ),
]


@pytest.mark.parametrize("load, first_labels, counts, mean", REAL)
def test_real_data(load, first_labels, counts, mean):
    X_train, y_train, X_test, y_test = load(download=False)
    assert [a.shape for a in (X_train, y_train, X_test, y_test)] == [(60000, 784), (60000,), (10000, 784), (10000,)]
    assert X_train.dtype == X_test.dtype == np.float32 and y_train.dtype == y_test.dtype == np.int64
    assert X_train.min() == X_test.min() == 0 and X_train.max() == X_test.max() == 1
    assert y_train[:5].tolist() == first_labels
    assert (np.bincount(y_train).tolist(), np.bincount(y_test).tolist()) == counts
    assert X_train.mean(dtype=np.float64) == pytest.approx(mean, abs=5e-5)


# --- the shim ---------------------------------------------------------------------------------------------------------
def run_python(code, folder):
    """Run `code` with `folder` first on the path, away from this checkout."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)


def copy_shim(folder):
    write(folder / "numbanet", {"__init__.py": b""})
    shutil.copy(numbanet.datasets.__file__, folder / "numbanet")


@pytest.mark.parametrize("loaders_at", ["numbanet/datasets", "datasets"], ids=["wheel", "checkout"])
@pytest.mark.slow
def test_shim_finds_the_loaders(tmp_path, loaders_at):
    """As installed, next to Hugging Face's `datasets`; and in a checkout."""
    copy_shim(tmp_path)
    shutil.copytree(LOADERS, tmp_path / loaders_at, ignore=shutil.ignore_patterns("__pycache__"))
    if loaders_at == "numbanet/datasets":
        write(tmp_path / "datasets", {"__init__.py": b"raise ImportError('this is not ours')"})
    result = run_python(
        "import numbanet.datasets as d, numbanet.datasets.idx as i\n"
        "print(d.__file__, i.__file__, len(d.load_digits()[0]), sep='\\n')",
        tmp_path,
    )
    assert result.stdout.split("\n")[:3] == [
        str(tmp_path / "numbanet" / "datasets.py"),
        str(tmp_path / loaders_at / "idx.py"),
        "1437",
    ], result.stderr


def test_shim_without_loaders_says_where_it_looked(tmp_path):
    """Only Hugging Face's `datasets` is there: it must not be taken for the loaders."""
    copy_shim(tmp_path)
    write(tmp_path / "datasets", {"__init__.py": b""})
    result = run_python("import numbanet.datasets", tmp_path)
    assert result.returncode != 0 and "ImportError: numbanet.datasets: its loaders are neither in" in result.stderr


def test_import_is_lean(tmp_path):
    """Importing the loaders loads neither scikit-learn, nor the network, nor the rest of numbanet."""
    shutil.copytree(LOADERS, tmp_path / "alone", ignore=shutil.ignore_patterns("__pycache__"))
    result = run_python(
        "import sys, alone.digits, alone.mnist, alone.cifar10\n"
        "print(*sorted({'sklearn', 'urllib.request', 'http.client', 'numba', 'numbanet',"
        " 'numbanet_kernels'} & set(sys.modules)), end='')",
        tmp_path,
    )
    assert (result.stdout, result.returncode) == ("", 0), result.stderr


def test_loaders_folder_is_not_a_package():
    assert not (LOADERS / "__init__.py").exists(), "in a checkout it would hide Hugging Face's `datasets`"
