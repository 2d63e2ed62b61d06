"""The command line: numbanet train | predict | scale | demo | challenge | devices | kernels | check | bench.

Each module in COMMANDS is a command: `add(commands)` declares its name, help and arguments, and `run(options)` runs it. To add
a command, put such a module here and append it to COMMANDS.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from .. import __version__
from . import bench, challenge, check, demo, devices, kernels, predict, scale, train
from .arguments import Parser, shape
from .wording import in_options

__all__ = ["Parser", "main", "reader_has_gone", "shape"]

COMMANDS = (train, predict, scale, demo, challenge, devices, kernels, check, bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status: 0 if it is done, 2 if the input is bad, 130 if it was interrupted."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["bench"]:
        return bench.run(given[1:])  # it parses its own arguments
    options = _parser().parse_args(given)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(
                f"numbanet: {in_options(str(message), options.named)}", file=sys.stderr
            )
            status = options.run(options)
            sys.stdout.flush()  # inside the try: a closed pipe is no error
            return status
    except KeyboardInterrupt:
        print("numbanet: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return reader_has_gone()
    except (ValueError, FileNotFoundError, RuntimeError, FloatingPointError, OSError, ImportError, MemoryError) as error:
        said = in_options(" ".join(str(error).split()), options.named) or type(error).__name__
        print(f"numbanet: error: {said}", file=sys.stderr)
        return 2


def reader_has_gone() -> int:
    """Discard further output, because the reader of stdout, such as `head`, has closed the pipe; return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="numbanet", description="Neural networks that train faster because work that dropout throws away is never done."
    )
    parser.add_argument("--version", action="version", version=f"numbanet {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    for of_command in commands.choices.values():
        of_command.set_defaults(named=of_command.named)
    *names, last = commands.choices
    missing = f"COMMAND is missing: {', '.join(names)} or {last} (--help has the rest)"
    parser.set_defaults(run=lambda options: parser.error(missing))
    return parser
