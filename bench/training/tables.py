"""Scores on tabular data: a `Net`'s initial weights and defaults, against networks of scikit-learn and PyTorch.

The classification and regression sets that come with scikit-learn, some that it generates, California housing and covertype if
they were downloaded, and 10,000 images of MNIST and Fashion-MNIST. Features and targets are standardised; five folds (images:
the test set); three seeds.

    equal      256-256, ReLU, Adam with learning rate 0.001, batches of 128, 40 epochs (images 10), no penalty; where init=
               is named output_init is None, and where output_init= is named it is the one that is not the default; without
               output_bias=None, classifiers begin at the shares of the classes
    defaults   each estimator without arguments (PyTorch has none); fixed: init="he", output_init=None, 20 epochs, batches of
               128 for any table

The score is accuracy or R². A difference is the mean over folds and seeds of numbanet's score minus that of the better peer,
with the standard error of that mean.
"""

from __future__ import annotations

import functools
import statistics
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..machinery.harness import Options
from ..machinery.machine import commit, now, processor
from ..machinery.results import Results

SUITE = "tables"
RECORDED = ("--json bench/results/tables.json",)
WIDTHS, RATE, BATCH, EPOCHS, IMAGE_EPOCHS = (256, 256), 0.001, 128, 40, 10
FOLDS, SEEDS, IMAGES = 5, 3, 10_000
RARE = {"n_samples": 3000, "n_features": 20, "n_informative": 10}
INITS, DROPOUTS, DROPOUT_RATE = ("he", "fan_in"), ("bernoulli", "rdp", "batchwise", "window"), 0.5


class Table(NamedTuple):
    """Samples and targets (classes or numbers), and a test set if the data set has one."""

    X: np.ndarray
    y: np.ndarray
    classes: bool
    test: tuple[np.ndarray, np.ndarray] | None = None


def _generated(name: str, classes: bool = False, **options: Any) -> Callable[[], Table]:
    def load() -> Table:
        from sklearn import datasets

        return Table(*getattr(datasets, f"make_{name}")(random_state=0, **options), classes)

    return load


def _shipped(name: str, classes: bool = True) -> Callable[[], Table]:
    def load() -> Table:
        from sklearn import datasets

        return Table(*getattr(datasets, f"load_{name}")(return_X_y=True), classes)

    return load


def _fetched(name: str, classes: bool, most: int) -> Callable[[], Table | None]:
    """The first `most` rows, shuffled, of a set that scikit-learn downloads (`fetch_…`); None unless the user has done so."""

    def load() -> Table | None:
        from sklearn import datasets
        from sklearn.utils import shuffle

        try:
            X, y = getattr(datasets, f"fetch_{name}")(return_X_y=True, download_if_missing=False)
        except OSError:
            return None
        return Table(*shuffle(X, y, random_state=0, n_samples=min(most, len(y))), classes)

    return load


def _images(name: str) -> Callable[[], Table]:
    def load() -> Table:
        from numbanet import datasets

        X, y, X_test, y_test = getattr(datasets, f"load_{name}")()
        return Table(X[:IMAGES], y[:IMAGES], True, (X_test, y_test))

    return load


TABLES: dict[str, Callable[[], Table | None]] = {
    "friedman1": _generated("friedman1", n_samples=1000, noise=1.0),
    "friedman2": _generated("friedman2", n_samples=1000, noise=1.0),
    "friedman3": _generated("friedman3", n_samples=1000, noise=0.1),
    "linear": _generated("regression", n_samples=1000, n_features=20, n_informative=10, noise=10.0),
    "linear, 5000 x 50": _generated("regression", n_samples=5000, n_features=50, n_informative=20, noise=10.0),
    "linear, 400 x 100": _generated("regression", n_samples=400, n_features=100, n_informative=20, noise=10.0),
    "diabetes": _shipped("diabetes", False),
    "california housing": _fetched("california_housing", False, 5000),
    "four classes": _generated("classification", True, n_samples=2000, n_features=20, n_informative=10, n_classes=4),
    "two classes": _generated("classification", True, n_samples=1000, n_features=50, n_informative=15),
    "eight classes, 3000 x 40": _generated(
        "classification", True, n_samples=3000, n_features=40, n_informative=20, n_classes=8
    ),
    "two classes, 4000 x 10": _generated("classification", True, n_samples=4000, n_features=10, n_informative=6, flip_y=0.1),
    "two classes, one of 5 %": _generated("classification", True, weights=[0.95], **RARE),
    "eight classes, half of them rare": _generated(
        "classification", True, n_classes=8, weights=[0.5, 0.25, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01], **RARE
    ),
    "covertype": _fetched("covtype", True, 5000),
    "digits": _shipped("digits"),
    "wine": _shipped("wine"),
    "breast cancer": _shipped("breast_cancer"),
    "iris": _shipped("iris"),
    "mnist, 10000 images": _images("mnist"),
    "fashion-mnist, 10000 images": _images("fashion_mnist"),
}

IMAGE_TABLES = "mnist, 10000 images", "fashion-mnist, 10000 images"


# --- fits -------------------------------------------------------------------------------------------------------------
def _numbanet(table: Table, seed: int, **parameters: Any) -> Any:
    from numbanet import Net, NetRegressor

    return (Net if table.classes else NetRegressor)(random_state=seed, **parameters)


def _scikit_learn(table: Table, seed: int, **parameters: Any) -> Any:
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    return (MLPClassifier if table.classes else MLPRegressor)(random_state=seed, **parameters)


class _Torch:
    """The network in PyTorch, with its default initial weights."""

    def __init__(self, classes: bool, epochs: int, seed: int) -> None:
        self.classes, self.epochs, self.seed = classes, epochs, seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> _Torch:
        import torch

        torch.manual_seed(self.seed)
        outputs = int(y.max()) + 1 if self.classes else 1
        widths = (X.shape[1], *WIDTHS, outputs)
        layers = [part for i, o in zip(widths, widths[1:]) for part in (torch.nn.Linear(i, o), torch.nn.ReLU())][:-1]
        self.model = torch.nn.Sequential(*layers)
        inputs, targets = torch.from_numpy(X), torch.from_numpy(y if self.classes else np.float32(y[:, None]))
        loss = torch.nn.functional.cross_entropy if self.classes else torch.nn.functional.mse_loss
        updates = torch.optim.Adam(self.model.parameters(), lr=RATE)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(X)).split(BATCH):
                updates.zero_grad()
                loss(self.model(inputs[rows]), targets[rows]).backward()
                updates.step()
        return self

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        import torch
        from sklearn.metrics import accuracy_score, r2_score

        with torch.no_grad():
            output = self.model(torch.from_numpy(X)).numpy()
        return accuracy_score(y, output.argmax(1)) if self.classes else r2_score(y, output[:, 0])


def _kinds(mode: str, epochs: int, classes: bool, device: str) -> dict[str, Callable[[Table, int], Any]]:
    """{name: (table, seed) -> estimator}, peers first."""
    ours = functools.partial(_numbanet, device=device)
    if mode == "defaults":
        fixed = functools.partial(
            ours, init="he", output_init=None, epochs=20, batch_size=128, **({"output_bias": None} if classes else {})
        )
        return {"scikit-learn": _scikit_learn, "numbanet": ours, "numbanet, fixed": fixed}
    equal = {"layers": WIDTHS, "optimizer": "adam", "learning_rate": RATE, "batch_size": BATCH, "epochs": epochs}
    theirs = {"hidden_layer_sizes": WIDTHS, "alpha": 0, "batch_size": BATCH, "max_iter": epochs, "n_iter_no_change": epochs + 1}
    kinds: dict[str, Callable[[Table, int], Any]] = {
        "scikit-learn": functools.partial(_scikit_learn, **theirs),
        "torch": lambda table, seed: _Torch(table.classes, epochs, seed),
    }
    kinds["numbanet"] = functools.partial(ours, **equal)
    for init in INITS:
        kinds[f"numbanet, init={init}"] = functools.partial(ours, init=init, output_init=None, **equal)
    other = "small" if classes else None
    kinds[f"numbanet, output_init={other}"] = functools.partial(ours, output_init=other, **equal)
    if classes:
        kinds["numbanet, output_bias=None"] = functools.partial(ours, output_bias=None, **equal)
    for dropout in DROPOUTS:
        kinds[f"{dropout} p={DROPOUT_RATE}"] = functools.partial(ours, dropout=dropout, dropout_rate=DROPOUT_RATE, **equal)
    return kinds


PEERS = "scikit-learn", "torch"


def _splits(table: Table, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """X, y, X_test, y_test of each fold, standardised with mean and deviation of the training part."""
    from sklearn.model_selection import KFold, StratifiedKFold

    if table.test is not None:
        yield table.X, table.y, *table.test
        return
    folds = (StratifiedKFold if table.classes else KFold)(FOLDS, shuffle=True, random_state=seed)
    for rows, held in folds.split(table.X, table.y):
        X, X_test, y, y_test = table.X[rows], table.X[held], table.y[rows], table.y[held]
        centre, spread = X.mean(0), X.std(0)
        spread[spread == 0] = 1
        if not table.classes:
            y, y_test = (y - y.mean()) / y.std(), (y_test - y.mean()) / y.std()
        yield np.float32((X - centre) / spread), y, np.float32((X_test - centre) / spread), y_test


def _scores(table: Table, seeds: int, kind: Callable[[Table, int], Any]) -> list[float]:
    """A score for each fold of each seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of peers that have not converged, and of dropout in narrow networks
        return [
            float(kind(table, seed).fit(X, y).score(X_test, y_test))
            for seed in range(seeds)
            for X, y, X_test, y_test in _splits(table, seed)
        ]


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Fit missing estimators; return the rows."""
    names = ("iris", "diabetes") if options.quick else tuple(TABLES)
    of_case = {f"{name}, {mode}": (name, mode) for mode in ("equal", "defaults") for name in names}
    settings = {case: _settings(name, options) for case, (name, _) in of_case.items()}
    results.resume(list(settings.values()))

    def save() -> None:
        results.rows = [row for case in of_case for row in _rows(case, results.runs)]
        results.save()

    for case, (name, mode) in of_case.items():
        if not options.wants(f"{SUITE} {case}"):
            continue
        table = TABLES[name]()
        if table is None:
            say(f"{case} is left out: scikit-learn has not downloaded it")
            continue
        done = {run["implementation"] for run in results.runs if run["case"] == case}
        kinds = _kinds(mode, settings[case]["epochs"], table.classes, options.device)
        for kind in kinds:
            if kind not in done:
                say(f"{case}: {kind}")
                facts = {"settings": settings[case], "date": now(), "commit": commit(), "processor": processor()}
                scores = _scores(table, settings[case]["seeds"], kinds[kind])
                results.runs.append({"case": case, "implementation": kind, **facts, "scores": scores})
                save()  # if the command is interrupted, finished fits are reported
    save()
    return results.rows


def _settings(name: str, options: Options) -> dict[str, Any]:
    """What the scores of a table depend on beside its case."""
    epochs = IMAGE_EPOCHS if name in IMAGE_TABLES else EPOCHS
    return {"epochs": 2 if options.quick else epochs, "seeds": 1 if options.quick else SEEDS, "device": options.device}


def _rows(case: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each implementation of a case."""
    done = {run["implementation"]: run["scores"] for run in runs if run["case"] == case}
    return [_row(case, kind, done) for kind in done]


def _row(case: str, kind: str, done: dict[str, list[float]]) -> dict[str, Any]:
    """An implementation's mean score, and the difference to that of the better peer."""
    row: dict[str, Any] = {"suite": SUITE, "case": case, "implementation": kind, "score": statistics.fmean(done[kind])}
    peers = [peer for peer in PEERS if peer in done]
    if kind not in peers and peers:
        peer = max(peers, key=lambda name: statistics.fmean(done[name]))
        differences = [ours - theirs for ours, theirs in zip(done[kind], done[peer], strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        row |= {"peer": peer, "above": statistics.fmean(differences), "standard_error": error}
    return row
