"""`Placing`: the parameter `objective` of an estimator, which lets measured times or energies choose the device of each layer.

CNNLab (Zhu et al. 2016, abstract): users describe a network once, and the framework decides at run time where each layer runs.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..device import device
from ..dropout import NoDropout
from ..layers import Sequential
from ..training.data import Data, on_device
from ..training.hooks import Hook
from ..training.stepper import Stepper
from ..training.streams import Streams
from ..user_warnings import warn
from .settings import FitSettings

if TYPE_CHECKING:
    from ..placement import Placement, Profile

WARM, TIMED = 4, 3  # steps that each candidate makes; a step is recorded when its kind occurs for the second time
OFF = 1.2  # a profile is measured anew if steps take longer, or are predicted to take longer, by more than this factor


def check_objective(objective: Any, name: Any) -> None:
    """Raise ValueError unless the objective is known and the device is left to it."""
    if objective is None:
        return
    from .. import placement  # not before an objective is given, because few estimators have one

    if objective not in placement.OBJECTIVES:
        raise ValueError(f"objective must be None, {', '.join(map(repr, placement.OBJECTIVES))}, got {objective!r}")
    if name != "auto":
        raise ValueError(f"objective={objective!r} chooses the device of each layer: leave device='auto', got device={name!r}")


class Placing:
    """What an estimator with the parameter `objective` does before training; the base class of such estimators."""

    objective: str | None
    model_: Sequential
    verbose: int
    placement_: Placement

    def _placed(self, settings: FitSettings, data: Data, trained: bool) -> tuple[FitSettings, list[Hook]]:
        """Place the layers of a new model if there is an objective; set `placement_`. Return the settings with the device of
        the run, and the hooks that record predicted and actual times. A trained model stays where it is.
        """
        before = getattr(self, "placement_", None)
        if self.objective is None or (trained and before is None):
            vars(self).pop("placement_", None)
            return settings, []
        if not trained:
            watch = getattr(self, "_watched", None)
            self.placement_ = _chosen(self, settings, data, again=watch is not None and watch.off)
            if self.verbose:
                print(self.placement_, flush=True)
        names, settings = _run_on(list(self.placement_.devices.values()), settings)
        if not trained:
            self.model_.span(names)
        self._watched = Watched(self.placement_, len(data), settings.batch_size)
        return settings, [self._watched]


def _chosen(estimator: Any, settings: FitSettings, data: Data, again: bool) -> Placement:
    """Return the best placement of the layers of the estimator's model.

    Layers are measured one by one (`placement.profile`), recorded as they run on one device, and op by op as they run on
    several. By time, the best placement and each single device then make some steps, and the fastest one stays.
    """
    from .. import placement

    model, objective = estimator.model_, estimator.objective
    shape = settings.batch_size, *data.X.shape[1:]
    alone = placement.profile(model, shape, again=again)
    chosen = placement.choose(alone, objective)
    if len(set(chosen.devices.values())) > 1:
        apart = placement.choose(placement.profile(model, shape, recorded=False, again=again), objective)
        single = chosen.best_single
        chosen = apart if single is None or apart.cost < single[1] else _on_one(alone, single[0], objective)
    if objective != "time":
        return chosen
    candidates = {tuple(one.devices.values()): one for one in [*(_on_one(alone, n, objective) for n in alone.names), chosen]}
    took = {names: _step_seconds(estimator, model, names, settings, data) for names in candidates}
    return candidates[min(took, key=lambda names: took[names])]


def _on_one(profile: Profile, name: str, objective: str) -> Placement:
    """Return the placement of all layers on one device."""
    from ..placement import placement

    return placement(profile, [name] * len(profile.stages), objective, profile.training)


def _run_on(names: Sequence[str], settings: FitSettings) -> tuple[Sequence[str], FitSettings]:
    """Return the devices of the layers, and the settings of a run that is as fast as possible there. If all layers are on one
    device, the run is on it, so that steps are recorded; "cpu:2" is then the CPU in a session of two threads.
    """
    if len(set(names)) > 1:
        return names, settings
    base, _, threads = names[0].partition(":")
    session = {**settings.session, "limit": int(threads)} if threads else settings.session
    return [base] * len(names), dataclasses.replace(settings, device=device(base), session=session)


def _step_seconds(estimator: Any, model: Sequential, names: Sequence[str], settings: FitSettings, data: Data) -> float:
    """Return the seconds of a training step of a copy of the model with its layers on these devices; inf if one fails."""
    names, settings = _run_on(names, settings)
    trial, dev = copy.deepcopy(model), settings.device
    trial.span(names)
    stepper = Stepper(
        trial,
        estimator._new_optimizer(trial),
        NoDropout(),
        estimator._task(),
        Streams.from_seed(0),
        dev,
        settings.batch_size,
        settings.session,
    )
    rows, seconds = min(settings.batch_size, len(data)), []
    part = Data(on_device(data.X[:rows], dev), data.y[:rows], None if data.weights is None else data.weights[:rows])
    try:
        for _ in range(WARM + TIMED):
            (batch,) = stepper.task.batches(part, rows, Streams.from_seed(0).rows, dev)
            began = time.perf_counter()
            stepper.step(part.X, batch, last=False)
            dev.synchronize()
            seconds.append(time.perf_counter() - began)
    except Exception as error:
        warn(f"objective: {' and '.join(dict.fromkeys(names))} cannot train this network: {type(error).__name__}: {error}")
        return math.inf
    return min(seconds[WARM:])


class Watched(Hook):
    """Records the time of a step beside the predicted one, and says if the profile is to be measured anew."""

    watches = False

    def __init__(self, chosen: Placement, samples: int, batch_size: int) -> None:
        self.predicted, self.steps, self.off = chosen.ms.value, math.ceil(samples / batch_size), False

    def epoch_end(self, run, record):
        took = 1e3 * record["seconds"] / self.steps
        if self.predicted is None:
            return {"step_ms": took}
        self.off = not 1 / OFF <= took / self.predicted <= OFF
        return {"step_ms": took, "predicted_step_ms": self.predicted}
