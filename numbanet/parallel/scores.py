"""`joint_scores`: scores by which a policy chooses what a step computes, summed over the ranks, so that all choose alike."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..device import Device
from .ranks import Ranks, current


def joint_scores(dev: Device, scores: Any) -> Any:
    """Replace scores, a device array of float32, by their sums over the ranks of the running fit, in place, and return them.
    With one process they stay as they are. In a recorded step each replay sums them at this point. All ranks must call it
    equally often, whether they replay a step or not.
    """
    if (team := current.get()) is not None:
        work = functools.partial(_sum, dev, team, scores)
        if dev.asides():
            dev.aside(work)
        else:
            work()
    return scores


def joint_mean(value: float) -> float:
    """Return the mean of a number over the ranks of the running fit."""
    team = current.get()
    return value if team is None else float(team.sum(np.array([value]))[0]) / team.size


def share_of(samples: int) -> int:
    """Return how many of `samples` samples each rank of the running fit looks at, so that all of them look at about as many as
    one process does.
    """
    team = current.get()
    return samples if team is None else -(-samples // team.size)


def _sum(dev: Device, team: Ranks, scores: Any) -> None:
    host = np.ascontiguousarray(dev.download(scores))
    team.sum(host)
    if host is not scores:  # on the CPU they are the same array
        dev.copy(dev.upload(host), out=scores)
