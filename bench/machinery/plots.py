"""Plots of results: ratios with their ceilings, times by FLOPs, memory, accuracy and perplexity by epoch and by seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numbanet.dropout import POLICIES

from .runs import TORCH, case_of, clocked, measure, whole

COLOURS = {
    **{name: policy.style.colour for name, policy in POLICIES.items()},
    TORCH: "C3",
    "rdp + recurrent rdp": "C5",
    "gate columns 50%": "C6",
    "gate threshold 50%": "C7",
}

MARKS = "os^vDP*X<>dph"  # markers, so that kinds of dropout differ in grey as well
Row = dict[str, Any]


def figure_of(width: float, height: float) -> Any:
    """A figure that can be saved without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot_ratios(rows: Sequence[Row], path: Path) -> None:
    """Plot a bar for each ratio, with its 10th and 90th percentile as a whisker and its ceiling as a mark."""
    rows = [row for row in rows if row.get("ratio") is not None]
    if not rows:
        raise ValueError("--plot: there are no ratios to draw; give a peer, --against torch")
    figure = figure_of(9, 1.5 + 0.28 * len(rows))
    axes = figure.subplots()
    y = np.arange(len(rows))
    ratio = np.array([row["ratio"] for row in rows])
    whiskers = [ratio - [row["ratio_p10"] for row in rows], [row["ratio_p90"] for row in rows] - ratio]
    axes.barh(y, ratio, xerr=np.maximum(whiskers, 0), color="tab:blue", alpha=0.8, label="ratio, p10 to p90")
    marked = [i for i, row in enumerate(rows) if row.get("ceiling")]
    axes.plot([rows[i]["ceiling"] for i in marked], marked, "|", color="black", markersize=10, label="ceiling")
    axes.axvline(1, color="gray", linewidth=0.8)
    axes.set_yticks(y, [f"{row['case']}: {row['implementation']} / {row['peer']}" for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("time of the peer / time of this (more is faster)")
    axes.legend()
    figure.savefig(path, dpi=150)


def plot_scaling(rows: Sequence[Row], path: Path) -> None:
    """Plot time minus the fixed time against FLOPs, with the lines that `mlp_scaling.fits` fitted."""
    figure = figure_of(7, 5)
    axes = figure.subplots()
    for fit in (row for row in rows if "slope" in row):
        timed = [
            (row["flops"], row["median_ms"] - fit["fixed_ms"])
            for row in rows
            if row["implementation"] == fit["implementation"] and (row.get("median_ms") or 0) > fit["fixed_ms"]
        ]
        flops, ms = np.array(sorted(timed)).reshape(-1, 2).T  # empty if no width takes longer than the narrowest
        (mark,) = axes.loglog(flops, ms, "o")
        axes.loglog(
            flops,
            np.exp(fit["start"]) * flops ** fit["slope"],
            color=mark.get_color(),
            label=f"{fit['implementation']}: {fit['fixed_ms']:.2f} ms + a line of slope {fit['slope']:.2f}",
        )
    axes.set_xlabel("FLOPs of a step, without those that the plan skips")
    axes.set_ylabel("ms of a step, minus the fixed time")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=150)


def plot_memory(rows: Sequence[Row], path: Path) -> None:
    """Plot a bar for the memory peak of each implementation, and a mark for the bytes counted from the arrays' sizes."""
    figure = figure_of(9, 1.5 + 0.28 * len(rows))
    axes = figure.subplots()
    y = np.arange(len(rows))
    axes.barh(y, [row["peak_mib"] or 0 for row in rows], color="tab:blue", alpha=0.8, label="measured peak")
    axes.plot(
        [row["counted_mib"] for row in rows],
        y,
        "|",
        color="black",
        markersize=10,
        label="batch, activations and gradients, counted",
    )
    axes.set_yticks(y, [f"{row['case']}: {row['implementation']}" for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("MiB above data, weights and momentum")
    axes.legend()
    figure.savefig(path, dpi=150)


def plot_layers(rows: Sequence[Row], path: Path) -> None:
    """Plot the share of images that are not all 0 before each layer, and the time of each layer by implementation."""
    figure = figure_of(11, 4)
    left, right = figure.subplots(1, 2)
    layers = np.arange(1, len(rows[0]["live"]) + 1)
    left.step(layers, np.array(rows[0]["live"]) / rows[0]["inputs"], where="mid", color="black")
    left.set(xlabel="layer", ylabel="share of the inputs that is not 0 yet", yscale="log", xscale="log")
    for row in rows:
        ms = 1e3 * np.array(row["seconds"])
        right.plot(layers, np.where(ms > 0, ms, np.nan), label=row["implementation"])
    right.set(xlabel="layer", ylabel="ms of the layer", yscale="log", xscale="log")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
        axes.xaxis.set_major_formatter("{x:.0f}")
    left.set_title(rows[0]["case"], fontsize=9)
    figure.savefig(path, dpi=150)


def plot_runs(runs: Sequence[Row], path: Path) -> None:
    """Plot accuracy or perplexity by epoch (left) and by seconds of training (right), a row of panels for each case: the mean
    over seeds, and the band between minimum and maximum.

    Runs that diverged are left out. The right panel shows only kinds of dropout whose seconds can be compared (`clocked`); if
    no case has any, the right panels are left out.
    """
    cases: dict[str, list[Row]] = {}
    for run in runs:
        cases.setdefault(case_of(run["settings"]), []).append(run)
    if not cases:
        raise ValueError("--plot: there are no training runs to draw")
    labels = ("epoch", "seconds of training")[: 2 if any(map(clocked, cases.values())) else 1]
    figure = figure_of(5.5 * len(labels), 4.5 * len(cases))
    for panels, (case, of_case) in zip(figure.subplots(len(cases), len(labels), squeeze=False), cases.items(), strict=True):
        what = measure(of_case[0]["settings"])
        for axes, label in zip(panels, labels, strict=True):
            shown = of_case if label == "epoch" else clocked(of_case)
            for dropout in dict.fromkeys(run["dropout"] for run in of_case):
                _draw_curve(axes, [run for run in shown if run["dropout"] == dropout], dropout, label != "epoch")
            axes.set_title(case, fontsize=9)
            axes.set_xlabel(label)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_ylabel(f"{'test' if what == 'accuracy' else 'validation'} {what}")
            if what == "perplexity":
                axes.set_yscale("log")
                for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                    which("{x:.0f}")
            axes.grid(alpha=0.3, which="both")
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _draw_curve(axes: Any, runs: Sequence[Row], label: str, by_seconds: bool) -> None:
    """Draw the mean of accuracy or perplexity over runs, and the band between minimum and maximum, without runs that
    diverged."""
    runs = list(filter(whole, runs))
    if not runs:
        return
    values = np.array([[epoch[measure(run["settings"])] for epoch in run["epochs"]] for run in runs])
    seconds = np.mean([np.cumsum([epoch["seconds"] for epoch in run["epochs"]]) for run in runs], axis=0)
    x = seconds if by_seconds else np.arange(1, values.shape[1] + 1)
    kind, early, _ = label.partition(" early")
    style = "--" if early else "-"
    (line,) = axes.plot(x, values.mean(axis=0), style, marker=".", label=label, color=COLOURS.get(kind))
    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.2)


def plot_papers(rows: Sequence[Row], runs: Sequence[Row], path: Path) -> None:
    """Plot, above, the speed-up of an epoch over one with bernoulli, by case, with the ceiling by FLOPs; below, the test
    accuracy of each case by seconds of training, the mean over seeds and the band between minimum and maximum. If not all
    seconds of a case can be compared (`clocked`), its accuracy is drawn by epoch and it has no bar above."""
    by_case: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["accuracy"] is not None:
            by_case.setdefault(row["case"], {})[row["implementation"]] = row
    if not by_case:
        raise ValueError("--plot: there are no training runs to draw")
    across = min(4, len(by_case))
    down = -(-len(by_case) // across)
    figure = figure_of(4 * across, 4 + 3 * down)
    above, below = figure.subfigures(2, 1, height_ratios=(4, 3 * down))
    _draw_speedups(
        above.subplots(),
        {case: named for case, named in by_case.items() if all(row["seconds_per_epoch"] for row in named.values())},
    )
    panels = below.subplots(down, across, squeeze=False).ravel()
    for axes, (case, named) in zip(panels, by_case.items(), strict=False):
        of_case = [run for run in runs if case_of(run["settings"]) == case]
        with_seconds = clocked(of_case)
        by_seconds = {run["dropout"] for run in with_seconds} >= set(named)
        shown = with_seconds if by_seconds else of_case
        for name in named:
            _draw_curve(axes, [run for run in shown if run["dropout"] == name], name, by_seconds)
        axes.set_title(case.rsplit(",", 1)[0], fontsize=9)
        axes.set_ylim(0.93, 0.99)
        axes.set_xlabel("seconds of training" if by_seconds else "epoch")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    for axes in panels[len(by_case) :]:
        axes.set_axis_off()
    panels[0].set_ylabel("test accuracy")
    figure.savefig(path, dpi=110)


def plot_seconds(rows: Sequence[Row], runs: Sequence[Row], path: Path) -> None:
    """Plot test accuracy or validation perplexity by seconds of training, a panel for each case: the mean over seeds, and the
    band between minimum and maximum; dashed, `early` dropout; dotted, the target. The first epochs, in which all kinds learn
    fast, are cut off."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    if not cases:
        raise ValueError("--plot: there are no training runs to draw")
    across = min(4, len(cases))
    down = -(-len(cases) // across)
    figure = figure_of(4.2 * across + 2, 3.4 * down)
    panels = figure.subplots(down, across, squeeze=False)
    handles: dict[str, Any] = {}
    for axes in panels.ravel()[len(cases) :]:
        axes.set_axis_off()
    for axes, case in zip(panels.ravel(), cases, strict=False):
        named = [row for row in rows if row["case"] == case]
        shown = clocked(run for run in runs if case_of(run["settings"]) == case)
        for row in named:
            _draw_curve(axes, [run for run in shown if run["dropout"] == row["implementation"]], row["implementation"], True)
        handles |= {line.get_label(): line for line in axes.lines}
        reached = [epoch[measure(run["settings"])] for run in shown for epoch in run["epochs"]]
        if reached and min(reached) < max(reached):
            worse = "perplexity" in named[0]
            low, high = (min(reached), np.quantile(reached, 0.8)) if worse else (np.quantile(reached, 0.2), max(reached))
            axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
        for target in {row["target"] for row in named} - {None}:
            handles["target"] = axes.axhline(target, color="black", linestyle=":", linewidth=0.8)
        axes.set_title(case, fontsize=9)
        axes.set_xlabel("seconds of training")
        axes.grid(alpha=0.3)
    for axes in panels[:, 0]:
        axes.set_ylabel("validation perplexity" if "perplexity" in rows[0] else "test accuracy")
    figure.legend(handles.values(), handles, loc="outside right upper", fontsize=9)
    figure.savefig(path, dpi=110)


def _draw_speedups(axes: Any, by_case: dict[str, dict[str, Row]]) -> None:
    patterns = [name for name in dict.fromkeys(name for named in by_case.values() for name in named) if name in ("rdp", "tdp")]
    for i, name in enumerate(patterns):
        bars = [
            (x, named["bernoulli"]["seconds_per_epoch"] / named[name]["seconds_per_epoch"], 1 / named[name]["flops_share"])
            for x, named in enumerate(by_case.values())
            if name in named and "bernoulli" in named
        ]
        x, speedup, ceiling = np.array(bars).reshape(-1, 3).T
        x = x + (i - (len(patterns) - 1) / 2) * 0.35
        axes.bar(x, speedup, 0.33, label=name, color=COLOURS[name])
        axes.plot(x, ceiling, "_", color="black", markersize=18, label="ceiling by FLOPs" if i == 0 else None)
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.set_xticks(range(len(by_case)), [case.rsplit(",", 1)[0].replace(" p=", "\np=") for case in by_case], fontsize=8)
    axes.set_ylabel("epoch of bernoulli / epoch of this")
    axes.legend()


def plot_rates(rows: Sequence[Row], path: Path) -> None:
    """Plot the test error by dropout rate on a logarithmic axis: a panel for each case, a line for each kind of dropout, with
    the mean over seeds and whiskers from minimum to maximum. Training without dropout is a horizontal band."""
    from matplotlib.ticker import LogLocator

    by_case: dict[str, dict[str, list[tuple]]] = {}
    for row in rows:
        if row["accuracy"] is not None:
            name, _, rate = row["implementation"].partition(" p=")
            points = tuple(100 - 100 * row[key] for key in ("accuracy", "accuracy_max", "accuracy_min"))
            by_case.setdefault(row["case"], {}).setdefault(name, []).append((float(rate or 0), *points))
    if not by_case:
        raise ValueError("--plot: there are no training runs to draw")
    names = list(dict.fromkeys(name for named in by_case.values() for name in named))
    across = min(3, len(by_case))
    down = -(-len(by_case) // across)
    figure = figure_of(5 * across + 2, 4.5 * down)
    panels = figure.subplots(down, across, squeeze=False)
    lines: dict[str, Any] = {}
    for axes in panels.ravel()[len(by_case) :]:
        axes.set_axis_off()
    for axes, (case, named) in zip(panels.ravel(), by_case.items(), strict=False):
        for name, points in named.items():
            rate, mean, low, high = np.array(sorted(points)).T
            if name.startswith("none") or name.endswith(" none"):
                lines[name] = axes.axhline(mean[0], color="black", linestyle="-" if name == "none" else ":")
                axes.axhspan(low[0], high[0], color="gray", alpha=0.2)
                continue
            shift = 0.003 * (names.index(name) - len(names) / 2)  # so that spans do not hide each other
            number = names.index(name)
            lines[name] = axes.errorbar(
                rate + shift,
                mean,
                [mean - low, high - mean],
                marker=MARKS[number % len(MARKS)],
                markersize=5,
                capsize=2,
                color=f"C{number % 10}",
            )
        rates = sorted({rate for points in named.values() for rate, *_ in points if rate}) or [0.0]
        axes.set_xticks(rates)
        axes.set_xlim(rates[0] - 0.05, rates[-1] + 0.05)
        axes.set_title(case, fontsize=10)
        axes.set_xlabel("dropout rate")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3, which="both")
    for first in panels[:, 0]:
        first.set_ylabel("test error, %")
    figure.legend([lines[name] for name in names], names, loc="outside right upper", fontsize=10)
    figure.savefig(path, dpi=110)


def plot_quality(rows: Sequence[Row], path: Path) -> None:
    """Plot, by epsilon, the share of the largest outputs that the projection selects: a panel for each layer, a colour for each
    rate, dotted for random selection. The last panel has the share of estimates whose error is at most epsilon |x| |w|, with
    its lower bound."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    if not cases:
        raise ValueError("--plot: there are no rows to draw")
    marks = dict(zip(dict.fromkeys(row["share"] for row in rows), "os^"))
    colours = {rate: f"C{i}" for i, rate in enumerate(sorted({row["rate"] for row in rows}))}
    figure = figure_of(4 * len(cases) + 4, 4)
    *panels, last = figure.subplots(1, len(cases) + 1)
    for axes, case in zip(panels, cases, strict=True):
        mine = [row for row in rows if row["case"] == case]
        for name in dict.fromkeys(row["implementation"] for row in mine):
            line_rows = [row for row in mine if row["implementation"] == name]
            colour = colours[line_rows[0]["rate"]]
            axes.plot(
                [row["epsilon"] for row in line_rows],
                [100 * row["found"] for row in line_rows],
                color=colour,
                marker=marks[line_rows[0]["share"]],
                label=name,
            )
            axes.axhline(100 * line_rows[0]["chance"], color=colour, linestyle=":", linewidth=0.8)
        axes.set(title=case, ylim=(0, 100))
        (line,) = last.plot(*zip(*sorted({(row["epsilon"], 100 * row["within"]) for row in mine})), marker="o", label=case)
        last.plot(*zip(*sorted({(row["epsilon"], 100 * row["bound"]) for row in mine})), color=line.get_color(), linestyle="--")
    panels[0].set_ylabel("largest outputs selected, % (dotted: at random)")
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    last.set_title("estimates within epsilon |x| |w|, % (dashed: bound)", fontsize=9)
    last.legend(fontsize=7)
    last.set_ylim(0, 102)
    for axes in (*panels, last):
        axes.set_xlabel("epsilon")
        axes.title.set_fontsize(9)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def plot_fssl(rows: Sequence[Row], runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot the test accuracy by seconds of training (first seed of each kind), and by the speed-up of prediction."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    if not cases:
        raise ValueError("--plot: there are no training runs to draw")
    figure = figure_of(11, 4 * len(cases))
    for (left, right), case in zip(figure.subplots(len(cases), 2, squeeze=False), cases, strict=True):
        for number, row in enumerate(row for row in rows if row["case"] == case):
            name, colour = row["implementation"], f"C{number}"
            run = next(run for run in runs if case_of(run["settings"]) == case and run["dropout"] == name)
            seconds, accuracy = np.array([(epoch["seconds"], epoch["accuracy"]) for epoch in run["epochs"]]).T
            left.plot(np.cumsum(seconds), 100 * accuracy, color=colour, label=name)
            if row["accuracy"] is not None and row["prediction_shorter"]:
                right.plot(row["prediction_shorter"], 100 * row["accuracy"], MARKS[number], color=colour, label=name)
        left.set(title=case, xlabel="seconds of training", ylabel="test accuracy, %")
        right.set(xlabel="prediction, times shorter than dense")
        left.grid(alpha=0.3)
        right.grid(alpha=0.3)
        right.legend(fontsize=8)
    figure.savefig(path)
