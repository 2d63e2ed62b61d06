"""The command `numbanet kernels`."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import shape
from .counting import add_listing, card_of, show
from .tables import print_table, short

if TYPE_CHECKING:
    from ..emulation import Counts

SHAPE = 128, 256, 192  # N, I, O of the examples of operations


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("kernels", help="list the operations of all devices, and the CUDA kernels")
    parser.add_argument(
        "--counters",
        nargs="+",
        metavar="OPERATION",
        help="count what the kernels of these operations do, on the emulated device; "
        "path/to/file.py:function counts the kernels that your own function launches",
    )
    parser.add_argument(
        "--shape",
        type=shape,
        metavar="N,I,O",
        help=f"with --counters: samples, inputs and outputs of the examples (default: {','.join(map(str, SHAPE))})",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="with --counters: plot them under the rooflines of two cards")
    parser.add_argument("--lines", action="store_true", help="with --counters: print those of each line of Python, too")
    add_listing(parser, "with --counters: ")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """List the kernels, or count what some of them do."""
    alone = [f"--{name}" for name in ("shape", "plot", "lines", "html", "card") if getattr(options, name)]
    if options.counters:
        _counters(options)
    elif alone:
        raise ValueError(f"{alone[0]} needs --counters OPERATION")
    else:
        _list()
    return 0


def _list() -> None:
    import importlib

    from numbanet_kernels.runtime import declare

    from ..device import NAMES, operations

    tables = {name: operations(importlib.import_module(f"numbanet_kernels.{name}")) for name in NAMES}
    rows = []
    for op, function in sorted(tables["cpu"].items(), key=lambda item: (item[1].__module__, item[0])):
        formula = (function.__doc__ or "").strip().splitlines()[:1]
        rows.append([function.__module__.rpartition(".")[2], op, *formula])
    print_table(f"operations of {' and '.join(NAMES)}", ["family", "operation", "formula"], rows)
    variants = collections.Counter((k.family, k.__name__, k.signature) for k in declare.all_kernels())
    print_table(
        "CUDA kernels",
        ["family", "kernel", "variants", "signature"],
        [[family, name, str(count), signature] for (family, name, signature), count in variants.items()],
    )


def _counters(options: argparse.Namespace) -> None:
    """Run the examples of operations on the emulated device; print the counters of their kernels, and list and plot them if
    that is asked for.
    """
    from numbanet_kernels.examples import counted
    from numbanet_kernels.runtime.emulation import emulated

    from .. import plots
    from ..device import device

    sizes, card = options.shape or SHAPE, card_of(options)
    device("emulated")  # raises RuntimeError, with the reason, if the device is not available
    if options.plot:
        plots.check_target(options.plot)
    with emulated():  # the emulation must be active before a user's file is imported
        found = {name: counted(name, sizes) for name in dict.fromkeys(options.counters)}
    for name, kernels in found.items():
        if not kernels:
            raise ValueError(
                f"{name} launched no kernel, so there is nothing to count: only kernels declared with @kernel and "
                "started with launch, on a grid without zeros, are counted"
            )
    _print_counters(found, sizes)
    if options.lines or options.html or options.card:
        show(_by_line(found, card), options.lines or not options.html, options.html)
    if options.plot:
        shown = {
            name if len(kernels) == 1 else f"{name} {i}": counters.summary()["intensity"]
            for name, kernels in found.items()
            for i, counters in enumerate(kernels.values(), 1)
        }
        print(f"plot: {plots.rooflines(shown, options.plot)}")


def _by_line(found: dict[str, dict[Any, Any]], card: str) -> Counts:
    from numbanet_kernels.card.counted import KernelCounts

    from ..emulation import Counts

    return Counts(
        [
            KernelCounts(kernel.__name__, ", ".join(filter(None, (kernel.signature, kernel.variant))), counters)
            for kernels in found.values()
            for kernel, counters in kernels.items()
        ],
        card,
    )


def _print_counters(found: dict[str, dict[Any, Any]], sizes: Sequence[int]) -> None:
    """Print the counters of the kernels, grouped by operation, and what the columns mean."""
    rows = [(name, kernel, counters.summary()) for name, kernels in found.items() for kernel, counters in kernels.items()]
    print_table(
        "",
        ("operation", "kernel", "issued", "fma", "FLOPs", "bytes", "x least", "FLOP/B", "banks", "parted"),
        [
            (
                name,
                kernel.__name__,
                short(c["issued"]),
                f"{(c['issued fma'] + c['issued mma']) / c['issued']:.0%}",
                short(c["flops"]),
                short(c["bytes"]),
                f"{c['sectors'] / max(c['least sectors'], 1):.2f}",
                f"{c['intensity']:.2f}",
                short(c["bank conflicts"]),
                short(c["divergent branches"]),
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
