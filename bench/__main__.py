"""The command line: python -m bench SUITE… | list | report | gpu; without a checkout numbanet bench SUITE…"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import re
import sys
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path

from numbanet import cli

from . import kernels
from .machinery import gpu, report, suites, table
from .machinery.harness import Options, run_cases
from .machinery.machine import checkout, commit
from .machinery.results import Results

COMMANDS = ("list", "report", "gpu")


def _parser(prog: str) -> cli.Parser:
    parser = cli.Parser(
        prog=prog,
        description="Measure numbanet. `list` names the suites, `report` rewrites the "
        "tables of the README files from bench/results/, `gpu` runs all that needs a "
        "graphics card.",
        epilog=f"Suites: {', '.join(suites.suites())}.",
    )
    parser.add_argument("suites", nargs="+", metavar="SUITE", help="suites to run, or `list`, `report` or `gpu`")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda", "emulated"),
        default="cpu",
        help="emulated: of a family, what its kernels do, counted",
    )
    parser.add_argument("--shape", type=cli.shape, metavar="N,I,O", help="of a family's kernels: samples, inputs and outputs")
    parser.add_argument(
        "--against",
        choices=("torch",),
        help="the peer; without it times stand alone, and dropout is compared with numbanet's own dense training",
    )
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another checkout: the peers are what all was there")
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="of the suites' cases, or trainings, those alone in whose name this regular expression is found",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few turns: does it run, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, case by case")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the results to this PNG, PDF or SVG file")
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "bench") -> int:
    """Run one command; returns the exit status: 0 done, 1 a result was wrong, 2 bad input, 130 interrupted."""
    parser = _parser(prog)
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.suites if name not in (*suites.suites(), *COMMANDS)]
    if unknown:
        parser.error(f"there is no suite {unknown[0]!r}; choose from {', '.join(suites.suites())}")
    alone = [name for name in chosen.suites if name in COMMANDS or suites.stands_alone(name)]
    if len(chosen.suites) > 1 and alone:
        parser.error(f"{alone[0]} stands alone")
    if alone and alone[0] in ("report", "gpu") and not checkout():
        parser.error(f"{alone[0]} needs a checkout of numbanet, with its tests and results")
    emulated = chosen.device == "emulated"
    if emulated:
        _only_for(parser, "--device emulated", chosen.suites, suites.families())
    if chosen.shape:
        _only_for(parser, "--shape", chosen.suites, [name for name in suites.families() if kernels.shaped(name)])
    try:
        if chosen.suites == ["list"]:
            return _list()
        if chosen.suites == ["report"]:
            return _report()
        if chosen.suites == ["gpu"]:
            return gpu.run(_say)
        if emulated:
            given = {"--shape": chosen.shape and ",".join(map(str, chosen.shape)), "--plot": chosen.plot and str(chosen.plot)}
            return cli.main(["kernels", "--counters", *chosen.suites, *chain(*(pair for pair in given.items() if pair[1]))])
        return _measure(parser, chosen)
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return cli.reader_has_gone()
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"bench: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _only_for(parser: cli.Parser, option: str, suites: Sequence[str], allowed: Collection[str]) -> None:
    """Refuse suites that an option says nothing to."""
    for suite in suites:
        if suite not in allowed:
            parser.error(f"{option} says nothing to {suite}; it goes with {', '.join(allowed)}")


def _list() -> int:
    width = max(map(len, suites.suites()))
    for suite, about in suites.suites().items():
        print(f"{suite:{width}}  {about}")
    sys.stdout.flush()  # here, where a reader that has gone is no error
    return 0


def _report() -> int:
    changed = report.report()
    print("\n".join(f"rewrote {page.relative_to(report.ROOT)}" for page in changed) or "nothing to change")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measure(parser: cli.Parser, chosen: argparse.Namespace) -> int:
    """Run the suites in order; tables as they are done, the file and the plot of all."""
    try:
        re.compile(chosen.only)
    except re.error as error:
        parser.error(f"--only: {chosen.only!r} is not a regular expression: {error}")
    if chosen.against == "torch" and importlib.util.find_spec("torch") is None:
        parser.error("--against torch: PyTorch is not installed; pip install torch")
    if chosen.before and not checkout(chosen.before):
        parser.error(f"--before: {chosen.before} is no checkout of numbanet with a bench like this one")
    if chosen.before and any(map(suites.stands_alone, chosen.suites)):
        parser.error("--before goes with suites that time steps or kernels")
    if chosen.before and (chosen.against or __package__ != "bench"):
        parser.error("--before takes the place of --against, and compares checkouts: python -m bench in one of them")
    from numbanet.device import device

    device(chosen.device)  # RuntimeError with the reason where it is not available
    options = Options(
        chosen.device, chosen.against, chosen.quick, chosen.only, chosen.shape, chosen.before and str(chosen.before.resolve())
    )
    told = {"before": commit(chosen.before.resolve())} if chosen.before else {}
    results = Results(chosen.json, **{**dataclasses.asdict(options), **told})
    for suite in dict.fromkeys(chosen.suites):
        if suite in suites.families():
            rows = run_cases(suite, kernels.suite(suite, options), options, results, _say)
        elif suites.stands_alone(suite):
            rows = suites.files()[suite].run(options, results, _say)
        else:
            rows = run_cases(suite, suites.files()[suite].cases(options), options, results, _say)
        table.show(suite, rows)
    if chosen.plot:
        from .machinery import plots

        own = getattr(suites.files().get(chosen.suites[0]), "plot", None)
        if own:
            own(results, chosen.plot)
        else:
            plots.plot_ratios(results.rows, chosen.plot)
    problems = [row for row in results.rows if row.get("problem")]
    for row in problems:
        _say(f"bench: {row['suite']}: {row['case']}: {row['implementation']}: {row['problem']}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
