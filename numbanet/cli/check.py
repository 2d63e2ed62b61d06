"""The command `numbanet check`."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

from .arguments import Parser
from .counting import add_listing, card_of, show

MOST = 20  # findings that are printed
SHOWN = warnings.showwarning  # as Python shows warnings, before `main` shows them in its own words
SECONDS = 10  # CPU seconds in which no thread leaves a loop: half of the number elsewhere; recorded suites run without this


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "check",
        help="run a Python file with numba.cuda kernels without a card, and look for races and wrong accesses",
        usage="%(prog)s [-h] [--counters] [--html FILE] [--card NAME] file ...",
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,  # the only form of which argparse of all Pythons leaves "--" to us
        metavar="file",
        help="a file that launches kernels when it is run, and its arguments; all that follow -- are its own",
    )
    _add_counting(parser)
    parser.set_defaults(run=run)


def _add_counting(parser: argparse.ArgumentParser) -> None:
    """Declare the options about counters, which may stand before or after the file."""
    parser.add_argument(
        "--counters",
        action="store_true",
        help="print what each kernel did by line: instructions, memory sectors, bank conflicts, divergent branches; its "
        "occupancy and roofline",
    )
    add_listing(parser)


def _own_options(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options with those about counters that stand after the file, the file, and its arguments without them."""
    program = options.program
    end = program.index("--") if "--" in program else len(program)
    parser = Parser(prog="numbanet check", add_help=False, allow_abbrev=False)
    _add_counting(parser)
    after, own = parser.parse_known_args(program[1:end])
    words = [*program[: min(end, 1)], *own, *program[end + 1 :]]
    if not words:
        parser.error("the following arguments are required: file")
    found = {name: value for name, value in vars(after).items() if value}
    return argparse.Namespace(**{**vars(options), **found, "file": Path(words[0]), "arguments": words[1:]})


def run(options: argparse.Namespace) -> int:
    """Run a file on the emulated card; return 0 if nothing is wrong, else 1."""
    from numbanet_kernels.card import asked

    from ..emulation import Emulated
    from ..emulation.remarks import counted

    options = _own_options(options)
    name, page = card_of(options), options.html and options.html.absolute()  # the file may change the folder
    if not options.file.is_file():
        raise FileNotFoundError(f"there is no file {options.file}")
    if options.file.suffix == ".ipynb":
        raise ValueError(
            f"{options.file} is a notebook, not a Python file: convert it by `jupyter nbconvert --to script {options.file}`, "
            "and check the file that this writes"
        )
    findings: dict[str, int] = {}
    leaks = 0

    def note(error: Exception) -> None:
        nonlocal leaks
        leaks += isinstance(error, ResourceWarning)
        findings[str(error)] = findings.get(str(error), 0) + 1
        if findings[str(error)] == 1 and len(findings) <= MOST:
            print(f"numbanet check: {error}", flush=True)

    if os.environ.get("NUMBANET_EMULATED") == "1":  # the outermost context decides, and this is not the outermost
        raise ValueError("NUMBANET_EMULATED=1 emulates a card without all the checks: unset it")
    counting = bool(options.counters or page or options.card)
    with _soon(), Emulated(uninitialised=True, report=note, counters=counting) as card:
        failed = _run(options.file, options.arguments)
        launches = asked()
    if not launches and not failed and not findings:
        raise ValueError(f"{options.file} launched no kernel, so nothing was checked: call the kernels where the file is run")
    if counting:
        show(card.counters.on(name), options.counters or page is None, page)
    wrong = sum(findings.values()) - leaks
    print(
        f"numbanet check: {options.file}: {counted(launches, 'launch', 'launches')}, "
        + (f"{wrong} with errors" if wrong else "no error found")
        + (f", memory of {counted(leaks, 'line')} never freed" if leaks else "")
        + (", and it ended with an exception" if failed else "")
    )
    return 1 if findings or failed else 0


def _soon() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which a loop that no thread leaves for `SECONDS` does not end, unless the user has set how many."""
    from numbanet_kernels.ptx import machine

    if "NUMBANET_EMULATED_SECONDS" in os.environ:
        return contextlib.nullcontext()
    return mock.patch.object(machine, "LIMIT", min(machine.LIMIT, SECONDS))


def _run(file: Path, arguments: list[str]) -> bool:
    """Run a file as Python does; print the traceback of an exception, and return True if there was one."""
    own = [str(file.resolve().parent), *sys.path]
    with (
        mock.patch.object(sys, "argv", [str(file), *arguments]),
        mock.patch.object(sys, "path", own),
        mock.patch.object(warnings, "showwarning", SHOWN),
    ):
        try:
            runpy.run_path(str(file.absolute()), run_name="__main__")  # as Python names a file that it runs
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            return end.code not in (None, 0)
        except Exception:
            traceback.print_exc()
            return True
    return False
