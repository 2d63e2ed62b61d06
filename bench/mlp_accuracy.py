"""Test accuracy of 784-1024-1024-10 on MNIST with each dropout at p = 0.5: after 20 epochs, and time to 0.98.

Three seeds each. A finished training run is written to the JSON file at once and not done again.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .harness import Options
from .machine import commit, now
from .mlp import BATCH, MOMENTUM, RATE
from .results import Results

DROPOUTS, DROPOUT_RATE, TARGET = ("none", "bernoulli", "rdp", "tdp"), 0.5, 0.98
SEEDS, HIDDEN, EPOCHS = 3, 1024, 20


def settings(options: Options) -> dict[str, Any]:
    """What every run has in common; samples None are all."""
    quick = options.quick
    return {"data": "mnist", "samples": 2000 if quick else None, "hidden": 64 if quick else HIDDEN,
            "epochs": 2 if quick else EPOCHS, "batch": BATCH, "learning_rate": RATE, "momentum": MOMENTUM,
            "dropout_rate": DROPOUT_RATE, "device": options.device}


def train(chosen: dict[str, Any], dropout: str, seed: int, data: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """One training run: accuracy on the test set, loss and seconds of training by epoch."""
    from numbanet import Net

    X, y, X_test, y_test = data
    net = Net((chosen["hidden"],) * 2, dropout=dropout, dropout_rate=chosen["dropout_rate"], epochs=chosen["epochs"],
              batch_size=chosen["batch"], learning_rate=chosen["learning_rate"], momentum=chosen["momentum"],
              device=chosen["device"], random_state=seed)
    net.fit(X, y, validation_data=(X_test, y_test))
    epochs = [{"accuracy": r["validation_score"], **{key: r[key] for key in ("loss", "seconds", "flops_share")}}
              for r in net.history_]
    return {"dropout": dropout, "seed": seed, "date": now(), "commit": commit(), "settings": chosen, "epochs": epochs}


def seconds_to(target: float, run: dict[str, Any]) -> float | None:
    """Seconds of training until an epoch ends with this test accuracy; None if none does."""
    seconds = np.cumsum([epoch["seconds"] for epoch in run["epochs"]])
    reached = [s for s, epoch in zip(seconds, run["epochs"], strict=True) if epoch["accuracy"] >= target]
    return float(reached[0]) if reached else None


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each kind of dropout."""
    final = {dropout: [run["epochs"][-1]["accuracy"] for run in runs if run["dropout"] == dropout]
             for dropout in DROPOUTS}
    rows = []
    for dropout in DROPOUTS:
        mine = [run for run in runs if run["dropout"] == dropout]
        if not mine:
            continue
        chosen, accuracy, hidden = mine[0]["settings"], final[dropout], mine[0]["settings"]["hidden"]
        epochs = [epoch for run in mine for epoch in run["epochs"]]
        times = [s for run in mine if (s := seconds_to(TARGET, run)) is not None]
        rows.append({
            "suite": "mlp-accuracy", "implementation": dropout, "seeds": len(mine),
            "case": f"784-{hidden}-{hidden}-10 p={chosen['dropout_rate']}, {chosen['epochs']} epochs",
            "accuracy": float(np.mean(accuracy)), "accuracy_min": min(accuracy), "accuracy_max": max(accuracy),
            "points": 100 * float(np.mean(accuracy) - np.mean(final["bernoulli"])) if final["bernoulli"] else None,
            "seconds_per_epoch": float(np.median([epoch["seconds"] for epoch in epochs])),
            "flops_share": float(np.mean([epoch["flops_share"] for epoch in epochs])),
            "target": TARGET, "seconds_to_target": float(np.mean(times)) if times else None, "reached": len(times)})
    return rows


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows. Seeds are the outer loop: drift of the machine meets all."""
    from numbanet.datasets import load_mnist

    chosen = settings(options)
    done = {(run["dropout"], run["seed"]) for run in results.resume(chosen)}
    wanted = [(dropout, seed) for seed in range(1 if options.quick else SEEDS) for dropout in DROPOUTS]
    data = None
    for dropout, seed in wanted:
        if (dropout, seed) in done:
            continue
        if data is None:
            data = tuple(part[:chosen["samples"]] for part in load_mnist())
        say(f"mlp-accuracy: {dropout}, seed {seed}")
        results.runs.append(train(chosen, dropout, seed, data))
        results.rows = summary(results.runs)  # so that an interrupted command reports what is finished
        results.save()
    results.rows = summary(results.runs)
    return results.rows
