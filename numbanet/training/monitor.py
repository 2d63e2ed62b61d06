"""Monitor: the figure of the records that a hook monitors."""

from __future__ import annotations

import math
import numbers
from typing import Any

from ..arguments import is_integer

LESS = ("loss", "perplexity", "seconds")  # figures with these endings are better if smaller


def value(hook: str, record: dict[str, Any], name: str | None) -> float:
    """The value of a figure in a record, negated if smaller is better, -inf if it is NaN. The name None stands for
    validation_score if that is recorded, else for loss.

    Raises
    ------
    ValueError
        If the record has no such figure.
    """
    name = name or ("validation_score" if "validation_score" in record else "loss")
    if not isinstance(record.get(name), numbers.Real):
        known = ", ".join(key for key, found in record.items() if isinstance(found, numbers.Real))
        raise ValueError(
            f"{hook}: there is no figure {name!r} in the record, which has {known}; fit with validation=... for "
            "validation_loss and validation_score"
        )
    found = -record[name] if name.endswith(LESS) else record[name]
    return -math.inf if math.isnan(found) else float(found)


def check_count(name: str, count: Any, least: int) -> int:
    """The count; ValueError unless it is an integer of at least `least`."""
    if not is_integer(count) or count < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {count!r}")
    return int(count)
