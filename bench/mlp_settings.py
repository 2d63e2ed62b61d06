"""What decides the accuracy of rdp and tdp: the scale, the largest period and the search, on MNIST and Fashion-MNIST.

The network, the rate, the epochs and the seeds of `mlp-accuracy`; dp_max is ceil(1 / (1 - p)) + 1 = 3 where none is named.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import training
from .harness import Options
from .mlp_accuracy import DROPOUT_RATE, EPOCHS, HIDDEN, VARIANTS, plot  # noqa: F401  drawn the same way
from .results import Results
from .training import Experiment

SCALES, PERIODS, DATA = ("pattern", "root", "rate"), (4, 8, 16), ("mnist", "fashion-mnist")


def _pattern(kind: str, **settings: Any) -> dict[str, Any]:
    from numbanet import RowDropout, TileDropout

    return {"dropout": {"rdp": RowDropout, "tdp": TileDropout}[kind](DROPOUT_RATE, **settings)}


def variants() -> dict[str, Callable[[], dict[str, Any]]]:
    """name -> () -> parameters of a Net"""
    found: dict[str, Callable[[], dict[str, Any]]] = {name: VARIANTS[name] for name in ("none", "bernoulli")}
    for kind in ("rdp", "tdp"):
        for scale in SCALES:
            found[f"{kind} {scale}"] = functools.partial(_pattern, kind, scale=scale)
            for dp_max in PERIODS:
                found[f"{kind} {scale} dp_max={dp_max}"] = functools.partial(_pattern, kind, scale=scale, dp_max=dp_max)
        found[f"{kind} root dp_max=8 search=sgd"] = functools.partial(_pattern, kind, dp_max=8, search="sgd")
    return found


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows."""
    chosen = [training.settings(options, HIDDEN, DROPOUT_RATE, EPOCHS, data) for data in DATA]
    experiments = [Experiment(of_data, name, variant) for of_data in chosen for name, variant in variants().items()]
    return training.run(options, results, say, "mlp-settings", experiments, ())
