"""Peak memory of training steps of 784-2048-2048-10 above what holds data, weights and momentum, against PyTorch (Linux, CPU).

Each in a process of its own that has trained a small network before, so that code which is loaded for the first step does not
count. `rdp` and `tdp` at p = 0.7 draw their patterns, dense ones too; `rdp dp = 4` keeps every fourth neuron in every step.
`counted` is what one form of each of these takes: the batch, the activations and their gradients, the gradients of the weights.
"""
from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import mlp
from .harness import Options
from .machine import threads
from .results import Results
from .worker import Task, WorkerError, Workers

HIDDEN, RATE, BATCHES, PERIODS, STEPS, SMALL = 2048, 0.7, (128, 1024), (2, 4, 8), 60, 64
MIB = 2**20


def _status(key: str) -> int:
    """VmRSS, the bytes of memory in use, or VmHWM, the most since the last reset."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def measured(small: Task, make: Callable[[], Task], steps: int, momentum: int) -> Task:
    """A task whose output is the peak of so many steps, less the bytes of the momentum, which is made in the first one."""
    for _ in range(steps):
        small.run()
    del small
    task = make()

    def outputs() -> dict[str, Any]:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed and would serve unseen
        before = _status("VmRSS")
        with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
            reset.write("5")
        for _ in range(steps):
            task.run()
        return {"peak": _status("VmHWM") - before - momentum}

    return Task(task.run, outputs)


def _measured(make: Callable[[int], Task], hidden: int, steps: int) -> Task:
    momentum = sum(w.nbytes for w in mlp.initial_weights(hidden))
    return measured(make(min(SMALL, hidden)), lambda: make(hidden), steps, momentum)


def numbanet_peak(hidden: int, dropout: str, rate: float, batch: int, steps: int, dp: int | None = None) -> Task:
    """numbanet's steps; with a dp, every step keeps the same share."""
    from numbanet.dropout import Dropout
    from numbanet.plans import RowPlan

    class Fixed(Dropout):
        name = "fixed"

        def plan(self, site, rng):
            return RowPlan(site.shape[0], dp, int(rng.integers(dp)), float(dp))

    return _measured(lambda width: mlp.numbanet_task("cpu", width, Fixed() if dp else dropout, rate, batch), hidden, steps)


def torch_peak(hidden: int, rate: float | None, batch: int, steps: int) -> Task:
    """PyTorch's steps."""
    return _measured(lambda width: mlp.torch_task("cpu", width, rate, batch), hidden, steps)


def counted(hidden: int, batch: int, kept: float) -> float:
    """Bytes of the batch, of activations and their gradients, and of the gradients of the weights, under a row pattern that
    keeps this share of the neurons."""
    k = int(np.ceil(hidden * kept))
    activations = batch * (mlp.FEATURES + 2 * 2 * k + 2 * mlp.CLASSES)
    return 4.0 * (activations + mlp.FEATURES * k + k * k + mlp.CLASSES * k)


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
        yield (f"rdp dp = {dp}", numbanet_peak, {**common, "dropout": "rdp", "rate": RATE, "dp": dp},
               "torch nn.Dropout" if torch else None, counted(hidden, batch, 1 / dp))


def rows_of(suite: str, case: str, implementations: Iterable[tuple]) -> list[dict[str, Any]]:
    """A row for each (name, build, parameters, peer, counted bytes), each in a process of its own: what another left in its
    pools does not count."""
    rows, peaks = [], {}
    for name, build, parameters, peer, least in implementations:
        row = {"suite": suite, "case": case, "implementation": name, "peer": peer,
               "counted_mib": least / MIB, "peak_mib": None, "share": None}
        try:
            with Workers(threads()) as workers:
                workers[name].ask("load", (build, parameters))
                peaks[name] = workers[name].ask("outputs")["peak"] / MIB
            row.update(peak_mib=peaks[name], share=peaks[name] / peaks[peer] if peer else None)
        except WorkerError as problem:
            row["problem"] = str(problem)
        rows.append(row)
    return rows


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure all; returns the rows."""
    if options.device != "cpu":
        raise ValueError("mlp-memory reads the memory of a process: --device cpu")
    hidden, rows = 128 if options.quick else HIDDEN, []
    for batch in BATCHES[:1 if options.quick else None]:
        case = f"784-{hidden}-{hidden}-10, batch {batch}"
        if not options.wants(case):
            continue
        say(f"mlp-memory: {case}")
        rows += rows_of("mlp-memory", case, _implementations(options, hidden, batch))
    results.add(rows)
    return rows


def plot(results: Results, path: Path) -> None:
    """Peaks as bars, what was counted as marks."""
    from .plots import plot_memory

    plot_memory(results.rows, path)
