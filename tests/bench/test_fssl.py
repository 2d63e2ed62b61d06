"""The suite of structured sparsity learning has all its cases, compares what it should, and resumes."""

import numpy as np
import pytest

from bench import training
from bench.machinery.harness import Options
from bench.machinery.results import Results, load
from bench.machinery.table import markdown
from bench.training import papers_fssl
from numbanet import Net

SECONDS = {"none": 4.0, "rows": 1.0, "pruned 0.9": 3.0}


def _trained(experiment, seed, data):
    """As if it had been trained: sparse networks are faster, and the one that is pruned most is worse than the others."""
    name = experiment.name
    epoch = {
        "accuracy": 0.9 - 0.05 * (name == "pruned 0.95"),
        "loss": 1.0,
        "seconds": SECONDS.get(name, 2.0),
        "flops_share": 0.5,
        **({} if name == "none" else {"weights_kept": 0.08}),
    }
    last = {**epoch, "predict_seconds": 0.01 * SECONDS.get(name, 1.5), "predict_dense": 0.04}
    return {
        "dropout": name,
        "seed": seed,
        "processor": "one",
        "settings": experiment.settings,
        "epochs": [epoch] * (experiment.settings["epochs"] - 1) + [last],
    }


def test_every_network_can_be_trained():
    found = list(papers_fssl.experiments(Options()))
    assert len(found) == len({experiment.key for experiment in found}) == 8 + 6
    for experiment in found:
        chosen = experiment.settings
        Net(chosen.get("network") or (chosen["hidden"],) * 2, epochs=chosen["epochs"], **experiment.variant()).check()


def test_the_suite_resumes_and_compares(tmp_path, monkeypatch):
    trained = []

    def train(experiment, seed, data):
        trained.append(experiment.key)
        if len(trained) == 5:
            raise KeyboardInterrupt
        return _trained(experiment, seed, data)

    monkeypatch.setattr(training, "train", train)
    for data in ("mnist", "fashion_mnist"):
        monkeypatch.setattr(f"numbanet.datasets.load_{data}", lambda: (np.zeros((3, 784)),) * 4)
    options, path = Options(quick=True), tmp_path / "a.json"
    with pytest.raises(KeyboardInterrupt):
        papers_fssl.run(options, Results(path), lambda text: None)
    assert len(load(path)["runs"]) == 4
    results = Results(path)
    rows = papers_fssl.run(options, results, lambda text: None)
    assert len(rows) == len(set(trained)) == len(trained) - 1 == 14
    found = {row["implementation"]: row for row in rows[:8]}
    assert found["rows"]["training_shorter"] == pytest.approx(4) == found["rows"]["prediction_shorter"]
    assert found["rows"]["gain_of_pruning"] == pytest.approx(3)  # of 0.9, as accurate: 0.95 is faster and worse
    assert found["pruned 0.9"]["gain_of_pruning"] is None and found["none"]["weights_kept"] == 1
    assert [row["weights_kept"] for row in load(path)["rows"]] == [row["weights_kept"] for row in rows]
    assert "| rows | 1 | 0.9000 (0.9000 – 0.9000) | +0.00 | 8.0% | 4.0 | 4.00 | 10.0 | 4.00 | 3.00 |" in markdown(rows)
    papers_fssl.plot(results, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_network_is_trained_and_predicts_in_turn_with_a_dense_one(rng):
    data = (rng.random((96, 784), np.float32), np.arange(96) % 10) * 2
    for experiment in list(papers_fssl.experiments(Options(quick=True)))[::5]:
        epochs = training.train(experiment, 0, data)["epochs"]
        assert len(epochs) == 4 and ("weights_kept" in epochs[0]) == (experiment.name != "none")
        assert [{"predict_dense", "predict_seconds"} <= set(epoch) for epoch in epochs] == [False] * 3 + [True]
