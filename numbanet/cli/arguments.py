"""Functions with which several commands declare their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message}\n")

    @property
    def named(self) -> dict[str, argparse.Action]:
        """The options, without positional arguments, by the names of their attributes."""
        return {action.dest: action for action in self._actions if action.option_strings}


def list_of(kind: type) -> Callable[[str], tuple]:
    """Return a function that parses comma-separated values of the type `kind`."""

    def parse(text: str):
        return tuple(kind(part) for part in text.split(","))

    parse.__name__ = f"comma-separated {kind.__name__}"
    return parse


def widths(text: str) -> tuple[int, ...]:
    """Parse the widths of hidden layers."""
    found = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if not min(found):
        raise argparse.ArgumentTypeError(f"must be widths such as 256,256, not {text}")
    return found


def seed(text: str) -> int:
    """Parse the seed of random numbers."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to {2**32 - 1}, not {text}")
    return int(text)


def interval(text: str) -> int | str:
    """Parse the interval between checkpoints: a number of steps, or anything else as it is."""
    return int(text) if text.isdecimal() else text


def shape(text: str) -> tuple[int, int, int]:
    """Parse N,I,O of --shape."""
    sizes = list_of(int)(text)
    if len(sizes) != 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"must be N,I,O, three positive integers, not {text}")
    return sizes


def add_device(parser: argparse.ArgumentParser, default: str = "auto") -> None:
    """Declare --device."""
    parser.add_argument("--device", default=default, help="auto, cpu, cuda or emulated")
