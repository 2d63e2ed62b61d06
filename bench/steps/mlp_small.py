"""Where dropout patterns have little to skip: narrow layers 784-H-H-10, small batches and low rates, against bernoulli.

A ratio below 0.95 would say that a pattern slows training down.
"""
from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from . import mlp
from .harness import Case, Options

WIDTHS, BATCHES, RATES, PATTERNS = (32, 64, 128, 256, 512), (20, 128), (0.1, 0.5), ("rdp", "tdp")


def cases(options: Options) -> Iterator[Case]:
    """Every combination."""
    for hidden, batch, rate in [(32, 20, 0.5)] if options.quick else itertools.product(WIDTHS, BATCHES, RATES):
        implementations = [mlp.numbanet_implementation(options, hidden, batch, name, rate, "bernoulli") for name in PATTERNS]
        usual = mlp.numbanet_implementation(options, hidden, batch, "bernoulli", rate, None)
        yield Case("mlp-small", f"784-{hidden}-{hidden}-10 p={rate}, batch {batch}", (*implementations, usual),
                   functools.partial(mlp.update_error, hidden, batch), mlp.TOLERANCE, 2 if options.quick else mlp.LEAST_STEPS)
