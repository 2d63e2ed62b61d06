"""CIFAR-10: both versions parse to the same arrays; what is damaged or would run code is refused by name."""

import gzip
import hashlib
import io
import os
import pickle
import re
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numbanet.datasets.cifar10 import RECORD, TEST, TRAINING, parse_python, parse_records, read_archive
from numbanet.datasets.pickles import parse_pickle

from numbanet.datasets import CIFAR10_CLASSES, load_cifar10

DATA = os.environ.get("NUMBANET_DATA")


# --- small files in the real formats ----------------------------------------------------------------------------------
def arrays(seed=0, n=3):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, RECORD - 1), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8)


def records(images, labels):
    return np.concatenate([np.uint8(labels)[:, None], images], 1).tobytes()


def string(text):
    return b"U" + bytes([len(text)]) + text


def integer(n):
    return b"K" + bytes([n]) if 0 <= n < 256 else b"J" + struct.pack("<i", n)


def pickled_array(values, dtype=b"u1", order=b"\x89", shape=None):
    """As Python 2 and the NumPy of its time write it."""
    sizes = b"".join(map(integer, shape or values.shape))
    return (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85U\x01b\x87Rq\x08(K\x01"
        + sizes
        + b"\x86cnumpy\ndtype\nq\x09"
        + string(dtype)
        + b"K\x00K\x01\x87Rq\x0a(K\x03U\x01|NNN"
        + 2 * integer(-1)
        + b"K\x00tb"
        + order
        + b"T"
        + struct.pack("<i", values.nbytes)
        + values.tobytes()
        + b"tb"
    )


def python_batch(images, labels, data=None, extra=b""):
    """A batch of the Python version, with the instructions of the official ones."""
    listed = b"]q\x05(" + b"".join(map(integer, map(int, labels))) + b"e"
    names = b"]q\x0b(" + b"".join(string(b"%d.png" % i) + b"r" + struct.pack("<i", 300 + i) for i in range(len(labels))) + b"e"
    return (
        b"\x80\x02}q\x01("
        + string(b"batch_label")
        + b"q\x02"
        + string(b"training batch 1 of 5")
        + b"q\x03"
        + string(b"labels")
        + b"q\x04"
        + listed
        + string(b"data")
        + (data or pickled_array(images))
        + string(b"filenames")
        + names
        + extra
        + b"u."
    )


VERSIONS = {".bin": records, ".bin.gz": lambda *batch: gzip.compress(records(*batch)), "": python_batch}
BATCHES = st.integers(1, 4).flatmap(lambda n: st.integers(0, 2**32 - 1).map(lambda seed: arrays(seed, n)))


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


# --- both parsers -----------------------------------------------------------------------------------------------------
PARSERS = pytest.mark.parametrize("parse, made", [(parse_records, records), (parse_python, python_batch)])


@PARSERS
@given(batch=BATCHES)
def test_round_trip(parse, made, batch):
    for found, expected in zip(parse(made(*batch), "x"), batch, strict=True):
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected)


@PARSERS
@given(batch=BATCHES, data=st.data())
def test_what_is_cut_off_or_goes_on_is_refused(parse, made, batch, data):
    content = made(*batch)
    length = data.draw(st.integers(0, len(content) - 1).filter(lambda n: n % RECORD or parse is parse_python))
    for damaged in (content[:length], content + data.draw(st.binary(min_size=1, max_size=9))):
        with pytest.raises(ValueError, match="^file-name: .*expected.*found"):
            parse(damaged, "file-name")


@given(batch=BATCHES, data=st.data())
def test_any_change_of_a_pickle_is_read_or_refused(batch, data):
    """No other error, and nothing but pixels and labels comes out."""
    content = bytearray(python_batch(*batch))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 400) | st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        images, labels = parse_python(bytes(content), "file-name")
    except ValueError as error:
        assert str(error).startswith("file-name: ")
    else:
        assert images.dtype == labels.dtype == np.uint8 and images.shape == (len(labels), 3072) and labels.max() <= 9


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_data_or_refused(content):
    for damaged in (content, b"\x80\x02" + content + b"."):
        try:
            parse_pickle(damaged, "file-name")
        except ValueError as error:
            assert str(error).startswith("file-name: ")


def test_the_pickles_here_are_pickles():
    """Python's own unpickler, given a file of ours, finds the same."""
    images, labels = arrays()
    found = pickle.loads(python_batch(images, labels), encoding="bytes")
    np.testing.assert_array_equal(found[b"data"], images)
    assert found[b"labels"] == labels.tolist() and found[b"filenames"] == [b"0.png", b"1.png", b"2.png"]


# --- pickles that would run code --------------------------------------------------------------------------------------
class Mkdir:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def call(folder):
    """The instructions that call os.mkdir, to stand for a value."""
    return b"c" + os.mkdir.__module__.encode() + b"\nmkdir\n" + string(str(folder).encode()) + b"\x85R"


MALICIOUS = {
    **{f"protocol {n}": lambda folder, n=n: pickle.dumps(Mkdir(folder), n) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
    "beside the data": lambda folder: python_batch(*arrays(), extra=string(b"more") + call(folder)),
    "in place of the data": lambda folder: python_batch(*arrays(), data=call(folder)),
    "before the data": lambda folder: b"\x80\x02" + call(folder) + b"0" + python_batch(*arrays())[2:],
}


@pytest.mark.parametrize("made", MALICIOUS.values(), ids=MALICIOUS)
def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(tmp_path, made):
    write(tmp_path, {"data_batch_1": made(tmp_path / "ran"), TEST: python_batch(*arrays())})
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / 'data_batch_1'))}: a pickle of plain data.*, found"):
        load_cifar10(tmp_path, download=False)
    assert not (tmp_path / "ran").exists()
    pickle.loads(made(tmp_path / "ran"), encoding="bytes")  # and it would have
    assert (tmp_path / "ran").exists()


# --- loading ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("place", ["", "cifar-10-batches-bin", "cifar-10-batches-py"])
@pytest.mark.parametrize("ending", VERSIONS)
def test_the_batches_that_are_there_load(tmp_path, ending, place):
    batches = {"data_batch_2": arrays(2), "data_batch_5": arrays(5, n=4), TEST: arrays(9, n=2)}
    write(tmp_path / place, {name + ending: VERSIONS[ending](*batch) for name, batch in batches.items()})
    found = load_cifar10(tmp_path, download=False)
    assert [(a.shape, a.dtype) for a in found] == [
        ((7, 3, 32, 32), np.float32),
        ((7,), np.int64),
        ((2, 3, 32, 32), np.float32),
        ((2,), np.int64),
    ]
    images, labels = zip(*batches.values(), strict=True)
    np.testing.assert_allclose(np.concatenate(found[::2]).reshape(9, -1), np.concatenate(images) / 255, rtol=1e-6)
    np.testing.assert_array_equal(np.concatenate(found[1::2]), np.concatenate(labels))
    for image, row in zip(found[::2], load_cifar10(tmp_path, download=False, flat=True)[::2], strict=True):
        np.testing.assert_array_equal(row, image.reshape(-1, 3072))


def test_the_first_folder_with_batches_is_the_one(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBANET_DATA", str(tmp_path / "shared"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    write(tmp_path / "cache/numbanet/cifar10", {f"{name}.bin": records(*arrays(n=4)) for name in (*TRAINING, TEST)})
    assert len(load_cifar10(download=False)[0]) == 20
    write(tmp_path / "shared/cifar10", {f"{name}.bin": records(*arrays()) for name in (TRAINING[3], TEST)})
    assert len(load_cifar10(download=False)[0]) == 3


def archive(batches, folder="cifar-10-batches-bin"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        for name, content in batches.items():
            member = tarfile.TarInfo(f"{folder}/{name}.bin")
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return packed.getvalue()


ARCHIVE = "cifar-10-binary.tar.gz"
WHOLE = {name: records(*arrays(seed)) for seed, name in enumerate((*TRAINING, TEST))}


def test_the_archive_is_downloaded_and_read(tmp_path):
    write(tmp_path / "mirror", {ARCHIVE: archive(WHOLE)})
    digests = {ARCHIVE: hashlib.sha256((tmp_path / "mirror" / ARCHIVE).read_bytes()).hexdigest()}
    for mirrors in ([(tmp_path / "mirror").as_uri() + "/"], []):
        parts = read_archive([tmp_path / "cache"], mirrors, digests, download=bool(mirrors))
        assert {name: records(*part) for name, part in parts.items()} == WHOLE
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [ARCHIVE]


@pytest.mark.parametrize(
    "content, message",
    [
        (archive({name: WHOLE[name] for name in TRAINING}), "cifar-10-batches-bin/ expected.*test_batch.bin"),
        (archive(WHOLE, folder="elsewhere"), "cifar-10-batches-bin/ expected"),
        (gzip.compress(b"no archive" * 100), "a tar file"),
        (
            archive({**WHOLE, TRAINING[2]: b"short"}),
            f"data_batch_3.bin: truncated.*records of {RECORD} bytes expected, found 5",
        ),
    ],
    ids=["a file is missing", "another folder", "no archive", "a short file"],
)
def test_a_wrong_archive_is_refused_by_name(tmp_path, content, message):
    write(tmp_path, {ARCHIVE: content})
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / ARCHIVE))}: .*{message}"):
        read_archive([tmp_path], [], {ARCHIVE: hashlib.sha256(content).hexdigest()}, download=False)
    with pytest.raises(ValueError, match="SHA-256 c4a38c.* expected, found"):
        load_cifar10(tmp_path, download=False)


# --- what is refused --------------------------------------------------------------------------------------------------
IMAGES, LABELS = arrays()
DAMAGED = [  # what is wrong, the file's ending, its content, what the message says
    ("empty", ".bin", b"", "records of 3073 bytes expected, found 0"),
    ("cut off", ".bin", records(IMAGES, LABELS)[:-1], "truncated.*found 9218 bytes"),
    ("label 10", ".bin", records(IMAGES, [3, 10, 4]), "labels 0 to 9 expected, found 10 for image 1"),
    ("gzip cut off", ".bin.gz", gzip.compress(records(IMAGES, LABELS))[:-9], "complete gzip file expected"),
    ("no gzip", ".bin.gz", records(IMAGES, LABELS), "complete gzip file expected"),
    ("gzip of something else", ".bin.gz", gzip.compress(b"<html>"), "records of 3073 bytes expected, found 6"),
    ("no pickle", "", records(IMAGES, LABELS), "a pickle of plain data"),
    ("pickle of a list", "", b"\x80\x02].", "a dict with 'data' and 'labels' expected, found list"),
    ("batches.meta", "", b"\x80\x02}(U\x05namesK\x03u.", r"'data' and 'labels' expected, found \['names'\]"),
    ("pickle of CIFAR-100", "", python_batch(IMAGES, LABELS).replace(b"\x06labels", b"\x0bfine_labels"), "fine_labels"),
    ("label -1", "", python_batch(IMAGES, [3, 4, -1]), "labels 0 to 9 expected, found -1 for image 2"),
    ("too few labels", "", python_batch(IMAGES, [3, 4]), r"'data' of shape \(2, 3072\) expected.*found \(3, 3072\)"),
    ("no labels", "", python_batch(IMAGES[:0], []), "'labels' must be"),
    (
        "labels that are strings",
        "",
        python_batch(IMAGES, LABELS).replace(b"labelsq\x04]q\x05(", b"labelsq\x04]q\x05(U\x01x"),
        "'labels' must be a list of integers",
    ),
    ("data that are numbers", "", python_batch(IMAGES, LABELS, data=b"K\x03"), "an array of uint8.*found int"),
    ("floats", "", python_batch(IMAGES, LABELS, data=pickled_array(IMAGES, b"f4")), "an array of uint8"),
    ("objects", "", python_batch(IMAGES, LABELS, data=pickled_array(IMAGES, b"O8")), "an array of uint8"),
    ("Fortran order", "", python_batch(IMAGES, LABELS, data=pickled_array(IMAGES, order=b"\x88")), "an array of uint8 in C"),
    ("another shape", "", python_batch(IMAGES, LABELS, data=pickled_array(IMAGES, shape=(3, 3071))), r"\(3, 3071\) expected"),
    ("a negative length", "", python_batch(IMAGES, LABELS, data=pickled_array(IMAGES, shape=(-3, -3072))), "found 9216"),
]


@pytest.mark.parametrize("what, ending, content, message", DAMAGED, ids=[case[0] for case in DAMAGED])
def test_damaged_file_is_refused_by_name(tmp_path, what, ending, content, message):
    write(tmp_path, {f"data_batch_1{ending}": content, f"{TEST}.bin": records(*arrays())})
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / f'data_batch_1{ending}'))}: .*{message}"):
        load_cifar10(tmp_path, download=False)


@pytest.mark.parametrize(
    "there, message",
    [
        ([], "data_batch_1.bin.gz.*cifar-10-binary.tar.gz is missing"),
        ([TEST], "test_batch.bin but not data_batch_1.bin.gz"),
        ([TRAINING[1]], "data_batch_2.bin but not test_batch.bin.gz"),
    ],
)
def test_what_is_missing_is_named_with_its_home(tmp_path, there, message):
    write(tmp_path, {f"{name}.bin": records(*arrays()) for name in there})
    with pytest.raises(FileNotFoundError, match=message) as refused:
        load_cifar10(tmp_path, download=False)
    assert str(tmp_path) in str(refused.value) and "https://www.cs.toronto.edu/~kriz/cifar.html" in str(refused.value)


# --- the data themselves ----------------------------------------------------------------------------------------------
@pytest.mark.skipif(DATA is None or not Path(DATA, "cifar10").is_dir(), reason="there is no $NUMBANET_DATA/cifar10")
@pytest.mark.slow
def test_real_data():
    X_train, y_train, X_test, y_test = load_cifar10(download=False)
    assert np.bincount(y_train).tolist() == [len(y_train) // 10] * 10 and len(y_train) % 10000 == 0
    assert X_train.shape == (len(y_train), 3, 32, 32) and X_test.shape == (len(y_test), 3, 32, 32)
    assert [CIFAR10_CLASSES[label] for label in y_train[:5]] == ["frog", "truck", "truck", "deer", "automobile"]
    assert [CIFAR10_CLASSES[label] for label in y_test[:4]] == ["cat", "ship", "ship", "airplane"]
    np.testing.assert_allclose(255 * X_train[0, :, 0, 0], [59, 62, 63], rtol=1e-6)  # red, green, blue
    np.testing.assert_allclose(X_train.mean((0, 2, 3)), [0.4914, 0.4822, 0.4465], atol=5e-3)  # as published for all 50,000
    np.testing.assert_allclose(X_train.std((0, 2, 3)), [0.2470, 0.2435, 0.2616], atol=5e-3)
