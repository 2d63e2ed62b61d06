"""Large sparse matrices: the same results as dense, and memory of one dense batch at a time."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score

from numbanet import Net, NetRegressor
from numbanet.training.large import rows

ROOT = Path(__file__).parents[2]
X = np.float32(load_digits().data[:700] / 16)
X[X < 0.4] = 0
Y = load_digits().target[:700] % 4
FORMS = {
    "csr": scipy.sparse.csr_matrix,
    "csc": scipy.sparse.csc_matrix,
    "coo": scipy.sparse.coo_matrix,
    "array": scipy.sparse.csr_array,
}
BASE = {"epochs": 2, "batch_size": 50, "random_state": 0, "device": "cpu"}


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(rows, "LEAST", 1)
    monkeypatch.setattr(rows, "CHUNK", 1 << 14)


NETS = {
    "sgd": lambda: Net((32,), **BASE),
    "rdp": lambda: Net((32, 32), **BASE, dropout="rdp", optimizer="adam"),
    "tdp": lambda: Net((64, 64), **BASE, dropout="tdp"),
    "stopping": lambda: Net((32,), **BASE, early_stopping=True, scoring="balanced_accuracy"),
    "all in a batch": lambda: Net((32,), **{**BASE, "batch_size": 1000}),
}


@pytest.mark.parametrize("form, name", [*(("csr", name) for name in NETS), *((form, "sgd") for form in FORMS if form != "csr")])
def test_a_sparse_matrix_trains_and_predicts_as_its_dense_form(all_are_large, form, name):
    sparse, weights = FORMS[form](X), np.linspace(1, 2, len(X)) if name == "rdp" else None
    other = NETS[name]().fit(sparse, Y, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "LEAST", 1 << 26)
        net = NETS[name]().fit(sparse, Y, weights)  # small, so dense
    for key, array in net.model_.state_dict().items():
        if name == "all in a batch":  # whose dense samples are put in order
            np.testing.assert_allclose(other.model_.state_dict()[key], array, atol=1e-5)
        else:
            np.testing.assert_array_equal(other.model_.state_dict()[key], array)
    few = sparse.tocsr()[:5]
    np.testing.assert_allclose(other.predict_proba(sparse), net.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(other.predict_proba(few), net.predict_proba(X[:5]), atol=1e-5)
    np.testing.assert_allclose(other.score(sparse, Y), net.score(X, Y), atol=0.01)
    if name == "rdp":
        net.partial_fit(X, Y), other.partial_fit(sparse, Y)
        np.testing.assert_array_equal(other.predict(sparse), net.predict(X))


def test_images_regressors_validation_and_searches(all_are_large):
    sparse = scipy.sparse.csr_matrix(np.pad(X.reshape(-1, 8, 8), ((0, 0), (2, 2), (2, 2))).reshape(len(X), -1))
    net = Net("lenet5", **{**BASE, "epochs": 1}, image_shape=(1, 12, 12)).fit(sparse, Y)
    assert net.predict(sparse[:7]).shape == (7,)
    regressor = NetRegressor((16,), **BASE).fit(sparse[:600], Y[:600], validation=(sparse[600:], Y[600:]))
    assert regressor.predict(sparse).shape == (700,) and "validation_score" in regressor.history_[-1]
    assert cross_val_score(Net((16,), **BASE), sparse, Y, cv=2).shape == (2,)


def test_rows_are_those_of_the_matrix():
    sparse = rows.SparseRows(scipy.sparse.coo_matrix(X))
    np.testing.assert_array_equal(sparse[np.array([5, 5, 1])], X[[5, 5, 1]])
    np.testing.assert_array_equal(sparse[3:400:7], X[3:400:7])
    np.testing.assert_array_equal(np.concatenate(list(sparse.chunks(3))), X[::3])
    images = sparse.reshape(len(X), 1, 8, 8)
    assert images.shape == (700, 1, 8, 8) and images.ndim == 4 and images[np.array([2])].dtype == np.float32
    np.testing.assert_array_equal(images[np.array([2])], X[2].reshape(1, 1, 8, 8))


FIT = """
import resource, warnings
import numpy as np, scipy.sparse
from numbanet import Net
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X = scipy.sparse.random(30000, 20000, 0.0005, "csr", np.float32, rng)
y = np.arange(30000) % 2
Net((4,), epochs=1, batch_size=128, device="cpu").fit(X[:600], y[:600])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
net = Net((4,), epochs=1, batch_size=128, device="cpu").fit(X, y)
net.predict(X)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_dense_form():
    done = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, timeout=300, check=True, cwd=ROOT)
    assert int(done.stdout) < 200_000, done.stdout  # KiB; the dense form has 2.4 GB
