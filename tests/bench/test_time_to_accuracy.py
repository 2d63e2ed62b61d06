"""Suites of results over seconds choose learning rates without the test set, resume, and compare runs of the same seed."""

import dataclasses

import numpy as np
import pytest

from bench import training
from bench.machinery.harness import Options
from bench.machinery.results import Results, load
from bench.machinery.runs import case_of
from bench.machinery.table import markdown
from bench.training import over_seconds, time_to_accuracy, time_to_perplexity
from numbanet import LanguageModel, Net

NAMES = ["none", *(f"{kind}{way}" for kind in over_seconds.DROPOUTS for way in ("", " early"))]
HELD = {0.01: 0.5, 0.03: 0.7, 0.1: 0.6}  # the test accuracy of searches rises with the learning rate


def _trained(experiment, seed, accuracies, seconds=1.0, held=0.5):
    """As if it had been trained."""
    own = {} if experiment.learning_rate is None else {"learning_rate": experiment.learning_rate}
    return {
        "dropout": experiment.name,
        "seed": seed,
        "processor": "one",
        "alone": True,
        "settings": experiment.settings,
        **own,
        "epochs": [
            {"accuracy": accuracy, "loss": 1.0, "seconds": seconds, "flops_share": 0.5, "held": held} for accuracy in accuracies
        ],
    }


def _rows(every, runs, suite=time_to_accuracy.SUITE):
    return over_seconds.rows(every, runs, suite)


def _quick(*names):
    """The experiments of these names with learning rate 0.03, and all searches, of the quick case."""
    pairs = list(time_to_accuracy.experiments(Options(quick=True)))
    measured = [dataclasses.replace(one, learning_rate=0.03) for name in names for one, _ in pairs if one.name == name]
    return measured, [search for _, searches in pairs for search in searches]


def test_every_problem_has_all_kinds_and_can_be_trained():
    found = {}
    for measured, searches in time_to_accuracy.experiments(Options()):
        chosen, variant = measured.settings, measured.variant()
        if "network" in chosen:
            layers = variant.pop("layers")(0)
            assert [type(layer).__name__ for layer in layers].count("BatchNorm2d") == 5
        else:
            layers = (chosen["hidden"],) * 2
            assert variant["init"] == "glorot"
        Net(layers, epochs=chosen["epochs"], **variant).check()
        assert measured.seeds == 3
        assert [search.settings["learning_rate"] for search in searches] == chosen["learning_rate"]
        seeds = 3 if chosen["samples"] in (1000, 5000) else 1
        assert {(search.seeds, search.settings["held"]) for search in searches} == {(seeds, 0.1)}
        found.setdefault(case_of(chosen), []).append(measured.name)
    images = [
        "784-512-512-10, 20 epochs",
        "784-2048-2048-10, 15 epochs",
        "784-4096-4096-10, 10 epochs",
        "1000 images, 784-512-512-10, 60 epochs",
        "5000 images, 784-512-512-10, 60 epochs",
        "20% wrong labels, 784-512-512-10, 20 epochs",
    ]
    mnist = [f"mnist, {case}" if "images" in case or "labels" in case else case for case in images]
    expected = {*mnist, *(f"fashion-mnist, {case}" for case in images), "generated table, 54-512-512-7, 40 epochs"}
    expected |= {"cifar10, alexnet with batch norm, 12 epochs"}
    assert set(found) == expected and all(names == NAMES for names in found.values())


def test_the_suite_resumes_and_draws(tmp_path, monkeypatch):
    trained = []

    def train(experiment, seed, data):
        trained.append((experiment.name, experiment.learning_rate))
        if len(trained) in (3, 40):
            raise KeyboardInterrupt
        rate, early = experiment.settings["learning_rate"], "early" in experiment.name
        if "held" in experiment.settings:
            return _trained(experiment, seed, [0.1, rate], held=HELD[rate])
        return _trained(experiment, seed, [0.8, 0.9 + 0.01 * early])

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(over_seconds, "processor", lambda: "one")
    monkeypatch.setattr(time_to_accuracy, "_parts", lambda data: (np.zeros((3, 784)), np.arange(3)) * 2)
    options, path = Options(quick=True), tmp_path / "a.json"
    for finished in (2, 38):
        with pytest.raises(KeyboardInterrupt):
            time_to_accuracy.run(options, Results(path), lambda text: None)
        assert len(load(path)["runs"]) == finished
    assert [row["implementation"] for row in load(path)["rows"]] == NAMES[:5]
    time_to_accuracy.run(dataclasses.replace(options, only=": none$"), Results(path), lambda text: None)  # it is there already
    results = Results(path)
    rows = time_to_accuracy.run(options, results, lambda text: None)
    assert trained.count(("none", 0.03)) == 1 and len(trained) == len(set(trained)) + 2 == 4 * len(NAMES) + 2
    assert {rate for _, rate in trained} == {None, 0.03}  # that of the highest accuracy on held-out samples
    assert [row["implementation"] for row in rows] == NAMES and load(path)["rows"] == rows
    assert {row["learning_rate"] for row in rows} == {0.03}
    assert "| tdp early | 1 | 0.03 | 0.9100 (0.9100 – 0.9100) | +1.00 | 0.8980 | 1.00 | 0.9100 | 1.00 | 50% |" in markdown(rows)
    time_to_accuracy.plot(results, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
    before = path.read_bytes()
    with pytest.raises(ValueError, match="other settings"):
        time_to_accuracy.run(Options(), Results(path), lambda text: None)
    assert path.read_bytes() == before


def test_runs_with_another_rate_or_on_another_processor_are_made_again(tmp_path, monkeypatch):
    held, trained = dict(HELD), []

    def train(experiment, seed, data):
        trained.append((experiment.name, experiment.learning_rate))
        if "held" in experiment.settings:
            return _trained(experiment, seed, [0.8, 0.9], held=held[experiment.settings["learning_rate"]])
        return _trained(experiment, seed, [0.8, 0.9])

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(over_seconds, "processor", lambda: "one")
    monkeypatch.setattr(time_to_accuracy, "_parts", lambda data: (np.zeros((3, 784)), np.arange(3)) * 2)
    options, path = Options(quick=True, only="784-64-64-10.*: (none|window)$"), tmp_path / "a.json"
    time_to_accuracy.run(options, Results(path), lambda text: None)
    results = Results(path)
    for run in results.runs:
        if run["dropout"].startswith("none") and "held" in run["settings"]:
            for epoch in run["epochs"]:
                epoch["held"] += 0.5 * (run["settings"]["learning_rate"] == 0.1)
        run["processor"] = "one" if run["dropout"] == "none" else "another"
    trained.clear()

    def interrupted(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(training, "train", interrupted)
        time_to_accuracy.run(options, results, lambda text: None)
    kept = [run for run in load(path)["runs"] if "held" not in run["settings"]]
    assert [(run["dropout"], run["processor"]) for run in kept] == [("window", "another")]  # the rate of the other has changed
    time_to_accuracy.run(options, results, lambda text: None)
    assert trained == [("none", 0.1), ("window", 0.03)]
    assert [run["learning_rate"] for run in load(path)["runs"] if "held" not in run["settings"]] == [0.1, 0.03]


def test_a_search_of_a_part_trains_no_other_kinds(tmp_path, monkeypatch):
    trained = []

    def train(experiment, seed, data):
        trained.append(experiment.name)
        return _trained(experiment, seed, [0.8, 0.9])

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(over_seconds, "processor", lambda: "one")
    monkeypatch.setattr(time_to_accuracy, "_parts", lambda data: (np.zeros((3, 784)), np.arange(3)) * 2)
    options = Options(quick=True, only="784-64-64-10.*: (none|window)$")
    rows = time_to_accuracy.run(options, Results(tmp_path / "a.json"), lambda text: None)
    assert [row["implementation"] for row in rows] == ["none", "window"] and len(trained) == 8


def test_the_learning_rate_is_that_of_held_out_samples_in_the_same_case():
    _, searches = _quick()
    low, middle, high = searches[:3]
    elsewhere = dataclasses.replace(high, settings={**high.settings, "hidden": 9})
    runs = [
        _trained(low, 0, [0.9, 0.9], held=0.6),
        _trained(middle, 0, [0.9, 0.8], held=0.7),
        _trained(high, 0, [0.9], held=0.8),  # diverged
        _trained(elsewhere, 0, [0.9, 0.9], held=0.9),
    ]
    assert over_seconds.best_rate(searches[:3], runs) == 0.03
    assert over_seconds.best_rate(searches[:3], runs[2:]) == 0.01
    lucky = [_trained(low, 1, [0.9, 0.9], held=0.9), _trained(middle, 1, [0.9, 0.8], held=0.7)]
    assert over_seconds.best_rate(searches[:3], [*runs, *lucky]) == 0.01  # by the mean over seeds
    assert over_seconds.best_rate(searches[:3], [*runs[:2], _trained(high, 0, [0.1, 0.1], held=0.8)]) == 0.1


def test_times_are_divided_by_those_of_none_with_the_same_seed():
    (none, rdp, tdp), _ = _quick("none", "rdp", "tdp")
    runs = [
        *(
            _trained(none, seed, [0.8, end], seconds)
            for seed, end, seconds in ((0, 0.90, 5.0), (1, 0.91, 10.0), (2, 0.93, 5.0))
        ),
        *(_trained(rdp, seed, [0.908, 0.95], seconds) for seed, seconds in ((0, 2.0), (1, 8.0), (2, 3.0))),
        *(_trained(tdp, seed, [0.8, end], 7.5) for seed, end in ((0, 0.91), (1, 0.9), (2, 0.9))),
    ]
    first, second, third = _rows([none, rdp, tdp], runs)
    assert first["target"] == pytest.approx(0.908) and first["accuracy"] == pytest.approx(0.91)
    assert (first["reached"], first["to_target"], first["in_time"]) == (2, 1.0, pytest.approx(0.91))
    assert (second["reached"], second["to_target"]) == (3, pytest.approx(0.3))  # 2 / 10, 8 / 20, 3 / 10
    # seeds 0 and 2 end before none does; after 20 seconds seed 1 has finished as well
    assert second["points"] == pytest.approx(4.0) and second["in_time"] == pytest.approx(0.95)
    # after 10 of 15 seconds a third of the second epoch is done, in seeds 0 and 2; seed 1 has finished
    assert third["to_target"] is None and third["reached"] == 1
    assert third["in_time"] == pytest.approx(np.median([0.8 + 0.11 / 3, 0.9, 0.8 + 0.1 / 3]))
    assert "| 1 of 3 |" in markdown([third])


def test_without_none_and_without_timed_runs_nothing_is_compared():
    (none, rdp), _ = _quick("none", "rdp")
    (row,) = _rows([rdp], [_trained(rdp, 0, [0.8, 0.9])])
    assert row["accuracy"] == pytest.approx(0.9) and row["target"] is None and row["to_target"] is None
    parallel = [{**_trained(one, 0, [0.8, 0.9]), "alone": False} for one in (none, rdp)]
    row = _rows([none, rdp], parallel)[1]
    assert row["points"] == pytest.approx(0.0) and row["to_target"] is None and "in_time" not in row
    diverged, whole = _rows([none, rdp], [_trained(none, 0, [0.8]), _trained(rdp, 0, [0.8, 0.9])])
    assert diverged["diverged"] == 1 and whole["target"] is None and "1 of 1 diverged" in markdown([diverged, whole])


def test_wrong_labels_are_drawn_from_the_seed(monkeypatch):
    true = np.arange(500) % 10
    data = np.zeros((500, 4)), true, np.ones((50, 4)), true[:50]
    monkeypatch.setattr(time_to_accuracy, "_parts", lambda name: data)
    chosen = {"data": "mnist", "samples": 400, "wrong": 0.2}
    first, again, other = (time_to_accuracy.load(chosen, seed) for seed in (0, 0, 1))
    assert first[0].shape == (400, 4) and first[3] is data[3]
    assert (first[1] != true[:400]).sum() == 80 and set(first[1]) == set(range(10))
    assert (first[1] == again[1]).all() and (first[1] != other[1]).any() and (true == np.arange(500) % 10).all()
    assert (time_to_accuracy.load({"data": "mnist", "samples": None}, 0)[1] == true).all()


def test_the_generated_table_is_standardised():
    X, y, X_test, y_test = time_to_accuracy.load({"data": time_to_accuracy.TABLE, "samples": None}, 0)
    assert X.shape == (16_000, 54) and X_test.shape == (4000, 54) and X.dtype == np.float32
    assert set(y) == set(y_test) == set(range(7))
    assert np.abs(X.mean(0)).max() < 1e-4 and X.std(0) == pytest.approx(1, abs=1e-4)


def test_a_run_has_the_learning_rate_of_its_experiment(rng):
    """The rate of the settings would diverge."""
    chosen = {**training.settings(Options(quick=True), 64, 0.0, 2), "learning_rate": 1e30}
    data = (rng.random((40, 8), np.float32), np.arange(40) % 2) * 2
    experiment = training.Experiment(chosen, "none", lambda: {"dropout": "none"}, learning_rate=0.01, warm_up=3)
    found = training.train(experiment, 0, data)
    assert training.whole(found) and found["learning_rate"] == 0.01 and found["settings"] == chosen


def test_an_experiment_trains_from_its_own_initial_weights(rng):
    ((measured, searches), *_) = time_to_accuracy.experiments(Options(quick=True))
    data = (rng.random((60, 8), np.float32), np.arange(60) % 2) * 2
    found = training.train(dataclasses.replace(measured, learning_rate=0.01), 0, data)
    assert training.whole(found) and "held" in training.train(searches[0], 0, data)["epochs"][-1]


# --- language models --------------------------------------------------------------------------------------------------
def test_every_text_has_all_kinds_and_can_be_trained():
    found = {}
    for measured, searches in time_to_perplexity.experiments(Options()):
        chosen = measured.settings
        LanguageModel(tuple(chosen["lstm"]), epochs=chosen["epochs"], **measured.variant()).check()
        assert [search.settings["learning_rate"] for search in searches] == chosen["learning_rate"]
        assert measured.seeds == 3 and {search.seeds for search in searches} == {1}
        found.setdefault(case_of(chosen), []).append(measured.name)
    assert list(found) == [
        "wikitext2, 50000 words, LSTM 256-256 p=0.3, 20 epochs",
        "wikitext2, 200000 words, LSTM 650-650 p=0.5, 12 epochs",
    ]
    assert all(names == NAMES for names in found.values())


def _read(experiment, seed, perplexities, seconds=1.0):
    """As if a language model had been trained."""
    epochs = [{"perplexity": value, "loss": 1.0, "seconds": seconds, "flops_share": 0.5, "held": 0.0} for value in perplexities]
    return {**_trained(experiment, seed, ()), "epochs": epochs}


def test_perplexities_are_compared_by_their_ratio_and_the_target_is_above():
    pairs = time_to_perplexity.experiments(Options(quick=True))
    none, rdp = (dataclasses.replace(one, learning_rate=5.0) for one, _ in pairs if one.name in ("none", "rdp"))
    runs = [
        *(_read(none, seed, [300.0, end], 5.0) for seed, end in enumerate((190.0, 200.0, 210.0))),
        *(_read(rdp, seed, ends, 2.0) for seed, ends in enumerate(([202.0, 180.0], [203.0, 220.0], [150.0, 220.0]))),
    ]
    first, second = _rows([none, rdp], runs, time_to_perplexity.SUITE)
    assert first["target"] == pytest.approx(202.0) and first["of_baseline"] == 1.0 and "points" not in first
    assert (first["perplexity"], first["reached"], first["to_target"]) == (200.0, 2, 1.0)
    assert second["of_baseline"] == pytest.approx(1.1) and second["in_time"] == pytest.approx(220.0)
    assert second["reached"] == 2 and second["to_target"] == pytest.approx(0.2)  # seed 1 is never below 203
    text = markdown([first, second])
    assert "| divided by none's | target | s to the target / none's s | perplexity after none's s |" in text
    assert "| rdp | 3 | 5 | 220.0 (180.0 – 220.0) | 1.100 | 202.0 | 0.20 | 220.0 | 2.00 | 50% |" in text


def test_words_that_choose_a_learning_rate_are_held_out_and_curves_are_drawn(rng, tmp_path, monkeypatch):
    words = np.array([f"word {n}" for n in rng.integers(30, size=1500)])
    read = []
    fit, score = LanguageModel.fit, LanguageModel.score
    monkeypatch.setattr(LanguageModel, "fit", lambda self, text, **o: (read.append(len(text)), fit(self, text, **o))[1])
    monkeypatch.setattr(LanguageModel, "score", lambda self, text: (read.append(list(text)), score(self, text))[1])
    monkeypatch.setattr(training, "_loaded", lambda chosen, seed: (words, words[:300]))
    monkeypatch.setattr(over_seconds, "processor", lambda: "one")
    options = Options(quick=True, only=": (none|window early)$")
    results = Results(tmp_path / "a.json")
    monkeypatch.setattr(time_to_perplexity, "TEXTS", (time_to_perplexity.TEXTS[0]._replace(learning_rates=(5.0,)),))
    none, early = time_to_perplexity.run(options, results, lambda text: None)
    assert none["implementation"] == "none" and early["seeds"] == 1 and 1 < early["perplexity"] < 200
    assert early["flops_share"] < 1 == none["flops_share"]
    assert (early["to_target"] is None) == (early["reached"] == 0)
    searches = [run for run in results.runs if "held" in run["settings"]]
    assert len(searches) == 2 and all(-6 < epoch["held"] < 0 for run in searches for epoch in run["epochs"])
    assert {len(text) for text in read if isinstance(text, list)} == {150}
    assert all(text == list(words[1350:]) for text in read if isinstance(text, list))
    assert sorted(set(filter(lambda n: isinstance(n, int), read))) == [1350, 1500]
    time_to_perplexity.plot(results, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
