"""Peak memory of training steps of 784-2048-2048-10, without data, weights and momentum, against PyTorch (Linux, CPU).

Each implementation runs in a separate process that has trained a small network first, so that code loaded by the first step
does not count. `rdp` and `tdp` at p = 0.7 draw a pattern for each step, some of which drop nothing; `rdp dp = 4` keeps every
fourth neuron in every step. `counted` are the bytes of one copy of the batch, the activations and their gradients, and the
gradients of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..machinery.harness import Options
from ..machinery.results import Results
from ..machinery.worker import Task
from ..steps import CLASSES, FEATURES, mlp_model
from . import measured_mlp, numbanet_peak, plot, rows_of  # noqa: F401  plot is a part of the suite

SUITE = "mlp-memory"
RECORDED = ("--against torch --json bench/results/mlp-memory.json --plot memory.png",)
HIDDEN, RATE, BATCHES, PERIODS, STEPS = 2048, 0.7, (128, 1024), (2, 4, 8), 60


def torch_peak(hidden: int, rate: float | None, batch: int, steps: int) -> Task:
    """Steps in PyTorch."""
    return measured_mlp(lambda width: mlp_model.torch_task("cpu", width, rate, batch), hidden, steps)


def counted(hidden: int, batch: int, kept: float) -> float:
    """Bytes of the batch, of activations and their gradients, and of the gradients of the weights, if a row pattern keeps the
    share `kept` of the neurons."""
    k = int(np.ceil(hidden * kept))
    activations = batch * (FEATURES + 2 * 2 * k + 2 * CLASSES)
    return 4.0 * (activations + FEATURES * k + k * k + CLASSES * k)


def _implementations(options: Options, hidden: int, batch: int) -> Iterator[tuple]:
    """(name, build, parameters, peer, counted bytes)"""
    steps = 3 if options.quick else STEPS
    torch = options.against == "torch"
    common = {"hidden": hidden, "batch": batch, "steps": steps}
    if torch:
        yield "torch", torch_peak, {**common, "rate": None}, None, counted(hidden, batch, 1.0)
        yield "torch nn.Dropout", torch_peak, {**common, "rate": RATE}, None, counted(hidden, batch, 1.0)
    for name in ("none", "bernoulli", "rdp", "tdp"):
        peer = ("torch" if name == "none" else "torch nn.Dropout") if torch else None
        yield name, numbanet_peak, {**common, "dropout": name, "rate": RATE}, peer, counted(hidden, batch, 1.0)
    for dp in PERIODS:
        yield (
            f"rdp dp = {dp}",
            numbanet_peak,
            {**common, "dropout": "rdp", "rate": RATE, "dp": dp},
            "torch nn.Dropout" if torch else None,
            counted(hidden, batch, 1 / dp),
        )


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure all batches; return the rows."""
    options.only_on_cpu(f"{SUITE} reads the memory of a process")
    hidden = 128 if options.quick else HIDDEN
    for batch in BATCHES[: 1 if options.quick else None]:
        case = f"784-{hidden}-{hidden}-10, batch {batch}"
        if not options.wants(case):
            continue
        say(f"{SUITE}: {case}")
        results.add(rows_of(SUITE, case, _implementations(options, hidden, batch)))
    return results.rows
