"""The command `numbanet train`."""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import datasets
from ..dropout import POLICIES
from . import own_data
from .arguments import add_device, interval, list_of, seed, widths
from .tables import print_table
from .wording import in_options

OTHERS = (".csv", ".html", ".json", ".npy", ".npz", ".onnx", ".pkl", ".png", ".pt", ".pth", ".svg")  # of files of other kinds
PATIENCE = 20  # epochs without improvement before early stopping: held-out parts are small, and their scores noisy
STOPPING = (
    f"stop if the validation score has not risen for {PATIENCE} epochs, and keep the best weights; for values of a file if not "
    "given"
)
CLASSES = 20  # different integers of a target; more must be less than a tenth of the rows to be taken for classes

if TYPE_CHECKING:
    from .. import Net, NetRegressor


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
        "--data",
        default="digits",
        metavar="DATA",
        help=f"{', '.join(datasets.IMAGES)}, whose images become rows of numbers; or a .csv or .npy file with --target",
    )
    parser.add_argument(
        "--target",
        metavar="COLUMN",
        help="name or number of the column of the file that is predicted: integers and words are classes, other numbers values",
    )
    parser.add_argument("--regression", action="store_true", help="predict integers of the target column as values")
    parser.add_argument("--test", default=0.2, type=float, metavar="SHARE", help="share of a file's rows that are the test set")
    parser.add_argument(
        "--validation",
        default=0.1,
        type=float,
        metavar="SHARE",
        help="share of the training set to score in each epoch; 0: none",
    )
    parser.add_argument("--early-stopping", action=argparse.BooleanOptionalAction, help=STOPPING)
    parser.add_argument("--layers", default="256,256", type=widths, help="widths of the hidden layers")
    parser.add_argument(
        "--dropout",
        choices=[*names, "auto"],
        metavar="KIND",
        help=f"{', '.join(names)} or auto, which chooses; rdp for images, and auto for a file, if not given",
    )
    parser.add_argument("--rate", type=list_of(float), help="dropout rate, 0.5 if not given, or one per hidden layer")
    parser.add_argument("--epochs", type=int, help="20, or as many as make 1000 steps, if not given")
    parser.add_argument("--batch-size", type=int, help="128, or fewer of a small data set, if not given")
    parser.add_argument("--learning-rate", type=float, help="0.02 for sgd (a regression 0.005), 0.001 for adam, if not given")
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--optimizer", help="sgd, adam or adamw; if not given sgd, and adam for a regression")
    add_device(parser)
    parser.add_argument("--precision", default="float32", help="float32, or tf32 for products on CUDA's tensor cores")
    parser.add_argument("--n-jobs", type=int, metavar="N", help="maximal number of CPU threads; all if not given")
    parser.add_argument("--seed", default=0, type=seed)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a report, one HTML page, to this .html file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the learning curves to this PNG, PDF or SVG file")
    parser.add_argument("--save", type=Path, metavar="FILE", help="save the trained network to this .safetensors file")
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
    """Train a network, print the results, save the network, plot the learning curves and write the report."""
    from .. import plots
    from ..arguments import PAGES, check_target
    from ..parallel.joining import opened

    if options.save and options.save.suffix.lower() in OTHERS:
        ending = options.save.suffix
        raise ValueError(f"cannot save to {str(options.save)!r}: networks are saved as .safetensors, not as {ending}")
    for path, endings in ((options.save, ()), (options.report, PAGES)):
        if path:
            check_target(path, endings)
    if options.plot or options.report:
        plots.check_target(options.plot or Path("report.svg"))
    if (options.resume or options.every) and not options.checkpoint:
        raise ValueError("--resume and --every are for checkpoints: give their folder, --checkpoint FOLDER")
    splits = _splits(options)
    options = _chosen(options, splits)
    net = _estimator(options, splits.regression)
    net.check()
    if options.resume and any(options.checkpoint.glob("checkpoint-*.safetensors")):
        # which refuses other parameters than those of the checkpoint
        net = type(net).resume(options.checkpoint, **net.get_params())
    interrupted = False
    try:
        net.fit(*splits.train, validation=splits.validation, checkpoint=options.checkpoint, every=options.every)
    except KeyboardInterrupt as error:
        if not hasattr(net, "model_"):
            raise  # no epoch was completed, so there is nothing to save
        interrupted = True
        print(f"numbanet: {in_options(str(error), options.named)}", file=sys.stderr)
    if options.mpi and not opened("mpi").first:
        return 130 if interrupted else 0
    _print_result(net, options, splits)
    _write(net, options, splits)
    return 130 if interrupted else 0


def _chosen(options: argparse.Namespace, splits: Splits) -> argparse.Namespace:
    """Return the options, with dropout and early stopping where they are not given.

    A table has the dropout of the rule "auto", which drops nothing if features are few. Early stopping is for its values:
    diabetes gained 0.3 of R² by it, and generated tables lost nothing. Of classes it lost accuracy, as all of the few held-out
    samples may be right after an epoch or two (iris, wine).
    """
    table, stops = own_data.is_file(options.data), options.early_stopping
    if stops and splits.validation is None:
        raise ValueError("--early-stopping needs validation samples: give --validation a share above 0")
    if stops is None:
        stops = table and splits.regression and splits.validation is not None
    # a rate alone asks for dropout, which "auto" may leave out
    dropout = options.dropout or ("auto" if table and options.rate is None else "rdp")
    chosen = {"dropout": dropout, "rate": options.rate or [0.5], "early_stopping": stops}
    return argparse.Namespace(**{**vars(options), **chosen})


class Splits(NamedTuple):
    """The samples and targets of training, validation (None without) and test."""

    train: tuple[Any, Any]
    validation: tuple[Any, Any] | None
    test: tuple[Any, Any]
    regression: bool = False
    scaling: tuple[Any, Any] | None = None  # mean and deviation of the features, which the saved network has
    names: Sequence[str] = ()  # of the features of a file


def _splits(options: argparse.Namespace) -> Splits:
    """Load the data, and hold out validation samples, and test samples of a file; features of a file are standardised."""
    import numpy as np

    for name, value in (("--test", options.test), ("--validation", options.validation)):
        if not 0 <= value < 1 or (name == "--test" and not value):
            raise ValueError(f"{name} must be a share between 0 and 1, got {value}")
    if not own_data.is_file(options.data):
        if options.target or options.regression:
            raise ValueError(f"--target and --regression are for files: {options.data} is no .csv or .npy file")
        if options.data not in datasets.IMAGES:
            raise ValueError(
                f"--data must be a .csv or .npy file, or one of {', '.join(datasets.IMAGES)}; got {options.data!r}"
            )
        X, y, X_test, y_test = datasets.load(options.data)
        X, X_test = (part.reshape(len(part), -1) for part in (X, X_test))
        train, validation = _split("--validation", X, y, options.validation, options.seed, False)
        return Splits(train, validation, (X_test, y_test))
    if options.target is None:
        raise ValueError(f"--target: give the name or the number of the column of {options.data} that is predicted")
    X, y, names, _ = own_data.read(options.data, options.target)
    parts = ["training", "validation", "test"] if options.validation else ["training", "test"]
    if len(X) < len(parts):
        raise ValueError(f"{options.data}: {', '.join(parts)} need a row each, and the file has {len(X)}")
    if options.regression and y is not None and y.dtype.kind == "U":
        raise ValueError(f"--regression: the column {options.target!r} of {options.data} is text, such as {str(y[0])!r}")
    regression = options.regression or (y is not None and y.dtype.kind == "f")
    if not regression and y is not None and (found := len(np.unique(y))) > max(CLASSES, len(y) // 10):
        what, way = "integers", "give --regression to predict values; names of classes are text"
        if y.dtype.kind == "U":
            what, way = "texts", f"values must be numbers, not {str(y[0])!r}, and classes have more rows"
        column = f"the column {options.target!r} of {options.data}"
        raise ValueError(f"{column} has {found} different {what} in {len(y)} rows: {way}")
    rest, test = _split("--test", X, y, options.test, options.seed, regression)
    mean, deviation = (np.asarray(of(rest[0], axis=0, dtype=np.float64), np.float32) for of in (np.mean, np.std))
    deviation[deviation == 0] = 1
    scaled = (rest[0] - mean) / deviation
    train, validation = _split("--validation", scaled, rest[1], options.validation, options.seed, regression)
    return Splits(train, validation, ((test[0] - mean) / deviation, test[1]), regression, (mean, deviation), names)


def _split(option: str, X: Any, y: Any, share: float, seed: int, regression: bool) -> tuple[tuple[Any, Any], Any]:
    """Return (X, y) of the rest, and (X, y) of the held-out share, None if the share is 0; by class if each class suffices.
    Classes that the rest would lack are in the rest alone. Of values, at least two are held out, as R² needs.
    """
    if not share:
        return (X, y), None
    import numpy as np
    from sklearn.model_selection import train_test_split

    way = "give more rows" if option == "--test" else f"give more rows, or {option} 0"
    if regression and len(y) < 4:
        raise ValueError(f"{option}: two of {len(y)} rows would be held out, which leaves too few: {way}")
    least = 0 if regression else np.unique(y, return_counts=True)[1].min()
    stratify = y if least * min(share, 1 - share) >= 1 else None
    size = 2 if regression and math.ceil(share * len(y)) < 2 else share
    rest, held = train_test_split(np.arange(len(y)), test_size=size, random_state=seed, stratify=stratify)
    if not regression:
        lost = ~np.isin(y[held], y[rest])
        rest, held = np.concatenate([rest, held[lost]]), held[~lost]
    if not len(held):
        raise ValueError(f"{option}: each class has too few rows for a share of {share}: {way}")
    return (X[rest], y[rest]), (X[held], y[held])


def _estimator(options: argparse.Namespace, regression: bool) -> Net | NetRegressor:
    from .. import Net, NetRegressor

    return (NetRegressor if regression else Net)(
        options.layers,
        dropout=options.dropout,
        dropout_rate=options.rate[0] if len(options.rate) == 1 else options.rate,
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        momentum=options.momentum,
        optimizer=options.optimizer or ("adam" if regression else "sgd"),
        early_stopping=options.early_stopping,
        patience=PATIENCE,
        device=options.device,
        precision=options.precision,
        n_jobs=options.n_jobs,
        random_state=options.seed,
        parallel="mpi" if options.mpi else None,
        verbose=0 if options.quiet else 1,
    )


def _print_result(net: Net | NetRegressor, options: argparse.Namespace, splits: Splits) -> None:
    score = net.score(*splits.test)
    print_table(
        "",
        ["data", "dropout", "epochs", "test R²" if splits.regression else "test accuracy", "s / epoch", "FLOPs done"],
        [
            [
                options.data,
                options.dropout if options.dropout != "auto" else f"auto: {net.policy_.name}",
                str(net.n_iter_) if net.best_epoch_ in (None, net.n_iter_) or not net.early_stopping else _best(net),
                f"{score:.4f}" if splits.regression else f"{score:.2%}",
                f"{sum(r['seconds'] for r in net.history_) / net.n_iter_:.3f}",
                f"{sum(r['flops_share'] for r in net.history_) / net.n_iter_:.0%}",
            ]
        ],
    )


def _best(net: Net | NetRegressor) -> str:
    return f"{net.n_iter_}, best {net.best_epoch_}"


def _write(net: Net | NetRegressor, options: argparse.Namespace, splits: Splits) -> None:
    """Write the files that the options name, the network first."""
    from .. import plots

    if options.save:
        _packed(net, splits).save(options.save)
        print(f"saved: {options.save}")
    if options.report:
        target = f", target column {options.target}" if options.target else ""
        net.report(options.report, *splits.test, f"{options.data}{target}, of which the given samples are the test set")
        print(f"report: {options.report}")
    if options.plot:
        held_out = f"validation {'R²' if splits.regression else 'accuracy'}"
        plots.learning_curves({options.dropout: net.history_}, options.plot, held_out=held_out)
        print(f"learning curves: {options.plot}")


def _packed(net: Net | NetRegressor, splits: Splits) -> Net | NetRegressor:
    """Return the network that is saved: that of a file takes the features as they are there."""
    import numpy as np

    from .. import Normalize, Sequential

    if not splits.scaling:
        return net
    packed = copy.copy(net)
    first = Normalize(*splits.scaling, device=next(net.model_.parameters()).device)
    names = np.array(splits.names, object)  # what scikit-learn calls them
    packed.__dict__.update(feature_names_in_=names, model_=Sequential([first, *net.model_.layers]))
    return packed
