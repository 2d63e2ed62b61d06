"""Predictions: equal alone and among others, recorded or not; changes of the model are heeded."""

import copy
import pickle
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import sklearn.exceptions
import threadpoolctl

from numbanet import GELU, Conv2d, Flatten, LayerNorm, Linear, Net, NetRegressor, Normalize, ReLU, Tensor
from numbanet.datasets import load_digits
from numbanet.device import device
from numbanet.estimators import supervised
from numbanet.losses import CrossEntropy
from numbanet.training.data import view_of
from numbanet.training.inference import Predictor
from numbanet_kernels.runtime.availability import nvvm_problem

X, Y, X_TEST, Y_TEST = load_digits()
PIXELS = X.shape[1]
SETTINGS = {"epochs": 1, "random_state": 0, "device": "cpu"}


def given():
    layers = [Normalize(0.5, 2.0), Linear(PIXELS, 37, rng=0), LayerNorm(37), GELU(), Linear(37, 20, rng=1), ReLU()]
    return [*layers, Linear(20, 10, rng=2)]


def convolutional():
    return [Conv2d(1, 4, 3, rng=0), ReLU(), Flatten(), Linear(4 * 36, 10, rng=1)]


NETS = {
    "widths": lambda: Net((50, 33), **SETTINGS),
    "tdp": lambda: Net((64, 64), dropout="tdp", **SETTINGS),
    "layers": lambda: Net(given(), **SETTINGS),
    "images": lambda: Net(convolutional(), image_shape=(1, 8, 8), **SETTINGS),
}


@pytest.fixture
def net():
    return NETS["widths"]().fit(X, Y)


def op_by_op(net, samples):
    """The model's output as it is without records."""
    predictor = Predictor(net.model_, {})
    predictor._records = False
    return predictor(predictor.dev.upload(net._checked(samples)))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_predictions_are_equal_alone_among_others_and_recorded(name, threads):
    net = NETS[name]().fit(X, Y)
    with threadpoolctl.threadpool_limits(threads, user_api="blas"):
        many, few = net._output(X_TEST), net._output(X_TEST[:32])
        np.testing.assert_allclose(few, many[:32], rtol=0, atol=1e-6 * np.abs(many).max())
        for n in (1, 2, 3, 17, 31, 32, 33, 100):
            for _ in range(3):  # computed, recorded, replayed
                found = net._output(X_TEST[:n])
                np.testing.assert_array_equal(found, op_by_op(net, X_TEST[:n]))
            if n <= 32:
                np.testing.assert_array_equal(found, few[:n])
        np.testing.assert_array_equal(net._output(X_TEST[5:6]), few[5:6])
        predictor = net._predictor()
        assert sum(found is not None for found in predictor._passes.values()) == 8


@pytest.mark.parametrize("link, targets", [("softmax", Y), ("sigmoid", np.eye(10, dtype=int)[Y])])
def test_probabilities_are_computed_in_the_recorded_pass(link, targets):
    """They are those that the CPU computes from the output, which has its own pass."""
    net = Net((20,), **SETTINGS).fit(X, targets)
    for n in (1, 40):
        for _ in range(3):  # computed, recorded, replayed
            expected = getattr(device("cpu"), link)(net._output(X_TEST[:n]))
            np.testing.assert_array_equal(net.predict_proba(X_TEST[:n]), expected)
    found = net._predictor()._passes
    assert {(shape[0], of) for shape, _, of in found} == {(n, of) for n in (1, 40) for of in (None, link)}
    assert None not in found.values()


def test_probabilities_need_a_fit_before_anything_else():
    for wrong in (Net(), Net(loss="nonsense")):
        with pytest.raises(sklearn.exceptions.NotFittedError):
            wrong.predict_proba(X_TEST)


@pytest.mark.parametrize("value", [1e20, 3e38])
def test_large_numbers_skip_the_checks_as_well(net, monkeypatch, value):
    """Although the sum of their squares overflows."""
    samples = np.full((2, PIXELS), value, np.float32)
    expected = net._checked(samples)
    monkeypatch.setattr(net, "_checked", None)
    np.testing.assert_array_equal(net._plain(samples), expected)
    assert net._plain(samples * np.float32(np.inf)) is None


def test_a_loss_with_an_inverse_link_has_its_own_probabilities():
    class Halved(CrossEntropy):
        def inverse_link(self, output):
            return output * 0 + 0.1

    net = Net((20,), loss=Halved(), **SETTINGS).fit(X, Y)
    for _ in range(3):
        np.testing.assert_allclose(net.predict_proba(X_TEST[:2]), 0.1)
    assert {of for *_, of in net._predictor()._passes} == {None}


@pytest.mark.slow
@pytest.mark.skipif(nvvm_problem() is not None, reason="no NVVM")
def test_predictions_of_graphs_are_equal():
    net = Net((12,), **{**SETTINGS, "device": "emulated", "batch_size": 50}).fit(X[:100], Y[:100])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 40, 1, 40, 1, 40):
            np.testing.assert_array_equal(net._output(X_TEST[:n]), op_by_op(net, X_TEST[:n]))
    assert sum(found is not None for found in net._predictor()._passes.values()) == 2


def test_results_stay_after_the_next_call(net):
    results = [net._output(X_TEST[i : i + 1]) for i in range(6)]
    np.testing.assert_array_equal(np.concatenate(results), net._output(X_TEST[:6]))


def changes():
    def assigned(net):
        net.model_.layers[0].weight.assign(net.model_.layers[0].weight.numpy() * 2)

    def exchanged(net):
        net.model_.layers[1] = GELU()

    def another_tensor(net):
        net.model_.layers[0].weight = Tensor(net.model_.layers[0].weight.numpy() * 2)

    def another_array(net):
        net.model_.layers[0].weight.data = net.model_.layers[0].weight.data * np.float32(2)

    def removed(net):
        del net.model_.layers[1]

    def trained(net):
        net.partial_fit(X, Y)

    def fitted(net):
        net.set_params(random_state=1).fit(X, Y)

    return [assigned, exchanged, another_tensor, another_array, removed, trained, fitted]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
def test_changes_of_the_model_are_heeded(net, change):
    before = [net._output(X_TEST[:3]) for _ in range(3)][-1]
    change(net)
    for _ in range(3):
        found = net._output(X_TEST[:3])
        assert not np.array_equal(found, before)
        np.testing.assert_array_equal(found, op_by_op(net, X_TEST[:3]))


def test_an_attribute_of_a_layer_is_heeded():
    net = Net(given(), **SETTINGS).fit(X, Y)
    before = [net._output(X_TEST[:3]) for _ in range(3)][-1]
    net.model_.layers[2].eps = 0.5
    assert not np.array_equal(net._output(X_TEST[:3]), before)


def test_recorded_predictions_leave_gradients_and_training_alone(net):
    other = pickle.loads(pickle.dumps(net))
    weight = net.model_.layers[0].weight
    net.model_(Tensor(X_TEST[:4])).sum().backward()
    gradient = weight.grad.numpy().copy()
    for _ in range(4):
        net.predict(X_TEST[:1])
    np.testing.assert_array_equal(weight.grad.numpy(), gradient)
    for trained in (net, other):
        trained.partial_fit(X, Y)
    for name, values in net.model_.state_dict().items():
        np.testing.assert_array_equal(values, other.model_.state_dict()[name])


def test_the_predictor_is_kept_and_neither_copied_nor_saved(net, tmp_path):
    for _ in range(3):
        expected = net.predict_proba(X_TEST[:2])
    kept = supervised.PREDICTORS[net]
    net.predict(X_TEST[:2])
    assert supervised.PREDICTORS[net] is kept
    net.save(tmp_path / "net.safetensors")
    copies = pickle.loads(pickle.dumps(net)), copy.deepcopy(net), Net.load(tmp_path / "net.safetensors"), sklearn.clone(net)
    assert not any(other in supervised.PREDICTORS for other in copies)
    for other in copies[:3]:
        np.testing.assert_array_equal(other.predict_proba(X_TEST[:2]), expected)


def test_threads_predict_at_the_same_time(net):
    for _ in range(3):
        expected = net._output(X_TEST[:8])
    wrong = []

    def predict(row):
        for _ in range(200):
            wrong.extend([row] * (not np.array_equal(net._output(X_TEST[row : row + 1]), expected[row : row + 1])))

    threads = [threading.Thread(target=predict, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_samples_that_are_adjacent_are_not_copied():
    rows, dev, read_only = np.arange(3, 40, dtype=np.int32), device("cpu"), X_TEST.copy()
    read_only.flags.writeable = False
    for samples in (X_TEST, read_only):
        found = view_of(samples, rows, dev)
        np.testing.assert_array_equal(found, samples[3:40])
        assert np.shares_memory(found, samples) == (samples is X_TEST)


def test_few_passes_are_recorded_and_none_of_many_samples(net, monkeypatch):
    monkeypatch.setattr(Predictor, "PASSES", 2)
    for n in (1, 2, 3, 200) * 3:
        net.predict(X_TEST[:n])
    assert [shape[0] for shape, *_ in net._predictor()._passes] == [1, 2]


# --- arrays that skip scikit-learn's checks ---------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["float64", "fortran", "read-only", "list", "big-endian", "int64", "strided"])
def test_every_kind_of_array_is_predicted_alike(net, kind):
    given = {
        "float64": lambda x: x.astype(np.float64),
        "fortran": np.asfortranarray,
        "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
        "list": np.ndarray.tolist,
        "big-endian": lambda x: x.astype(">f4"),
        "int64": lambda x: x.astype(np.int64),
        "strided": lambda x: np.repeat(x, 2, 0)[::2],
    }[kind]
    samples = np.round(X_TEST[:5]) if kind == "int64" else X_TEST[:5]
    for _ in range(3):
        np.testing.assert_array_equal(net.predict_proba(given(samples)), net.predict_proba(samples))


def test_what_scikit_learn_refuses_is_refused():
    net = NetRegressor((8,), **SETTINGS).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.predict(X_TEST[:1])
        assert np.isfinite(net.predict(np.full((1, PIXELS), 1e37, np.float32))).all()  # whose sum is not finite
    for bad, message in (
        (np.full((1, PIXELS), np.nan), "contains NaN"),
        (np.full((1, PIXELS), np.inf, np.float32), "contains infinity"),
        (X_TEST[:1, :5], "expecting 64 features"),
        (X_TEST[0], "Expected 2D array"),
        (X_TEST[:0], "0 sample"),
        (X_TEST[None, :2], "take flat samples, X.reshape"),
    ):
        with pytest.raises(ValueError, match=message):
            net.predict(bad)
    with pytest.warns(RuntimeWarning, match="overflow"), pytest.raises(ValueError, match="too large for dtype"):
        net.predict(np.full((1, PIXELS), 1e300))


def test_missing_names_of_features_are_warned_of():
    names = [f"pixel {i}" for i in range(PIXELS)]
    net = Net((8,), **SETTINGS).fit(pd.DataFrame(X, columns=names), Y)
    for _ in range(3):
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            net.predict(X_TEST[:1])
    unnamed = Net((8,), **SETTINGS).fit(X, Y)
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        unnamed.predict(pd.DataFrame(X_TEST[:1], columns=names))


def test_an_array_of_a_card_is_read_where_it_is():
    """Its flags are a dict, as those of Numba's arrays on a card."""
    samples = SimpleNamespace(flags={"C_CONTIGUOUS": True})
    dev = SimpleNamespace(part=lambda x, start, stop: (x, start, stop))
    assert view_of(samples, np.arange(2, 5, dtype=np.int32), dev) == (samples, 2, 5)


def test_a_layer_of_a_user_may_write_to_its_inputs():
    class Doubling(ReLU):
        def forward(self, flow, context):
            flow.x.data[...] *= 2
            return flow

    net, samples = Net([Doubling(), Linear(PIXELS, 10, rng=0)], **SETTINGS).fit(X, Y), np.tile(X_TEST, (3, 1))
    before = samples.copy()
    first = net.predict_proba(samples)
    np.testing.assert_array_equal(samples, before)
    np.testing.assert_array_equal(net.predict_proba(samples), first)
