"""All checks of scikit-learn, which hold for Net and NetRegressor; and clones, with which cross-validations and searches begin:
what layers share, and what files have trained.
"""

import copy
import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import estimator_checks_generator

from numbanet import BatchNorm1d, Linear, Net, NetRegressor, ReLU, Sequential, SparseLinear
from numbanet.datasets import load_digits

LEFT_OUT = "check_array_api_input", "check_classifiers_multilabel_output_format_decision_function"
FEW = 5  # epochs, for what does not ask how well an estimator learns


def checks():
    """All of scikit-learn's checks but one that runs only where SciPy was imported with SCIPY_ARRAY_API=1, and one of a method,
    decision_function, that MLPClassifier has not either. Estimators by default train for many epochs: with all checks, that is
    long.
    """
    for kind in (Net, NetRegressor):
        for estimator in (kind(), kind(epochs=FEW)):
            for _, check in estimator_checks_generator(estimator):
                name, few = getattr(check, "func", check).__name__, estimator.epochs == FEW
                learns = name.endswith("_train")
                if name not in LEFT_OUT and not (few and learns):
                    marks = () if few or learns else pytest.mark.long
                    yield pytest.param(estimator, check, id=f"{kind.__name__}-{name}{'-few' if few else ''}", marks=marks)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator, check", list(checks()))
def test_scikit_learn_check(estimator, check):
    check(estimator)


# --- clones -----------------------------------------------------------------------------------------------------------
X, Y = (part[:200] for part in load_digits()[:2])
FAST = {"epochs": 2, "random_state": 0, "device": "cpu"}
NO_BETTER = pytest.mark.filterwarnings("ignore:fit. the network is no better")


def square(**options):
    return Linear(64, 64, rng=0, **options)


def shared_layer():
    one = square()
    return [one, ReLU(), one, ReLU(), Linear(64, 10, rng=1)]


def shared_weight():
    first, second = square(), square()
    second.weight = first.weight
    return [first, ReLU(), Sequential([second, ReLU()]), Linear(64, 10, rng=1)]


def size(net):
    return sum(math.prod(tensor.shape) for tensor in net.model_.parameters())


@NO_BETTER
@pytest.mark.parametrize("layers", [shared_layer, shared_weight])
def test_layers_of_a_clone_share_what_they_shared(layers, tmp_path):
    net = Net(layers(), **FAST)
    searched = GridSearchCV(net, {"epochs": [2]}, cv=2).fit(X, Y).best_estimator_
    given = GridSearchCV(Net(**FAST), {"layers": [layers()]}, cv=2).fit(X, Y).best_estimator_
    net.fit(X, Y).save(tmp_path / "a")
    for other in (clone(net).fit(X, Y), searched, given):
        np.testing.assert_array_equal(other.predict_proba(X), net.predict_proba(X))
    assert size(clone(Net.load(tmp_path / "a")).fit(X, Y)) == size(net)


def test_a_clone_has_layers_of_its_own():
    net = Net((*shared_layer(),), **FAST)
    other = clone(net)
    net.layers[0].weight.assign(np.zeros((64, 64), np.float32))
    assert type(other.layers) is tuple and other.layers[0] is other.layers[2] and other.layers[0].weight.numpy().any()


def plain():
    return [Linear(64, 32), BatchNorm1d(32), ReLU(), Sequential([Linear(32, 16), ReLU()]), Linear(16, 10)]


@NO_BETTER
@pytest.mark.parametrize("way", ["file", "checkpoint"])
def test_the_clone_of_a_loaded_network_starts_from_new_weights(way, tmp_path):
    net = Net(plain(), **FAST)
    if way == "file":
        net.fit(X, Y).save(tmp_path / "a")
        again = Net.load(tmp_path / "a")
    else:
        net.fit(X, Y, checkpoint=tmp_path)
        again = Net.resume(tmp_path).fit(X, Y)
    wanted = clone(net).fit(X, Y)
    for other in (clone(again), clone(copy.deepcopy(again)), clone(clone(again))):
        np.testing.assert_array_equal(other.fit(X, Y).predict_proba(X), wanted.predict_proba(X))
    before = again.predict_proba(X)
    assert again.fit(X, Y).history_[0]["loss"] < net.history_[0]["loss"]  # which starts from the trained weights
    assert not np.array_equal(again.predict_proba(X), before)


@NO_BETTER
def test_clones_of_a_loaded_network_learn_nothing_of_their_test_samples(tmp_path):
    noise = np.random.default_rng(0).standard_normal(len(X))
    options = {**FAST, "learning_rate": 0.01, "epochs": 60}
    NetRegressor([Linear(64, 128), ReLU(), Linear(128, 1)], **options).fit(X, noise).save(tmp_path / "a")
    loaded = NetRegressor.load(tmp_path / "a")
    assert loaded.score(X, noise) > 0.5
    clones = clone(loaded).set_params(epochs=1, learning_rate=1e-9).fit(X[:100], noise[:100])
    assert clones.score(X[100:], noise[100:]) < 0.1


@NO_BETTER
def test_frozen_layers_and_the_places_of_sparse_entries_stay(tmp_path):
    first = Linear(64, 48).requires_grad_(False)
    net = Net([first, ReLU(), SparseLinear(48, 40, density=0.2, rng=1), ReLU(), Linear(40, 10)], **FAST).fit(X, Y)
    net.save(tmp_path / "a")
    kept, _, sparse, _, last = clone(Net.load(tmp_path / "a")).layers
    trained = net.model_.layers
    np.testing.assert_array_equal(kept.weight.numpy(), trained[0].weight.numpy())
    assert not any(tensor.requires_grad for tensor in kept.parameters()) and last.weight.requires_grad
    np.testing.assert_array_equal(sparse.col_indices.numpy(), trained[2].col_indices.numpy())
    assert 0.5 < np.std(sparse.values.numpy()) / np.std(net.layers[2].values.numpy()) < 2
    assert abs(np.corrcoef(sparse.values.numpy(), trained[2].values.numpy())[0, 1]) < 0.2
    assert not np.array_equal(last.weight.numpy(), trained[4].weight.numpy())
