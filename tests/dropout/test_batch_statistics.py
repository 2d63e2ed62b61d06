"""After an epoch with dropout, running values of batch norms are those of passes without dropout."""

import signal

import numpy as np
import pytest

from numbanet import BatchNorm1d, BatchNorm2d, Conv2d, EarlyDropout, Embedding, Flatten, Hook, Linear, MaxPool2d, Net, ReLU
from numbanet.dropout import DynamicSparseGraph
from numbanet.parallel import run_ranks

RNG = np.random.default_rng(0)
X = RNG.standard_normal((600, 20)).astype(np.float32)
Y = X[:, :3].argmax(1)
IMAGES, LABELS = RNG.standard_normal((300, 2, 8, 8)).astype(np.float32), RNG.integers(0, 3, 300)
SETTINGS = {"epochs": 3, "batch_size": 50, "random_state": 0, "device": "cpu"}


def flat():
    return [
        Linear(20, 64, rng=1),
        BatchNorm1d(64),
        ReLU(),
        Linear(64, 32, rng=2),
        BatchNorm1d(32),
        ReLU(),
        Linear(32, 3, rng=3),
    ]


def convolutions():
    convs = [Conv2d(2, 16, 3, rng=1), BatchNorm2d(16), ReLU(), Conv2d(16, 16, 3, rng=2), BatchNorm2d(16), ReLU()]
    return [*convs, MaxPool2d(2), Flatten(), Linear(64, 3, rng=3)]


def statistics(net):
    return {name: tensor.numpy() for name, tensor, _ in net.model_.named() if "running" in name}


def inputs_of_norms(net, X):
    """Mean and variance of each norm's input, if all samples are one batch that passes without dropout."""
    found = {}
    for i, layer in enumerate(net.model_.layers):
        if isinstance(layer, (BatchNorm1d, BatchNorm2d)):
            axes = (0, *range(2, X.ndim))
            mean, variance = X.mean(axes, dtype=np.float64), X.var(axes, dtype=np.float64)
            found[f"{i}.running_mean"], found[f"{i}.running_var"] = mean, variance
            shape = (1, -1, *(1,) * (X.ndim - 2))
            X = (X - mean.reshape(shape)) / np.sqrt(variance + layer.eps).reshape(shape)
            X = X * layer.weight.numpy().reshape(shape) + layer.bias.numpy().reshape(shape)
        else:
            from numbanet import Tensor

            X = layer(Tensor(X)).numpy()
    return found


@pytest.mark.parametrize(
    "layers, X, y, dropout",
    [
        (flat, X, Y, "rdp"),
        (flat, X, Y, "bernoulli"),
        (flat, X, Y, "window"),
        (flat, X, Y, "dsg"),
        (convolutions, IMAGES, LABELS, "rsdp"),
        (convolutions, IMAGES, LABELS, "bsdp"),
        (convolutions, IMAGES, LABELS, "rdp"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore:dsg:UserWarning", "ignore:fit:UserWarning", "ignore:rdp")
def test_running_values_are_those_without_dropout(layers, X, y, dropout):
    net = Net(layers(), dropout=dropout, **{**SETTINGS, "batch_size": 600}).fit(X, y)  # all samples are one batch
    for name, expected in inputs_of_norms(net, X).items():
        n = X.shape[0] * (36 if name[0] == "1" else 16) if X.ndim > 2 else len(X)
        unbiased = n / (n - 1) if "var" in name else 1.0
        np.testing.assert_allclose(statistics(net)[name], expected * unbiased, rtol=2e-3, atol=1e-4, err_msg=name)


def test_predictions_are_better_by_far():
    """Rows of images that are dropped count as 0 in the statistics of a step, which predictions must not use."""
    quarters = (IMAGES.reshape(300, 2, 2, 4, 2, 4) + 0).copy()
    labels = LABELS.copy()
    quarters[range(300), :, labels // 2, :, labels % 2] += 1
    net = Net(convolutions(), dropout="rsdp", dropout_rate=0.6, epochs=30, learning_rate=0.02, batch_size=50, random_state=0)
    net.fit(quarters.reshape(IMAGES.shape), labels)
    assert net.score(quarters.reshape(IMAGES.shape), labels) > 0.9


@pytest.mark.parametrize(
    "dropout",
    ["none", EarlyDropout(0.5, until=0.5), DynamicSparseGraph(0.5, share="sample")],
    ids=["none", "a dense end", "predictions select"],
)
@pytest.mark.filterwarnings("ignore:dsg:UserWarning")
def test_otherwise_they_stay_those_of_the_steps(monkeypatch, dropout):
    seen = []
    monkeypatch.setattr(BatchNorm1d, "averaging", lambda self: seen.append(self) or pytest.fail("not in this epoch"))
    options = {"dropout": "window", "dropout_rate": dropout} if isinstance(dropout, EarlyDropout) else {"dropout": dropout}
    if isinstance(dropout, EarlyDropout):  # only in its second half
        with pytest.raises(pytest.fail.Exception):
            Net(flat(), **options, **SETTINGS).fit(X, Y)
        assert len(seen) == 1
    else:
        Net(flat(), **options, **SETTINGS).fit(X, Y)


def test_a_part_of_the_samples_may_be_too_few(monkeypatch):
    seen, averaging = [], BatchNorm1d.averaging
    monkeypatch.setattr(BatchNorm1d, "averaging", lambda self: seen.append(self) or averaging(self))
    net = Net(flat(), dropout="rdp", **SETTINGS)
    for first in (0, 300, 400, 500):  # the first call begins a training
        net.partial_fit(X[first : first + 100], Y[first : first + 100], classes=np.arange(3))
    assert len(seen) == 2
    net.partial_fit(X, Y)
    assert len(seen) == 4
    Net(flat(), dropout="rdp", **SETTINGS).fit(batches=[(X[i : i + 50], Y[i : i + 50]) for i in range(0, 600, 50)])
    assert len(seen) == 4 + 2 * 3, "the samples of the first batches are enough"


def test_symbols_and_ranks_and_momentum():
    words = np.random.default_rng(1).integers(0, 9, (200, 4))
    layers = [
        Embedding(9, 6, rng=0),
        Flatten(),
        BatchNorm1d(24, momentum=0.3),
        Linear(24, 3, rng=1),
        ReLU(),
        Linear(3, 3, rng=2),
    ]
    net = Net(layers, dropout="rdp", **SETTINGS).fit(words, words[:, 0] % 3)
    norm = net.model_.layers[2]
    assert norm.momentum == 0.3 and norm.num_batches_tracked.numpy() == 3 * 4  # those of the steps
    alone, *nets = (
        Net(flat(), dropout="rdp", **SETTINGS).fit(X, Y),
        *run_ranks(2, lambda ranks: Net(flat(), dropout="rdp", parallel=ranks, **SETTINGS).fit(X, Y)),
    )
    for name, value in statistics(alone).items():
        np.testing.assert_allclose(statistics(nets[0])[name], value, rtol=1e-2, atol=1e-3)
        np.testing.assert_array_equal(statistics(nets[0])[name], statistics(nets[1])[name])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_interrupt_within_an_epoch_renews_them(interruptible, optimizer):
    class Stops(Hook):
        def between_steps(self, run):
            if run.optimizer.steps == 20:  # of 12 in an epoch
                signal.raise_signal(signal.SIGINT)

    net = Net(flat(), dropout="rdp", optimizer=optimizer, callbacks=[Stops()], **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        net.fit(X, Y)
    assert net.n_iter_ == 1
    expected = inputs_of_norms(net, X)["1.running_mean"]
    np.testing.assert_allclose(statistics(net)["1.running_mean"], expected, rtol=1e-4, atol=1e-5)
