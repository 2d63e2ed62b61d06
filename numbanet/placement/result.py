"""`Placement`: the device of each layer, with the predicted time and energy of a step; printed as a table."""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from .figures import NONE, ZERO, Figure, product, total
from .table import Profile

LONGEST = 80  # characters of a layer in a table


class Placed(NamedTuple):
    """One stage of a placement: its layers, its device, its own cost, and that of moving its input and the gradient of it."""

    paths: tuple[str, ...]
    layer: str
    device: str
    ms: Figure
    joules: Figure
    transfer_ms: Figure
    transfer_joules: Figure


class Tried(NamedTuple):
    """A placement of which whole steps were measured: the device of each stage, the predicted and the measured milliseconds."""

    devices: tuple[str, ...]
    predicted: Figure
    ms: Figure


@dataclasses.dataclass(frozen=True)
class Placement:
    """The device of each layer of a model.

    Parameters
    ----------
    objective : "time", "energy" or "edp"
        What was minimised.
    training : bool
        True if the costs are those of a training step, False if they are those of a forward pass.
    stages : tuple of Placed
        The stages, in order.
    machine : str
        Where the figures were measured.
    singles : dict of str to (Figure, Figure)
        For each device that has figures of all stages, the milliseconds and joules of a step on this device alone.
    step_ms : Figure
        The milliseconds of a whole step, if it was measured before the choice was made (`choose(measure=...)`).
    tried : tuple of Tried
        The placements that were measured, and what they were predicted to take; empty if none was.
    """

    objective: str
    training: bool
    stages: tuple[Placed, ...]
    machine: str
    singles: dict[str, tuple[Figure, Figure]]
    step_ms: Figure = NONE
    tried: tuple[Tried, ...] = ()

    @property
    def devices(self) -> dict[str, str]:
        """{path of a top-level layer: name of its device}, in order."""
        return {path: stage.device for stage in self.stages for path in stage.paths}

    @property
    def ms(self) -> Figure:
        """The predicted milliseconds of a step, with transfers."""
        return total(figure for stage in self.stages for figure in (stage.ms, stage.transfer_ms))

    @property
    def joules(self) -> Figure:
        """The predicted joules of a step, with transfers."""
        return total(figure for stage in self.stages for figure in (stage.joules, stage.transfer_joules))

    @property
    def cost(self) -> float:
        """The value of the objective: ms, J, or ms * J; inf if a figure that it needs is unavailable."""
        return self._objective(self.ms, self.joules).number

    def _objective(self, ms: Figure, joules: Figure) -> Figure:
        return {"time": ms, "energy": joules, "edp": product(ms, joules)}[self.objective]

    @property
    def best_single(self) -> tuple[str, float] | None:
        """(device, value of the objective) of the best device alone; None if no device has all figures."""
        costs = {name: self._objective(*figures).number for name, figures in self.singles.items()}
        best = min(costs, key=lambda name: costs[name], default=None)
        return None if best is None or costs[best] == float("inf") else (best, costs[best])

    def __str__(self) -> str:
        """Return a table of the stages, their devices and their figures."""
        from rich import box
        from rich.console import Console
        from rich.table import Table

        step = "training step" if self.training else "forward pass"
        table = Table(
            title=f"placement by {self.objective}: a {step}",
            box=box.SIMPLE_HEAD,
            show_footer=True,
            title_justify="left",
            caption="~ is estimated, - is unavailable",
        )
        moves = total(stage.transfer_ms for stage in self.stages)
        for name, foot in (
            ("", ""),
            ("layer", ""),
            ("device", ""),
            ("ms", total(stage.ms for stage in self.stages).shown()),
            ("transfer ms", moves.shown()),
            ("J", self.joules.shown()),
        ):
            table.add_column(name, foot, justify="right" if name in ("ms", "transfer ms", "J") else "left", no_wrap=True)
        for stage in self.stages:
            path = stage.paths[0] if len(stage.paths) == 1 else f"{stage.paths[0]}-{stage.paths[-1]}"
            moved = "" if stage.transfer_ms is ZERO else stage.transfer_ms.shown()
            layer = stage.layer if len(stage.layer) <= LONGEST else f"{stage.layer[: LONGEST - 1]}…"
            table.add_row(path, layer.replace("[", "\\["), stage.device, stage.ms.shown(), moved, stage.joules.shown())
        file = io.StringIO()
        Console(file=file, width=160).print(table)
        singles = ", ".join(f"{name} {ms.shown()} ms {joules.shown()} J" for name, (ms, joules) in self.singles.items())
        lines = [line.rstrip() for line in file.getvalue().rstrip().splitlines()]
        lines.append(f"sum: {self.ms.shown()} ms, {self.joules.shown()} J; on one device: {singles or '-'}")
        if self.tried:
            measured = ", ".join(f"{_short(each.devices)} {each.ms.shown()} ms" for each in self.tried)
            lines.append(f"whole steps, measured: {self.step_ms.shown()} ms; of {measured}")
        return "\n".join(lines)


def _short(devices: Sequence[str]) -> str:
    """Return the devices of stages as text: one name if they are equal, else the names and how often they follow each other."""
    runs = [(name, len(list(same))) for name, same in itertools.groupby(devices)]
    return runs[0][0] if len(runs) == 1 else "[" + " ".join(name if n == 1 else f"{n} {name}" for name, n in runs) + "]"


def placement(profile: Profile, devices: Sequence[str], objective: str, training: bool, start: str | None = None) -> Placement:
    """Return the placement of each stage of a profile on these devices, with the sums of its figures.

    Raises
    ------
    ValueError
        If there are not as many devices as stages, or the profile lacks a device.
    """
    if len(devices) != len(profile.stages):
        raise ValueError(f"placement: {len(devices)} devices for {len(profile.stages)} stages; give one device for each stage")
    placed, before = [], start
    for i, (stage, device) in enumerate(zip(profile.stages, devices)):
        profile.facts(device)
        moves = (ZERO, ZERO)
        if before is not None and before != device:
            moves = profile.moved(stage, before, device, bool(i) and training and stage.differentiable)
        placed.append(Placed(stage.paths, stage.layer, device, *profile.cost(stage, device, training), *moves))
        before = device
    singles = {name: _alone(profile, name, training, start) for name in profile.names}
    return Placement(
        objective, training, tuple(placed), profile.machine, {name: pair for name, pair in singles.items() if pair[0].known}
    )


def _alone(profile: Profile, device: str, training: bool, start: str | None) -> tuple[Figure, Figure]:
    """Return (milliseconds, joules) of a step on one device, to which the batch is moved from the device `start`; unavailable
    if it lacks a stage.
    """
    costs = [profile.cost(stage, device, training) for stage in profile.stages]
    if start not in (None, device) and costs:
        costs.append(profile.moved(profile.stages[0], start, device, False))
    return (total(ms for ms, _ in costs), total(joules for _, joules in costs)) if costs else (NONE, NONE)
