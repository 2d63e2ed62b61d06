"""The best placements by prediction, races of whole steps, and layers measured in whole steps."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from numbanet import SGD, Linear, ReLU, RowDropout, Sequential
from numbanet.layers import LSTM, Conv2d, Embedding, Flatten, LastStep, MaxPool2d
from numbanet.placement import Transfer, choose, enumerate_all, placement, profile, race, steps
from numbanet.placement.choice import _Problem, front
from numbanet.placement.figures import Figure
from numbanet.placement.measure import usual_optimizer
from numbanet.placement.stages import network, stages
from numbanet.placement.walk import Walk
from numbanet.placement.works import place, works
from numbanet.plans import IndexPlan

from .tables import chain, profile as made_up, random_profile

DEVICES = ("a", "b", "c")
LAYERS = [Linear(20, 30, rng=0), ReLU(), Linear(30, 16, rng=1), ReLU(), Linear(16, 4, rng=2)]


def costs(placements):
    return [each.cost for each in placements]


# --- the best by prediction -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("objective", ["time", "energy", "edp"])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_ones_are_those_of_all_placements(objective, limited, seed):
    table = random_profile(seed, 4, DEVICES)
    limits = {"a": 0.7 * sum(stage.memory(True) for stage in table.stages)} if limited else None
    found = _Problem(table, objective, limits, None, False, None, keep=9).ranked()
    assert len({tuple(names) for names in found}) == 9
    ranked = [placement(table, names, objective, True) for names in found]
    assert costs(ranked) == pytest.approx(sorted(costs(enumerate_all(table, objective, limits)))[:9])


def test_rows_that_few_others_dominate():
    points = np.random.default_rng(0).integers(0, 6, (60, 3)).astype(float)
    for keep in (1, 2, 5):
        kept = front(points, keep)
        beaten = [sum((other <= row).all() and (other < row).any() for other in points) for row in points]
        assert {tuple(points[i]) for i in kept} == {tuple(row) for row, n in zip(points, beaten) if n < keep}


def test_placements_that_differ_in_what_costs_nothing_are_one():
    stages_ = chain([10] * 4)
    rows = {"a": [[(1e-4, 1)] * 3, [(9, 1)] * 3, [(5, 1)] * 3], "b": [[(1e-4, 1)] * 3, [(5, 1)] * 3, [(9, 1)] * 3]}
    table = made_up(stages_, rows, homes={"b": "a"})
    ranked = sorted((each for each in enumerate_all(table)), key=lambda each: each.cost)
    ways = [tuple(stage.device for stage in each.stages) for each in race.distinct(table, ranked, 9)]
    assert len(ways) == 4 and {way[1:] for way in ways} == set(itertools.product("ab", repeat=2))
    assert len(race.distinct(table, ranked, 2)) == 2 and race.distinct(table, [], 2) == []


# --- the race decides -------------------------------------------------------------------------------------------------
def test_what_is_measured_decides():
    """The placement that is predicted to be the best is slow, and a single device is measured as well."""
    table, asked = random_profile(3, 4, DEVICES), []

    def measure(slow, placements):
        asked.append([tuple(each.devices.values()) for each in placements])
        return [100.0 if each.cost <= slow else 50.0 + i for i, each in enumerate(placements)]

    predicted = choose(table)
    found = choose(table, measure=lambda given: measure(predicted.cost, given), most=3)
    assert found.devices != predicted.devices and found.step_ms == Figure(min(each.ms.value for each in found.tried))
    assert {(name,) * 4 for name in DEVICES} <= set(asked[0]) and len(asked[0]) == 6
    assert tuple(predicted.devices.values()) in asked[0]
    assert [each.devices for each in found.tried] == asked[0] and "whole steps, measured: 50 ms" in str(found)


def test_several_devices_must_be_clearly_faster():
    table = random_profile(3, 4, DEVICES)

    def measure(share, placements):
        return [share if len(set(each.devices.values())) > 1 else 1.0 for each in placements]

    several = [len(set(choose(table, measure=lambda given: measure(share, given)).devices.values())) for share in (0.999, 0.9)]
    assert several[0] == 1 < several[1]


def test_a_step_that_fails_after_the_warm_up_drops_out(monkeypatch):
    """The others go on."""
    from numbanet.training.stepper import Stepper

    X, y, made = np.zeros((8, 20), np.float32), np.zeros(8, np.int32), []

    def step(self, *given, original=Stepper.step, **named):
        made.append(self)
        if self is made[0] and made.count(self) > race.WARM + 3:
            raise MemoryError("no room")
        return original(self, *given, **named)

    monkeypatch.setattr(Stepper, "step", step)
    placements = [SimpleNamespace(devices=dict.fromkeys("01234", name)) for name in ("cpu", "cpu:1")]
    with pytest.warns(UserWarning, match="cannot train this network: MemoryError: no room"):
        first, second = steps(LAYERS, X, y, seconds=0.0)(placements)
    assert math.isinf(first) and math.isfinite(second)


def test_what_cannot_run_is_not_chosen():
    table = random_profile(3, 4, DEVICES)
    found = choose(table, measure=lambda given: [math.inf] * (len(given) - 1) + [7.0])
    assert found.step_ms.value == 7 and len(found.tried) == 1
    with pytest.raises(ValueError, match="no placement can make a step"):
        choose(table, measure=lambda given: [math.inf] * len(given))
    with pytest.raises(ValueError, match="measure gives times of training steps, not the objective 'energy'"):
        choose(table, "energy", measure=lambda given: [1.0] * len(given))


def test_figures_of_recorded_steps_count_on_one_device():
    stages_ = chain([10] * 3)
    ops = made_up(stages_, {"a": [[(3, 1)] * 3] * 2, "b": [[(2, 1)] * 3, [(4, 1)] * 3]}, homes={"b": "a"})
    alone = made_up(stages_, {"a": [[(1, 1)] * 3] * 2, "b": [[(4, 1)] * 3] * 2}, homes={"b": "a"})
    assert set(choose(ops).devices.values()) == {"a", "b"}
    found = choose(ops, alone=alone)
    assert set(found.devices.values()) == {"a"} and found.ms.value == 6


def test_several_devices_are_compared_with_figures_of_one_alone():
    """The best placement by the figures of `profile` is on one device, which is slow by those of `alone`."""
    moves = [Transfer(x, y, Figure(0.0), Figure(0.1)) for x, y in ("ab", "ba")]
    rows = {"a": [[(1, 1)], [(1, 1)]], "b": [[(9, 1)], [(1.1, 1)]]}
    slow = {"a": [[(10, 1)], [(10, 1)]], "b": [[(90, 1)], [(90, 1)]]}
    ops, alone = (made_up(chain([10] * 3), each, moves, training=False) for each in (rows, slow))
    found = choose(ops, alone=alone)
    assert list(found.devices.values()) == ["a", "b"] and found.ms.value == pytest.approx(2.2)


@pytest.mark.parametrize(
    "alone, what",
    [
        (random_profile(3, 4, DEVICES, training=False), "training"),
        (random_profile(3, 5, DEVICES), "stages"),
        (random_profile(3, 4, "ab"), "devices"),
    ],
)
def test_figures_of_another_model_are_refused(alone, what):
    with pytest.raises(ValueError, match=f"choose: alone must be of the same {what} as profile; measure both with the same"):
        choose(random_profile(3, 4, DEVICES), alone=alone)


def test_memory_limits_hold_in_a_race():
    table, asked = random_profile(2, 4, DEVICES), []
    limit = 0.9 * sum(stage.memory(True) for stage in table.stages)
    choose(table, memory={"a": limit}, measure=lambda given: asked.extend(given) or [1.0] * len(given))
    assert {name for each in asked if len(set(each.devices.values())) == 1 for name in each.devices.values()} == {"b", "c"}


def test_runs_that_are_late_drop_out_and_turns_have_equal_steps():
    made = {"fast": [], "slow": [], "near": []}

    def run(name, seconds):
        return lambda n: made[name].append(n) or seconds

    took = race.in_turns([run("fast", 1e-3), None, run("slow", 3e-3), run("near", 1.1e-3)], seconds=0.0)
    assert took == pytest.approx([1.0, math.inf, 3.0, 1.1])
    assert made["fast"] == made["near"] == made["slow"] and made["fast"][:3] == [1, 1, 10]
    made["slow"].clear(), made["near"].clear()
    race.in_turns([run("near", 1e-3), run("slow", 3e-3), run("fast", 1e-3)], seconds=1e9)
    assert len(made["slow"]) == 1 + 2 * race.LEAST and len(made["near"]) == 1 + 2 * race.MOST


@pytest.mark.usefixtures("two_threads")
@pytest.mark.slow
@pytest.mark.parametrize("policy", [None, RowDropout(0.5)])
def test_whole_steps_of_placements(policy):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((16, 20), np.float32), np.arange(16) % 4
    model = Sequential(LAYERS)
    before = model.state_dict()
    table = profile(model, X.shape, ["cpu:1", "cpu"], recorded=False, cached=False, runs=1, seconds=1e-4)
    found = choose(table, measure=steps(model, X, y, 8, policy=policy, seconds=0.01), most=2)
    assert len(found.tried) == 4 and all(0 < each.ms.value < 1e4 for each in found.tried)
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())


def test_a_device_that_fails_is_warned_of():
    model, X = Sequential([Linear(5, 3, rng=0)]), np.zeros((4, 5), np.float32)
    table = profile(model, X.shape, ["cpu"], cached=False, runs=1, seconds=1e-4)
    with (
        pytest.warns(UserWarning, match="cpu cannot train this network"),
        pytest.raises(ValueError, match="no placement can make"),
    ):
        choose(table, measure=steps(model, np.zeros((4, 6), np.float32), np.zeros(4, int)))


@pytest.mark.usefixtures("two_threads")
def test_a_layer_that_is_used_twice_trains_on_one_device():
    """Without a warning: placements that part the layer are not measured."""
    twice, rng = Linear(20, 20, rng=0), np.random.default_rng(0)
    layers = [twice, ReLU(), twice, ReLU(), Linear(20, 3, rng=1)]
    X, y = rng.standard_normal((16, 20)).tolist(), [0, 1, 2, 0] * 4
    table = profile(layers, (16, 20), ["cpu:1", "cpu"], recorded=False, cached=False, runs=1, seconds=1e-4)
    found = choose(table, measure=steps(layers, X, y, seconds=0.0))
    assert len(found.tried) == 4 and all(each.devices[0] == each.devices[1] for each in found.tried)


@pytest.mark.parametrize(
    "given, error, why",
    [
        ({"X": [["a"]]}, TypeError, "steps: X: cannot read list"),
        ({"y": ["a", "b"]}, TypeError, "steps: y: cannot read list as numbers"),
        ({"y": [0, 1, 1]}, ValueError, r"as many targets, not \(2, 5\) and \(3,\)"),
        ({"X": np.zeros((0, 5)), "y": []}, ValueError, "one sample at least"),
        ({"size": 0}, ValueError, "steps: size must be a positive integer, got 0"),
        ({"optimizer": "sgd"}, TypeError, "steps: optimizer must be a function"),
        ({"policy": "rdp"}, TypeError, "steps: policy must be a Dropout, such as .* got 'rdp'"),
        ({"task": "x"}, TypeError, "steps: task must be a Task, such as .* got 'x'"),
        ({"second": 1}, TypeError, "unexpected keyword argument 'second'"),
        ({"seconds": -1}, ValueError, "steps: seconds must be a number of at least 0, got -1"),
        ({"late": "x"}, ValueError, "steps: late must be a number of at least 1, got 'x'"),
        ({"model": []}, ValueError, "steps: the model has no layers"),
        ({"model": [Embedding(5, 3)]}, TypeError, "Embedding.* takes integers, X has float64"),
    ],
)
def test_wrong_samples_are_refused_once_and_at_once(given, error, why):
    with pytest.raises(error, match=why):
        steps(**{"model": Linear(5, 3, rng=0), "X": np.zeros((2, 5)), "y": [0, 1], **given})


# --- whole steps ------------------------------------------------------------------------------------------------------
SEQUENCES = [LSTM(6, 5, batch_first=True, rng=0), LastStep(), Linear(5, 3, rng=1)]
IMAGES = [Conv2d(2, 3, 3, rng=0), ReLU(), MaxPool2d(2), Flatten(), Linear(27, 4, rng=1)]


@pytest.mark.parametrize("plans", [False, True])
@pytest.mark.parametrize("layers, shape", [(LAYERS, (8, 20)), (SEQUENCES, (3, 7, 6)), (IMAGES, (4, 2, 8, 8))])
def test_a_walk_computes_the_gradients_of_the_model(layers, shape, plans):
    """On each device and on all in turn, the gradients are those of one pass, and each stage has its times."""
    if plans and layers is not LAYERS:
        pytest.skip("the plan is for linear layers")
    model = Sequential(layers)
    table = [stage for stage, _ in stages(model, shape)]
    chosen = {layers[0]: IndexPlan(30, np.arange(0, 30, 2), 2.0)} if plans else None
    kept = {}

    def optimizer(parameters):
        own = usual_optimizer(parameters)
        launch = own.launch

        def launched(*given):
            kept[tuple(p.shape for p in own.parameters)] = [p.gradient.dense(p.device).copy() for p in own.parameters]
            return launch(*given)

        own.launch = launched
        return own

    walk = Walk(model, table, [place("cpu"), place("cpu:1")], set(), True, chosen, optimizer)
    seen = []
    for design in ((0,) * len(table), tuple(k % 2 for k in range(len(table))), (1,) * len(table)):
        kept.clear()
        walk.step(design)
        seen.append(dict(kept))
    assert len(seen[0]) == sum(stage.parameters > 0 for stage in table)
    for other in seen[1:]:
        for key, gradients in seen[0].items():
            for ours, theirs in zip(gradients, other[key], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert np.abs(seen[0][next(iter(seen[0]))][0]).max() > 0
    for _ in range(2):
        walk.turn()
    for k, stage in enumerate(table):
        for direction in stage.directions(True):
            assert all(len(walk.alone[k, d, direction]) >= 2 for d in (0, 1))
    assert {(before, here) for before, here, _ in walk.changes(0.5)} == {("cpu", "cpu:1"), ("cpu:1", "cpu")}
    assert all(ms >= 0 for *_, ms in walk.changes(0.5))


def test_a_step_leaves_no_gradient_of_a_shared_weight():
    """Also if the stage that updates it is on another device."""
    twice = Linear(20, 20, rng=0)
    model = Sequential([twice, ReLU(), twice, ReLU()])
    walk = Walk(model, [stage for stage, _ in stages(model, (8, 20))], [place("cpu"), place("cpu:1")], set(), True, None, SGD)
    walk.step((0, 1))
    assert all(p.gradient is None for each in walk.copies for part in each.parts for p in part.trained)


def test_a_stage_that_a_device_lacks_is_made_by_another():
    model = Sequential(LAYERS)
    table = [stage for stage, _ in stages(model, (8, 20))]
    walk = Walk(model, table, [place("cpu"), place("cpu:1")], {(1, 1)}, True, None, usual_optimizer)
    walk.turn()
    assert (1, 0, "forward") in walk.alone and (1, 1, "forward") not in walk.alone and (0, 1, "forward") in walk.alone


@pytest.mark.usefixtures("two_threads")
@pytest.mark.slow
def test_changes_of_device_are_measured_and_kept(tmp_path):
    found = profile(LAYERS, (8, 20), ["cpu:1", "cpu"], recorded=False, cached=False, runs=2, watts={"cpu": 9, "cpu:1": 3})
    assert {(change.source, change.target) for change in found.changes} == {("cpu:1", "cpu"), ("cpu", "cpu:1")}
    assert all(entry.ms.value > 0 for entry in found.entries) and len(found.entries) == 2 * 3 * 3
    assert found.changes[0].watts.tag == "estimated" and not found.transfers
    assert found.load(found.save(tmp_path / "a.json")) == found


def test_a_change_costs_what_was_measured():
    table = random_profile(0, 2, ("a", "b"), homes={"b": "a"})
    assert table.moved(table.stages[1], "a", "b", True)[0].value == 0
    changes = Transfer("a", "b", Figure(0.0), Figure(2.0), Figure(5.0)), Transfer("b", "a", Figure(0.0), Figure(0.5))
    table = type(table)(**{name: getattr(table, name) for name in table.__dataclass_fields__} | {"changes": changes})
    assert table.moved(table.stages[1], "a", "b", True)[0].value == 2.5
    assert table.transfer("a", "b", 1e6)[1].value == pytest.approx(0.01) and table.transfer("a", "a", 1e6)[0].value == 0


def test_a_backward_pass_is_computed_anew_each_time():
    """What vjps share is computed once for each forward pass, and the gates of an LSTM are overwritten."""
    model = Sequential([LSTM(6, 5, batch_first=True, rng=0)])
    table = [stage for stage, _ in stages(model, (3, 7, 6))]
    seen = []

    def optimizer(parameters):
        seen.append(parameters)
        return usual_optimizer(parameters)

    ((_, made),) = works(model, table, place("cpu"), True, False, None, optimizer)
    gradients = []
    for _ in range(3):
        made[1].once()
        gradients.append([p.gradient.dense(p.device).copy() for p in seen[0]])
    assert made[1].direction == "backward" and made[1].beyond is made[0] and np.abs(gradients[0][0]).max() > 0
    for other in gradients[1:]:
        for ours, theirs in zip(gradients[0], other, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_network_of_sequences_has_a_name():
    model, shape, name = network("lstm", None)
    assert shape == (64, 28, 28) and name == "lstm" and stages(model, shape)[-1][0].outputs == (64, 10)
