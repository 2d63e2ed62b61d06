"""What decides the accuracy of rdp and tdp: the scale, the largest period and the search, on MNIST and Fashion-MNIST.

784-1024-1024-10 at p = 0.5 and 0.7, ten epochs, three seeds; dp_max is ceil(1 / (1 - p)) + 1, 3 and 5, where none is named.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from . import training
from .harness import Options
from .mlp_accuracy import HIDDEN, plot  # noqa: F401  drawn the same way
from .results import Results
from .training import Experiment

SCALES, PERIODS, DATA, RATES, EPOCHS = ("pattern", "root", "rate"), (4, 8, 16), ("mnist", "fashion-mnist"), (0.7, 0.5), 10


def _pattern(kind: str, rate: float, **settings: Any) -> dict[str, Any]:
    from numbanet import RowDropout, TileDropout

    return {"dropout": {"rdp": RowDropout, "tdp": TileDropout}[kind](rate, **settings)}


def variants(rate: float) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(name, () -> parameters of a Net) of each way to drop at a rate."""
    yield "bernoulli", functools.partial(dict, dropout="bernoulli", dropout_rate=rate)
    for kind in ("rdp", "tdp"):
        for scale in SCALES:
            yield f"{kind} {scale}", functools.partial(_pattern, kind, rate, scale=scale)
            for dp_max in PERIODS:
                yield f"{kind} {scale} dp_max={dp_max}", functools.partial(_pattern, kind, rate, scale=scale, dp_max=dp_max)
        yield f"{kind} root dp_max=8 search=sgd", functools.partial(_pattern, kind, rate, dp_max=8, search="sgd")


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows."""
    experiments = [Experiment(training.settings(options, HIDDEN, rate, EPOCHS, data), name, variant)
                   for data in DATA for rate in RATES for name, variant in variants(rate)]
    return training.run(options, results, say, "mlp-settings", experiments, ())
