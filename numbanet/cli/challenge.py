"""The command `numbanet challenge`."""

from __future__ import annotations

import argparse
from typing import Any

from .arguments import add_device
from .tables import print_table, short


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "challenge",
        help="the Sparse DNN Graph Challenge: many layers with 32 weights per neuron",
        description="Runs the Sparse DNN Graph Challenge from its official files, which are not downloaded: get those of your "
        "sizes from graphchallenge.org, such as sparse-images-1024.tsv, neuron1024.tar and neuron1024-l120-categories.tsv, or "
        "these with .gz or .xz, and put them into $NUMBANET_DATA/graphchallenge or the folder of --data. Without files "
        "--data generated runs a random network of the same kind.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--neurons", default=1024, type=int, help="per layer: 1024, 4096, 16384 or 65536")
    parser.add_argument("--layers", default=120, type=int, help="120, 480 or 1920")
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="folder of the official files, if not given graphchallenge in $NUMBANET_DATA or in the cache; generated: a "
        "similar random network, and MNIST's images, which are downloaded",
    )
    parser.add_argument("--way", default="compact", help="compact, filter, buffer, plain or saturated")
    parser.add_argument("--inputs", type=int, metavar="N", help="use only the first N images")
    parser.add_argument(
        "--memory", type=int, metavar="BYTES", help="maximum for activations; half of the free memory if not given"
    )
    add_device(parser, "cpu")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the time of each layer, and whether the result is that of the Challenge; return 1 if it is not, else 0."""
    from ..challenge import challenge

    found = challenge(
        options.neurons, options.layers, options.data, options.way, options.device, options.inputs, options.memory, print
    )
    counted = found.connections // options.layers
    shown = [layer for layer in range(options.layers) if layer < 8 or layer % (options.layers // 8 or 1) == 0]
    print_table(
        "",
        ["layers", "live inputs", "ms", "multiplications", "of all"],
        [
            [
                f"{first + 1}" if stop == first + 1 else f"{first + 1} to {stop}",
                f"{found.live[first]:,}",
                f"{1e3 * found.by_layer[first:stop].sum():.1f}",
                short(found.multiplications[first:stop].sum()),
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
