"""Estimators as safetensors files: what is saved is loaded, to the last bit, and nothing else is."""

import collections
import json
import os
import pickle
import warnings

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from sklearn.base import clone

import numbanet
from numbanet import GELU, GRU, LanguageModel, Layer, LayerNorm, Linear, Net, Select, Sequential, Shuffle, Sigmoid, Tensor
from numbanet.estimators import serialization
from numbanet.training.sparsity import Sparsity
from tests.estimators.saved_cases import CASES, FAST, IMAGES, SPARSE, X, Y, convolutions, frozen, sequences

pytestmark = pytest.mark.filterwarnings("ignore:fit. the network is no better")  # after so few epochs


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


Both = collections.namedtuple("Both", "first second")


class Tied(Layer):
    """The mean of x times weights in containers of all kinds; they are one tensor if `tied`, or if they are tied later."""

    def __init__(self, n, tied=True):
        self.n, self.tied = n, tied
        weights = [Tensor(np.eye(n), requires_grad=True) for _ in range(8)]
        one, two, three, four, five, six, seven, eight = weights[:1] * 8 if tied else weights
        self.listed, self.mapped, self.both = [one, [two]], {"a": three, "b.c": {4: four}}, (five, Both(six, seven))
        self.inner = Linear(n, n, rng=0)
        self.outer, self.alone = [self.inner.weight] if tied else [Tensor(np.eye(n), requires_grad=True)], eight

    def __call__(self, x):
        weights = [tensor for _, tensor, _ in self.named() if tensor.ndim == 2]
        return sum((x @ weight for weight in weights[1:]), x @ weights[0]) * (1 / len(weights))


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("way", ["file", "checkpoint"])
def test_tensors_that_are_one_in_lists_and_dicts_stay_one(later, way, tmp_path):
    layer = Tied(16)
    if later:  # the constructor makes several
        layer = Tied(16, False)
        vars(layer).update(vars(Tied(16)), tied=False)
    net = Net([Linear(64, 16, rng=0), Sequential([layer]), Linear(16, 10, rng=1)], **FAST)
    net.fit(X, Y, checkpoint=tmp_path / "run").save(tmp_path / "a")
    again = Net.load(tmp_path / "a") if way == "file" else Net.resume(tmp_path / "run")
    np.testing.assert_array_equal(again.predict_proba(X), net.predict_proba(X))
    for one in (net, again):
        (own,) = one.model_[1].layers
        names = collections.Counter(tensor for _, tensor, _ in own.named())
        assert sorted(names.values()) == [1, 2, 8] and type(own.both[1]) is Both and own.tied is not later
        assert own.outer[0] is own.inner.weight and own.mapped["b.c"][4] is own.listed[1][0] is own.both[1].second is own.alone


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
