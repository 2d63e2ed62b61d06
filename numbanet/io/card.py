"""A model card (Mitchell et al. 2019, "Model cards for model reporting"): what a network is, in Markdown."""

from __future__ import annotations

import math
import platform
from importlib import metadata
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

FIGURES = ("loss", "score", "perplexity", "validation_loss", "validation_score", "validation_perplexity")


def facts(net: Any) -> dict[str, Any]:
    """What a fitted estimator is, as values that JSON can hold: class, parameters, classes or vocabulary, figures, versions."""
    from .. import __version__

    history = kept_epoch(net) if net.history_ else {}
    told: dict[str, Any] = {
        "class": type(net).__name__,
        "parameters": _changed(net),
        "epochs": int(net.n_iter_),
        "figures": {name: float(history[name]) for name in FIGURES if name in history},
        "versions": {
            "numbanet": __version__,
            **{name: metadata.version(name) for name in ("numba", "numpy", "scikit-learn")},
            "python": platform.python_version(),
        },
    }
    if hasattr(net, "classes_"):
        labels = np.asarray(net.classes_).tolist()
        told["classes"] = [label if isinstance(label, (str, int, float)) else str(label) for label in labels]
    if hasattr(net, "vocabulary_"):
        told["vocabulary"] = [str(word) for word in net.vocabulary_.words]
    if getattr(net, "image_shape", None) is not None:
        told["image_shape"] = [int(n) for n in net.image_shape]
    return told


def kept_epoch(net: Any) -> dict[str, Any]:
    """Return the record of the epoch whose weights the estimator has: the best one after early stopping, else the last."""
    best = net.best_epoch_ if net._kept_epoch else None  # noqa: SLF001  parameters may have changed since
    return next((record for record in net.history_ if record["epoch"] == best), net.history_[-1])


def check_fitted(name: str, net: Any) -> None:
    """Raise TypeError, beginning with the name of a function, for a pipeline, and NotFittedError for what is not fitted."""
    if isinstance(net, Pipeline):
        raise TypeError(
            f"{name} takes an estimator of numbanet, not a {type(net).__name__}: give its last step, pipeline[-1], whose "
            "samples are those that the other steps have transformed, pipeline[:-1].transform(X)"
        )
    check_is_fitted(net, "model_")


def model_card(net: Any) -> str:
    """Return a description of a fitted estimator in Markdown: layers, what it was trained with, what it reached, and versions.

    The data are not known here except for their shape and classes; add where they come from, and what the network is for.

    Parameters
    ----------
    net : estimator
        A fitted estimator.

    Raises
    ------
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.
    TypeError
        If it is a pipeline.
    """
    check_fitted("model_card", net)
    told = facts(net)
    lines = [
        f"# {title(net)}",
        "",
        "```text",
        *str(net.model_).strip("\n").splitlines(),
        "```",
        "",
        "## Data",
        "",
        f"- shape of a sample: {shape_of(net)}",
        *([f"- {len(told['classes'])} classes: {some(told['classes'])}"] if "classes" in told else []),
        *([f"- vocabulary: {len(told['vocabulary']):,} words"] if "vocabulary" in told else []),
        "- source, and conditions of use: (to be added)",
        "",
        "## Training",
        "",
        f"- epochs trained: {told['epochs']}",
        *(f"- {name}: `{value}`" for name, value in told["parameters"].items()),
        "",
        "## Figures of the epoch whose weights are kept",
        "",
        *(f"- {name}: {value:.4g}" for name, value in told["figures"].items()),
        "",
        "## Versions",
        "",
        ", ".join(f"{name} {version}" for name, version in told["versions"].items()),
        "",
    ]
    return "\n".join(lines)


def title(net: Any) -> str:
    """Return the class of an estimator and the size of its network as text."""
    count = sum(math.prod(tensor.shape) for tensor in net.model_.parameters())
    return f"{type(net).__name__}: {len(net.model_.layers)} layers, {count:,} parameters"


def _changed(net: Any) -> dict[str, str]:
    """The parameters that are not at their defaults."""
    usual = type(net)().get_params(deep=False)
    given = net.get_params(deep=False)
    return {name: repr(value) for name, value in given.items() if repr(value) != repr(usual[name])}


def shape_of(net: Any) -> str:
    """Return the shape of a sample as text."""
    shape = getattr(net, "input_shape_", None)
    return "a text" if shape is None else " × ".join(map(str, shape))


def some(classes: list[Any], most: int = 20) -> str:
    """Return the first `most` classes as text."""
    named = ", ".join(map(str, classes[:most]))
    return named if len(classes) <= most else f"{named}, …"
