"""The dynamic programme against all placements, what-if tables, memory limits, and refusals."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from numbanet.placement import (
    ESTIMATED,
    DeviceFacts,
    Figure,
    LayerTimes,
    Profile,
    Transfer,
    choose,
    enumerate_all,
    pareto,
    placement,
)
from numbanet.placement.choice import OBJECTIVES, _Problem, front

from .tables import chain, profile, random_profile

DEVICES = ("a", "b", "c")


def brute_force(table, objective, training, limits=None):
    """The least objective over all placements, summed here without the programme's helpers."""
    by = {(e.path, e.device, e.direction): e for e in table.entries}
    pairs = {(t.source, t.target): t for t in table.transfers}
    homes = {facts.name: facts.home for facts in table.devices}
    best = math.inf
    for devices in itertools.product(table.names, repeat=len(table.stages)):
        ms = joules = 0.0
        held = dict.fromkeys(limits or {}, 0.0)
        for i, (stage, device) in enumerate(zip(table.stages, devices)):
            for direction in stage.directions(training):
                ms, joules = (
                    ms + by[stage.path, device, direction].ms.value,
                    joules + by[stage.path, device, direction].joules.value,
                )
            if homes[device] in held:
                held[homes[device]] += stage.memory(training)
            ways = [(devices[i - 1], device), (device, devices[i - 1])][: 1 + training] if i else []
            for source, target in ways:
                if homes[source] != homes[target]:
                    move = pairs[source, target]
                    time = move.latency_ms.value + move.ms_per_mb.value * 4e-6 * np.prod(stage.inputs)
                    ms, joules = ms + time, joules + time * move.watts.value / 1e3
        if all(held[name] <= limit for name, limit in (limits or {}).items()):
            best = min(best, {"time": ms, "energy": joules, "edp": ms * joules}[objective])
    return best


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(6))
def test_the_programme_finds_the_best_of_all_placements(objective, seed):
    n, training = 2 + seed % 5, seed % 2 == 0
    table = random_profile(seed, n, DEVICES, training)
    found = choose(table, objective)
    assert found.cost == pytest.approx(brute_force(table, objective, training))
    assert found.cost == pytest.approx(min(each.cost for each in enumerate_all(table, objective)))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_eight_layers_on_three_devices(objective):
    table = random_profile(100, 8, DEVICES)
    found = choose(table, objective)
    assert found.cost == pytest.approx(brute_force(table, objective, True))
    assert found.cost <= found.best_single[1]
    assert len(set(found.devices.values())) > 1  # the table makes them differ


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(4))
def test_memory_limits_are_respected_and_the_best_within_them_is_found(objective, seed):
    table = random_profile(seed, 5, DEVICES, homes={"b": "a"})
    free = choose(table, objective)
    used = sum(stage.memory(True) for stage, placed in zip(table.stages, free.stages) if placed.device in "ab")
    limits = {"a": 0.6 * used, "c": sum(stage.memory(True) for stage in table.stages)}
    found = choose(table, objective, limits)
    held = sum(stage.memory(True) for stage, placed in zip(table.stages, found.stages) if placed.device in "ab")
    assert held <= limits["a"]
    assert found.cost == pytest.approx(brute_force(table, objective, True, limits))
    assert found.cost == pytest.approx(min(each.cost for each in enumerate_all(table, objective, limits)))


def test_prediction_counts_forward_passes_alone():
    stages = chain([10, 10])
    table = profile(stages, {"a": [[(1, 1), (9, 9), (9, 9)]], "b": [[(2, 2), (1, 1), (1, 1)]]})
    assert choose(table).devices == {"0": "b"} and choose(table).ms.value == 4
    assert choose(table, prediction=True).devices == {"0": "a"} and choose(table, prediction=True).ms.value == 1


def test_edp_is_not_a_sum_and_the_greedy_choice_is_not_the_best():
    """A stage's least product of time and energy is not part of the least product of the sums."""
    stages = chain([10, 10, 10], [0, 0])
    stages = tuple(dataclasses.replace(stage, differentiable=False) for stage in stages)
    rows = {"a": [[(1.0, 10.0)], [(10.0, 1.0)]], "b": [[(4.0, 4.0)], [(3.0, 3.2)]]}
    table = profile(stages, rows, [Transfer(x, y, Figure(0.0), watts=Figure(0.0)) for x, y in ("ab", "ba")])
    found = choose(table, "edp")
    assert found.devices == {"0": "b", "1": "b"} and found.cost == pytest.approx(7 * 7.2)  # a alone has the least of stage 0
    assert found.cost == pytest.approx(brute_force(table, "edp", True))


@pytest.mark.parametrize("seed", range(3))
def test_the_pareto_front_is_that_of_all_placements(seed):
    table = random_profile(seed, 5, DEVICES)
    points = np.array([(each.ms.value, each.joules.value) for each in enumerate_all(table, "edp")])
    found = [(each.ms.value, each.joules.value) for each in pareto(table)]
    np.testing.assert_allclose(found, points[front(points)])
    assert choose(table, "time").ms.value == pytest.approx(found[0][0])
    assert choose(table, "energy").joules.value == pytest.approx(found[-1][1])


def test_the_front_keeps_what_nothing_dominates():
    costs = np.array([[1.0, 5.0], [2.0, 5.0], [2.0, 3.0], [3.0, 1.0], [3.0, 1.0], [4.0, 4.0]])
    assert [tuple(costs[i]) for i in front(costs)] == [(1, 5), (2, 3), (3, 1)]
    cube = np.random.default_rng(0).integers(0, 5, (40, 3)).astype(float)
    kept = {tuple(cube[i]) for i in front(cube)}
    assert kept == {tuple(row) for row in cube if not any((other <= row).all() and (other < row).any() for other in cube)}


# --- stages that share tensors ----------------------------------------------------------------------------------------
def grouped(table, groups):
    stages = [dataclasses.replace(stage, group=group) for stage, group in zip(table.stages, groups, strict=True)]
    return dataclasses.replace(table, stages=tuple(stages))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("groups", [("0", "1", "0", "1", ""), ("", "1", "", "1", "1"), ("0", "1", "1", "0", "")])
def test_stages_that_share_tensors_are_on_one_device(objective, limited, groups):
    table = random_profile(5, 5, DEVICES)
    limits = {"a": 0.5 * sum(stage.memory(True) for stage in table.stages)} if limited else None

    def together(found):
        placed = {(group, stage.device) for group, stage in zip(groups, found.stages) if group}
        return len(placed) == len(set(groups) - {""})

    every = list(enumerate_all(table, objective, limits))
    own = list(enumerate_all(grouped(table, groups), objective, limits))
    allowed = sorted(each.cost for each in every if together(each))
    assert len(allowed) < len(every) and sorted(each.cost for each in own) == pytest.approx(allowed)
    found = choose(grouped(table, groups), objective, limits)
    assert together(found) and found.cost == pytest.approx(allowed[0])
    ranked = _Problem(grouped(table, groups), objective, limits, None, False, None, keep=7).ranked()
    costs = [placement(table, names, objective, True).cost for names in ranked]
    assert costs == pytest.approx(allowed[:7])
    assert limited or all(map(together, pareto(grouped(table, groups))))


def test_a_group_needs_a_device_with_all_of_its_figures():
    rows = {"a": [[(3, 1)] * 3, [(3, 1)] * 3, [(3, 1)] * 3], "b": [[(1, 1)] * 3, [(1, 1)] * 3]}
    moves = [Transfer(x, y, Figure(0.0)) for x, y in ("ab", "ba")]
    table = profile(chain([10] * 4), rows, moves)
    assert choose(grouped(table, ("0", "", "0"))).devices == {"0": "a", "1": "b", "2": "a"}
    entries = tuple(entry for entry in table.entries if (entry.path, entry.device) != ("0", "a"))
    with pytest.raises(ValueError, match="no device has them for all of the layers 0, 2, which share tensors"):
        choose(grouped(dataclasses.replace(table, entries=entries), ("0", "", "0")))


# --- estimates --------------------------------------------------------------------------------------------------------
SHEET = {"flops": 60e12, "bytes": 3e12, "launch_ms": 0.01}  # of a made-up GPU
LINK = {"ms_per_mb": 1 / 12, "latency_ms": 0.02}  # 12 GB/s


def what_if(widths, batch=256):
    """Products of these widths on a CPU of 50 GFLOP/s, and on a GPU by its data sheet."""
    stages = tuple(
        dataclasses.replace(
            stage, inputs=(batch, widths[i]), outputs=(batch, widths[i + 1]), parameters=widths[i] * widths[i + 1]
        )
        for i, stage in enumerate(chain(list(widths)))
    )
    entries = []
    for stage in stages:
        for direction in stage.directions(True):
            flops = 0.0 if direction == "update" else 2.0 * batch * stage.parameters
            moved = 4.0 * (stage.parameters + batch * (stage.inputs[1] + stage.outputs[1]))
            there = max(1e3 * flops / SHEET["flops"], 1e3 * moved / SHEET["bytes"]) + SHEET["launch_ms"]
            here = max(1e3 * flops / 50e9, 1e3 * moved / 10e9) + 1e-4
            for device, ms, tag in (("cpu", here, "measured"), ("gpu", there, ESTIMATED)):
                entries.append(LayerTimes(stage.path, stage.layer, device, direction, Figure(ms, tag), flops, moved))
    devices = DeviceFacts("cpu", "cpu"), DeviceFacts("gpu", "gpu")
    figures = {name: Figure(value, ESTIMATED) for name, value in LINK.items()}
    transfers = tuple(Transfer(a, b, **figures) for a, b in (("cpu", "gpu"), ("gpu", "cpu")))
    return Profile("made up", "2026-01-01", {}, stages[0].inputs, True, devices, stages, tuple(entries), transfers)


WIDTHS = [8, 8, 8, 8, 4096, 4096, 8, 8, 8, 8]


def test_a_gpu_from_its_data_sheet_gets_the_large_products_and_the_cpu_the_tiny_layers():
    """Three tiny layers save more launches than the two moves cost; the products that touch 4096 units are worth them."""
    table = what_if(WIDTHS)
    found = choose(table, what_if=True)
    assert list(found.devices.values()) == ["cpu"] * 3 + ["gpu"] * 3 + ["cpu"] * 3
    assert found.ms.tag == ESTIMATED
    moves = [stage.transfer_ms.value for stage in found.stages]
    there_and_back = 2 * (LINK["latency_ms"] + LINK["ms_per_mb"] * 4e-6 * 256 * 8)
    assert moves == pytest.approx([0, 0, 0, there_and_back, 0, 0, there_and_back, 0, 0])
    assert found.cost < 0.1 * found.singles["cpu"][0].value and found.cost < found.singles["gpu"][0].value


def test_a_single_device_counts_the_move_of_the_batch_as_well():
    table = what_if(WIDTHS)
    here, there = choose(table, what_if=True), choose(table, what_if=True, start="cpu")
    move = LINK["latency_ms"] + LINK["ms_per_mb"] * 4e-6 * 256 * 8
    assert there.singles["gpu"][0].value == pytest.approx(here.singles["gpu"][0].value + move)
    assert there.singles["cpu"] == here.singles["cpu"] and there.cost <= min(ms.value for ms, _ in there.singles.values())


def test_a_slow_link_keeps_all_layers_at_home():
    table = what_if(WIDTHS)
    slow = tuple(dataclasses.replace(move, latency_ms=Figure(1e4)) for move in table.transfers)
    assert set(choose(dataclasses.replace(table, transfers=slow), what_if=True, start="cpu").devices.values()) == {"cpu"}


def test_an_estimate_never_decides_against_a_measurement():
    table = what_if(WIDTHS)
    found = choose(table)
    assert set(found.devices.values()) == {"cpu"} and found.ms.tag == "measured"


def test_without_measurements_estimates_decide():
    table = profile(chain([10, 10]), {"a": [[(3, 1)] * 3], "b": [[(2, 1)] * 3]}, tags={"a": ESTIMATED, "b": ESTIMATED})
    assert choose(table).devices == {"0": "b"} and choose(table).ms.tag == ESTIMATED


# --- what is printed --------------------------------------------------------------------------------------------------
def test_the_table_names_layers_devices_and_transfers():
    text = str(choose(what_if(WIDTHS), what_if=True))
    assert "placement by time: a training step" in text and "Layer 3" in text and "gpu" in text
    assert "on one device: cpu" in text and "~" in text


def test_a_layer_that_a_device_lacks_stays_home():
    table = profile(
        chain([10, 10, 10]),
        {"a": [[(3, 1)] * 3, [(3, 1)] * 3], "b": [[(1, 1)] * 3]},
        [Transfer(x, y, Figure(0.0)) for x, y in ("ab", "ba")],
    )
    found = choose(table)
    assert found.devices == {"0": "b", "1": "a"} and set(found.singles) == {"a"}


# --- refusals ---------------------------------------------------------------------------------------------------------
def test_energy_without_figures_is_an_error_that_says_what_is_there():
    table = profile(chain([10, 10]), {"a": [[(3, None)] * 3], "b": [[(2, None)] * 3]})
    with pytest.raises(ValueError, match=r"needs joules.*'a' has ms measured and joules unavailable.*watts="):
        choose(table, "energy")
    with pytest.raises(ValueError, match="needs ms and joules"):
        choose(table, "edp")


@pytest.mark.parametrize(
    "arguments, why",
    [
        ({"profile": None}, "profile must be a Profile, as numbanet.placement.profile returns, got None"),
        ({"memory": 5}, "memory must be a dict of MB by device"),
        ({"measure": 5}, "measure must be a function, as placement.steps"),
        ({"alone": 5}, "alone must be a Profile, got 5"),
    ],
)
def test_values_of_other_types_are_refused(arguments, why):
    given = {"profile": random_profile(0, 3, DEVICES), **arguments}
    with pytest.raises(TypeError, match=why):
        choose(**given)


@pytest.mark.parametrize("returned", [5, [], [1.0], ["1", "2", "3", "4", "5"]])
def test_a_measure_returns_a_number_for_each_placement(returned):
    with pytest.raises(ValueError, match="measure must return . numbers, the ms of a step of each placement, got"):
        choose(random_profile(0, 3, DEVICES), measure=lambda placements: returned, most=2)


@pytest.mark.parametrize(
    "arguments, why",
    [
        ({"objective": "speed"}, "objective must be one of 'time', 'energy', 'edp'"),
        ({"memory": {"d": 1}}, "no memory of 'd'"),
        ({"memory": {"a": -1}}, "at least 0"),
        ({"memory": {"a": 0, "b": 0, "c": 0}}, "no device can take layer 0"),
        ({"start": "d"}, "no device 'd'; it has 'a', 'b', 'c'"),
    ],
)
def test_refusals(arguments, why):
    with pytest.raises(ValueError, match=why):
        choose(random_profile(0, 3, DEVICES), **arguments)


def test_a_profile_of_forward_passes_does_not_choose_for_training():
    table = random_profile(0, 3, DEVICES, training=False)
    assert not choose(table).training
    with pytest.raises(ValueError, match="training=True"):
        choose(table, prediction=False)


def test_pareto_and_enumerate_all_name_themselves():
    with pytest.raises(TypeError, match="pareto: profile must be a Profile, .* got 'x'"):
        pareto("x")
    with pytest.raises(TypeError, match="enumerate_all: profile must be a Profile"):
        next(enumerate_all("x"))


def test_transfers_without_figures_are_not_used():
    table = profile(chain([10, 10, 10]), {"a": [[(1, 1)] * 3, [(9, 1)] * 3], "b": [[(9, 1)] * 3, [(1, 1)] * 3]})
    assert len(set(choose(table).devices.values())) == 1


def test_as_many_devices_as_stages():
    with pytest.raises(ValueError, match="2 devices for 3 stages"):
        placement(random_profile(0, 3, DEVICES), ["a", "b"], "time", True)
