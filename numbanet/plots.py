"""Pictures of what training did. Needs matplotlib (extra `plots`)."""
from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = {"none": "#6b6b6b", "bernoulli": "#b07aa1", "rdp": "#1f6fb4", "tdp": "#e07b39"}


def check_target(path: str | os.PathLike) -> Path:
    """The path, or an error that says why no picture could be written there: asked for before the work, not after.

    Raises
    ------
    RuntimeError
        If matplotlib is missing.
    ValueError
        If the folder does not exist or the ending names no format.
    """
    path = Path(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise RuntimeError("plots need matplotlib: pip install matplotlib")
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"cannot draw to {str(path)!r}: the file name must end in .png, .pdf or .svg")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"cannot draw to {str(path)!r}: there is no folder {str(path.absolute().parent)!r}")
    return path


def learning_curves(histories: Mapping[str, Sequence[Mapping[str, float]]], path: str | os.PathLike) -> Path:
    """Test score and training loss by epoch, one line a history.

    Parameters
    ----------
    histories : mapping of str to list of dict
        `history_` of fitted nets, by the name to show; the score drawn is `validation_score` where there is one.
    path : str or path
        Where to write: .png, .pdf or .svg. The file appears whole or not at all.

    Returns
    -------
    Path
        The file.
    """
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
