"""Every: how often a fit writes a checkpoint."""

from __future__ import annotations

import re
import time
from typing import Any

from ...arguments import is_integer

UNITS = {"s": 1, "min": 60, "h": 3600}


class Every:
    """The interval between checkpoints.

    Parameters
    ----------
    interval : "epoch", int or str
        "epoch": after each epoch; a number: after so many training steps; or a time, such as "10 min", "30 s" or "2 h".

    Raises
    ------
    ValueError
        If it is none of these.
    """

    def __init__(self, interval: Any) -> None:
        self.interval = interval
        self.steps: int | None = None
        self.seconds: float | None = None
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", interval) if isinstance(interval, str) else None
        if is_integer(interval) and interval > 0:
            self.steps = int(interval)
        elif found and float(found[1]) > 0:
            self.seconds = float(found[1]) * UNITS[found[2]]
        elif interval != "epoch":
            raise ValueError(
                "every must be 'epoch', a number of steps such as 500, or a time such as '30 s', '10 min' or '2 h', "
                f"got {interval!r}"
            )

    def due(self, steps: int, last: float) -> bool:
        """Return True after step number `steps` if a checkpoint is due; the last one was written at the time `last`."""
        if self.steps is not None:
            return steps % self.steps == 0
        return self.seconds is not None and time.monotonic() - last >= self.seconds
