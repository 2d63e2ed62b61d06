"""Warnings that point to the user's line of code, even if they arise deep in the library."""

from __future__ import annotations

import sys
import warnings

# packages whose frames are skipped; sklearn and joblib may call numbanet from a pipeline or a grid search
INSIDE = ("numbanet", "sklearn", "joblib")


def warn(message: str) -> None:
    """Issue a UserWarning at the line that called into these libraries."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001  there is no public function for it
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
