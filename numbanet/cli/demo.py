"""The command `numbanet demo`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .arguments import add_device


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("demo", help="train on handwritten digits with each kind of dropout and compare them")
    parser.add_argument("--plot", type=Path, default=Path("demo.png"), metavar="FILE", help="file for the learning curves")
    add_device(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train with each kind of dropout."""
    from .. import demo

    return demo.run(options.plot, options.device)
