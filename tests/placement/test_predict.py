"""Predicted times: of made-up devices whose times are known, of other shapes, with the error of cross-validation."""

import dataclasses

import numpy as np
import pytest

from numbanet import Linear, ReLU
from numbanet.layers import Conv2d
from numbanet.placement import ESTIMATED, MEASURED, DeviceFacts, Figure, LayerTimes, Predictor, Profile, Transfer, choose
from numbanet.placement.measure import amount
from numbanet.placement.stages import network, stages


def made_up(layers, shape, time, device="cpu"):
    """A profile whose milliseconds are time(stage, FLOPs, bytes)."""
    net, batch, _ = network(layers, shape)
    table = stages(net, batch)
    entries = [
        LayerTimes(
            s.path, s.layer, device, direction, Figure(time(s, *amount(s, cost, direction))), *amount(s, cost, direction)
        )
        for s, cost in table
        for direction in s.directions(True)
    ]
    facts = (DeviceFacts(device, device),)
    return Profile("made up", "2026-01-01", {}, batch, True, facts, tuple(s for s, _ in table), tuple(entries))


def linear(rng):
    n, i, o = (int(2 ** rng.uniform(4, 11)) for _ in range(3))
    return [Linear(i, o, rng=0), ReLU()], (n, i)


def roofline(stage, flops, moved):
    return flops / 5e7 + moved / 1e7 + 0.01


@pytest.mark.slow
def test_times_of_shapes_that_were_not_measured(rng):
    predictor = Predictor([made_up(*linear(rng), roofline) for _ in range(25)])
    errors = []
    for _ in range(20):
        layers, shape = linear(rng)
        found, truth = predictor.profile(layers, shape), made_up(layers, shape, roofline)
        assert all(entry.ms.tag == ESTIMATED for entry in found.entries)
        errors.append(choose(found).ms.value / choose(truth).ms.value - 1)
    assert np.abs(errors).max() < 0.02
    assert all(error < 0.02 for error, _ in predictor.errors.values())


@pytest.mark.slow
def test_small_and_large_channels_by_different_loops(rng):
    """Five times as fast from 24 channels on: one sum for all would be off by far."""

    def image(rng):
        c, o, side = (int(2 ** rng.uniform(*ends)) for ends in ((3, 7), (5, 7), (2, 5)))
        return [Conv2d(c, o, 3, padding=1, rng=0)], (4, c, side, side)

    def time(stage, flops, moved):
        return flops / (5e7 if stage.inputs[1] >= 24 else 1e7) + 1e-3

    predictor = Predictor([made_up(*image(rng), time) for _ in range(60)])
    error, samples = predictor.errors["Conv2d 3x3", "cpu", "forward"]
    assert samples == 60 and error < 0.1
    far = []
    for _ in range(20):
        layers, shape = image(rng)
        if not 18 <= shape[1] <= 32:  # the bound is where the samples are
            far.append(choose(predictor.profile(layers, shape)).ms.value / choose(made_up(layers, shape, time)).ms.value - 1)
    assert len(far) > 5 and np.abs(far).max() < 0.1


@pytest.mark.slow
def test_the_stated_error_is_that_of_noise(rng):
    """Times that are off by a factor of up to 1.5 have an error of about a fifth."""
    profiles = []
    for _ in range(40):
        factor = float(np.exp(rng.uniform(-0.4, 0.4)))
        profiles.append(
            made_up(*linear(rng), lambda stage, flops, moved, factor=factor: factor * roofline(stage, flops, moved))
        )
    error, _ = Predictor(profiles).errors["Linear + ReLU", "cpu", "forward"]
    assert 0.12 < error < 0.4


def test_a_kind_with_few_samples_is_predicted_from_all_kinds(rng):
    profiles = [made_up(*linear(rng), roofline) for _ in range(8)]
    predictor = Predictor(profiles)
    assert ("Linear", "cpu", "forward") not in predictor.errors
    found = predictor.profile([Linear(64, 64, rng=0)], (32, 64))
    assert found.of("0", "cpu", "forward").ms.tag == ESTIMATED
    assert found.settings["error"] is not None


def test_watts_of_the_profiles_give_joules(rng):
    profiles = [made_up(*linear(rng), roofline) for _ in range(8)]
    entries = tuple(dataclasses.replace(entry, watts=Figure(40.0), joules=Figure(1.0)) for entry in profiles[0].entries)
    profiles[0] = dataclasses.replace(profiles[0], entries=entries)
    entry = Predictor(profiles).profile([Linear(64, 64, rng=0)], (32, 64)).entries[0]
    assert entry.joules.value == pytest.approx(entry.ms.value * 40 / 1e3) and entry.joules.tag == ESTIMATED


def test_changes_of_device_are_those_of_the_profiles(rng):
    changes = Transfer("cpu", "cpu:1", Figure(0.0), Figure(2.0)), Transfer("cpu:1", "cpu", Figure(0.0), Figure(0.5))
    table = dataclasses.replace(made_up(*linear(rng), roofline), changes=changes)
    assert Predictor([table]).profile([Linear(64, 64, rng=0)], (32, 64)).changes == changes


def test_estimates_are_not_learned_from(rng):
    table = made_up(*linear(rng), roofline)
    entries = tuple(dataclasses.replace(entry, ms=Figure(entry.ms.value, ESTIMATED)) for entry in table.entries)
    with pytest.raises(ValueError, match="no measured times"):
        Predictor([dataclasses.replace(table, entries=entries)])
    assert Predictor([table]).predict(*stages(*network([Linear(3, 3, rng=0)], (2, 3))[:2])[0], "gpu", "forward").samples == 0
    assert table.entries[0].ms.tag == MEASURED


def test_profiles_of_several_machines_are_refused(rng):
    table = made_up(*linear(rng), roofline)
    with pytest.raises(ValueError, match="several machines"):
        Predictor([table, dataclasses.replace(table, machine="another")])


def test_an_update_is_predicted_by_the_weights_that_it_changes(rng):
    """Of weights that an earlier layer has, too, there is no update."""

    def time(stage, flops, moved):
        return 1.0 + 1e-3 * stage.updated

    predictor, half = Predictor([made_up(*linear(rng), time) for _ in range(25)]), Linear(300, 300, rng=0)
    tied = Linear(300, 300, rng=1)
    half.weight = tied.weight
    found = predictor.profile([tied, ReLU(), half], (64, 300))
    (update,) = (each for each in found.entries if each.path == "2" and each.direction == "update")
    assert update.ms.value == pytest.approx(1.3, rel=0.02)
