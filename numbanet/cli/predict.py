"""The command `numbanet predict`."""

from __future__ import annotations

import argparse
import csv
import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import datasets
from . import own_data
from .arguments import add_device

if TYPE_CHECKING:
    import numpy as np

    from .. import Net


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("predict", help="predict with a saved network, one line per sample")
    parser.add_argument("network", type=Path, help="a file written by train --save or Net.save")
    parser.add_argument(
        "samples",
        help="a .npy or .csv file whose features are numbers; of a .csv file with the names of the columns on which the "
        f"network was trained, no others are read; or the test set of {', '.join(datasets.IMAGES)}",
    )
    parser.add_argument("--target", metavar="COLUMN", help="column of the file that is predicted: it is left out, and scored")
    parser.add_argument("--probabilities", action="store_true", help="print class probabilities, after a line of class names")
    add_device(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the predictions to stdout. If the targets are known, print the score to stderr."""
    from .. import Net, NetRegressor
    from ..estimators import saving

    net = saving.load((Net, NetRegressor), options.network, options.device)
    if options.probabilities and not isinstance(net, Net):
        raise ValueError(f"--probabilities: {options.network} holds a {type(net).__name__}, which has no classes")
    X, y = _samples(options.samples, net, options.target)
    if y is not None and isinstance(net, Net):
        y = _labels(net, y, options.target)
    elif y is not None and y.dtype.kind == "U":
        raise ValueError(
            f"--target: the column {options.target!r} is text, and the network in {options.network} predicts values"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")  # `own_data.read` has compared them
        predicted = net.predict_proba(X) if options.probabilities else net.predict(X)
        score = None if y is None else net.score(X, y)
    if options.probabilities and predicted.ndim > 2:
        raise ValueError(f"--probabilities: {options.network} predicts labels for each time step: leave it out, for the labels")
    lines = csv.writer(sys.stdout, lineterminator="\n")  # which quotes names with commas
    if options.probabilities:
        lines.writerow(net.classes_)
    lines.writerows(row if getattr(row, "ndim", 0) else (row,) for row in predicted)
    if score is not None:
        print(f"numbanet: score {score:.4f} on these {len(y)} samples", file=sys.stderr)
    return 0


def _labels(net: Net, y: np.ndarray, target: str | None) -> np.ndarray:
    """Return the target column in the form of the classes; raise ValueError if none of it is a class."""
    import numpy as np

    if net.classes_.dtype.kind in "UO":
        y = y.astype(str)
    elif net.classes_.dtype.kind == "b":
        words = np.char.lower(y.astype(str))
        y = words == "true" if np.isin(words, ("true", "false")).all() else y
    if target is not None and (y.dtype.kind == "U" and net.classes_.dtype.kind in "iufb" or not np.isin(y, net.classes_).any()):
        raise ValueError(
            f"--target: nothing in the column {target!r}, such as {str(y[0])!r}, is one of the classes of the network, "
            f"{own_data.shown(net.classes_.tolist())}"
        )
    return y


def _samples(source: str, net: Any, target: str | None):
    """Return (X, y), test samples of a data set, in the input shape if sizes match; or samples of the file `source`, whose y is
    None without a target.
    """
    shape = net.input_shape_
    if source in datasets.IMAGES:
        X, y = datasets.load(source)[2:]
        return X.reshape(len(X), *shape) if X[0].size == math.prod(shape) else X, y
    if not own_data.is_file(source):
        raise ValueError(f"samples must be a .npy or .csv file, or one of {', '.join(datasets.IMAGES)}; got {source!r}")
    text = hasattr(net, "classes_") and all(isinstance(label, str) for label in net.classes_)
    table = own_data.read(source, target, getattr(net, "feature_names_in_", ()), text)
    if table.unused:
        print(f"numbanet: {source}: the network does not use {own_data.shown(table.unused)}", file=sys.stderr)
    return table.X, table.y
