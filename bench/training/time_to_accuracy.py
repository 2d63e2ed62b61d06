"""Test accuracy over seconds of training: each kind of dropout, in all epochs or in the first three quarters, against none.

MLPs with two hidden layers on MNIST, Fashion-MNIST and a generated table, and AlexNet with batch norm on CIFAR-10; SGD with
momentum 0.9, p = 0.5, three seeds. Each kind of dropout has its own learning rate: the one of a grid with the highest mean
accuracy in the last ten epochs, on a tenth of the training samples that is held out in these runs; they have one seed, or three
if there are few samples. `over_seconds` trains and compares the runs.

Kinds are compared only if `none` is trained as well: --only "784-512.*: (none|window)".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from ..steps import BATCH
from . import IMAGES, Data, over_seconds
from .over_seconds import Pair, kinds, pair

SUITE = "time-to-accuracy"
RECORDED = (
    "--json bench/results/time-to-accuracy.json --plot time-to-accuracy.png",
    '--device cuda --only "784-4096.*: (none|(rdp|batchwise|window) early)$" --json bench/results/time-to-accuracy-h200.json',
)
RATE = 0.5
CHOOSING_SEEDS = 1, 3  # number of seeds of the runs that choose a learning rate; the second, of at most FEW_SAMPLES samples
FEW_SAMPLES = 5000
TABLE, FEATURES, CLASSES = "generated table", 54, 7
QUICK_SAMPLES = 300


class Problem(NamedTuple):
    """Training data, the width of both hidden layers, and hyperparameters.

    Attributes
    ----------
    hidden : int, optional
        By default the network is AlexNet with batch norm.
    samples : int, optional
        Only the first n training samples.
    wrong : float
        Share of the training samples whose label is replaced by another one, drawn from the seed.
    """

    data: str
    hidden: int | None
    epochs: int
    samples: int | None = None
    wrong: float = 0.0
    learning_rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    batch: int = BATCH


PROBLEMS = (
    Problem("mnist", 512, 20),
    Problem("fashion-mnist", 512, 20),
    Problem("mnist", 2048, 15),
    Problem("fashion-mnist", 2048, 15),
    Problem("mnist", 4096, 10),
    Problem("fashion-mnist", 4096, 10),
    Problem("mnist", 512, 60, samples=1000),
    Problem("fashion-mnist", 512, 60, samples=1000),
    Problem("mnist", 512, 60, samples=5000),
    Problem("fashion-mnist", 512, 60, samples=5000),
    Problem("mnist", 512, 20, wrong=0.2),
    Problem("fashion-mnist", 512, 20, wrong=0.2),
    Problem(TABLE, 512, 40),
    Problem("cifar10", None, 12),
)


# --- data -------------------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def _parts(data: str) -> Data:
    """X, y, X_test, y_test of a data set; that of the last call is kept, because runs of a case follow each other."""
    from sklearn.datasets import make_classification
    from sklearn.model_selection import train_test_split

    from numbanet import datasets

    if data != TABLE:
        return datasets.load(data)
    options = {"n_informative": 16, "n_redundant": 10, "n_clusters_per_class": 4, "class_sep": 1.5, "flip_y": 0.02}
    X, y = make_classification(20_000, FEATURES, n_classes=CLASSES, random_state=0, **options)
    X, X_test, y, y_test = train_test_split(X, y, test_size=4000, random_state=0, stratify=y)
    centre, spread = X.mean(axis=0), X.std(axis=0)
    return np.float32((X - centre) / spread), y, np.float32((X_test - centre) / spread), y_test


def load(chosen: dict[str, Any], seed: int) -> Data:
    """The data of a problem's settings; the seed chooses the wrong labels."""
    X, y, *test = _parts(chosen["data"])
    X, y = X[: chosen["samples"]], y[: chosen["samples"]].copy()
    rng, classes = np.random.default_rng(seed), int(y.max()) + 1
    rows = rng.choice(len(y), round(chosen.get("wrong", 0.0) * len(y)), replace=False)
    y[rows] = (y[rows] + rng.integers(1, classes, len(rows))) % classes
    return X, y, *test


# --- experiments ------------------------------------------------------------------------------------------------------
def settings(options: Options, problem: Problem) -> dict[str, Any]:
    """Settings of a problem; "learning_rate" is the list of those to try; a run records the one it has."""
    if problem.hidden is None:
        chosen = training.network_settings(options, "alexnet with batch norm", problem.data, problem.epochs, ())
    else:
        chosen = training.settings(options, problem.hidden, 0.0, problem.epochs, problem.data)
    return {
        **chosen,
        "samples": QUICK_SAMPLES if options.quick else problem.samples,
        **({"wrong": problem.wrong} if problem.wrong else {}),
        **({"table": [FEATURES, CLASSES]} if problem.data == TABLE else {}),
        "batch": problem.batch,
        "learning_rate": list(problem.learning_rates),
        "choosing_seeds": CHOOSING_SEEDS[problem.samples is not None and problem.samples <= FEW_SAMPLES],
    }


def alexnet(data: str, seed: int) -> list[Any]:
    """The layers of AlexNet with batch norm, for the images of a data set."""
    from numbanet.estimators.zoo import MODELS

    return MODELS["alexnet"](IMAGES[data], batch_norm=True, rng=seed)


def _network(problem: Problem) -> dict[str, Any]:
    """Parameters of a Net: its network and initial weights. AlexNet's layers bring He's, as its batch norm expects."""
    if problem.hidden is not None:
        return {"init": "glorot"}
    return {"layers": functools.partial(alexnet, problem.data), "image_shape": IMAGES[problem.data]}


def experiments(options: Options) -> Iterator[Pair]:
    """For each problem and kind of dropout the experiment without its learning rate, and those that choose it."""
    for problem in PROBLEMS[:1] if options.quick else PROBLEMS:
        chosen, network = settings(options, problem), _network(problem)
        for name, parameters in kinds(RATE):
            yield pair(chosen, name, functools.partial(dict, **network, **parameters), load)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs, for each case first those that choose learning rates; return the rows."""
    return over_seconds.run(options, results, say, SUITE, experiments(options))


plot = over_seconds.plot
