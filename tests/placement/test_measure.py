"""Profiles of small models: what is measured, that it is what a model computes, and when it is measured anew."""

import copy
import importlib
import json
import sys

import numpy as np
import pytest

from numbanet import SGD, Adam, BatchNorm1d, Context, Linear, ReLU, Sequential, Tanh, Tensor
from numbanet.device import problem
from numbanet.layers import LSTM, Conv2d, Cost, Embedding, Flatten, Flow, MaxPool2d
from numbanet.placement import NONE, Profile, cache, choose, facts, folder, measure, profile
from numbanet.placement.stages import parts, stages
from numbanet.placement.works import Lacking, available, place, with_layers_of, works
from numbanet.plans import IndexPlan

QUICK = {"runs": 2, "seconds": 1e-4}
LAYERS = [Linear(20, 30, rng=0), ReLU(), BatchNorm1d(30), Linear(30, 4, rng=1)]
IMAGES = [Conv2d(2, 3, 3, rng=0), ReLU(), MaxPool2d(2), Flatten(), Linear(27, 4, rng=1)]


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBANET_PROFILES", str(tmp_path / "profiles"))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.slow
def test_a_tiny_model_on_one_thread_and_on_all():
    found = profile(LAYERS, (8, 20), ["cpu:1", "cpu"], watts={"cpu": 50}, mm2={"cpu": 100.0}, **QUICK)
    assert found.names == ("cpu:1", "cpu") and found.settings["threads"] == {"cpu:1": 1, "cpu": 2}
    assert [(s.paths, s.layer) for s in found.stages] == [
        (("0", "1"), "Linear(20, 30) + ReLU()"),
        (("2",), "BatchNorm1d(30)"),
        (("3",), "Linear(30, 4)"),
    ]
    assert [s.differentiable for s in found.stages] == [False, True, True] and found.stages[1].inputs == (8, 30)
    assert len(found.entries) == 2 * 3 * 3 and all(entry.ms.tag == "measured" and entry.ms.value > 0 for entry in found.entries)
    first = found.of("0", "cpu", "forward")
    assert first.flops == 2 * 8 * 20 * 30 and first.bytes >= 4 * (8 * 50 + 600)
    assert (first.joules.tag, found.of("0", "cpu:1", "forward").joules) == ("estimated", NONE)
    assert found.of("0", "cpu", "backward").flops == first.flops  # the gradient of the input is not computed
    assert found.facts("cpu").mm2 == 100 and found.facts("cpu:1").home == "cpu" and not found.transfers
    assert choose(found).devices.keys() == {"0", "1", "2", "3"}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("layers, shape", [(LAYERS, (8, 20)), (IMAGES, (4, 2, 8, 8))])
def test_what_is_timed_is_what_the_model_computes(layers, shape, recorded):
    """The gradients that the timed backward passes leave are those of each part of the model, each time."""
    model = Sequential(layers)
    table = [stage for stage, _ in stages(model, shape)]
    kept = []

    def optimizer(parameters):
        kept.append((parameters, [np.array(p.grad.numpy()) for p in parameters]))
        return measure.usual_optimizer(parameters)

    flow = Flow(Tensor(np.random.default_rng(0).standard_normal(shape, np.float32)))
    context = Context("cpu", training=True)
    for (stage, timed), part in zip(works(model, table, place("cpu"), True, recorded, None, optimizer), parts(model)):
        assert [work.direction for work in timed] == list(stage.directions(True))
        assert all(work.recorded == recorded for work in timed if work.direction != "update")
        flow = flow._replace(x=Tensor.wrap(flow.x.data, flow.x.device, True))
        for p in (p for layer in part.layers for p in layer.parameters()):
            p.zero_grad()
        after = part(flow, context)
        after.x.backward(np.random.default_rng(1).standard_normal(after.x.shape, np.float32))
        own = [p for layer in part.layers for p in layer.parameters()]
        if own:
            before = [p.numpy().copy() for p in kept[-1][0]]
            for work in timed:
                work.run(2)
            for p, gradient, copied, old in zip(own, kept[-1][1], kept[-1][0], before, strict=True):
                np.testing.assert_allclose(gradient, p.grad.numpy(), rtol=1e-5, atol=1e-6)
                np.testing.assert_array_equal(copied.numpy(), old)  # the rate is 0
        for p in (p for layer in part.layers for p in layer.parameters()):
            p.zero_grad()
        flow = after


def test_the_model_is_not_changed():
    model = Sequential([Linear(5, 4, rng=0), BatchNorm1d(4)])
    before = model.state_dict()
    profile(model, (6, 5), ["cpu"], cached=False, **QUICK)
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_sequences_and_integers():
    found = profile([Embedding(11, 6, rng=0), LSTM(6, 5, rng=0)], (3, 7), ["cpu"], cached=False, **QUICK)
    assert [s.outputs[-1] for s in found.stages] == [6, 5]
    assert all(found.of(s.path, "cpu", d).ms.value > 0 for s in found.stages for d in s.directions(True))


def test_plans_save_flops():
    layers = [Linear(20, 30, rng=0), ReLU(), Linear(30, 4, rng=1)]
    dense, half = (
        profile(layers, (8, 20), ["cpu"], plans=plans, cached=False, **QUICK)
        for plans in (None, {layers[0]: IndexPlan(30, np.arange(15), 2.0)})
    )
    for path in ("0", "2"):
        assert half.of(path, "cpu", "forward").flops == dense.of(path, "cpu", "forward").flops / 2


def test_plans_of_layers_inside_others_reach_the_timed_copy():
    inner = Linear(20, 30, rng=0)
    model = Sequential([Sequential([inner, ReLU()]), Linear(30, 4, rng=1)])
    plan, own = IndexPlan(30, np.arange(15), 2.0), copy.deepcopy(model)
    assert with_layers_of(own, {inner: plan}, model) == {own.layers[0].layers[0]: plan}
    found = profile(model, (8, 20), ["cpu"], plans={inner: plan}, cached=False, **QUICK)
    assert found.of(found.stages[-1].path, "cpu", "forward").flops == 2 * 8 * 15 * 4


def test_forward_passes_alone():
    found = profile(LAYERS, (8, 20), ["cpu"], training=False, cached=False, **QUICK)
    assert {entry.direction for entry in found.entries} == {"forward"} and not choose(found).training


def test_a_meter_measures_energy(monkeypatch):
    joules = iter(range(10**9))
    monkeypatch.setattr(measure.energy.measured, "__defaults__", (1e-3,))
    found = profile([Linear(5, 4, rng=0)], (6, 5), ["cpu"], meters=lambda: float(next(joules)), **QUICK)
    assert all(entry.joules.tag == entry.watts.tag == "measured" and entry.joules.value > 0 for entry in found.entries)
    assert choose(found, "energy").joules.tag == "measured"


@pytest.mark.parametrize("training", [np.True_, np.False_])
def test_numbers_of_numpy_are_written(training):
    numbers = {"runs": np.int64(1), "seconds": np.float32(1e-4), "quantile": np.float32(0.5), "recorded": np.True_}
    watts, mm2 = {"cpu": np.int64(65)}, {"cpu": np.float32(100)}
    found = profile([Linear(5, 4, rng=0)], (6, 5), ["cpu"], training, watts=watts, mm2=mm2, **numbers)
    assert (found.facts("cpu").watts, found.facts("cpu").mm2, found.settings["runs"]) == (65, 100, 1)
    assert found.training is bool(training) and Profile.load(next(folder().iterdir())) == found


# --- the cache --------------------------------------------------------------------------------------------------------
def test_the_optimizer_that_a_function_makes_decides():
    """All lambdas have one name."""

    def measured(optimizer, training=True):
        profile([Linear(5, 4, rng=0)], (6, 5), ["cpu"], training, optimizer=optimizer, **QUICK)
        return len(list(folder().iterdir()))

    makers = [lambda p: SGD(p, 0.0), lambda p: SGD(p, 0.0, 0.9), lambda p: Adam(p, 0.0), lambda p: Resting(p, 0.0)]
    assert [measured(optimizer) for optimizer in makers] == [1, 2, 3, 4]
    assert [measured(optimizer) for optimizer in (SGD, lambda p: SGD(p, 0.0), Resting)] == [5, 5, 6]  # the rate is 0.01
    assert [measured(optimizer, training=False) for optimizer in (SGD, Adam)] == [7, 7]


class Resting(SGD):
    """An optimizer from outside numbanet."""


class Shown(Tanh):
    """A layer from outside numbanet whose text is another one for each object."""

    __repr__ = object.__repr__


def test_a_layer_from_outside_is_measured_anew_when_its_source_changes(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = "from numbanet import ReLU\n\n\nclass Mine(ReLU):\n    def __init__(self, n=1):\n        super().__init__()\n"
    source += "        self.n = n\n\n    def __repr__(self):\n        return 'Mine()'\n"

    def measured(text, *given):
        (tmp_path / "its_layers.py").write_text(source + text)
        sys.modules.pop("its_layers", None)
        profile([Linear(5, 4, rng=0), importlib.import_module("its_layers").Mine(*given)], (6, 5), ["cpu"], **QUICK)
        return len(list(folder().iterdir()))

    edited = "\n    def forward(self, flow, context):\n        return super().forward(flow, context)\n"
    try:
        assert [measured(""), measured(""), measured(edited), measured(edited, 2)] == [1, 1, 2, 3]
        assert measured("\n\nHELPED_BY = 1\n") == 4
    finally:
        sys.modules.pop("its_layers", None)


def test_what_cannot_be_described_is_measured_each_time():
    class Inner(Tanh):
        """A class that may use variables of this function."""

    with_function = Resting([Tensor(np.ones(2), requires_grad=True)], 0.0)
    with_function.schedule = lambda step: 0.0
    assert cache.place_of(Sequential([Linear(5, 4, rng=0), Inner()]), None) is None
    assert cache.place_of(Sequential([Linear(5, 4, rng=0)]), lambda parameters: with_function) is None
    assert cache.place_of(Sequential([Linear(5, 4, rng=0)]), Resting) is not None
    layer = Shown()
    assert cache.place_of(Sequential([layer]), None) == cache.place_of(Sequential([Shown()]), None) is not None
    layer.numbers = []
    layer.numbers.append(layer.numbers)
    assert cache.place_of(Sequential([layer]), None) is None
    profile([Linear(5, 4, rng=0), Inner()], (6, 5), ["cpu"], **QUICK)
    assert not folder().exists()


def test_the_joules_of_a_given_meter_are_not_read_without_it(monkeypatch):
    joules = iter(range(10**9))
    monkeypatch.setattr(measure.energy.measured, "__defaults__", (1e-3,))
    monkeypatch.setattr(measure.energy, "rapl", lambda: None)
    profile([Linear(5, 4, rng=0)], (6, 5), ["cpu"], meters=lambda: float(next(joules)), **QUICK)
    assert all(entry.joules == NONE for entry in profile([Linear(5, 4, rng=0)], (6, 5), ["cpu"], **QUICK).entries)


def test_a_profile_is_used_again_until_versions_change(monkeypatch):
    first = profile(LAYERS, (8, 20), ["cpu"], **QUICK)
    assert profile(LAYERS, (8, 20), ["cpu"], **QUICK) == first
    assert profile(LAYERS, (9, 20), ["cpu"], **QUICK).shape == (9, 20)  # another shape is another profile
    monkeypatch.setattr(facts, "versions", lambda: {"numbanet": "99"})
    again = profile(LAYERS, (8, 20), ["cpu"], **QUICK)
    assert again != first and again.versions == {"numbanet": "99"}
    assert profile(LAYERS, (8, 20), ["cpu"], **QUICK) == again


def test_a_damaged_file_in_the_cache_is_measured_anew_with_a_warning(tmp_path):
    profile(LAYERS, (8, 20), ["cpu"], **QUICK)
    (file,) = (tmp_path / "profiles").iterdir()
    file.write_text("{")
    with pytest.warns(UserWarning, match="cannot be read as a profile.*measured anew"):
        profile(LAYERS, (8, 20), ["cpu"], **QUICK)
    assert json.loads(file.read_text())["format"] == "numbanet profile" and Profile.load(file).names == ("cpu",)


# --- devices that lack something --------------------------------------------------------------------------------------
@pytest.mark.parametrize("recorded", [True, False])
def test_a_stage_that_a_device_cannot_compute_is_left_out(recorded, monkeypatch):
    """The rest of the model is measured on the output that the CPU computes."""
    from numbanet.device import Device

    poor = Device("cpu")
    poor.name = "poor"
    del poor.__dict__["tanh"]
    where = place("cpu")._replace(name="poor", dev=poor)
    model = Sequential([Linear(5, 4, rng=0), Tanh(), Linear(4, 3, rng=1)])
    monkeypatch.setattr(measure, "place", lambda name: where if name == "poor" else place(name))
    with pytest.warns(UserWarning, match="'poor' cannot compute layer 1.*no operation 'tanh'"):
        found = profile(model, (6, 5), ["cpu", "poor"], cached=False, recorded=recorded, **QUICK)
    assert found.of("1", "poor", "forward") is None and found.of("2", "poor", "forward").ms.value > 0
    assert found.facts("poor").home == "cpu" and not found.transfers  # both compute on NumPy's arrays
    assert choose(found).devices["1"] == "cpu" and set(choose(found).singles) == {"cpu"}
    table = [stage for stage, _ in stages(model, (6, 5))]
    assert isinstance(list(works(model, table, where, True, True, None, measure.usual_optimizer))[1], Lacking)


@pytest.mark.parametrize("recorded", [True, False])
def test_frozen_parameters_are_not_updated(recorded):
    first = Linear(5, 4, rng=0).requires_grad_(False)
    model = Sequential([first, Tanh(), Linear(4, 3, rng=1)])
    found = profile(model, (6, 5), ["cpu"], cached=False, recorded=recorded, **QUICK)
    assert found.of("0", "cpu", "update") is None and found.of("0", "cpu", "backward") is None
    assert found.of("2", "cpu", "update").ms.value > 0


@pytest.mark.skipif(problem("emulated") is not None, reason="needs NVVM")
@pytest.mark.slow
def test_moves_between_memories_are_measured():
    found = profile(
        [Linear(5, 4, rng=0)], (3, 5), ["cpu:1", "emulated"], watts={"cpu:1": 10, "emulated": 20}, cached=False, **QUICK
    )
    assert {(move.source, move.target) for move in found.transfers} == {("cpu", "emulated"), ("emulated", "cpu")}
    assert all(move.latency_ms.value > 0 and move.ms_per_mb.value >= 0 for move in found.transfers)
    ms, joules = found.transfer("cpu:1", "emulated", 2.0)  # the memory of "cpu:1" is that of "cpu"
    assert ms.tag == "measured" and joules.tag == "estimated" and joules.value == pytest.approx(ms.value * 30 / 1e3)
    assert choose(found, start="emulated").stages[0].transfer_ms.value > 0


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments, why",
    [
        ({"devices": ["tpu"]}, "there is no device 'tpu'.*'cpu:2' is the CPU with two threads"),
        ({"devices": []}, "devices must name one device at least; leave devices out for all"),
        ({"devices": ["cpu:0"]}, "there is no device 'cpu:0'"),
        ({"devices": ["cpu", "cpu"]}, "named twice"),
        ({"devices": ["cpu"], "watts": {"gpu": 3}}, "no device 'gpu'"),
        ({"meters": {"cpuu": lambda: 1.0}}, "meters: there is no device 'cpuu' among 'cpu'"),
        ({"runs": 0}, "runs must be"),
        ({"seconds": 0}, "seconds must be"),
        ({"shape": (8, 21)}, "Linear"),
        ({"shape": None}, "shape, the shape of a batch, is needed"),
        ({"model": []}, "the model has no layers; give one at least"),
        ({"shape": 8}, "shape must be the shape of a batch, such as .64, 784., got 8"),
        ({"shape": "8"}, "shape must be the shape of a batch"),
        ({"shape": (4.0, 20)}, "each size in shape must be a positive integer, got 4.0"),
        ({"shape": (-1, 20)}, "each size in shape must be a positive integer, got -1"),
        ({"shape": ()}, "shape must have the number of samples"),
        ({"devices": ["cpu:99999"]}, "'cpu:99999' has more threads than this machine"),
        ({"model": "lstm", "shape": (8,)}, "shape of a sequence must be .T, features., such as .28, 28., got .."),
        ({"model": "resnet"}, "no network 'resnet'; choose one of 'lenet5', 'alexnet', 'vgg19'"),
    ],
)
def test_refusals(arguments, why):
    given = {"model": LAYERS, "shape": (8, 20), "devices": ["cpu"], **arguments}
    with pytest.raises(ValueError, match=why):
        profile(given.pop("model"), given.pop("shape"), given.pop("devices"), **given, cached=False)


@pytest.mark.parametrize(
    "arguments, why",
    [
        ({"model": 5}, "model must be a Sequential, a layer or a list of layers, got 5"),
        ({"devices": "cpu"}, "devices must be a list of names, such as .*, got 'cpu'"),
        ({"devices": [None]}, "a device must be a name, such as 'cpu:1', got None"),
        ({"optimizer": "sgd"}, "optimizer must be a function .* got 'sgd'"),
        ({"plans": 5}, "plans must be a dict of plans by site or layer, got 5"),
        ({"watts": 5}, "watts must be a dict of numbers by device"),
        ({"meters": 5}, "meters must be a function that returns the joules so far"),
    ],
)
def test_values_of_other_types_are_refused(arguments, why):
    given = {"model": LAYERS, "shape": (8, 20), "devices": ["cpu"], **arguments}
    with pytest.raises(TypeError, match=why):
        profile(given.pop("model"), given.pop("shape"), given.pop("devices"), **given, cached=False)


def test_one_layer_is_a_model():
    assert [stage.layer for stage in profile(Linear(20, 3, rng=0), [4, 20], ["cpu"], **QUICK).stages] == ["Linear(20, 3)"]


def test_stages_that_share_tensors_are_a_group():
    a, b, c = (Linear(6, 6, rng=seed) for seed in range(3))
    tied = Linear(6, 6, rng=3)
    tied.bias = b.bias
    model = Sequential([a, Tanh(), b, Tanh(), Sequential([c, a]), Tanh(), tied, c, Linear(6, 2, rng=4)])
    found = {stage.path: stage.group for stage, _ in stages(model, (4, 6))}
    assert {path: group for path, group in found.items() if group} == {"0": "0", "2": "2", "4": "0", "6": "2", "7": "0"}


def test_frozen_parameters_need_memory_and_shared_ones_once():
    frozen, tied = Linear(60, 60, rng=0).requires_grad_(False), Linear(60, 60, rng=1)
    size, batch = 60 * 60 + 60, 2 * 60
    for training in (True, False):
        found = [stage for stage, _ in stages(Sequential([frozen, Tanh(), tied, Tanh(), tied, frozen]), (2, 60))]
        held = [size, 0, size * (3 if training else 1), 0, 0, 0]
        outputs = batch * (2 if training else 1)
        assert [stage.memory(training) for stage in found] == pytest.approx([4e-6 * (outputs + each) for each in held])
    assert [stage.parameters for stage in found] == [0, 0, size, 0, size, 0]
    assert found[4].directions(True) == ("forward", "backward") and measure.amount(found[4], Cost(), "update")[1] == 0
    with pytest.raises(ValueError, match="no device can take layer 0 "):
        choose(profile([frozen], (2, 60), ["cpu"], training=False, **QUICK), memory={"cpu": 4e-6 * size})


@pytest.mark.parametrize("recorded", [True, False])
def test_shared_parameters_are_updated_once(recorded):
    tied, half = Linear(6, 6, rng=1), Linear(6, 6, rng=2)
    half.bias = tied.bias
    updated = []

    def optimizer(parameters):
        updated.append([p.shape for p in parameters])
        return SGD(parameters, 0.0)

    found = profile([tied, Tanh(), tied, half], (4, 6), ["cpu"], optimizer=optimizer, recorded=recorded, cached=False, **QUICK)
    assert updated == [[(6, 6), (6,)], [(6, 6)]] * (1 if recorded else 2)
    assert [path for path in "0123" if found.of(path, "cpu", "update")] == ["0", "3"]
    needed = sum(stage.memory(True) for stage in found.stages)
    assert needed == pytest.approx(4e-6 * (2 * 4 * 4 * 6 + 3 * (2 * 36 + 6)))
    assert choose(found, memory={"cpu": needed + 1e-9}).devices["2"] == "cpu"


def test_the_devices_of_this_machine():
    assert "cpu" in available() and "emulated" not in available()
