"""Plots of training curves, rooflines and placements; they need matplotlib: pip install numbanet[plots]."""

from __future__ import annotations

import importlib.util
import io
import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

from .dropout import POLICIES, Style
from .emulation import SHEETS
from .placement import Profile, pareto


def check_target(path: str | os.PathLike) -> Path:
    """Return `path` if a picture can be written there. Raise RuntimeError if matplotlib is missing, and ValueError if the path
    is not that of a picture. Call this before long work, so that errors are raised early.
    """
    path = Path(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise RuntimeError("plots need matplotlib: pip install matplotlib")
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"cannot draw to {str(path)!r}: the file name must end in .png, .pdf or .svg")
    if path.is_dir():
        raise ValueError(f"cannot draw to {str(path)!r}: it is a folder")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"cannot draw to {str(path)!r}: there is no folder {str(path.absolute().parent)!r}")
    return path


def learning_curves(histories: Any, path: str | os.PathLike, title: str = "", held_out: str | None = None) -> Path:
    """Write a picture with three plots to `path`: the score by epoch, the score by seconds of training, and the training loss
    by epoch. `histories` maps a label to a fitted net or its `history_`, of which each is one line of a plot; or it is one of
    these. The score is `validation_score` if all histories have it, and `held_out` says what that is; by default "test
    accuracy", or "validation score" if a net is no classifier or has a `scoring`. Otherwise it is that of training, of all.
    Seconds are counted from the end of the first epoch, because the first epoch may include compilation.

        learning_curves({"rdp": net, "none": other.history_}, "curves.png")
        learning_curves(net, "curve.png")

    Raises
    ------
    RuntimeError
        If matplotlib is missing.
    ValueError
        If the path is not that of a picture, or a history has no epochs.
    """
    path = check_target(path)
    given = histories if isinstance(histories, Mapping) else {"net": histories}
    lines = [(str(label), _history(label, each)) for label, each in given.items()]
    scored = all("validation_score" in record for _, history in lines for record in history)
    score = (held_out or _held_out(given.values())) if scored else "training score"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    by_epoch, by_seconds, loss_axes = figure.subplots(1, 3)
    by_seconds.sharey(by_epoch)
    shown: list[float] = []
    for name, history in lines:
        epochs = [record["epoch"] for record in history]
        scores = [record["validation_score" if scored else "score"] for record in history]
        seconds = list(accumulate((record["seconds"] for record in history[1:]), initial=0.0))
        style = {"label": name, "markevery": max(1, len(epochs) // 6), **_line(name)}
        by_epoch.plot(epochs, scores, **style)
        (line,) = by_seconds.plot(seconds, scores, **style)
        by_seconds.plot(seconds[-1], scores[-1], style["marker"], color=line.get_color(), markersize=10)
        shown += filter(math.isfinite, scores[len(scores) // 5 :])
        loss_axes.plot(epochs, [record["loss"] for record in history], **style)
    by_epoch.set(xlabel="epoch", ylabel=score)
    by_seconds.set(xlabel="seconds of training after the first epoch", ylabel=score)
    by_seconds.set_title("large marks: the last epoch", loc="left", fontsize=9)
    loss_axes.set(xlabel="epoch", ylabel="training loss (with dropout)", yscale="log")
    for axes in (by_epoch, by_seconds, loss_axes):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (by_epoch, loss_axes):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if shown:  # scores of the first epochs may lie below the plotted range
        margin = 0.1 * (max(shown) - min(shown)) + 1e-3
        by_epoch.set_ylim(min(shown) - margin, max(shown) + margin)
    drawn, names = by_epoch.get_legend_handles_labels()
    if names:  # none if no history is given
        figure.legend(drawn, names, loc="outside lower center", ncols=min(len(names), 8), frameon=False, handlelength=3)
    figure.suptitle(textwrap.fill(title, 120), fontsize=11)
    return _save(figure, path)


def _history(label: Any, net: Any) -> Sequence[Mapping[str, Any]]:
    """Return the history of a net, or the given one; raise ValueError, naming the label, if it has no epochs."""
    history = getattr(net, "history_", net)
    if not isinstance(history, Sequence) or not history:
        raise ValueError(f"histories: {label!r} has no epochs; fit it before it is drawn, or leave it out")
    return history


def _held_out(given: Iterable[Any]) -> str:
    """Return what the validation scores of nets and histories are called."""
    nets = [each for each in given if hasattr(each, "history_")]
    others = [net for net in nets if not hasattr(net, "classes_") or getattr(net, "scoring", None) is not None]
    return "validation score" if others else "test accuracy"


def _line(name: str) -> dict[str, Any]:
    """Return the options with which matplotlib draws the line of a kind of dropout, or of another label."""
    colour, dashes, mark = _style(name)
    return {"color": colour, "linestyle": dashes, "linewidth": 1.8, "marker": mark, "markersize": 4}


def _style(name: str) -> Style:
    """Return how the line of a kind of dropout is drawn; a variant, such as "window early", darker, solid and with stars."""
    from matplotlib.colors import to_hex, to_rgb

    kind, _, variant = name.partition(" ")
    style = POLICIES[kind].style if kind in POLICIES else Style()
    if not variant or kind not in POLICIES or style.colour is None:
        return style
    red, green, blue = to_rgb(style.colour)
    return Style(to_hex((red / 2, green / 2, blue / 2)), "-", "*")


COLOURS, DASHES = ("#7f7f7f", "#e07b39", "#134f82"), (":", "--", "-", "-.")  # of the lines of `scaling`: 12 pairs


def scaling(ranks: Sequence[int], times: Mapping[str, Sequence[float]], path: str | os.PathLike) -> Path:
    """Write a picture to `path`: the predicted seconds of a step by the number of ranks, one line for each label of `times`,
    and the efficiency: the time on one rank divided by that on many, which have as many samples each.
    """
    path = check_target(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    for (name, seconds), colour, dashes in zip(times.items(), cycle(COLOURS), cycle(DASHES)):
        style = {"label": name, "color": colour, "linestyle": dashes, "linewidth": 1.8}
        left.plot(ranks, [1e3 * t for t in seconds], **style)
        right.plot(ranks, [seconds[0] / t for t in seconds], **style)
    left.set(xlabel="ranks", ylabel="ms of a step", xscale="log", yscale="log")
    right.set(xlabel="ranks", ylabel="efficiency", xscale="log", ylim=(0, 1.05))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, handlelength=3)
    return _save(figure, path)


ROOFS = {"H200": Style("#134f82", "-"), "A100": Style("#e07b39", "--")}  # how the line of a card is drawn


def rooflines(intensities: Mapping[str, float], path: str | os.PathLike) -> Path:
    """Write a picture to `path`: the rooflines of two GPUs, and below them one row per kernel, with its name and a dot at its
    FLOPs per byte of memory traffic. The ridge of a GPU is the bend of its roofline; the memory limits a kernel whose dot is
    left of the ridge. `intensities` maps a kernel's name to its FLOPs per byte; kernels without FLOPs are left out.
    """
    path = check_target(path)
    import numpy as np
    from matplotlib.figure import Figure

    shown = {name: x for name, x in sorted(intensities.items(), key=lambda item: item[1]) if x > 0}
    low, high = min([0.05, *(x / 2 for x in shown.values())]), max([100, *(2 * x for x in shown.values())])
    figure = Figure(figsize=(9, 3.6 + 0.21 * max(len(shown), 1)), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.8, 0.21 * max(len(shown), 1) + 0.3))
    x, at = np.geomspace(low, high, 200), np.array(list(shown.values()))
    for card, (colour, dashes, mark) in ROOFS.items():
        flops, bandwidth = SHEETS[card].flops, SHEETS[card].bandwidth  # without tensor cores
        style = {"color": colour, "linestyle": dashes, "linewidth": 1.8}
        above.plot(
            x,
            np.minimum(flops, bandwidth * x) / 1e12,
            **style,
            label=f"{card}: {flops / 1e12:g} TFLOP/s, {bandwidth / 1e12:.3g} TB/s",
        )
        above.plot(at, np.minimum(flops, bandwidth * at) / 1e12, mark, color=colour, markersize=4)
        for axes in (above, below):
            axes.axvline(flops / bandwidth, **{**style, "linewidth": 0.9})
    _named_rows(below, shown, (low * high) ** 0.5)
    above.set(xscale="log", yscale="log", ylabel="TFLOP/s at most", xlim=(low, high))
    above.set_title(
        "Roofline of each card; left of its vertical line a kernel is limited by memory, right of it by arithmetic",
        loc="left",
        fontsize=10,
    )
    below.set_xlabel("FLOPs per byte of the memory sectors that warps access")
    above.grid(alpha=0.25, which="both")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    above.legend(frameon=False, loc="upper left")
    return _save(figure, path)


WAYS = {"forward": ("#134f82", "o"), "backward": ("#e07b39", "^")}


BEYOND = 16e6  # bytes that caches do not hold


def layer_rooflines(profile: Profile, path: str | os.PathLike, title: str = "") -> Path:
    """Write a picture to `path`: for each device of a profile GFLOP/s by FLOPs per byte, a dot for each layer and direction,
    with its path beside it. The lines are the largest GFLOP/s that a layer reached on the device, and the largest GB/s of the
    layers that move 16 MB or more, if there are any: layers that find their data in the cache may be above.
    """
    path = check_target(path)
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(profile.devices), 4.4), layout="constrained")
    panels = figure.subplots(1, len(profile.devices), sharex=True, sharey=True, squeeze=False)[0]
    for axes, device in zip(panels, profile.names):
        entries = [e for e in profile.entries if e.device == device and e.ms.value and e.bytes]
        counted = [e for e in entries if e.flops]
        intensity = np.array([e.flops / e.bytes for e in counted])
        speed = np.array([e.gflops.number for e in counted])
        if len(counted):
            large = [e for e in entries if e.bytes >= BEYOND] or entries
            peak, bandwidth = speed.max(), max(e.bytes / e.ms.number / 1e6 for e in large)
            x = np.geomspace(intensity.min() / 2, intensity.max() * 2, 100)
            roof = np.minimum(peak, bandwidth * x)
            axes.plot(
                x, roof, color="black", linewidth=1, label=f"{peak:.3g} GFLOP/s, {bandwidth:.3g} GB/s, the best of a layer"
            )
        for direction, (colour, mark) in WAYS.items():
            here = [k for k, e in enumerate(counted) if e.direction == direction]
            axes.plot(intensity[here], speed[here], mark, color=colour, markersize=5, label=direction)
            # forward only, in turn on the left and on the right: names of neighbours would lie on each other
            named = sorted(here, key=lambda k: (intensity[k], speed[k])) if direction == "forward" else []
            for number, k in enumerate(named):
                offset, side = ((5, 2), "left") if number % 2 else ((-5, -7), "right")
                axes.annotate(
                    counted[k].path, (intensity[k], speed[k]), xytext=offset, textcoords="offset points", ha=side, fontsize=7
                )
        axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte")
        axes.set_title(device, loc="left", fontsize=10)
        axes.grid(alpha=0.25, which="both")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    panels[0].set_ylabel("GFLOP/s")
    figure.suptitle(title or f"Layers of {profile.settings.get('model', 'a model')} on {profile.machine}", fontsize=11)
    return _save(figure, path)


def time_and_energy(profiles: Mapping[str, Profile], path: str | os.PathLike, title: str = "") -> Path:
    """Write a picture to `path`: for each profile, by name, the milliseconds and joules of a step on each device alone, and the
    Pareto front of all placements (`placement.pareto`). "~" marks axes with estimates.

    Raises
    ------
    ValueError
        If a profile has no joules.
    """
    path = check_target(path)
    from matplotlib.figure import Figure

    fronts = {name: pareto(profile, what_if=True) for name, profile in profiles.items()}
    figure = Figure(figsize=(4.4 * len(fronts), 3.8), layout="constrained")
    for axes, (name, front) in zip(figure.subplots(1, len(fronts), squeeze=False)[0], fronts.items()):
        points = [(each.ms.number, each.joules.number) for each in front]
        axes.plot(*zip(*points), ".-", color="#134f82", label=f"Pareto front of {len(points)} placements")
        best = min(front, key=lambda each: each.cost)
        axes.plot(best.ms.number, best.joules.number, "*", color="#134f82", markersize=12, label="least ms x J")
        for device, (ms, joules) in front[0].singles.items():
            if joules.known:
                axes.plot(ms.number, joules.number, "s", color="#e07b39", markersize=6)
                axes.annotate(device, (ms.number, joules.number), xytext=(6, 4), textcoords="offset points", fontsize=9)
        marks = ["~" * any(f.tag != "measured" for f in fs) for fs in zip(*((each.ms, each.joules) for each in front))]
        axes.set(xlabel=f"{marks[0]}ms of a step", ylabel=f"{marks[1]}J of a step")
        axes.set_title(name, loc="left", fontsize=10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(title or f"Time and energy of placements on {next(iter(profiles.values())).machine}", fontsize=11)
    return _save(figure, path)


def _named_rows(axes: Any, shown: Mapping[str, float], middle: float) -> None:
    """Draw one row for each name in `shown`: a dot at its value, and the name on the side of the dot that has more room."""
    for row, (name, x) in enumerate(shown.items()):
        side = 1 if x < middle else -1
        axes.plot(x, row, "o", color="black", markersize=4)
        axes.annotate(
            name,
            (x, row),
            xytext=(7 * side, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            ha="left" if side > 0 else "right",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axes.set(ylim=(-0.7, max(len(shown), 1) - 0.3), yticks=[])
    axes.spines["left"].set_visible(False)


def _save(figure: Any, path: Path) -> Path:
    """Save the figure to a temporary file, then rename it to `path`, so that `path` never holds half a picture."""
    from numbanet.datasets.files import write_file

    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=path.suffix[1:].lower())
    write_file(path, content.getvalue())
    return path
