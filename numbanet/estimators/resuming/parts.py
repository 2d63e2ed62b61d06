"""What differs between the ranks that train one model, and what is equal on all of them; one process is a single rank."""

from __future__ import annotations

from typing import Any

from ...training.run import Run

OWN = ("streams", "position", "drawn", "memory", "policy")  # entries of `training.resuming.state`


def parted(state: dict[str, Any], run: Run, data: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part of the state of a run that is equal on all ranks, and what this rank has of its own: the rest, the states
    of its random streams when the run was made, and the digest of its samples.
    """
    common = {name: value for name, value in state.items() if name not in OWN}
    return common, {"state": {name: state[name] for name in OWN}, "start": run.start, "data": data}
