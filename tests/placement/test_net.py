"""The parameter `objective`: measured times choose the device of each layer, and training is that of one device."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from numbanet import Adam, Linear, Net, NetRegressor, ReLU, placement
from numbanet.estimators import placing
from numbanet.placement import DeviceFacts, Figure, LayerTimes, Profile, Stage
from numbanet.training.stepper import Stepper

LAYERS = 5  # of a network with two hidden layers


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """Profiles of this test alone."""
    monkeypatch.setenv("NUMBANET_PROFILES", str(tmp_path))


@pytest.fixture
def problem(rng):
    return rng.standard_normal((60, 12), np.float32), np.arange(60) % 3


def table(ms, home="cpu"):
    """A profile of a network with two hidden layers: ms by (stage, device), for stages of two, two and one layers."""
    paths = [("0", "1"), ("2", "3"), ("4",)]
    stages = tuple(Stage(own[0], own, "layer", "layer", (8, 12), (8, 12), 10, True) for own in paths)
    entries = tuple(
        LayerTimes(stage.path, "layer", name, direction, Figure(times[i]), 1.0, 1.0)
        for name, times in ms.items()
        for i, stage in enumerate(stages)
        for direction in ("forward", "backward", "update")
    )
    facts = tuple(DeviceFacts(name, home) for name in ms)
    return Profile("a machine", "today", {}, (8, 12), True, facts, stages, entries)


def several(placed):
    """True if a placement has layers on several devices."""
    return len(set(placed.devices.values())) > 1


@pytest.mark.parametrize("net", [Net, NetRegressor])
def test_bad_objectives_are_refused(problem, net):
    for options, message in (
        ({"objective": "speed"}, "objective must be None, 'time', 'energy', 'edp', got 'speed'"),
        ({"objective": "time", "device": "cpu"}, "leave device='auto', got device='cpu'"),
    ):
        with pytest.raises(ValueError, match=message):
            net((4,), **options).fit(*problem)


def test_energy_without_figures_is_refused(monkeypatch, problem):
    monkeypatch.setattr(placement, "profile", lambda *given, **options: table({"cpu": (1, 1, 1), "cpu:1": (1, 1, 1)}))
    with pytest.raises(ValueError, match="energy"):
        Net((6, 5), objective="energy", epochs=1).fit(*problem)


@pytest.mark.parametrize("dropout", ["none", "rdp"])
def test_layers_train_where_they_are_fastest(monkeypatch, problem, dropout):
    """As on one device; what was predicted and what happened stand side by side."""
    monkeypatch.setattr(placement, "profile", lambda *given, **options: table({"cpu": (9, 1, 9), "cpu:1": (1, 9, 1)}))
    monkeypatch.setattr(placing, "_step_ms", lambda *given: [10.0 if several(each) else 20.0 for each in given[-1]])
    options = {"dropout": dropout, "epochs": 3, "batch_size": 8, "random_state": 0}
    net, one = Net((6, 5), objective="time", **options).fit(*problem), Net((6, 5), device="cpu", **options).fit(*problem)
    assert list(net.placement_.devices.values()) == ["cpu:1", "cpu:1", "cpu", "cpu", "cpu:1"]
    assert net.model_.layers[0].weight.device.name == "cpu:1" and net.model_.layers[2].weight.device.name == "cpu"
    assert net.placement_.ms.value == 9
    assert net.history_[0]["predicted_step_ms"] == net.placement_.step_ms.value == 10 and net.history_[0]["step_ms"] > 0
    for _ in range(2):
        for ours, theirs in zip(net.model_.parameters(), one.model_.parameters(), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
        net, one = net.partial_fit(*problem), one.partial_fit(*problem)
    assert len(net.history_) == 5 and net.model_.spanning is not None
    again = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(again.predict_proba(problem[0]), net.predict_proba(problem[0]))
    assert again.placement_ == net.placement_ and not hasattr(clone(net), "placement_")


def test_one_device_for_all_layers_is_that_of_the_run(monkeypatch, problem, tmp_path):
    monkeypatch.setattr(placement, "profile", lambda *given, **options: table({"cpu": (9, 9, 9), "cpu:1": (1, 1, 1)}))
    monkeypatch.setattr(
        placing, "_step_ms", lambda *given: [1.0 + several(each) + ("cpu:1" not in each.devices.values()) for each in given[-1]]
    )
    limits = set()
    monkeypatch.setattr(
        Stepper,
        "step",
        lambda self, *given, original=Stepper.step, **named: (
            limits.add((self.dev.name, self.session_options.get("limit"))) or original(self, *given, **named)
        ),
    )
    net = Net((6, 5), objective="time", epochs=2, random_state=0).fit(*problem).partial_fit(*problem)
    assert net.model_.spanning is None and limits == {("cpu", 1)}
    net.save(tmp_path / "net.safetensors")
    loaded = Net.load(tmp_path / "net.safetensors")
    np.testing.assert_allclose(loaded.predict_proba(problem[0]), net.predict_proba(problem[0]), rtol=1e-5)
    net.set_params(objective=None).fit(*problem)
    assert not hasattr(net, "placement_")


def test_a_profile_that_was_off_is_measured_anew(monkeypatch, problem):
    asked = []

    def profile(*given, again, **options):
        asked.append(again)
        return table({"cpu": (1e6, 1e6, 1e6)})

    monkeypatch.setattr(placement, "profile", profile)
    net = Net((6, 5), objective="time", epochs=1, random_state=0).fit(*problem)
    net.fit(*problem)
    assert asked == [False, True]


@pytest.mark.slow
def test_layers_are_measured_and_a_profile_is_read_again(problem, tmp_path):
    net = Net((6, 5), objective="time", epochs=1, random_state=0).fit(*problem)
    files = sorted(tmp_path.glob("*.json"))
    assert files and len(net.placement_.devices) == LAYERS and net.placement_.ms.value > 0
    written = [file.stat().st_mtime_ns for file in files]
    net = Net((6, 5), objective="time", epochs=1, random_state=0).fit(*problem)
    assert [file.stat().st_mtime_ns for file in files] == written


@pytest.mark.parametrize("dropout, share", [("rdp", (0.2, 0.9)), ("none", (1, 1)), ("bernoulli", (1, 1))])
def test_layers_are_measured_with_plans_as_they_are_drawn(monkeypatch, problem, dropout, share):
    """With rows dropped, a profile has fewer FLOPs; the optimiser is the network's, with a rate of 0."""
    asked = []

    def profile(model, shape, *, plans, optimizer, **options):
        measured = real(model, shape, ["cpu"], plans=plans, optimizer=optimizer, cached=False, runs=1, seconds=1e-4)
        asked.append((measured, optimizer(list(model.parameters()))))
        return measured

    real = placement.profile
    monkeypatch.setattr(placement, "profile", profile)
    Net((64, 32), objective="time", epochs=1, dropout=dropout, optimizer="adam", random_state=0).fit(*problem)
    ((found, optimizer),) = asked
    dense = real([Linear(12, 64, rng=0), ReLU(), Linear(64, 32, rng=1)], found.shape, ["cpu"], cached=False, runs=1)
    ratio = found.of("2", "cpu", "forward").flops / dense.of("2", "cpu", "forward").flops
    assert share[0] <= ratio <= share[1]
    assert isinstance(optimizer, Adam) and optimizer.learning_rate == 0
