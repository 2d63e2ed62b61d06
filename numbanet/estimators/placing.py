"""`Placing`: the parameter `objective` of an estimator, which lets measured times or energies choose the device of each layer.

CNNLab (Zhu et al. 2016, abstract): users describe a network once, and the framework decides at run time where each layer runs.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..device import Device
from ..dropout import NoDropout
from ..layers import ActivationSpec, Context, Sequential, Tree
from ..plans import Plan, Site
from ..tensor import Tensor
from ..training.data import Data
from ..training.hooks import Hook
from ..training.optim import Optimizer
from ..training.stepper import Stepper
from ..training.streams import Streams
from .settings import FitSettings

if TYPE_CHECKING:
    from ..placement import Placement

DRAWN = 16  # plans of which a typical one is measured
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

    Layers are measured (`placement.profile`) with plans as the policy draws them: recorded as they run on one device, and op by
    op as they run on several. By time, whole steps of the best placements and of each single device then decide.
    """
    from .. import placement

    model, objective = estimator.model_, estimator.objective
    shape = settings.batch_size, *data.X.shape[1:]
    how: dict[str, Any] = {"again": again, "plans": _typical(model, settings, shape), "optimizer": _Resting(estimator)}
    alone = placement.profile(model, shape, **how)
    if len(alone.names) == 1:
        return placement.choose(alone, objective)
    apart = placement.profile(model, shape, recorded=False, **how)
    measure = functools.partial(_step_ms, estimator, model, settings, data) if objective == "time" else None
    return placement.choose(apart, objective, alone=alone, measure=measure)


class _Resting:
    """Makes optimisers of the kind of an estimator whose updates change nothing."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = copy.copy(estimator).set_params(learning_rate=0.0)

    def __call__(self, parameters: list[Tensor]) -> Optimizer:
        return self.estimator._make_optimizer(parameters)


def _typical(model: Sequential, settings: FitSettings, shape: tuple[int, ...]) -> dict[Site, Plan] | None:
    """Return the plans of a step, of several that the policy draws those whose FLOPs are nearest to the mean; None if it draws
    none, or chooses plans from data."""
    policy, tree, rng = settings.policy.at(0), Tree(model), np.random.default_rng(0)
    if policy.data_dependent:
        return None
    drawn = [policy.plans(tree, rng) for _ in range(DRAWN)]
    if not any(drawn):
        return None
    steps = [{site: plans[site.path] for site in policy.sites(tree) if site.path in plans} for plans in drawn]
    contexts = [Context("cpu", plans, True, model=model) for plans in steps]
    flops = np.array([model.cost(ActivationSpec(shape), context.plans)[0].flops for context in contexts])
    return steps[int(np.argmin(np.abs(flops - flops.mean())))]


def _step_ms(
    estimator: Any, model: Sequential, settings: FitSettings, data: Data, placements: Sequence[Placement]
) -> list[float]:
    """Return the milliseconds of a training step of copies of the model with each of these placements; inf if one fails."""
    from ..placement import race

    policy = NoDropout() if settings.policy.data_dependent else settings.policy.at(0)

    def make(trial: Sequential, dev: Device, limit: int | None) -> Stepper:
        session = settings.session if limit is None else {**settings.session, "limit": limit}
        parts = trial, estimator._new_optimizer(trial), policy, estimator._task()
        return Stepper(*parts, Streams.from_seed(0), dev, settings.batch_size, session)

    rows = min(settings.batch_size, len(data))
    some = Data(data.X[:rows], data.y[:rows], None if data.weights is None else data.weights[:rows])
    return race.in_turns([race.run(model, list(each.devices.values()), make, some, rows) for each in placements])


def _run_on(names: Sequence[str], settings: FitSettings) -> tuple[Sequence[str], FitSettings]:
    """Return the devices of the layers, and the settings of a run that is as fast as possible there (`race.where`)."""
    from ..placement import race

    layers, dev, limit = race.where(names)
    if len(set(names)) > 1:
        return layers, settings
    session = settings.session if limit is None else {**settings.session, "limit": limit}
    return layers, dataclasses.replace(settings, device=dev, session=session)


class Watched(Hook):
    """Records the time of a step beside the predicted one, and says if the profile is to be measured anew."""

    watches = False

    def __init__(self, chosen: Placement, samples: int, batch_size: int) -> None:
        expected = chosen.step_ms if chosen.step_ms.known else chosen.ms  # of whole steps, if they were measured
        self.predicted, self.steps, self.off = expected.value, math.ceil(samples / batch_size), False

    def epoch_end(self, run, record):
        took = 1e3 * record["seconds"] / self.steps
        if self.predicted is None:
            return {"step_ms": took}
        self.off = not 1 / OFF <= took / self.predicted <= OFF
        return {"step_ms": took, "predicted_step_ms": self.predicted}
