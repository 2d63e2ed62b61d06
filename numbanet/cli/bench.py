"""The command `numbanet bench`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any


def add(commands: Any) -> None:
    """Declare the command."""
    commands.add_parser("bench", help="compare times of kernels and training steps; `bench list` shows the suites")


def run(arguments: Sequence[str]) -> int:
    """Run bench, which parses its arguments itself, if it is installed."""
    if importlib.util.find_spec("numbanet.bench") is None:
        print("numbanet: error: bench is not installed; in a checkout run `python -m bench`", file=sys.stderr)
        return 2
    from numbanet.bench.__main__ import main

    return main(arguments, "numbanet bench")
