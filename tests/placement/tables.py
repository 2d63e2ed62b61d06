"""Made-up profiles for tests."""

import numpy as np

from numbanet.placement import ESTIMATED, MEASURED, DeviceFacts, Figure, LayerTimes, Profile, Stage, Transfer

DIRECTIONS = "forward", "backward", "update"


def chain(sizes, parameters=None):
    """Stages whose activations have these n values; sizes[i] is the input of stage i."""
    held = parameters or [10] * (len(sizes) - 1)
    return tuple(
        Stage(str(i), (str(i),), f"Layer {i}", "Layer", (1, sizes[i]), (1, sizes[i + 1]), held[i], i > 0)
        for i in range(len(sizes) - 1)
    )


def profile(stages, costs, transfers=(), tags=None, homes=None, training=True):
    """costs: {device: [(ms, J or None) of each direction of each stage]}; `tags` by device, by default measured."""
    entries = []
    for device, rows in costs.items():
        tag = (tags or {}).get(device, MEASURED)
        for stage, row in zip(stages, rows):
            for direction, (ms, joules) in zip(stage.directions(training), row):
                figures = Figure(ms, tag), Figure(None, "unavailable") if joules is None else Figure(joules, tag)
                entries.append(LayerTimes(stage.path, stage.layer, device, direction, figures[0], 1e6, 1e3, joules=figures[1]))
    devices = tuple(DeviceFacts(name, (homes or {}).get(name, name)) for name in costs)
    return Profile(
        "made up",
        "2026-01-01",
        {"numbanet": "0"},
        stages[0].inputs,
        training,
        devices,
        stages,
        tuple(entries),
        tuple(transfers),
    )


def random_profile(seed, n, devices, training=True, homes=None):
    """A profile of n stages whose costs are random; transfers cost about as much as a stage."""
    rng = np.random.default_rng(seed)
    stages = chain([int(size) for size in rng.integers(1, 50, n + 1)], [int(p) for p in rng.integers(0, 3, n) * 40])
    costs = {
        name: [[tuple(map(float, rng.lognormal(0, 1, 2))) for _ in stage.directions(training)] for stage in stages]
        for name in devices
    }
    transfers = [
        Transfer(
            a, b, Figure(float(rng.lognormal(8, 1))), Figure(float(rng.lognormal(-2, 1))), Figure(float(rng.lognormal(6, 1)))
        )
        for a in devices
        for b in devices
        if a != b
    ]
    return profile(stages, costs, transfers, homes=homes, training=training)


__all__ = ["DIRECTIONS", "ESTIMATED", "MEASURED", "chain", "profile", "random_profile"]
