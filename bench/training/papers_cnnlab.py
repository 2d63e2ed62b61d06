"""AlexNet by layer, direction and device: time, throughput, power, energy and density; and times predicted of sizes held out.

*CNNLab* (Zhu et al. 2016, arXiv 1606.06234) compares these quantities on an NVIDIA K40 and an Altera DE5, an FPGA board. Here
the devices are the CPU with one thread and with all, and what else is available. The paper's own figures are not beside these:
its abstract, the only part that was at hand, has none. Figures without a counter of energy or a known die are left out.
The rows `chosen` are placements of AlexNet, VGG19, LeNet-5 and an LSTM: what `placement.choose` predicts for a training step,
and each device alone beside it. The pictures are rooflines of AlexNet, VGG19 and the LSTM, and time against energy of all four,
with joules estimated from stated watts where there is no counter.

Rows of layers that are held out: linear layers and convolutions of random sizes, predicted from others. Each is measured twice,
in the same turns as all; the difference between its two measurements is the noise that no prediction can be below. Two more
rows have the mean and the largest error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..machinery.harness import Options
from ..machinery.results import Results

SUITE = "papers-cnnlab"
RECORDED = ("--json bench/results/papers-cnnlab.json --plot papers-cnnlab.png",)
NETWORKS = {"alexnet": (64, 3, 32, 32), "vgg19": (16, 3, 32, 32), "lenet5": (64, 1, 28, 28), "lstm": (64, 28, 28)}
QUICK = {"lenet5": (2, 1, 28, 28)}
WATTS = {"cpu:1": 20.0, "cpu": 35.0, "torch": 35.0}  # stated, for pictures where there is no counter of energy
KNOWN, HELD_OUT = 100, 10  # n layers of each kind
# the fastest of many short runs: on a shared machine these are the runs that nothing interrupted
HOW = {"runs": 15, "seconds": 0.002, "quantile": 0.0}
Made = tuple[list[Any], tuple[int, ...]]  # layers, shape of a batch


def linear(rng: np.random.Generator) -> Made:
    """A linear layer of 32 to 2048 inputs and outputs, and a batch of 16 to 256."""
    from numbanet.layers import Linear, ReLU

    inputs, outputs = (int(2 ** rng.uniform(5, 11)) for _ in range(2))
    return [Linear(inputs, outputs, rng=0), ReLU()], (int(2 ** rng.uniform(4, 8)), inputs)


def convolution(rng: np.random.Generator) -> Made:
    """A convolution of 3 x 3 with 32 to 256 channels, on 2 to 16 images of 4 to 32 pixels a side."""
    from numbanet.layers import Conv2d, ReLU

    inputs, outputs = (8 * int(2 ** rng.uniform(2, 5)) for _ in range(2))
    side, samples = int(rng.choice([4, 8, 14, 16, 28, 32])), int(2 ** rng.uniform(1, 4))
    return [Conv2d(inputs, outputs, 3, padding=1, rng=0), ReLU()], (samples, inputs, side, side)


def _row(case: str, device: str, **figures: float | None) -> dict[str, Any]:
    return {"suite": SUITE, "case": case, "implementation": device, "layer_ms": None, **figures}


def layers(profile: Any, name: str) -> Iterator[dict[str, Any]]:
    """The rows of a profile: a row for each layer, direction and device."""
    for stage in profile.stages:
        for direction in stage.directions(profile.training):
            for facts in profile.devices:
                if (entry := profile.of(stage.path, facts.name, direction)) is not None:
                    yield _row(
                        f"{name}, {stage.path} {stage.kind}, {direction}",
                        facts.name,
                        layer_ms=entry.ms.value,
                        gflops=entry.gflops.value,
                        megabytes=entry.bytes / 1e6,
                        watts=entry.watts.value,
                        joules=entry.joules.value,
                        gflops_per_watt=entry.gflops_per_watt.value,
                        gflops_per_mm2=entry.gflops_per_mm2(facts.mm2).value,
                    )


def chosen(profile: Any, name: str) -> Iterator[dict[str, Any]]:
    """The rows of the placement that is chosen by time, and of each device alone."""
    from numbanet.placement import choose

    for prediction, what in ((False, "training step"), (True, "forward pass")):
        found = choose(profile, prediction=prediction)
        for device, (ms, _) in found.singles.items():
            yield _row(f"{name}, {what}", device, predicted_ms=ms.value)
        yield _row(f"{name}, {what}", f"chosen: {' '.join(dict.fromkeys(found.devices.values()))}", predicted_ms=found.ms.value)


def held_out(
    kind: str, known: Sequence[Any], first: Sequence[Any], second: Sequence[Any], device: str
) -> Iterator[dict[str, Any]]:
    """The rows of layers that were held out, whose profiles were measured twice: the errors of a step, and their mean."""
    from numbanet.placement import Predictor, choose

    predictor, errors, noises = Predictor(known), [], []
    for one, two in zip(first, second, strict=True):
        stage = one.stages[0]
        ms, again = (choose(found).ms.value for found in (one, two))
        costs = [predictor.sized(stage, entry.flops, entry.bytes, device, entry.direction).ms.value for entry in one.entries]
        predicted = sum(costs)
        errors.append(abs(predicted / ms - 1))
        noises.append(abs(again / ms - 1))
        case = f"held out, {stage.layer} {'x'.join(map(str, stage.inputs))}, training step"
        yield _row(case, device, layer_ms=ms, predicted_ms=predicted, off=errors[-1], noise=noises[-1])
    case = f"held out, mean of {len(errors)} {kind}"
    yield _row(case, device, off=float(np.mean(errors)), noise=float(np.mean(noises)))
    case = f"held out, largest of {len(errors)} {kind}"
    yield _row(case, device, off=float(np.max(errors)), noise=float(np.max(noises)))


def _networks(quick: bool, again: bool) -> dict[str, Any]:
    """{name for rows: profile of a network}, the first one with rows for its layers."""
    from numbanet.placement import profile
    from numbanet.placement.works import available

    devices = ["cpu:1", *(name for name in available() if name != "cpu:1")]
    settings = {**HOW, "runs": 2} if quick else HOW
    return {
        f"{network} {'x'.join(map(str, shape))}": profile(network, shape, devices, again=again, **settings)
        for network, shape in (QUICK if quick else NETWORKS).items()
    }


def with_joules(profile: Any) -> Any:
    """The profile, with joules estimated from stated watts where they are unavailable."""
    from numbanet.placement.energy import stated

    entries = []
    for entry in profile.entries:
        watts, joules = stated(WATTS.get(entry.device, max(WATTS.values())), entry.ms)
        entries.append(entry if entry.joules.known else dataclasses.replace(entry, watts=watts, joules=joules))
    return dataclasses.replace(profile, entries=tuple(entries))


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure the layers of the networks, then those of random sizes; return the rows."""
    options.only_on_cpu(f"{SUITE} measures all devices that it finds, and takes no other")
    from numbanet.placement import profiles

    say(f"bench: {SUITE}: layers of {', '.join(QUICK if options.quick else NETWORKS)}")
    measured = _networks(options.quick, again=True)
    name, found = next(iter(measured.items()))
    results.add([*layers(found, name), *(row for each, of in measured.items() for row in chosen(of, each))])
    known, held = (8, 2) if options.quick else (KNOWN, HELD_OUT)
    settings = {**HOW, "runs": 2} if options.quick else HOW
    for kind, make in (("linear layers", linear), ("convolutions", convolution)):
        say(f"bench: {SUITE}: {known + held} {kind}")
        rng = np.random.default_rng(0)
        made = [make(rng) for _ in range(known + held)]
        measured = profiles([*made, *made[known:]], ["cpu:1"], cached=False, **settings)
        parts = measured[:known], measured[known : known + held], measured[known + held :]
        results.add(list(held_out(kind, *parts, "cpu:1")))
    return results.rows


def plot(results: Results, path: Path) -> None:
    """Plot the roofline of each layer of AlexNet on each device; beside it, in files of their own, those of VGG19 and the LSTM,
    and time against energy of all networks."""
    from numbanet.plots import layer_rooflines, time_and_energy

    found = _networks(bool(results.facts.get("quick")), again=False)
    for number, (name, profile) in enumerate(found.items()):
        network = name.partition(" ")[0]
        if network != "lenet5" or not number:
            layer_rooflines(profile, path.with_stem(f"{path.stem}-{network}") if number else path)
    energies = {name: with_joules(profile) for name, profile in found.items()}
    time_and_energy(energies, path.with_stem(f"{path.stem}-energy"))
