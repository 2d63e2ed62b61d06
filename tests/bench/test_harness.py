"""The harness finds known ratios and refuses what is wrong; suites run end to end; reports are rewritten."""
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bench import kernels, training
from bench.machinery import gpu, harness, plots, runs, suites
from bench.machinery.harness import Case, Implementation, Schedule, measure, quantiles, relative_error
from bench.machinery.results import Results, load
from bench.machinery.table import markdown
from bench.machinery.worker import Task, Worker, WorkerError, Workers
from bench.memory import mlp as mlp_memory
from bench.steps import BATCH, TOLERANCE, mlp_model, mlp_scaling
from bench.training import mlp_settings, papers_mlp
from numbanet import Net
from numbanet_kernels import examples
from numbanet_kernels.tables import family_of

ROOT = Path(__file__).resolve().parents[2]
FAST = Schedule(pairs=5, turn=0.01, pause=0.0, warm_up=1)


# --- fake implementations: functions of a module, because workers import them -----------------------------------------
def sleeper(seconds, value=1.0):
    return Task(lambda: time.sleep(seconds), lambda: {"y": np.full(3, value)})


def raiser():
    raise ZeroDivisionError("no such\nimplementation")


def leaver():
    sys.exit(7)


def _case(*implementations, least=1):
    return Case("fake", "sleep", implementations, lambda outputs: relative_error(outputs["y"], np.ones(3)), least=least)


@pytest.fixture
def workers():
    with Workers(threads=1) as found:
        yield found


# --- harness ----------------------------------------------------------------------------------------------------------
@pytest.mark.alone
def test_known_ratio_is_found(workers):
    slow = Implementation("slow", sleeper, {"seconds": 0.02})
    fast = Implementation("fast", sleeper, {"seconds": 0.005}, peer="slow", ceiling=4.0)
    first, second = measure(_case(fast, slow), workers, FAST)
    assert (first.implementation, first.peer, second.peer) == ("fast", "slow", None)
    assert first.problem is None and first.error == 0
    assert 2.0 < first.ratio < 5.0 and first.ratio_p10 <= first.ratio <= first.ratio_p90
    assert 5 <= first.median_ms < 20 <= second.median_ms and first.p10 <= first.median_ms <= first.p90
    assert first.turns == second.turns == 5 and first.repetitions >= 2 and second.ratio is None


class _Event:
    """A clock that runs ten times as fast as a card's."""

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return 1e4 * (end.at - self.at)


@pytest.mark.alone
def test_a_card_is_timed_by_its_own_clock_as_well():
    task = Task(lambda: time.sleep(0.002), dict, event=_Event)
    wall, on_card = task.seconds(5)
    assert 0.01 <= wall < on_card / 5
    assert Task(lambda: None, dict).seconds(1)[1] is None
    row = {"suite": "mlp", "case": "a", "implementation": "b", "median_ms": 2.0, "p10": 1.0, "p90": 3.0}
    assert "on the card" not in markdown([row]) and "| 1.5 |" in markdown([{**row, "device_ms": 1.5}, row])


def test_turns_alternate_strictly_and_hold_the_least_repetitions():
    order = []

    class Recorder(dict):
        def __missing__(self, name):
            return self

        def __init__(self, name):
            self.name = name

        def ask(self, verb, count=None):
            if verb == "run":
                order.append((self.name, count))
                return 0.02 * count, None
            return {"y": np.ones(3)} if verb == "outputs" else None

    fakes = {name: Recorder(name) for name in "ab"}
    measure(_case(Implementation("a", sleeper, peer="b"), Implementation("b", sleeper), least=20), fakes, FAST)
    timed = order[2:]  # two calls to find out how many repetitions a turn has
    assert [name for name, _ in timed] == ["b", "a"] * (FAST.pairs + FAST.warm_up)
    assert {count for _, count in timed} == {20}


def test_wrong_implementation_is_refused(workers):
    wrong = Implementation("wrong", sleeper, {"seconds": 0.001, "value": 1.1})
    right = Implementation("right", sleeper, {"seconds": 0.001}, peer="wrong")
    nan = Implementation("nan", sleeper, {"seconds": 0.001, "value": float("nan")})
    bad, compared, broken = measure(_case(wrong, right, nan), workers, FAST)
    assert bad.problem.startswith("wrong") and bad.error == pytest.approx(0.1) and bad.median_ms is None
    assert compared.problem == "not timed: its peer, wrong, failed" and compared.median_ms is None
    assert broken.problem.startswith("wrong") and broken.error is None


def test_failures_of_implementations_are_results(workers):
    rows = measure(_case(Implementation("raiser", raiser), Implementation("leaver", leaver),
                         Implementation("alone", sleeper, {"seconds": 0.001})), workers, FAST)
    assert rows[0].problem == "ZeroDivisionError: no such implementation"
    assert rows[1].problem == "its process ended with exit status 7"
    assert rows[2].problem is None and rows[2].ratio is None and rows[2].turns == FAST.pairs


def test_worker_has_the_threads_it_was_given():
    worker = Worker(threads=1)
    try:
        with pytest.raises(WorkerError, match="AttributeError"):
            worker.ask("outputs")  # nothing is loaded
        worker.ask("load", (_reader, {}))
        assert worker.ask("outputs") == {"threads": "1", "torch": False}
    finally:
        worker.close()


def _reader():
    import os
    return Task(lambda: None, lambda: {"threads": os.environ["OPENBLAS_NUM_THREADS"], "torch": "torch" in sys.modules})


def test_statistics():
    assert quantiles([1.0, 2.0, 3.0]) == pytest.approx((2.0, 1.2, 2.8))
    assert relative_error([1.0, 2.0], [1.0, 4.0]) == 0.5
    assert relative_error([1.0], [1.0, 1.0]) == relative_error([np.nan], [1.0]) == float("inf")


# --- suites -----------------------------------------------------------------------------------------------------------
def _run(*arguments):
    command = [sys.executable, "-m", "bench", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


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


def test_kernel_suite_end_to_end(tmp_path):
    pytest.importorskip("torch")
    done = _run("loss", "--quick", "--against", "torch", "--json", tmp_path / "a.json")
    assert done.returncode == 0, done.stderr
    rows = _rows(tmp_path / "a.json")
    assert {row["implementation"] for row in rows} == {"numbanet", "torch"}
    assert all(row["ratio"] > 0 and row["error"] < 1e-5 for row in rows if row["peer"])
    assert "softmax_cross_entropy" in done.stdout


def test_training_suite_end_to_end(tmp_path):
    pytest.importorskip("torch")
    done = _run("mlp", "--quick", "--against", "torch", "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png")
    assert done.returncode == 0, done.stderr
    rows = {row["implementation"]: row for row in _rows(tmp_path / "a.json")}
    assert {name: row["peer"] for name, row in rows.items()} == {
        "none": "torch", "torch": None, "scikit-learn": "torch", "bernoulli": "torch nn.Dropout", "rdp": "torch nn.Dropout",
        "tdp": "torch nn.Dropout", "batchwise": "torch nn.Dropout", "torch nn.Dropout": None}
    assert all(row["error"] < 1e-4 for row in rows.values())
    assert rows["none"]["ceiling"] == rows["bernoulli"]["ceiling"] == 1.0
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize("arguments, message", [
    (["nope"], "there is no suite 'nope'"), (["list", "gemm"], "list stands alone"), (["gemm", "papers-mlp"], "stands alone"),
    (["gemm", "--device", "tpu"], "tpu"), ([], "required"), (["gemm", "--only", "("], "'(' is not a regular expression"),
    (["gemm", "--shape", "3,4"], "three lengths"), (["gemm", "--shape", "3,4,x"], "--shape"),
    (["conv", "--shape", "3,4,5"], "--shape says nothing to conv"),
    (["mlp", "--device", "emulated"], "--device emulated says nothing to mlp")])
def test_bad_arguments(arguments, message):
    done = _run(*arguments)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("family", list(filter(kernels.shaped, suites.families())))
def test_kernels_at_a_shape(family):
    found = [dict(ours.parameters.get("sizes", {})) for case in kernels.suite(family, harness.Options(shape=(37, 21, 43)))
             for ours in case.implementations]
    assert found and all({37, 21, 43} >= {value for key, value in sizes.items() if key in ("n", "i", "o")} for sizes in found)


def test_counters_of_a_family_on_the_emulated_device():
    done = _run("embedding", "--device", "emulated", "--shape", "8,16,12")
    assert done.returncode == 0 and "N, I, O = 8, 16, 12" in done.stdout, done.stderr


def test_only_some_of_the_cases():
    cases = [dataclasses.replace(_case(Implementation("raiser", raiser)), name=name) for name in ("some", "awesome")]
    rows = harness.run_cases("x", cases, harness.Options(quick=True, only="^some"), Results(None), lambda text: None)
    assert [row["case"] for row in rows] == ["some"]


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
    rows = [{"suite": "mlp-scaling", "case": str(h), "implementation": name, "flops": 1e5 * h * h,
             "median_ms": 0.7 + 1e-4 * h ** (2 * slope)}
            for h in (1, 512, 1024, 2048) for name, slope in (("a", 1.0), ("b", 0.8))]
    first, second = mlp_scaling.fits(rows)
    assert first["slope"] == pytest.approx(1.0, abs=0.01) and second["slope"] == pytest.approx(0.8, abs=0.01)
    assert first["fixed_ms"] == pytest.approx(0.7, abs=0.01) and first["worst"] < 0.02
    assert "| 1.00 |" in markdown([first])


def test_widths_that_take_no_longer_than_the_narrowest_are_left_out_of_the_picture(tmp_path):
    rows = [{"implementation": "a", "flops": 10, "median_ms": 3.0},
            {"implementation": "a", "slope": 1.0, "start": 0.0, "fixed_ms": 3.0}]
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


def test_scaling_suite_end_to_end(tmp_path):
    done = _run("mlp-scaling", "--quick", "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png")
    assert done.returncode == 0, done.stderr
    slopes = {row["implementation"]: row["slope"] for row in _rows(tmp_path / "a.json") if "slope" in row}
    assert set(slopes) == {"none", "rdp", "tdp"} and (tmp_path / "a.png").stat().st_size > 1000


def test_memory_suite_end_to_end(tmp_path):
    pytest.importorskip("torch")
    done = _run("mlp-memory", "--quick", "--against", "torch", "--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    assert done.returncode == 0, done.stderr
    rows = _rows(tmp_path / "b.json")
    assert len(rows) == 9 and not any(row.get("problem") for row in rows) and (tmp_path / "b.png").stat().st_size > 1000
    assert all(row["peer"] == ("torch" if row["implementation"] == "none" else "torch nn.Dropout")
               for row in rows if not row["implementation"].startswith("torch"))


def test_counted_memory_is_that_of_one_form_of_each():
    hidden, batch = 8, 3
    dense = batch * 784 + 4 * batch * hidden + 2 * batch * 10 + 784 * hidden + hidden * hidden + 10 * hidden
    assert mlp_memory.counted(hidden, batch, 1.0) == 4 * dense
    assert mlp_memory.counted(hidden, batch, 0.5) == 4 * (batch * (784 + 16 + 20) + 784 * 4 + 16 + 40)


def _trained(experiment, seed, accuracy, count=2, seconds=2.0):
    epochs = [{"accuracy": accuracy, "loss": 1.0, "seconds": seconds, "flops_share": 0.5}] * count
    return {"dropout": experiment.name, "seed": seed, "processor": "one", "settings": experiment.settings, "epochs": epochs}


def test_settings_suite_names_every_variant_rate_and_data_set(tmp_path, monkeypatch):
    seen = []

    def train(experiment, seed, data):
        Net(**experiment.variant()).check()
        seen.append(experiment.key)
        return _trained(experiment, seed, 0.9 + 0.01 * (experiment.name != "bernoulli"),
                        1 if experiment.name == "rdp pattern dp_max=16" else 2)

    monkeypatch.setattr(training, "train", train)
    for name in ("load_mnist", "load_fashion_mnist"):
        monkeypatch.setattr(f"numbanet.datasets.{name}", lambda: (np.zeros((3, 784)),) * 4)
    results = Results(tmp_path / "a.json")
    points = mlp_settings.run(harness.Options(quick=True), results, lambda text: None)
    rows = [row for row in results.rows if row["suite"] == "mlp-settings"]
    assert len(seen) == len(set(seen)) == len(rows) == 2 * 2 * len(list(mlp_settings.variants(0.5)))
    assert sum(row["case"].startswith("fashion-mnist") for row in rows) == len(rows) // 2
    diverged = [row for row in rows if row.get("diverged")]
    assert {row["implementation"] for row in diverged} == {"rdp pattern dp_max=16"} and len(diverged) == 2 * 2
    assert "1 of 1 diverged" in markdown(rows)
    assert {round(row["points"], 6) for row in rows if row not in diverged and row["implementation"] != "bernoulli"} == {1.0}
    # five periods and a search
    assert len(points) == 2 * (3 * 5 + 1) and points == results.rows[len(rows):]
    lines = markdown(points).splitlines()
    assert "| mnist, pattern dp_max=16 | 1 | diverged | diverged | +1.00 | +1.00 |" in lines
    assert "| mnist, pattern dp_max=5 | 1 | +1.00 |  | +1.00 |  |" in lines


def test_papers_suite_has_every_case_and_compares_times_to_accuracy(tmp_path, monkeypatch):
    seconds = {"bernoulli": 4.0, "rdp": 2.0, "tdp": 3.0, runs.TORCH: 8.0}
    monkeypatch.setattr(training, "train", lambda experiment, seed, data: _trained(
        experiment, seed, 0.98 - 0.02 * (experiment.name == "tdp"), experiment.settings["epochs"], seconds[experiment.name]))
    monkeypatch.setattr("numbanet.datasets.load_mnist", lambda: (np.zeros((3, 784)),) * 4)
    results = Results(tmp_path / "a.json")
    rows = papers_mlp.run(harness.Options(against="torch"), results, lambda text: None)
    cases = {row["case"]: row["seeds"] for row in rows}
    assert len(cases) == 9 and {case: n for case, n in cases.items() if n == 1} == {
        "784-4096-4096-10 p=0.7, 15 epochs": 1, "784-4096-4096-10 p=0.0, 0.7, 15 epochs": 1}
    assert "784-2048-2048-10 p=0.3, 0.7, 15 epochs" in cases and "784-1024-64-10 p=0.7, 15 epochs" in cases
    shorter = {(row["implementation"], row["peer"]): row["times"][1]["shorter"] for row in rows}
    assert shorter == {("bernoulli", None): None, ("rdp", "bernoulli"): 2.0, ("tdp", "bernoulli"): None,
                       ("bernoulli", runs.TORCH): 2.0, ("rdp", runs.TORCH): 4.0, ("tdp", runs.TORCH): None,
                       (runs.TORCH, None): None}
    assert "| torch nn.Dropout | 0.97: 2.0 (4.00), 0.975: 2.0 (4.00), 0.98: 2.0 (4.00) |" in markdown(rows)
    assert "| bernoulli | 0.97: 0 of 3, 0.975: 0 of 3, 0.98: 0 of 3 |" in markdown(rows)
    papers_mlp.plot(results, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_seconds_are_compared_on_one_processor_alone():
    """Accuracy is that of all runs; seconds are those of the processor that has most kinds of dropout, nothing beside them."""
    options = harness.Options(quick=True)
    experiments = [training.Experiment(training.settings(options, 64, 0.5, 2), name, None) for name in ("bernoulli", "rdp")]
    runs = [{**_trained(experiment, seed, accuracy, seconds=seconds), "processor": processor, "alone": alone}
            for experiment, seed, accuracy, seconds, processor, alone in (
                (experiments[0], 0, 0.97, 4.0, "old", True), (experiments[0], 1, 0.97, 4.0, "old", True),
                (experiments[0], 2, 0.97, 6.0, "new", True), (experiments[1], 2, 0.98, 2.0, "new", True),
                (experiments[1], 0, 0.96, 9.0, "new", False))]
    usual, rdp = training.summary(runs, experiments, "a", (0.96, 0.98))
    assert (usual["seconds_per_epoch"], rdp["seconds_per_epoch"], rdp["seeds"]) == (6.0, 2.0, 2)
    assert rdp["times"][0] == {"target": 0.96, "reached": 2, "seconds": 2.0, "shorter": 3.0}
    (untimed,) = training.summary([{**runs[0], "alone": False}], experiments[:1], "a", (0.9,))
    assert untimed["seconds_per_epoch"] is None and untimed["times"][0] == {
        "target": 0.9, "reached": 1, "seconds": None, "shorter": None}
    assert "s per epoch" not in markdown([untimed])


@pytest.mark.alone
def test_what_fails_on_a_card_does_not_keep_the_rest_from_running(tmp_path, monkeypatch):
    path, said = tmp_path / "card.json", []
    rows = json.dumps({"machine": {}, "rows": [{"suite": "gemm"}]})
    scripts = ["import sys; print('no'); sys.exit(3)",
               "import subprocess; print('slow', flush=True); subprocess.run(['sleep', '60'])", "open(FILE, 'w').write(ROWS)"]
    monkeypatch.setattr(gpu, "steps", lambda figures: [
        gpu.Step(name, [sys.executable, "-c", script.replace("FILE", repr(str(figures))).replace("ROWS", repr(rows))], seconds)
        for name, script, seconds in zip("abc", scripts, (20, 1, 20))])
    start = time.perf_counter()
    assert gpu.run(said.append, path) == 1 and time.perf_counter() - start < 30
    found = load(path)
    assert [step["outcome"] for step in found["steps"]] == ["exit status 3", "not done after 1 s", "passed"]
    assert [step["said"] for step in found["steps"]] == ["no\n", "slow\n", ""] and found["rows"] == [{"suite": "gemm"}]
    assert gpu.file_of(["NVIDIA H200, driver 570.1"]).name == "nvidia-h200.json"
    with pytest.raises(RuntimeError, match="no graphics card"):
        gpu.file_of([])


def test_what_a_card_is_asked_takes_less_than_eight_minutes(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    found = gpu.steps(Path("a.json"))
    assert len(found) == 4 and sum(step.seconds for step in found) <= 480
    assert all(Path(part).exists() for step in found for part in step.command if part.startswith("tests"))


def test_a_run_that_diverges_is_recorded():
    chosen = {**training.settings(harness.Options(quick=True), 64, 0.5, 2), "learning_rate": 1e30}
    data = (np.ones((40, 8), np.float32), np.arange(40) % 2) * 2
    found = training.train(training.Experiment(chosen, "none", lambda: {"dropout": "none"}), 0, data)
    assert len(found["epochs"]) < chosen["epochs"] and not training.whole(found)


def test_pytorch_is_trained_like_numbanet():
    """The same network on the same samples learns as much in both."""
    pytest.importorskip("torch")
    from sklearn.datasets import make_blobs

    X, y = make_blobs(2600, training.FEATURES, centers=10, cluster_std=6.0, random_state=0)
    X = (X / 10).astype(np.float32)
    data = X[:2000], y[:2000], X[2000:], y[2000:]
    chosen = training.settings(harness.Options(quick=True), 64, (0.3, 0.5), 2)
    found = [training.train(training.Experiment(chosen, name, variant), 0, data)["epochs"] for name, variant in (
        ("torch", None), ("bernoulli", lambda: {"dropout": "bernoulli", "dropout_rate": (0.3, 0.5)}))]
    for ours, theirs in zip(*found, strict=True):
        assert abs(ours["accuracy"] - theirs["accuracy"]) < 0.1 and abs(ours["loss"] - theirs["loss"]) < 0.3


def test_files_that_hold_no_results_are_refused(tmp_path):
    path = tmp_path / "a.json"
    for text in ("{", "[]", json.dumps({"rows": []})):
        path.write_text(text)
        with pytest.raises(ValueError, match="a.json"):
            Results(path)
        assert path.read_text() == text
