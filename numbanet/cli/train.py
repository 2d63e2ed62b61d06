"""The command `numbanet train`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import datasets
from ..dropout import POLICIES
from .arguments import add_device, interval, list_of
from .tables import print_table

if TYPE_CHECKING:
    from .. import Net


def add(commands: Any) -> None:
    """Declare the command."""
    # kind "patches" is for convolutions, and the network here has none
    names = [name for name, policy in POLICIES.items() if policy.kind != "patches"]
    parser = commands.add_parser(
        "train",
        help="train a network on a data set and print its accuracy",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--data", default="digits", choices=datasets.IMAGES, help="data set; each image becomes a row of numbers"
    )
    parser.add_argument("--layers", default="256,256", type=list_of(int), help="widths of the hidden layers")
    parser.add_argument("--dropout", default="rdp", help=f"{', '.join(names)} or auto, which chooses")
    parser.add_argument("--rate", default="0.5", type=list_of(float), help="dropout rate, or one per hidden layer")
    parser.add_argument("--epochs", default=20, type=int)
    parser.add_argument("--batch-size", default=128, type=int)
    parser.add_argument("--learning-rate", type=float, help="0.01 for sgd and 0.001 for adam if not given")
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--optimizer", default="sgd", help="sgd, adam or adamw")
    add_device(parser)
    parser.add_argument("--precision", default="float32", help="float32, or tf32 for products on CUDA's tensor cores")
    parser.add_argument("--n-jobs", type=int, metavar="N", help="maximal number of CPU threads; all if not given")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the learning curves to this PNG, PDF or SVG file")
    parser.add_argument("--save", type=Path, metavar="FILE", help="save the trained network to this safetensors file")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER", help="write checkpoints to this folder, also on SIGTERM and Ctrl-C"
    )
    parser.add_argument(
        "--every", type=interval, metavar="N", help="steps, or a time such as '10 min', between checkpoints; epoch"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of the folder, if it has any")
    parser.add_argument("--mpi", action="store_true", help="train in the processes that mpiexec or srun has started, together")
    parser.add_argument("--quiet", action="store_true", help="print no progress while training")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train a network, print the results, save the network and plot the learning curves."""
    from .. import Net, plots
    from ..arguments import check_target
    from ..parallel.joining import opened

    if options.save:
        check_target(options.save)
    if options.plot:
        plots.check_target(options.plot)
    rate = options.rate[0] if len(options.rate) == 1 else options.rate
    if (options.resume or options.every) and not options.checkpoint:
        raise ValueError("--resume and --every are for checkpoints: give their folder, --checkpoint FOLDER")
    net = Net(
        options.layers,
        dropout=options.dropout,
        dropout_rate=rate,
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        momentum=options.momentum,
        optimizer=options.optimizer,
        device=options.device,
        precision=options.precision,
        n_jobs=options.n_jobs,
        random_state=options.seed,
        parallel="mpi" if options.mpi else None,
        verbose=0 if options.quiet else 1,
    )
    net.check()
    if options.resume and any(options.checkpoint.glob("checkpoint-*.safetensors")):
        net = Net.resume(options.checkpoint, **net.get_params())  # which refuses other parameters than those of the checkpoint
    X, y, X_test, y_test = datasets.load(options.data)
    X, X_test = (part.reshape(len(part), -1) for part in (X, X_test))
    interrupted = False
    try:
        net.fit(X, y, validation=(X_test, y_test), checkpoint=options.checkpoint, every=options.every)
    except KeyboardInterrupt as error:
        if not hasattr(net, "model_"):
            raise  # no epoch was completed, so there is nothing to save
        interrupted = True
        print(f"numbanet: {error}", file=sys.stderr)
    if options.mpi and not opened("mpi").first:
        return 130 if interrupted else 0
    _print_result(net, options)
    if options.save:
        net.save(options.save)
        print(f"saved: {options.save}")
    if options.plot:
        plots.learning_curves({options.dropout: net.history_}, options.plot)
        print(f"learning curves: {options.plot}")
    return 130 if interrupted else 0


def _print_result(net: Net, options: argparse.Namespace) -> None:
    print_table(
        "",
        ["data", "dropout", "epochs", "test accuracy", "s / epoch", "FLOPs done"],
        [
            [
                options.data,
                options.dropout,
                str(net.n_iter_),
                f"{net.history_[-1]['validation_score']:.2%}",
                f"{sum(r['seconds'] for r in net.history_) / net.n_iter_:.3f}",
                f"{sum(r['flops_share'] for r in net.history_) / net.n_iter_:.0%}",
            ]
        ],
    )
