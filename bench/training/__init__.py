"""Whole training runs: accuracy (of a model of language: perplexity) by epoch, and seconds to a given one.

A finished run is written to the JSON file at once and not done again. Seeds are the outer loop and the kinds of dropout the
inner one: drift of the machine meets all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..machinery.harness import Options
from ..machinery.machine import commit, now, processor
from ..machinery.results import Results
from ..machinery.runs import TORCH, Run, baseline, both, case_of, clocked, measure, perplexity_ratio, points, seconds_to, whole
from ..steps import BATCH, CLASSES, FEATURES, MOMENTUM, RATE

Data = tuple[Any, ...]  # X, y, X_test, y_test; or the words of a text, and those of another one for validation
IMAGES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
SEEDS = 3
WARM_UP = 2048  # samples
VOCABULARY, VALIDATION = 8800, 50_000  # words
KEPT = (
    "loss",
    "seconds",
    "flops_share",
    "dropped",
    "sensitive",
    "gates_kept",
    "gates_cosine",
    "weights_kept",
    "held",
)  # of the record of an epoch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A training run, but for its seed.

    Attributes
    ----------
    settings : dict
        What it is made with: recorded with the run.
    name : str
        The kind of dropout, as tables show it.
    variant : callable or None
        () -> parameters of a Net, of which "layers", if it is there, is a function seed -> layers; or of a LanguageModel.
        None: PyTorch with nn.Dropout.
    seeds : int
        How many runs.
    against : str, optional
        The kind that it is compared with, in place of the usual `baseline`.
    """

    settings: dict[str, Any]
    name: str
    variant: Callable[[], dict[str, Any]] | None
    seeds: int = SEEDS
    against: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        return _key(self.settings), self.name


def _key(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def settings(
    options: Options, hidden: int | Sequence[int], rate: float | Sequence[float], epochs: int, data: str = "mnist"
) -> dict[str, Any]:
    """What the runs of one case have in common; samples None are all. Two widths or rates are those of the hidden layers."""
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
    """As `settings`, for a convolutional network by name, with the accuracies to which its time is told."""
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
    """As `settings`, for a model of language on the first words of WikiText-2, with the perplexities to which its time is told.
    From some epoch on each has half the learning rate of the one before, as Zaremba et al. 2014 have it."""
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
    """One number where both layers have the same, as JSON gives it back."""
    if not isinstance(value, (list, tuple)):
        return value
    return value[0] if len(set(value)) == 1 else list(value)


# --- training ---------------------------------------------------------------------------------------------------------
def train(experiment: Experiment, seed: int, data: Data) -> Run:
    """One training run: accuracy on the test set, or perplexity of the validation text, loss and seconds of training by epoch.

    One whose loss stops being finite has fewer epochs than were asked for: it diverged. An epoch on a few samples comes first,
    so that nothing is compiled in one that counts.
    """

    def epochs_of(chosen: dict[str, Any], data: Data) -> list[dict[str, float]]:
        if experiment.variant is None:
            return list(_torch_epochs(chosen, seed, data))
        train_on = _text_epochs if "vocabulary" in chosen else _epochs
        return train_on(chosen, experiment.variant(), seed, data)

    chosen = experiment.settings
    epochs_of({**chosen, "epochs": 1}, tuple(part[:WARM_UP] for part in data))
    return {
        "dropout": experiment.name,
        "seed": seed,
        "date": now(),
        "commit": commit(),
        "processor": processor(),
        "settings": chosen,
        "epochs": epochs_of(chosen, data),
    }


def _epochs(chosen: dict[str, Any], variant: dict[str, Any], seed: int, data: Data) -> list[dict[str, float]]:
    from sklearn.model_selection import train_test_split

    from numbanet import Net

    X, y, X_test, y_test = data
    variant = dict(variant)
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
    """Median seconds in which a network predicts the test samples, in turn with a dense one as it was at first."""
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

    words, held = data
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
        model.fit(words, validation=held)
    return _records("perplexity", "validation_perplexity", model)


def _records(name: str, key: str, model: Any) -> list[dict[str, float]]:
    """What is kept of a model's history, what was measured under a name of ours."""
    return [{name: r[key], **{key: r[key] for key in KEPT if key in r}} for r in getattr(model, "history_", [])]


def _torch_epochs(chosen: dict[str, Any], seed: int, data: Data) -> Iterator[dict[str, float]]:
    """The same in PyTorch, eager: layers, optimiser, batches by index; initial weights as usual, not adjusted for dropout."""
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


# --- results ----------------------------------------------------------------------------------------------------------
def summary(
    runs: Sequence[Run], experiments: Sequence[Experiment], suite: str, targets: Sequence[float]
) -> list[dict[str, Any]]:
    """One row for each experiment that has runs, with the time to each of the target accuracies."""
    by_key: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_key.setdefault((_key(run["settings"]), run["dropout"]), []).append(run)
    return [_row(by_key, experiment, suite, targets) for experiment in experiments if experiment.key in by_key]


def _time_to(target: float, mine: Sequence[Run], seconds: float | None, longer: float | None) -> dict[str, Any]:
    """How many runs reach an accuracy, the mean seconds they take, and how many times shorter that is than another mean."""
    return {
        "target": target,
        "reached": sum(seconds_to(target, run) is not None for run in mine),
        "seconds": seconds,
        "shorter": longer / seconds if seconds and longer else None,
    }


def _mean_seconds_to(target: float, runs: Sequence[Run]) -> float | None:
    """None unless all runs reach it."""
    times = [seconds_to(target, run) for run in runs]
    return float(np.mean(times)) if times and None not in times else None


def _row(
    by_key: dict[tuple[str, str], list[Run]], experiment: Experiment, suite: str, targets: Sequence[float]
) -> dict[str, Any]:
    case, mine, what = experiment.key[0], by_key[experiment.key], measure(experiment.settings)
    row = {
        "suite": suite,
        "case": case_of(experiment.settings),
        "implementation": experiment.name,
        "seeds": len(mine),
        what: None,
    }
    if not all(map(whole, mine)):
        return {**row, "diverged": sum(not whole(run) for run in mine)}
    values = [run["epochs"][-1][what] for run in mine]
    comparable = clocked(run for (other, _), found in by_key.items() if other == case for run in found)

    def of(name: str | None) -> list[Run]:
        return [run for run in comparable if run["dropout"] == name]

    def times(target: float) -> dict[str, Any]:
        return _time_to(target, mine, *(_mean_seconds_to(target, of(name)) for name in (experiment.name, peer)))

    seconds = [epoch["seconds"] for run in of(experiment.name) for epoch in run["epochs"]]
    usual = experiment.against or baseline(experiment.settings)
    others = list(filter(whole, by_key.get((case, usual), [])))
    peer = next((name for name in (TORCH, usual) if (case, name) in by_key), None)
    peer = None if peer == experiment.name else peer
    against = (
        points(mine, others)
        if what == "accuracy"
        else {
            "of_baseline": perplexity_ratio(mine, others),
            "of_baseline_in_time": perplexity_ratio(of(experiment.name), of(usual), True),
        }
    )
    return {
        **row,
        what: float(np.mean(values)),
        f"{what}_min": min(values),
        f"{what}_max": max(values),
        **against,
        "baseline": usual,
        "seconds_per_epoch": float(np.median(seconds)) if seconds else None,
        "flops_share": float(np.mean([epoch["flops_share"] for run in mine for epoch in run["epochs"]])),
        "peer": peer,
        "times": [times(target) for target in experiment.settings.get("targets", targets)],
    }


def _trained(experiment: Experiment, seed: int) -> Run:
    """`train` on the data set that the experiment names."""
    from numbanet import datasets

    chosen = experiment.settings
    parts = datasets.load(chosen["data"])
    sizes = (chosen["samples"], chosen["validation"]) if "vocabulary" in chosen else (*[chosen["samples"]] * 2, None, None)
    return train(experiment, seed, tuple(part[:size] for part, size in zip(parts, sizes)))


def run(
    options: Options,
    results: Results,
    say: Callable[[str], None],
    suite: str,
    experiments: Sequence[Experiment],
    targets: Sequence[float],
    alone: int = SEEDS,
) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows.

    The first seeds, as many as `alone`, have the machine for themselves. Of the others each core of the CPU has a run of its
    own, on one thread: sooner done, but their seconds mean nothing (`timed`).
    """
    import joblib

    allowed = [experiment.settings for experiment in experiments]
    done = {(_key(run["settings"]), run["dropout"], run["seed"]) for run in results.resume(allowed)}
    seeds = range(1 if options.quick else max(experiment.seeds for experiment in experiments))
    due = [
        (experiment, seed)
        for seed in seeds
        for experiment in experiments
        if seed < experiment.seeds
        and (*experiment.key, seed) not in done
        and options.wants(f"{case_of(experiment.settings)}: {experiment.name}")
    ]
    say(f"{suite}: {len(due)} training runs")
    if options.device != "cpu" or options.quick:
        alone = SEEDS
    for jobs, part in ((1, [one for one in due if one[1] < alone]), (-1, [one for one in due if one[1] >= alone])):
        with joblib.parallel_config("loky", inner_max_num_threads=1):
            for found in joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(
                joblib.delayed(_trained)(*one) for one in part
            ):
                results.runs.append({**found, "alone": jobs == 1})
                # an interrupted command, too, reports what is finished
                results.rows = summary(results.runs, experiments, suite, targets)
                results.save()
                last = found["epochs"][-1][measure(found["settings"])] if whole(found) else "diverged"
                say(f"{suite}: {case_of(found['settings'])}: {found['dropout']}, seed {found['seed']}: {last}")
    results.rows = summary(results.runs, experiments, suite, targets)
    results.save()
    return results.rows
