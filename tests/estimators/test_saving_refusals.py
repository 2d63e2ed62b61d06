"""What cannot be saved is refused with a way out, and a file is written whole or not at all."""

import os

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from numbanet import Layer, Linear, Loss, Net, ReLU, RowDropout, Sequential
from numbanet.arguments import check_target
from tests.estimators.saved_cases import CASES, FAST, X_TEST, X, Y

pytestmark = pytest.mark.filterwarnings("ignore:fit. the network is no better")  # after so few epochs


class OwnLayer(Layer):
    """It does not keep what it was made with."""

    def __init__(self, slope):
        self._slope = slope

    def __call__(self, x):
        return x.relu() * self._slope


TWINS = [type("Twin", (ReLU,), {}) for _ in range(2)]


class OwnDropout(RowDropout):
    pass


class OwnLoss(Loss):
    def __call__(self, output, target):
        return ((output.softmax() - np.eye(10, dtype=np.float32)[target.numpy()]) ** 2).sum(axis=1)


class LinkedLoss(OwnLoss):
    def inverse_link(self, output):
        return (2 * output).softmax()


def noted(policy):
    policy.note = "own"
    return policy


REFUSED = {
    "attribute": ({"dropout": noted(RowDropout(0.5))}, "dropout=RowDropout.* has the attribute note, which the constructor"),
    "layer": (
        {"layers": [Linear(64, 10), OwnLayer(2.0)]},
        "layer OwnLayer.. has no attribute 'slope', so its constructor.s arguments are unknown: .*state_dict",
    ),
    "layer within": ({"layers": [Sequential([OwnLayer(2.0)]), Linear(64, 10)]}, "layer OwnLayer.. .* load_state_dict"),
    "layer of a name twice": ({"layers": [Linear(64, 10), TWINS[1]()]}, ".*several layers of the class Twin; .*state_dict"),
    "policy": ({"dropout": OwnDropout(0.5)}, r"dropout=OwnDropout\(.*set_params\(dropout=\.\.\.\)"),
    "loss": ({"loss": OwnLoss()}, r"loss=.*OwnLoss.*set_params\(loss=\.\.\.\)"),
    "function": ({"learning_rate_schedule": lambda epoch: 1.0}, "learning_rate_schedule=<function"),
    "rate": ({"dropout": "rdp", "dropout_rate": lambda epoch: 0.5}, "dropout_rate=<function"),
    "generator": ({"random_state": np.random.RandomState(0)}, r"random_state=RandomState\(MT19937\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_file_can_hold_is_refused_with_a_way_out(name, tmp_path, capsys):
    options, message = REFUSED[name]
    net = Net(**{**FAST, **options}).fit(X, Y)
    with pytest.raises(TypeError, match=f"save: {message}"):
        net.save(tmp_path / "a")
    assert not list(tmp_path.iterdir())
    if "layer" not in name:
        plain = {"dropout": "none", "dropout_rate": 0.5, "loss": "cross_entropy"}
        net.set_params(**{**dict.fromkeys(options), **plain}).save(tmp_path / "a")
        np.testing.assert_array_equal(Net.load(tmp_path / "a").predict(X_TEST), net.predict(X_TEST))


def test_no_other_loss_stands_for_one_that_makes_the_predictions(tmp_path):
    net = Net(**FAST, loss=LinkedLoss()).fit(X, Y)
    with pytest.raises(TypeError, match=r"save: loss=.*LinkedLoss.*so no other loss gives them: save net.model_.state_dict"):
        net.save(tmp_path / "a")
    with pytest.raises(TypeError, match="save: loss_ cannot be written: .*LinkedLoss.*; save net.model_.state_dict"):
        net.set_params(loss="cross_entropy").save(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_classes_that_are_dates_are_to_be_learned_as_texts(tmp_path):
    dates = np.array(["2020-01-01", "2021-01-01"], np.datetime64)[Y % 2]
    with pytest.raises(TypeError, match=r"save: classes_ cannot be written: .*; learn text labels, y.astype\(str\)"):
        Net(**FAST).fit(X, dates).save(tmp_path / "a")
    Net(**FAST).fit(X, dates.astype(str)).save(tmp_path / "a")


class Scaled(Layer):
    """Keeps its argument under its name, so that it is saved."""

    def __init__(self, slope):
        self.slope = slope

    def __call__(self, x):
        return x.relu() * self.slope


def test_a_layer_whose_class_is_missing_or_has_changed_is_named_in_loading(tmp_path, monkeypatch):
    net = Net([Linear(64, 10, rng=0), Scaled(2.0)], **FAST).fit(X, Y)
    net.save(path := tmp_path / "own")
    assert Net.load(path).model_.layers[1].slope == 2.0
    with monkeypatch.context() as patched:
        patched.setattr(Scaled, "__init__", lambda self, slope, other: None)
        with pytest.raises(ValueError, match=r"own: the class .*\.Scaled has changed since the file was saved, or .*'other'"):
            Net.load(path)
    try:
        Scaled.__name__ = "Renamed"
        with pytest.raises(
            ValueError, match="own: a layer of the file has the class Scaled: no layer class .* import its module"
        ):
            Net.load(path)
    finally:
        Scaled.__name__ = "Scaled"


def test_bad_targets_are_named(tmp_path, monkeypatch):
    net, _ = CASES["none"]()
    for target, error in ((tmp_path / "no" / "a", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match="cannot save to"):
            net.save(target)
    with monkeypatch.context() as patched, pytest.raises(PermissionError, match="cannot save to .* cannot be written to"):
        patched.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
        check_target(tmp_path / "a")
    with pytest.raises(NotFittedError):
        Net().save(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="none.safetensors"):
        Net.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full disk", "Ctrl-C"])
@pytest.mark.parametrize("place", ["pathlib.Path.write_bytes", "os.replace"])
def test_a_file_is_written_whole_or_not_at_all(error, place, tmp_path, monkeypatch):
    def fail(*given):
        raise error

    net, _ = CASES["none"]()
    net.save(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    monkeypatch.setattr(place, fail)
    with pytest.raises(type(error)):
        net.partial_fit(X, Y).save(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == before and os.listdir(tmp_path) == ["a"]


def test_a_card_does_not_replace_the_network(tmp_path):
    net = Net((4,), epochs=1, random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match=r"save: the card would replace the network in '.*net\.md': give it another ending"):
        net.save(tmp_path / "net.md", card=True)
    assert not list(tmp_path.iterdir())
