"""Training steps of several ranks over MPI, of one thread each: 784-4096-4096-10, p = 0.7, against PyTorch's DDP with gloo.

Each rank trains on 128 samples. The check is that of the joint batch on one process, in float64. `exchange` is the part of
a step in which gradients are summed, on the rank that waits for no other. The ratio of `1 rank` is the efficiency: its time
divided by that of several ranks with as many samples each. Ranks that are `apart` train networks of their own and exchange
nothing: they share only the memory of the machine, so their efficiency is what an exchange without cost would leave.
`predicted` is the alpha-beta model of `numbanet.parallel.model`, from the step of one rank, the bytes that are sent, and a
measured latency and bandwidth; ranks without a core of their own share one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..machinery.harness import Case, Implementation, Options, Schedule, run_cases
from ..machinery.results import Results
from . import BATCH, TOLERANCE, mlp_model
from .mpi_ranks import RankTask, numbanet_ranks, torch_ranks

SUITE = "mpi"
RECORDED = (
    "--against torch --json bench/results/mpi.json",
    "--only '2 ranks apart|efficiency of 2' --json bench/results/mpi-apart.json",
)
HIDDEN, RATE, RANKS = 4096, 0.7, (2, 4)
QUICK_HIDDEN = 64
FEWER_STEPS = 4  # n steps of a turn; one of DDP takes more than a second
LONG = Schedule(pairs=7, turn=0.3)


def _ours(
    options: Options, dropout: str, ranks: int, peer: str | None = None, batch: int = BATCH, **more: Any
) -> Implementation:
    """numbanet on several ranks, or alone."""
    hidden = QUICK_HIDDEN if options.quick else HIDDEN
    rate = 0.0 if dropout == "none" else RATE
    settings = {"hidden": hidden, "dropout": dropout, "rate": rate, "batch": batch}
    name = ", ".join([dropout, f"{ranks} rank{'s' * (ranks > 1)}", *more])
    flops = None if "exchange" in more else mlp_model.mean_flops(hidden, batch, dropout, rate)
    return Implementation(name, numbanet_ranks, {"ranks": ranks, **settings, **more}, peer, flops=flops)


def _theirs(options: Options, ranks: int) -> Implementation:
    """PyTorch's DDP."""
    hidden = QUICK_HIDDEN if options.quick else HIDDEN
    settings = {"hidden": hidden, "rate": RATE, "batch": BATCH}
    return Implementation(f"torch DDP nn.Dropout, {ranks} ranks", torch_ranks, {"ranks": ranks, **settings})


def cases(options: Options) -> Iterator[Case]:
    """Two ranks against PyTorch, with the exchange apart; two and four against one; a joint batch of the size of one rank's."""
    options.only_on_cpu(f"{SUITE} times ranks on the CPU")
    hidden = QUICK_HIDDEN if options.quick else HIDDEN
    size, least = f"784-{hidden}-{hidden}-10 p={RATE}", 2 if options.quick else FEWER_STEPS
    torch = options.against == "torch"

    def case(name: str, *implementations: Implementation) -> Case:
        error = functools.partial(_error, hidden)
        return Case(SUITE, f"{size}, {name}", implementations, error, TOLERANCE, least)

    ddp = _theirs(options, 2) if torch else None
    peer = ddp.name if ddp else "none, 2 ranks"
    dense = _ours(options, "none", 2, ddp and ddp.name)
    yield case(
        "2 ranks",
        *(_ours(options, dropout, 2, peer) for dropout in ("rdp", "batchwise")),
        dense,
        *(_ours(options, dropout, 2, exchange=True) for dropout in ("rdp", "none")),
        *([ddp] if ddp else []),
    )
    for ranks in RANKS:
        yield case(f"efficiency of {ranks} ranks", *_pairs(options, ranks, BATCH))
    yield case("2 ranks apart", *_pairs(options, 2, BATCH, apart=True))
    yield case(f"a joint batch of {BATCH}", *_pairs(options, 2, BATCH // 2))


def _error(hidden: int, outputs: Mapping[str, Any]) -> float:
    return mlp_model.update_error(hidden, outputs["batch"], outputs)


def _pairs(options: Options, ranks: int, batch: int, **more: Any) -> Iterator[Implementation]:
    """Several ranks and one, without dropout and with; the one has as many samples as each of them, or as all if batch is a
    part of BATCH.
    """
    for dropout in ("none", "rdp"):
        yield _ours(options, dropout, ranks, f"{dropout}, 1 rank", batch, **more)
        yield _ours(options, dropout, 1)


def run(options: Options, results: Results, say: Any) -> list[dict[str, Any]]:
    """Time the cases, add predicted times, and return the rows."""
    rows = []
    for case in cases(options):  # each with workers of its own, because a rank needs almost a gigabyte
        rows += run_cases(SUITE, [case], options, results, say, LONG)
    predicted = list(_predicted(options, rows))
    results.add(predicted)
    return rows + predicted


def _predicted(options: Options, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of predicted times, beside which the measured ones stand."""
    from numbanet.parallel.model import Link, Step

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for row in rows:
        dropout, _, ranks = row["implementation"].partition(", ")
        count = int(ranks.split()[0]) if ranks.endswith(" ranks") and ranks[0].isdigit() else 0
        alone = [other for other in rows if other["case"] == row["case"] and other["implementation"] == f"{dropout}, 1 rank"]
        if not (count and "efficiency" in row["case"] and row["median_ms"] and alone and alone[0]["median_ms"]):
            continue
        task = numbanet_ranks(count, **{k: v for k, v in _ours(options, dropout, count).parameters.items() if k != "ranks"})
        link, sent = Link(*task.link()), _sent(task)
        task.close()
        step = Step(alone[0]["median_ms"] / 1e3 * max(1.0, count / cores), sent)
        yield {
            "suite": SUITE,
            "case": row["case"],
            "implementation": f"{dropout}, {count} ranks, predicted",
            **dict.fromkeys(("median_ms", "p10", "p90"), 1e3 * step.predicted(count, link)),
            "bytes": sent,
            "latency_us": 1e6 * link.latency,
            "bandwidth_gb": link.bandwidth / 1e9,
        }


def _sent(task: RankTask) -> float:
    """Bytes of the gradients of a step, the mean over some."""
    task.seconds(FEWER_STEPS)
    return task.ask(("sent", None))[0]
