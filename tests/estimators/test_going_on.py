"""Rates that hold, networks that are saved from within, and networks that are not gone on with as other ones."""

import numpy as np
import pytest

from numbanet import (
    SGD,
    Adam,
    BatchNorm1d,
    Embedding,
    Flatten,
    Hook,
    LanguageModel,
    Linear,
    Net,
    NetRegressor,
    ReduceLROnPlateau,
    ReLU,
)
from numbanet.cli import main
from numbanet.datasets import load_digits

X, Y, X_TEST, Y_TEST = load_digits()
SMALL = {"layers": (32, 32), "epochs": 4, "random_state": 0, "device": "cpu"}


def rates(net):
    return [record["learning_rate"] for record in net.history_]


# --- learning rates ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "kind, optimizer, rate",
    [
        (Net, "sgd", 0.02),
        (Net, "adam", 0.001),
        (Net, SGD, 0.02),
        (Net, Adam, 0.001),
        (Net, type("Own", (Adam,), {}), 0.001),
        (Net, lambda parameters, rate: Adam(parameters, rate), 0.02),
        (NetRegressor, "sgd", 0.005),
        (NetRegressor, "adam", 0.001),
    ],
)
def test_a_rate_that_is_not_given_follows_the_optimiser(kind, optimizer, rate):
    net = kind(**SMALL, optimizer=optimizer).fit(X, Y)
    assert rates(net) == [rate] * 4 and net.learning_rate is None
    assert rates(kind(**SMALL, optimizer=optimizer, learning_rate=0.003).fit(X, Y)) == [0.003] * 4


def test_the_command_line_follows_the_optimiser_too(capsys):
    options = ["--epochs", "6", "--batch-size", "128", "--validation", "0", "--optimizer", "adam", "--quiet"]
    assert main(["train", "--layers", "16", *options]) == 0
    found = capsys.readouterr().out
    net = Net((16,), dropout="rdp", epochs=6, batch_size=128, optimizer="adam", random_state=0).fit(X, Y)
    assert f"{net.score(X_TEST, Y_TEST):.2%}" in found and net.history_[0]["learning_rate"] == 0.001


@pytest.mark.parametrize("schedule, factors", [(None, [1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25])])
@pytest.mark.parametrize("verb", ["sets", "halves"])
def test_a_rate_that_a_callback_gives_holds(schedule, factors, verb):
    def change(net, record):
        if record["epoch"] == 2:
            net.optimizer_.learning_rate = 0.05 if verb == "sets" else net.optimizer_.learning_rate / 2

    net = Net(**SMALL, learning_rate=0.01, learning_rate_schedule=schedule, callbacks=[change]).fit(X, Y)
    late = 0.05 if verb == "sets" else 0.005
    assert rates(net) == pytest.approx([base * factor for base, factor in zip((0.01, 0.01, late, late), factors)])
    assert net.optimizer_.learning_rate == late
    assert rates(net.set_params(callbacks=None).partial_fit(X, Y))[-1] == pytest.approx(late * factors[-1])
    assert rates(net.fit(X, Y))[0] == 0.01


# --- files ------------------------------------------------------------------------------------------------------------
class Mine(Hook):
    """A hook that no file can name."""

    watches = False


def test_a_network_with_any_callback_is_saved(tmp_path):
    net = Net(**SMALL, callbacks=[print, lambda net, record: None, Mine()]).fit(X, Y)
    net.save(tmp_path / "a")
    again = Net.load(tmp_path / "a")
    assert again.callbacks is None and len(net.callbacks) == 3
    np.testing.assert_array_equal(again.predict_proba(X_TEST), net.predict_proba(X_TEST))
    net.set_params(callbacks=[print, ReduceLROnPlateau(0.3, patience=4)]).save(tmp_path / "a")
    (hook,) = Net.load(tmp_path / "a").callbacks
    assert (hook.factor, hook.patience, hook.monitor) == (0.3, 4, None)


@pytest.mark.parametrize("dropout", ["none", "rdp", "dsg"])
@pytest.mark.filterwarnings("ignore:dsg")
def test_a_network_is_saved_within_a_callback(tmp_path, dropout):
    proba = {}

    def save(net, record):
        assert net.n_iter_ == record["epoch"] == len(net.history_)
        net.save(tmp_path / str(record["epoch"]))
        proba[record["epoch"]] = net.predict_proba(X_TEST)

    net = Net(**SMALL, dropout=dropout, callbacks=[save]).fit(X, Y)
    for epoch, found in proba.items():
        again = Net.load(tmp_path / str(epoch))
        assert again.n_iter_ == epoch and again.history_ == net.history_[:epoch]
        np.testing.assert_array_equal(again.predict_proba(X_TEST), found)
        assert again.partial_fit(X, Y).n_iter_ == epoch + 1


# --- another network --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        {"layers": (32, 16)},
        {"layers": 32},
        {"layers": "lenet5"},
        {"activation": "tanh"},
        {"layers": [Linear(64, 8, rng=0), ReLU(), Linear(8, 10, rng=1)]},
    ],
    ids=str,
)
@pytest.mark.parametrize("call", ["fit", "partial_fit"])
def test_another_network_is_not_gone_on_with(change, call, tmp_path):
    net = Net(**SMALL, warm_start=True).fit(X, Y)
    net.save(tmp_path / "a")
    (name, _), kept = next(iter(change.items())), net.predict_proba(X_TEST)
    for one in (net, Net.load(tmp_path / "a")):
        with pytest.raises(ValueError, match=rf"network was made with {name}=.*fit without warm_start, or set {name} back"):
            getattr(one.set_params(**change), call)(X, Y)
        np.testing.assert_array_equal(one.predict_proba(X_TEST), kept)
        one.set_params(layers=np.array([32, 32]), activation="relu")  # the same widths
        assert getattr(one, call)(X, Y) is one
    if change != {"layers": "lenet5"}:
        assert net.set_params(warm_start=False, **change).fit(X, Y).n_iter_ == 4


def test_given_layers_are_gone_on_with_while_they_are_the_same(tmp_path):
    layers = [Linear(64, 8, rng=0), ReLU(), Linear(8, 10, rng=1)]
    net = Net(layers, epochs=1, random_state=0, warm_start=True).fit(X, Y)
    net.save(tmp_path / "a")
    assert net.fit(X, Y).partial_fit(X, Y).n_iter_ == 2
    again = Net.load(tmp_path / "a")
    assert again.fit(X, Y).partial_fit(X, Y).n_iter_ == 2
    layers.insert(1, ReLU())
    with pytest.raises(ValueError, match="network was made with layers="):
        net.fit(X, Y)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_partial_fit_keeps_the_last_rate_of_a_fit_whose_epochs_were_not_given(schedule, tmp_path):
    net = Net((8,), learning_rate_schedule=schedule, random_state=0, device="cpu").fit(X[:400], Y[:400])
    assert net.n_iter_ > 20
    path = tmp_path / "net.safetensors"
    net.save(path)
    last = net.history_[-1]["learning_rate"]
    assert net.partial_fit(X[:400], Y[:400]).history_[-1]["learning_rate"] == last
    assert Net.load(path)._fit_epochs == net._fit_epochs == net.n_iter_ - 1


def test_a_network_predicts_whatever_its_parameters_become():
    words = np.random.default_rng(0).integers(0, 9, (40, 5))
    net = Net([Embedding(9, 4), Flatten(), Linear(20, 10)], epochs=1, random_state=0).fit(words, Y[:40])
    before = net.predict_proba(words)
    np.testing.assert_array_equal(net.set_params(layers=(8,)).predict_proba(words), before)
    images, flat = X.reshape(-1, 1, 8, 8), Net((8,), epochs=1, image_shape=(1, 8, 8), random_state=0).fit(X, Y)
    np.testing.assert_array_equal(flat.predict(X), Net((8,), epochs=1, random_state=0).fit(X, Y).predict(X))
    with pytest.raises(ValueError, match="flat samples"):
        flat.fit(images, Y)


@pytest.mark.parametrize(
    "made, change",
    [
        ({"layers": [Embedding(9, 4), Flatten(), Linear(20, 10)]}, {"layers": (8,)}),
        ({"layers": (8,)}, {"layers": (16,)}),
        ({"layers": (8,)}, {"activation": "tanh"}),
        ({"layers": (8,)}, {"layers": [Linear(5, 10)]}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:fit. the network is no better")
def test_a_loaded_network_predicts_whatever_its_parameters_had_become(made, change, tmp_path):
    words = np.random.default_rng(0).integers(0, 9, (40, 5))
    net = Net(**made, epochs=1, random_state=0).fit(words, Y[:40])
    before, (name, _) = net.predict_proba(words), next(iter(change.items()))
    net.set_params(**change).save(tmp_path / "a")
    again = Net.load(tmp_path / "a")
    again.save(tmp_path / "b")
    for one in (again, Net.load(tmp_path / "b")):
        np.testing.assert_array_equal(one.predict_proba(words), before)
        with pytest.raises(ValueError, match=f"partial_fit: the network was made with {name}="):
            one.partial_fit(words, Y[:40])
    if not isinstance(made["layers"], list):
        assert again.set_params(**{"activation": "relu", **made}).partial_fit(words, Y[:40]).n_iter_ == 2


def test_a_loaded_language_model_knows_what_it_was_made_of(tmp_path):
    words = "the cat sat on the mat".split() * 20
    model = LanguageModel((8,), epochs=1, steps=5, batch_size=2, random_state=0).fit(words)
    model.set_params(hidden=(9,)).save(tmp_path / "a")
    again = LanguageModel.load(tmp_path / "a")
    assert again.score(words) == model.score(words)
    with pytest.raises(ValueError, match=r"partial_fit: the network was made with hidden=\(8,\)"):
        again.partial_fit(words)
    assert again.set_params(hidden=8).partial_fit(words).n_iter_ == 2


def test_a_last_sample_joins_the_batch_before():
    """Batch normalisation cannot train on one sample, and a split must not decide whether it has to."""
    net = Net([Linear(64, 8), BatchNorm1d(8), ReLU(), Linear(8, 10)], epochs=2, batch_size=32, random_state=0)
    assert net.fit(X[:65], Y[:65]).optimizer_.steps == 4
    weights = np.where(np.arange(65) % 2, 1.0, 2.0)
    assert net.fit(X[:65], Y[:65], sample_weight=weights).optimizer_.steps == 4
    assert net.fit(X[:66], Y[:66]).optimizer_.steps == 6


# --- changed parameters -----------------------------------------------------------------------------------------------
class Lion(Adam):
    """An optimiser of one's own."""


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 0.001},
        {"momentum": 0.0},
        {"weight_decay": 0.1},
        {"clip_norm": 1e-3},
        {"optimizer": "adam"},
        {"optimizer": Lion},
        {"loss": lambda outputs, targets: (outputs * outputs).mean()},
    ],
    ids=lambda change: "-".join(change),
)
def test_partial_fit_goes_on_with_changed_parameters(change):
    same, changed = (Net(**SMALL).fit(X, Y) for _ in range(2))
    same.partial_fit(X, Y)
    changed.set_params(**change).partial_fit(X, Y)
    assert changed.optimizer_.steps == same.optimizer_.steps or "optimizer" in change
    assert not np.array_equal(changed.predict_proba(X), same.predict_proba(X))


def test_a_new_learning_rate_keeps_the_state_of_the_optimiser():
    net = Net(**SMALL).fit(X, Y)
    steps, state = net.optimizer_.steps, [[array.copy() for array in own] for own in net.optimizer_.state]
    net.set_params(learning_rate=0.0).partial_fit(X[:8], Y[:8])
    assert net.optimizer_.steps == steps + 1 and rates(net)[-1] == 0
    for own, before in zip(net.optimizer_.state, state, strict=True):  # v <- m v + g, so that v - g = m v is of its size
        assert np.abs(own[0]).max() > 0.5 * np.abs(before[0]).max()


def test_a_rate_that_a_callback_has_reduced_stays_unless_it_is_changed():
    net = Net(**SMALL, callbacks=[ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, threshold=9.0)]).fit(X, Y)
    reduced = net.optimizer_.learning_rate
    assert reduced < 0.02
    net.set_params(callbacks=None, clip_norm=1.0).partial_fit(X, Y)
    assert rates(net)[-1] == reduced and net.optimizer_.clip_norm == 1.0
    vars(net).pop("_optimizer_of")  # as in pickles of older versions
    assert rates(net.partial_fit(X, Y))[-1] == reduced
    assert rates(net.set_params(learning_rate=0.003).partial_fit(X, Y))[-1] == 0.003


def test_what_a_function_leaves_out_rests_from_now_on_and_moves_again():
    def moved(net):
        before = [values.copy() for values in net.model_.state_dict().values()]
        after = net.partial_fit(X, Y).model_.state_dict().values()
        return [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]

    net = Net(**SMALL, optimizer=lambda parameters, rate: SGD(parameters, rate)).fit(X, Y)
    assert moved(net.set_params(optimizer=lambda parameters, rate: SGD(parameters[:2], rate))) == [True] * 2 + [False] * 4
    assert moved(net.set_params(optimizer=lambda parameters, rate: SGD(parameters, rate))) == [True] * 6


def test_a_call_that_fails_leaves_the_optimiser_and_the_loss_as_they_were():
    def fail(net, record):
        raise OSError("full")

    net = Net(**SMALL).fit(X, Y)
    optimizer, loss, before = net.optimizer_, net.loss_, net.predict_proba(X)
    net.set_params(optimizer="adam", loss=lambda outputs, targets: (outputs * outputs).mean(), callbacks=[fail])
    with pytest.raises(OSError, match="full"):
        net.partial_fit(X, Y)
    np.testing.assert_array_equal(net.predict_proba(X), before)
    assert type(net.optimizer_) is type(optimizer) and net.optimizer_.steps == optimizer.steps and net.loss_ == loss


def test_a_loaded_network_trains_on_with_its_own_optimiser(tmp_path):
    net = Net(**SMALL, optimizer=Lion).fit(X, Y).set_params(optimizer="sgd")
    net.save(tmp_path / "net.safetensors")
    loaded = Net.load(tmp_path / "net.safetensors").set_params(optimizer=Lion)
    assert type(loaded.partial_fit(X, Y).optimizer_) is Lion


def test_a_loss_with_other_targets_needs_a_new_fit():
    net = NetRegressor((8,), epochs=1, random_state=0).fit(X, 1e3 + X[:, 20])
    before = net.predict(X)
    with pytest.raises(ValueError, match="partial_fit: the network was trained with .* set loss back, or fit anew"):
        net.set_params(loss=lambda outputs, targets: (outputs.exp() - targets * outputs).sum(axis=1)).partial_fit(X, X[:, 20])
    np.testing.assert_array_equal(net.predict(X), before)


def test_an_optimiser_whose_step_would_not_be_called_is_refused():
    with pytest.raises(TypeError, match="optimizer: Own overrides step, which fits do not call: override update"):
        Net(**SMALL, optimizer=type("Own", (SGD,), {"step": lambda self, wanted=None: {}})).fit(X, Y)
