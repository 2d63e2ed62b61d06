"""Net and NetRegressor as a user meets them: scikit-learn's checks, bad input, interruption, reproducibility."""
import contextlib
import copy
import os
import pickle
import signal
import threading
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
from sklearn.utils.estimator_checks import estimator_checks_generator

from numbanet import Flatten, Linear, Net, NetRegressor, ReLU, RowDropout, Sequential, Shuffle, Tanh, TileDropout
from numbanet.datasets import load_digits
from numbanet.device import problem
from numbanet.estimators import build
from numbanet.training import loop, recovery
from numbanet_kernels.host import threads

X, Y, X_TEST, Y_TEST = load_digits()
SMALL = {"layers": (32, 32), "epochs": 3, "random_state": 0}


def weights(net):
    return [p.numpy().copy() for p in net.model_.parameters()]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


def checks():
    """All of scikit-learn's checks but one that runs only where SciPy was imported with SCIPY_ARRAY_API=1, and one of a method,
    decision_function, that MLPClassifier has not either."""
    pairs = [pair for estimator in (Net(), NetRegressor()) for pair in estimator_checks_generator(estimator)]
    names = [getattr(check, "func", check).__name__ for _, check in pairs]
    return [pytest.param(*pair, id=f"{type(pair[0]).__name__}-{name}") for pair, name in zip(pairs, names)
            if name not in ("check_array_api_input", "check_classifiers_multilabel_output_format_decision_function")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator, check", checks())
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dropout", ["none", "bernoulli", "rdp", "tdp", "batchwise"])
def test_every_dropout_learns_digits(dropout):
    net = Net((256, 256), dropout=dropout, dropout_rate=0.5, epochs=40, random_state=0, device="cpu").fit(X, Y)
    assert net.score(X_TEST, Y_TEST) > 0.94
    proba = net.predict_proba(X_TEST)
    np.testing.assert_allclose(proba.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(net.classes_[proba.argmax(1)], net.predict(X_TEST))
    record = net.history_[-1]
    assert len(net.history_) == net.n_iter_ == 40 and record["epoch"] == 40 and record["loss"] < net.history_[0]["loss"]
    shares = [record["flops_share"] for record in net.history_]
    assert (np.mean(shares) < 0.7) if dropout in ("rdp", "tdp", "batchwise") else (set(shares) == {1.0})


@pytest.mark.parametrize("dropout", ["none", "bernoulli", "rdp", "tdp", "batchwise"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_same_seed_gives_the_same_net_bit_for_bit(dropout, optimizer):
    nets = [Net(**SMALL, dropout=dropout, optimizer=optimizer, device="cpu").fit(X, Y) for _ in range(2)]
    assert same(*map(weights, nets))
    assert not same(weights(nets[0]), weights(clone(nets[0]).set_params(random_state=1).fit(X, Y)))


@pytest.mark.parametrize("dropout, keeps", [("none", (1, 1, 1)), ("bernoulli", (1, 0.2, 0.2)),
                                            (RowDropout(0.8, scale="rate"), (1, 0.2, 0.2)),
                                            (TileDropout(0.8, scale="rate"), (0.2, 0.2, 1))])
@pytest.mark.filterwarnings("ignore:tdp")
def test_initial_weights_are_adjusted_for_dropout(dropout, variance_factors):
    net = Net((300, 200), dropout=dropout, dropout_rate=0.8, learning_rate=1e-12, epochs=1, random_state=0).fit(X, Y)
    widths = (64, 300, 200, 10)
    expected = [variance_factor * (2 / n_in if last < 2 else 2 / (n_in + n_out))
                for last, (variance_factor, n_in, n_out) in enumerate(zip(variance_factors, widths, widths[1:]))]
    assert [w.var() for w in weights(net)[::2]] == pytest.approx(expected, rel=0.06)


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


BAD_FITS = {
    "NaN": (lambda net: net.fit(np.where(X > 0.9, np.nan, X), Y), "NaN"),
    "infinity": (lambda net: net.fit(np.where(X > 0.9, np.inf, X), Y), "infinity"),
    "too large for float32": (lambda net: net.fit(X.astype(float) * 1e300, Y), "too large"),
    "lengths": (lambda net: net.fit(X, Y[:-1]), "inconsistent numbers of samples"),
    "no samples": (lambda net: net.fit(X[:0], Y[:0]), "0 sample"),
    "no features": (lambda net: net.fit(X[:, :0], Y), "0 feature"),
    "one class": (lambda net: net.fit(X, np.zeros(len(Y))), "one class"),
    "dropout": (lambda net: net.fit(X, Y, dropout="dropconnect"), "'dropconnect'.*'rdp'"),
    "rate of 1": (lambda net: net.fit(X, Y, dropout="rdp", dropout_rate=1.0), r"\[0, 1\)"),
    "negative rate": (lambda net: net.fit(X, Y, dropout_rate=-0.1), r"\[0, 1\)"),
    "rates": (lambda net: net.fit(X, Y, dropout="rdp", dropout_rate=(0.1, 0.2, 0.3)), "3 entries for 2"),
    "width": (lambda net: net.partial_fit(X[:, :-1], Y), "63 features"),
    "label": (lambda net: net.partial_fit(X, Y + 1), r"labels.*\[10\]"),
    "classes": (lambda net: net.partial_fit(X, Y, classes=[0, 1]), "differ"),
    "sample_weight": (lambda net: net.fit(X, Y, sample_weight=-np.ones(len(Y))), "[Nn]egative"),
    "sample_weight 0": (lambda net: net.fit(X, Y, sample_weight=np.zeros(len(Y))), "zero for every sample|non-zero"),
    "validation": (lambda net: net.fit(X, Y, validation=3), "pair"),
    "validation width": (lambda net: net.fit(X, Y, validation=(X[:, 1:], Y)), "63 features"),
    **{f"{name}={getattr(value, '__name__', value)!r}":
       (lambda net, name=name, value=value: net.set_params(**{name: value}).fit(X, Y), message) for name, value, message in [
        ("epochs", 0, "epochs"), ("batch_size", 1.5, "batch_size"), ("learning_rate", -1, "learning_rate"),
        ("momentum", 1.0, "momentum"), ("optimizer", "rmsprop", "'rmsprop'.*'adam'"), ("activation", "swish", "'swish'"),
        ("layers", (0,), "layers"), ("layers", "big", "layers"), ("learning_rate_schedule", "step", "learning_rate_schedule"),
        ("device", "tpu", "'tpu'"), ("validation_fraction", 1.0, "validation_fraction"), ("callbacks", [1], "callbacks"),
        ("callbacks", print, "callbacks"), ("activation", ["relu"], "activation"), ("dropout", ["rdp"], "no dropout"),
        ("class_weight", {77: 5.0}, r"\[77\]"), ("class_weight", {0: "x"}, "numbers"),
        ("learning_rate_schedule", lambda epoch: None, "factor None"),
        ("class_weight", "even", "class_weight"), ("layers", [Linear(3, 10)], "Linear\\(3, 10\\): it takes 3 features"),
       ]},
}


@pytest.mark.parametrize("name", BAD_FITS)
def test_bad_input_is_named_and_leaves_the_net_as_it_was(name):
    call, message = BAD_FITS[name]
    net = Net(**SMALL).fit(X, Y)
    before, kept = {k: v for k, v in vars(net).items() if k.endswith("_")}, weights(net)
    with pytest.raises(ValueError, match=message):
        call(net)
    assert {k: v for k, v in vars(net).items() if k.endswith("_")} == before and same(weights(net), kept)
    assert net.n_iter_ == 3 and net.score(X_TEST, Y_TEST) > 0.2


@pytest.mark.skipif(problem("cuda") is None, reason="this machine has CUDA")
def test_a_device_that_is_not_there_says_how_to_get_it():
    net = Net(device="cuda")
    with pytest.raises(RuntimeError, match=r"cuda.*pip install 'numba-cuda\[cu13\]'"):
        net.fit(X, Y)
    assert not hasattr(net, "model_")


class Breaks(RowDropout):
    """Row dropout that is interrupted in the middle of the second epoch."""

    drawn = 0

    def plan(self, site, rng):
        self.drawn += 1
        if self.drawn == 40:
            raise KeyboardInterrupt
        return super().plan(site, rng)


def lazily(monkeypatch, lazy, action):
    """The weights that an action leaves, with updates left undone where nobody reads, or with all done in every step."""
    with monkeypatch.context() as patch:
        if not lazy:
            patch.setattr(Sequential, "reads", lambda self, plans, symbols=None: {})
        return action()


@pytest.mark.parametrize("dropout", [RowDropout(0.7), TileDropout(0.6, tile=4)], ids=repr)
def test_everybody_sees_settled_weights(monkeypatch, dropout):
    seen = []

    def train():
        net = Net(**SMALL, dropout=dropout, callbacks=[lambda net, record: seen.append(weights(net))]).fit(X, Y)
        net.set_params(callbacks=None)
        return [*weights(net), net.predict_proba(X_TEST), *weights(pickle.loads(pickle.dumps(net))),
                *weights(net.partial_fit(X[:300], Y[:300]))]

    lazy, dense = (lazily(monkeypatch, lazy, train) for lazy in (True, False))
    for a, b in zip(lazy + sum(seen[:3], []), dense + sum(seen[3:], []), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_an_epoch_that_breaks_off_leaves_settled_weights(monkeypatch):
    def train():
        net = Net(**SMALL, dropout=Breaks(0.7))
        with pytest.raises(KeyboardInterrupt, match="interrupted after 1 whole epoch;"):
            net.fit(X, Y)
        return weights(net)

    for a, b in zip(*(lazily(monkeypatch, lazy, train) for lazy in (True, False)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_no_number_keeps_the_last_good_weights():
    def explode(net, record):
        if record["epoch"] == 2:
            net.optimizer_.parameters[0].data[:] = np.inf

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.warns(UserWarning, match="not finite in epoch 3.*learning_rate"):
            net = Net(**{**SMALL, "epochs": 20}, callbacks=[explode]).fit(X, Y)
        assert net.n_iter_ == 2 and same(weights(net), weights(Net(**{**SMALL, "epochs": 2}).fit(X, Y)))
        kept = weights(net)
        with pytest.raises(FloatingPointError, match="first epoch.*learning_rate"):
            net.set_params(learning_rate=1e30, callbacks=None).fit(X, Y)
    assert same(weights(net), kept) and net.n_iter_ == 2


def test_callbacks_see_the_net_and_can_stop_it():
    seen = []

    def stop_after_two(net, record):
        seen.append((record["epoch"], net.score(X_TEST, Y_TEST)))
        return record["epoch"] == 2

    net = Net(**{**SMALL, "epochs": 10}, callbacks=[stop_after_two]).fit(X, Y)
    assert [epoch for epoch, _ in seen] == [1, 2] and net.n_iter_ == 2


def test_a_callback_may_answer_with_a_numpy_bool():
    net = Net(**{**SMALL, "epochs": 10}, callbacks=[lambda net, record: np.float64(record["epoch"]) >= 2]).fit(X, Y)
    assert net.n_iter_ == 2


@pytest.mark.alone
@pytest.mark.usefixtures("interruptible")
def test_a_real_interrupt_ends_the_fit_after_a_step(monkeypatch):
    """Signals at random moments: whatever they hit, the fit ends, and BLAS has its threads again."""
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        for delay in np.random.default_rng(0).uniform(0.05, 0.4, 12):
            net = Net((256, 256), epochs=10_000, dropout="rdp", random_state=0)
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with warnings.catch_warnings(), contextlib.suppress(KeyboardInterrupt):
                warnings.simplefilter("ignore")
                net.fit(X, Y)
            timer.join()
            assert threads.count() == 2 and not threads._blas.inside
            assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"} == {2}


def test_early_stopping_keeps_the_best_weights():
    net = Net((64,), epochs=200, early_stopping=True, patience=3, random_state=0).fit(X, Y)
    scores = [record["validation_score"] for record in net.history_]
    assert net.n_iter_ < 200 and max(scores[-3:]) <= max(scores[:-3]) + 1e-4
    watched = Net((64,), epochs=200, early_stopping=True, patience=3, random_state=0)
    watched.fit(X, Y, validation=(X_TEST, Y_TEST))
    best = max(record["validation_score"] for record in watched.history_)
    assert watched.score(X_TEST, Y_TEST) == pytest.approx(best, abs=2e-4)


@pytest.mark.parametrize("schedule, last", [("linear", 1 / 3), ("cosine", 0.25), (lambda epoch: 0.1**epoch, 0.01)])
def test_schedules(schedule, last):
    net = Net(**SMALL, learning_rate_schedule=schedule).fit(X, Y)
    assert net.history_[0]["learning_rate"] == 0.01 and net.history_[-1]["learning_rate"] == pytest.approx(0.01 * last)
    assert net.optimizer_.learning_rate == 0.01


def test_layers_of_the_users_own():
    layers = [Linear(64, 48, rng=0), Tanh(), Linear(48, 24, rng=1), ReLU(), Linear(24, 10, rng=2)]
    before = layers[0].weight.numpy().copy()
    net = Net(layers, dropout=RowDropout(0.3), epochs=40, random_state=0).fit(X, Y)
    assert net.score(X_TEST, Y_TEST) > 0.9 and np.array_equal(layers[0].weight.numpy(), before)
    assert same(weights(net), weights(clone(net).fit(X, Y)))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "gelu"])
def test_activations_learn_under_patterns(activation):
    net = Net((64, 64), activation=activation, dropout="rdp", dropout_rate=0.3, optimizer="adam", learning_rate=0.005,
              epochs=40, random_state=0).fit(X, Y)
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


@pytest.mark.parametrize("precision", ["float16", None, 32])
def test_precision_is_one_of_two(precision):
    with pytest.raises(ValueError, match="precision must be 'float32' or 'tf32', got"):
        Net(precision=precision).fit(X, Y)


@pytest.mark.parametrize("n_jobs", [0, 1.5, "all"])
def test_n_jobs_must_be_a_number_of_threads(n_jobs):
    with pytest.raises(ValueError, match="n_jobs"):
        Net(n_jobs=n_jobs).fit(X, Y)


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


def test_labels_of_any_kind_and_pandas():
    frame = pd.DataFrame(X, columns=[f"pixel {i}" for i in range(64)])
    names = pd.Series(np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])[Y])
    net = Net(**{**SMALL, "epochs": 20}).fit(frame, names)
    assert net.score(pd.DataFrame(X_TEST, columns=frame.columns), names.unique()[0:1].repeat(len(X_TEST))) < 1
    assert set(net.predict(frame)) <= set(names) and list(net.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        net.predict(frame.rename(columns={"pixel 0": "other"}))


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


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_partial_fit_after_a_schedule_goes_on_at_its_last_rate(schedule):
    net = Net(**SMALL, learning_rate_schedule=schedule).fit(X, Y).partial_fit(X, Y).partial_fit(X, Y)
    rates = [record["learning_rate"] for record in net.history_]
    assert rates[2] == rates[3] == rates[4] > 0


def test_a_schedule_that_gives_nonsense_is_named():
    with pytest.raises(ValueError, match="learning_rate_schedule gave the factor -1"):
        Net(**SMALL, learning_rate_schedule=lambda epoch: -1).fit(X, Y)


def test_a_partial_fit_that_fails_leaves_everything_as_it_was():
    def fail(net, record):
        raise RuntimeError("full disk")

    net, other = (Net(**SMALL, dropout="rdp").fit(X, Y) for _ in range(2))
    with pytest.raises(RuntimeError, match="full disk"):
        net.set_params(callbacks=[fail]).partial_fit(X, Y)
    assert net.n_iter_ == len(net.history_) == 3
    net.set_params(callbacks=None).partial_fit(X, Y)
    assert same(weights(net), weights(other.partial_fit(X, Y)))


def test_adam_starts_anew_after_the_best_weights_were_restored():
    net = Net((32,), optimizer="adam", learning_rate=0.01, epochs=60, early_stopping=True, patience=2, random_state=0).fit(X, Y)
    assert net.optimizer_.steps == 0 and net.optimizer_.state == []


def test_a_regressor_needs_two_samples_to_score():
    with pytest.raises(ValueError, match="held-out"):
        NetRegressor(early_stopping=True).fit(X[:10], Y[:10])
    with pytest.raises(ValueError, match="minimum of 2"):
        NetRegressor(epochs=1).fit(X, Y, validation=(X[:1], Y[:1]))


def test_a_rate_beside_a_policy_object_is_refused():
    with pytest.raises(ValueError, match="policy object"):
        Net(**SMALL, dropout=RowDropout(0.5)).fit(X, Y, dropout_rate=0.7)
    assert Net(**SMALL, dropout=RowDropout(np.array([0.3, 0.5]))).fit(X, Y).n_iter_ == 3


# --- samples of any shape ---------------------------------------------------------------------------------------------
def images():
    return X.reshape(-1, 8, 8), [Flatten(), Linear(64, 32, rng=0), ReLU(), Linear(32, 10, rng=1)]


@pytest.mark.parametrize("dropout", ["none", RowDropout(0.3)], ids=str)
def test_images_train_as_their_pixels(dropout):
    pictures, layers = images()
    net = Net(layers, epochs=3, random_state=0, dropout=dropout).fit(pictures, Y)
    flat = Net(layers[1:], epochs=3, random_state=0, dropout=dropout).fit(X, Y)
    assert same(weights(net), weights(flat)) and net.input_shape_ == (8, 8)
    np.testing.assert_array_equal(net.predict(X_TEST.reshape(-1, 8, 8)), flat.predict(X_TEST))
    assert same(weights(pickle.loads(pickle.dumps(net)).partial_fit(pictures, Y)), weights(net.partial_fit(pictures, Y)))


@pytest.mark.parametrize("call, message", [
    (lambda net, x: net.fit(x[:, :7], Y), r"Linear\(64, 32\): it takes 64 features, and its input has \(56,\)"),
    (lambda net, x: net.fit(x, Y).predict(x[:, :7]), r"8 features|samples of shape \(7, 8\)"),
    (lambda net, x: net.fit(x, Y).predict(x[:, :, :7]), r"samples of shape \(8, 7\), and Net expects \(8, 8\)"),
    (lambda net, x: Net((32,)).fit(x, Y), "dim 3"),
    (lambda net, x: Net([*net.layers, Linear(10, 7)]).fit(x, Y), "must give 10 outputs, not \\(7,\\) a sample"),
    (lambda net, x: Net([Flatten(), ReLU()]).fit(x, Y), "nothing to train")])
def test_shapes_that_do_not_fit_are_named_before_training(call, message):
    pictures, layers = images()
    with pytest.raises(ValueError, match=message):
        call(Net(layers, epochs=1), pictures)


# --- random streams, and going back -----------------------------------------------------------------------------------
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


@pytest.mark.parametrize("dropout", ["none", "bernoulli", RowDropout(0.6), TileDropout(0.5, tile=4)], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_fit_that_breaks_with_nobody_watching_goes_back_to_the_epoch_before(monkeypatch, dropout, optimizer):
    """Weights are not copied after each epoch then: what was learned since is learned again, the same."""
    options = {**SMALL, "epochs": 9, "dropout": dropout, "optimizer": optimizer, "learning_rate": 0.003}
    monkeypatch.setattr(recovery, "APART", 48)  # four epochs
    epochs, original = [], loop.epoch

    def breaking(run, *given):
        record, broken = original(run, *given)
        epochs.append(record["loss"])
        steps = run.optimizer.steps // 12
        return {**record, "loss": np.nan} if steps == 7 else record, broken

    monkeypatch.setattr(loop, "epoch", breaking)
    with pytest.warns(UserWarning, match="not finite in epoch 7: .* weights of epoch 6"):
        net = Net(**options).fit(X[:1436], Y[:1436])
    assert net.n_iter_ == 6 and len(epochs) > 7
    assert [record["loss"] for record in net.history_] == pytest.approx(epochs[:6], rel=1e-5)
    whole = Net(**{**options, "epochs": 6}).fit(X[:1436], Y[:1436])
    for ours, theirs in zip(weights(net), weights(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_weights_that_break_unseen_are_found_at_the_end_at_the_latest(monkeypatch):
    """The last step of the fifth epoch breaks what no loss shows."""
    def breaking(run, *given, original=loop.epoch):
        record, broken = original(run, *given)
        if run.optimizer.steps == 60:
            run.optimizer.parameters[-1].data[0] = np.inf
        return {**record, "loss": 1.0}, broken

    monkeypatch.setattr(loop, "epoch", breaking)
    with pytest.warns(UserWarning, match="weights of epoch 4"):
        net = Net(**{**SMALL, "epochs": 5}).fit(X[:1436], Y[:1436])
    assert net.n_iter_ == 4 and all(np.isfinite(w).all() for w in weights(net))
