"""The demo: trains on handwritten digits, of which a fifth have wrong labels, with each kind of dropout for MLPs.

Without dropout a wide network learns the wrong labels by heart in the later epochs; with dropout it learns them much more
slowly. The demo shows what dropout gains in accuracy, and how long an epoch takes with policies that skip the work that they
drop.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, RATE, EPOCHS = (1024, 1024), 0.5, 40
SETTINGS: dict[str, Any] = {"learning_rate": 0.02, "learning_rate_schedule": "linear", "random_state": 0, "verbose": 1}
TRAIN = 900  # number of training samples; the other samples are the test set
WRONG = 0.2  # share of the training labels that are replaced by random ones


def run(
    path: str | os.PathLike = "demo.png", device: str = "auto", layers: tuple[int, ...] = LAYERS, epochs: int = EPOCHS
) -> int:
    """Train with each kind of dropout. Print a table of scores and costs, and plot the
    learning curves if matplotlib is installed.

    Return the exit status: 0, or 130 if training was interrupted. After an interrupt, the table has the finished runs, and
    nothing is plotted.
    """
    from rich.console import Console
    from rich.table import Table

    from . import Net, plots
    from .device import device as named
    from .dropout import POLICIES, EarlyDropout, WindowDropout, policy

    console = Console()
    named(device)  # raises for an unavailable device before anything is printed
    target: Path | None = None
    try:
        target = plots.check_target(path)
    except RuntimeError as error:
        console.print(f"no plot: {error}", markup=False)
    X, y, X_test, y_test = _digits()
    console.print(
        f"{len(y)} handwritten digits of 8 x 8 pixels, {WRONG:.0%} of their labels replaced by random ones, {len(y_test)} "
        f"for the test; a network {'-'.join(map(str, (X.shape[1], *layers, 10)))}, {epochs} epochs, dropout rate {RATE}"
    )
    table = Table("dropout", "test accuracy", "in the best epoch", "s / epoch", "FLOPs done")
    histories, interrupted = {}, False
    # without policies for convolutions, which this network lacks
    kinds = {name: (policy(name, RATE), kind.drops) for name, kind in POLICIES.items() if kind.kind != "patches"}
    early = EarlyDropout(RATE)
    kinds["window early"] = WindowDropout(early), f"as window, in the first {early.until:.0%} of the epochs"
    for name, (dropout, drops) in kinds.items():
        console.print(f"{name}: {drops}", markup=False)
        net = Net(layers, dropout=dropout, epochs=epochs, device=device, **SETTINGS)
        try:
            histories[name] = net.fit(X, y, validation=(X_test, y_test)).history_
        except KeyboardInterrupt:
            interrupted = True
            break
        share = sum(record["flops_share"] for record in net.history_) / len(net.history_)
        table.add_row(
            name,
            f"{net.score(X_test, y_test):.2%}",
            f"{max(record['validation_score'] for record in net.history_):.2%}",
            f"{_warm(net.history_):.4f}",
            f"{share:.0%}",
        )
    console.print(table)
    if target is not None and not interrupted:
        console.print(f"learning curves: {plots.learning_curves(histories, target, _promise(histories))}", markup=False)
    return 130 if interrupted else 0


def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y, X_test, y_test: TRAIN training samples, a share WRONG of them with random labels; and all others."""
    from .datasets import load_digits

    X, y, X_test, y_test = load_digits()
    X, y, rng = np.concatenate([X, X_test]), np.concatenate([y, y_test]), np.random.default_rng(0)
    shown = np.where(rng.random(TRAIN) < WRONG, rng.integers(10, size=TRAIN), y[:TRAIN])
    return X[:TRAIN], shown, X[TRAIN:], y[TRAIN:]


def _warm(history: list[dict]) -> float:
    """Return the mean seconds of an epoch, without the first one, in which steps are recorded; rates may differ by epoch."""
    later = history[1:] or history
    return sum(record["seconds"] for record in later) / len(later)


def _promise(histories: dict[str, list[dict]]) -> str:
    """Return the title of the plot, which states the time of an epoch relative to conventional dropout (bernoulli)."""
    warm = {name: _warm(history) for name, history in histories.items()}
    said = ", ".join(f"{name} {seconds / warm['bernoulli']:.2f}" for name, seconds in warm.items() if name != "bernoulli")
    return (
        f"Digits, {WRONG:.0%} of the labels wrong, dropout rate {RATE}. Time of an epoch relative to bernoulli, which computes "
        f"what it drops: {said}"
    )
