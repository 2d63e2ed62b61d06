"""Warnings that point to the user's line of code, even if they arise deep in the library."""

from __future__ import annotations

import re
import sys
import warnings

# packages whose frames are skipped; sklearn and joblib may call numbanet from a pipeline or a grid search
INSIDE = ("numbanet", "sklearn", "joblib")
SEARCHES = "sklearn.model_selection"  # its searches fit many estimators from one line

_issued: set[tuple[str, str, int]] = set()  # (text without numbers, file, line) of the warnings that searches have issued


def warn(message: str, in_searches: bool = True) -> None:
    """Issue a UserWarning at the line that called into these libraries.

    Python shows equal warnings of a line once, but a search resets what it has shown before each fit. So a warning from the
    fits of a search is issued once for each line, also if its numbers differ; and not at all if `in_searches` is False, which
    is for settings that a grid combines but nobody would choose.
    """
    frame, level, searching = sys._getframe(1), 2, False  # noqa: SLF001  there is no public function for it
    while frame.f_back is not None and (name := frame.f_globals.get("__name__", "")).partition(".")[0] in INSIDE:
        searching |= name.startswith(SEARCHES)
        frame, level = frame.f_back, level + 1
    key = re.sub(r"[\d.]+", "#", message), frame.f_code.co_filename, frame.f_lineno
    if searching:
        if key in _issued or not in_searches:
            return
        _issued.add(key)
    warnings.warn(message, stacklevel=level)
