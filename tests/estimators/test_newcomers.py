"""What newcomers met: a message that says what to do, or a result that they expected."""

import inspect
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from numbanet import (
    BernoulliDropout,
    Conv2d,
    Dropout,
    Flatten,
    GroupLasso,
    LanguageModel,
    Layer,
    Linear,
    Net,
    NetRegressor,
    ReLU,
    RowDropout,
    Sequential,
    Tensor,
    io,
    ops,
    user_warnings,
)
from numbanet.cli.tables import print_table
from numbanet.datasets import load_digits

X, Y, _, _ = load_digits()
SMALL = {"epochs": 1, "random_state": 0, "device": "cpu"}


# --- inputs and functions ---------------------------------------------------------------------------------------------
def test_texts_in_a_table_are_named():
    X = np.array([["x", 1.0], ["y", 2.0]] * 4, object)
    with pytest.raises(ValueError, match=r"X holds texts \(could not convert string to float: 'x'\): .*\(OneHotEncoder\(\)"):
        Net((4,), **SMALL).fit(X, np.arange(8) % 2)


def test_functions_of_files_name_the_step_of_a_pipeline():
    fitted = make_pipeline(StandardScaler(), Net((4,), **SMALL)).fit(X[:40], Y[:40])
    for function in (
        io.to_torch,
        io.model_card,
        lambda net: io.report(net, "net.html"),
        lambda net: io.export(net, "net.onnx"),
    ):
        with pytest.raises(TypeError, match=r"estimator.*not a? ?Pipeline"):
            function(fitted)


def test_several_layers_are_given_as_a_list():
    with pytest.raises(TypeError, match=r"Sequential takes one list of layers: Sequential\(\[first"):
        Sequential(Linear(4, 3), Linear(3, 2))


# --- layers -----------------------------------------------------------------------------------------------------------
def test_pytorchs_forward_is_refused_where_the_class_is_defined():
    with pytest.raises(TypeError, match=r"Twice: forward takes \(flow, context\), .* called __call__\(self, x\) here"):

        class Twice(Layer):
            def forward(self, x):
                return x + x

    class Any(Layer):
        def forward(self, *arguments):
            return arguments[0]

    assert Any().forward(1, 2) == 1


@pytest.mark.parametrize(
    "layers, message",
    [
        (
            lambda: [Linear(64, 8), Dropout(0.5), Linear(8, 10)],
            r"Dropout is no kind of dropout, .* and no layer: .*Net\(layers",
        ),
        (
            lambda: [Linear(64, 8), BernoulliDropout(0.5), Linear(8, 10)],
            r"BernoulliDropout\(rate=0.5\) is not a Layer; it is a kind",
        ),
        (lambda: [Linear(64, 8), np.tanh], "is not a Layer; make a subclass"),
        (lambda: [Linear(64, 8), ReLU, Linear(8, 10)], r"ReLU.*is not a Layer; make an object of the class: ReLU\(\.\.\.\)"),
    ],
)
def test_dropout_among_layers(layers, message):
    with pytest.raises(TypeError, match=message):
        Net(layers(), **SMALL).fit(X, Y)
    with pytest.raises(TypeError, match=message):
        Sequential(layers())


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"dropout": RowDropout}, TypeError, r"RowDropout is a class; give an object of it, such as RowDropout\(0.5\)"),
        ({"device": None}, ValueError, "there is no device None; choose one of 'auto', 'cpu'"),
        ({"device": 0}, ValueError, "there is no device 0"),
    ],
)
def test_classes_and_devices_that_are_none(options, error, message):
    with pytest.raises(error, match=message):
        Net((8,), **{**SMALL, **options}).fit(X, Y)


def test_a_missing_flatten_is_named():
    layers = [Conv2d(1, 2, 3), ReLU(), Linear(72, 10)]
    with pytest.raises(ValueError, match=r"its input has \(6,\) of \(2, 6, 6\): put Flatten\(\) before it"):
        Net(layers, **SMALL).fit(X.reshape(-1, 1, 8, 8), Y)


def test_a_policy_without_a_plan_is_refused_when_it_is_made():
    class Nothing(Dropout):
        name = "nothing"

    with pytest.raises(TypeError, match="Nothing is no kind of dropout, as it has no method plan"):
        Nothing(0.5)


def test_ops_show_what_callers_give():
    assert [*inspect.signature(ops.softmax_cross_entropy).parameters] == ["logits", "labels", "weights", "label_smoothing"]
    message = r"softmax_cross_entropy: 2 inputs given, but it has 1, logits; give the others by name: labels=…, weights=…"
    with pytest.raises(TypeError, match=message):
        ops.softmax_cross_entropy(Tensor(X[:4, :10]), Y[:4])


# --- samples ----------------------------------------------------------------------------------------------------------
IMAGES, CLASSES = np.random.default_rng(0).random((40, 12, 12), np.float32), np.arange(40) % 2


def test_images_of_one_channel():
    flat = r"X \(40, 12, 12\): layers that are given by their widths take flat samples, X.reshape\(len\(X\), -1\)"
    with pytest.raises(ValueError, match=flat):
        Net((8,), **SMALL).fit(IMAGES, CLASSES)
    with pytest.raises(ValueError, match=r"set image_shape=\(1, 12, 12\), or give X\[:, None\]"):
        Net("lenet5", **SMALL).fit(IMAGES, CLASSES)
    named = Net("lenet5", image_shape=(1, 12, 12), **SMALL).fit(IMAGES, CLASSES)  # what the message says
    given = Net("lenet5", **SMALL).fit(IMAGES[:, None], CLASSES)
    for net in (named, given):
        np.testing.assert_array_equal(net.predict_proba(IMAGES[:, None]), named.predict_proba(IMAGES.reshape(40, -1)))
    np.testing.assert_array_equal(named.predict_proba(IMAGES), given.predict_proba(IMAGES[:, None]))


def test_images_that_do_not_fit_their_shape():
    for shape in ((12, 12), (1, 12, 11), (3, 12, 12)):
        with pytest.raises(ValueError, match=r"image_shape must be \(1, 12, 12\) for X \(40, 12, 12\), images of one channel"):
            Net("lenet5", image_shape=shape, **SMALL).fit(IMAGES, CLASSES)
    with pytest.raises(ValueError, match=r"got \(12, 14, 3\); channels come first: X.transpose\(0, 3, 1, 2\)"):
        Net("lenet5", **SMALL).fit(np.ones((4, 12, 14, 3)), CLASSES[:4])
    with pytest.raises(ValueError, match=r"it takes images \(1, H, W\), .*; for images of one channel give X\[:, None\]"):
        Net([Conv2d(1, 2, 3), Flatten(), Linear(200, 2)], **SMALL).fit(IMAGES, CLASSES)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"validation_data": (X, Y)}, r"fit has no argument 'validation_data'; did you mean 'validation'\?"),
        ({"epochs": 3}, r"fit has no argument 'epochs'; it is a parameter of the estimator: Net\(\.\.\., epochs=\.\.\.\)"),
        ({"zzz": 1}, "fit has no argument 'zzz'; it has X, y, sample_weight, "),
    ],
)
def test_arguments_of_fit_of_other_libraries(given, message):
    with pytest.raises(TypeError, match=message):
        Net((8,), **SMALL).fit(X, Y, **given)


def test_one_hot_classes_are_learned_as_labels_with_a_warning():
    with pytest.warns(UserWarning, match=r"exactly one 1 in each row: .* give y.argmax\(axis=1\)"):
        net = Net((8,), **SMALL).fit(X, np.eye(10)[Y])
    assert net.predict(X).shape == (len(X), 10)
    labels = np.eye(10)[Y]
    labels[0, :2] = 1  # a sample with two labels
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "y has exactly one")
        warnings.filterwarnings("ignore", "fit: the network")
        Net((8,), **SMALL).fit(X, labels)


def test_sentences_are_no_words():
    sentences = ["the cat sat on the mat", "and the dog sat on the rug"] * 30
    with pytest.raises(ValueError, match=r"its elements are sentences, such as 'the cat .* give ' '.join\(text\).split\(\)"):
        LanguageModel((4,), epochs=1).fit(sentences)
    words = " ".join(sentences).split()
    model = LanguageModel((4,), epochs=1, steps=5, batch_size=2).fit(words)
    phrases = ["the cat", "sat on"] * 60  # tokens of two words may be meant
    assert len(LanguageModel((4,), epochs=1, steps=5, batch_size=2).fit(phrases).vocabulary_) == 3
    with pytest.raises(ValueError, match="text: .*sentences"):
        model.perplexity(sentences)
    short = r"text: at least 21 tokens needed, got 6: batch_size=20 segments .*; give a longer text, or a smaller batch_size"
    with pytest.raises(ValueError, match=short):
        LanguageModel((4,)).fit(words[:6])


# --- parameters -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name, message",
    [
        ("max_fun", "has no parameter 'max_fun': here it is 'epochs'; there is no L-BFGS"),
        ("epoch", "has no parameter 'epoch'; did you mean 'epochs'?"),
        ("dropout_rat", "did you mean 'dropout_rate'?"),
    ],
)
def test_parameters_of_other_names(name, message):
    with pytest.raises(TypeError, match=message.replace("?", r"\?")):
        Net(**{name: 3})
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        Net().set_params(**{name: 3})


@pytest.mark.parametrize(
    "kind, loss, message",
    [
        (NetRegressor, "mse", "no loss 'mse'; here it is 'squared_error'; choose"),
        (NetRegressor, "poisson", r"no loss 'poisson'; for counts give FunctionLoss\(lambda output, y: .*link="),
        (Net, "log_loss", "no loss 'log_loss'; here it is 'cross_entropy'; choose"),
        (Net, "poisson", "no loss 'poisson'; choose 'cross_entropy'"),
        (Net, "mse", "no loss 'mse'; choose 'cross_entropy'"),
    ],
)
def test_losses_of_other_names(kind, loss, message):
    with pytest.raises(ValueError, match=message):
        kind((4,), loss=loss, **SMALL).fit(X, Y)


def test_the_loss_for_counts_that_the_message_names():
    from numbanet import losses

    counts = np.random.default_rng(0).poisson(np.exp(X[:, 20] * 2))
    loss = eval(losses.COUNTS, {"FunctionLoss": losses.FunctionLoss})
    net = NetRegressor((16,), loss=loss, epochs=20, random_state=0).fit(X, counts)
    assert net.score(X, counts) > 0.2 and (net.predict(X) > 0).all()


# --- results ----------------------------------------------------------------------------------------------------------
def test_predictions_have_the_type_of_x_as_in_scikit_learn():
    y = X[:, 20]
    ours = NetRegressor((4,), **SMALL).fit(X, y)
    for kind in (np.float32, np.float64):
        theirs = MLPRegressor(hidden_layer_sizes=(4,), max_iter=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has not converged
            theirs.fit(X.astype(kind), y.astype(kind))
        found, expected = ours.predict(X.astype(kind)), theirs.predict(X.astype(kind))
        assert found.dtype == expected.dtype == kind
    np.testing.assert_allclose(ours.predict(X.astype(np.float64)), ours.predict(X), rtol=1e-5)
    assert ours.predict(X.tolist()).dtype == np.float64


@pytest.mark.parametrize("offset", [2_460_000.5, 1.7e9])
def test_predictions_far_from_zero_keep_their_spread(offset):
    """Such as days or seconds since a date: float32 has steps of 0.25 and of 128 there."""
    y = 0.05 * X[:, 20].astype(np.float64)
    near, far = (NetRegressor((16,), epochs=10, random_state=0).fit(X, values) for values in (y, y + offset))
    found = far.predict(X)
    assert found.dtype == np.float64 and len(np.unique(found)) > len(X) / 2
    assert far.score(X, y + offset) == pytest.approx(near.score(X, y), abs=0.02)
    assert near.predict(X).dtype == np.float32


def test_a_lasso_that_removes_nothing_says_what_would():
    options = {"epochs": 6, "random_state": 0, "device": "cpu", "learning_rate": 0.05}
    with pytest.warns(UserWarning, match=r"strength=1e-06 has removed nothing in 3 epochs of 33 steps; about") as caught:
        Net((32,), sparsity=GroupLasso(1e-6), **options).fit(X, Y)
    (message,) = (str(one.message) for one in caught if "removed nothing" in str(one.message))
    strength = float(message.split("about ")[1].split()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = Net((32,), sparsity=GroupLasso(strength), **options).fit(X, Y)
        Net((32,), sparsity=GroupLasso(0.0), **options).fit(X, Y)  # without a penalty nothing is expected
    assert net.history_[-1]["weights_kept"] < 0.9


def test_a_search_warns_once(monkeypatch):
    monkeypatch.setattr(user_warnings, "_issued", set())
    grid = {"dropout": ["none", "tdp"], "batch_size": [64, 128], "epochs": [1, 2]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        GridSearchCV(Net((8,), dropout_rate=0.3, random_state=0), grid, cv=2).fit(X, Y)
    said = [str(one.message) for one in caught]
    assert not any("drops nothing" in text for text in said) and sum("32 x 32" in text for text in said) == 1
    assert all(one.filename == __file__ for one in caught)
    with pytest.warns(UserWarning, match="drops nothing"):
        Net((8,), dropout_rate=0.3, **SMALL).fit(X, Y)  # outside of a search


LOOP = """
from numbanet import Net
from numbanet.datasets import load_digits

X, y, _, _ = load_digits()
for _ in range(3):
    Net((8,), dropout_rate=0.3, epochs=1, random_state=0).fit(X[:40], y[:40])
if {again}:  # a cell of a notebook that is run again
    del __warningregistry__
    Net((8,), dropout_rate=0.3, epochs=1, random_state=0).fit(X[:40], y[:40])
"""


@pytest.mark.slow
@pytest.mark.parametrize("action, again, count", [("default", False, 1), ("always", False, 3), ("default", True, 2)])
def test_a_loop_over_fits_warns_once_unless_a_filter_says_otherwise(action, again, count):
    command = [sys.executable, "-W", action, "-c", LOOP.format(again=again)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120).stderr
    assert said.count("UserWarning: dropout_rate=0.3 drops nothing") == count, said


def test_tables_cut_nothing_off(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    names = "a_kernel_with_a_name_as_long_as_this_one", "another_one_that_is_longer_than_the_rest"
    print_table("", ("operation", "kernel", "issued"), [(*names, "123")], narrow=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40 and not any("…" in line for line in lines)
    columns = zip(*(line.split() for line in lines if line.count("_") >= 2 and len(line.split()) >= 2))
    assert all(name.startswith(next(iter(parts))) for name, parts in zip(names, columns))
