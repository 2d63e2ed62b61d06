"""Pictures of what training did. Needs matplotlib (extra `plots`)."""
from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = {"none": "#6b6b6b", "bernoulli": "#b07aa1", "rdp": "#1f6fb4", "tdp": "#e07b39"}


def check_target(path: str | os.PathLike) -> Path:
    """The path, or an error that says why no picture could be written there: asked for before the work, not after. It is a
    RuntimeError where matplotlib is missing, else a ValueError."""
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


def learning_curves(histories: Mapping[str, Sequence[Mapping[str, float]]], path: str | os.PathLike) -> Path:
    """Test score and training loss by epoch, drawn to a file: one line a history (`history_` of fitted nets, by the name to
    show). The score drawn is `validation_score` where there is one."""
    path = check_target(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    score_axes, loss_axes = figure.subplots(1, 2)
    for name, history in histories.items():
        epochs = [record["epoch"] for record in history]
        scores = [record.get("validation_score", record["score"]) for record in history]
        style = {"label": name, "color": COLOURS.get(name), "linewidth": 1.8}
        score_axes.plot(epochs, scores, **style)
        loss_axes.plot(epochs, [record["loss"] for record in history], **style)
    held_out = all("validation_score" in record for history in histories.values() for record in history)
    score_axes.set(xlabel="epoch", ylabel="test accuracy" if held_out else "training score")
    loss_axes.set(xlabel="epoch", ylabel="training loss (with dropout)", yscale="log")
    for axes in (score_axes, loss_axes):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    score_axes.legend(frameon=False)
    return _save(figure, path)


ROOFS = {"H200": (67e12, 4.8e12), "A100": (19.5e12, 2.0e12)}  # float32 FLOP/s without tensor cores, bytes/s: data sheets


def rooflines(intensities: Mapping[str, float], path: str | os.PathLike) -> Path:
    """What two cards could reach at most, drawn to a file: the roofline of each kernel, given its FLOPs for each byte of
    memory by the name to show. Kernels without FLOPs are left out."""
    path = check_target(path)
    import numpy as np
    from matplotlib.figure import Figure

    shown = {name: x for name, x in sorted(intensities.items(), key=lambda item: item[1]) if x > 0}
    low, high = min([0.05, *(x / 4 for x in shown.values())]), max([100, *(2 * x for x in shown.values())])
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    x = np.geomspace(low, high, 200)
    for (card, (flops, bandwidth)), colour in zip(ROOFS.items(), (COLOURS["rdp"], COLOURS["tdp"]), strict=True):
        axes.plot(x, np.minimum(flops, bandwidth * x) / 1e12, color=colour, linewidth=1.8,
                  label=f"{card}: {flops / 1e12:g} TFLOP/s, {bandwidth / 1e12:g} TB/s")
        axes.plot(list(shown.values()), [min(flops, bandwidth * x) / 1e12 for x in shown.values()], "o", color=colour)
    flops, bandwidth = max(ROOFS.values())
    labels: list[tuple[float, list[str]]] = []
    for name, intensity in shown.items():  # neighbours share a label
        if labels and intensity < 1.7 * labels[-1][0]:
            labels[-1][1].append(name)
        else:
            labels.append((intensity, [name]))
    for intensity, names in labels:
        axes.annotate("\n".join(names), (intensity, min(flops, bandwidth * intensity) / 1e12), xytext=(-4, 8),
                      textcoords="offset points", ha="right", va="bottom", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs for each byte of the sectors that warps touch", ylabel="TFLOP/s at most",
             xlim=(low, high))
    axes.margins(y=0.2)
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    """Write the picture, whole or not at all."""
    handle, temporary = tempfile.mkstemp(suffix=path.suffix, dir=path.absolute().parent)
    os.close(handle)
    try:
        figure.savefig(temporary, dpi=150)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
