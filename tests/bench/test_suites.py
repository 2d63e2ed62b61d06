"""Suites have all their cases, find what is wrong, and run end to end; the command line refuses what it does not know."""

import numpy as np
import pytest

from bench import kernels
from bench.machinery import harness, plots, suites
from bench.machinery.results import load
from bench.machinery.table import markdown
from bench.memory import mlp as mlp_memory
from bench.steps import BATCH, TOLERANCE, mlp_model, mlp_scaling
from numbanet_kernels import examples
from numbanet_kernels.tables import family_of


def _rows(path):
    record = load(path)
    assert record["quick"] and record["machine"]["numpy"] == np.__version__ and record["date"]
    assert record["rows"] and not [row for row in record["rows"] if row.get("problem")]
    return record["rows"]


@pytest.mark.parametrize("family", suites.families())
def test_the_suite_of_a_family_has_all_its_operations_and_their_references(family):
    ops = {name.partition(",")[0] for name, module in examples.families().items() if family_of(module) == family}
    for case in kernels.suite(family, harness.Options(quick=True)):
        for ours in case.implementations:
            assert case.error(ours.build(**ours.parameters).outputs()) <= case.tolerance, case.name
            if "op" in ours.parameters:  # else more than one operation
                name = ours.parameters["op"]
                ops -= {kernels._kernel(family, name).op or name.partition(",")[0]}
    assert not ops


@pytest.mark.slow
def test_kernel_suite_end_to_end(run_bench, tmp_path):
    pytest.importorskip("torch")
    status, said, errors = run_bench("loss", "--quick", "--against", "torch", "--json", tmp_path / "a.json")
    assert status == 0, errors
    rows = _rows(tmp_path / "a.json")
    assert {row["implementation"] for row in rows} == {"numbanet", "torch"}
    assert all(row["ratio"] > 0 and row["error"] < 1e-5 for row in rows if row["peer"])
    assert "softmax_cross_entropy" in said


@pytest.mark.slow
def test_training_suite_end_to_end(run_bench, tmp_path):
    pytest.importorskip("torch")
    status, _, errors = run_bench(
        "mlp", "--quick", "--against", "torch", "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png"
    )
    assert status == 0, errors
    rows = {row["implementation"]: row for row in _rows(tmp_path / "a.json")}
    assert {name: row["peer"] for name, row in rows.items()} == {
        "none": "torch",
        "torch": None,
        "scikit-learn": "torch",
        "bernoulli": "torch nn.Dropout",
        "rdp": "torch nn.Dropout",
        "tdp": "torch nn.Dropout",
        "batchwise": "torch nn.Dropout",
        "window": "torch nn.Dropout",
        "torch nn.Dropout": None,
    }
    assert all(row["error"] < 1e-4 for row in rows.values())
    assert rows["none"]["ceiling"] == rows["bernoulli"]["ceiling"] == 1.0
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nope"], "there is no suite 'nope'"),
        (["list", "gemm"], "list cannot be combined with other suites"),
        (["gemm", "papers-mlp"], "cannot be combined with other suites"),
        (["gemm", "--device", "tpu"], "tpu"),
        ([], "required"),
        (["gemm", "--only", "("], "'(' is not a regular expression"),
        (["gemm", "--quick", "--only", "nosuchcase"], "--only: 'nosuchcase' matches no case of gemm"),
        (["gemm", "--shape", "3,4"], "three positive integers"),
        (["gemm", "--shape", "3,4,x"], "--shape"),
        (["conv", "--shape", "3,4,5"], "--shape does not apply to conv"),
        (["mlp", "--device", "emulated"], "--device emulated does not apply to mlp"),
        (["gemm", "--device", "emulated", "--json", "a.json"], "--json does not apply to --device emulated"),
        (["gpu", "--only", "("], "'(' is not a regular expression"),
        (["gpu", "--quick"], "--quick does not apply to gpu"),
        (["gemm", "--plot", "nowhere/a.png"], "--plot: there is no folder nowhere"),
    ],
)
def test_bad_arguments(run_bench, arguments, message):
    status, _, errors = run_bench(*arguments)
    assert status == 2 and message in errors and errors.count("\n") == 1


@pytest.mark.parametrize("family", list(filter(kernels.shaped, suites.families())))
def test_kernels_at_a_shape(family):
    found = [
        dict(ours.parameters.get("sizes", {}))
        for case in kernels.suite(family, harness.Options(shape=(37, 21, 43)))
        for ours in case.implementations
    ]
    assert found and all({37, 21, 43} >= {value for key, value in sizes.items() if key in ("n", "i", "o")} for sizes in found)


@pytest.mark.slow
def test_counters_of_a_family_on_the_emulated_device(run_bench):
    status, said, errors = run_bench("embedding", "--device", "emulated", "--shape", "8,16,12")
    assert status == 0 and "N, I, O = 8, 16, 12" in said, errors


def test_step_of_a_wrong_model_is_seen():
    weights = mlp_model.reference_steps(8, BATCH, [[(1.0, 1.0)] * 2] * 2)
    outputs = {"weights": [w.astype(np.float32) for w in weights], "factors": [[(1.0, 1.0)] * 2] * 2}
    assert mlp_model.update_error(8, BATCH, outputs) < 1e-3  # the weights are rounded to float32, and they changed by little
    outputs["weights"][3][2] += 1e-3  # one bias of the second layer
    assert mlp_model.update_error(8, BATCH, outputs) > 1e-2


def test_a_neuron_near_its_kink_may_be_seen_on_either_side(monkeypatch):
    factors = [[(1.0, 1.0)] * 2]
    for kink in (0.3, -0.3):
        outputs = {"weights": mlp_model.reference_steps(8, BATCH, factors, kink=kink), "factors": factors}
        monkeypatch.setattr(mlp_model, "KINK", 0.3)
        assert mlp_model.update_error(8, BATCH, outputs) == pytest.approx(0, abs=1e-9)
        monkeypatch.setattr(mlp_model, "KINK", 1e-6)
        assert mlp_model.update_error(8, BATCH, outputs) > TOLERANCE


@pytest.mark.parametrize("dropout", ["rdp", "tdp"])
def test_mean_flops_agree_with_drawn_plans(dropout):
    from numbanet.dropout import policy
    from numbanet.layers import ActivationSpec, Context

    model, chosen, rng = mlp_model.network(64), policy(dropout, 0.5), np.random.default_rng(0)
    steps = [Context(plans={site: chosen.plan(site, rng) for site in model.droppable()}, model=model) for _ in range(4000)]
    drawn = [model.cost(ActivationSpec((BATCH, 784)), step.plans)[0].flops for step in steps]
    spread = np.std(drawn) / np.sqrt(len(drawn))
    assert abs(np.mean(drawn) - mlp_model.mean_flops(64, BATCH, dropout, 0.5)) < 5 * spread


def test_slope_above_the_fixed_time_is_found():
    rows = [
        {
            "suite": "mlp-scaling",
            "case": f"784-{h}-{h}-10 p=0.5",
            "implementation": name,
            "flops": 1e5 * h * h,
            "median_ms": 0.7 if h == mlp_scaling.TINY else 0.7 + 1e-4 * h ** (2 * slope),
        }
        for h in (mlp_scaling.TINY, 512, 1024, 2048)
        for name, slope in (("a", 1.0), ("b", 0.8))
    ]
    first, second = mlp_scaling.fits(rows)
    assert first["slope"] == pytest.approx(1.0, abs=0.01) and second["slope"] == pytest.approx(0.8, abs=0.01)
    assert first["fixed_ms"] == pytest.approx(0.7, abs=0.01) and first["worst"] < 0.02
    assert "| 1.00 |" in markdown([first])
    assert mlp_scaling.fits(rows[2:]) == []  # the fixed time is that of the narrowest network


@pytest.mark.parametrize("suite", ["mpi", "emulated-card", "placement", "papers-cnnlab", "mlp-memory", "cnn-memory"])
def test_suites_of_the_cpu_refuse_another_device(suite):
    module, options = suites.files()[suite], harness.Options(device="cuda")
    with pytest.raises(ValueError, match=f"^{suite} .*: use --device cpu$"):
        module.run(options, None, lambda text: None) if suites.stands_alone(suite) else next(module.cases(options))


def test_widths_that_take_no_longer_than_the_narrowest_are_left_out_of_the_picture(tmp_path):
    rows = [
        {"implementation": "a", "flops": 10, "median_ms": 3.0},
        {"implementation": "a", "slope": 1.0, "start": 0.0, "fixed_ms": 3.0},
    ]
    plots.plot_scaling(rows, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize("alone, across", [(True, 2), (False, 1)])
def test_panels_by_seconds_are_drawn_where_some_can_be_compared(alone, across, tmp_path, monkeypatch):
    drawn, settings = [], {"dataset": "text", "hidden": [4], "p": 0.0, "epochs": 1, "samples": 9}
    runs = [{"settings": settings, "dropout": "none", "alone": alone, "epochs": [{"perplexity": 7.0, "seconds": 1.0}]}]
    monkeypatch.setattr(plots, "clocked", lambda found: found if alone else [])
    monkeypatch.setattr(plots, "case_of", lambda settings: "a text")
    monkeypatch.setattr(plots, "measure", lambda settings: "perplexity")
    figure = plots.figure_of
    monkeypatch.setattr(plots, "figure_of", lambda *size: drawn.append(figure(*size)) or drawn[-1])
    plots.plot_runs(runs, tmp_path / "a.png")
    assert len(drawn[0].axes) == across and all(axes.lines for axes in drawn[0].axes)


def test_scaling_suite_end_to_end(run_bench, tmp_path):
    status, _, errors = run_bench("mlp-scaling", "--quick", "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png")
    assert status == 0, errors
    slopes = {row["implementation"]: row["slope"] for row in _rows(tmp_path / "a.json") if "slope" in row}
    assert set(slopes) == {"none", "rdp", "tdp"} and (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.slow
def test_memory_suite_end_to_end(run_bench, tmp_path):
    """That of convolutions has processes: here peaks of one process mean nothing."""
    pytest.importorskip("torch")
    status, _, errors = run_bench(
        "mlp-memory", "--quick", "--against", "torch", "--json", tmp_path / "b.json", "--plot", tmp_path / "b.png"
    )
    assert status == 0, errors
    rows = _rows(tmp_path / "b.json")
    assert len(rows) == 9 and not any(row.get("problem") for row in rows) and (tmp_path / "b.png").stat().st_size > 1000
    assert all(
        row["peer"] == ("torch" if row["implementation"] == "none" else "torch nn.Dropout")
        for row in rows
        if not row["implementation"].startswith("torch")
    )


def test_counted_memory_is_that_of_one_form_of_each():
    hidden, batch = 8, 3
    dense = batch * 784 + 4 * batch * hidden + 2 * batch * 10 + 784 * hidden + hidden * hidden + 10 * hidden
    assert mlp_memory.counted(hidden, batch, 1.0) == 4 * dense
    assert mlp_memory.counted(hidden, batch, 0.5) == 4 * (batch * (784 + 16 + 20) + 784 * 4 + 16 + 40)
