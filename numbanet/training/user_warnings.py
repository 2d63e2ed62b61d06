"""Warnings at the user's line: how deep in the library they arise does not matter."""

from __future__ import annotations

import sys
import warnings

INSIDE = ("numbanet", "sklearn", "joblib")  # what may stand between the user and a fit, such as a pipeline or a grid search


def warn(message: str) -> None:
    """A UserWarning at the line that called into these libraries."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001  there is no public way
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
