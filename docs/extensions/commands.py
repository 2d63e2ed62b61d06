"""The page of the command line: the help of each command."""

import argparse

from numbanet import cli

from . import put


def write(folder):
    """Write the page, from the parsers."""
    parser = cli._parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    lines = ["Commands", "========", "", "What ``numbanet`` does in a shell; ``python -m numbanet`` is the same.", ""]
    lines += literal(parser)
    for name, command in commands.choices.items():
        title = f"numbanet {name}"
        lines += ["", title, "-" * len(title), "", *literal(command)]
    put(folder / "commands.rst", "\n".join(lines) + "\n")


def literal(parser):
    """The help of a parser as a block of text."""
    return [".. code-block:: text", "", *(f"   {line}".rstrip() for line in parser.format_help().splitlines())]
