"""Test accuracy of 784-1024-1024-10 on MNIST with each dropout at p = 0.5: after 20 epochs, and time to 0.98.

Three seeds each.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import training
from .harness import Options
from .results import Results
from .training import Experiment

HIDDEN, DROPOUT_RATE, EPOCHS, TARGETS = 1024, 0.5, 20, (0.98,)
VARIANTS = {name: functools.partial(dict, dropout=name, dropout_rate=DROPOUT_RATE)
            for name in ("none", "bernoulli", "rdp", "tdp")}  # name -> () -> parameters of a Net


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows."""
    chosen = training.settings(options, HIDDEN, DROPOUT_RATE, EPOCHS)
    return training.run(options, results, say, "mlp-accuracy",
                        [Experiment(chosen, name, variant) for name, variant in VARIANTS.items()], TARGETS)


def plot(results: Results, path: Path) -> None:
    """Test accuracy by epoch and by seconds."""
    from .plots import plot_runs

    plot_runs(results.runs, path)
