"""Tables of results, for the terminal and in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def _number(key: str, form: str = ".3g") -> Callable[[Row], str]:
    return lambda row: "" if row.get(key) is None else format(row[key], form)


def _text(key: str) -> Callable[[Row], str]:
    return lambda row: row.get(key) or ""


def _span(key: str, low: str, high: str, form: str) -> Callable[[Row], str]:
    return lambda row: "" if row.get(key) is None else f"{row[key]:{form}} ({row[low]:{form}} – {row[high]:{form}})"


def _speed(row: Row) -> str:
    """GFLOP/s, or GB/s if the operation has no FLOPs."""
    if not row.get("median_ms"):
        return ""
    if row.get("flops"):
        return f"{row['flops'] / row['median_ms'] / 1e6:.1f} GFLOP/s"
    return f"{row['bytes'] / row['median_ms'] / 1e6:.1f} GB/s" if row.get("bytes") else ""


def _error(row: Row) -> str:
    return row["problem"] if row.get("problem") else _number("error", ".1e")(row)


def _measured(key: str, form: str) -> Callable[[Row], str]:
    """The mean over seeds of a measure after training, or the number of runs that diverged."""

    def cell(row: Row) -> str:
        if row.get("diverged"):
            return f"{row['diverged']} of {row['seeds']} diverged"
        return _span(key, f"{key}_min", f"{key}_max", form)(row)

    return cell


def _times(row: Row) -> str:
    """For each target: seconds (speed-up). If a seed did not reach it or no run was timed: n seeds that reached it."""

    def one(target: float, reached: int, seconds: float | None, shorter: float | None) -> str:
        if seconds is None:
            return f"{target:g}: {reached} of {row['seeds']}"
        return f"{target:g}: {seconds:.1f}" + ("" if shorter is None else f" ({shorter:.2f})")

    return ", ".join(one(**to) for to in row.get("times", ()))


def _reached(row: Row) -> str:
    """Relative time to the target. If the median run does not reach it: n timed runs that do."""
    if row.get("reached") is None:
        return ""
    return f"{row['reached']} of {row['timed']}" if row["to_target"] is None else f"{row['to_target']:.2f}"


TIMES = {
    "case": _text("case"),
    "implementation": _text("implementation"),
    "ms (p10 – p90)": _span("median_ms", "p10", "p90", ".3g"),
    "GPU ms": _number("device_ms"),
    "speed": _speed,
    "peer": _text("peer"),
    "ratio (p10 – p90)": _span("ratio", "ratio_p10", "ratio_p90", ".2f"),
    "ceiling": _number("ceiling", ".2f"),
    "error": _error,
}


def _runs(row: Row) -> dict[str, Callable[[Row], str]]:
    """Columns for training runs, which are compared with those of the row's baseline."""
    if "perplexity" in row:
        to, ended = (
            "perplexity",
            {
                "validation perplexity (min – max)": _measured("perplexity", ".1f"),
                "against": _text("baseline"),
                "ratio": _number("of_baseline", ".3f"),
                "in equal time": _number("of_baseline_in_time", ".3f"),
            },
        )
    else:
        to, ended = (
            "accuracy",
            {
                "test accuracy (min – max)": _measured("accuracy", ".4f"),
                f"points against {row.get('baseline', 'bernoulli').split(' ')[0].rstrip(',')}": _number("points", "+.2f"),
            },
        )
        if "stopped" in row:
            ended |= {
                "in equal time": _number("points_in_time", "+.2f"),
                "stopped early (min – max)": _span("stopped", "stopped_min", "stopped_max", ".4f"),
                "after s": _number("stopped_seconds", ".1f"),
            }
    return {
        "case": _text("case"),
        "dropout": _text("implementation"),
        "seeds": _number("seeds", "d"),
        **ended,
        "s per epoch, median": _number("seconds_per_epoch", ".2f"),
        "FLOPs done": _number("flops_share", ".0%"),
        "peer": _text("peer"),
        f"s to {'an' if to == 'accuracy' else 'a'} {to} (speed-up over the peer)": _times,
    }


SPARSE = {
    "case": _text("case"),
    "sparsity": _text("implementation"),
    "seeds": _number("seeds", "d"),
    "test accuracy (min – max)": _measured("accuracy", ".4f"),
    "points against none": _number("points", "+.2f"),
    "weights kept": _number("weights_kept", ".1%"),
    "s of training": _number("training_seconds", ".1f"),
    "speed-up of training": _number("training_shorter", ".2f"),
    "ms of prediction": _number("prediction_ms", ".1f"),
    "speed-up of prediction": _number("prediction_shorter", ".2f"),
    "divided by pruning's": _number("gain_of_pruning", ".2f"),
    "s to an accuracy (speed-up over none)": _times,
}


def _over_seconds(row: Row) -> dict[str, Callable[[Row], str]]:
    """Columns for training runs that are compared with `none` by seconds."""
    if "perplexity" in row:
        what, form = "perplexity", ".1f"
        ended = {
            "validation perplexity, median (min – max)": _measured(what, form),
            "divided by none's": _number("of_baseline", ".3f"),
        }
    else:
        what, form = "accuracy", ".4f"
        ended = {"test accuracy, median (min – max)": _measured(what, form), "points against none": _number("points", "+.2f")}
    return {
        "case": _text("case"),
        "dropout": _text("implementation"),
        "seeds": _number("seeds", "d"),
        "learning rate": _number("learning_rate", "g"),
        **ended,
        "target": _number("target", form),
        "s to the target / none's s": _reached,
        f"{what} after none's s": _number("in_time", form),
        "s per epoch, median": _number("seconds_per_epoch", ".2f"),
        "FLOPs done": _number("flops_share", ".0%"),
    }


FITS = {
    "case": _text("case"),
    "implementation": _text("implementation"),
    "fixed ms": _number("fixed_ms", ".2f"),
    "slope": _number("slope", ".2f"),
    "largest error of the line": _number("worst", ".0%"),
}
MEMORY = {
    "case": _text("case"),
    "implementation": _text("implementation"),
    "peak MiB": _number("peak_mib", ".0f"),
    "counted MiB": _number("counted_mib", ".0f"),
    "peer": _text("peer"),
    "share of the peer's": _number("share", ".2f"),
    "problem": _text("problem"),
}

QUALITY = {
    "case": _text("case"),
    "implementation": _text("implementation"),
    "epsilon": _number("epsilon", ".1f"),
    "projected to": _number("projected", "d"),
    "largest outputs selected": _number("found", ".1%"),
    "at random": _number("chance", ".1%"),
    "estimates within epsilon": _number("within", ".4%"),
    "bound": _number("bound", ".4%"),
}


SCORES = {
    "case": _text("case"),
    "implementation": _text("implementation"),
    "score": _number("score", ".4f"),
    "the better peer": _text("peer"),
    "above it": _number("above", "+.4f"),
    "standard error": _number("standard_error", ".4f"),
}


ENDS = {
    "case": _text("case"),
    "learning rate": _text("implementation"),
    "seeds": _number("seeds", "d"),
    "perplexity after one epoch (min – max)": _measured("first", ".1f"),
    "after the last (min – max)": _measured("last", ".1f"),
}


PLACED = {
    "case": _text("case"),
    "device": _text("implementation"),
    "ms": _number("layer_ms"),
    "predicted ms": _number("predicted_ms"),
    "in the race": _number("raced_ms"),
    "error": _number("off", ".0%"),
    "over the best": _number("over_best", ".3f"),
    "over the best device alone": _number("over_single", ".3f"),
    "measured again": _number("noise", ".0%"),
    "GFLOP/s": _number("gflops"),
    "MB moved": _number("megabytes"),
    "W": _number("watts"),
    "J": _number("joules"),
    "GFLOP/s/W": _number("gflops_per_watt"),
    "GFLOP/s/mm²": _number("gflops_per_mm2"),
}


def _points(row: Row) -> dict[str, Callable[[Row], str]]:
    """Columns for percentage points against bernoulli, one for each kind of pattern and rate."""

    def one(name: str) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            points = row["points_of"][name]
            return format(points, "+.2f") if isinstance(points, float) else points or ""

        return cell

    return {"case": _text("case"), "seeds": _number("seeds", "d"), **{name: one(name) for name in row.get("points_of", ())}}


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """Heading and lines of the rows of one suite, without empty columns."""
    first = rows[0] if rows else {}
    kinds = {
        "weights_kept": SPARSE,
        "to_target": _over_seconds(first),
        **dict.fromkeys(("accuracy", "perplexity"), _runs(first)),
        "slope": FITS,
        "peak_mib": MEMORY,
        "found": QUALITY,
        "last": ENDS,
        "score": SCORES,
        "layer_ms": PLACED,
        "points_of": _points(first),
    }
    columns = next((kind for key, kind in kinds.items() if rows and key in rows[0]), TIMES)
    lines = [[cell(row) for cell in columns.values()] for row in rows]
    filled = [number for number in range(len(columns)) if not lines or any(line[number] for line in lines)]
    return [[line[number] for number in filled] for line in (list(columns), *lines)]


def markdown(rows: Sequence[Row]) -> str:
    """The rows of one suite as a Markdown table."""
    return markdown_of(cells(rows))


def markdown_of(lines: Sequence[Sequence[str]]) -> str:
    """Format a heading and lines of cells as a Markdown table."""
    head, *lines = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def show(suite: str, rows: Sequence[Row]) -> None:
    """Print the rows of one suite."""
    from rich.console import Console
    from rich.table import Table

    head, *lines = cells(rows)
    shown = None
    for line in lines:  # show the name of a case in its first line only
        shown, line[0] = line[0], "" if line[0] == shown else line[0]
    table = Table(title=suite, title_justify="left")
    for name in head:
        table.add_column(name, overflow="fold")
    for line in lines:
        table.add_row(*line)
    # a file or a pipe has no width: allow long lines
    Console(width=None if sys.stdout.isatty() else 200).print(table)
