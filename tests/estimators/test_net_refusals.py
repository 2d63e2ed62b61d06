"""What Net refuses, by name, before training, and without a change of what was there."""

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array

from numbanet import Adam, EarlyDropout, Flatten, LanguageModel, Linear, Net, NetRegressor, ReLU, RowDropout, TileDropout
from numbanet.device import problem
from numbanet.dropout import Together
from tests.estimators.test_net import SMALL, X_TEST, Y_TEST, X, Y, same, weights

BAD_FITS = {
    "NaN": (lambda net: net.fit(np.where(X > 0.9, np.nan, X), Y), "NaN"),
    "infinity": (lambda net: net.fit(np.where(X > 0.9, np.inf, X), Y), "infinity"),
    "too large for float32": (lambda net: net.fit(X.astype(float) * 1e300, Y), "too large"),
    "lengths": (lambda net: net.fit(X, Y[:-1]), "inconsistent numbers of samples"),
    "no samples": (lambda net: net.fit(X[:0], Y[:0]), "0 sample"),
    "no features": (lambda net: net.fit(X[:, :0], Y), "0 feature"),
    "None": (lambda net: net.fit(X[:3], ["a", None, "b"]), "y holds None, first for sample 1: leave samples without"),
    "None among numbers": (lambda net: net.fit(X[:3], [0, 1, None]), "y holds None, first for sample 2"),
    "one class": (lambda net: net.fit(X, np.zeros(len(Y))), "one class"),
    "dropout": (lambda net: net.fit(X, Y, dropout="dropconnect"), "'dropconnect'.*'rdp'"),
    "rate of 1": (lambda net: net.fit(X, Y, dropout="rdp", dropout_rate=1.0), r"\[0, 1\)"),
    "negative rate": (lambda net: net.fit(X, Y, dropout_rate=-0.1), r"\[0, 1\)"),
    "rates": (lambda net: net.fit(X, Y, dropout="rdp", dropout_rate=(0.1, 0.2, 0.3)), "3 entries for 2"),
    "width": (lambda net: net.partial_fit(X[:, :-1], Y), "63 features"),
    "label": (lambda net: net.partial_fit(X, Y + 1), r"labels.*\[10\]"),
    "classes": (lambda net: net.partial_fit(X, Y, classes=[0, 1]), "differ"),
    "number of classes": (lambda net: net.partial_fit(X, Y, classes=10), "classes must be a list of labels, .* got 10"),
    "ragged classes": (lambda net: net.partial_fit(X, Y, classes=[[0], [1, 2]]), "classes must be a list of labels"),
    "sample_weight": (lambda net: net.fit(X, Y, sample_weight=-np.ones(len(Y))), "[Nn]egative"),
    "sample_weight 0": (lambda net: net.fit(X, Y, sample_weight=np.zeros(len(Y))), "zero for every sample|non-zero"),
    "validation": (lambda net: net.fit(X, Y, validation=3), "pair"),
    "validation width": (lambda net: net.fit(X, Y, validation=(X[:, 1:], Y)), "63 features"),
    **{
        f"{name}={getattr(value, '__name__', value)!r}": (
            lambda net, name=name, value=value: net.set_params(**{name: value}).fit(X, Y),
            message,
        )
        for name, value, message in [
            ("epochs", 0, "epochs"),
            ("batch_size", 1.5, "batch_size"),
            ("learning_rate", -1, "learning_rate"),
            ("momentum", 1.0, "momentum"),
            ("optimizer", "rmsprop", "'rmsprop'; choose 'sgd', 'adam'"),
            ("optimizer", "Adam", r"'Adam'; did you mean 'adam'\? Choose 'sgd'"),
            ("activation", "swish", "'swish'"),
            ("layers", (0,), "layers"),
            ("layers", "big", "layers"),
            ("learning_rate_schedule", "step", "learning_rate_schedule"),
            ("device", "tpu", "'tpu'"),
            ("validation_fraction", 1.0, "validation_fraction"),
            ("callbacks", [1], "callbacks"),
            ("callbacks", print, "callbacks"),
            ("verbose", -1, "verbose must be 0 or 1, got -1"),
            ("image_shape", "nonsense", r"image_shape must be \(C, H, W\) with 64 values, as X has, got 'nonsense'"),
            ("image_shape", 5, "image_shape must be .* got 5"),
            ("image_shape", (1, 28, 28), r"image_shape must be \(C, H, W\) with 64 values, as X has, got \(1, 28, 28\)"),
            ("learning_rate_schedule", [1, 0.5], r"learning_rate_schedule must be .* function of the epoch, got \[1, 0.5\]"),
            ("learning_rate_schedule", {0: 1}, r"learning_rate_schedule must be .* function of the epoch, got \{0: 1\}"),
            ("learning_rate_schedule", np.ones(2), r"learning_rate_schedule must be .* function of the epoch, got array"),
            ("activation", ["relu"], "activation"),
            ("dropout", ["rdp"], "no dropout"),
            ("class_weight", {77: 5.0}, r"\[77\]"),
            ("class_weight", {0: "x"}, "numbers"),
            ("learning_rate_schedule", lambda epoch: None, "factor None"),
            ("class_weight", "even", "class_weight"),
            ("layers", [Linear(3, 10)], "Linear\\(3, 10\\): it takes 3 features"),
        ]
    },
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


@pytest.mark.parametrize("precision", ["float16", None, 32])
def test_precision_is_one_of_two(precision):
    with pytest.raises(ValueError, match="precision must be 'float32' or 'tf32', got"):
        Net(precision=precision).fit(X, Y)


@pytest.mark.parametrize("n_jobs", [0, 1.5, "all"])
def test_n_jobs_must_be_a_number_of_threads(n_jobs):
    with pytest.raises(ValueError, match="n_jobs"):
        Net(n_jobs=n_jobs).fit(X, Y)


def test_a_schedule_that_gives_nonsense_is_named():
    with pytest.raises(ValueError, match="learning_rate_schedule gave the factor -1"):
        Net(**SMALL, learning_rate_schedule=lambda epoch: -1).fit(X, Y)


def test_a_schedule_and_callbacks_are_checked_before_training():
    seen = []
    options = {**SMALL, "epochs": 4, "callbacks": [lambda net, record: seen.append(record)]}
    with pytest.raises(TypeError, match="^callbacks: <function .* must take two arguments, the estimator and the record"):
        Net(**{**options, "callbacks": [*options["callbacks"], lambda net: None]}).fit(X, Y)
    with pytest.raises(TypeError, match="^learning_rate_schedule: <function .* must take one argument, the epoch"):
        Net(**options, learning_rate_schedule=lambda: 0.5).fit(X, Y)
    with pytest.raises(TypeError, match="^learning_rate_schedule: EarlyDropout is a class; give an object of it"):
        Net(**options, learning_rate_schedule=EarlyDropout).fit(X, Y)
    assert seen == []
    # a function of the epoch is called when its epoch begins, because it may read what was learned until then
    with pytest.raises(ValueError, match="learning_rate_schedule gave the factor -1 for epoch 3"):
        Net(**options, learning_rate_schedule=lambda epoch: -1 if len(seen) == 3 else 0.5).fit(X, Y)
    assert len(seen) == 3
    seen.clear()
    Net(**options, learning_rate_schedule=lambda epoch: 1 / len(seen) if epoch else 1.0).fit(X, Y)  # it reads the training
    assert [record["learning_rate"] / seen[0]["learning_rate"] for record in seen] == pytest.approx([1, 1, 1 / 2, 1 / 3])


def test_a_regressor_needs_two_samples_to_score():
    with pytest.raises(ValueError, match="held-out"):
        NetRegressor(early_stopping=True).fit(X[:10], Y[:10])
    with pytest.raises(ValueError, match="minimum of 2"):
        NetRegressor(epochs=1).fit(X, Y, validation=(X[:1], Y[:1]))


def test_a_rate_beside_a_policy_object_is_refused():
    with pytest.raises(ValueError, match="policy object"):
        Net(**SMALL, dropout=RowDropout(0.5)).fit(X, Y, dropout_rate=0.7)
    assert Net(**SMALL, dropout=RowDropout(np.array([0.3, 0.5]))).fit(X, Y).n_iter_ == 3


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


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda net, x: net.fit(x[:, :7], Y), r"Linear\(64, 32\): it takes 64 features, and its input has \(56,\)"),
        (lambda net, x: net.fit(x, Y).predict(x[:, :7]), r"8 features|samples of shape \(7, 8\)"),
        (lambda net, x: net.fit(x, Y).predict(x[:, :, :7]), r"samples of shape \(8, 7\), and Net expects \(8, 8\)"),
        (lambda net, x: Net((32,)).fit(x, Y), "take flat samples"),
        (lambda net, x: Net([*net.layers, Linear(10, 7)]).fit(x, Y), "must give 10 outputs, not \\(7,\\) per sample"),
        (lambda net, x: Net([Flatten(), ReLU()]).fit(x, Y), "nothing to train"),
    ],
)
def test_shapes_that_do_not_fit_are_named_before_training(call, message):
    pictures, layers = images()
    with pytest.raises(ValueError, match=message):
        call(Net(layers, epochs=1), pictures)


def test_rates_are_counted_where_they_are_used():
    """A policy of tiles may have a rate for the output; a network that goes on may have another number of rates."""
    policy = TileDropout((0.5, 0.5, 0.5), answer=True, tile=8)
    assert Net((64, 64), dropout=policy, epochs=1).fit(X, Y).policy_.rate == policy.rate
    with pytest.raises(ValueError, match="2 entries for 3"):
        Net((64, 64), dropout=TileDropout((0.5, 0.5), answer=True, tile=8), epochs=1).fit(X, Y)
    pictures, labels = np.random.default_rng(0).random((40, 1, 28, 28)), np.arange(40) % 10
    net = Net("lenet5", epochs=1).fit(pictures, labels)
    for rates in ([0.5], [0.5] * 5):
        with pytest.raises(ValueError, match=f"{len(rates)} entries for"):
            net.partial_fit(pictures, labels, dropout="rdp", dropout_rate=rates)


def test_names_of_classes_are_no_numbers_and_auto_is_no_kind():
    with pytest.raises(ValueError, match="y holds texts"):
        NetRegressor(epochs=1).fit(X, np.array(["a", "b"] * (len(X) // 2) + ["a"] * (len(X) % 2), object))
    for texts in (["a"] * len(X), np.array(["a"] * len(X)), [["a", "b"]] * len(X)):
        with pytest.raises(ValueError, match=r"y holds texts \(could not convert.*'a'\): NetRegressor learns numbers, and Net"):
            NetRegressor(epochs=1).fit(X, texts)
    with pytest.raises(TypeError, match=r"y is a sparse csr_array, and NetRegressor takes dense targets: give y.toarray\(\)"):
        NetRegressor(epochs=1).fit(X, csr_array(np.ones((len(X), 1))))
    with pytest.raises(ValueError, match="y holds None, first for sample 2"):
        NetRegressor(epochs=1).fit(X[:4], [[0, 1], [1, 2], [1, None], [1, 1]])
    with pytest.raises(ValueError, match="X holds texts"):
        NetRegressor(epochs=1).fit(np.full((4, 2), "a", object), np.arange(4))
    with pytest.raises(ValueError, match="chosen by Net and NetRegressor.*'window'"):
        LanguageModel(dropout="auto", epochs=1).fit("a b c d " * 50)


@pytest.mark.parametrize(
    "given, ways",
    [
        ({"clip_norm": 1e-9}, "'adam' with it.*Adam.*clip_norm=1e-09"),
        ({"weight_decay": 0.1}, "'adam' with it.*Adam.*weight_decay=0.1"),
        ({"momentum": 0.5}, "'sgd' with it.*SGD.*momentum=0.5"),
        ({"nesterov": True}, "'sgd' with it.*SGD.*momentum=0.9, nesterov=True"),
    ],
    ids=str,
)
def test_what_an_own_optimizer_does_not_get_is_refused(given, ways):
    for optimizer in (Adam, lambda parameters, rate: Adam(parameters, rate)):
        with pytest.raises(ValueError, match=f"has no effect if optimizer is a function or a class.*optimizer={ways}"):
            Net(**{**SMALL, **given}, optimizer=optimizer).check()
    assert Net(**SMALL, optimizer=Adam).fit(X, Y).n_iter_ == 3


@pytest.mark.parametrize(
    "factor, problem", [(1e39, "is beyond float32"), (1e300, "is beyond float32"), (1e-150, "values differ by")]
)
def test_targets_that_float32_cannot_hold_are_refused(factor, problem):
    with pytest.raises(ValueError, match=f"y: .*{problem}.* scale y, as TransformedTargetRegressor does"):
        NetRegressor((4,), epochs=1, random_state=0).fit(X, X.astype(float).sum(axis=1) * factor)


@pytest.mark.parametrize("factor", [1e-36, 1e30])
def test_small_and_large_targets_are_learnt_as_others(factor):
    net, other = (NetRegressor((8,), epochs=2, random_state=0) for _ in range(2))
    y = X.astype(float).sum(axis=1)
    np.testing.assert_allclose(net.fit(X, factor * y).predict(X) / factor, other.fit(X, y).predict(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "rates, message", [((0.1,), "1 entries for 2"), ((0.1, 0.2, 0.3), "3 entries for 2"), ((0.1, 0.2), None)]
)
def test_rates_of_policies_that_are_combined_are_counted(rates, message):
    net = Net(
        (32, 16), **{name: value for name, value in SMALL.items() if name != "layers"}, dropout=Together(RowDropout(rates))
    )
    if message is None:
        assert net.fit(X, Y).history_[0]["flops_share"] < 1
        return
    with pytest.raises(ValueError, match=f"dropout_rate has {message} hidden layers"):
        net.fit(X, Y)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"class_weight": "foo"}, "class_weight must be a dict, 'balanced' or None, got 'foo'"),
        ({"class_weight": {0: np.nan}}, "class_weight must be finite and not negative"),
        ({"random_state": "abc"}, "random_state must be None, a seed or a RandomState, got 'abc'"),
        ({"random_state": -1}, "random_state must be None, a seed or a RandomState, got -1"),
        ({"parallel": "foo"}, "parallel must be None, 'mpi' or a Ranks, got 'foo'"),
        ({"shard": "x"}, "shard must be True, False or a function"),
        ({"augment": lambda x: x}, "augment: <function .* must take three arguments, x, rng and dev"),
        ({"scoring": lambda net: 1.0}, "scoring: <function .* must take three arguments, the estimator, X and y"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else value,
)
def test_parameters_are_checked_without_data(given, message):
    net = Net((8,), epochs=1, **given)
    for call in (net.check, lambda: net.fit(X, Y, validation=(X, Y))):
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    assert not hasattr(net, "model_")


@pytest.mark.parametrize(
    "given, message",
    [
        ({"unknown": 5}, "unknown must be a word, got 5"),
        ({"vocabulary_size": 0}, "vocabulary_size must be a positive integer, got 0"),
        ({"scoring": lambda model: 1.0}, "scoring: <function .* must take two arguments, the model and the tokens"),
        ({"random_state": "abc"}, "random_state must be"),
        ({"parallel": "x"}, "parallel must be"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else value,
)
def test_parameters_of_a_language_model_are_checked_without_text(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        LanguageModel((8,), **given).check()


def test_a_named_scorer_is_tried_before_training_and_its_errors_say_what_failed():
    seen = []
    options = {**SMALL, "callbacks": [lambda net, record: seen.append(1)]}
    with pytest.raises(ValueError, match="^scoring: ValueError: multi_class must be in"):
        Net(**options, scoring="roc_auc", early_stopping=True).fit(X, Y)
    with pytest.raises(ValueError, match="^scoring: "):
        NetRegressor((8,), epochs=2, callbacks=options["callbacks"], scoring="accuracy").fit(
            X, Y + 0.5, validation=(X, Y + 0.5)
        )
    assert not seen
    with pytest.raises(ValueError, match="^scoring: KeyError: 'no column'"):
        Net(**options, scoring=lambda net, X, y: {}["no column"]).fit(X, Y, validation=(X_TEST, Y_TEST))
    assert not seen
    named, by_function = (
        Net(**SMALL, dropout="rdp", scoring=scoring).fit(X, Y, validation=(X_TEST, Y_TEST))
        for scoring in ("accuracy", lambda net, X, y: net.score(X, y))
    )
    assert same(weights(named), weights(by_function))
