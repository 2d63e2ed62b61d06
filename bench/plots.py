"""Plots: ratios with their ceilings, and test accuracy by epoch and by seconds."""
from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


def _figure(width: float, height: float, panels: int = 1) -> tuple[Any, Any]:
    """A figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, panels)


def plot_ratios(rows: Sequence[Row], path: Path) -> None:
    """A bar for each ratio, its 10th and 90th percentile as a whisker, its ceiling as a mark."""
    rows = [row for row in rows if row.get("ratio") is not None]
    if not rows:
        raise ValueError("--plot: there are no ratios to draw; give a peer, --against torch")
    figure, axes = _figure(9, 1.5 + 0.28 * len(rows))
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


def plot_accuracy(runs: Sequence[Row], path: Path) -> None:
    """Test accuracy by epoch and by seconds of training: the mean over seeds, and the band between least and most.

    Runs that diverged are left out.
    """
    figure, panels = _figure(11, 4.5, 2)
    runs = [run for run in runs if len(run["epochs"]) == run["settings"]["epochs"]]
    for dropout, group in itertools.groupby(sorted(runs, key=lambda run: run["dropout"]), lambda run: run["dropout"]):
        curves = list(group)
        accuracy = np.array([[epoch["accuracy"] for epoch in run["epochs"]] for run in curves])
        seconds = np.mean([np.cumsum([epoch["seconds"] for epoch in run["epochs"]]) for run in curves], axis=0)
        for axes, x in zip(panels, (np.arange(1, accuracy.shape[1] + 1), seconds), strict=True):
            line, = axes.plot(x, accuracy.mean(axis=0), marker=".", label=dropout)
            axes.fill_between(x, accuracy.min(axis=0), accuracy.max(axis=0), color=line.get_color(), alpha=0.2)
    for axes, label in zip(panels, ("epoch", "seconds of training"), strict=True):
        axes.set_xlabel(label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel("test accuracy")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)
