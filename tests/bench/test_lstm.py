"""The suites of language models find what is wrong, count what is done, compare runs, and run end to end."""

from pathlib import Path

import joblib
import numpy as np
import pytest

from bench import training
from bench.machinery.harness import Options
from bench.machinery.results import Results, load
from bench.machinery.table import markdown
from bench.steps import lstm, lstm_model
from bench.training import lstm_rates, papers_lstm
from numbanet import LanguageModel
from numbanet.layers import ActivationSpec, Context, Tree

ROOT = Path(__file__).resolve().parents[2]
SIZE = lstm.Size(24, 50, 4, 5, 0.02, 3)
DROPOUTS = [("none", 0.0), *((dropout, 0.5) for dropout in lstm.DROPOUTS)]


def _small(dropout):
    """Tiles have to fit."""
    return lstm.QUICK if dropout == "tdp" else SIZE


# --- steps ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dropout, rate", DROPOUTS)
def test_steps_agree_with_the_reference_and_wrong_ones_do_not(dropout, rate):
    size = _small(dropout)
    outputs = lstm.numbanet_task("cpu", size, dropout, rate).outputs()
    assert lstm.update_error(size, outputs) < 1e-3
    places = {place for step in outputs["drawn"] for place in step}
    leaving = {"embedding", "output_l0", "output_l1"}
    assert (
        places
        == {
            "none": set(),
            "rdp": leaving,
            "batchwise": leaving,
            "tdp": {"input_l0", "input_l1", "answer"},
            "window": leaving,
            **dict.fromkeys(("rdp + recurrent rdp", lstm.WINDOWS), {*leaving, "recurrent_l0", "recurrent_l1"}),
        }[dropout]
    )
    for place in places:  # each of them counts
        drawn = [{name: plan for name, plan in step.items() if name != place} for step in outputs["drawn"]]
        assert lstm.update_error(size, {**outputs, "drawn": drawn}) > lstm.TOLERANCE
    changed = [np.array(w) for w in outputs["weights"]]
    changed[5][0] += 1e-3  # W_ih of the second layer
    assert lstm.update_error(size, {**outputs, "weights": changed}) > lstm.TOLERANCE


@pytest.mark.parametrize("clip", [0.02, 1e6])
def test_the_norm_is_clipped_and_states_are_carried_over(clip):
    size = SIZE._replace(clip=clip)
    outputs = lstm.numbanet_task("cpu", size).outputs()
    assert lstm.update_error(size, outputs) < 1e-3
    assert lstm.update_error(size._replace(clip=clip / 1.05 if clip < 1 else 0.02), outputs) > lstm.TOLERANCE
    once = lstm.numbanet_task("cpu", size._replace(checked=1)).outputs()
    assert lstm.update_error(size, {**outputs, "weights": once["weights"]}) > lstm.TOLERANCE


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.slow
def test_pytorchs_steps_and_passes_agree_with_the_reference(rate):
    pytest.importorskip("torch")
    outputs = lstm.torch_task("cpu", SIZE, rate).outputs()
    assert lstm.update_error(SIZE, outputs) < 1e-3 and all(len(step) == 3 * bool(rate) for step in outputs["drawn"])
    if rate:
        drawn = [{**step, "output_l0": np.ones(24)} for step in outputs["drawn"]]
        assert lstm.update_error(SIZE, {**outputs, "drawn": drawn}) > lstm.TOLERANCE
    else:
        for alone in (False, True):
            assert lstm.gradient_error(SIZE, alone, lstm.torch_pass("cpu", SIZE, alone, True).outputs()) < lstm.OF_GRADIENT


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("gates", [False, True])
def test_gradients_of_a_pass_agree_with_the_reference(alone, gates):
    outputs = lstm.numbanet_pass("cpu", SIZE, alone, True, gates).outputs()
    assert lstm.gradient_error(SIZE, alone, outputs) < lstm.OF_GRADIENT
    assert {name: len(columns) for name, columns in outputs["drawn"].items()} == (
        {"columns_l0": 48, "columns_l1": 48} if gates else {}
    )
    if gates:
        assert lstm.gradient_error(SIZE, alone, {**outputs, "drawn": {}}) > 0.01
    outputs["gradients"][1] = outputs["gradients"][1] * np.float32(1.001)
    assert lstm.gradient_error(SIZE, alone, outputs) > lstm.OF_GRADIENT


def test_steps_with_sparse_gates_agree_with_the_reference():
    outputs = lstm.numbanet_task("cpu", SIZE, gates=True).outputs()
    assert lstm.update_error(SIZE, outputs) < 1e-3
    assert lstm.update_error(SIZE, {**outputs, "drawn": [{}] * 3}) > lstm.TOLERANCE


def test_a_backward_pass_alone_is_timed(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(lstm_model.time, "perf_counter", lambda: next(clock))
    passes = []

    def run():
        passes.append("forward")
        next(clock)  # takes its time
        return lambda: passes.append("backward")

    assert lstm_model.Backward(run, dict).seconds(3) == (3, None) and passes == ["forward", "backward"] * 3


# --- work -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dropout, rate", DROPOUTS)
def test_mean_flops_agree_with_those_of_steps(dropout, rate):
    size = _small(dropout)
    outputs, model = lstm.numbanet_task("cpu", size._replace(checked=12), dropout, rate).outputs(), lstm.network(size)
    names, sites = {"embedding": (0, "output"), "answer": (2, "tiles")}, Tree(model).sites
    done = []
    for step in outputs["drawn"]:
        at = {names.get(place, (1, place)): plan for place, plan in step.items()}
        plans = {sites[model.layers[number], name]: plan for (number, name), plan in at.items()}
        done.append(model.cost(ActivationSpec((size.steps, size.batch)), Context(plans=plans, model=model).plans)[0].flops)
    assert np.mean(done) == pytest.approx(lstm.mean_flops(size, dropout, rate).sum(), rel=0.25 if rate else 1e-6)


def test_half_of_the_gate_columns_halve_the_backward_pass_of_the_cells():
    dense, sparse = (lstm.mean_flops(SIZE, gates=gates, alone=True) for gates in (False, True))
    assert sparse[0] == dense[0] and sparse[1] == dense[1] / 2


# --- suites -----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_step_suite_end_to_end(run_bench, tmp_path):
    pytest.importorskip("torch")
    status, _, errors = run_bench("lstm", "--quick", "--against", "torch", "--json", tmp_path / "a.json")
    assert status == 0, errors
    rows = load(tmp_path / "a.json")["rows"]
    of_steps = {
        (row["case"].partition("words, ")[2], row["implementation"]): row["peer"] for row in rows if "words" in row["case"]
    }
    assert {name: peer for (case, name), peer in of_steps.items() if case == "step p=0.5"} == {
        **dict.fromkeys(lstm.DROPOUTS, "torch with dropout"),
        "torch with dropout": None,
    }
    assert of_steps["backward", "gate columns 50%"] == of_steps["the LSTM alone, forward", "none"] == "torch"
    assert of_steps["the LSTM alone, backward, against numbanet's", "gate columns 50%"] == "none"
    assert {row["case"].partition(" ")[0] for row in rows if "words" not in row["case"]} == {
        "lstm",
        "lstm,",
        "lstm_grad",
        "lstm_grad,",
        "lstm_scores",
        "lstm_seen",
    }


def test_without_a_peer_numbanets_dense_step_is_it():
    for case in lstm.cases(Options(quick=True)):
        peers = {i.name: i.peer for i in case.implementations}
        assert peers.pop("none", None) is None and set(peers.values()) <= {"none", None}


# --- training runs ----------------------------------------------------------------------------------------------------
WORDS = ("the cat sat on the mat and the dog lay on the rug beside it . " * 240).split()
SECONDS = {"bernoulli": 4.0, "rdp": 2.0}


def _trained(experiment, seed, data):
    """As if it had been trained: rdp takes half as long, and ends a tenth higher."""
    seconds, factor = SECONDS.get(experiment.name, 3.0), 1.1 if experiment.name == "rdp" else 1.0
    epochs = [
        {"perplexity": factor * 400 / 2**at, "loss": 1.0, "seconds": seconds, "flops_share": 0.5}
        for at in range(experiment.settings["epochs"])
    ]
    return {"dropout": experiment.name, "seed": seed, "processor": "one", "settings": experiment.settings, "epochs": epochs}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:tdp. a weight of shape")
def test_every_way_to_train_a_language_model_can_be_trained():
    found = list(papers_lstm.experiments(Options()))
    assert len({experiment.key for experiment in found}) == len(found) == 12
    assert {experiment.name for experiment in found if experiment.seeds < training.SEEDS} == {
        "rdp + recurrent rdp",
        "rdp dp_max=3",
        "rdp scale=root",
        "gate threshold 50%",
    }
    for experiment in papers_lstm.experiments(Options(quick=True)):
        run = training.train(experiment, 0, (WORDS, WORDS[:200]))
        assert training.whole(run) and run["epochs"][1]["perplexity"] < 20
        assert ("gates_kept" in run["epochs"][0]) == experiment.name.startswith("gate")


def test_rates_are_halved_and_texts_cut(monkeypatch):
    fits = []

    def fit(self, words, validation):
        rates = [self.learning_rate_schedule(epoch) for epoch in (0, 9, 10, 11)]
        fits.append((len(words), len(validation), self.hidden, rates, self.random_state))
        return self

    monkeypatch.setattr(LanguageModel, "fit", fit)
    monkeypatch.setattr("numbanet.datasets.load_wikitext2", lambda: (["a"] * 300_000, ["b"] * 60_000, ["c"] * 7))
    first = next(papers_lstm.experiments(Options()))
    assert not training.whole(training._trained(first, 2))  # nothing was trained
    assert fits == [(2048, 2048, (256, 256), [1, 1, 0.5, 0.25], 2), (50_000, 50_000, (256, 256), [1, 1, 0.5, 0.25], 2)]


def test_rates_are_compared_after_the_first_and_the_last_epoch(tmp_path, monkeypatch):
    def train(experiment, seed, data):
        run = _trained(experiment, seed, data)
        run["epochs"][0]["perplexity"] += seed
        return run if experiment.settings["learning_rate"] < 20 else {**run, "epochs": run["epochs"][:seed]}

    def here(backend, original=joblib.parallel_config, **options):
        return original("sequential")

    found = lstm_rates.experiments(Options())
    assert len({experiment.key for experiment in found}) == len(found) == 8
    assert {experiment.settings["epochs"] for experiment in found} >= {LanguageModel().epochs}
    rate, norm = LanguageModel.rates["sgd"], LanguageModel().clip_norm
    assert f"{rate:g}, clipped to {norm:g}" in {experiment.name for experiment in found}
    monkeypatch.setattr(joblib, "parallel_config", here)
    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(lstm_rates, "TEXTS", {500: 3})
    monkeypatch.setattr("numbanet.datasets.load_wikitext2", lambda: (WORDS,) * 3)
    results = Results(tmp_path / "a.json")
    rows = {row["implementation"]: row for row in lstm_rates.run(Options(), results, lambda text: None)}
    five = rows["5, clipped to 0.25"]
    assert [five[key] for key in ("first", "first_min", "first_max", "last")] == [401, 400, 402, 100]
    text = markdown(list(rows.values()))
    assert "| 5, clipped to 0.25 | 3 | 401.0 (400.0 – 402.0) | 100.0 (100.0 – 100.0) |" in text
    assert "| 20, clipped to 0.25 | 3 | 3 of 3 diverged |" in text


@pytest.mark.slow
def test_papers_suite_resumes_and_compares_perplexities(tmp_path, monkeypatch):
    trained = []

    def train(experiment, seed, data):
        trained.append(experiment.key)
        if len(trained) == 5:
            raise KeyboardInterrupt
        return _trained(experiment, seed, data)

    def here(backend, original=joblib.parallel_config, **options):
        return original("sequential")  # other processes would train, not as this test does

    monkeypatch.setattr(joblib, "parallel_config", here)
    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(papers_lstm, "EPOCHS", 4)
    monkeypatch.setattr(papers_lstm, "TARGETS", (400, 300, 250))
    monkeypatch.setattr("numbanet.datasets.load_wikitext2", lambda: (WORDS,) * 3)
    options, path = Options(), tmp_path / "a.json"
    with pytest.raises(KeyboardInterrupt):
        papers_lstm.run(options, Results(path), lambda text: None)
    assert len(load(path)["runs"]) == 4
    results = Results(path)
    rows = {row["implementation"]: row for row in papers_lstm.run(options, results, lambda text: None)}
    assert len(trained) == 8 * 3 + 4 + 1
    rdp, none = rows["rdp"], rows["gate columns 50%"]
    assert (rdp["perplexity"], rdp["baseline"], none["baseline"]) == (pytest.approx(55), "bernoulli", "none")
    assert rdp["of_baseline"] == pytest.approx(1.1) and none["of_baseline"] == none["of_baseline_in_time"] == pytest.approx(1)
    assert rdp["of_baseline_in_time"] == pytest.approx(1.1 / 4)  # bernoulli has done two epochs of four
    assert rdp["times"][1] == {"target": 300, "reached": 3, "seconds": 4.0, "shorter": 2.0}
    text = markdown(list(rows.values()))
    assert "| rdp | 3 | 55.0 (55.0 – 55.0) | bernoulli | 1.100 | 0.275 | 2.00 | 50% |" in text and "250: 4.0 (2.00) |" in text
    papers_lstm.plot(results, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
