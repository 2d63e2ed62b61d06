"""The command line: numbanet train | predict | demo | challenge | devices | kernels | bench."""

from __future__ import annotations

import argparse
import collections
import importlib.util
import math
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from . import __version__, datasets
from .dropout import POLICIES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 2 bad input (stderr has one line that says what), 130 interrupted."""
    parser = _parser()
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["bench"]:
        return _bench(given[1:])  # it parses its own arguments
    options = parser.parse_args(given)
    if not hasattr(options, "run"):
        parser.error("COMMAND is missing: train, predict, demo, challenge, devices, kernels or bench (--help has the rest)")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"numbanet: {message}", file=sys.stderr)
            status = options.run(options)
            sys.stdout.flush()  # inside the try: a closed pipe is no error
            return status
    except KeyboardInterrupt:
        print("numbanet: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return reader_has_gone()
    except (ValueError, FileNotFoundError, RuntimeError, FloatingPointError, OSError, ImportError, MemoryError) as error:
        print(f"numbanet: error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2


def reader_has_gone() -> int:
    """Exit status if the reader of stdout, such as `head`, has closed the pipe; further output is discarded."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class Parser(argparse.ArgumentParser):
    """Reports errors in one line; `--help` has the rest."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="numbanet", description="Neural networks that train faster because work that dropout throws away is never done."
    )
    parser.add_argument("--version", action="version", version=f"numbanet {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")

    names = [name for name, policy in POLICIES.items() if policy.kind != "patches"]  # "patches" is for convolutions
    train = commands.add_parser(
        "train",
        help="train a network on a data set and print its accuracy",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    train.add_argument(
        "--data", default="digits", choices=datasets.IMAGES, help="data set; each image becomes a row of numbers"
    )
    train.add_argument("--layers", default="256,256", type=_list_of(int), help="widths of the hidden layers")
    train.add_argument("--dropout", default="rdp", help=f"{', '.join(names[:-1])} or {names[-1]}")
    train.add_argument("--rate", default="0.5", type=_list_of(float), help="dropout rate, or one per hidden layer")
    train.add_argument("--epochs", default=20, type=int)
    train.add_argument("--batch-size", default=128, type=int)
    train.add_argument("--learning-rate", type=float, help="0.01 for sgd and 0.001 for adam if not given")
    train.add_argument("--momentum", default=0.9, type=float)
    train.add_argument("--optimizer", default="sgd", help="sgd, adam or adamw")
    train.add_argument("--device", default="auto", help="auto, cpu, cuda or emulated")
    train.add_argument("--precision", default="float32", help="float32, or tf32 for products on CUDA's tensor cores")
    train.add_argument("--n-jobs", type=int, metavar="N", help="maximal number of CPU threads; all if not given")
    train.add_argument("--seed", default=0, type=int)
    train.add_argument("--plot", type=Path, metavar="FILE", help="write the learning curves to this PNG, PDF or SVG file")
    train.add_argument("--save", type=Path, metavar="FILE", help="save the trained network to this safetensors file")
    train.add_argument("--quiet", action="store_true", help="print no progress while training")
    train.set_defaults(run=_train)

    predict = commands.add_parser("predict", help="predict with a saved network, one line per sample")
    predict.add_argument("network", type=Path, help="a file written by train --save or Net.save")
    predict.add_argument(
        "samples", help=f"a .npy file, a .csv file that contains only numbers, or the test set of {', '.join(datasets.IMAGES)}"
    )
    predict.add_argument("--probabilities", action="store_true", help="print class probabilities, after a line of class names")
    predict.add_argument("--device", default="auto", help="auto, cpu, cuda or emulated")
    predict.set_defaults(run=_predict)

    demo = commands.add_parser("demo", help="train on handwritten digits with each kind of dropout and compare them")
    demo.add_argument("--plot", type=Path, default=Path("demo.png"), metavar="FILE", help="file for the learning curves")
    demo.add_argument("--device", default="auto", help="auto, cpu, cuda or emulated")
    demo.set_defaults(run=_demo)

    race = commands.add_parser(
        "challenge",
        help="the Sparse DNN Graph Challenge: many layers with 32 weights per neuron",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    race.add_argument("--neurons", default=1024, type=int, help="per layer: 1024, 4096, 16384 or 65536")
    race.add_argument("--layers", default=120, type=int, help="120, 480 or 1920")
    race.add_argument(
        "--data",
        metavar="FOLDER",
        help="folder of the official files, by default NUMBANET_DATA or the cache; `generated`: a similar random network",
    )
    race.add_argument("--way", default="compact", help="compact, filter, buffer, plain or saturated")
    race.add_argument("--inputs", type=int, metavar="N", help="use only the first N images")
    race.add_argument(
        "--memory", type=int, metavar="BYTES", help="maximum for activations; half of the free memory if not given"
    )
    race.add_argument("--device", default="cpu", help="auto, cpu, cuda or emulated")
    race.set_defaults(run=_challenge)

    devices = commands.add_parser("devices", help="which devices this machine has, what is missing and how to get it")
    devices.add_argument(
        "--calibrate",
        action="store_true",
        help="measure from which sizes threads and lazy updates pay off on this machine, which must be idle, and "
        "save the result for later processes",
    )
    devices.set_defaults(run=_devices)

    kernels = commands.add_parser("kernels", help="list the operations of all devices, and the CUDA kernels")
    kernels.add_argument(
        "--counters",
        nargs="+",
        metavar="OPERATION",
        help="count what the kernels of these operations do, on the emulated device; "
        "path/to/file.py:function counts the kernels that your own function launches",
    )
    kernels.add_argument(
        "--shape",
        default="128,256,192",
        type=shape,
        metavar="N,I,O",
        help="with --counters: samples, inputs and outputs of the examples",
    )
    kernels.add_argument(
        "--plot", type=Path, metavar="FILE", help="with --counters: plot them under the rooflines of two cards"
    )
    kernels.set_defaults(run=_kernels)

    commands.add_parser("bench", help="compare times of kernels and training steps; `bench list` shows the suites")
    return parser


def _list_of(kind):
    def parse(text: str):
        return tuple(kind(part) for part in text.split(","))

    parse.__name__ = f"comma-separated {kind.__name__}"
    return parse


def shape(text: str) -> tuple[int, int, int]:
    """Parse N,I,O of --shape."""
    sizes = _list_of(int)(text)
    if len(sizes) != 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"must be N,I,O, three positive integers, not {text}")
    return sizes


def _train(options: argparse.Namespace) -> int:
    from . import Net, plots
    from .estimators import saving

    if options.save:
        saving.check_target(options.save)
    if options.plot:
        plots.check_target(options.plot)
    rate = options.rate[0] if len(options.rate) == 1 else options.rate
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
        verbose=0 if options.quiet else 1,
    )
    net.check()
    X, y, X_test, y_test = datasets.load(options.data)
    X, X_test = (part.reshape(len(part), -1) for part in (X, X_test))
    interrupted = False
    try:
        net.fit(X, y, validation=(X_test, y_test))
    except KeyboardInterrupt as error:
        if not hasattr(net, "model_"):
            raise  # no epoch was completed
        interrupted = True
        print(f"numbanet: {error}", file=sys.stderr)
    _print_table(
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
    if options.save:
        net.save(options.save)
        print(f"saved: {options.save}")
    if options.plot:
        plots.learning_curves({options.dropout: net.history_}, options.plot)
        print(f"learning curves: {options.plot}")
    return 130 if interrupted else 0


def _predict(options: argparse.Namespace) -> int:
    from . import Net, NetRegressor
    from .estimators import saving

    net = saving.load((Net, NetRegressor), options.network, options.device)
    if options.probabilities and not isinstance(net, Net):
        raise ValueError(f"--probabilities: {options.network} holds a {type(net).__name__}, which has no classes")
    X, y = _samples(options.samples, net.input_shape_)
    if options.probabilities:
        print(*net.classes_, sep=",")
    for row in net.predict_proba(X) if options.probabilities else net.predict(X):
        print(*row if getattr(row, "ndim", 0) else (row,), sep=",")
    if y is not None:
        print(f"numbanet: score {net.score(X, y):.4f} on these {len(y)} samples", file=sys.stderr)
    return 0


def _samples(source: str, shape: tuple[int, ...]):
    """(X, y) of a data set's test samples, reshaped to the network's input if the sizes match; or (X, None) of a file."""
    import numpy as np

    if source in datasets.IMAGES:
        X, y = datasets.load(source)[2:]
        return X.reshape(len(X), *shape) if X[0].size == math.prod(shape) else X, y
    try:
        if source.endswith(".npy"):
            return np.load(source, allow_pickle=False), None
        if source.endswith(".csv"):
            return np.loadtxt(source, np.float32, delimiter=",", ndmin=2), None
    except (ValueError, EOFError) as error:
        raise ValueError(f"{source}: {error}") from error
    raise ValueError(f"samples must be a .npy or .csv file, or one of {', '.join(datasets.IMAGES)}; got {source!r}")


def _demo(options: argparse.Namespace) -> int:
    from .demo import run

    return run(options.plot, options.device)


def _challenge(options: argparse.Namespace) -> int:
    from .challenge import challenge

    found = challenge(
        options.neurons, options.layers, options.data, options.way, options.device, options.inputs, options.memory, print
    )
    counted = found.connections // options.layers
    shown = [layer for layer in range(options.layers) if layer < 8 or layer % (options.layers // 8 or 1) == 0]
    _print_table(
        "",
        ["layers", "live inputs", "ms", "multiplications", "of all"],
        [
            [
                f"{first + 1}" if stop == first + 1 else f"{first + 1} to {stop}",
                f"{found.live[first]:,}",
                f"{1e3 * found.by_layer[first:stop].sum():.1f}",
                _short(found.multiplications[first:stop].sum()),
                f"{found.multiplications[first:stop].sum() / ((stop - first) * found.inputs * counted):.1%}",
            ]
            for first, stop in zip(shown, [*shown[1:], options.layers])
        ],
    )
    known = {True: "the Challenge's", False: "NOT the Challenge's", None: "not known beforehand"}[found.correct]
    print(f"{len(found.categories):,} of {found.inputs:,} inputs are not 0 at the end: {known}")
    print(
        f"{found.seconds:.3f} s, {found.rate:.3g} edges/s as the Challenge counts them (inputs x connections / time); "
        f"{found.share_done:.1%} of these were multiplied, {found.multiplications.sum() / found.seconds:.3g} a second"
    )
    return 0 if found.correct is not False else 1


def _devices(options: argparse.Namespace) -> int:
    from numbanet_kernels.runtime import availability

    from .device import NAMES, device, problem

    rows = [[name, "ready" if problem(name) is None else "not here", problem(name) or ""] for name in NAMES]
    missing = availability.nvvm_problem()
    rows.append(["CUDA compiler", "ready" if missing is None else "not here", missing or "kernels can be compiled and read"])
    _print_table("devices", ["device", "state", "why, and what to do"], rows)
    print(f"device='auto' chooses {device('auto').name!r} here")
    if options.calibrate:
        _calibrate()
    return 0


def _calibrate() -> None:
    from numbanet_kernels.host import thresholds
    from numbanet_kernels.host.calibration import calibrate, faster_library

    from .device import device

    found, usual = calibrate(device("cpu")), thresholds.Thresholds()
    _print_table(
        "from which size on it pays",
        ["cost", "here", "by default"],
        [[name, f"{value:,}", f"{getattr(usual, name):,}"] for name, value in found._asdict().items()],
    )
    library = faster_library()
    print(f"products are faster by {library}")
    print(f"written to {thresholds.save(found, library)}")


def _counters(names: Sequence[str], sizes: Sequence[int], target: Path | None) -> int:
    """Print the counters of the operations' examples, one line per kernel; ValueError if an operation launches none."""
    from numbanet_kernels.examples import counted
    from numbanet_kernels.runtime.emulation import emulated

    from . import plots
    from .device import device

    device("emulated")  # RuntimeError with the reason if it is not available
    if target:
        plots.check_target(target)
    with emulated():  # active before a user's file is imported
        found = {name: counted(name, (sizes[0], sizes[1], sizes[2])) for name in dict.fromkeys(names)}
    for name, kernels in found.items():
        if not kernels:
            raise ValueError(
                f"{name} launched no kernel, so there is nothing to count: only kernels declared with @kernel and "
                "started with launch, on a grid without zeros, are counted"
            )
    rows = [(name, kernel, counters.summary()) for name, kernels in found.items() for kernel, counters in kernels.items()]
    _print_table(
        "",
        ("operation", "kernel", "issued", "fma", "FLOPs", "bytes", "x least", "FLOP/B", "banks", "parted"),
        [
            (
                name,
                kernel.__name__,
                _short(c["issued"]),
                f"{(c['issued fma'] + c['issued mma']) / c['issued']:.0%}",
                _short(c["flops"]),
                _short(c["bytes"]),
                f"{c['sectors'] / max(c['least sectors'], 1):.2f}",
                f"{c['intensity']:.2f}",
                _short(c["bank conflicts"]),
                _short(c["divergent branches"]),
            )
            for name, kernel, c in rows
        ],
        narrow=True,
    )
    for name, kernel, c in rows:
        line, issued = next(iter(found[name][kernel].by_line().items()))
        print(f"{name}, {kernel.__name__}: {issued / c['issued']:.0%} of the instructions come from {line or 'unknown lines'}")
    print(
        f"Counted on the emulated device, examples with N, I, O = {', '.join(map(str, sizes))}.\n"
        "issued: instructions of whole warps; fma: share of them that multiply and add;\n"
        "bytes: 32 for each sector of global memory that a warp accesses; x least: ratio to the sectors that its data needs;\n"
        "banks: cycles lost to bank conflicts in shared memory; parted: divergent branches of a warp"
    )
    if target:
        shown = {
            name if len(kernels) == 1 else f"{name} {i}": counters.summary()["intensity"]
            for name, kernels in found.items()
            for i, counters in enumerate(kernels.values(), 1)
        }
        print(f"plot: {plots.rooflines(shown, target)}")
    return 0


def _short(n: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.0f}"


def _kernels(options: argparse.Namespace) -> int:
    if options.counters:
        return _counters(options.counters, options.shape, options.plot)
    if options.plot:
        raise ValueError("--plot goes with --counters OPERATION")
    import importlib

    from numbanet_kernels.runtime import declare

    from .device import NAMES, operations

    tables = {name: operations(importlib.import_module(f"numbanet_kernels.{name}")) for name in NAMES}
    rows = []
    for op, function in sorted(tables["cpu"].items(), key=lambda item: (item[1].__module__, item[0])):
        formula = (function.__doc__ or "").strip().splitlines()[:1]
        rows.append([function.__module__.rpartition(".")[2], op, *formula])
    _print_table(f"operations of {' and '.join(NAMES)}", ["family", "operation", "formula"], rows)
    variants = collections.Counter((k.family, k.__name__, k.signature) for k in declare.all_kernels())
    _print_table(
        "CUDA kernels",
        ["family", "kernel", "variants", "signature"],
        [[family, name, str(count), signature] for (family, name, signature), count in variants.items()],
    )
    return 0


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], narrow: bool = False) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        *columns,
        title=title or None,
        title_justify="left",
        box=box.SIMPLE if narrow else box.HEAVY_HEAD,
        padding=0 if narrow else (0, 1),
    )
    for row in rows:
        table.add_row(*(str(cell).replace("[", "\\[") for cell in row))
    console = Console()
    with console.capture() as text:  # rich itself would exit with status 1 if the reader has closed the pipe
        console.print(table)
    print(text.get(), end="")


def _bench(arguments: Sequence[str]) -> int:
    if importlib.util.find_spec("numbanet.bench") is None:
        print("numbanet: error: bench is not installed; in a checkout run `python -m bench`", file=sys.stderr)
        return 2
    from numbanet.bench.__main__ import main

    return main(arguments, "numbanet bench")


if __name__ == "__main__":
    sys.exit(main())
