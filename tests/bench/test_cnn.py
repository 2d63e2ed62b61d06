"""The suites of convolutions find what is wrong, have all their cases, and run end to end."""

import multiprocessing
import types

import numpy as np
import pytest

from bench import training
from bench.__main__ import main
from bench.kernels import conv
from bench.machinery import worker
from bench.machinery.harness import Options
from bench.machinery.results import Results, load
from bench.machinery.table import markdown
from bench.memory import cnn as cnn_memory
from bench.steps import TOLERANCE, cnn
from bench.training import motivation, papers_cnn
from numbanet import Net, Tensor
from numbanet.layers import ActivationSpec, Context, Conv2d, Flow, Tree

NAME, (SHAPE, BATCH) = "lenet5", cnn.QUICK["lenet5"]
DROPOUTS = [("none", 0.0), *cnn.DROPOUTS.items()]


# --- one kernel -------------------------------------------------------------------------------------------------------
KERNELS = list(conv.cases(Options(against="torch", quick=True)))


@pytest.mark.parametrize("case", KERNELS, ids=[case.name.partition(" n=")[0] for case in KERNELS])
@pytest.mark.slow
def test_convolutions_of_both_sides_are_right(case):
    pytest.importorskip("torch")
    ours, theirs = (implementation.build(**implementation.parameters).outputs() for implementation in case.implementations)
    assert max(case.error(ours), case.error(theirs)) <= case.tolerance
    changed = [np.array(part) for part in ours["result"]]
    changed[0].flat[np.argmax(np.abs(changed[0]))] *= 1.01
    assert case.error({"result": changed}) > case.tolerance


def test_what_is_left_out_here_is_done_by_the_peer():
    """The peer's result is compared with the dense reference, ours with the planned one, and the ceiling is what is kept."""
    sizes = dict(zip(("n", "side", "c", "o", "k", "p"), (2, 6, 4, 3, 3, 1)))
    for kind in ("rows", "blocks"):
        kernel, density = conv.KERNELS[f"conv2d, {kind}"], conv._plan(kind, **sizes).density
        assert kernel.ceiling(**sizes) == pytest.approx(1 / density) and 0.25 < density < 0.6
        assert kernel.flops(**sizes) == pytest.approx(density * conv.KERNELS["conv2d"].flops(**sizes))
        inputs = kernel.inputs(np.random.default_rng(0), **sizes)
        assert np.abs(kernel.reference(*inputs, **sizes) - kernel.peer_reference(*inputs, **sizes)).max() > 0.1


# --- steps ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dropout, rate", DROPOUTS)
def test_steps_agree_with_the_reference_and_wrong_ones_do_not(dropout, rate):
    outputs = cnn.numbanet_task("cpu", NAME, SHAPE, BATCH, dropout, rate).outputs()
    assert cnn.update_error(NAME, SHAPE, BATCH, outputs) < 1e-3
    plans = [[{**sites} for sites in step] for step in outputs["plans"]]
    thinned = [
        (layer, name)
        for layer in range(len(plans[0]))
        for name in ("input", "output")
        if any(step[layer][name] is not None for step in plans)
    ]
    assert {name for _, name in thinned} == {"none": set(), "rdp": {"output"}, "window": {"output"}}.get(dropout, {"input"})
    for layer, name in thinned[:1]:
        for step in plans:
            step[layer][name] = None
        assert cnn.update_error(NAME, SHAPE, BATCH, {**outputs, "plans": plans}) > TOLERANCE
    outputs["weights"][2] = outputs["weights"][2] + 1e-3  # the second convolution's
    assert cnn.update_error(NAME, SHAPE, BATCH, outputs) > TOLERANCE


@pytest.mark.parametrize("dropout, rate", DROPOUTS)
def test_mean_flops_agree_with_those_of_steps(dropout, rate):
    sizes = NAME, (1, 28, 28), 16
    outputs, model = cnn.numbanet_task("cpu", *sizes, dropout, rate).outputs(), cnn.network(*sizes[:2])
    sites = Tree(model).sites
    drawn = [
        {sites[layer, name]: plan for layer, own in zip(model.layers, step) for name, plan in own.items() if plan is not None}
        for step in outputs["plans"]
    ]
    done = [model.cost(ActivationSpec((16, 1, 28, 28)), Context(plans=plans, model=model).plans)[0].flops for plans in drawn]
    assert np.mean(done) == pytest.approx(cnn.mean_flops(*sizes, dropout, rate), rel=0.6 if dropout == "rdp" else 0.1)


@pytest.mark.slow
def test_step_suite_end_to_end(run_bench, tmp_path, monkeypatch):
    """Of kinds of dropout that both networks have, the second network's are left out."""
    pytest.importorskip("torch")
    kinds, first = cnn.kinds, cnn.kinds(NAME)
    few = {NAME: first, "alexnet": {kind: rate for kind, rate in kinds("alexnet").items() if kind not in first}}
    monkeypatch.setattr(cnn, "kinds", few.get)
    status, _, errors = run_bench(
        "cnn", "--quick", "--against", "torch", "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png"
    )
    assert status == 0, errors
    rows = load(tmp_path / "a.json")["rows"]
    assert {row["case"] for row in rows} == {"lenet5 on 1x12x12, batch 16", "alexnet on 1x8x8, batch 4"}
    assert {row["implementation"]: row["peer"] for row in rows} == {
        "none": "torch",
        "rsdp p=0.6": "torch",
        "rsdp tiles p=0.6": "torch",
        "bsdp p=0.6": "torch",
        "bsdp channels p=0.6": "torch",
        "rdp p=0.5": "torch",
        "window p=0.5": "torch",
        "torch": None,
    }
    assert all(row["ceiling"] > 1.4 for row in rows if "p=" in row["implementation"])
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_without_a_peer_numbanets_dense_step_is_it():
    for case in cnn.cases(Options(quick=True)):
        assert {i.name: i.peer for i in case.implementations} == {
            "none": None,
            "rsdp p=0.6": "none",
            **({} if case.name.startswith("lenet5") else dict.fromkeys(("rsdp tiles p=0.6", "bsdp channels p=0.6"), "none")),
            "bsdp p=0.6": "none",
            "rdp p=0.5": "none",
            "window p=0.5": "none",
        }


@pytest.mark.slow
def test_memory_suite_end_to_end(tmp_path, monkeypatch):
    """In processes, because peaks of one process mean nothing; they are forked from one that has imported PyTorch."""
    pytest.importorskip("torch")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "bench.memory.cnn", "numbanet.training.stepper"])
    monkeypatch.setattr(worker, "multiprocessing", types.SimpleNamespace(get_context=lambda way: context))
    path = tmp_path / "a.json"
    arguments = ["cnn-memory", "--quick", "--against", "torch", "--json", str(path), "--plot", str(tmp_path / "a.png")]
    assert main(arguments) == 0
    record = load(path)
    rows = record["rows"]
    assert record["quick"] and not [row for row in rows if row.get("problem")]
    assert len(rows) == 6 and all(row["peak_mib"] > 0 for row in rows)
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_counted_memory_is_that_of_one_form_of_each():
    activations = 16 * (6 * 144 + 6 * 36 + 16 * 4 + 16 + 120 + 84 + 10)
    weights = 6 * 26 + 16 * 151 + 120 * 17 + 84 * 121 + 10 * 85
    assert cnn_memory.counted(NAME, SHAPE, BATCH) == 4 * (16 * 144 + 2 * activations + weights)


# --- training runs ----------------------------------------------------------------------------------------------------
def _trained(experiment, seed, data):
    """As if it had been trained: rsdp learns more than the others."""
    epochs = [{"accuracy": 0.97 + 0.01 * experiment.name.startswith("rsdp"), "loss": 1.0, "seconds": 2.0, "flops_share": 0.5}]
    return {
        "dropout": experiment.name,
        "seed": seed,
        "processor": "one",
        "settings": experiment.settings,
        "epochs": epochs * experiment.settings["epochs"],
    }


@pytest.mark.parametrize(
    "suite, device, count",
    [(papers_cnn, "cpu", 2 * 34 + 10), (papers_cnn, "cuda", 2 * 34 + 2 * 42 + 10), (motivation, "cpu", 1 + 4 * 7)],
)
def test_every_way_to_drop_can_be_trained(suite, device, count):
    found = list(suite.experiments(Options(device)))
    assert len(found) == len({experiment.key for experiment in found}) == count
    for experiment in found:
        parameters = dict(experiment.variant())
        layers = parameters.pop("layers", None)
        Net(layers(0) if layers else experiment.settings["network"], epochs=experiment.settings["epochs"], **parameters).check()


def test_papers_suite_resumes_and_compares_with_dense_training(tmp_path, monkeypatch):
    trained = []

    def train(experiment, seed, data):
        trained.append(experiment.key)
        if len(trained) == 5:
            raise KeyboardInterrupt
        return _trained(experiment, seed, data)

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr("numbanet.datasets.load_mnist", lambda: (np.zeros((3, 784)),) * 4)
    options, path = Options(quick=True), tmp_path / "a.json"
    with pytest.raises(KeyboardInterrupt):
        papers_cnn.run(options, Results(path), lambda text: None)
    assert len(load(path)["runs"]) == 4
    results = Results(path)
    rows = papers_cnn.run(options, results, lambda text: None)
    assert len(rows) == len(set(trained)) == len(trained) - 1 == 13
    assert {row["implementation"]: round(row["points"], 6) for row in rows}["rsdp skew p=0.6"] == 1.0
    text = markdown(rows)
    assert "points against none" in text and "| mnist, lenet5, 2 epochs | bsdp chance p=0.6 | 1 | 0.9700 " in text
    assert "| none | 0.98: 2.0, 0.985: 0 of 1 |" in text
    papers_cnn.plot(results, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_network_is_trained_by_name_and_of_own_layers(rng):
    data = (rng.random((96, 784), np.float32), np.arange(96) % 10) * 2
    for suite in (papers_cnn, motivation):
        for experiment in list(suite.experiments(Options(quick=True)))[:3]:
            found = training.train(experiment, 0, data)
            assert training.whole(found) and ("dropped" in found["epochs"][0]) == experiment.name.startswith("rsdp")


@pytest.mark.parametrize("part", motivation.PARTS)
def test_parts_are_those_of_each_sample_by_magnitude(part, rng):
    low, high = motivation.PARTS[part]
    x = rng.standard_normal((3, 2, 10, 10)).astype(np.float32)
    x[:, 1] = 0  # a half of equal values: which of them are in a part is drawn
    dropped = motivation.DroppedInputs(0.5, part=(low, high)).dropped(x, rng).reshape(3, -1)
    ranks = np.argsort(np.argsort(np.abs(x.reshape(3, -1)), 1), 1)
    assert 0.35 < dropped.sum() / (3 * 200 * (high - low)) < 0.65
    decided = np.abs(x.reshape(3, -1)) > 0
    assert not dropped[decided & ((ranks < 200 * low) | (ranks >= 200 * high))].any()


def test_weights_and_inputs_are_dropped_in_training_alone(rng):
    conv2d, x = Conv2d(3, 4, 3, rng=0), Tensor(rng.random((2, 3, 6, 6), np.float32))
    dense = conv2d(x).numpy()
    for layers in ([motivation.DroppedWeights(conv2d, 0.5, 2.0, 0)], [motivation.DroppedInputs(0.5, 2.0, rng=0), conv2d]):
        for training_now in (False, True):
            flow, step = Flow(x), Context(training=training_now)
            for layer in layers:
                flow = layer.forward(flow, step)
            assert np.allclose(flow.dense().numpy(), dense, atol=1e-5) != training_now
