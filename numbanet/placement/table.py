"""Tables of times, power and energy: `Profile` holds what was measured of a model's layers on each device.

    Stage        one layer, or two layers that run fused: its shapes and sizes
    LayerTimes   figures of a stage on a device in one direction: forward, backward or update
    Transfer     figures of a move of an activation from one device to another one
    DeviceFacts  what is known of a device: the memory that it uses, the area of its die, its stated power

The quantities are those of CNNLab (Zhu et al. 2016, arXiv 1606.06234: performance, throughput, power, energy and performance
density on two devices), by layer and direction. A profile is saved as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..arguments import is_integer, is_real
from ..datasets.files import cache_folder, write_file
from .figures import NONE, ZERO, Figure, product, ratio, total

FORMAT, VERSION = "numbanet profile", 1
FORWARD, BACKWARD, UPDATE = DIRECTIONS = "forward", "backward", "update"
FITS: dict[str, Callable[[Any], bool]] = {  # the types of fields, and whether a value has the type
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": is_integer,
    "float": is_real,
    "float | None": lambda value: value is None or is_real(value),
    "Figure": lambda value: isinstance(value, Figure),
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(is_integer, value)),
}
AGAIN = "delete it, and measure again with numbanet.placement.profile or `numbanet devices --profile`"


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a model that runs on one device: a top-level layer, or layers that are computed together.

    Parameters
    ----------
    path : str
        The path of its first layer, such as "0".
    paths : tuple of str
        The paths of all its layers.
    layer : str
        What it is, for tables: "Conv2d + ReLU".
    kind : str
        Its types and what decides how it is computed, such as the size of a window: stages of one kind are predicted together.
    inputs, outputs : tuple of int
        Shapes of the activations, with the samples of the batch.
    parameters : int
        Number of trained values.
    differentiable : bool
        True if training computes a gradient with respect to its input.
    group : str, default=""
        The path of the first stage with which it shares parameters or buffers; "" if it shares none. A group is on one device.
    frozen : int, default=0
        Number of values of its frozen parameters, without those that an earlier stage has.
    shared : int, default=0
        How many of the trained values an earlier stage has: they are held and updated there.
    """

    path: str
    paths: tuple[str, ...]
    layer: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: int
    differentiable: bool
    group: str = ""
    frozen: int = 0
    shared: int = 0

    @property
    def megabytes(self) -> float:
        """MB (10^6 bytes) of its input, which is moved if the stage before it is on another device."""
        return 4e-6 * math.prod(self.inputs)

    def directions(self, training: bool) -> tuple[str, ...]:
        """Return the directions in which it computes anything."""
        backward = training and (self.parameters > 0 or self.differentiable)
        return (FORWARD, *[BACKWARD] * backward, *[UPDATE] * (training and self.updated > 0))

    @property
    def updated(self) -> int:
        """The number of values that its update changes: the trained ones that no earlier stage has."""
        return self.parameters - self.shared

    def memory(self, training: bool) -> float:
        """Return the MB that it needs on its device: its output, and the parameters that no earlier stage has; in training also
        the gradient of its output, and the gradient and the velocity of each parameter that is not frozen."""
        values = (math.prod(self.outputs) + self.updated) * (2 if training else 1) + self.updated * training + self.frozen
        return 4e-6 * values


@dataclasses.dataclass(frozen=True)
class LayerTimes:
    """Figures of a stage on a device in one direction, for one batch.

    Parameters
    ----------
    path, layer, device, direction : str
        The stage, and where and in which direction it was measured.
    ms : Figure
        Milliseconds.
    flops : float
        FLOPs of its matrix products and convolutions, as `Layer.cost` counts them; 0 if it has none.
    bytes : float
        Bytes moved if each operand is read or written once.
    watts, joules : Figure
        Power, and energy of one batch.
    """

    path: str
    layer: str
    device: str
    direction: str
    ms: Figure
    flops: float
    bytes: float
    watts: Figure = NONE
    joules: Figure = NONE

    @property
    def gflops(self) -> Figure:
        """GFLOP/s; unavailable if it has no FLOPs."""
        return ratio(self.flops / 1e6, self.ms)

    @property
    def gflops_per_watt(self) -> Figure:
        """GFLOP/s/W, which is GFLOP per joule."""
        return ratio(self.flops / 1e9, self.joules)

    def gflops_per_mm2(self, mm2: float | None) -> Figure:
        """Return the performance density in GFLOP/s/mm2 of a die of this area; unavailable without an area."""
        return NONE if not mm2 else self.gflops.times(1 / mm2)


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A move of an activation from the device `source` to the device `target`: latency_ms + ms_per_mb * MB."""

    source: str
    target: str
    ms_per_mb: Figure
    latency_ms: Figure = ZERO
    watts: Figure = NONE

    def ms(self, megabytes: float) -> Figure:
        """Return the milliseconds of a move of so many MB."""
        return total([self.latency_ms, self.ms_per_mb.times(megabytes)])

    def joules(self, megabytes: float) -> Figure:
        """Return the energy of a move of so many MB."""
        return product(self.ms(megabytes), self.watts, 1e-3)


@dataclasses.dataclass(frozen=True)
class DeviceFacts:
    """A device: its name, `home`, the device whose memory it uses, the area of its die, and its stated power in watts."""

    name: str
    home: str
    mm2: float | None = None
    watts: float | None = None


@dataclasses.dataclass(frozen=True)
class Profile:
    """What was measured of a model's stages on each device.

    Parameters
    ----------
    machine, date : str
        The processor and the GPU, and when it was measured.
    versions : dict of str to str
        The versions of the libraries that computed; a profile is measured anew if they change.
    shape : tuple of int
        Shape of the batch.
    training : bool
        True if backward and update were measured.
    devices : tuple of DeviceFacts
        The devices; the order decides between equal placements.
    stages : tuple of Stage
        The stages, in order: a chain.
    entries : tuple of LayerTimes
        Figures by stage, device and direction. If a device lacks a stage, it cannot be placed there.
    transfers : tuple of Transfer
        Figures by pair of devices that use different memory.
    settings : dict
        How it was measured, such as whether recordings were replayed.
    changes : tuple of Transfer
        Figures by pair of devices of one memory: nothing is moved there, but the threads of one may still be awake when the
        other begins. Without a figure a change costs nothing.
    """

    machine: str
    date: str
    versions: Mapping[str, str]
    shape: tuple[int, ...]
    training: bool
    devices: tuple[DeviceFacts, ...]
    stages: tuple[Stage, ...]
    entries: tuple[LayerTimes, ...]
    transfers: tuple[Transfer, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    changes: tuple[Transfer, ...] = ()

    def __post_init__(self) -> None:
        names = set(self.names)
        if lacking := {entry.device for entry in self.entries} - names:
            raise ValueError(f"Profile: entries of {_list(lacking)}, but its devices are {_list(names)}")
        if lacking := {entry.path for entry in self.entries} - {stage.path for stage in self.stages}:
            raise ValueError(f"Profile: entries of the layers {_list(lacking)}, which are not among its stages")
        by = {(entry.path, entry.device, entry.direction): entry for entry in self.entries}
        pairs = {(transfer.source, transfer.target): transfer for transfer in self.transfers}
        vars(self).update(_by=by, _pairs=pairs, _costs={}, _changes={(c.source, c.target): c for c in self.changes})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(facts.name for facts in self.devices)

    def facts(self, device: str) -> DeviceFacts:
        """Return the facts of a device; raise ValueError if it was not measured."""
        for facts in self.devices:
            if facts.name == device:
                return facts
        raise ValueError(f"the profile has no device {device!r}; it has {_list(self.names)}")

    def of(self, path: str, device: str, direction: str) -> LayerTimes | None:
        """Return the figures of a stage on a device in a direction; None if there are none."""
        return vars(self)["_by"].get((path, device, direction))

    def cost(self, stage: Stage, device: str, training: bool) -> tuple[Figure, Figure]:
        """Return (milliseconds, joules) of a stage on a device, over all its directions."""
        known, key = vars(self)["_costs"], (stage.path, device, training)
        if key not in known:
            entries = [self.of(stage.path, device, direction) for direction in stage.directions(training)]
            known[key] = (
                total(NONE if entry is None else entry.ms for entry in entries),
                total(NONE if entry is None else entry.joules for entry in entries),
            )
        return known[key]

    def transfer(self, source: str, target: str, megabytes: float) -> tuple[Figure, Figure]:
        """Return (milliseconds, joules) of a move of so many MB, or of a change between devices of one memory: 0 if it was not
        measured."""
        homes = self.facts(source).home, self.facts(target).home
        if homes[0] == homes[1]:
            change = vars(self)["_changes"].get((source, target))
            return (ZERO, ZERO) if change is None else (change.ms(0.0), change.joules(0.0))
        found = vars(self)["_pairs"].get((source, target)) or vars(self)["_pairs"].get(homes)
        return (NONE, NONE) if found is None else (found.ms(megabytes), found.joules(megabytes))

    def moved(self, stage: Stage, source: str, target: str, back: bool) -> tuple[Figure, Figure]:
        """Return (milliseconds, joules) of moving the input of a stage to another device, and, if `back`, its gradient back."""
        ways = [self.transfer(source, target, stage.megabytes)]
        if back:
            ways.append(self.transfer(target, source, stage.megabytes))
        return total(ms for ms, _ in ways), total(joules for _, joules in ways)

    # --- files --------------------------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike) -> Path:
        """Write the profile to a JSON file, completely or not at all, and return its path."""
        record = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        write_file(Path(path), (json.dumps(record, indent=1) + "\n").encode())
        return Path(path)

    @staticmethod
    def load(path: str | os.PathLike) -> Profile:
        """Read a profile from a file.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If the file is not a profile, or one of another version of the format; the message names the file.
        """
        path = Path(path)
        try:
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no profile {str(path)!r}; {AGAIN.partition(', and ')[2]}") from None
        except (OSError, ValueError) as error:
            raise ValueError(f"{str(path)!r} cannot be read as a profile ({error}): {AGAIN}") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{str(path)!r} is not a profile of numbanet: name another file, or {AGAIN}")
        if record.get("version") != VERSION:
            raise ValueError(
                f"{str(path)!r} is a profile of version {record.get('version')!r}, this numbanet reads {VERSION}: {AGAIN}"
            )
        try:
            return _profile(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{str(path)!r} is a damaged profile ({type(error).__name__}: {error}): {AGAIN}") from error


def folder() -> Path:
    """Return the folder of this machine's profiles: `profiles` in numbanet's cache folder, or NUMBANET_PROFILES."""
    chosen = os.environ.get("NUMBANET_PROFILES")
    return Path(chosen).expanduser() if chosen else cache_folder() / "profiles"


def _profile(record: dict[str, Any]) -> Profile:
    """Return the profile of a record that was read from JSON."""
    return Profile(
        machine=str(record["machine"]),
        date=str(record["date"]),
        versions=dict(record["versions"]),
        shape=tuple(map(int, record["shape"])),
        training=bool(record["training"]),
        devices=tuple(_made(DeviceFacts, facts) for facts in record["devices"]),
        stages=tuple(_made(Stage, stage) for stage in record["stages"]),
        entries=tuple(_made(LayerTimes, entry) for entry in record["entries"]),
        transfers=tuple(_made(Transfer, transfer) for transfer in record["transfers"]),
        settings=dict(record["settings"]),
        changes=tuple(_made(Transfer, change) for change in record.get("changes", ())),
    )


def _made(kind: Any, entry: dict[str, Any]) -> Any:
    """Return an object of a dataclass from its values in JSON; raise TypeError if one has another type than its field."""
    values = {}
    for key, value in entry.items():
        wanted = kind.__dataclass_fields__[key].type
        if isinstance(value, list):
            value = tuple(value)
        if wanted == "Figure" and isinstance(value, dict):
            value = Figure(**value)
        if not FITS[wanted](value):
            raise TypeError(f"{key} must be {wanted}, got {value!r}")
        values[key] = value
    return kind(**values)


def _list(names: Any) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
