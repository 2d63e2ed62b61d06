"""Validation perplexity over seconds of training: each kind of dropout, in all or in the first epochs, against none.

Language models with two layers of LSTM on the first words of WikiText-2; SGD with gradients clipped to 0.25, as in
`papers-lstm`, three seeds. Each kind of dropout has its own learning rate: the one of a grid with the lowest mean cross-entropy
in the last ten epochs, on a tenth of the words that is held out in these runs, which have one seed. `over_seconds` trains and
compares the runs.

Kinds are compared only if `none` is trained as well: --only "LSTM 256-256.*: (none|window)".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from . import over_seconds
from .over_seconds import Pair, kinds, pair

SUITE = "time-to-perplexity"
RECORDED = (
    '--only "LSTM 256-256.*: (none|bernoulli|window|window early)$" --json bench/results/time-to-perplexity.json '
    "--plot time-to-perplexity.png",
)


class Text(NamedTuple):
    """The first words of WikiText-2, the widths of the LSTM's layers, and hyperparameters.

    Attributes
    ----------
    rate : float
        Dropout rate of a layer's outputs.
    halved_after : int
        Epoch after which the learning rate is halved in each epoch.
    """

    words: int
    hidden: tuple[int, ...]
    rate: float
    epochs: int
    halved_after: int
    learning_rates: tuple[float, ...] = (5.0, 10.0, 20.0)


TEXTS = (Text(50_000, (256, 256), 0.3, 20, 10), Text(200_000, (650, 650), 0.5, 12, 6))


def settings(options: Options, text: Text) -> dict[str, Any]:
    """Settings of a text; "learning_rate" is the list of those to try; a run records the one it has."""
    chosen = training.text_settings(options, text.hidden, text.words, text.epochs, text.rate, (), text.halved_after)
    return {**chosen, "learning_rate": list(text.learning_rates), "choosing_seeds": 1}


def experiments(options: Options) -> Iterator[Pair]:
    """For each text and kind of dropout the experiment without its learning rate, and those that choose it."""
    for text in TEXTS[:1] if options.quick else TEXTS:
        chosen = settings(options, text)
        for name, parameters in kinds(text.rate):
            yield pair(chosen, name, functools.partial(dict, **parameters))


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs, for each text first those that choose learning rates; return the rows."""
    return over_seconds.run(options, results, say, SUITE, experiments(options))


plot = over_seconds.plot
