"""LanguageModel trains as users expect of an estimator: in parts, on from where it was, until nothing improves, sparse."""

import math
import pickle

import numpy as np
import pytest
from sklearn.base import clone

from numbanet import (
    Adam,
    EarlyDropout,
    GroupLasso,
    LanguageModel,
    MagnitudePruning,
    ModelCheckpoint,
    ReduceLROnPlateau,
    Sequential,
)

TEXT = "the cat sat on the mat and the dog sat on the rug .".split() * 40
FAST = {"epochs": 4, "batch_size": 4, "steps": 7, "learning_rate": 2.0, "random_state": 0, "device": "cpu"}


def model(**options):
    return LanguageModel(**{"hidden": (16, 16), **FAST, **options})


def same(a, b):
    a, b = a.model_.state_dict(), b.model_.state_dict()
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


# --- in parts ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options", [{}, {"dropout": "rdp", "dropout_rate": 0.3}, {"optimizer": "adam"}, {"tied": True}], ids=str
)
def test_partial_fit_goes_on_where_fit_stopped(options):
    parts = model(**options).fit(TEXT)
    for _ in range(2):
        parts.partial_fit(TEXT)
    whole = model(**{**options, "epochs": 6}).fit(TEXT)
    assert [record["epoch"] for record in parts.history_] == [1, 2, 3, 4, 5, 6] and parts.n_iter_ == 6
    for ours, theirs in zip(parts.model_.parameters(), whole.model_.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-5)


def test_the_first_partial_fit_takes_the_vocabulary_from_its_text():
    net = model(epochs=1).partial_fit(TEXT)
    assert same(net, model(epochs=1).fit(TEXT)) and len(net.history_) == 1
    before = len(net.vocabulary_)
    net.partial_fit(["a", "bird", *TEXT], dropout="rdp", dropout_rate=0.2)
    assert len(net.vocabulary_) == before and net.history_[1]["flops_share"] < 1
    for _ in range(12):
        net.partial_fit(TEXT)
    assert net.perplexity(TEXT) < 7


def test_an_interrupted_fit_goes_on():
    def interrupt(net, record):
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    net = model(callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt, match="after 2 complete epochs"):
        net.fit(TEXT)
    net.set_params(callbacks=None).partial_fit(TEXT)
    watched = model(epochs=2, callbacks=[lambda net, record: None]).fit(TEXT).set_params(callbacks=None).partial_fit(TEXT)
    assert net.n_iter_ == 3 and same(net, watched)


def test_a_call_that_fails_leaves_the_model_as_it_was():
    def fail(net, record):
        raise OSError("full disk")

    net, other = (model().fit(TEXT) for _ in range(2))
    for call in (net.partial_fit, net.fit):
        with pytest.raises(OSError, match="full disk"):
            call_with = net.set_params(callbacks=[fail])
            call(TEXT)
        assert call_with is net and same(net, other) and net.n_iter_ == len(net.history_) == 4
    with pytest.raises(ValueError, match="at least 5"):
        net.set_params(callbacks=None).partial_fit(TEXT[:3])
    assert same(net.partial_fit(TEXT), other.partial_fit(TEXT))


def test_a_loaded_or_pickled_model_goes_on(tmp_path):
    net = model().fit(TEXT)
    net.save(tmp_path / "a")
    for again in (pickle.loads(pickle.dumps(net)), LanguageModel.load(tmp_path / "a")):
        assert again.score(TEXT) == net.score(TEXT)
        assert again.partial_fit(TEXT).n_iter_ == 5
    assert same(pickle.loads(pickle.dumps(net)).partial_fit(TEXT), net.partial_fit(TEXT))


# --- warm start -------------------------------------------------------------------------------------------------------
def test_warm_start_goes_on_from_weights_and_vocabulary():
    net = model(warm_start=True).fit(TEXT)
    first, words = net.perplexity(TEXT), net.vocabulary_
    net.fit(["bird", *TEXT])
    assert net.n_iter_ == 4 and net.vocabulary_ is words and net.perplexity(TEXT) < first
    assert "warm_start" in clone(net).get_params() and model().warm_start is False


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"hidden": (16,)}, {"embedding": 8}, {"tied": True}, {"vocabulary_size": 5}, {"unknown": "?"}], ids=str
)
@pytest.mark.parametrize("call", ["fit", "partial_fit"])
def test_another_network_is_not_gone_on_with(change, call):
    net = model(warm_start=True).fit(TEXT)
    before, (name, value) = net.perplexity(TEXT), next(iter(change.items()))
    old = net.get_params()[name]
    with pytest.raises(ValueError, match=rf"network was made with {name}=.*set {name} back"):
        getattr(net.set_params(**change), call)(TEXT)
    assert net.perplexity(TEXT) == before
    net.set_params(**{name: old}).partial_fit(TEXT)
    assert net.set_params(warm_start=False, **change).fit(TEXT).get_params()[name] == value


# --- early stopping ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("held", [False, True])
def test_early_stopping_keeps_the_best_weights(held):
    net = model(epochs=60, early_stopping=True, patience=2, learning_rate=12.0, validation_fraction=0.2)
    text = TEXT[: int(len(TEXT) * 0.8)] if held else TEXT
    net.fit(text, validation=TEXT[len(text) :]) if held else net.fit(text)
    scores = [record["validation_score"] for record in net.history_]
    assert net.n_iter_ < 60 and scores[net.best_epoch_ - 1] >= max(scores) - 1e-4
    tail = TEXT[len(TEXT) - round(0.2 * len(TEXT)) :]
    assert net.score(tail) == pytest.approx(scores[net.best_epoch_ - 1], rel=1e-6)
    assert [record["validation_loss"] for record in net.history_] == [-score for score in scores]
    assert net.history_[0]["validation_perplexity"] == pytest.approx(math.exp(-scores[0]))


def test_a_text_that_is_too_short_to_hold_out_of_is_refused():
    net = model(early_stopping=True, validation_fraction=0.9)
    with pytest.raises(ValueError, match=r"early_stopping: a text of 20 tokens cannot be split .*batch_size=4 needs 5"):
        net.fit(TEXT[:20])
    assert not hasattr(net, "model_")


def test_scoring_is_given_the_model_and_the_words():
    seen = []

    def scoring(net, tokens):
        seen.append(list(tokens))
        return -net.perplexity(tokens)

    net = model(scoring=scoring).fit(TEXT, validation=iter(TEXT[:50]))
    assert seen == [TEXT[:50]] * 4
    for record in net.history_:
        assert record["validation_score"] == pytest.approx(-record["validation_perplexity"], rel=1e-5)
    model(scoring=scoring, early_stopping=True).fit(TEXT)
    assert seen[-1] == TEXT[-round(0.1 * len(TEXT)) :]


def test_hooks_watch_a_language_model(tmp_path):
    hooks = [ReduceLROnPlateau(0.5, patience=0, threshold=9.0), ModelCheckpoint(tmp_path / "best")]
    net = model(callbacks=hooks).fit(TEXT, validation=TEXT[:99])
    assert [record["learning_rate"] for record in net.history_] == [2.0, 2.0, 1.0, 0.5]
    again = LanguageModel.load(tmp_path / "best")
    assert again.score(TEXT[:99]) == pytest.approx(max(record["validation_score"] for record in net.history_), rel=1e-6)
    assert [repr(type(hook)) for hook in again.callbacks] == [repr(ReduceLROnPlateau)]


# --- sparsity ---------------------------------------------------------------------------------------------------------
def test_lstm_weights_are_pruned_and_stay_so():
    net = model(epochs=8, sparsity=MagnitudePruning(0.6)).fit(TEXT)
    cells = net.model_.layers[1]
    for layer in range(2):
        for name in ("weight_ih", "weight_hh"):
            weight = getattr(cells, f"{name}_l{layer}").numpy()
            assert (weight == 0).sum() == round(0.6 * weight.size)
    assert net.history_[-1]["weights_kept"] < net.history_[0]["weights_kept"] < 1 and net.perplexity(TEXT) < 9
    before = cells.weight_hh_l0.numpy() == 0
    net.partial_fit(TEXT)
    np.testing.assert_array_equal(cells.weight_hh_l0.numpy() == 0, before)
    assert (net.model_.layers[0].weight.numpy() != 0).all() and (net.model_.layers[-1].weight.numpy() != 0).all()


def test_the_layer_before_a_tied_one_is_pruned():
    net = model(tied=True, hidden=(8, 6), embedding=6, epochs=4, sparsity=MagnitudePruning(0.5)).fit(TEXT)
    shares = [float((w.numpy() == 0).mean()) for name, w, _ in net.model_.named() if "weight_" in name]
    assert shares == pytest.approx([0.5] * 4, abs=0.01)


def test_sparsity_that_does_not_fit_is_refused_before_training():
    net = model(sparsity=GroupLasso(0.1))
    with pytest.raises(ValueError, match="no rows that can be removed"):
        net.fit(TEXT)
    assert not hasattr(net, "model_")


# --- answers ----------------------------------------------------------------------------------------------------------
def test_the_score_is_minus_the_log_of_perplexity():
    net = model().fit(TEXT)
    assert net.score(TEXT) == pytest.approx(-math.log(net.perplexity(TEXT))) and net.score(TEXT) < 0
    assert model(epochs=12).fit(TEXT).score(TEXT) > net.score(TEXT)


def test_probabilities_of_the_next_word():
    net = model(epochs=15).fit(TEXT)
    found = net.predict_proba(["the", "cat"])
    assert found.shape == (len(net.vocabulary_),) and found.dtype == np.float32 and found.sum() == pytest.approx(1, rel=1e-5)
    assert net.vocabulary_.decode([int(found.argmax())]) == net.predict_next(["the", "cat"]) == ["sat"]
    assert net.vocabulary_.decode(np.argsort(-found, kind="stable")[:3]) == net.predict_next(["the", "cat"], 3)


# --- what it is -------------------------------------------------------------------------------------------------------
def test_it_has_the_parameters_that_it_knows_and_no_others():
    """A sibling of Net, which fakes nothing."""
    from numbanet import Net
    from numbanet.estimators.supervised import Supervised

    own = LanguageModel().get_params()
    assert not {"layers", "activation", "augment", "image_shape"} & own.keys() and not hasattr(LanguageModel(), "activation")
    assert {"warm_start", "sparsity", "early_stopping", "patience", "validation_fraction", "scoring"} <= own.keys()
    assert not issubclass(LanguageModel, Supervised) and LanguageModel.__mro__[1] in Net.__mro__
    for name, value in own.items():
        shown = f'"{value}"' if isinstance(value, str) else repr(value)
        assert f"    {name} : " in LanguageModel.__doc__ and f", default={shown}\n" in LanguageModel.__doc__
    with pytest.raises(TypeError, match="no parameter 'layers'"):
        LanguageModel(layers=(3,))


@pytest.mark.parametrize("optimizer, rate", [("sgd", 5.0), ("adam", 0.003), (Adam, 0.003)], ids=str)
def test_a_rate_that_is_not_given_follows_the_optimiser(optimizer, rate):
    net = model(learning_rate=None, optimizer=optimizer, epochs=12).fit(TEXT * 3)
    assert net.history_[0]["learning_rate"] == rate and net.perplexity(TEXT) < 8
    assert model(learning_rate=0.5, optimizer=optimizer, epochs=1).fit(TEXT).history_[0]["learning_rate"] == 0.5


def test_layers_are_those_of_the_module():
    assert isinstance(model(epochs=1).fit(TEXT).model_, Sequential)


def test_the_table_of_the_layers_is_of_a_word_and_names_what_drops(tmp_path):
    model = LanguageModel(
        (16,), dropout="rdp", recurrent_dropout="rdp", gate_sparsity=0.5, epochs=1, batch_size=4, steps=8, random_state=0
    ).fit(TEXT)
    rows = [line.split() for line in str(model.model_).splitlines() if line.strip()[:1].isdigit()]
    assert rows[1][-5:] == ["rdp", "0.5,", "rdp", "0.25", "recurrent"] and rows[0][-2:] == ["rdp", "0.5"]
    flops = 3 * 2 * 4 * 16 * (16 + 16)  # of the LSTM, forward and backward
    assert f"{flops / 1000:.3g} k".split() == rows[1][-7:-5]
    model.save(tmp_path / "model")
    assert str(LanguageModel.load(tmp_path / "model").model_) == str(model.model_)


def test_what_comes_back_may_be_dropped_in_a_part_of_a_fit():
    early = LanguageModel((16,), recurrent_dropout="rdp", recurrent_dropout_rate=EarlyDropout(0.5), **FAST).fit(TEXT)
    assert early.n_iter_ == 4 and early.history_[-1]["flops_share"] == 1 > early.history_[0]["flops_share"]
