"""A fit that learns nothing says so, once, at the user's line; a parameter that does nothing, or is another's, is named."""

import re
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, make_multilabel_classification
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from numbanet import Flatten, LanguageModel, Linear, Net, NetRegressor, NoDropout, ReLU, RowDropout, SparseLinear, TileDropout
from numbanet.datasets import load_digits
from numbanet.dropout import policy
from numbanet.training.baseline_check import unfinished

X, Y, X_TEST, Y_TEST = load_digits()
CANCER, DIABETES = load_breast_cancer(return_X_y=True), load_diabetes(return_X_y=True)
FAST = {"epochs": 3, "random_state": 0, "device": "cpu"}


def said(call):
    """The warnings of a call, as (text, file)."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [(str(warning.message), warning.filename) for warning in found]


RARE = (Y == 3).astype(int) * (np.arange(len(Y)) % 5 == 0)
SEVERAL = make_multilabel_classification(400, 10, random_state=0)

NOTHING = {  # fits that learn nothing, and what is said of them
    "raw features": (
        lambda: Net(random_state=0).fit(*CANCER),
        r"no better than always predicting the most frequent class "
        r"\(score 0\.627, baseline 0\.627\); try the inputs, which are of size \d+, scaled to about 1, as by "
        r"make_pipeline\(StandardScaler\(\), \.\.\.\), a smaller learning_rate",
    ),
    "bytes": (lambda: Net((256, 256), **FAST).fit(255 * X, Y), "no better .* size 1.., scaled"),
    "bytes, a little learned": (
        lambda: Net((256,), **FAST, learning_rate=1e-6).fit(255 * X, Y),
        "hardly better .* size 1.., scaled to about 1",
    ),
    "images": (
        lambda: Net([Flatten(), Linear(64, 10, rng=0)], **FAST, learning_rate=1e-9).fit(255 * X.reshape(-1, 8, 8), Y),
        "of size 1.., scaled to about 1, as by a Normalize layer",
    ),
    "dropout": (
        lambda: Net((64, 64), **FAST, dropout="rdp", learning_rate=1e-5).fit(X, Y),
        "try inputs scaled .* less dropout, ",
    ),
    "learning_rate": (lambda: Net((64, 64), **FAST, learning_rate=10).fit(X, Y), "no better .* a smaller learning_rate"),
    "early stopping": (lambda: Net((64,), **FAST, learning_rate=10, early_stopping=True).fit(X, Y), "no better"),
    "a rare class": (lambda: Net(**FAST).fit(X, RARE), "always predicting the most frequent class.* class_weight=.balanced.$"),
    "several labels": (
        lambda: Net(**FAST, learning_rate=1e-6).fit(*SEVERAL),
        "always predicting the most frequent labels.* more epochs$",
    ),
    "weights": (lambda: Net(**FAST, class_weight="balanced", learning_rate=10).fit(X, Y), "no better"),
    "numbers": (
        lambda: NetRegressor(random_state=0, epochs=5, learning_rate=1e-7).fit(*CANCER),
        "no better than always predicting the mean",
    ),
}
SOMETHING = {  # fits that learn
    "digits": lambda: Net((64,), **FAST).fit(X, Y),
    "scaled": lambda: make_pipeline(StandardScaler(), Net(**FAST)).fit(*CANCER),
    "much dropout": lambda: Net((256,), **{**FAST, "epochs": 10}, dropout="bernoulli", dropout_rate=0.9).fit(X, Y),
    "by loss": lambda: Net(**{**FAST, "epochs": 20}, learning_rate=0.1).fit(X, RARE + (np.arange(len(Y)) == 0)),
    "diabetes": lambda: NetRegressor(random_state=0).fit(*DIABETES),
    "large inputs": lambda: Net((64,), **FAST, learning_rate=1e-4).fit(64 * X, Y),
    "one batch": lambda: Net(**FAST).partial_fit(255 * X[:128], Y[:128], classes=np.arange(10)),
    "a constant": lambda: NetRegressor(**FAST).fit(X, np.ones(len(X))),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_fit_that_learned_nothing_says_so_once(name):
    call, message = NOTHING[name]
    ((text, file),) = said(call)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(text)
    assert file == __file__ and text.startswith("fit: the network is ")


@pytest.mark.parametrize("name", SOMETHING)
def test_a_fit_that_learned_something_says_nothing(name):
    assert said(SOMETHING[name]) == []


@pytest.mark.parametrize(
    "call",
    [lambda: make_pipeline(Net(random_state=0)).fit(*CANCER), lambda: cross_val_score(Net(random_state=0), *CANCER, cv=2)],
    ids=["pipeline", "search"],
)
def test_it_is_said_at_the_users_line(call):
    found = said(call)
    assert found and {file for _, file in found} == {__file__}


def test_the_way_out_works():
    net = make_pipeline(StandardScaler(), Net(random_state=0))
    assert said(lambda: net.fit(*CANCER)) == [] and net.score(*CANCER) > 0.95


@pytest.mark.parametrize("kind", [Net, NetRegressor])
def test_predictions_that_are_not_finite_have_no_score(kind):
    """The loss of the only step is finite, and its update is too large."""
    net = kind((8,), **{**FAST, "epochs": 1}, batch_size=len(X), learning_rate=1e30, momentum=0.0)
    ((text, file),) = said(lambda: net.fit(X, Y))
    assert text.startswith("fit: the network predicts numbers that are NaN or too large, as updates") and "inf" not in text
    assert file == __file__


# --- fits that end too soon -------------------------------------------------------------------------------------------
def test_a_default_number_of_epochs_that_is_too_small_says_so():
    slow = {"layers": (64,), "learning_rate": 2e-4, "random_state": 0, "device": "cpu"}
    ((text, file),) = said(lambda: Net(**slow).fit(X, Y))
    assert file == __file__ and re.match(
        r"fit: the loss was still falling, from [\d.]+ to [\d.]+ in the last tenth of the \d+ ", text
    )
    falling = {"dropout": "bernoulli", "dropout_rate": lambda epoch: 0.5 / (epoch + 1)}
    for options in ({"epochs": 25}, {"callbacks": [lambda net, record: record["epoch"] == 20]}, falling):
        assert said(lambda: Net(**slow, **options).fit(X, Y)) == []


@pytest.mark.parametrize(
    "losses, falling",
    [
        ([2.0] * 8 + [1.0, 0.9], True),
        ([2.0] * 8 + [1.0, 0.97], False),  # less than a fiftieth of 2.0
        ([-1.0] * 18 + [-0.99, -0.99], False),
        ([-1.0] * 18 + [-1.1, -1.1], True),
        ([0.1] * 2 + [-5.0] * 16 + [-5.05] * 2, False),  # less than a fiftieth of 5.1
        ([1.0] * 10 + [0.9] * 5 + [0.87] * 2, False),
        ([1.0] * 18 + [0.9, 0.9], True),
        ([1.0] * 18 + [1.1, 1.1], False),
    ],
)
def test_a_loss_is_still_falling_if_it_falls_by_a_fiftieth_of_the_first(losses, falling):
    assert (unfinished(losses) is not None) == falling


@pytest.mark.parametrize("scores", [[np.nan] * 10, [np.nan] * 9 + [0.5], [0.5]])
def test_scores_that_are_unknown_change_no_advice(scores):
    losses = [2.0] * 8 + [1.0, 0.9]
    assert unfinished(losses, scores) == unfinished(losses)


def test_scores_that_are_all_equal_are_no_best_epoch():
    assert "the validation score did not rise" in unfinished([2.0] * 8 + [1.0, 0.9], [0.5] * 10)


FALLING = [2.0] * 18 + [1.0, 0.9]


@pytest.mark.parametrize(
    "scores, stops, drops, advice",
    [
        ([], False, False, "samples; try more epochs, or a larger learning_rate; early_stopping=True shows whether that helps"),
        ([0.1 + 0.01 * i for i in range(20)], True, False, "samples; try more epochs, or a larger learning_rate$"),
        (
            [0.5] * 5 + [0.8] + [0.7] * 14,
            False,
            False,
            "highest after epoch 6, so that more epochs do not help; try early_.* dropout$",
        ),
        ([0.5] * 5 + [0.8] + [0.7] * 14, False, True, "try early_stopping=True, or a higher dropout_rate$"),
        ([0.8] * 19 + [0.80005], False, False, "highest after epoch 20, so that more epochs do not help"),
        ([float("nan")] + [0.8] * 18 + [0.9], False, False, "try more epochs"),
        ([0.5] * 5 + [0.8] + [0.7] * 14, True, True, None),
    ],
)
def test_more_epochs_are_advised_only_if_the_validation_score_still_rises(scores, stops, drops, advice):
    text = unfinished(FALLING, scores, stops, drops)
    assert text is None if advice is None else re.search(advice, text)


def test_a_fit_that_overfits_is_told_to_stop_early():
    """Labels of chance: the loss falls in training, and the score on held-out samples has nothing to rise by."""
    rng = np.random.default_rng(0)
    x, y = np.float32(rng.standard_normal((300, 40))), rng.integers(0, 2, 300)
    net = Net((64,), learning_rate=0.002, random_state=0, device="cpu")
    ((text, file),) = said(lambda: net.fit(x[:200], y[:200], validation=(x[200:], y[200:])))
    assert file == __file__ and "so that more epochs do not help; try early_stopping=True, or dropout" in text
    assert said(lambda: Net((64,), learning_rate=0.002, random_state=0, device="cpu", early_stopping=True).fit(x, y)) == []


# --- parameters that do nothing ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options, fit",
    [
        ({"dropout_rate": 0.9}, {}),
        ({"dropout_rate": (0.2,)}, {}),
        ({}, {"dropout_rate": 0.9}),
        ({"dropout": None, "dropout_rate": 0.3}, {}),
    ],
)
def test_a_rate_without_dropout_is_said_to_do_nothing(options, fit):
    ((text, file),) = said(lambda: Net((64,), **FAST, **options).fit(X, Y, **fit))
    assert text.startswith("dropout_rate=") and "drops nothing if dropout is 'none'" in text and file == __file__


def test_a_rate_beside_a_policy_object_is_said_to_do_nothing():
    ((text, file),) = said(lambda: Net((64,), **FAST, dropout=RowDropout(0.5), dropout_rate=0.7).fit(X, Y))
    assert (
        text == "dropout_rate=0.7 has no effect if dropout is a policy object: give the rate to RowDropout" and file == __file__
    )
    assert not said(lambda: Net((64,), **FAST, dropout=RowDropout(0.5)).fit(X, Y))
    assert not said(lambda: Net((64,), **FAST, dropout=RowDropout(0.5), dropout_rate=0.7).fit(X, Y, dropout="rdp"))
    words = ["a", "b", "c", "d"] * 40
    model = LanguageModel((8,), dropout=RowDropout(0.5), dropout_rate=0.2, epochs=1, steps=4, batch_size=2, random_state=0)
    assert any("give the rate to RowDropout" in text for text, _ in said(lambda: model.fit(words)))


UNDROPPED = {  # fits whose dropout finds nothing to drop
    "no hidden layer": lambda **fit: Net((), **{**FAST, **fit}),
    "no tiles": lambda **fit: Net([SparseLinear(64, 32, density=0.2, rng=0), ReLU(), Linear(32, 10, rng=1)], **{**FAST, **fit}),
}


@pytest.mark.parametrize(
    "name, dropout",
    [
        *(("no hidden layer", kind) for kind in ("bernoulli", "rdp", "tdp", "batchwise")),
        ("no tiles", "tdp"),
        ("no tiles", TileDropout(lambda epoch: 0.2 + 0.1 * epoch)),
    ],
    ids=lambda v: v if isinstance(v, str) else v.name,
)
def test_dropout_that_finds_nothing_to_drop_says_so_once(name, dropout):
    ((text, file),) = said(lambda: UNDROPPED[name](dropout=dropout).fit(X, Y))
    kind = dropout if isinstance(dropout, str) else dropout.name
    assert text.startswith(f"{kind}: nothing is dropped") and file == __file__


@pytest.mark.parametrize(
    "name, options",
    [("no hidden layer", {"dropout": "rdp", "dropout_rate": 0.0}), ("no tiles", {"dropout": "rdp"}), ("no hidden layer", {})],
    ids=str,
)
def test_dropout_that_drops_or_shall_drop_nothing_is_in_order(name, options):
    assert said(lambda: UNDROPPED[name](**options).fit(X, Y)) == []


def test_a_language_model_drops_even_where_other_networks_have_nothing():
    options = {"epochs": 1, "batch_size": 2, "random_state": 0}
    for given in ({"dropout": "bernoulli"}, {"recurrent_dropout": "rdp"}):
        assert said(lambda given=given: LanguageModel((8,), **options, **given).fit(list("abcabcabc"))) == []


def test_no_rate_without_dropout_is_in_order():
    assert said(lambda: Net((64,), **FAST, dropout_rate=0.0).fit(X, Y)) == []


def test_no_dropout_is_none():
    nets = [Net((16,), **FAST, dropout=dropout).fit(X, Y) for dropout in (None, "none", NoDropout())]
    for net in nets:
        np.testing.assert_array_equal(net.predict_proba(X_TEST), nets[0].predict_proba(X_TEST))
    assert isinstance(policy(None), NoDropout) and clone(nets[0]).dropout is None
    model = LanguageModel((8,), epochs=1, batch_size=2, dropout=None, recurrent_dropout=None).fit(list("abcabcabc"))
    assert model.policy_.name == "none"


@pytest.mark.parametrize(
    "name, here",
    [
        ("hidden_layer_sizes", "layers', the first argument"),
        ("hidden", "layers', the first argument"),
        ("lr", "learning_rate"),
        ("seed", "random_state"),
        ("rate", "dropout_rate"),
        ("p", "dropout_rate"),
        ("max_iter", "epochs"),
        ("alpha", "weight_decay"),
        ("solver", "optimizer"),
        ("learning_rate_init", "learning_rate"),
        ("nesterovs_momentum", "nesterov"),
        ("n_iter_no_change", "patience"),
        ("tol", "early_stopping"),
        ("power_t", "learning_rate_schedule"),
        ("shuffle", "random_state"),
        ("beta_1", "optimizer"),
    ],
)
def test_names_of_other_libraries_are_translated(name, here):
    for call, error in ((lambda: Net(**{name: 1}), TypeError), (lambda: NetRegressor().set_params(**{name: 1}), ValueError)):
        with pytest.raises(error, match=f"has no parameter '{name}': here it is '{here}"):
            call()
    assert here.partition("'")[0] in Net().get_params()


def test_other_names_are_refused_as_ever():
    with pytest.raises(TypeError, match="Net has no parameter 'depth'$"):
        Net(depth=3)
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        Net().set_params(depth=3)
    for name in ("hidden_layer_sizes", "layers"):
        with pytest.raises(
            TypeError, match=f"LanguageModel has no parameter '{name}': here it is 'hidden', the first argument"
        ):
            LanguageModel(**{name: 3})
    assert Net().set_params(epochs=3).epochs == 3


@pytest.mark.parametrize("kind", [Net, NetRegressor])
@pytest.mark.parametrize("name", ["nesterov", "early_stopping", "warm_start", "verbose"])
@pytest.mark.parametrize("value", ["no", None, 0.5])
def test_what_is_neither_true_nor_false_is_refused(kind, name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        kind(**{**FAST, name: value}).fit(X, Y)
    kind((8,), **{**FAST, "epochs": 1, name: np.bool_(False)}).fit(X, Y)


# --- classes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "first, then, message",
    [
        (Y, np.where(Y == 9, 8, Y), r"warm_start: y must contain all classes of the previous fit.* \[9\] are missing"),
        (Y, np.where(Y == 9, 11, Y), r"not among the classes .*\[11\]; fit .* without warm_start"),
        (np.where(Y == 9, 8, Y), Y, r"not among the classes .*\[9\]"),
        (Y, Y.astype(str), "not among the classes .*'0'"),
    ],
    ids=["one is missing", "another", "one more", "text"],
)
def test_a_warm_start_with_other_classes_is_refused_as_scikit_learn_does(first, then, message):
    net = Net((16,), **FAST, warm_start=True).fit(X, first)
    before = net.predict_proba(X_TEST)
    with pytest.raises(ValueError, match=message):
        net.fit(X, then)
    np.testing.assert_array_equal(net.predict_proba(X_TEST), before)
    net.fit(X[::2], first[::2]).set_params(warm_start=False).fit(X, then)
    assert net.classes_.tolist() == np.unique(then).tolist()
    theirs = MLPClassifier((4,), max_iter=1, warm_start=True)
    with warnings.catch_warnings(), pytest.raises(ValueError, match="warm_start can only be used where"):
        warnings.simplefilter("ignore")
        theirs.fit(X, first).fit(X, then)


@pytest.mark.parametrize("rare", [1, 2])
def test_early_stopping_with_a_class_of_one_sample_says_that_it_is_not_stratified(rare):
    y = np.where(np.arange(len(Y)) < rare, 10, Y)
    found = said(lambda: Net((16,), **FAST, early_stopping=True).fit(X, y))
    if rare == 1:
        ((text, file),) = found
        assert text.startswith("early_stopping: class 10 has only one distinct sample") and file == __file__
        assert "held out without stratification" in text
    else:
        assert found == []


def test_tied_is_true_or_false():
    with pytest.raises(ValueError, match="tied must be True or False, got 'no'"):
        LanguageModel(tied="no").fit(list("abcabc"))
