"""Warnings that point to the user's line of code, even if they arise deep in the library."""

from __future__ import annotations

import re
import sys
import warnings

# packages whose frames are skipped; sklearn and joblib may call numbanet from a pipeline or a grid search
INSIDE = ("numbanet", "sklearn", "joblib")
SEARCHES = "sklearn.model_selection"  # its searches fit many estimators from one line

_issued: set[tuple[str, str, int]] = set()  # (text, file, line) of warnings; of those from searches, the text without numbers


def warn(message: str, in_searches: bool = True) -> None:
    """Issue a UserWarning at the line that called into these libraries.

    Python shows equal warnings of a line once, unless a filter says otherwise, but forgets what it has shown when a library
    sets filters for a moment, as each fit does. So it is remembered here. A warning from the fits of a search is issued once
    for each line also if its numbers differ; and not at all if `in_searches` is False, which is for settings that a grid
    combines but nobody would choose.
    """
    frame, level, searching = sys._getframe(1), 2, False  # noqa: SLF001  there is no public function for it
    while frame.f_back is not None and (name := frame.f_globals.get("__name__", "")).partition(".")[0] in INSIDE:
        searching |= name.startswith(SEARCHES)
        frame, level = frame.f_back, level + 1
    place = frame.f_code.co_filename, frame.f_lineno
    if searching or _once(message, frame.f_globals.get("__name__", ""), frame.f_lineno):
        key = re.sub(r"[\d.]+", "#", message) if searching else message, *place
        if key in _issued or (searching and not in_searches):
            return
        _issued.add(key)
    warnings.warn(message, stacklevel=level)


def _once(message: str, module: str, line: int) -> bool:
    """Return True if the filters of Python say that this warning is shown once for its line."""
    for action, text, category, where, number in warnings.filters:
        if (
            issubclass(UserWarning, category)
            and (text is None or text.match(message))
            and (where is None or where.match(module))
            and number in (0, line)
        ):
            return action == "default"
    return True
