"""Peak memory of a task's process minus the memory of data, weights and momentum (Linux, CPU), as rows and as a plot."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..machinery.machine import threads
from ..machinery.results import Results
from ..machinery.worker import Task, WorkerError, Workers
from ..steps import mlp_model

MIB = 2**20
SMALL = 64  # width of the network that is trained first, so that its steps load all code


def _status(key: str) -> int:
    """VmRSS, the bytes of memory in use, or VmHWM, their maximum since the last reset."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def measured(small: Task, make: Callable[[], Task], steps: int, momentum: int) -> Task:
    """A task whose output is the peak memory of n steps minus `momentum`, bytes that the first step allocates."""
    from numbanet_kernels.runtime.pool import host_pool

    for _ in range(steps):
        small.run()
    del small
    task = make()

    def outputs() -> dict[str, Any]:
        gc.collect()
        host_pool.trim()
        ctypes.CDLL(None).malloc_trim(0)  # else steps could reuse freed memory, which would not count
        before = _status("VmRSS")
        with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
            reset.write("5")
        for _ in range(steps):
            task.run()
        return {"peak": _status("VmHWM") - before - momentum}

    return Task(task.run, outputs)


def measured_mlp(make: Callable[[int], Task], hidden: int, steps: int) -> Task:
    """`measured` for the network of `mlp_model`."""
    momentum = sum(w.nbytes for w in mlp_model.initial_weights(hidden))
    return measured(make(min(SMALL, hidden)), lambda: make(hidden), steps, momentum)


def numbanet_peak(hidden: int, dropout: str, rate: float, batch: int, steps: int, dp: int | None = None) -> Task:
    """Steps in numbanet. With dp, every step has a row pattern of that period."""
    from numbanet.dropout import Dropout
    from numbanet.plans import RowPlan

    class Fixed(Dropout):
        name = "fixed"

        def plan(self, site, rng):
            return RowPlan(site.shape[0], dp, int(rng.integers(dp)), float(dp))

    return measured_mlp(
        lambda width: mlp_model.numbanet_task("cpu", width, Fixed() if dp else dropout, rate, batch), hidden, steps
    )


def rows_of(suite: str, case: str, implementations: Iterable[tuple]) -> list[dict[str, Any]]:
    """A row for each (name, build, parameters, peer, counted bytes). Each runs in a separate process, so that memory pools of
    one do not change the peak of another."""
    rows, peaks = [], {}
    for name, build, parameters, peer, least in implementations:
        row = {
            "suite": suite,
            "case": case,
            "implementation": name,
            "peer": peer,
            "counted_mib": least / MIB,
            "peak_mib": None,
            "share": None,
        }
        try:
            for _ in range(2):  # the first process compiles what no cache holds, which takes memory, too
                with Workers(threads()) as workers:
                    workers[name].ask("load", (build, parameters))
                    peaks[name] = workers[name].ask("outputs")["peak"] / MIB
            row.update(peak_mib=peaks[name], share=peaks[name] / peaks[peer] if peer in peaks else None)
        except WorkerError as problem:
            row["problem"] = str(problem)
        rows.append(row)
    return rows


def plot(results: Results, path: Path) -> None:
    """Plot peaks as bars and counted bytes as marks."""
    from ..machinery.plots import plot_memory

    plot_memory(results.rows, path)
