"""The command line: python -m bench SUITE… | list | report | gpu; without a checkout numbanet bench SUITE…"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import re
import sys
from collections.abc import Collection, Sequence
from itertools import chain, groupby
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
        description="Measure numbanet. `list` prints the suites, `report` rewrites the "
        "tables of the README files from bench/results/, `gpu` runs all tests and suites "
        "that need a GPU.",
        epilog=f"Suites: {', '.join(suites.suites())}.",
    )
    parser.add_argument("suites", nargs="+", metavar="SUITE", help="suites to run, or `list`, `report` or `gpu`")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda", "emulated"),
        default="cpu",
        help="where to run; emulated counts the instructions and memory accesses of a family's kernels",
    )
    parser.add_argument("--shape", type=cli.shape, metavar="N,I,O", help="for a family of kernels: samples, inputs and outputs")
    parser.add_argument(
        "--against",
        choices=("torch",),
        help="the library to compare with; by default kernels are timed alone, and dropout is compared with numbanet's "
        "dense training",
    )
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="compare with the numbanet of another checkout")
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="run only the cases, training runs or, of `gpu`, steps whose name matches this regular expression",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few repetitions: checks that a suite runs; the times mean nothing"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file after each case or run")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the results to this PNG, PDF or SVG file")
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "bench") -> int:
    """Run one command; return the exit status: 0 success, 1 a wrong result, 2 bad input, 130 interrupted."""
    parser = _parser(prog)
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.suites if name not in (*suites.suites(), *COMMANDS)]
    if unknown:
        parser.error(f"there is no suite {unknown[0]!r}; choose from {', '.join(suites.suites())}")
    alone = [name for name in chosen.suites if name in COMMANDS or suites.stands_alone(name)]
    if len(chosen.suites) > 1 and alone:
        parser.error(f"{alone[0]} cannot be combined with other suites; run it in a command of its own")
    if alone and alone[0] in ("report", "gpu") and not checkout():
        parser.error(f"{alone[0]} needs a checkout of numbanet, with its tests and results")
    try:
        re.compile(chosen.only)
    except re.error as error:
        parser.error(f"--only: {chosen.only!r} is not a regular expression: {error}")
    emulated = chosen.device == "emulated"
    if emulated:
        _only_for(parser, "--device emulated", chosen.suites, suites.families())
    taken = ("shape", "plot", "device") if emulated else ("only", "device") if chosen.suites == ["gpu"] else ()
    if emulated or (alone and alone[0] in COMMANDS):
        _refuse_others(parser, chosen, " ".join(["--device emulated"] if emulated else alone), taken)
    if chosen.shape:
        _only_for(parser, "--shape", chosen.suites, [name for name in suites.families() if kernels.shaped(name)])
    try:
        if chosen.suites == ["list"]:
            return _list()
        if chosen.suites == ["report"]:
            return _report()
        if chosen.suites == ["gpu"]:
            return gpu.run(_say, only=chosen.only)
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
    """Exit with an error if a suite does not support an option."""
    for suite in suites:
        if suite not in allowed:
            parser.error(f"{option} does not apply to {suite}; it applies to {', '.join(allowed)}")


def _refuse_others(parser: cli.Parser, chosen: argparse.Namespace, what: str, taken: Collection[str]) -> None:
    """Exit with an error if an option is given that `what` would ignore."""
    for name, value in vars(chosen).items():
        if name != "suites" and name not in taken and value != parser.get_default(name):
            parser.error(f"--{name} does not apply to {what}")


def _list() -> int:
    width = max(map(len, suites.suites()))
    for suite, about in suites.suites().items():
        print(f"{suite:{width}}  {about}")
    sys.stdout.flush()  # main handles a closed pipe here; at exit Python would report an error
    return 0


def _report() -> int:
    changed = report.report()
    print("\n".join(f"rewrote {page.relative_to(report.ROOT)}" for page in changed) or "nothing to change")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measure(parser: cli.Parser, chosen: argparse.Namespace) -> int:
    """Run the suites in order and print a table after each; write the results file and the plot for all of them."""
    if chosen.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot: matplotlib is not installed; pip install matplotlib")
    if chosen.plot and not chosen.plot.resolve().parent.is_dir():
        parser.error(f"--plot: there is no folder {chosen.plot.parent}")
    if chosen.against == "torch" and importlib.util.find_spec("torch") is None:
        parser.error("--against torch: PyTorch is not installed; pip install torch")
    if chosen.before and not checkout(chosen.before):
        parser.error(f"--before: {chosen.before} is not a checkout of numbanet with bench/machinery")
    if chosen.before and any(map(suites.stands_alone, chosen.suites)):
        parser.error("--before applies only to suites that time steps or kernels")
    if chosen.before and (chosen.against or __package__ != "bench"):
        parser.error("--before replaces --against and compares two checkouts: run python -m bench in one of them")
    from numbanet.device import device

    device(chosen.device)  # RuntimeError with the reason if it is not available
    options = Options(
        chosen.device, chosen.against, chosen.quick, chosen.only, chosen.shape, chosen.before and str(chosen.before.resolve())
    )
    compared = {"before": commit(chosen.before.resolve())} if chosen.before else {}
    results = Results(chosen.json, **{**dataclasses.asdict(options), **compared})
    found = 0
    for suite in dict.fromkeys(chosen.suites):
        if suite in suites.families():
            rows = run_cases(suite, kernels.suite(suite, options), options, results, _say)
        elif suites.stands_alone(suite):
            rows = suites.files()[suite].run(options, results, _say)
        else:
            rows = run_cases(suite, suites.files()[suite].cases(options), options, results, _say)
        found += len(rows)
        for name, shown in groupby(rows, key=lambda row: row["suite"]):
            table.show(name, list(shown))
    if chosen.only and not found:
        raise ValueError(f"--only: {chosen.only!r} matches no case of {', '.join(chosen.suites)}")
    if chosen.plot:
        from .machinery import plots

        suite_plot = getattr(suites.files().get(chosen.suites[0]), "plot", None)
        if suite_plot:
            suite_plot(results, chosen.plot)
        else:
            plots.plot_ratios(results.rows, chosen.plot)
    problems = [row for row in results.rows if row.get("problem")]
    for row in problems:
        _say(f"bench: {row['suite']}: {row['case']}: {row['implementation']}: {row['problem']}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
