"""Estimators as safetensors files: what is saved is loaded, to the last bit, and nothing else is."""

import json
import os
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import numbanet
from numbanet import (
    GELU,
    GRU,
    LSTM,
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    DynamicSparseGraph,
    Embedding,
    Flatten,
    FlipsAndCrops,
    GateSparsity,
    GroupLasso,
    LanguageModel,
    LastStep,
    Layer,
    LayerNorm,
    Linear,
    MagnitudePruning,
    MaxPool2d,
    Net,
    NetRegressor,
    Normalize,
    ReLU,
    Rewire,
    RowDropout,
    Select,
    Sequential,
    Shuffle,
    Sigmoid,
    SkewNormalSchedule,
    SparseLinear,
    Tanh,
    TileDropout,
    cli,
)
from numbanet.datasets import load_digits
from numbanet.dropout import recurrent
from numbanet.estimators import saving, serialization
from numbanet.training.sparsity import Sparsity

pytestmark = pytest.mark.filterwarnings("ignore:fit. the network is no better")  # after so few epochs
X, Y, X_TEST, Y_TEST = load_digits()
X, Y = X[:400], Y[:400]
FAST = {"epochs": 2, "random_state": 0, "device": "cpu"}
IMAGES, WORDS = X.reshape(-1, 1, 8, 8), "the cat sat on the mat and the dog sat on the rug .".split() * 40
NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
SYMBOLS, SQUARE, SPARSE = np.int64(16 * X[:, :12]), Linear(64, 64, rng=0), SparseLinear(64, 64, density=0.2, rng=0)


def convolutions():
    return [
        Normalize(np.float32([0.3]), 0.4),
        Conv2d(1, 4, 3, padding=1, bias=False, rng=0),
        BatchNorm2d(4),
        ReLU(),
        MaxPool2d(2),
        Conv2d(4, 6, (2, 3), groups=2, rng=1),
        ReLU(),
        AvgPool2d(2, 1, 1, count_include_pad=False),
        AdaptiveAvgPool2d((2, 1)),
        Flatten(),
        Linear(12, 16, rng=2),
        BatchNorm1d(16),
        Tanh(),
        Linear(16, 10, rng=3),
    ]


def sequences():
    return [Embedding(17, 8, padding_idx=0, rng=0), LSTM(8, 9, batch_first=True, rng=1), LastStep(), Linear(9, 10, rng=2)]


def frozen(net):
    net.model_[0].weight.requires_grad = False
    return net


def language(**options):
    return LanguageModel((12, 12), **{**FAST, "batch_size": 4, "steps": 7, "learning_rate": 2.0, **options})


CASES = {  # what is saved, fitted, and what it is asked
    "none": lambda: (Net((32, 16), **FAST).fit(X, Y), X_TEST),
    "int": lambda: (Net(32, **FAST, activation="gelu", class_weight={c: 1.0 + c for c in range(10)}).fit(X, Y), X_TEST),
    "rates": lambda: (Net((64, 64), **FAST, dropout=RowDropout((0.3, 0.5), dp_max=4, scale="rate")).fit(X, Y), X_TEST),
    "shuffled": lambda: (Net((64, 64), **FAST, dropout=TileDropout(0.5, tile=4)).fit(X, Y), X_TEST),
    "by fit": lambda: (Net((64,), **FAST).fit(X, Y, dropout="rdp", dropout_rate=0.3), X_TEST),
    "schedule": lambda: (Net((64,), **FAST, dropout="rdp", dropout_rate=SkewNormalSchedule(0.3, 2)).fit(X, Y), X_TEST),
    "selects": lambda: (Net((64,), **FAST).fit(X, Y, dropout=DynamicSparseGraph(0.5, select_in_prediction=True)), X_TEST),
    "words": lambda: (
        Net((16,), **FAST).fit(pd.DataFrame(X, columns=[f"p{i}" for i in range(64)]), NAMES[Y]),
        pd.DataFrame(X_TEST, columns=[f"p{i}" for i in range(64)]),
    ),
    "objects": lambda: (Net((16,), **FAST).fit(X, NAMES.astype(object)[Y]), X_TEST),
    "booleans": lambda: (Net((16,), **FAST).fit(X, Y > 4), X_TEST),
    "convolutions": lambda: (Net(convolutions(), **FAST, augment=FlipsAndCrops(1)).fit(IMAGES, Y), IMAGES),
    "named": lambda: (Net("alexnet", **{**FAST, "epochs": 1}, image_shape=(1, 8, 8)).fit(X[:60], Y[:60]), X_TEST[:50]),
    "sensitive": lambda: (Net(convolutions(), **FAST, dropout="rsdp", dropout_rate=0.3).fit(IMAGES, Y), IMAGES),
    "sequences": lambda: (Net(sequences(), **FAST).fit(SYMBOLS, Y), SYMBOLS),
    "rewired": lambda: (
        Net([SparseLinear(64, 40, density=0.2, rng=0), ReLU(), Linear(40, 10, rng=1)], **FAST, sparsity=Rewire(every=2)).fit(
            X, Y
        ),
        X_TEST,
    ),
    "pruned": lambda: (Net((64,), **{**FAST, "epochs": 4}, sparsity=MagnitudePruning(0.8)).fit(X, Y), X_TEST),
    "compact": lambda: (
        Net((64, 64), **{**FAST, "epochs": 6}, sparsity=GroupLasso(0.02, groups=("rows", "columns"))).fit(X, Y),
        X_TEST,
    ),
    "tiles": lambda: (Net((64, 64), **{**FAST, "epochs": 6}, sparsity=GroupLasso(0.02, groups="tiles")).fit(X, Y), X_TEST),
    "shared": lambda: (Net([SQUARE, ReLU(), SQUARE, Sequential([Tanh(), Linear(64, 10, rng=1)])], **FAST).fit(X, Y), X_TEST),
    "shared sparse": lambda: (Net([SPARSE, ReLU(), SPARSE, Linear(64, 10, rng=1)], **FAST).fit(X, Y), X_TEST),
    "recurrent": lambda: (Net(sequences(), **FAST, dropout=recurrent(RowDropout(0.3), 12)).fit(SYMBOLS, Y), SYMBOLS),
    "frozen": lambda: (frozen(Net((32, 16), **FAST).fit(X, Y)), X_TEST),
    "frozen and given": lambda: (frozen(Net([SQUARE, SQUARE, Linear(64, 10, rng=1)], **FAST).fit(X, Y)), X_TEST),
    "regressor": lambda: (NetRegressor((16,), **FAST).fit(X, Y), X_TEST),
    "outputs": lambda: (NetRegressor((16,), **FAST).fit(X, np.stack([Y, 1e6 - Y], 1)), X_TEST),
    "language": lambda: (language(dropout="rdp", recurrent_dropout=RowDropout(0.2)).fit(WORDS), WORDS),
    "integers": lambda: (language(gate_sparsity=GateSparsity(0.5)).fit(np.tile(np.arange(5), 80)), np.arange(5)),
    "tied": lambda: (language(tied=True).fit(WORDS, validation=WORDS), WORDS),
}


def answers(net, asked):
    if isinstance(net, LanguageModel):
        return np.array(net.perplexity(asked))
    return net.predict_proba(asked) if isinstance(net, Net) else net.predict(asked)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_what_is_loaded_is_what_was_saved(case, tmp_path):
    net, asked = CASES[case]()
    net.save(tmp_path / "a")
    again = type(net).load(tmp_path / "a")
    np.testing.assert_array_equal(answers(again, asked), answers(net, asked))
    state, loaded = net.model_.state_dict(), again.model_.state_dict()
    assert state.keys() == loaded.keys() and all(np.array_equal(state[name], loaded[name]) for name in state)
    assert again.history_ == net.history_ and again.n_iter_ == net.n_iter_ and repr(again.model_) == repr(net.model_)
    assert [p.requires_grad for p in again.model_.parameters()] == [p.requires_grad for p in net.model_.parameters()]
    assert repr(again.dropout) == repr(net.dropout)
    if not isinstance(net, LanguageModel):
        np.testing.assert_array_equal(again.predict(asked), net.predict(asked))
        assert again.predict(asked).dtype == net.predict(asked).dtype
    if isinstance(net, Net):
        assert again.classes_.dtype == net.classes_.dtype and again.classes_.tolist() == net.classes_.tolist()
    again.save(tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    clone(again), pickle.dumps(again)


@pytest.mark.parametrize("case", ["none", "rates", "shuffled", "convolutions", "compact", "shared", "outputs"])
@pytest.mark.filterwarnings("ignore")
def test_it_goes_on_and_starts_anew(case, tmp_path):
    net, asked = CASES[case]()
    net.save(tmp_path / "a")
    again = type(net).load(tmp_path / "a")
    x, y = (IMAGES if case == "convolutions" else X), np.stack([Y, 1e6 - Y], 1) if case == "outputs" else Y
    again.partial_fit(x, y)
    assert again.n_iter_ == net.n_iter_ + 1 and again.history_[-1]["loss"] < net.history_[0]["loss"]
    for one in (net, again):
        one.fit(x, y)
    if not isinstance(net.layers, list):  # of layers that were given, the trained ones are kept
        np.testing.assert_array_equal(answers(again, asked), answers(net, asked))


def test_a_loaded_network_warns_that_it_does_not_stay_sparse(tmp_path):
    net, _ = CASES["rewired"]()
    net.save(tmp_path / "a")
    again = Net.load(tmp_path / "a")
    with pytest.warns(UserWarning, match="continues with sparsity=None, with which it was started or loaded; fit starts anew"):
        again.partial_fit(X, Y)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "partial_fit")
        net.partial_fit(X, Y)
        again.fit(X, Y).partial_fit(X, Y)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_frozen_weights_stay_frozen_until_they_are_thawed(optimizer, tmp_path):
    net = frozen(Net((32, 16), **FAST, warm_start=True, optimizer=optimizer).fit(X, Y))
    before = net.model_.state_dict()
    net.save(tmp_path / "a")
    again = Net.load(tmp_path / "a")
    for train in (again.partial_fit, again.fit, net.fit):
        found = train(X, Y).model_.state_dict()
        assert [name for name in found if np.array_equal(found[name], before[name])] == ["0.weight"]
    for one in (net, again):
        one.model_[0].weight.requires_grad = True
        assert not np.array_equal(one.partial_fit(X, Y).model_[0].weight.numpy(), before["0.weight"])
    for parameter in net.model_.parameters():
        parameter.requires_grad = False
    with pytest.raises(ValueError, match="nothing to train"):
        net.fit(X, Y)


def test_other_readers_find_the_arrays(tmp_path):
    net, _ = CASES["convolutions"]()
    net.save(tmp_path / "net.safetensors")
    found, state = load_file(tmp_path / "net.safetensors"), net.model_.state_dict()
    assert found.keys() == state.keys() and all(np.array_equal(found[name], state[name]) for name in state)
    assert "2.running_var" in found and "2.num_batches_tracked" in found
    with safe_open(tmp_path / "net.safetensors", "numpy") as file:
        told = json.loads(file.metadata()["numbanet"])
    assert told["class"] == "Net" and told["parameters"]["epochs"] == 2 and told["layers"][4]["layer"] == "MaxPool2d"


def test_a_device_may_be_chosen(tmp_path):
    net, _ = CASES["none"]()
    net.set_params(device="auto").save(tmp_path / "a")
    assert Net.load(tmp_path / "a").device == "auto" and Net.load(tmp_path / "a", device="cpu").device == "cpu"
    with pytest.raises(ValueError, match="tpu"):
        Net.load(tmp_path / "a", device="tpu")


def test_an_interrupted_fit_can_be_kept(tmp_path):
    def interrupt(net, record):
        net.set_params(callbacks=None)
        raise KeyboardInterrupt

    net = Net((16,), **FAST, callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        net.fit(X, Y)
    net.save(tmp_path / "a")
    assert Net.load(tmp_path / "a").n_iter_ == 1


LAYERS = [
    *convolutions(),
    *sequences(),
    GELU(),
    GRU(3, 4, 2, bidirectional=True),
    LayerNorm((3, 4)),
    Select(5, [0, 3]),
    Shuffle([1, 0, 2], [0.5, 1.0, 2.0]),
    Sigmoid(),
    SPARSE,
]


def test_every_layer_and_setting_of_the_library_can_be_saved():
    public = [value for value in (getattr(numbanet, name) for name in numbanet.__all__) if isinstance(value, type)]
    layers = {kind for kind in public if issubclass(kind, numbanet.Layer)} - {numbanet.Layer, Sequential}
    assert layers == set(map(type, LAYERS))
    for layer in LAYERS:
        arrays = layer.state_dict()
        again = serialization.made_layer(json.loads(json.dumps(serialization.described_layer(layer))), arrays, "")
        again.load_state_dict(arrays)
        assert type(again) is type(layer) and repr(again) == repr(layer) and again.config().keys() == layer.config().keys()
    settings = {kind for kind in public if issubclass(kind, (numbanet.Dropout, Sparsity))} - {numbanet.Dropout}
    assert settings < set(serialization.SETTINGS.values())


# --- what cannot be saved ---------------------------------------------------------------------------------------------
class OwnLayer(Layer):
    """It does not keep what it was made with."""

    def __init__(self, slope):
        self._slope = slope

    def __call__(self, x):
        return x.relu() * self._slope


TWINS = [type("Twin", (ReLU,), {}) for _ in range(2)]


class OwnDropout(RowDropout):
    pass


def noted(policy):
    policy.note = "own"
    return policy


REFUSED = {
    "attribute": ({"dropout": noted(RowDropout(0.5))}, "dropout=RowDropout.* was given note, which RowDropout does not take"),
    "layer": (
        {"layers": [Linear(64, 10), OwnLayer(2.0)]},
        "layer OwnLayer.. has no attribute 'slope', so its constructor.s arguments are unknown: .*state_dict",
    ),
    "layer within": ({"layers": [Sequential([OwnLayer(2.0)]), Linear(64, 10)]}, "layer OwnLayer.. .* load_state_dict"),
    "layer of a name twice": ({"layers": [Linear(64, 10), TWINS[1]()]}, ".*several layers of the class Twin; .*state_dict"),
    "policy": ({"dropout": OwnDropout(0.5)}, r"dropout=OwnDropout\(.*set_params\(dropout=\.\.\.\)"),
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
        net.set_params(**{**dict.fromkeys(options), "dropout": "none", "dropout_rate": 0.5}).save(tmp_path / "a")
        np.testing.assert_array_equal(Net.load(tmp_path / "a").predict(X_TEST), net.predict(X_TEST))


def test_bad_targets_are_named(tmp_path, monkeypatch):
    net, _ = CASES["none"]()
    for target, error in ((tmp_path / "no" / "a", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match="cannot save to"):
            net.save(target)
    with monkeypatch.context() as patched, pytest.raises(PermissionError, match="cannot save to .* cannot be written to"):
        patched.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
        saving.check_target(tmp_path / "a")
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


# --- the command line -------------------------------------------------------------------------------------------------
def run(capsys, *arguments):
    with warnings.catch_warnings():
        status = cli.main(list(map(str, arguments)))
    return status, *capsys.readouterr()


def test_train_saves_and_predict_reads(tmp_path, capsys):
    path = tmp_path / "digits.safetensors"
    status, out, _ = run(capsys, "train", "--layers", 32, "--epochs", 3, "--quiet", "--save", path)
    assert status == 0 and "saved: " in out
    net = Net.load(path)
    np.save(tmp_path / "x.npy", X_TEST)
    np.savetxt(tmp_path / "x.csv", X_TEST, delimiter=",")
    for samples in ("digits", tmp_path / "x.npy", tmp_path / "x.csv"):
        status, out, err = run(capsys, "predict", path, samples)
        assert status == 0 and out.split() == [str(label) for label in net.predict(X_TEST)]
        assert (f"score {net.score(X_TEST, Y_TEST):.4f} on these 360 samples" in err) == (samples == "digits")
    status, out, _ = run(capsys, "predict", path, tmp_path / "x.npy", "--probabilities", "--device", "cpu")
    first, *rows = out.splitlines()
    assert status == 0 and first == "0,1,2,3,4,5,6,7,8,9"
    np.testing.assert_allclose([list(map(float, row.split(","))) for row in rows], net.predict_proba(X_TEST), rtol=1e-6)


def test_predict_takes_regressors(tmp_path, capsys):
    net = NetRegressor((8,), **FAST).fit(X, np.stack([Y, -Y], 1))
    net.save(tmp_path / "net")
    np.save(tmp_path / "x.npy", X_TEST)
    status, out, _ = run(capsys, "predict", tmp_path / "net", tmp_path / "x.npy")
    assert status == 0 and len(out.splitlines()) == len(X_TEST) and out.count(",") == len(X_TEST)
    status, _, err = run(capsys, "predict", tmp_path / "net", tmp_path / "x.npy", "--probabilities")
    assert status == 2 and "NetRegressor, which has no classes" in err


def test_what_cannot_be_predicted_is_one_line_and_status_2(tmp_path, capsys):
    saved, _ = tmp_path / "net", CASES["none"]()[0].save(tmp_path / "net")
    for name, content in (("a.csv", "1,2\n3,x\n"), ("b.npy", "text"), ("c.csv", "1,2\n3\n"), ("d.csv", "1,2\n")):
        (tmp_path / name).write_text(content)
    language().fit(WORDS).save(tmp_path / "text")
    for arguments, named in (
        ((tmp_path / "none", "digits"), "none"),
        ((tmp_path / "a.csv", "digits"), "a.csv is no"),
        ((saved, tmp_path / "a.csv"), "a.csv"),
        ((saved, tmp_path / "b.npy"), "b.npy"),
        ((saved, tmp_path / "c.csv"), "c.csv"),
        ((saved, tmp_path / "d.csv"), "2 features"),
        ((saved, "letters"), "letters"),
        ((saved, tmp_path / "no.npy"), "no.npy"),
        ((tmp_path / "text", "digits"), "a LanguageModel, not a Net or NetRegressor"),
    ):
        status, out, err = run(capsys, "predict", *arguments)
        assert status == 2 and out == "" and err.count("\n") == 1 and "error: " in err and named in err
    for target, named in ((tmp_path, "it is a folder"), (tmp_path / "no" / "net", "no folder")):
        status, out, err = run(capsys, "train", "--epochs", 1, "--save", target)
        assert status == 2 and out == "" and named in err
