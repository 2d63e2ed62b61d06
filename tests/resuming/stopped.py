"""Fits of every family, checkpoints of which are taken at every few steps, and whether two fits ended in the same state."""

import copy
import shutil

import numpy as np

from numbanet import (
    GroupLasso,
    Hook,
    LanguageModel,
    MagnitudePruning,
    Net,
    NetRegressor,
    ReduceLROnPlateau,
    Rewire,
    WindowDropout,
)
from numbanet.datasets import load_digits
from numbanet.dropout import BlockSensitiveDropout, DynamicSparseGraph, GateSparsity, RowSensitiveDropout, SkewNormalSchedule
from numbanet.layers import LSTM, BatchNorm2d, Conv2d, Embedding, Flatten, LastStep, Linear, MaxPool2d, ReLU, SparseLinear
from numbanet.training.augment import FlipsAndCrops

X, Y, X_VAL, Y_VAL = load_digits()
X, Y, X_VAL, Y_VAL = X[:300], Y[:300], X_VAL[:60], Y_VAL[:60]
IMAGES = X.reshape(-1, 1, 8, 8)
WORDS = np.random.default_rng(0).integers(1, 17, (150, 6))
TEXT = np.random.default_rng(1).integers(0, 12, 700)
BASE = {"epochs": 4, "batch_size": 40, "random_state": 0, "device": "cpu"}
SHORT = {**BASE, "epochs": 3}


def convolutions(norm=False):
    layers = [Conv2d(1, 16, 3, padding=1, rng=0), *([BatchNorm2d(16)] if norm else []), ReLU(), MaxPool2d(2)]
    return [*layers, Conv2d(16, 16, 3, padding=1, rng=1), ReLU(), Flatten(), Linear(256, 10, rng=2)]


def sequences():
    return [Embedding(17, 8, padding_idx=0, rng=0), LSTM(8, 16, 2, batch_first=True, rng=1), LastStep(), Linear(16, 3, rng=2)]


def mlp(**options):
    return Net((32, 32), **{**BASE, **options})


def cnn(**options):
    return Net(convolutions(options.pop("norm", False)), **{**SHORT, "batch_size": 60, **options})


def language(**options):
    return LanguageModel((16, 16), **{**BASE, "batch_size": 4, "steps": 7, "learning_rate": 2.0, **options})


def flat(net, **options):
    return net, (X, Y), options


def images(net, **options):
    return net, (IMAGES, Y), options


def words(net, **options):
    return net, (WORDS, WORDS.sum(1) % 3), options


def text(net, **options):
    return net, (TEXT,), options


class Counts(Hook):
    """A user's hook with a state."""

    watches = changes = False
    steps = 0

    def after_update(self, run):
        self.steps += 1

    def epoch_end(self, run, record):
        return {"steps": self.steps}

    def state(self):
        return self.steps

    def restore(self, state):
        self.steps = state


FAMILIES = {
    "sgd": lambda: flat(mlp()),
    "nesterov": lambda: flat(mlp(nesterov=True, weight_decay=1e-3, clip_norm=0.5, learning_rate_schedule="cosine")),
    "adam": lambda: flat(mlp(optimizer="adam", learning_rate_schedule="linear")),
    "adamw": lambda: flat(mlp(optimizer="adamw", weight_decay=0.01, dropout="rdp")),
    "bernoulli": lambda: flat(mlp(dropout="bernoulli")),
    "rdp": lambda: flat(mlp(dropout="rdp", dropout_rate=0.7, weight_decay=1e-4)),
    "tdp": lambda: flat(Net((64, 64), dropout="tdp", **BASE)),
    "batchwise": lambda: flat(mlp(dropout="batchwise", nesterov=True)),
    "window": lambda: flat(mlp(dropout="window")),
    "shuffled": lambda: flat(mlp(dropout=WindowDropout(0.5, shuffle=1))),
    "rates": lambda: flat(mlp(dropout="rdp", dropout_rate=SkewNormalSchedule(0.5, 4), learning_rate_schedule="cosine")),
    "dsg": lambda: flat(Net((128, 128), dropout=DynamicSparseGraph(0.5, epsilon=0.9, refresh=3), **BASE)),
    "dsg sample": lambda: flat(Net((128, 128), dropout=DynamicSparseGraph(0.5, 0.9, "sample", 4), **BASE)),
    "dsg pruned": lambda: flat(
        Net((128, 128), dropout=DynamicSparseGraph(0.5, 0.9), sparsity=MagnitudePruning(0.8), **{**BASE, "epochs": 6})
    ),
    "stopping": lambda: flat(mlp(epochs=12, early_stopping=True, patience=2, dropout="rdp", learning_rate=0.2)),
    "validated": lambda: flat(
        mlp(epochs=6, callbacks=[ReduceLROnPlateau(0.5, 0), Counts()], learning_rate=0.1), validation=(X_VAL, Y_VAL)
    ),
    "weights": lambda: flat(mlp(class_weight="balanced", dropout="rdp"), sample_weight=np.linspace(0.5, 2, len(Y))),
    "call": lambda: flat(mlp(), dropout="rdp", dropout_rate=0.7),
    "regressor": lambda: (NetRegressor((32,), **BASE), (X, X @ np.linspace(-1, 1, 64)), {}),
    "several labels": lambda: (mlp(), (X, np.int64(np.stack([Y % 2, Y > 4], 1))), {}),
    "lasso": lambda: flat(mlp(epochs=8, sparsity=GroupLasso(0.05, "columns", fine_tuning=0.4), optimizer="adam")),
    "lasso of costs": lambda: flat(mlp(epochs=6, sparsity=GroupLasso(0.05, cost_weight=0.5), dropout="rdp")),
    "lasso of tiles": lambda: flat(Net((64, 64), **{**BASE, "epochs": 6}, sparsity=GroupLasso(0.1, "tiles"))),
    "pruning": lambda: flat(mlp(epochs=6, sparsity=MagnitudePruning(0.8), dropout="rdp")),
    "rewiring": lambda: flat(
        Net([SparseLinear(64, 32, density=0.3), ReLU(), Linear(32, 10)], **BASE, sparsity=Rewire(every=3), optimizer="adam")
    ),
    "convolutions": lambda: images(cnn(norm=True, dropout="bernoulli")),
    "augmented": lambda: images(cnn(augment=FlipsAndCrops(1), optimizer="adam")),
    "rsdp": lambda: images(cnn(dropout=RowSensitiveDropout(0.5))),
    "rsdp in tiles": lambda: images(cnn(dropout=RowSensitiveDropout(0.5, tile=2))),
    "bsdp": lambda: images(cnn(dropout=BlockSensitiveDropout(SkewNormalSchedule(0.5, 3)))),
    "lstm": lambda: words(Net(sequences(), **BASE, dropout="rdp", clip_norm=1.0)),
    "language": lambda: text(language()),
    "language batchwise": lambda: text(language(dropout="batchwise", dropout_rate=0.3, tied=True)),
    "language tdp": lambda: text(language(dropout="tdp", early_stopping=True, patience=1)),
    "language recurrent": lambda: text(language(dropout="window", recurrent_dropout="window", recurrent_sampling="outputs")),
    "language gates": lambda: text(language(dropout="rdp", recurrent_dropout="rdp", gate_sparsity=GateSparsity(0.5, probe=3))),
    "language thresholds": lambda: text(language(gate_sparsity=0.5, gate_mode="threshold", gate_schedule=0.6)),
}


def begun(name):
    """(estimator, data, options of fit): a new fit of a family."""
    return FAMILIES[name]()


def alone(files, number, folder):
    """A copy of one checkpoint of a folder, alone in another folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(sorted(files.iterdir())[number], folder)
    return folder


def figures(net):
    """The history without times."""
    left = ("seconds", "tokens_per_second", "exchange_seconds")
    return [{name: value for name, value in record.items() if name not in left} for record in net.history_]


def assert_same(net, other):
    """Two fits ended in the same bits: weights, optimiser, random streams and history."""
    ours, theirs = net.model_.state_dict(), other.model_.state_dict()
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(theirs[name], array, err_msg=name)
    ours, theirs = net.optimizer_.snapshot(), other.optimizer_.snapshot()
    assert ours["steps"] == theirs["steps"] and ours["learning_rate"] == theirs["learning_rate"]
    for some, others in zip(ours["state"], theirs["state"], strict=True):
        for array, there in zip(some, others, strict=True):
            np.testing.assert_array_equal(there, array)
    assert net._streams.state() == other._streams.state()
    assert (net.n_iter_, net.best_epoch_) == (other.n_iter_, other.best_epoch_)
    np.testing.assert_equal(copy.deepcopy(figures(other)), figures(net))
