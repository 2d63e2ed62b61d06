"""All planted faults and all correct kernels, and what the emulated card finds in them.

    python -m tests.kernels.sanitizer.outcomes [--out FILE]

FILE is a JSON object: the machine, and for each kind the number of planted faults and of those that were found; the number of
correct kernels, and of those with a finding; and a list of all with what was found.
"""

from __future__ import annotations

from numbanet_kernels import card

from . import (  # noqa: F401  each adds its faults to the table
    barriers,
    block_races,
    bounds,
    correct,
    correct_orders,
    deadlocks,
    freed,
    grid_races,
    leaks,
    misaligned,
    shared_races,
    stream_races,
    unset,
)
from .planted import FAULTS, Planted

CORRECT = [Planted("classic kernel", make, "") for make in correct.CORRECT]


def findings(case, right):
    """What the emulated card reports of a case, as texts."""
    found = []
    with card.Emulated(uninitialised=True, report=lambda error: found.append(str(error))):
        case.run(right)
    return found
