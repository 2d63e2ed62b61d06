"""Whole training runs: accuracy (of language models: perplexity) by epoch, and seconds until a given one is reached.

A finished run is written to the JSON file at once and is not repeated. The outer loop is over seeds and the inner one over
kinds of dropout, so that a change of the machine's speed over time affects all kinds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..machinery.harness import Options
from ..machinery.machine import commit, now, processor
from ..machinery.results import Results
from ..machinery.runs import Run, both, case_of, key_of, measure, whole
from ..steps import BATCH, CLASSES, FEATURES, MOMENTUM, RATE
from .rows import summary

Data = tuple[Any, ...]  # X, y, X_test, y_test; or the words of a training text and of a validation text
IMAGES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
SEEDS = 3
WARM_UP = 2048  # n samples
ON_ONE_GPU = 6  # n runs in parallel: while one waits for its host, another computes
VOCABULARY, VALIDATION = 8800, 50_000  # n words
RECORDED_KEYS = (
    "loss",
    "seconds",
    "flops_share",
    "dropped",
    "sensitive",
    "gates_kept",
    "gates_cosine",
    "weights_kept",
    "held",
)  # entries of an epoch's record that are written to the file


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A training run without its seed.

    Attributes
    ----------
    settings : dict
        Data set, network and hyperparameters; they are recorded with the run.
    name : str
        The kind of dropout, as shown in tables.
    variant : callable or None
        () -> parameters of a Net or a LanguageModel. The value of "layers", if present, is a function seed -> layers.
        None: PyTorch with nn.Dropout.
    seeds : int
        n runs.
    against : str, optional
        The kind of dropout that it is compared with; by default `baseline`.
    learning_rate : float, optional
        In place of that of the settings, if each kind of dropout has its own; it is recorded with the run.
    load : callable, optional
        (settings, seed) -> data. By default the data set of the settings, or its first samples.
    warm_up : int
        n epochs of the warm-up; a schedule of dropout rates needs enough to reach each of its rates.
    """

    settings: dict[str, Any]
    name: str
    variant: Callable[[], dict[str, Any]] | None
    seeds: int = SEEDS
    against: str | None = None
    learning_rate: float | None = None
    load: Callable[[dict[str, Any], int], Data] | None = None
    warm_up: int = 1

    @property
    def key(self) -> tuple[str, str]:
        return key_of(self.settings), self.name


def settings(
    options: Options, hidden: int | Sequence[int], rate: float | Sequence[float], epochs: int, data: str = "mnist"
) -> dict[str, Any]:
    """The settings of an MLP with two hidden layers. Two widths or rates are those of the layers; samples None means all."""
    quick = options.quick
    return {
        "data": data,
        "samples": 2000 if quick else None,
        "hidden": 64 if quick else _one(hidden),
        "epochs": 2 if quick else epochs,
        "batch": BATCH,
        "learning_rate": RATE,
        "momentum": MOMENTUM,
        "dropout_rate": _one(rate),
        "device": options.device,
    }


def network_settings(
    options: Options, network: str, data: str, epochs: int, targets: Sequence[float], samples: int | None = None
) -> dict[str, Any]:
    """As `settings`, for a convolutional network by name; tables show the time until it reaches the target accuracies."""
    quick = options.quick
    return {
        "data": data,
        "samples": 1000 if quick else samples,
        "network": network,
        "epochs": 2 if quick else epochs,
        "batch": BATCH,
        "learning_rate": RATE,
        "momentum": MOMENTUM,
        "device": options.device,
        "targets": list(targets),
    }


def text_settings(
    options: Options, hidden: Sequence[int], words: int, epochs: int, rate: float, targets: Sequence[float], halved_after: int
) -> dict[str, Any]:
    """As `settings`, for a language model on the first words of WikiText-2; targets are perplexities. After epoch
    `halved_after` the learning rate is halved in each epoch (Zaremba et al. 2014)."""
    quick = options.quick
    return {
        "data": "wikitext2",
        "samples": 3000 if quick else words,
        "validation": 1000 if quick else VALIDATION,
        "vocabulary": 200 if quick else VOCABULARY,
        "lstm": [64] * len(hidden) if quick else list(hidden),
        "epochs": 2 if quick else epochs,
        "batch": 20,
        "steps": 35,
        "learning_rate": 10.0,
        "clip_norm": 0.25,
        "halved_after": halved_after,
        "dropout_rate": rate,
        "device": options.device,
        "targets": list(targets),
    }


def _one(value: Any) -> Any:
    """One number if both layers have the same, else a list: JSON has no tuples."""
    if not isinstance(value, (list, tuple)):
        return value
    return value[0] if len(set(value)) == 1 else list(value)


# --- training ---------------------------------------------------------------------------------------------------------
def train(experiment: Experiment, seed: int, data: Data) -> Run:
    """One training run: test accuracy or validation perplexity, loss and seconds of training, by epoch.

    If the loss becomes infinite or NaN, the run ends and has fewer epochs than its settings: it diverged. A warm-up on a few
    samples comes first, so that no code is compiled in the measured epochs.
    """

    def epochs_of(chosen: dict[str, Any], data: Data) -> list[dict[str, float]]:
        if experiment.variant is None:
            return list(_torch_epochs(chosen, seed, data))
        train_on = _text_epochs if "vocabulary" in chosen else _epochs
        return train_on(chosen, experiment.variant(), seed, data)

    own = {} if experiment.learning_rate is None else {"learning_rate": experiment.learning_rate}
    chosen = {**experiment.settings, **own}
    epochs_of({**chosen, "epochs": experiment.warm_up}, tuple(part[:WARM_UP] for part in data))
    return {
        "dropout": experiment.name,
        "seed": seed,
        "date": now(),
        "commit": commit(),
        "processor": processor(),
        "settings": experiment.settings,
        **own,
        "epochs": epochs_of(chosen, data),
    }


def _epochs(chosen: dict[str, Any], variant: dict[str, Any], seed: int, data: Data) -> list[dict[str, float]]:
    from sklearn.model_selection import train_test_split

    from numbanet import Net

    X, y, X_test, y_test = data
    variant = {"init": "he", "output_bias": None, **variant}  # as in the papers and older records, unless a variant has others
    layers = variant.pop("layers", None)
    if share := chosen.get("held"):
        X, X_held, y, y_held = train_test_split(X, y, test_size=share, random_state=seed, stratify=y)
        variant["callbacks"] = [lambda net, record: record.update(held=net.score(X_held, y_held))]
    net = Net(
        layers(seed) if layers else chosen.get("network") or both(chosen["hidden"]),
        epochs=chosen["epochs"],
        batch_size=chosen["batch"],
        learning_rate=chosen["learning_rate"],
        momentum=chosen["momentum"],
        device=chosen["device"],
        random_state=seed,
        **variant,
    )
    with warnings.catch_warnings(), contextlib.suppress(FloatingPointError):
        warnings.filterwarnings("ignore", "the loss was not finite")
        net.fit(X, y, validation=(X_test, y_test))
    records = _records("accuracy", "validation_score", net)
    if records and chosen.get("predict"):
        records[-1].update(_prediction(net, X, y, X_test, chosen["predict"]))
    return records


def _prediction(net: Any, X: Any, y: Any, X_test: Any, turns: int) -> dict[str, float]:
    """Median seconds of predicting the test samples, in alternation with a dense network of the initial shape."""
    dense = type(net)(**{**net.get_params(), "epochs": 1, "sparsity": None}).fit(X[:WARM_UP], y[:WARM_UP])
    times: dict[str, list[float]] = {"predict_seconds": [], "predict_dense": []}
    for _ in range(turns):
        for name, model in zip(times, (net, dense), strict=True):
            began = time.perf_counter()
            model.predict(X_test)
            times[name].append(time.perf_counter() - began)
    return {name: float(np.median(seconds)) for name, seconds in times.items()}


def _text_epochs(chosen: dict[str, Any], variant: dict[str, Any], seed: int, data: Data) -> list[dict[str, float]]:
    from numbanet import LanguageModel

    words, validation = data
    if share := chosen.get("held"):
        end = len(words) - round(share * len(words))
        words, held = words[:end], words[end:]
        variant = {**variant, "callbacks": [lambda model, record: record.update(held=model.score(held))]}
    model = LanguageModel(
        tuple(chosen["lstm"]),
        vocabulary_size=chosen["vocabulary"],
        steps=chosen["steps"],
        epochs=chosen["epochs"],
        batch_size=chosen["batch"],
        learning_rate=chosen["learning_rate"],
        learning_rate_schedule=lambda epoch: 0.5 ** max(0, epoch + 1 - chosen["halved_after"]),
        device=chosen["device"],
        clip_norm=chosen["clip_norm"],
        random_state=seed,
        **variant,
    )
    with warnings.catch_warnings(), contextlib.suppress(FloatingPointError):
        warnings.filterwarnings("ignore", "the loss was not finite")
        model.fit(words, validation=validation)
    return _records("perplexity", "validation_perplexity", model)


def _records(name: str, key: str, model: Any) -> list[dict[str, float]]:
    """The recorded entries of a model's history; r[key] is renamed to `name`."""
    history = getattr(model, "history_", [])
    return [{name: r[key], **{entry: r[entry] for entry in RECORDED_KEYS if entry in r}} for r in history]


def _torch_epochs(chosen: dict[str, Any], seed: int, data: Data) -> Iterator[dict[str, float]]:
    """The same in eager PyTorch: layers, optimiser, batches by index. He-uniform weights are not adjusted for dropout."""
    import torch

    torch.manual_seed(seed)
    X, y, X_test, y_test = (torch.from_numpy(np.asarray(part)) for part in data)
    y, layers, width = y.long(), [], FEATURES
    for n, rate in zip(both(chosen["hidden"]), both(chosen["dropout_rate"]), strict=True):
        layers += [torch.nn.Linear(width, n), torch.nn.ReLU(), torch.nn.Dropout(rate)]
        width = n
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, CLASSES))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            torch.nn.init.zeros_(layer.bias)
    model, X, y, X_test = (thing.to(chosen["device"]) for thing in (model, X, y, X_test))
    optimizer = torch.optim.SGD(model.parameters(), lr=chosen["learning_rate"], momentum=chosen["momentum"])
    for _ in range(chosen["epochs"]):
        start, total = time.perf_counter(), 0.0
        model.train()
        for rows in torch.randperm(len(X), device=X.device).split(chosen["batch"]):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(X[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(rows)
        loss, seconds = float(total) / len(X), time.perf_counter() - start
        model.eval()
        with torch.no_grad():
            answers = model(X_test).argmax(dim=1).cpu()
        yield {"accuracy": float((answers == y_test).double().mean()), "loss": loss, "seconds": seconds, "flops_share": 1.0}


# --- runs --------------------------------------------------------------------------------------------------------------
def _trained(experiment: Experiment, seed: int) -> Run:
    """`train` on the data of the experiment."""
    return train(experiment, seed, (experiment.load or _loaded)(experiment.settings, seed))


def _loaded(chosen: dict[str, Any], seed: int) -> Data:
    """The data set of the settings, or its first samples."""
    from numbanet import datasets

    parts = datasets.load(chosen["data"])
    sizes = (chosen["samples"], chosen["validation"]) if "vocabulary" in chosen else (*[chosen["samples"]] * 2, None, None)
    return tuple(part[:size] for part, size in zip(parts, sizes))


def run(
    options: Options,
    results: Results,
    say: Callable[[str], None],
    suite: str,
    experiments: Sequence[Experiment],
    targets: Sequence[float],
    alone: int = SEEDS,
    complete: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list,
    again: Callable[[Run], bool] = lambda run: False,
) -> list[dict[str, Any]]:
    """Train all runs that the results do not contain yet; return the rows, which `complete` makes of those of `summary`.

    Runs of the first n = `alone` seeds have the machine to themselves. The others run in parallel, one for each core, on one
    thread, or some on one GPU. That is faster, but their seconds are not used (`timed`).

    Runs in the results for which again(run) is true are made again; each of them stays until then.
    """
    import joblib

    allowed = [experiment.settings for experiment in experiments]
    name_of = lambda run: (key_of(run["settings"]), run["dropout"], run["seed"])  # noqa: E731
    done = {name_of(run) for run in results.resume(allowed) if not again(run)}
    seeds = range(1 if options.quick else max(experiment.seeds for experiment in experiments))
    due = [
        (experiment, seed)
        for seed in seeds
        for experiment in experiments
        if seed < experiment.seeds
        and (*experiment.key, seed) not in done
        and options.wants(f"{case_of(experiment.settings)}: {experiment.name}")
    ]

    def save() -> None:
        results.rows = complete(summary(results.runs, experiments, suite, targets))
        results.save()

    say(f"{suite}: {len(due)} training runs")
    if options.quick:
        alone = SEEDS
    many = -1 if options.device == "cpu" else ON_ONE_GPU
    for jobs, part in ((1, [one for one in due if one[1] < alone]), (many, [one for one in due if one[1] >= alone])):
        with joblib.parallel_config("loky", inner_max_num_threads=1):
            for run in joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(
                joblib.delayed(_trained)(*one) for one in part
            ):
                before = [old for old in results.runs if name_of(old) != name_of(run)]
                results.runs[:] = [*before, {**run, "alone": jobs == 1}]
                save()  # if the command is interrupted, finished runs are reported
                last = run["epochs"][-1][measure(run["settings"])] if whole(run) else "diverged"
                say(f"{suite}: {case_of(run['settings'])}: {run['dropout']}, seed {run['seed']}: {last}")
    save()
    return results.rows
