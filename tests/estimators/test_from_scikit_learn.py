"""What users of scikit-learn's MLPs expect: several labels per sample, sparse X, log-probabilities, warm starts, model_[0],
and weights of samples.
"""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import f1_score
from sklearn.model_selection import cross_val_score
from sklearn.multioutput import ClassifierChain
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from numbanet import LSTM, BatchNorm1d, Embedding, Linear, Net, NetRegressor, ReLU, Sequential
from numbanet.datasets import load_digits

pytestmark = pytest.mark.filterwarnings("ignore:fit. the network is no better")  # after so few epochs
X, Y, X_TEST, Y_TEST = load_digits()
FAST = {"epochs": 3, "random_state": 0, "device": "cpu"}
TEXTS, LABELS = make_multilabel_classification(600, 20, n_classes=4, random_state=0)
TEXTS = np.float32(StandardScaler().fit_transform(TEXTS))


# --- several labels ---------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")  # theirs, which is given 300 epochs
@pytest.mark.parametrize("dropout", ["none", "rdp"])
def test_several_labels_are_learned_as_by_scikit_learn(dropout):
    net = Net((64,), epochs=60, batch_size=128, learning_rate=0.05, random_state=0, dropout=dropout)
    net.fit(TEXTS[:500], LABELS[:500], validation=(TEXTS[500:], LABELS[500:]))
    theirs = MLPClassifier((64,), max_iter=300, random_state=0).fit(TEXTS[:500], LABELS[:500])
    ours = f1_score(LABELS[500:], net.predict(TEXTS[500:]), average="micro")
    assert ours > f1_score(LABELS[500:], theirs.predict(TEXTS[500:]), average="micro") - 0.04
    proba, predicted = net.predict_proba(TEXTS), net.predict(TEXTS)
    assert proba.shape == predicted.shape == (600, 4) and net.classes_.tolist() == theirs.classes_.tolist()
    np.testing.assert_array_equal(predicted, proba > 0.5)
    assert net.score(TEXTS[500:], LABELS[500:]) == pytest.approx(net.history_[-1]["validation_score"])
    np.testing.assert_allclose(np.exp(net.predict_log_proba(TEXTS)), proba, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("labels", [2, 4])
def test_a_step_with_several_labels_is_scikit_learns(labels):
    """Its loss is the sum over labels: each of them is learned as fast as one alone."""
    options = {"solver": "sgd", "alpha": 0.0, "momentum": 0.0, "batch_size": len(TEXTS), "random_state": 0, "max_iter": 1}
    theirs = MLPClassifier((5,), learning_rate_init=1e-12, warm_start=True, **options).fit(TEXTS, LABELS[:, :labels])
    layers = [Linear(20, 5), ReLU(), Linear(5, labels)]
    for layer, w, b in zip(layers[::2], theirs.coefs_, theirs.intercepts_):
        layer.load_state_dict({"weight": w.T, "bias": b})
    theirs.set_params(learning_rate_init=0.5).fit(TEXTS, LABELS[:, :labels])
    net = Net(layers, **{**FAST, "epochs": 1}, learning_rate=0.5, momentum=0.0, batch_size=len(TEXTS))
    net.fit(TEXTS, LABELS[:, :labels])
    assert net.history_[0]["loss"] == pytest.approx(theirs.loss_, rel=1e-5)
    for layer, w, b in zip(net.model_.layers[::2], theirs.coefs_, theirs.intercepts_):
        np.testing.assert_allclose(layer.weight.numpy(), w.T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(layer.bias.numpy(), b, rtol=1e-4, atol=1e-5)


def test_several_labels_everywhere(tmp_path):
    net = Net((16,), **FAST).fit(TEXTS, LABELS, sample_weight=np.arange(600) % 3)
    np.testing.assert_array_equal(
        Net((16,), **FAST).fit(TEXTS, sparse.csr_matrix(LABELS)).predict(TEXTS),
        Net((16,), **FAST).fit(TEXTS, LABELS.tolist()).predict(TEXTS),
    )
    net.save(tmp_path / "net")
    np.testing.assert_array_equal(Net.load(tmp_path / "net").predict_proba(TEXTS), net.predict_proba(TEXTS))
    net.partial_fit(TEXTS, LABELS)
    assert net.n_iter_ == 4 and cross_val_score(net, TEXTS, LABELS, cv=2).shape == (2,)
    Net((16,), **FAST, early_stopping=True).fit(TEXTS, LABELS)
    small = Net((16,), **FAST).fit(TEXTS[:50], LABELS[:50])  # one batch: equal samples are merged
    assert small.predict(TEXTS[:50]).shape == (50, 4)
    assert ClassifierChain(Net((8,), **FAST)).fit(TEXTS, LABELS).predict(TEXTS).shape == (600, 4)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda net: net.partial_fit(TEXTS, LABELS[:, 0]), "y has one label per sample, unlike in the first call"),
        (lambda net: net.partial_fit(TEXTS, LABELS[:, :3]), "y has 3 labels, but 4 are known"),
        (
            lambda net: net.fit(TEXTS, np.cumsum(LABELS, axis=1)),
            r"y has shape \(600, 4\) and more than two values: give one label",
        ),
        (lambda net: net.set_params(class_weight="balanced").fit(TEXTS, LABELS), "class_weight is for samples with one class"),
        (lambda net: net.fit(TEXTS, LABELS[:, 0]).partial_fit(TEXTS, LABELS), "y has several labels per sample, unlike"),
    ],
)
def test_labels_that_do_not_fit_are_named(call, message):
    net = Net((8,), **FAST).fit(TEXTS, LABELS)
    before = net.predict_proba(TEXTS)
    with pytest.raises(ValueError, match=message):
        call(net)
    if "fit(TEXTS, LABELS[:, 0])" not in message and net.predict_proba(TEXTS).shape == before.shape:
        np.testing.assert_array_equal(net.predict_proba(TEXTS), before)


# --- sparse matrices --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix, sparse.lil_array])
@pytest.mark.parametrize("estimator", [Net, NetRegressor])
def test_a_sparse_matrix_trains_what_a_dense_one_trains(kind, estimator):
    dense = estimator((16,), **FAST).fit(X, Y, validation=(X_TEST, Y_TEST))
    net = estimator((16,), **FAST).fit(kind(X), Y, validation=(kind(X_TEST), Y_TEST))
    np.testing.assert_array_equal(net.predict(kind(X_TEST)), dense.predict(X_TEST))
    assert [r["validation_score"] for r in net.history_] == [r["validation_score"] for r in dense.history_]
    np.testing.assert_array_equal(net.partial_fit(kind(X), Y).predict(X_TEST), dense.partial_fit(X, Y).predict(X_TEST))
    with pytest.raises(ValueError, match="NaN"):
        net.predict(kind(np.where(X_TEST > 0.9, np.nan, X_TEST)))


# --- log-probabilities ------------------------------------------------------------------------------------------------
def test_log_probabilities_are_finite_where_probabilities_are_nothing():
    net = Net((32,), **{**FAST, "epochs": 10}).fit(X, Y)
    found = net.predict_log_proba(X_TEST)
    assert found.dtype == np.float32 and found.shape == (len(X_TEST), 10)
    np.testing.assert_allclose(np.exp(found), net.predict_proba(X_TEST), rtol=1e-4, atol=1e-6)
    far = net.predict_log_proba(1e4 * X_TEST)
    assert np.isfinite(far).all() and far.min() < -1000


# --- warm start -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dropout", ["none", "rdp"])
def test_a_warm_start_goes_on_from_the_weights(dropout):
    options = {**FAST, "dropout": dropout, "learning_rate": 0.01}  # at which three epochs are too few
    cold = Net((64,), **options).fit(X, Y)
    net = Net((64,), **options, warm_start=True).fit(X, Y)
    np.testing.assert_array_equal(net.predict_proba(X_TEST), cold.predict_proba(X_TEST))
    first = net.history_[0]["loss"]
    for _ in range(4):
        net.fit(X, Y)
    assert net.n_iter_ == len(net.history_) == 3 and net.history_[0]["loss"] < first / 2
    assert net.score(X_TEST, Y_TEST) > 0.9 > cold.fit(X, Y).score(X_TEST, Y_TEST)
    net.set_params(learning_rate=1e-12).fit(X, Y)
    assert net.history_[0]["learning_rate"] == 1e-12 and net.score(X_TEST, Y_TEST) > 0.9


def test_a_warm_start_takes_schedules_and_regressors_anew():
    net = NetRegressor((16,), **FAST, learning_rate_schedule="cosine", warm_start=True)
    first, second = (list(net.fit(X, Y).history_) for _ in range(2))
    assert [record["learning_rate"] for record in first] == [record["learning_rate"] for record in second]
    assert second[0]["loss"] < first[0]["loss"] and net.n_iter_ == 3


@pytest.mark.parametrize("x, y, message", [(X[:, :9], Y, "9 features"), (X, Y + 1, r"labels.*\[10\]")])
def test_a_warm_start_needs_the_same_features_and_classes(x, y, message):
    net = Net((16,), **FAST, warm_start=True).fit(X, Y)
    before = net.predict_proba(X_TEST)
    with pytest.raises(ValueError, match=message):
        net.fit(x, y)
    np.testing.assert_array_equal(net.predict_proba(X_TEST), before)
    assert net.set_params(warm_start=False).fit(X[:, :9], Y + 1).n_features_in_ == 9


# --- layers by index --------------------------------------------------------------------------------------------------
def test_layers_by_index():
    model = Net((16, 8), **FAST).fit(X, Y).model_
    assert isinstance(model[0], Linear) and model[-1].out_features == 10 and len(model) == 5 == len(list(model))
    assert isinstance(model[:2], Sequential) and model[:2].layers == model.layers[:2] and isinstance(model[1], ReLU)
    with pytest.raises(IndexError):
        model[5]


@pytest.mark.parametrize("y", [LABELS + 1, LABELS * 5, LABELS * 2 - 1])
def test_several_labels_are_0_and_1(y):
    with pytest.raises(ValueError, match="columns of 0 and 1, or of False and True"):
        Net((8,)).fit(TEXTS, y)


def test_errors_of_validation_samples_name_them():
    with pytest.raises(ValueError, match="validation: Found input variables with inconsistent numbers of samples"):
        Net((8,)).fit(TEXTS, LABELS[:, 0], validation=(TEXTS, LABELS[:5, 0]))


# --- weights of samples and classes -----------------------------------------------------------------------------------
SOME, KINDS = X[:400], Y[:400]


def test_samples_of_a_validation_count_alike():
    weight = {label: 1000.0 if label < 2 else 1.0 for label in range(10)}
    net = Net((16,), **{**FAST, "epochs": 4}, class_weight=weight).fit(SOME, KINDS, validation=(SOME[:99], KINDS[:99]))
    record, chosen = net.history_[-1], net.predict_proba(SOME[:99])[np.arange(99), KINDS[:99]]
    assert record["validation_score"] == pytest.approx(net.score(SOME[:99], KINDS[:99]))
    assert record["validation_loss"] == pytest.approx(-np.log(chosen).mean(), rel=1e-4)
    held_out = Net((16,), **FAST, class_weight=weight, early_stopping=True).fit(SOME, KINDS)
    assert held_out.history_[-1]["validation_score"] > 0.6 > held_out.score(SOME, KINDS)  # there class weights count


def test_time_steps_of_a_validation_count_alike_but_padding_does_not():
    words = np.random.default_rng(0).integers(1, 9, (60, 7))
    words[::2, 4:] = 0
    layers = [Embedding(9, 4, padding_idx=0, rng=0), LSTM(4, 6, batch_first=True, rng=1), Linear(6, 2, rng=2)]
    labels = (words > 2).astype(int)
    net = Net(layers, **FAST, class_weight={0: 50.0, 1: 1.0}).fit(words, labels, validation=(words[:20], labels[:20]))
    assert net.history_[-1]["validation_score"] == pytest.approx(net.score(words[:20], labels[:20]))


@pytest.mark.parametrize("count", [30, 300])  # which fit into one batch, or not
def test_a_class_whose_samples_have_no_weight_stays_a_class(count):
    x, y = SOME[:count], KINDS[:count] % 3
    net = Net((8,), **FAST, warm_start=True).fit(x, y, sample_weight=y < 2)
    assert net.classes_.tolist() == [0, 1, 2] and net.predict_proba(x).shape == (count, 3)
    assert net.fit(x, y, sample_weight=y > 0).classes_.tolist() == [0, 1, 2]
    assert Net((8,), **FAST).partial_fit(x, y, sample_weight=y < 2).classes_.tolist() == [0, 1, 2]
    balanced = Net((8,), **FAST, class_weight="balanced").fit(x, y, sample_weight=y < 2)
    assert balanced.classes_.tolist() == [0, 1, 2] and np.isfinite(balanced.history_[-1]["loss"])
    assert Net((8,), **FAST).fit(x, y % 2, sample_weight=y % 2).classes_.tolist() == [0, 1]


def test_samples_without_weight_change_no_bit_of_what_one_batch_learns():
    x, y = SOME[:30], KINDS[:30] % 3
    weights = np.arange(30) % 4 > 0
    some = Net((8,), **FAST).fit(x[weights], y[weights])
    np.testing.assert_array_equal(Net((8,), **FAST).fit(x, y, weights).predict_proba(SOME), some.predict_proba(SOME))


@pytest.mark.parametrize("kind", [Net, NetRegressor])
def test_samples_that_are_held_out_have_weight(kind):
    weights = np.zeros(len(SOME))
    weights[:40] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(4):
            net = kind((8,), **{**FAST, "random_state": seed}, early_stopping=True).fit(SOME, KINDS, sample_weight=weights)
            assert np.isfinite([record["validation_score"] for record in net.history_]).all()
    weights[1:] = 0
    seen = []
    net = kind((8,), **FAST, early_stopping=True, callbacks=[lambda net, record: seen.append(1)])
    with pytest.raises(
        ValueError, match="1 of 400 samples have a weight above 0 .sample_weight, class_weight., and cannot be split"
    ):
        net.fit(SOME, KINDS, sample_weight=weights)
    assert not seen


def test_all_classes_but_those_without_weight_are_held_out():
    net = Net((8,), **FAST, early_stopping=True, class_weight={label: float(label < 2) for label in range(10)})
    assert np.isfinite(net.fit(SOME, KINDS).history_[-1]["validation_score"])


def test_equal_samples_count_in_the_statistics_of_a_batch():
    x, y = np.repeat(np.float32([[0, 0], [1, 0], [0, 1]]), [80, 10, 10], axis=0), np.repeat([0, 1, 1], [80, 10, 10])
    net = Net([BatchNorm1d(2, momentum=None), Linear(2, 2)], batch_size=100, epochs=1, device="cpu").fit(x, y)
    for _ in range(2):
        np.testing.assert_allclose(net.model_[0].running_mean.numpy(), x.mean(0), rtol=1e-5)
        net.partial_fit(x, y)
    layers = [Linear(2, 4), BatchNorm1d(4), Linear(4, 1)]
    NetRegressor(layers, batch_size=100, epochs=1, device="cpu").fit(np.ones((100, 2)), np.ones(100))


def test_equal_samples_are_held_out_one_by_one():
    x, y = np.repeat(np.eye(4, dtype=np.float32), 30, axis=0), np.repeat(np.arange(4), 30)
    net = Net((), early_stopping=True, batch_size=120, epochs=60, learning_rate=0.5, random_state=0, device="cpu").fit(x, y)
    assert net.score(x, y) == 1.0
