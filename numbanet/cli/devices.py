"""The command `numbanet devices`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..arguments import check_count
from . import compiling
from .arguments import list_of
from .tables import print_table

if TYPE_CHECKING:
    from ..placement import Profile

BATCH = 64  # samples of a batch of a profile
ALONE, OF_PROFILE = ("calibrate", "compile"), ("batch", "on", "watts", "objective", "prediction", "again")  # options


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("devices", help="which devices this machine has, what is missing and how to get it")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure from which sizes threads and lazy updates pay off on this machine, which must be idle, and "
        "save the result for later processes",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the loops of all families now, in a minute or so, so that no first network waits for them",
    )
    parser.add_argument(
        "--profile",
        metavar="NETWORK",
        help="measure each layer of lenet5, alexnet, vgg19 or lstm on each device, and show which device is chosen for it",
    )
    parser.add_argument("--batch", type=int, help=f"samples of a batch (default: {BATCH})")
    parser.add_argument(
        "--on", type=list_of(str), metavar="DEVICE,…", help='devices to measure, such as "cpu:1,cpu" (default: all, and cpu:1)'
    )
    parser.add_argument(
        "--watts", type=_watts, metavar="DEVICE=W,…", help="the power of devices without a meter, for an estimate"
    )
    parser.add_argument("--objective", choices=("time", "energy", "edp"), help="what the choice minimises (default: time)")
    parser.add_argument("--prediction", action="store_true", help="forward passes alone")
    parser.add_argument("--again", action="store_true", help="measure again, even if there is a profile of these versions")
    parser.set_defaults(run=run)


def _watts(text: str) -> dict[str, float]:
    """Parse DEVICE=W,… of --watts."""
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        found = {name: float(value) for name, _, value in parts if name}
    except ValueError:
        found = {}
    if len(found) < len(parts):
        raise argparse.ArgumentTypeError(f"must be DEVICE=W,…, each device once, such as cpu=65,cpu:1=20, not {text}")
    return found


def run(options: argparse.Namespace) -> int:
    """Print the devices, or a profile; measure thresholds if asked to. Raise ValueError if options do not go together."""
    profiled = options.profile is not None
    given = {f"--{name}": getattr(options, name) for name in (ALONE if profiled else OF_PROFILE)}
    unused = ", ".join(name for name, value in given.items() if value is not None and value is not False)
    if unused:
        raise ValueError(f"{unused}: {'not with --profile; run both in turn' if profiled else 'only with --profile NETWORK'}")
    if profiled:
        return _profile(options)
    from numbanet_kernels.runtime import availability

    from ..device import NAMES, device, foreign, problem

    rows = [[name, "ready" if problem(name) is None else "not here", problem(name) or ""] for name in (*NAMES, *foreign())]
    missing = availability.nvvm_problem()
    rows.append(["CUDA compiler", "ready" if missing is None else "not here", missing or "kernels can be compiled and read"])
    print_table("devices", ["device", "state", "why, and what to do"], rows)
    print(f"device='auto' chooses {device('auto').name!r} here")
    if options.compile:
        compiling.run()
    if options.calibrate:
        _calibrate()
    return 0


def _profile(options: argparse.Namespace) -> int:
    """Print the figures of each layer on each device, and the device that is chosen for it."""
    from ..placement import choose, profile
    from ..placement.stages import network

    batch = check_count("--batch", BATCH if options.batch is None else options.batch)
    shape = (batch, *network(options.profile, None)[1][1:])
    how = {"watts": options.watts or {}, "again": options.again}
    found = profile(options.profile, shape, options.on, not options.prediction, **how)
    title = f"{options.profile}, a batch of {' x '.join(map(str, found.shape))}, on {found.machine}, {found.date}"
    columns = ["layer", "", "device", "ms", "GFLOP/s", "MB", "W", "mJ", "/W", "/mm2"]
    rows = list(_figures(found))
    known = [k for k in range(len(columns)) if k < 6 or any(row[k] != "-" for row in rows)]
    print_table(title, [columns[k] for k in known], [[row[k] for k in known] for row in rows], narrow=True)
    print("/W and /mm2: GFLOP/s per watt and per mm2 of the die; ~ is estimated, - is unavailable")
    print(choose(found, options.objective or "time"))
    return 0


def _figures(found: Profile) -> Iterator[list[str]]:
    """Yield a row for each layer, direction and device of a profile; the layer is named in its first row."""
    for stage in found.stages:
        layer = f"{'-'.join(dict.fromkeys((stage.paths[0], stage.paths[-1])))} {stage.kind}"
        for direction in stage.directions(found.training):
            way = direction
            for facts in found.devices:
                entry, cells = found.of(stage.path, facts.name, direction), ["-"] * 7
                if entry is not None:
                    density = entry.gflops_per_mm2(facts.mm2)
                    figures = entry.ms, entry.gflops, entry.watts, entry.joules.times(1e3), entry.gflops_per_watt, density
                    cells = [figure.shown() for figure in figures]
                    cells.insert(2, f"{entry.bytes / 1e6:.3g}")
                yield [layer, way, facts.name, *cells]
                layer = way = ""


def _calibrate() -> None:
    from numbanet_kernels.host import thresholds
    from numbanet_kernels.host.calibration import calibrate, faster_library

    from ..device import device

    found, usual = calibrate(device("cpu")), thresholds.Thresholds()
    print_table(
        "from which size on it pays",
        ["cost", "here", "by default"],
        [[name, f"{value:,}", f"{getattr(usual, name):,}"] for name, value in found._asdict().items()],
    )
    library = faster_library()
    print(f"products are faster by {library}")
    print(f"written to {thresholds.save(found, library)}")
