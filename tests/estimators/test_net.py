"""Net and NetRegressor as a user meets them: they learn, from all kinds of data, and a seed gives the same bits."""

import copy
import math
import pickle
import tracemalloc
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import threadpoolctl
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight

from numbanet import CrossEntropy, Linear, Net, NetRegressor, ReLU, RowDropout, Shuffle, Tanh, TileDropout, ops
from numbanet.datasets import load_digits
from numbanet.estimators import build
from numbanet_kernels.host import threads

X, Y, X_TEST, Y_TEST = load_digits()
SMALL = {"layers": (32, 32), "epochs": 3, "batch_size": 128, "random_state": 0}


def weights(net):
    return [p.numpy().copy() for p in net.model_.parameters()]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dropout", ["none", "bernoulli", "rdp", "tdp", "batchwise", "window"])
def test_every_dropout_learns_digits(dropout):
    net = Net((256, 256), dropout=dropout, dropout_rate=0.5, epochs=40, random_state=0, device="cpu").fit(X, Y)
    assert net.score(X_TEST, Y_TEST) > 0.94
    proba = net.predict_proba(X_TEST)
    np.testing.assert_allclose(proba.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(net.classes_[proba.argmax(1)], net.predict(X_TEST))
    record = net.history_[-1]
    assert len(net.history_) == net.n_iter_ == 40 and record["epoch"] == 40 and record["loss"] < net.history_[0]["loss"]
    shares = [record["flops_share"] for record in net.history_]
    assert (np.mean(shares) < 0.7) if dropout in ("rdp", "tdp", "batchwise", "window") else (set(shares) == {1.0})


@pytest.mark.parametrize("dropout", ["none", "bernoulli", "rdp", "tdp", "batchwise", "window"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_same_seed_gives_the_same_net_bit_for_bit(dropout, optimizer):
    nets = [Net(**SMALL, dropout=dropout, optimizer=optimizer, device="cpu").fit(X, Y) for _ in range(2)]
    assert same(*map(weights, nets))
    assert not same(weights(nets[0]), weights(clone(nets[0]).set_params(random_state=1).fit(X, Y)))


VARIANCE_FACTORS = [
    ("none", (1, 1, 1)),
    ("bernoulli", (1, 0.2, 0.2)),
    (RowDropout(0.8, scale="rate"), (1, 0.2, 0.2)),
    (TileDropout(0.8, scale="rate"), (0.2, 0.2, 1)),
]


@pytest.mark.parametrize("init", ["he", "glorot"])
@pytest.mark.parametrize("dropout, variance_factors", VARIANCE_FACTORS)
@pytest.mark.filterwarnings("ignore:tdp")
def test_initial_weights_are_adjusted_for_dropout(dropout, variance_factors, init):
    options = {"init": init, "dropout": dropout, "dropout_rate": 0.8, "learning_rate": 1e-12, "epochs": 1, "random_state": 0}
    net = Net((300, 200), **options).fit(X, Y)
    widths = (64, 300, 200, 10)
    expected = [
        variance_factor * (2 / n_in if last < 2 and init == "he" else 2 / (n_in + n_out))
        for last, (variance_factor, n_in, n_out) in enumerate(zip(variance_factors, widths, widths[1:]))
    ]
    assert [w.var() for w in weights(net)[::2]] == pytest.approx(expected, rel=0.06)


def test_initial_weights_and_biases():
    X, y = np.random.default_rng(0).standard_normal((40, 100)), np.arange(40) % 3
    for init, variance in (("he", 2 / 100), ("glorot", 2 / 400), ("fan_in", 1 / 300)):
        net = Net((300,), init=init, learning_rate=1e-12, epochs=1, random_state=0).fit(X, y)
        weight, bias = (tensor.numpy() for tensor in list(net.model_.parameters())[:2])
        assert weight.var() == pytest.approx(variance, rel=0.05)
        assert bias.var() == pytest.approx(0 if init == "he" else 1 / 300, rel=0.15, abs=1e-9) and np.abs(bias).max() <= 0.1
    tanh = Net((300,), activation="tanh", init="he", learning_rate=1e-12, epochs=1, random_state=0).fit(X, y)
    assert tanh.model_[0].weight.numpy().var() == pytest.approx(2 / 400, rel=0.05)
    with pytest.raises(ValueError, match="there is no init 'zeros'; choose one of 'he', 'glorot', 'fan_in'"):
        Net((3,), init="zeros").fit(X, y)


def test_an_untrained_network_predicts_the_mean():
    """If `output_init` is "small", the default of regressors."""
    X, options = np.random.default_rng(0).standard_normal((400, 20)), {"learning_rate": 1e-12, "epochs": 1, "random_state": 0}
    y = 5 + 3 * X[:, 0]
    small, large = (NetRegressor((300,), **choice, **options).fit(X, y) for choice in ({}, {"output_init": None}))
    weight, bias = (tensor.numpy() for tensor in list(small.model_.parameters())[2:])
    assert weight.std() == pytest.approx(0.01 * math.sqrt(2 / 301), rel=0.1) and np.abs(bias).max() < 1e-9
    assert small.predict(X) == pytest.approx(y.mean(), abs=0.2) and np.abs(large.predict(X) - y.mean()).max() > 1
    equal = Net((300,), output_init="small", output_bias=None, **options).fit(X, X[:, 0] > 1)
    assert equal.predict_proba(X) == pytest.approx(0.5, abs=0.02)
    sigmoids = NetRegressor((300,), activation="sigmoid", **options).fit(X, y).model_[2].weight.numpy()
    assert sigmoids.std() == pytest.approx(0.1 * math.sqrt(2 / 301), rel=0.1)
    for wrong in ("zeros", np.ones(2)):
        with pytest.raises(ValueError, match="output_init must be None or 'small', got"):
            Net((3,), output_init=wrong).fit(X, X[:, 0] > 1)
    with pytest.raises(ValueError, match="there is no activation 'logistic'.*'logistic' is 'sigmoid' here"):
        Net((3,), activation="logistic").fit(X, X[:, 0] > 1)


def test_an_untrained_classifier_predicts_how_often_classes_occur():
    """By weight, each once more than it occurs; of several labels, how often each label does."""
    X, options = np.random.default_rng(0).standard_normal((400, 20)), {"learning_rate": 1e-12, "epochs": 1, "random_state": 0}
    y, options["output_init"] = np.repeat(["a", "b", "c"], [40, 60, 300]), "small"
    weights = np.where(y == "b", 8e-3, 2e-3)  # their sum does not count
    shares, by_weight = np.array([41, 61, 301]) / 403, np.array([1, 6, 7.5]) / 14.5
    balanced, smooth = {"class_weight": "balanced"}, {"loss": CrossEntropy(label_smoothing=0.4)}
    for more, given, expected in (
        ({}, None, shares),
        ({}, weights, (400 * by_weight + 1) / 403),
        (balanced, None, np.full(3, 1 / 3)),
        (smooth, None, 0.6 * shares + 0.4 / 3),
        ({"loss": lambda output, target: ops.softmax_cross_entropy(output, labels=target)}, None, np.full(3, 1 / 3)),
    ):
        net = Net((30,), **options, **more).fit(X, y, sample_weight=given)
        bias = np.float64(net.model_[-1].bias.numpy())
        assert np.exp(bias) / np.exp(bias).sum() == pytest.approx(expected, rel=1e-5), more
        assert bias.mean() == pytest.approx(0, abs=1e-6)
        assert net.predict_proba(X) == pytest.approx(np.tile(expected, (400, 1)), abs=0.02)
    first = Net((30,), **options).partial_fit(X[:2], y[:2], classes=["a", "b", "c"])
    assert first.predict_proba(X) == pytest.approx(np.tile([0.6, 0.2, 0.2], (400, 1)), abs=0.02)
    labels = np.stack([y == "a", y != "a"], axis=1).astype(int)
    assert Net((30,), **options).fit(X, labels).predict_proba(X) == pytest.approx(np.tile([0.1, 0.9], (400, 1)), abs=0.02)
    with pytest.raises(ValueError, match="output_bias must be 'prior' or None, got 'zeros'"):
        Net((3,), output_bias="zeros").fit(X, y)


def test_a_constant_first_call_of_partial_fit_warns():
    """Mean and scale of the targets are those of the first call."""
    X, y = np.random.default_rng(0).standard_normal((40, 3)), np.arange(40.0)
    for first in (y[:1], np.full(3, 0.1), np.full(10, 5.3), np.stack([y, np.full(40, 0.1)], axis=1)):
        net = NetRegressor((4,), random_state=0)
        with pytest.warns(UserWarning, match="first call, whose y is constant"):
            net.partial_fit(X[: len(first)], first)
        assert net.target_scale_.min() >= 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NetRegressor((4,), random_state=0).partial_fit(X, y)
        NetRegressor((4,), loss=lambda output, target: ((output - target) ** 2).mean()).partial_fit(X, 0 * y)


def test_few_samples_have_as_many_epochs_as_make_1000_steps():
    X, y = np.random.default_rng(0).standard_normal((300, 3)), np.arange(300) % 3
    assert Net((2,), epochs=None, batch_size=30).fit(X, y).n_iter_ == 100
    assert Net((2,), epochs=None, batch_size=5).fit(X, y).n_iter_ == 20  # 1200 steps
    assert Net((2,)).fit(X, y).n_iter_ == 100  # batches of 32
    assert Net((2,), epochs=20).fit(X, y).n_iter_ == 20
    with pytest.raises(ValueError, match="epochs must be an integer of at least 1, got 0"):
        Net((2,), epochs=0).fit(X, y)


def test_features_come_centred_and_in_random_order_before_tiles_only():
    net = Net(**SMALL, dropout=TileDropout(0.5, tile=4)).fit(X, Y)
    first = net.model_.layers[0]
    assert isinstance(first, Shuffle) and not np.array_equal(first.order.order, np.arange(64))
    rest = X.mean(axis=0) - first.order.mean  # in the direction of the mean, as large as it should be
    assert rest @ rest == pytest.approx(build.COMMON_NOISE * X.var(axis=0).sum(), rel=1e-3)
    np.testing.assert_allclose(first.order.mean / first.order.mean.max(), X.mean(axis=0) / X.mean(axis=0).max(), rtol=1e-4)
    np.testing.assert_array_equal(first.order.order, clone(net).fit(X, Y).model_.layers[0].order.order)
    for other in ({"dropout": "rdp"}, {"dropout": TileDropout((0.0, 0.5), tile=4)}, {"layers": (), "dropout": "tdp"}):
        assert not isinstance(Net(**{**SMALL, **other}).fit(X, Y).model_.layers[0], Shuffle)


def test_the_centre_of_features_leaves_little_of_their_mean():
    """|E[x] - centre|² = COMMON_NOISE v, v the sum of variances; 0 is centre enough where |E[x]|² is less."""
    X = np.random.default_rng(0).normal(size=(1000, 50))
    variance = X.var(axis=0).sum()
    for offset in (1.0, 1e3, 1e6):
        rest = (X.mean(axis=0) + offset) - build.centre(X + offset, None)
        assert rest @ rest == pytest.approx(build.COMMON_NOISE * variance, rel=0.1)  # float32 of 1e6 is this exact
    np.testing.assert_array_equal(build.centre(X, None), 0)
    np.testing.assert_array_equal(build.centre(np.full((10, 3), 7.0), None), 7)
    np.testing.assert_array_equal(build.centre(np.zeros((10, 3)), None), 0)


def test_the_centre_of_features_counts_weights_and_copies_no_samples():
    X = np.float32(np.random.default_rng(0).normal(3, 1, (6000, 500)))
    weights = np.float32(np.arange(6000) % 3)
    few = X[::2]  # weights 0, 2, 1, 0, …
    counted = build.centre(few.repeat(np.int64(weights[::2]), axis=0), None)
    np.testing.assert_allclose(build.centre(X, weights), counted, rtol=1e-5)
    np.testing.assert_allclose(build.centre(X, np.float32(np.arange(6000) % 2)), build.centre(few, None), rtol=1e-5)
    tracemalloc.start()
    build.centre(X, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.nbytes / 20


@pytest.mark.parametrize("dropout", ["none", "rdp", "tdp"])
@pytest.mark.filterwarnings("ignore:tdp")
def test_a_net_mapped_read_only_predicts(tmp_path, dropout):
    net = Net(**SMALL, dropout=dropout).fit(X, Y)
    joblib.dump(net, tmp_path / "net")
    mapped = joblib.load(tmp_path / "net", mmap_mode="r")
    np.testing.assert_array_equal(mapped.predict(X_TEST), net.predict(X_TEST))


def test_fit_twice_starts_anew_and_fit_arguments_override_for_one_call():
    net = Net(**SMALL).fit(X, Y, dropout="rdp", dropout_rate=0.7)
    assert net.history_[0]["flops_share"] < 0.6 and net.dropout == "none" and net.dropout_rate == 0.5
    again = net.fit(X, Y)
    assert again is net and net.n_iter_ == 3 and same(weights(net), weights(Net(**SMALL).fit(X, Y)))


@pytest.mark.parametrize("dropout", ["none", "bernoulli", "rdp"])
def test_partial_fit_goes_on_where_fit_stopped(dropout):
    net = Net(**SMALL, dropout=dropout).fit(X, Y)
    before = net.history_[-1]["loss"]
    for _ in range(5):
        net.partial_fit(X, Y)
    assert net.n_iter_ == 8 and net.history_[-1]["loss"] < before
    whole = Net(**{**SMALL, "epochs": 8}, dropout=dropout).fit(X, Y)
    assert dropout == "rdp" or same(weights(net), weights(whole))
    for ours, theirs in zip(weights(net), weights(whole), strict=True):  # missed steps are made up for at other times
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_partial_fit_learns_classes_from_the_first_call():
    net = Net(**SMALL)
    net.partial_fit(X[Y < 5], Y[Y < 5], classes=np.arange(10)).partial_fit(X[Y > 4], Y[Y > 4])
    assert net.predict_proba(X).shape == (len(X), 10)


@pytest.mark.parametrize("schedule, last", [("linear", 1 / 3), ("cosine", 0.25), (lambda epoch: 0.1**epoch, 0.01)])
def test_schedules(schedule, last):
    net = Net(**SMALL, learning_rate_schedule=schedule).fit(X, Y)
    assert net.history_[0]["learning_rate"] == 0.02 and net.history_[-1]["learning_rate"] == pytest.approx(0.02 * last)
    assert net.optimizer_.learning_rate == 0.02


def test_layers_of_the_users_own():
    layers = [Linear(64, 48, rng=0), Tanh(), Linear(48, 24, rng=1), ReLU(), Linear(24, 10, rng=2)]
    before = layers[0].weight.numpy().copy()
    net = Net(layers, dropout=RowDropout(0.3), epochs=40, random_state=0).fit(X, Y)
    assert net.score(X_TEST, Y_TEST) > 0.9 and np.array_equal(layers[0].weight.numpy(), before)
    assert same(weights(net), weights(clone(net).fit(X, Y)))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "gelu"])
def test_activations_learn_under_patterns(activation):
    net = Net(
        (64, 64),
        activation=activation,
        dropout="rdp",
        dropout_rate=0.3,
        optimizer="adam",
        learning_rate=0.005,
        epochs=40,
        random_state=0,
    ).fit(X, Y)
    assert net.score(X_TEST, Y_TEST) > 0.9


@pytest.mark.parametrize("n_jobs, expected", [(None, {4}), (1, {1}), (3, {3}), (100, {4})])
def test_n_jobs_limits_the_threads(monkeypatch, n_jobs, expected):
    seen, product = set(), threads.worthwhile

    def watch(*args, **options):
        seen.add(threads.count())
        return product(*args, **options)

    monkeypatch.setattr(threads, "worthwhile", watch)
    with threadpoolctl.threadpool_limits(4, user_api="blas"):
        Net(**SMALL, n_jobs=n_jobs).fit(X[:300], Y[:300]).predict(X)
    assert seen == expected


def test_rates_by_layer_and_small_tiles():
    net = Net((40, 40), dropout=TileDropout((0.0, 0.5), tile=8), epochs=3, random_state=0).fit(X, Y)
    assert 0.6 < net.history_[0]["flops_share"] < 1


def test_class_weight_and_sample_weight():
    rare = Y < 2
    weight = np.where(rare, 20.0, 0.05)
    plain, weighted = Net(**SMALL).fit(X, Y), Net(**SMALL).fit(X, Y, sample_weight=weight)
    by_class = Net(**SMALL, class_weight={c: 20.0 if c < 2 else 0.05 for c in range(10)}).fit(X, Y)
    balanced = Net(**SMALL, class_weight="balanced").fit(X, Y)
    assert weighted.score(X[rare], Y[rare]) > plain.score(X[rare], Y[rare])
    np.testing.assert_allclose(weighted.predict_proba(X_TEST), by_class.predict_proba(X_TEST), atol=1e-4)
    assert not same(weights(balanced), weights(plain))


def test_partial_fit_takes_weights_of_classes_that_are_counted_before():
    """It sees some of the samples, and scikit-learn's SGDClassifier refuses "balanced" there, too."""
    balanced = Net(**SMALL, class_weight="balanced").fit(X, Y)
    kept = weights(balanced)
    for net in (balanced, Net(**SMALL, class_weight="balanced")):
        with pytest.raises(ValueError, match=r"^partial_fit: class_weight='balanced' .*dict\(zip\(.*compute_class_weight"):
            net.partial_fit(X[:50], Y[:50], classes=range(10))
    assert not hasattr(net, "model_") and same(weights(balanced), kept)
    classes = np.arange(10)
    given = dict(zip(classes, compute_class_weight("balanced", classes=classes, y=Y)))
    for ours, theirs in zip(weights(Net(**SMALL, class_weight=given).fit(X, Y)), kept, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert balanced.set_params(class_weight=given).partial_fit(X[:50], Y[:50]).n_iter_ == 1 + SMALL["epochs"]


def test_labels_of_any_kind_and_pandas():
    frame = pd.DataFrame(X, columns=[f"pixel {i}" for i in range(64)])
    names = pd.Series(np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])[Y])
    net = Net(**{**SMALL, "epochs": 20}).fit(frame, names)
    assert net.score(pd.DataFrame(X_TEST, columns=frame.columns), names.unique()[0:1].repeat(len(X_TEST))) < 1
    assert set(net.predict(frame)) <= set(names) and list(net.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        net.predict(frame.rename(columns={"pixel 0": "other"}))


@pytest.mark.slow
def test_pipeline_grid_search_clone_and_pickle():
    pipeline = make_pipeline(StandardScaler(), Net(**{**SMALL, "epochs": 20}))
    search = GridSearchCV(pipeline, {"net__dropout": ["none", "rdp"]}, n_jobs=2, cv=2)
    search.fit(X[:400], Y[:400])
    assert search.best_score_ > 0.3
    net = Net(**SMALL, dropout="tdp").fit(X, Y)
    for again in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        np.testing.assert_array_equal(again.predict(X_TEST), net.predict(X_TEST))
        again.partial_fit(X, Y)
    assert same(weights(again), weights(net.partial_fit(X, Y)))


def test_regressor_learns_several_outputs_in_any_unit():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (600, 3))
    y = np.stack([1e6 * np.sin(3 * x[:, 0]) + 5e6, 1e-3 * x[:, 1] * x[:, 2]], 1)
    net = NetRegressor((64, 64), epochs=150, learning_rate=0.005, random_state=0).fit(x[:500], y[:500])
    assert net.predict(x[500:]).shape == (100, 2) and net.score(x[500:], y[500:]) > 0.9
    single = NetRegressor((64,), dropout="rdp", dropout_rate=0.2, epochs=100, learning_rate=0.005, random_state=0)
    assert single.fit(x, y[:, 0]).predict(x).shape == (600,) and single.score(x, y[:, 0]) > 0.7
    with pytest.raises(ValueError, match="2 outputs"):
        single.partial_fit(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_partial_fit_after_a_schedule_goes_on_at_its_last_rate(schedule):
    net = Net(**SMALL, learning_rate_schedule=schedule).fit(X, Y).partial_fit(X, Y).partial_fit(X, Y)
    rates = [record["learning_rate"] for record in net.history_]
    assert rates[2] == rates[3] == rates[4] > 0


def test_plans_rows_noise_and_weights_have_streams_of_their_own():
    """Another policy draws other plans, and moves neither initial weights nor the order of rows."""
    seen = {}

    class Watch(RowDropout):
        def __init__(self, draws):
            super().__init__(0.5)
            self.draws = draws

        def plan(self, site, rng):
            rng.random(self.draws)

    for draws in (0, 5):
        net = Net(**SMALL, dropout=Watch(draws)).fit(X, Y)
        seen[draws] = weights(net), [record["loss"] for record in net.history_]
    assert same(seen[0][0], seen[5][0]) and seen[0][1] == seen[5][1]
