"""Placements chosen by time against all placements of small models, and dense AlexNet and VGG19 as placed, against PyTorch.

Devices are the CPU with one thread and with all, and what else is available, such as PyTorch's kernels. All placements of a
multilayer perceptron, and of LeNet-5 and an LSTM 200 of them, are measured as whole training steps in turns, after
`placement.choose` has chosen one from a profile and a race of its own. The 200 have each device alone, all placements with one
change of device, and others drawn at random. Rows give the chosen placement, the best one and each device alone: the time of a
step, the sum that was predicted, what the race measured, and the error of the latter or, without a race, of the former.

AlexNet and VGG19 are those of the suite `cnn`; `placed` is what `choose` chooses there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..machinery.harness import Case, Implementation, Options, run_cases
from ..machinery.results import Results
from ..machinery.worker import Task
from . import MOMENTUM, RATE, cnn

SUITE = "placement"
RECORDED = ("--against torch --json bench/results/placement.json",)
MOST = 200  # placements of a model that are measured
SECONDS = 90.0  # of measuring them; each one makes at least three turns
DEEP = ("alexnet", "vgg19")


class Model(NamedTuple):
    """A model whose placements are measured: its layers, and the shape of a batch."""

    layers: Callable[[], list[Any]]
    shape: tuple[int, ...]


def perceptron(widths: Sequence[int]) -> list[Any]:
    """Linear layers of these widths, with ReLU between them."""
    from numbanet.layers import Linear, ReLU

    return [part for n_in, n_out in itertools.pairwise(widths) for part in (Linear(n_in, n_out, rng=0), ReLU())][:-1]


def named(name: str, shape: Sequence[int]) -> list[Any]:
    """The layers of a network that profiles know by name."""
    from numbanet.placement.stages import network

    return network(name, shape)[0].layers


def models(quick: bool) -> dict[str, Model]:
    """{name: model}"""
    widths, batch = ((20, 16, 10), 16) if quick else ((784, 1024, 1024, 32, 10), 128)
    shapes = {"lenet5": (4, 1, 12, 12) if quick else (128, 1, 28, 28), "lstm": (4, 3, 6) if quick else (64, 28, 28)}
    found = {f"mlp {'-'.join(map(str, widths))}": Model(functools.partial(perceptron, widths), (batch, widths[0]))}
    return found | {name: Model(functools.partial(named, name, shape), shape) for name, shape in shapes.items()}


def data(shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """A batch of random samples and labels."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape, np.float32), rng.integers(10, size=shape[0]).astype(np.int32)


def measured_ones(devices: Sequence[str], n: int, most: int = MOST) -> list[tuple[str, ...]]:
    """The placements of n stages that are measured: all, or each device alone, all with one change of device, and some drawn
    at random."""
    every = len(devices) ** n
    if every <= most:
        return list(itertools.product(devices, repeat=n))
    cuts = itertools.product(range(1, n), itertools.permutations(devices, 2))
    found = dict.fromkeys([*((name,) * n for name in devices), *((a,) * cut + (b,) * (n - cut) for cut, (a, b) in cuts)])
    rng = np.random.default_rng(0)
    while len(found) < most:
        found[tuple(devices[i] for i in rng.integers(len(devices), size=n))] = None
    return list(found)


# --- all placements ---------------------------------------------------------------------------------------------------
def enumerated(name: str, model: Model, options: Options) -> Iterator[dict[str, Any]]:
    """The rows of a model: the chosen placement, the best of those that are measured, and each device alone."""
    from numbanet.placement import choose, placement, profile, steps
    from numbanet.placement.works import available

    devices, (X, y), layers = available(), data(model.shape), model.layers()
    how = {"cached": False, **({"runs": 1, "seconds": 1e-3} if options.quick else {})}
    alone, apart = (profile(layers, model.shape, devices, recorded=recorded, **how) for recorded in (True, False))
    race = {"seconds": 0.01} if options.quick else {}
    chosen = choose(apart, alone=alone, measure=steps(layers, X, y, **race))
    of_chosen = tuple(stage.device for stage in chosen.stages)
    ways = dict.fromkeys([of_chosen, *measured_ones(devices, len(apart.stages), 12 if options.quick else MOST)])
    predicted = [placement(alone if len(set(way)) == 1 else apart, way, "time", True) for way in ways]
    took = steps(layers, X, y, seconds=0.01 if options.quick else SECONDS, late=np.inf)(predicted)
    by = dict(zip(ways, zip(took, (each.ms.value for each in predicted), strict=True), strict=True))
    raced = {each.devices: each.ms.value for each in chosen.tried}
    best = min(by, key=lambda way: by[way][0])
    shown = {"chosen": of_chosen, "best": best, **{name: (name,) * len(best) for name in devices}}
    offs = [abs(guess / ms - 1) for ms, guess in by.values()]
    for label, way in shown.items():
        alone_ms = min(by[(d,) * len(best)][0] for d in devices)
        yield _row(name, label, way, *by[way], raced.get(way), by[best][0], alone_ms)
    count = f"{len(by)} of {len(devices) ** len(best)} placements"
    yield {**_row(name, f"mean error of {count}", ()), "off": float(np.mean(offs))}
    yield {**_row(name, f"largest error of {count}", ()), "off": float(np.max(offs))}


def _row(
    case: str,
    label: str,
    way: Sequence[str],
    ms: float | None = None,
    predicted: float | None = None,
    raced: float | None = None,
    best: float | None = None,
    single: float | None = None,
) -> dict[str, Any]:
    said, expected = " ".join(f"{len(list(same))} {name}" for name, same in itertools.groupby(way)), raced or predicted
    return {
        "suite": f"{SUITE}-all",
        "case": case,
        "implementation": f"{label}: {said}" if label in ("chosen", "best") else label,
        "layer_ms": ms,
        "predicted_ms": predicted,
        "raced_ms": raced,
        "off": None if ms is None or expected is None else abs(expected / ms - 1),
        "over_best": None if ms is None or best is None else ms / best,
        "over_single": None if ms is None or single is None else ms / single,
    }


# --- against PyTorch --------------------------------------------------------------------------------------------------
def placed_task(name: str, shape: tuple[int, ...], batch: int) -> Task:
    """Task: dense training steps of a network of the suite `cnn`, with its layers where `choose` puts them."""
    from numbanet.dropout import NoDropout
    from numbanet.placement import choose, profile, race
    from numbanet.training.sgd import SGD
    from numbanet.training.stepper import Stepper
    from numbanet.training.streams import Streams
    from numbanet.training.task import Classification

    (X, y), model, size = cnn.samples(shape, batch), cnn.network(name, shape), (batch, *shape)
    few = {"runs": 3, "seconds": 1e-3}
    alone, apart = (profile(model, size, recorded=recorded, **few) for recorded in (True, False))
    chosen = choose(apart, alone=alone, measure=race.steps(model, X[:batch], y[:batch]), most=3)
    names, dev, limit = race.where(list(chosen.devices.values()))

    def make():
        own = cnn.network(name, shape)
        own.span(names)
        optimizer, session = SGD(own.parameters(), RATE, MOMENTUM), {} if limit is None else {"limit": limit}
        return Stepper(own, optimizer, NoDropout(), Classification(), Streams.from_seed(3), dev, batch, session)

    def describe(stepper, drawn):
        return {"placement": [stage.device for stage in chosen.stages]}

    return cnn.steps.numbanet_steps(dev, X, y, batch, make, describe, cnn.CHECKED[name])


def cases(options: Options) -> Iterator[Case]:
    """AlexNet and VGG19 as placed, on each device, and in PyTorch; the ratios are to PyTorch's time."""
    from numbanet.device import problem

    networks = {"alexnet": cnn.QUICK["alexnet"]} if options.quick else {name: cnn.NETWORKS[name] for name in DEEP}
    for name, (shape, batch) in networks.items():
        common = {"name": name, "shape": shape, "batch": batch}
        peer = "PyTorch" if options.against == "torch" else "cpu"
        theirs = [Implementation("PyTorch", cnn.torch_task, {"device": "cpu", **common})] if options.against == "torch" else []
        ours = [Implementation("placed", placed_task, common, peer)]
        for device in ("cpu", "torch"):
            if problem(device) is None:
                parameters = {"device": device, **common, "dropout": "none", "rate": 0.0}
                ours.append(Implementation(device, cnn.numbanet_task, parameters, None if device == peer else peer))
        yield Case(
            SUITE,
            f"{name} on {'x'.join(map(str, shape))}, batch {batch}, dense",
            (*ours, *theirs),
            functools.partial(cnn.update_error, name, shape, batch),
            cnn.TOLERANCES[name],
            2 if options.quick else cnn.LEAST[name],
        )


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure the placements of small models, then the steps of deep ones; return the rows."""
    options.only_on_cpu(f"{SUITE} measures all devices that it finds, and takes no other")
    for name, model in models(options.quick).items():
        if options.wants(name):
            say(f"{SUITE}: {name}")
            results.add(list(enumerated(name, model, options)))
    run_cases(SUITE, cases(options), options, results, say)
    return results.rows
