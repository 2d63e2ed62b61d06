"""Suites of training runs name every variant, resume, and compare what can be compared."""

import numpy as np
import pytest

from bench import training
from bench.machinery import harness, runs
from bench.machinery.results import Results, load
from bench.machinery.table import markdown
from bench.training import mlp_settings, papers_mlp
from numbanet import Net


def _trained(experiment, seed, accuracy, count=2, seconds=2.0):
    epochs = [{"accuracy": accuracy, "loss": 1.0, "seconds": seconds, "flops_share": 0.5}] * count
    return {"dropout": experiment.name, "seed": seed, "processor": "one", "settings": experiment.settings, "epochs": epochs}


@pytest.mark.slow
def test_settings_suite_names_every_variant_rate_and_data_set(tmp_path, monkeypatch):
    seen = []

    def train(experiment, seed, data):
        Net(**experiment.variant()).check()
        seen.append(experiment.key)
        return _trained(
            experiment,
            seed,
            0.9 + 0.01 * (experiment.name != "bernoulli"),
            1 if experiment.name == "rdp pattern dp_max=16" else 2,
        )

    monkeypatch.setattr(training, "train", train)
    for name in ("load_mnist", "load_fashion_mnist"):
        monkeypatch.setattr(f"numbanet.datasets.{name}", lambda: (np.zeros((3, 784)),) * 4)
    results = Results(tmp_path / "a.json")
    every = mlp_settings.run(harness.Options(quick=True), results, lambda text: None)
    rows, points = ([row for row in every if row["suite"] == f"mlp-settings{part}"] for part in ("", "-points"))
    assert len(seen) == len(set(seen)) == len(rows) == 2 * 2 * len(list(mlp_settings.variants(0.5)))
    assert sum(row["case"].startswith("fashion-mnist") for row in rows) == len(rows) // 2
    diverged = [row for row in rows if row.get("diverged")]
    assert {row["implementation"] for row in diverged} == {"rdp pattern dp_max=16"} and len(diverged) == 2 * 2
    assert "1 of 1 diverged" in markdown(rows)
    assert {round(row["points"], 6) for row in rows if row not in diverged and row["implementation"] != "bernoulli"} == {1.0}
    # five periods, a search, four alignments, reordering and batchwise
    assert len(points) == 2 * (3 * 5 + 1 + 4 + 1 + 1) and [*rows, *points] == load(results.path)["rows"]
    lines = markdown(points).splitlines()
    assert "| mnist, pattern dp_max=16 | 1 | diverged | diverged | +1.00 | +1.00 |  |  |  |  |" in lines
    assert "| mnist, pattern dp_max=5 | 1 | +1.00 |  | +1.00 |  |  |  |  |  |" in lines
    assert "| mnist, shuffle=1 | 1 | +1.00 | +1.00 |  |  | +1.00 | +1.00 |  |  |" in lines
    with pytest.raises(ValueError, match="holds training runs with other settings"):  # that are not --quick
        mlp_settings.run(harness.Options(), Results(results.path), lambda text: None)
    assert [*rows, *points] == load(results.path)["rows"]  # the file is as it was


def test_points_are_those_of_pairs_of_runs_with_the_same_seed():
    experiments = [training.Experiment({"epochs": 2}, name, None) for name in ("a", "none")]
    mine = [_trained(experiments[0], seed, 0.9 + 0.01 * seed) for seed in (1, 2)]
    others = [_trained(experiments[1], seed, 0.8 + 0.1 * (seed == 0)) for seed in (0, 1)]
    assert runs.points(mine, others) == {"points": pytest.approx(100 * (0.91 - 0.8))}
    assert runs.points(mine[1:], others) == {"points": None}


@pytest.mark.slow
def test_papers_suite_has_every_case_and_compares_times_to_accuracy(tmp_path, monkeypatch):
    seconds = {"bernoulli": 4.0, "rdp": 2.0, "tdp": 3.0, runs.TORCH: 8.0}
    monkeypatch.setattr(
        training,
        "train",
        lambda experiment, seed, data: _trained(
            experiment, seed, 0.98 - 0.02 * (experiment.name == "tdp"), experiment.settings["epochs"], seconds[experiment.name]
        ),
    )
    monkeypatch.setattr("numbanet.datasets.load_mnist", lambda: (np.zeros((3, 784)),) * 4)
    results = Results(tmp_path / "a.json")
    rows = papers_mlp.run(harness.Options(against="torch"), results, lambda text: None)
    cases = {row["case"]: row["seeds"] for row in rows}
    assert len(cases) == 9 and {case: n for case, n in cases.items() if n == 1} == {
        "784-4096-4096-10 p=0.7, 15 epochs": 1,
        "784-4096-4096-10 p=0.0, 0.7, 15 epochs": 1,
    }
    assert "784-2048-2048-10 p=0.3, 0.7, 15 epochs" in cases and "784-1024-64-10 p=0.7, 15 epochs" in cases
    shorter = {(row["implementation"], row["peer"]): row["times"][1]["shorter"] for row in rows}
    assert shorter == {
        ("bernoulli", None): None,
        ("rdp", "bernoulli"): 2.0,
        ("tdp", "bernoulli"): None,
        ("bernoulli", runs.TORCH): 2.0,
        ("rdp", runs.TORCH): 4.0,
        ("tdp", runs.TORCH): None,
        (runs.TORCH, None): None,
    }
    assert "| torch nn.Dropout | 0.97: 2.0 (4.00), 0.975: 2.0 (4.00), 0.98: 2.0 (4.00) |" in markdown(rows)
    assert "| bernoulli | 0.97: 0 of 3, 0.975: 0 of 3, 0.98: 0 of 3 |" in markdown(rows)
    papers_mlp.plot(results, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_seconds_are_compared_on_one_processor_alone():
    """Accuracy is that of all runs; seconds are those of the processor that has most kinds of dropout, nothing beside them."""
    options = harness.Options(quick=True)
    experiments = [training.Experiment(training.settings(options, 64, 0.5, 2), name, None) for name in ("bernoulli", "rdp")]
    runs = [
        {**_trained(experiment, seed, accuracy, seconds=seconds), "processor": processor, "alone": alone}
        for experiment, seed, accuracy, seconds, processor, alone in (
            (experiments[0], 0, 0.97, 4.0, "old", True),
            (experiments[0], 1, 0.97, 4.0, "old", True),
            (experiments[0], 2, 0.97, 6.0, "new", True),
            (experiments[1], 2, 0.98, 2.0, "new", True),
            (experiments[1], 0, 0.96, 9.0, "new", False),
        )
    ]
    usual, rdp = training.summary(runs, experiments, "a", (0.96, 0.98))
    assert (usual["seconds_per_epoch"], rdp["seconds_per_epoch"], rdp["seeds"]) == (6.0, 2.0, 2)
    assert rdp["times"][0] == {"target": 0.96, "reached": 2, "seconds": 2.0, "shorter": 3.0}
    (untimed,) = training.summary([{**runs[0], "alone": False}], experiments[:1], "a", (0.9,))
    assert untimed["seconds_per_epoch"] is None and untimed["times"][0] == {
        "target": 0.9,
        "reached": 1,
        "seconds": None,
        "shorter": None,
    }
    assert "s per epoch" not in markdown([untimed])


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
    found = [
        training.train(training.Experiment(chosen, name, variant), 0, data)["epochs"]
        for name, variant in (("torch", None), ("bernoulli", lambda: {"dropout": "bernoulli", "dropout_rate": (0.3, 0.5)}))
    ]
    for ours, theirs in zip(*found, strict=True):
        assert abs(ours["accuracy"] - theirs["accuracy"]) < 0.1 and abs(ours["loss"] - theirs["loss"]) < 0.3
