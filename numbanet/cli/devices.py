"""The command `numbanet devices`."""

from __future__ import annotations

import argparse
from typing import Any

from .tables import print_table


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("devices", help="which devices this machine has, what is missing and how to get it")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure from which sizes threads and lazy updates pay off on this machine, which must be idle, and "
        "save the result for later processes",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the devices; measure thresholds if asked to."""
    from numbanet_kernels.runtime import availability

    from ..device import NAMES, device, foreign, problem

    rows = [[name, "ready" if problem(name) is None else "not here", problem(name) or ""] for name in (*NAMES, *foreign())]
    missing = availability.nvvm_problem()
    rows.append(["CUDA compiler", "ready" if missing is None else "not here", missing or "kernels can be compiled and read"])
    print_table("devices", ["device", "state", "why, and what to do"], rows)
    print(f"device='auto' chooses {device('auto').name!r} here")
    if options.calibrate:
        _calibrate()
    return 0


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
