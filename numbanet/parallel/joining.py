"""`joined`: the context of a fit on several ranks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .ranks import RankFailure, Ranks, Team, current


class LeftTogether(SystemExit):
    """Ends the program; all ranks raise it after the same step, so none of them has failed."""


def check_joining(parallel: Any, shard: Any) -> None:
    """Raise ValueError if `parallel` is unknown, or `shard` is neither a bool nor a function."""
    if not (isinstance(shard, (bool, np.bool_)) or callable(shard)):
        raise ValueError(f"shard must be True, False or a function shard(rank, size), got {shard!r}")
    if not (parallel is None or isinstance(parallel, Ranks) or (isinstance(parallel, str) and parallel == "mpi")):
        raise ValueError(f"parallel must be None, 'mpi' or a Ranks, got {parallel!r}")


def opened(parallel: Any) -> Ranks:
    """Return the ranks that the parameter `parallel` of an estimator stands for: "mpi", or a `Ranks`.

    Raises
    ------
    ValueError
        If it is neither.
    ImportError
        If it is "mpi", and mpi4py or an MPI library is missing; the message says what to install.
    """
    check_joining(parallel, False)
    if isinstance(parallel, Ranks):
        return parallel
    from .mpi import world  # not before it is needed: MPI starts when it is imported

    return world()


@contextlib.contextmanager
def joined(parallel: Any, shard: Any, agree: Callable[[Ranks], None]) -> Iterator[Team | None]:
    """A context in which `current` holds the ranks of a fit; nothing if `parallel` is None. `agree` is called first, with the
    ranks. If the block raises an exception, the other ranks raise `RankFailure`, which names this one.

    Raises
    ------
    ValueError
        If `parallel` is unknown, or `shard` is neither a bool nor a function.
    """
    check_joining(parallel, shard)
    if parallel is None:
        with current.within(None):  # an estimator that a callback fits on one rank is that rank's own
            yield None
        return
    if current.get() is not None:
        yield current.get()
        return
    team = Team(opened(parallel), bool(shard))
    try:
        with current.within(team):
            agree(team)
            yield team
    except (RankFailure, LeftTogether):
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        if team.size > 1:
            print(f"numbanet: rank {team.rank} of {team.size} ends the run of all ranks: {reason}", file=sys.stderr, flush=True)
        team.fail(reason)  # after the message: the others may end this process
        raise
