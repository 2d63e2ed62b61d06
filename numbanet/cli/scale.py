"""The command `numbanet scale`."""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import add_device
from .tables import print_table, short

if TYPE_CHECKING:
    from ..parallel.model import Step

STEPS, EPOCHS = 8, 6  # steps of an epoch, and epochs; the first does not count, because it compiles and records


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "scale",
        help="predict the time of a training step by the number of ranks",
        description="Measures a step on this machine, and predicts it for ranks that each train on as many samples, with the "
        "gradients of all weights exchanged or only of kept ones. --compute and --compute-dense are for other machines.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", default="784-4096-4096-10", type=widths, help="widths of the layers, inputs first")
    parser.add_argument("--dropout", default="rdp", help="rdp, tdp, batchwise, window, bernoulli or none")
    parser.add_argument("--rate", default=0.7, type=float, help="dropout rate")
    parser.add_argument("--batch-size", default=128, type=int, help="samples per step of each rank")
    parser.add_argument("--ranks", default=64, type=int, help="largest number of ranks")
    parser.add_argument("--bandwidth", default=12.5, type=float, help="GB/s of a rank; 12.5 is 100 Gbit/s")
    parser.add_argument("--latency", default=2.0, type=float, help="microseconds of a message")
    parser.add_argument("--compute", type=float, metavar="MS", help="milliseconds of a step of one rank; measured if not given")
    parser.add_argument("--compute-dense", type=float, metavar="MS", help="the same without dropout")
    parser.add_argument("--n-jobs", type=int, default=1, metavar="N", help="CPU threads of a rank")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the times to this PNG, PDF or SVG file")
    add_device(parser, "cpu")
    parser.set_defaults(run=run)


def widths(text: str) -> tuple[int, ...]:
    """Parse 784-4096-4096-10 of --model."""
    found = tuple(int(part) if part.isdigit() else 0 for part in text.split("-"))
    if len(found) < 3 or min(found) < 1 or found[-1] < 2:
        raise argparse.ArgumentTypeError(f"must be widths such as 784-4096-4096-10, at least one of a hidden layer, not {text}")
    return found


def run(options: argparse.Namespace) -> int:
    """Print the predicted times and draw them."""
    from .. import plots
    from ..parallel.model import Link, Step, counts

    for name, low in (
        ("ranks", 1),
        ("batch_size", 1),
        ("bandwidth", 1e-9),
        ("latency", 0),
        ("compute", 1e-9),
        ("compute_dense", 1e-9),
    ):
        value = getattr(options, name)
        if value is not None and not value >= low:  # NaN is not
            raise ValueError(f"--{name.replace('_', '-')} must be at least {low}, not {value}")
        if value == math.inf and name != "bandwidth":
            raise ValueError(f"--{name.replace('_', '-')} must be a finite number, not inf")
    if options.plot:
        plots.check_target(options.plot)
    kept = measured(options, options.dropout, options.compute)
    dense = measured(options, "none", options.compute_dense)
    link = Link(options.latency * 1e-6, options.bandwidth * 1e9)
    steps: dict[str, Step] = {
        "dense": dense,
        f"{options.dropout}, all gradients sent": Step(kept.seconds, dense.size),
        f"{options.dropout}, kept ones sent": kept,
    }
    print(f"a step of one rank: {', '.join(f'{n} {1e3 * s.seconds:.3g} ms, {short(s.size)}B sent' for n, s in steps.items())}")
    ranks = list(counts(options.ranks))
    rows = []
    for n in ranks:
        cells = (f"{1e3 * s.predicted(n, link):.3g} ({s.efficiency(n, link):.0%})" for s in steps.values())
        rows.append([f"{n:,}", f"{1e3 * link.ring(kept.size, n):.3g}", f"{1e3 * link.tree(kept.size, n):.3g}", *cells])
    print_table(
        f"ms of a step of {options.batch_size} samples for each rank (efficiency), {options.bandwidth:g} GB/s, "
        f"{options.latency:g} us",
        ["ranks", "ring", "tree", *steps],
        rows,
    )
    if options.plot:
        times = {name: [step.predicted(n, link) for n in ranks] for name, step in steps.items()}
        plots.scaling(ranks, times, options.plot)
        print(f"times by ranks: {options.plot}")
    return 0


def measured(options: argparse.Namespace, dropout: str, known: float | None) -> Step:
    """Return a step of one rank: its mean time on this machine, unless it is known, in milliseconds, and the bytes of its
    gradients, the mean over the drawn plans.
    """
    import numpy as np

    from .. import Net
    from ..parallel import run_ranks
    from ..parallel.model import Step

    inputs, *hidden, outputs = options.model
    rng = np.random.default_rng(0)
    X = rng.standard_normal((STEPS * options.batch_size, inputs), np.float32)
    y = np.arange(len(X)) % outputs
    net = Net(
        tuple(hidden),
        dropout=dropout,
        dropout_rate=0.5 if dropout == "none" else options.rate,
        epochs=EPOCHS,
        batch_size=options.batch_size,
        device=options.device,
        n_jobs=options.n_jobs,
        learning_rate=1e-3,
        random_state=0,
    )
    if len(X) < outputs:
        raise ValueError(f"--batch-size must be at least {-(-outputs // STEPS)} for {outputs} outputs")
    (found,) = run_ranks(1, lambda ranks: net.set_params(parallel=ranks).fit(X, y))
    seconds = statistics.median(record["seconds"] - record["exchange_seconds"] for record in found.history_[1:])
    sent = sum(record["exchanged_bytes"] for record in found.history_) / (EPOCHS * STEPS)
    return Step(seconds / STEPS if known is None else known / 1e3, sent)
