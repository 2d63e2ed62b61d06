"""Drawings of a report as inline SVG, by matplotlib. Text and axes have the colour of the page's text."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

TRAINING, VALIDATION = "#3b82c4", "#d97706"  # visible on white and on black
INK = "#010203"  # replaced by the colour of the page's text
MOST_POINTS = 2000  # points of a scatter plot

Draw = Callable[[Any], None]


def drawn(name: str, draw: Draw, size: tuple[float, float] = (4.6, 3.2)) -> str:
    """Return the drawing that draw(axes) makes as an SVG element; `name` describes it, for those who do not see it."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9, "font.family": "sans-serif"}
    style |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with mpl.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2, color=INK)
        draw(axes)
        target = io.StringIO()
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    return _inline(target.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """Return an SVG file as an element of an HTML page: without a prolog and links, with identifiers that no other has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = svg.replace(INK, "currentColor")
    prefix = re.sub(r"\W+", "-", name.lower())
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", svg)
    return re.sub(
        r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{name}">', svg, count=1
    ).strip()


# --- curves -----------------------------------------------------------------------------------------------------------
def curves(history: Sequence[Mapping[str, Any]], key: str, score: str, training: str) -> list[str]:
    """Return drawings of the loss by epoch, and of the score by epoch and by seconds.

    `key` is the score in the history, and `score` its name; `training` is the label of what was measured in training. Seconds
    are counted from the end of the first epoch, which may include compilation.
    """
    epochs = [record["epoch"] for record in history]
    seconds = list(accumulate((record["seconds"] for record in history[1:]), initial=0.0))
    return [
        drawn("loss by epoch", _lines(history, epochs, "loss", "epoch", "loss", training)),
        drawn(f"{score} by epoch", _lines(history, epochs, key, "epoch", score, training)),
        drawn(f"{score} by seconds", _lines(history, seconds, key, "seconds after the first epoch", score, training)),
    ]


def _lines(
    history: Sequence[Mapping[str, Any]], places: Sequence[float], key: str, xlabel: str, ylabel: str, training: str
) -> Draw:
    def draw(axes: Any) -> None:
        for name, label, colour, dashes in (
            (key, training, TRAINING, "-"),
            (f"validation_{key}", "validation", VALIDATION, "--"),
        ):
            points = [(x, record[name]) for x, record in zip(places, history) if math.isfinite(record.get(name, math.nan))]
            if points:
                mark = "o" if len(points) == 1 else None
                axes.plot(*zip(*points), label=label, color=colour, linestyle=dashes, linewidth=1.8, marker=mark)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if xlabel == "epoch":
            axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.lines:
            axes.legend(frameon=False)

    return draw


# --- predictions ------------------------------------------------------------------------------------------------------
def matrix(counts: np.ndarray) -> str:
    """Return an SVG element that draws a confusion matrix without numbers. counts[t, p] is the number of samples of class t
    that are predicted as class p; the colour is their share of class t.
    """

    def draw(axes: Any) -> None:
        share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        shown = axes.imshow(share, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
        axes.figure.colorbar(shown, label="share of the true class")
        axes.grid(False)
        axes.set(xlabel="predicted class, by number", ylabel="true class, by number")

    return drawn("confusion matrix", draw, (6.4, 5.0))


def scatter(targets: np.ndarray, predictions: np.ndarray) -> str:
    """Return a drawing of predictions over targets, both (n,), with the line on which they are equal."""
    some = np.unique(np.linspace(0, len(targets) - 1, min(len(targets), MOST_POINTS)).astype(int))

    def draw(axes: Any) -> None:
        axes.plot(targets[some], predictions[some], ".", color=TRAINING, markersize=3)
        ends = [float(targets.min()), float(targets.max())]
        axes.plot(ends, ends, "--", color=VALIDATION, linewidth=1.2)
        axes.set(xlabel="target", ylabel="prediction")

    return drawn("predictions over targets", draw)
