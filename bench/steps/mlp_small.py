"""Small training steps, in which patterns skip little: narrow layers 784-H-H-10, small batches, low rates, against bernoulli.

A ratio below 0.95 would mean that a pattern slows training down.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from ..machinery.harness import Case, Options
from . import TOLERANCE, mlp_model

SUITE = "mlp-small"
RECORDED = ("--json bench/results/mlp-small.json",)
WIDTHS, BATCHES, RATES, PATTERNS = (32, 64, 128, 256, 512), (20, 128), (0.1, 0.5), ("rdp", "tdp")


def cases(options: Options) -> Iterator[Case]:
    """Every combination of width, batch and rate."""
    for hidden, batch, rate in [(32, 20, 0.5)] if options.quick else itertools.product(WIDTHS, BATCHES, RATES):
        made = functools.partial(mlp_model.numbanet_implementation, options, hidden, batch)
        implementations = [made(name, rate, "bernoulli") for name in PATTERNS]
        usual = made("bernoulli", rate, None)
        yield Case(
            SUITE,
            f"784-{hidden}-{hidden}-10 p={rate}, batch {batch}",
            (*implementations, usual),
            functools.partial(mlp_model.update_error, hidden, batch),
            TOLERANCE,
            2 if options.quick else mlp_model.LEAST_STEPS,
        )
