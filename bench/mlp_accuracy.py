"""Test accuracy of 784-1024-1024-10 on MNIST with each dropout at p = 0.5: after 20 epochs, and time to 0.98.

Three seeds each. A finished training run is written to the JSON file at once and not done again.
"""
from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .harness import Options
from .machine import commit, now
from .mlp import BATCH, MOMENTUM, RATE
from .results import Results

DROPOUT_RATE, TARGET = 0.5, 0.98
SEEDS, HIDDEN, EPOCHS = 3, 1024, 20
VARIANTS = {name: functools.partial(dict, dropout=name, dropout_rate=DROPOUT_RATE)
            for name in ("none", "bernoulli", "rdp", "tdp")}  # name -> () -> parameters of a Net


def settings(options: Options, data: str = "mnist") -> dict[str, Any]:
    """What every run on a data set has in common; samples None are all."""
    quick = options.quick
    return {"data": data, "samples": 2000 if quick else None, "hidden": 64 if quick else HIDDEN,
            "epochs": 2 if quick else EPOCHS, "batch": BATCH, "learning_rate": RATE, "momentum": MOMENTUM,
            "dropout_rate": DROPOUT_RATE, "device": options.device}


def train(chosen: dict[str, Any], name: str, variant: dict[str, Any], seed: int,
          data: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """One training run: accuracy on the test set, loss and seconds of training by epoch.

    One whose loss stops being finite has fewer epochs than were asked for: it diverged.
    """
    from numbanet import Net

    X, y, X_test, y_test = data
    net = Net((chosen["hidden"],) * 2, epochs=chosen["epochs"], batch_size=chosen["batch"],
              learning_rate=chosen["learning_rate"], momentum=chosen["momentum"], device=chosen["device"],
              random_state=seed, **variant)
    with warnings.catch_warnings(), contextlib.suppress(FloatingPointError):
        warnings.filterwarnings("ignore", "the loss was not finite")
        net.fit(X, y, validation_data=(X_test, y_test))
    epochs = [{"accuracy": r["validation_score"], **{key: r[key] for key in ("loss", "seconds", "flops_share")}}
              for r in getattr(net, "history_", [])]
    return {"dropout": name, "seed": seed, "date": now(), "commit": commit(), "settings": chosen, "epochs": epochs}


def whole(run: dict[str, Any]) -> bool:
    """Whether a training run came to its end; else it diverged."""
    return len(run["epochs"]) == run["settings"]["epochs"]


def seconds_to(target: float, run: dict[str, Any]) -> float | None:
    """Seconds of training until an epoch ends with this test accuracy; None if none does."""
    seconds = np.cumsum([epoch["seconds"] for epoch in run["epochs"]])
    reached = [s for s, epoch in zip(seconds, run["epochs"], strict=True) if epoch["accuracy"] >= target]
    return float(reached[0]) if reached else None


def summary(runs: list[dict[str, Any]], names: Iterable[str] = VARIANTS, suite: str = "mlp-accuracy") -> list[dict[str, Any]]:
    """One row for each data set and kind of dropout."""
    rows = []
    for data, name in itertools.product(dict.fromkeys(run["settings"]["data"] for run in runs), names):
        of_data = [run for run in runs if run["settings"]["data"] == data]
        mine = [run for run in of_data if run["dropout"] == name]
        if not mine:
            continue
        chosen, hidden = mine[0]["settings"], mine[0]["settings"]["hidden"]
        row = {"suite": suite, "implementation": name, "seeds": len(mine), "accuracy": None,
               "case": f"{'' if data == 'mnist' else f'{data}, '}784-{hidden}-{hidden}-10 p={chosen['dropout_rate']}, "
                       f"{chosen['epochs']} epochs"}
        rows.append(row)
        finished = list(filter(whole, mine))
        if len(finished) < len(mine):
            row["diverged"] = len(mine) - len(finished)
            continue
        accuracy = [run["epochs"][-1]["accuracy"] for run in finished]
        usual = [run["epochs"][-1]["accuracy"] for run in of_data if run["dropout"] == "bernoulli" and whole(run)]
        epochs = [epoch for run in finished for epoch in run["epochs"]]
        times = [s for run in finished if (s := seconds_to(TARGET, run)) is not None]
        row.update({
            "accuracy": float(np.mean(accuracy)), "accuracy_min": min(accuracy), "accuracy_max": max(accuracy),
            "points": 100 * float(np.mean(accuracy) - np.mean(usual)) if usual else None,
            "seconds_per_epoch": float(np.median([epoch["seconds"] for epoch in epochs])),
            "flops_share": float(np.mean([epoch["flops_share"] for epoch in epochs])),
            "target": TARGET, "seconds_to_target": float(np.mean(times)) if times else None, "reached": len(times)})
    return rows


def run(options: Options, results: Results, say: Callable[[str], None], suite: str = "mlp-accuracy",
        variants: Mapping[str, Callable[[], dict[str, Any]]] = VARIANTS, datasets: Sequence[str] = ("mnist",),
        seeds: int = SEEDS) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows. Seeds are the outer loop: drift of the machine meets all."""
    from numbanet import datasets as loaders

    chosen = {data: settings(options, data) for data in datasets}
    done = {(run["settings"]["data"], run["dropout"], run["seed"]) for run in results.resume(list(chosen.values()))}
    samples: dict[str, Any] = {}
    for seed, data, name in itertools.product(range(1 if options.quick else seeds), datasets, variants):
        if (data, name, seed) in done:
            continue
        if data not in samples:
            load = getattr(loaders, f"load_{data.replace('-', '_')}")
            samples[data] = tuple(part[:chosen[data]["samples"]] for part in load())
        say(f"{suite}: {data}, {name}, seed {seed}")
        results.runs.append(train(chosen[data], name, variants[name](), seed, samples[data]))
        results.rows = summary(results.runs, variants, suite)  # so that an interrupted command reports what is finished
        results.save()
    results.rows = summary(results.runs, variants, suite)
    return results.rows
