"""Meters of energy: NVML's counter, Linux powercap (RAPL), a user's counter, or an estimate from stated watts.

CNNLab (Zhu et al. 2016) compares devices by power and energy. A meter returns joules so far; a layer is repeated for a
window of at least a second, because counters are updated every 1 to 100 ms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..arguments import is_real
from . import facts
from .figures import ESTIMATED, NONE, Figure

POWERCAP = Path("/sys/class/powercap")
WINDOW = 1.0  # seconds


class Meter(NamedTuple):
    """A counter of energy: its name, and a function that returns the joules so far."""

    name: str
    joules: Callable[[], float]


def nvml(index: int = 0) -> Meter | None:
    """Return the energy counter of a GPU; None without NVML, or if the GPU has none (before Volta)."""
    library = facts.nvml()
    if library is None:
        return None
    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
        library.nvmlDeviceGetTotalEnergyConsumption(handle)
    except library.NVMLError:
        return None
    return Meter("NVML", lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)  # it counts millijoules


def rapl(root: Path = POWERCAP) -> Meter | None:
    """Return the sum of the energy counters of all CPU packages; None if there are none, or they may not be read. Other zones
    are left out: the cores are counted in their package, and the packages in `psys`, the whole platform.
    """
    counters = []
    for zone in sorted(root.glob("*-rapl:*")):
        if zone.name.count(":") == 1:  # not a part of a package
            try:
                if (zone / "name").read_text().startswith("package"):
                    counters.append(_Zone(zone))
            except (OSError, ValueError):
                return None
    return Meter("RAPL", lambda: math.fsum(counter.joules() for counter in counters)) if counters else None


class _Zone:
    """A counter in microjoules that begins again at 0 after its range."""

    def __init__(self, zone: Path) -> None:
        self.file, self.range = zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())
        self.last, self.wrapped = self.read(), 0

    def read(self) -> int:
        return int(self.file.read_text())

    def joules(self) -> float:
        value = self.read()
        self.wrapped += self.range * (value < self.last)
        self.last = value
        return (self.wrapped + value) / 1e6


def meter(
    device: str, on_host: bool, on_card: bool, given: Callable[[], float] | Mapping[str, Callable[[], float]] | None = None
) -> Meter | None:
    """Return the meter of a device: the user's, else NVML's for a GPU, else RAPL's for devices that compute on the host.

    Parameters
    ----------
    device : str
        The name of the device.
    on_host : bool
        True if it computes on the host's processor.
    on_card : bool
        True if it computes on an NVIDIA GPU.
    given : callable or mapping of str to callable, optional
        () -> joules so far, for all devices or by device.

    Raises
    ------
    TypeError
        If what is given for the device is not callable.
    """
    own = given.get(device) if isinstance(given, Mapping) else given
    if own is not None:
        if not callable(own):
            raise TypeError(f"the meter of {device!r} must be a function that returns the joules so far, got {own!r}")
        return Meter("given", own)
    if on_card:
        return nvml()
    return rapl() if on_host else None


def measured(run: Callable[[int], None], counter: Meter, seconds: float = WINDOW) -> tuple[Figure, Figure]:
    """Return (watts, joules of one call). run(n) makes n calls; it is repeated for at least `seconds`. Both are unavailable if
    the counter stands still, goes back, or fails.
    """
    calls, each = 0, 1
    try:
        before, start = float(counter.joules()), time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            run(each)
            calls, each = calls + each, min(2 * each, 1 << 16) if elapsed < seconds / 8 else each
        joules = float(counter.joules()) - before
    except OSError:
        return NONE, NONE
    if not (math.isfinite(joules) and joules > 0):
        return NONE, NONE
    return Figure(joules / elapsed), Figure(joules / calls)


def stated(watts: float | None, ms: Figure) -> tuple[Figure, Figure]:
    """Return (watts, joules) of a call that takes `ms`, estimated from the stated power of its device."""
    if watts is None or ms.value is None:
        return NONE, NONE
    return Figure(watts, ESTIMATED), Figure(watts * ms.value / 1e3, ESTIMATED)


def check_meters(given: Any, devices: list[str]) -> None:
    """Raise TypeError unless meters are None, a function or functions by device, and ValueError if a device is unknown."""
    wanted = "a function that returns the joules so far"
    if given is None or callable(given):
        return
    if not isinstance(given, Mapping):
        raise TypeError(f"meters must be {wanted}, or a dict of them, got {given!r}")
    for name, value in given.items():
        _check_name("meters", name, devices)
        if not callable(value):
            raise TypeError(f"meters: the value of {name!r} must be {wanted}, got {value!r}")


def check_by_device(what: str, given: Mapping[str, float], devices: list[str]) -> dict[str, float]:
    """Return the values as Python's numbers. Raise ValueError if a device is unknown, or its value is not a number above 0, and
    TypeError if there is no mapping; `what` is given, for messages."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a dict of numbers by device, such as {{'cpu': 65}}, got {given!r}")
    for name, value in given.items():
        _check_name(what, name, devices)
        if not is_real(value) or not 0 < value < math.inf:
            raise ValueError(f"{what}: the value of {name!r} must be a number above 0, got {value!r}")
    return {name: float(value) for name, value in given.items()}


def _check_name(what: str, name: Any, devices: list[str]) -> None:
    """Raise ValueError if there is no such device."""
    if name not in devices:
        raise ValueError(f"{what}: there is no device {name!r} among {', '.join(map(repr, devices))}")
