"""The state of a run, for a checkpoint: everything that training changes, as values that a file can hold, except the weights
and what the estimator itself knows.

A run that goes on from this state makes the same steps as the run from which it was captured, to the last bit.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ...layers import walk
from ..run import Run
from .position import Position


def captured(run: Run) -> dict[str, Any]:
    """Return the state of a run between two steps, or between two epochs. All steps must be computed; updates that are deferred
    stay deferred.
    """
    stepper, within = run.stepper, bool(run.done)
    return {
        "epoch": run.epoch,
        "stopping": run.stopping,
        "optimizer": run.optimizer.snapshot(settle=False),
        "streams": run.streams.state(),
        "hooks": _of_hooks(run),
        "position": tuple(Position.of(run)) if within else None,
        "policy": stepper.current.progress(stepper.tree) if within else None,
        "drawn": stepper.before if within and stepper.upcoming is not None else None,
        "memory": _memory(run) if within else None,
    }


def within(saved: dict[str, Any]) -> bool:
    """Return True if the state is one within an epoch."""
    return saved["position"] is not None


def restore(run: Run, saved: dict[str, Any], entered: bool = False) -> None:
    """Set the state of a run. The model has its weights, apart from those whose updates are deferred: `saved["deferred"]` maps
    their indices in `Optimizer.parameters` to their values.

    Call this after the hooks' `fit_start`; for a state within an epoch, call it again after their `epoch_start`, with
    `entered=True`.

    Raises
    ------
    ValueError
        If a hook of the saved run is missing.
    """
    if saved["stopping"]:
        run.stop()
    for i, array in saved.get("deferred", {}).items():
        parameter = run.optimizer.parameters[i]
        parameter.assign(parameter.device.upload(array))
    run.optimizer.restore(saved["optimizer"])
    run.streams.restore(saved["streams"])
    _restore_hooks(run, saved["hooks"])
    if within(saved):
        run.go_on_at(Position(*saved["position"]))
        if entered:
            _enter(run, saved)


def _enter(run: Run, saved: dict[str, Any]) -> None:
    """Set what belongs to the current epoch."""
    stepper = run.stepper
    if saved["policy"] is not None:
        stepper.current.go_on(stepper.tree, saved["policy"])
    if saved["drawn"] is not None:
        stepper.redraw(saved["drawn"])
    if stepper.state is not None:
        layers = dict(walk(run.model))
        for path, cell, n, arrays in saved["memory"]:
            stepper.state[layers[path], cell, n] = [run.dev.upload(array) for array in arrays]


def _memory(run: Run) -> list[list[Any]]:
    """Return the states of recurrent layers that the next step reads, as [path, cell, samples, arrays]."""
    paths = {layer: path for path, layer in walk(run.model)}
    states = (run.stepper.state or {}).items()
    return [[paths[layer], cell, n, [np.array(run.dev.download(a)) for a in arrays]] for (layer, cell, n), arrays in states]


def _of_hooks(run: Run) -> list[list[Any]]:
    """Return [name of its class, its part, its position among the hooks of this class] for each hook that has a part."""
    found, counts = [], Counter[str]()
    for hook in run.hooks:
        name = type(hook).__name__
        if (part := hook.checkpoint(run)) is not None:
            found.append([name, part, counts[name]])
        counts[name] += 1
    return found


def _restore_hooks(run: Run, saved: list[list[Any]]) -> None:
    """Give each hook its part; hooks of the same class are in the same order as before."""
    counts = Counter[str]()
    for name, part, *place in saved:
        alike = [hook for hook in run.hooks if type(hook).__name__ == name]
        i = place[0] if place else counts[name]  # older checkpoints have no positions
        if i >= len(alike):
            raise ValueError(
                f"the checkpoint has the state of a hook {name}, which this fit lacks: give the same callbacks, by "
                "set_params(callbacks=[...]) before fit"
            )
        alike[i].resume(run, part)
        counts[name] += 1
