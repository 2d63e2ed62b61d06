"""Reordering of neurons: the network computes the same function, and every weight keeps its optimiser's state."""

import numpy as np
import pytest

from numbanet import (
    BatchNorm2d,
    Context,
    Conv2d,
    Flatten,
    LanguageModel,
    Linear,
    MagnitudePruning,
    MaxPool2d,
    Net,
    ReLU,
    RowDropout,
    Sequential,
    Tensor,
    WindowDropout,
)
from numbanet.dropout import Together, recurrent
from numbanet.layers import Layer
from numbanet.training.adam import Adam
from numbanet.training.sgd import SGD
from numbanet.training.sparsity.reordering import movable, permute
from numbanet_kernels.host import thresholds
from numbanet_kernels.runtime import replay


def layers(kind, dev):
    if kind == "images":
        body = [Conv2d(2, 5, 3, rng=0, device=dev), BatchNorm2d(5, device=dev), ReLU(), Conv2d(5, 4, 3, rng=1, device=dev)]
        body += [MaxPool2d(2), Flatten(), Linear(16, 6, rng=2, device=dev), ReLU(), Linear(6, 3, rng=3, device=dev)]
        return Sequential(body), (4, 2, 8, 8)
    body = [Linear(7, 9, rng=0, device=dev), ReLU(), Linear(9, 5, rng=1, device=dev), ReLU(), Linear(5, 3, rng=2, device=dev)]
    return Sequential(body), (4, 7)


def trained(kind, dev, make):
    """A model and its optimiser after two steps."""
    model, shape = layers(kind, dev)
    optimizer, x = make(model.parameters()), Tensor(np.random.default_rng(0).standard_normal(shape, np.float32), dev)
    for _ in range(2):
        (model(x, Context(dev, training=True)) ** 2).sum().backward()
        optimizer.step()
    return model, optimizer, x


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda p: SGD(list(p), 0.01, 0.9), lambda p: Adam(list(p), 0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize("kind", ["flat", "images"])
def test_permuting_moves_bits_and_keeps_the_function(dev, kind, make):
    model, optimizer, x = trained(kind, dev, make)
    before = model(x).numpy()
    for joint in movable(model, x.shape):
        source, reader, units = joint.source, joint.reader, joint.source.weight.shape[0]
        order = np.random.default_rng(1).permutation(units)
        features = (order[:, None] * joint.pixels + np.arange(joint.pixels)).reshape(-1)
        changed = {source.weight: (order, 0), source.bias: (order, 0), reader.weight: (features, 1)}
        for layer in joint.between:
            changed |= {getattr(layer, name): (order, 0) for name in layer.units}
        own = {id(p): state for p, state in zip(optimizer.parameters, optimizer.state, strict=True)}
        arrays = {t: [t.data, *own.get(id(t), ())] for _, t, _ in model.named() if t.ndim}
        copies = {t: [np.array(dev.download(a)) for a in held] for t, held in arrays.items()}
        permute(joint, order, optimizer)
        for tensor, held in arrays.items():
            at, axis = changed.get(tensor, (np.arange(tensor.shape[0]), 0))
            for array, copy in zip([tensor.data, *own.get(id(tensor), ())], copies[tensor], strict=True):
                assert any(array is one for one in held), "recorded steps hold its address"
                assert np.array(dev.download(array)).tobytes() == np.ascontiguousarray(np.take(copy, at, axis)).tobytes()
    assert len(movable(model, x.shape)) == {"flat": 2, "images": 3}[kind]
    np.testing.assert_allclose(model(x).numpy(), before, rtol=1e-5, atol=1e-5)


def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 20)).astype(np.float32)
    return X, np.int64(X[:, 0] > 0) + (X[:, 1] > 0)


def fit(policy, **options):
    settings = {"epochs": 4, "batch_size": 20, "momentum": 0.9, "random_state": 0, "learning_rate": 0.05, "device": "cpu"}
    return Net((64, 96), dropout=policy, **{**settings, **options}).fit(*data())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_goes_on_as_without_reordering(optimizer):
    """Without dropout the only differences are the orders of sums."""
    options = {"optimizer": optimizer, "learning_rate": 0.05 if optimizer == "sgd" else 1e-3}
    plain, shuffled = (fit(WindowDropout(0.0, shuffle=every), **options) for every in (None, 1))
    np.testing.assert_allclose(shuffled.predict_proba(data()[0]), plain.predict_proba(data()[0]), rtol=1e-3, atol=1e-4)
    ours, theirs = (net.model_.layers[0].weight.numpy() for net in (shuffled, plain))
    assert np.abs(ours - theirs).max() > 0.1
    np.testing.assert_allclose(ours[np.argsort(ours[:, 0])], theirs[np.argsort(theirs[:, 0])], atol=1e-3)


@pytest.mark.parametrize("policy", [WindowDropout, RowDropout])
def test_deferred_updates_are_made_before(monkeypatch, policy):
    monkeypatch.setattr(thresholds, "current", thresholds.current._replace(lazy_elements=0))
    lazy = fit(policy(0.5, shuffle=2))
    assert lazy.optimizer_.lazy
    monkeypatch.setattr(SGD, "_arrange", lambda self, parameter, part: None)
    every = fit(policy(0.5, shuffle=2))
    for ours, theirs in zip(lazy.model_.parameters(), every.model_.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore:fit. the network is no better")
def test_neurons_move_after_every_second_epoch():
    places = []

    def look(net, record):
        places.append(np.array(net.model_.layers[0].weight.numpy()))

    fit(WindowDropout(0.0, shuffle=2), callbacks=[look], learning_rate=1e-9, epochs=5)
    moved = [np.abs(after - before).max() > 0.01 for before, after in zip(places, places[1:])]
    assert moved == [True, False, True, False]


def test_recorded_steps_stay_valid(monkeypatch):
    counts, original = [], replay.run
    monkeypatch.setattr(replay, "run", lambda *given: (counts.append(len(given[3])), original(*given))[1])
    fit(WindowDropout(0.5, shuffle=1))
    assert sum(counts) > 30  # of 40 steps


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [WindowDropout, RowDropout])
@pytest.mark.parametrize("shuffle", [0, -1, 1.5, True, "1"])
def test_invalid_periods_are_refused(kind, shuffle):
    with pytest.raises(ValueError, match=f"{kind.name}: shuffle must be a positive integer, got {shuffle!r}"):
        kind(0.5, shuffle=shuffle)


class TimesTwo(Layer):
    """A user's layer, of which nothing is known."""

    def __call__(self, x):
        return x + x


def test_layers_that_cannot_move_are_named():
    chain = [Linear(20, 12, rng=0), TimesTwo(), Linear(12, 10, rng=1), ReLU(), Linear(10, 3, rng=2)]
    with pytest.warns(UserWarning, match=r"window: shuffle=1: the neurons of 0 \(Linear\) keep their order: .* by itself"):
        net = Net(chain, dropout=WindowDropout(0.3, shuffle=1), epochs=2, random_state=0, device="cpu").fit(*data())
    np.testing.assert_array_equal(net.model_.layers[0].weight.shape, (12, 20))
    frozen = [Linear(20, 12, rng=0), ReLU(), Linear(12, 3, rng=1)]
    frozen[0].weight.requires_grad = False
    with pytest.raises(ValueError, match=r"no layer's neurons can be reordered, not those of 0 \(Linear\)"):
        Net(frozen, dropout=WindowDropout(0.3, shuffle=1), epochs=2, device="cpu").fit(*data())


def test_sparsity_and_language_models_are_refused():
    with pytest.raises(ValueError, match="rdp: shuffle=3: neurons stay where they are if sparsity is trained"):
        fit(RowDropout(0.5, shuffle=3), sparsity=MagnitudePruning(0.5))
    with pytest.raises(ValueError, match=r"no layer's neurons can be reordered, not those of 0 \(Embedding\), 1 \(LSTM\)"):
        LanguageModel((8,), dropout=WindowDropout(0.5, shuffle=1), epochs=1, steps=4, batch_size=2).fit(["a", "b", "c"] * 20)


def test_combined_policies_reorder():
    assert Together(WindowDropout(0.5, shuffle=4), recurrent(WindowDropout(0.5))).shuffle == 4
    assert Together(WindowDropout(0.5)).shuffle is None
