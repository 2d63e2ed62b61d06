"""Plain numba.cuda kernels on the emulated card, which checks every access, against Numba's simulator, which checks nothing.

Kernels as the walkthroughs and lessons have them: a sum of two vectors, a tiled product of 128 x 128, a transpose by tiles, the
softmax of rows, a sum by blocks, and a histogram by atomic additions. Both run launch after launch, compiled before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..machinery.harness import Case, Implementation, Options, relative_error
from ..machinery.worker import Task
from .emulated_card_model import KERNELS, inputs, task

SUITE = "emulated-card"
RECORDED = ("--json bench/results/emulated-card.json",)
PAIRS = 3  # n turns: a launch in the simulator may take seconds


def error(name: str, outputs: Mapping[str, Any]) -> float:
    """The error of the result against NumPy in float64."""
    return relative_error(outputs["y"], KERNELS[name][-1](*map(np.float64, inputs(name))))


def cases(options: Options) -> Iterator[Case]:
    """One case for each kernel."""
    options.only_on_cpu(f"{SUITE} emulates a GPU on the CPU")
    for name in list(KERNELS)[:2] if options.quick else KERNELS:
        made: list[tuple[str, bool, str | None]] = [("emulated card", False, "simulator"), ("simulator", True, None)]
        build: Callable[..., Task] = task
        implementations = tuple(
            Implementation(each, build, {"name": name, "simulated": simulated}, peer) for each, simulated, peer in made
        )
        yield Case(SUITE, name, implementations, functools.partial(error, name), pairs=PAIRS)
