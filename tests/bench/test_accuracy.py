"""The suite of accuracies trains every kind by rate, resumes, and says what a user gets who stops early or after equal time."""

import dataclasses

import numpy as np
import pytest

from bench import training
from bench.machinery import harness
from bench.machinery.results import Results, load
from bench.machinery.table import markdown
from bench.training import mlp_accuracy
from numbanet import Net

NAMES = [
    "none",
    *(f"{kind} p={rate}" for rate in (0.3, 0.5, 0.7) for kind in mlp_accuracy.DROPOUTS),
    "falling none",
    *(f"falling {kind} p=0.5" for kind in mlp_accuracy.DROPOUTS),
]


def _trained(experiment, seed, accuracy=0.9, seconds=2.0, held=(0.5, 0.6)):
    epochs = [
        {"accuracy": accuracy + 0.01 * number, "loss": 1.0, "seconds": seconds, "flops_share": 0.5, "held": score}
        for number, score in enumerate(held)
    ]
    return {
        "dropout": experiment.name,
        "seed": seed,
        "processor": "one",
        "alone": True,
        "settings": experiment.settings,
        "epochs": epochs,
    }


def test_the_suite_resumes_and_draws(tmp_path, monkeypatch):
    trained = []

    def train(experiment, seed, data):
        trained.append(experiment.name)
        Net(**experiment.variant()).check()
        if len(trained) == 3:
            raise KeyboardInterrupt
        return _trained(experiment, seed, 0.9 + 0.02 * experiment.name.startswith("rdp"))

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr("numbanet.datasets.load_mnist", lambda: (np.zeros((3, 784)),) * 4)
    options, path = harness.Options(quick=True), tmp_path / "a.json"
    with pytest.raises(KeyboardInterrupt):
        mlp_accuracy.run(options, Results(path), lambda text: None)
    mlp_accuracy.run(dataclasses.replace(options, only=": none"), Results(path), lambda text: None)  # it is there already
    results = Results(path)
    rows = {row["implementation"]: row for row in mlp_accuracy.run(options, results, lambda text: None)}
    assert trained == [*NAMES[:3], *NAMES[2:]] and list(rows) == NAMES
    assert [rows["rdp p=0.7"][name] for name in ("points", "points_in_time")] == pytest.approx([2.0, 2.0])
    assert rows["none"]["points"] == pytest.approx(0.0) and rows["falling tdp p=0.5"]["baseline"] == "falling bernoulli p=0.5"
    assert len(load(path)["runs"]) == len(NAMES) and load(path)["rows"][0]["stopped"] == pytest.approx(0.91)
    assert "points against bernoulli | in equal time | stopped early (min – max) | after s |" in markdown(list(rows.values()))
    mlp_accuracy.plot(results, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="other settings"):
        mlp_accuracy.run(harness.Options(), Results(path), lambda text: None)


def test_every_case_has_its_seeds_and_all_kinds():
    found = {}
    for one in mlp_accuracy.experiments(harness.Options()):
        found.setdefault(training.case_of(one.settings), []).append((one.name, one.seeds, one.settings["held"]))
    assert {case: {seeds for _, seeds, _ in ways} for case, ways in found.items()} == {
        "784-512-512-10, 20 epochs": {3},
        "fashion-mnist, 784-512-512-10, 20 epochs": {3},
        "mnist, 5000 images, 784-512-512-10, 60 epochs": {3},
        "fashion-mnist, 5000 images, 784-512-512-10, 60 epochs": {3},
        "784-2048-2048-10, 20 epochs": {1},
        "fashion-mnist, 784-2048-2048-10, 20 epochs": {1},
    }
    assert all([name for name, *_ in ways] == NAMES for ways in found.values())


@pytest.mark.parametrize(
    "held, end",
    [
        ([0.1, 0.2, 0.3], (3, 3)),  # still becoming better
        ([0.1, 0.5, 0.4, 0.5, 0.4, 0.4, 0.4, 0.6], (7, 2)),  # five epochs without a better one: the last is not seen
        ([0.1, 0.5, 0.4, 0.4, 0.4, 0.4, 0.6, 0.5], (8, 7)),
    ],
)  # a better one just in time
def test_a_user_stops_when_the_score_has_not_become_better(held, end):
    assert mlp_accuracy.stopped({"epochs": [{"held": score} for score in held]}) == end


def test_equal_time_is_that_of_the_shorter_run():
    """After 4 seconds bernoulli is half way between its first and its second epoch. A run that did not have the machine for
    itself has what it learned, and the seconds of those of its kind that had."""
    mine, theirs = (
        training.Experiment({"epochs": 2}, name, None, against="bernoulli p=0.5") for name in ("rdp p=0.5", "bernoulli p=0.5")
    )
    runs = [
        _trained(mine, 0, 0.9, 2.0),
        _trained(theirs, 0, 0.9, 8 / 3),
        {**_trained(mine, 2, 0.8, 100.0), "alone": False},
        {**_trained(theirs, 2, 0.7, 100.0), "alone": False},
    ]
    first, second = 100 * (0.91 - 0.905), 100 * (0.81 - 0.705)
    found = mlp_accuracy._stopped(mine, runs)
    assert found["points_in_time"] == pytest.approx((first + second) / 2) and found["stopped_seconds"] == pytest.approx(4.0)
    assert mlp_accuracy._stopped(theirs, runs)["points_in_time"] is None
    assert mlp_accuracy._stopped(mine, runs[2:])["points_in_time"] is None  # nothing tells seconds


def test_samples_are_held_out_of_training():
    """What is scored after each epoch is no part of what is trained on."""
    chosen = {**training.settings(harness.Options(quick=True), 64, 0.0, 2), "held": 0.25, "epochs": 1}
    X, y = np.random.default_rng(0).random((200, 784), np.float32), np.arange(200) % 10
    found = training.train(training.Experiment(chosen, "none", lambda: {"dropout": "none"}), 0, (X, y, X[:40], y[:40]))
    (epoch,) = found["epochs"]
    assert 50 * epoch["held"] == pytest.approx(round(50 * epoch["held"])) and 0 <= epoch["held"] <= 1
