"""`choose`: the device of each layer of a chain, by time, energy or their product; exact for the figures of a profile.

Let c_i(d) be the cost of stage i on device d, forward, backward and update together, and t_i(d, e) that of moving the input of
stage i from d to e, and in training its gradient back. The dynamic programme

    best_i(e) = c_i(e) + min over d of (best_(i-1)(d) + t_i(d, e))

is exact if costs add up, as times and energies do. The energy-delay product does not, and memory limits are not of one stage:
then best_i(e) is a set, the Pareto front of (time, energy, memory of each limited device). What is dominated at a stage is
dominated after all later stages, because these add the same to both; so the best placement is never left out.

Stages that share tensors, such as a layer that is used twice, must be on one device. So best_i(e) is kept for each device
of each group of such stages that begins before stage i + 1 and ends after stage i (`State`).

CNNLab (Zhu et al. 2016, arXiv 1606.06234) weighs a GPU against an FPGA by such figures before it offloads a task.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..arguments import is_real
from .figures import MEASURED, Figure, total
from .race import Measure, distinct, fastest
from .result import Placement, placement
from .table import Profile, Stage

TIME, ENERGY, EDP = OBJECTIVES = "time", "energy", "edp"
State = tuple[str, tuple[tuple[str, str], ...]]  # the device of a stage, and (group, its device) of groups that go on after it
MANY = 200  # placements among which those that are measured are chosen


def choose(
    profile: Profile,
    objective: str = TIME,
    memory: Mapping[str, float] | None = None,
    *,
    prediction: bool | None = None,
    what_if: bool = False,
    start: str | None = None,
    alone: Profile | None = None,
    measure: Measure | None = None,
    most: int = 4,
) -> Placement:
    """Return the placement with the least time, energy or energy-delay product of a step.

    Sums of the times of layers rank placements, but a whole step may take another time. With `measure`, whole steps of the
    best placements and of each device alone are therefore measured in turns, and the fastest one is returned: so the choice is
    not slower than the best single device, up to the noise of measurement.

    Parameters
    ----------
    profile : Profile
        Figures by stage and device.
    objective : "time", "energy" or "edp", default="time"
        Milliseconds, joules, or their product.
    memory : mapping of str to float, optional
        The largest MB that stages may need on a device (`Stage.memory`). Devices that share a memory share its limit, which is
        named by the device that owns it: "cpu" for "cpu:1".
    prediction : bool, optional
        If True, only forward passes count; by default if the profile has nothing else.
    what_if : bool, default=False
        If True, estimated figures compete with measured ones. By default an estimate never decides against a measurement: a
        device with estimates is not chosen for a stage of which another device has measurements.
    start : str, optional
        The device on which the batch is, so that moving it counts; by default it is where the first stage is.
    alone : Profile, optional
        Figures for placements on one device; by default `profile`. Give them if `profile` was measured op by op
        (`recorded=False`), because steps on one device are recorded. They must be of the same stages and devices.
    measure : callable, optional
        (list of Placement) -> milliseconds of a whole step of each, inf if it cannot be made, as `placement.steps(model, X, y)`
        gives it. Only for the time of training. The result has the time in `step_ms`, and all measured placements in `tried`.
    most : int, default=4
        How many placements on several devices are measured: the best ones by prediction, of which no two are nearly equal.

    Raises
    ------
    ValueError
        If the objective or a device is unknown, the figures that it needs are missing, nothing fits the memory, `alone` differs
        in stages, devices or `training`, steps are measured for another objective than time, or none can be made.
    TypeError
        If an argument is of another kind.
    """
    problem = _Problem(profile, objective, memory, prediction, what_if, start)
    _check(problem, alone, measure)
    if measure is None and alone is None:
        return placement(profile, problem.solve(), objective, problem.training, start)
    many = _Problem(profile, objective, memory, prediction, what_if, start, keep=MANY if measure else len(profile.names) + 1)
    singles, mixed = many.one_and_several(alone or profile)
    if measure is None:
        return min([*singles, *mixed], key=lambda each: each.cost)
    return fastest([*singles, *distinct(profile, mixed, most)], measure)


def _check(problem: _Problem, alone: Any, measure: Any) -> None:
    """Raise an error unless `alone` and `measure` of `choose` are what they must be, or None."""
    for name, given, fits in (("alone", alone, isinstance(alone, Profile)), ("measure", measure, callable(measure))):
        if given is not None and not fits:
            wanted = {"alone": "a Profile", "measure": "a function, as placement.steps(model, X, y) returns"}[name]
            raise TypeError(f"choose: {name} must be {wanted}, got {given!r}")
    if alone is not None:
        what = _difference(alone, problem.profile)
        if what is not None:
            advice = "measure both with the same model, shape, devices and training"
            raise ValueError(f"choose: alone must be of the same {what} as profile; {advice}")
    if measure is not None and (problem.objective != TIME or not problem.training):
        what = "the forward pass" if problem.objective == TIME else f"the objective {problem.objective!r}"
        raise ValueError(f"choose: measure gives times of training steps, not {what}; leave it out")


def _difference(alone: Profile, profile: Profile) -> str | None:
    """Return in what two profiles differ that must be alike; None if in nothing."""
    if alone.training != profile.training:
        return "training"
    if alone.stages != profile.stages:
        return "stages"
    return "devices" if set(alone.names) != set(profile.names) else None


def enumerate_all(
    profile: Profile,
    objective: str = TIME,
    memory: Mapping[str, float] | None = None,
    *,
    prediction: bool | None = None,
    what_if: bool = False,
    start: str | None = None,
) -> Iterator[Placement]:
    """Yield every placement among which `choose` chooses, for short chains: of s stages on d devices there are up to d ** s."""
    problem = _Problem(profile, objective, memory, prediction, what_if, start, owner="enumerate_all")
    for devices in itertools.product(*problem.candidates):
        chosen = {(stage.group, device) for stage, device in zip(profile.stages, devices) if stage.group}
        if len(chosen) > len({group for group, _ in chosen}):
            continue
        used = dict.fromkeys(problem.limits, 0.0)
        for stage, device in zip(profile.stages, devices):
            home = profile.facts(device).home
            if home in used:
                used[home] += stage.memory(problem.training)
        found = placement(profile, devices, objective, problem.training, start)
        if all(used[home] <= limit for home, limit in problem.limits.items()) and math.isfinite(found.cost):
            yield found


def pareto(
    profile: Profile, memory: Mapping[str, float] | None = None, *, prediction: bool | None = None, what_if: bool = False
) -> list[Placement]:
    """Return the placements that no other one beats in time and energy, the fastest first (the parameters of `choose`)."""
    problem = _Problem(profile, EDP, memory, prediction, what_if, None, owner="pareto")
    fronts = problem.fronts()
    ends = [(values[:2], state, label) for state, found in fronts[-1].items() for label, values in enumerate(found.costs)]
    kept = front(np.array([values for values, *_ in ends]))
    found = (problem.backwards(fronts, *ends[i][1:]) for i in kept)
    return [placement(profile, devices, EDP, problem.training) for devices in found]


class _Front:
    """`costs` (n, k) that are not dominated (`front`), and for each of them its `origin`: the state of the stage before, and
    the row of that state's costs."""

    def __init__(self, costs: np.ndarray, origin: np.ndarray) -> None:
        self.costs, self.origin = costs, origin


class _Problem:
    """The costs of a profile under an objective."""

    def __init__(
        self,
        profile: Profile,
        objective: str,
        memory: Mapping[str, float] | None,
        prediction: bool | None,
        what_if: bool,
        start: str | None,
        keep: int = 1,
        owner: str = "choose",
    ) -> None:
        if not isinstance(profile, Profile):
            raise TypeError(f"{owner}: profile must be a Profile, as numbanet.placement.profile returns, got {profile!r}")
        if objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {', '.join(map(repr, OBJECTIVES))}, got {objective!r}")
        if not profile.stages:
            raise ValueError(f"{owner}: the profile has no layers")
        if prediction is False and not profile.training:
            raise ValueError(f"{owner}: the profile has only forward passes; measure it with training=True")
        self.profile, self.objective, self.start, self.keep, self.owner = profile, objective, start, keep, owner
        self.training = profile.training and not prediction
        if start is not None:
            profile.facts(start)
        self.limits, self.count = _limits(profile, memory), 2 if objective == EDP else 1
        self.last = {stage.group: i for i, stage in enumerate(profile.stages)}  # of each group
        together = [[each for each in profile.stages if stage.group and each.group == stage.group] for stage in profile.stages]
        self.candidates = [
            self._candidates(others or [stage], what_if) for stage, others in zip(profile.stages, together, strict=True)
        ]

    def _wanted(self, ms: Figure, joules: Figure) -> tuple[Figure, ...]:
        """Return the figures that the objective needs."""
        return {TIME: (ms,), ENERGY: (joules,), EDP: (ms, joules)}[self.objective]

    def _candidates(self, stages: Sequence[Stage], what_if: bool) -> list[str]:
        """Return the devices that have the figures of all the stages: those with measurements, if there are any."""
        tags = {}
        for device in self.profile.names:
            figures = self._wanted(*self._together(stages, device))
            if all(figure.known for figure in figures):
                tags[device] = total(figures).tag
        if not tags:
            raise ValueError(self._lacking(stages))
        best = [device for device, tag in tags.items() if what_if or tag == MEASURED]
        return best or list(tags)

    def _together(self, stages: Sequence[Stage], device: str) -> tuple[Figure, Figure]:
        """Return (milliseconds, joules) of stages on a device."""
        costs = [self.profile.cost(stage, device, self.training) for stage in stages]
        return total(ms for ms, _ in costs), total(joules for _, joules in costs)

    def _lacking(self, stages: Sequence[Stage]) -> str:
        """Return the message for stages of which no device has the figures: what is there, and what to do."""
        which = f"layer {stages[0].path} ({stages[0].layer})"
        if len(stages) > 1:
            which = f"all of the layers {', '.join(stage.path for stage in stages)}, which share tensors"
        needed = {TIME: "ms", ENERGY: "joules", EDP: "ms and joules"}[self.objective]
        there = []
        for device in self.profile.names:
            ms, joules = self._together(stages, device)
            there.append(f"{device!r} has ms {ms.tag} and joules {joules.tag}")
        advice = "measure with a meter, or state the power of each device with profile(..., watts={'cpu': ...})"
        return (
            f"objective {self.objective!r} needs {needed} of each layer, and no device has them for {which}: "
            f"{'; '.join(there)}. "
            + (f"{advice}; or choose objective 'time'" if self.objective != TIME else "measure the layer on a device")
        )

    # --- costs as vectors ---------------------------------------------------------------------------------------------
    def _stage(self, stage: Stage, device: str) -> np.ndarray:
        """Return the cost of a stage on a device: its objectives, then the MB on each limited device."""
        figures = self._wanted(*self.profile.cost(stage, device, self.training))
        home, megabytes = self.profile.facts(device).home, stage.memory(self.training)
        return np.array([*(figure.number for figure in figures), *(megabytes * (home == limited) for limited in self.limits)])

    def _move(self, stage: Stage, source: str, target: str, back: bool) -> np.ndarray:
        """Return the cost of moving the input of a stage, and of moving its gradient `back`."""
        figures = self.profile.moved(stage, source, target, back)
        return np.array([*(figure.number for figure in self._wanted(*figures)), *(0.0 for _ in self.limits)])

    def _held(self, i: int, device: str, before: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...] | None:
        """Return the groups that go on after stage i, with their devices; None if its group is on another device `before`."""
        held, group = dict(before), self.profile.stages[i].group
        if group and held.setdefault(group, device) != device:
            return None
        return tuple(sorted((group, name) for group, name in held.items() if self.last[group] > i))

    def _reach(self, before: dict[State, _Front], i: int, device: str) -> dict[State, _Front]:
        """Return the fronts of stage i on a device, from those of the stage before it."""
        ways: dict[State, list[int]] = {}  # the states from which each state is reached
        for number, (_, held) in enumerate(before):
            after = self._held(i, device, held)
            if after is not None:
                ways.setdefault((device, after), []).append(number)
        return {state: self._from(before, numbers, i, device) for state, numbers in ways.items()}

    def _from(self, before: dict[State, _Front], numbers: Sequence[int], i: int, device: str) -> _Front:
        """Return the front of stage i on a device, from those of the states with these numbers."""
        stage, states = self.profile.stages[i], list(before)
        parts, origins = [], []
        for number in numbers:
            source, front = states[number][0], before[states[number]]
            move = self._move(stage, source, device, self.training and stage.differentiable)
            parts.append(front.costs + move)
            origins.append(np.stack([np.full(len(front.costs), number), np.arange(len(front.costs))], 1))
        costs, origin = np.concatenate(parts) + self._stage(stage, device), np.concatenate(origins)
        return self._kept(costs, origin)

    def _kept(self, costs: np.ndarray, origin: np.ndarray) -> _Front:
        """Return the front of what is finite and fits the limits."""
        fits = np.isfinite(costs).all(1)
        for k, limit in enumerate(self.limits.values()):
            fits &= costs[:, costs.shape[1] - len(self.limits) + k] <= limit
        costs, origin = costs[fits], origin[fits]
        chosen = front(costs, self.keep)
        return _Front(costs[chosen], origin[chosen])

    def takes(self, device: str) -> bool:
        """Return True if all stages may be on this device."""
        used = math.fsum(stage.memory(self.training) for stage in self.profile.stages)
        fits = used <= self.limits.get(self.profile.facts(device).home, math.inf)
        return fits and all(device in candidates for candidates in self.candidates)

    def solve(self) -> list[str]:
        """Return the best device of each stage."""
        return self.ranked()[0]

    def ranked(self) -> list[list[str]]:
        """Return the devices of the stages in the best `keep` placements, the best one first."""
        fronts = self.fronts()
        ends = [(values, state, label) for state, found in fronts[-1].items() for label, values in enumerate(found.costs)]
        ends.sort(key=lambda end: float(np.prod(end[0][: self.count])))
        return [self.backwards(fronts, *end[1:]) for end in ends[: self.keep]]

    def one_and_several(self, alone: Profile) -> tuple[list[Placement], list[Placement]]:
        """Return the placements on one device, with the figures of `alone`, and the best of those on several devices: one at
        least, if there are any and more are kept than there are devices."""
        names, how = [name for name in self.profile.names if self.takes(name)], (self.objective, self.training, self.start)
        singles = [placement(alone, [name] * len(self.profile.stages), *how) for name in names]
        return singles, [placement(self.profile, each, *how) for each in self.ranked() if len(set(each)) > 1]

    def fronts(self) -> list[dict[State, _Front]]:
        """Return the front of each stage in each state."""
        stages, fronts = self.profile.stages, list[dict[State, _Front]]()
        for i, stage in enumerate(stages):
            here: dict[State, _Front] = {}
            for device in self.candidates[i]:
                if i:
                    found = self._reach(fronts[-1], i, device)
                else:
                    cost = self._stage(stage, device)
                    if self.start is not None:
                        cost = cost + self._move(stage, self.start, device, False)
                    found = {(device, self._held(i, device, ()) or ()): self._kept(cost[None], np.zeros((1, 2), int))}
                here.update({state: front for state, front in found.items() if len(front.costs)})
            if not here:
                raise ValueError(self._nowhere(stage))
            fronts.append(here)
        return fronts

    def backwards(self, fronts: list[dict[State, _Front]], state: State, label: int) -> list[str]:
        """Return the devices on the way to row `label` of the last stage's front in a state."""
        chosen = []
        for i in reversed(range(len(fronts))):
            chosen.append(state[0])
            number, label = map(int, fronts[i][state].origin[label])
            state = list(fronts[i - 1])[number] if i else state
        return chosen[::-1]

    def _nowhere(self, stage: Stage) -> str:
        limits = ", ".join(f"{home}: {limit:g} MB" for home, limit in self.limits.items()) or "none"
        return (
            f"{self.owner}: no device can take layer {stage.path} ({stage.layer}), which needs "
            f"{stage.memory(self.training):.3g} MB: the memory limits are {limits}, "
            "and transfers without figures are not used. Raise the limits or measure transfers"
        )


def front(costs: np.ndarray, keep: int = 1) -> np.ndarray:
    """Return the indices of the rows of `costs` (n, k) that fewer than `keep` other rows dominate, sorted by the first column;
    of equal rows at most `keep`. The best `keep` rows by any increasing function are among them."""
    order = np.lexsort(costs.T[::-1])
    if costs.shape[1] == 1:
        return order[:keep]
    if keep > 1:
        ranked = costs[order]
        beaten = [int((ranked[:i] <= row).all(1).sum()) for i, row in enumerate(ranked)]
        return order[np.array(beaten) < keep]
    if costs.shape[1] == 2:
        second = costs[order, 1]
        least = np.minimum.accumulate(np.concatenate([[np.inf], second[:-1]]))
        return order[second < least]
    kept: list[int] = []
    for row in order:
        if not kept or not (costs[kept] <= costs[row]).all(1).any():
            kept.append(int(row))
    return np.array(kept, int)


def _limits(profile: Profile, memory: Mapping[str, float] | None) -> dict[str, float]:
    """Return the limits, by the device that owns the memory."""
    homes, limits = {facts.home for facts in profile.devices}, {}
    if memory is not None and not isinstance(memory, Mapping):
        raise TypeError(f"memory must be a dict of MB by device, such as {{'cpu': 500}}, got {memory!r}")
    for name, limit in (memory or {}).items():
        if name not in homes:
            raise ValueError(f"memory: there is no memory of {name!r}; the profile has {', '.join(map(repr, sorted(homes)))}")
        if not is_real(limit) or not limit >= 0:
            raise ValueError(f"memory: the limit of {name!r} must be a number of MB of at least 0, got {limit!r}")
        limits[name] = float(limit)
    return limits
