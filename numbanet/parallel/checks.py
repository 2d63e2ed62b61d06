"""What must be equal on all ranks, and what is refused, before the first step; and equal weights on all ranks."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..layers import BatchNorm1d, BatchNorm2d, Sequential, walk
from .ranks import Ranks, Team, current

SAMPLED = 4096  # number of rows of which a digest of samples is made


def same(ranks: Ranks, facts: Mapping[str, Any]) -> None:
    """Raise ValueError on all ranks unless each of `facts`, from its name to its value, is equal on all ranks. The message
    names the first fact that differs, and the ranks.
    """
    found = ranks.gather(dict(facts))
    for name, value in found[0].items():
        for rank, other in enumerate(found):
            if other.get(name) != value:
                raise ValueError(
                    f"parallel: rank {rank} has {name}={other.get(name)!r}, and rank 0 has {name}={value!r}; all ranks must "
                    "run the same program"
                )


def told(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of an estimator as texts that are equal in all processes, without those that may differ."""
    apart = "callbacks", "verbose", "n_jobs", "device", "random_state", "parallel", "shard", "scoring"
    return {name: re.sub(r" at 0x[0-9a-f]+", "", repr(value)) for name, value in parameters.items() if name not in apart}


def samples(team: Team, X: Any, y: np.ndarray) -> dict[str, Any]:
    """Return what ranks must have in common of their samples: the shape of a sample if each has its own, else all values, of
    which a digest of at most `SAMPLED` rows is made.
    """
    shapes = {"shape of a sample": (tuple(X.shape[1:]), tuple(y.shape[1:]))}
    if team.sharded:
        return shapes
    rows = np.unique(np.linspace(0, len(y) - 1, min(SAMPLED, len(y))).astype(np.int64))
    parts = [y[rows], X[rows]] if isinstance(X, np.ndarray) else [y[rows]]
    digest = 0
    for part in parts:
        digest = zlib.crc32(np.ascontiguousarray(part).tobytes(), digest)
    return {**shapes, "number of samples": len(y), "digest of the samples": digest}


def digest(model: Sequential) -> int:
    """Return a digest of the values of all parameters and buffers."""
    found = 0
    for _, tensor, _ in model.named():
        found = zlib.crc32(np.ascontiguousarray(tensor.device.download(tensor.data)).tobytes(), found)
    return found


def agreed(model: Sequential) -> Sequential:
    """Return a new model that is equal on all ranks: if models differ, that of rank 0.

    Raises
    ------
    ValueError
        If the names or the shapes of parameters differ.
    """
    team = current.get()
    if team is None:
        return model
    same(team, {"shapes of weights": [(name, tensor.shape) for name, tensor, _ in model.named()]})
    if len(set(team.gather((digest(model), repr(model))))) == 1 and not team.sharded:
        return model
    return team.broadcast(model)


def equalise(model: Sequential) -> None:
    """Give all ranks the weights of rank 0 if they differ: processors may round differently."""
    team = current.get()
    if team is None or len(set(team.gather(digest(model)))) == 1:
        return
    for _, tensor, _ in model.named():
        tensor.assign(team.broadcast(np.array(tensor.device.download(tensor.data))))


def refuse(team: Team, model: Sequential, policy: Any, batch_size: int, n: int, segments: bool, on_host: bool) -> None:
    """Raise an error if the ranks cannot train this model together.

    Raises
    ------
    ValueError
        If a policy chooses from the samples of a rank alone which gradients are computed, or if a batch has fewer samples than
        there are ranks and that is not supported; or if batch normalisation is not on the CPU (`on_host`).
    """
    for part in getattr(policy, "policies", (policy,)):
        if part.data_dependent and not part.agrees:
            raise ValueError(
                f"parallel: dropout {part.name!r} chooses from its own samples, on each rank, which gradients are computed, so "
                "that they cannot be summed; sum its scores over the ranks (numbanet.parallel.joint_scores) and set `agrees`"
            )
    tail = n % batch_size
    normed = any(isinstance(layer, (BatchNorm1d, BatchNorm2d)) for _, layer in walk(model))
    if normed and not on_host:
        raise ValueError("parallel: batch normalisation over ranks works on the CPU only; choose device='cpu', or LayerNorm")
    if batch_size < team.size and (segments or normed):
        raise ValueError(
            f"parallel: batch_size={batch_size} is less than the number of ranks, {team.size}: choose a larger one"
        )
    if normed and not team.sharded and 0 < tail < team.size and not tail == 1 < n:  # which joins the batch before
        raise ValueError(
            f"parallel: the last batch of {n} samples has {tail}, and batch normalisation needs at least one for each of the "
            f"{team.size} ranks; choose another batch_size than {batch_size}"
        )
