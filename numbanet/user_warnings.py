"""Warnings that point to the user's line of code, even if they arise deep in the library."""

from __future__ import annotations

import re
import sys
import warnings

# packages whose frames are skipped; sklearn and joblib may call numbanet from a pipeline or a grid search
INSIDE = ("numbanet", "sklearn", "joblib")
SEARCHES = "sklearn.model_selection"  # its searches fit many estimators from one line

_issued: set[tuple[str, str, int]] = set()  # (text without numbers, file, line) of the warnings that searches have issued
# (text, file, line) of other warnings, and Python's own record of what it has shown of the file, which notebooks make anew
_shown: dict[tuple[str, str, int], object] = {}
_SHOW = getattr(warnings, "_showwarnmsg_impl", None)  # it is another one where warnings are recorded


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
    if searching:
        key = re.sub(r"[\d.]+", "#", message), *place
        if key in _issued or not in_searches:
            return
        _issued.add(key)
    elif _once(message, frame.f_globals.get("__name__", ""), frame.f_lineno):
        record = frame.f_globals.setdefault("__warningregistry__", {})
        said = (message, *place)
        if _shown.get(said) is record:
            return
        _shown[said] = record
    warnings.warn(message, stacklevel=level)


def _once(message: str, module: str, line: int) -> bool:
    """Return True if the filters of Python say that this warning is shown once for its line; what is recorded is not shown."""
    if getattr(warnings, "_showwarnmsg_impl", None) is not _SHOW:
        return False
    for action, text, category, where, number in warnings.filters:
        if (
            issubclass(UserWarning, category)
            and (text is None or text.match(message))
            and (where is None or where.match(module))
            and number in (0, line)
        ):
            return action == "default"
    return True
