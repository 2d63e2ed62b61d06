"""Memory-mapped samples: the same results as in memory, memory that does not grow with the file, and bad files."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numbanet import Net, NetRegressor
from numbanet.dropout import RowSensitiveDropout
from numbanet.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU
from numbanet.training.augment import FlipsAndCrops
from numbanet.training.large import mapped, rows

ROOT = Path(__file__).parents[2]
N, FEATURES = 700, 64


@pytest.fixture(autouse=True)
def small_files_count_as_large(monkeypatch):
    monkeypatch.setattr(rows, "LEAST", 1)
    monkeypatch.setattr(mapped, "FEW", 100)
    monkeypatch.setattr(rows, "CHUNK", 1 << 14)


def stored(path, array):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.fixture
def samples(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, FEATURES)).astype(np.float32)
    y = np.argmax(X[:, :4] + rng.standard_normal((N, 4)), 1)
    return X, stored(tmp_path / "X.npy", X), y


def convolutions():
    return [Conv2d(1, 16, 3, padding=1, rng=0), ReLU(), MaxPool2d(2), Flatten(), Linear(256, 4, rng=1)]


BASE = {"epochs": 2, "batch_size": 50, "random_state": 0, "device": "cpu"}
NETS = {
    "sgd": lambda: Net((32,), **BASE),
    "rdp": lambda: Net((32, 32), **BASE, dropout="rdp", optimizer="adam"),
    "tdp": lambda: Net((64, 64), **BASE, dropout="tdp"),
    "stopping": lambda: Net((32,), **BASE, early_stopping=True, dropout="batchwise"),
    "scoring": lambda: Net((32,), **BASE, early_stopping=True, scoring="balanced_accuracy"),
    "images": lambda: Net(convolutions(), **BASE, image_shape=(1, 8, 8), augment=FlipsAndCrops(1)),
    "rsdp": lambda: Net(convolutions(), **BASE, image_shape=(1, 8, 8), dropout=RowSensitiveDropout(0.5)),
}


def assert_equal(net, other):
    for name, array in net.model_.state_dict().items():
        np.testing.assert_array_equal(other.model_.state_dict()[name], array, err_msg=name)
    for ours, theirs in zip(net.history_, other.history_, strict=True):
        for name in ours.keys() - {"seconds"}:
            np.testing.assert_equal(theirs[name], ours[name], err_msg=name)


@pytest.mark.parametrize("name", NETS)
def test_a_map_trains_and_predicts_as_memory_does(name, samples):
    X, file, y = samples
    weights = np.linspace(1, 2, N) if name == "rdp" else None
    net, other = NETS[name]().fit(X, y, weights), NETS[name]().fit(file, y, weights)
    assert_equal(net, other)
    np.testing.assert_array_equal(other.predict(file), net.predict(X))
    assert other.score(file, y) == net.score(X, y)
    net.partial_fit(X, y), other.partial_fit(file, y)
    assert_equal(net, other)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float64, bool])
def test_numbers_are_converted_batch_by_batch(dtype, samples, tmp_path):
    X, y = (np.abs(samples[0]) * 9).astype(dtype), samples[2]
    file = stored(tmp_path / "other.npy", X)
    assert_equal(NETS["sgd"]().fit(X, y), NETS["sgd"]().fit(file, y))


def test_regression_and_validation(samples):
    X, file, _ = samples
    y = X[:, 0] * 3 + 1
    net, other = (NetRegressor((16,), **BASE).fit(some[:500], y[:500], validation=(some[500:], y[500:])) for some in (X, file))
    assert_equal(net, other)


@pytest.mark.parametrize(
    "view",
    [lambda X: X[100:600], lambda X: X[::2], lambda X: X[:, ::2], lambda X: X[:, 3:40], lambda X: X[::-1]],
    ids=["rows", "every other row", "every other column", "columns", "backwards"],
)
def test_views_of_a_map(view, samples):
    X, file, y = samples
    rows = np.array([3, 3, 1, 200])
    np.testing.assert_array_equal(mapped.Mapped(view(file))[rows], view(X)[rows])
    np.testing.assert_array_equal(np.concatenate(list(mapped.Mapped(view(file)).chunks())), view(X))
    np.testing.assert_array_equal(np.concatenate(list(mapped.Mapped(view(file)).chunks(3))), view(X)[::3])


def test_the_file_of_a_map_is_closed_with_it(samples):
    _, file, _ = samples
    own = mapped.Mapped(file)
    opened = own.file
    assert not opened.closed
    del own
    assert opened.closed


def test_a_file_with_an_offset_a_copy_on_write_map_and_a_replaced_file(samples, tmp_path):
    X, file, _ = samples
    X.tofile(tmp_path / "raw")
    raw = np.memmap(tmp_path / "raw", np.float32, "r", offset=5 * 4 * FEATURES, shape=(600, FEATURES))
    rows = np.arange(0, 600, 7)
    np.testing.assert_array_equal(mapped.Mapped(raw)[rows], X[5:605][rows])
    own = np.load(tmp_path / "X.npy", mmap_mode="c")
    own[3] = 7
    assert (mapped.Mapped(own)[np.array([3])] == 7).all() and (own[3] == 7).all()
    (tmp_path / "X.npy").unlink()
    np.save(tmp_path / "X.npy", X[::-1].copy())  # another file of this name
    found = mapped.Mapped(file)
    assert found.file is None
    np.testing.assert_array_equal(found[rows], X[rows])


def test_a_file_that_becomes_shorter_is_named(samples, tmp_path):
    found = mapped.Mapped(samples[1])
    with open(tmp_path / "X.npy", "r+b") as file:
        file.truncate(10_000)
    with pytest.raises(OSError, match=r"X\.npy has become shorter"):
        found[np.array([N - 1])]


@pytest.mark.parametrize("value, named", [(np.nan, "NaN"), (np.inf, "infinity"), (1e300, "infinity")])
def test_numbers_that_are_not_finite_are_found(value, named, samples, tmp_path):
    X = samples[0].astype(np.float64)
    X[650, 7] = value
    net = NETS["sgd"]()
    with pytest.raises(ValueError, match=f"Input X contains {named}"):
        net.fit(stored(tmp_path / "bad.npy", X), samples[2])
    assert not hasattr(net, "model_")


def test_bad_shapes_and_targets_are_refused_as_in_memory(samples):
    X, file, y = samples
    for data in ((file, y[:-1]), (file, None), (file, np.where(y == 0, np.nan, y))):
        messages = []
        for first in (data[0], X):
            with pytest.raises(ValueError, match=".") as caught:
                NETS["sgd"]().fit(first, data[1])
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    net = NETS["sgd"]().fit(file, y)
    with pytest.raises(ValueError, match="X has 63 features"):
        net.predict(file[:, 1:])


def test_checkpoints_of_a_map(samples, tmp_path):
    _, file, y = samples
    net = NETS["rdp"]().fit(file, y, checkpoint=tmp_path / "run", every=5, keep=9)
    for path in sorted((tmp_path / "run").iterdir())[3:]:
        path.unlink()
    assert_equal(net, Net.resume(tmp_path / "run").fit(file, y))
    with pytest.raises(ValueError, match="data are not those"):
        Net.resume(tmp_path / "run", epochs=3).fit(file[::-1], y)


# --- memory -----------------------------------------------------------------------------------------------------------
PEAK = r"""
import json, re, sys, warnings
from pathlib import Path
import numpy as np
from numbanet import Net
warnings.simplefilter("ignore")
def peak():
    status = Path("/proc/self/status").read_text()  # ru_maxrss would begin with the peak of the process that started this one
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
name, steps = sys.argv[1:]
def net():
    return Net((64,), dropout="rdp", epochs=1, batch_size=256, random_state=0, device="cpu", n_jobs=1)
X = np.load(name, mmap_mode="r")
y = np.arange(len(X)) % 10
net().fit(np.array(X[:2000]), y[:2000])  # compiled code, and what a fit needs anyway
before = peak()
net().fit(X, y).predict(X)
print(json.dumps({"bytes": X.nbytes, "before": before, "more": peak() - before, "peak": peak()}))
"""


def peak_of(path, rows):
    part = np.random.default_rng(0).standard_normal((10_000, 784), np.float32)
    with open(path, "wb") as file:  # not by a map, whose pages would count in the peak of the child
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 784)})
        for first in range(0, rows, len(part)):
            file.write(part[: rows - first].data)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), "1"], cwd=ROOT, capture_output=True, text=True, timeout=3000, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_file_of_300_megabytes_takes_a_fraction_of_them(tmp_path):
    found = peak_of(tmp_path / "X.npy", 100_000)
    assert found["bytes"] > 300e6 and found["before"] < 1e9 and found["more"] < 0.3 * found["bytes"], found


@pytest.mark.long
def test_a_file_of_6_gigabytes_takes_less_than_1_5(tmp_path):
    found = peak_of(tmp_path / "X.npy", 1_920_000)
    assert found["bytes"] > 6e9 and found["peak"] < 1.5e9, found
