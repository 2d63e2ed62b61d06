"""Fitted estimators to be saved, and what they are asked."""

import numpy as np
import pandas as pd

from numbanet import (
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
    Linear,
    MagnitudePruning,
    MaxPool2d,
    Net,
    NetRegressor,
    Normalize,
    ReLU,
    Rewire,
    RowDropout,
    Sequential,
    SkewNormalSchedule,
    SparseLinear,
    Tanh,
    TileDropout,
)
from numbanet.datasets import load_digits
from numbanet.dropout import Together, recurrent

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
        Net((64, 64), **FAST | {"epochs": 6, "batch_size": 128}, sparsity=GroupLasso(0.02, ("rows", "columns"))).fit(X, Y),
        X_TEST,
    ),
    "tiles": lambda: (Net((64, 64), **{**FAST, "epochs": 6}, sparsity=GroupLasso(0.02, groups="tiles")).fit(X, Y), X_TEST),
    "shared": lambda: (Net([SQUARE, ReLU(), SQUARE, Sequential([Tanh(), Linear(64, 10, rng=1)])], **FAST).fit(X, Y), X_TEST),
    "shared sparse": lambda: (Net([SPARSE, ReLU(), SPARSE, Linear(64, 10, rng=1)], **FAST).fit(X, Y), X_TEST),
    "recurrent": lambda: (Net(sequences(), **FAST, dropout=recurrent(RowDropout(0.3), 12)).fit(SYMBOLS, Y), SYMBOLS),
    "together": lambda: (
        Net(sequences(), **FAST, dropout=Together(RowDropout(0.3), recurrent(RowDropout(0.2), 12))).fit(SYMBOLS, Y),
        SYMBOLS,
    ),
    "frozen": lambda: (frozen(Net((32, 16), **FAST).fit(X, Y)), X_TEST),
    "frozen and given": lambda: (frozen(Net([SQUARE, SQUARE, Linear(64, 10, rng=1)], **FAST).fit(X, Y)), X_TEST),
    "regressor": lambda: (NetRegressor((16,), **FAST).fit(X, Y), X_TEST),
    "outputs": lambda: (NetRegressor((16,), **FAST).fit(X, np.stack([Y, 1e6 - Y], 1)), X_TEST),
    "language": lambda: (language(dropout="rdp", recurrent_dropout=RowDropout(0.2)).fit(WORDS), WORDS),
    "integers": lambda: (language(gate_sparsity=GateSparsity(0.5)).fit(np.tile(np.arange(5), 80)), np.arange(5)),
    "tied": lambda: (language(tied=True).fit(WORDS, validation=WORDS), WORDS),
}
