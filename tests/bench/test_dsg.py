"""The suites of dynamic sparse graphs find what is wrong, count what is stored, and have all their cases."""

import numpy as np
import pytest

from bench.machinery.harness import Options
from bench.machinery.results import Results
from bench.machinery.table import cells
from bench.memory import dsg as dsg_memory
from bench.steps import TOLERANCE, dsg, mlp_model
from bench.training import dsg_quality, papers_dsg
from numbanet import DynamicSparseGraph, Linear
from numbanet.dropout import NoDropout

POLICIES = [
    *((share, DynamicSparseGraph(0.75, share=share)) for share in dsg.SHARES),
    ("oracle", dsg.Oracle(0.75)),
    ("random", dsg.RandomChoice(0.75)),
]
NAMES = [name for name, _ in POLICIES]


@pytest.mark.parametrize("policy", [None, *(policy for _, policy in POLICIES)], ids=["dense", *NAMES])
def test_forward_products_agree_with_the_reference_and_wrong_ones_do_not(policy):
    outputs = dsg.forward_task("cpu", 96, 20, policy).outputs()
    assert dsg.forward_error(96, 20, outputs) < 1e-5
    wrong = outputs["y"].copy()
    wrong[3] *= 1.01
    assert dsg.forward_error(96, 20, {**outputs, "y": wrong}) > 1e-4
    if policy is not None:
        assert dsg.forward_error(96, 20, {**outputs, "mask": np.ones((20, 96), bool)}) == np.inf


@pytest.mark.parametrize("policy", [policy for _, policy in POLICIES], ids=NAMES)
def test_steps_agree_with_the_masked_reference(policy):
    outputs = mlp_model.numbanet_task("cpu", 64, policy, 0.75, 32).outputs()
    assert mlp_model.update_error(64, 32, outputs) < 1e-3
    outputs["factors"] = [[(1.0, 1.0)] * 2 for _ in outputs["factors"]]
    assert mlp_model.update_error(64, 32, outputs) > TOLERANCE


def test_the_oracle_finds_the_largest_and_chance_does_not():
    x, w, b = map(np.float64, dsg.layer_inputs(96, 20))
    scores = np.maximum(x @ w.T + b, 0).sum(0)
    masks = {name: dsg.forward_task("cpu", 96, 20, policy).outputs()["mask"][0] for name, policy in POLICIES}
    found = {name: scores[mask].sum() for name, mask in masks.items() if name in ("batch", "oracle", "random")}
    assert found["oracle"] == pytest.approx(np.sort(scores)[-24:].sum())
    assert found["random"] < found["batch"] <= found["oracle"] * (1 + 1e-9)


def test_flops_count_what_is_looked_at():
    """Of wide layers few more than the products; what knows the outputs computes all of them."""
    dense = mlp_model.mean_flops(512, 64, "none", 0.0)
    flops = {name: dsg.step_flops(512, 64, policy) / dense for name, policy in POLICIES}
    assert 0.15 < flops["random"] < flops["batch"] < flops["tile"] + 1e-9 < flops["sample"] < 1
    assert flops["oracle"] == pytest.approx(flops["random"] + 2 * 64 * (784 + 512) * 512 / dense, rel=1e-3)


@pytest.mark.parametrize("share", dsg.SHARES)
@pytest.mark.parametrize("rate, least", [(0.5, 1.7), (0.8, 3.2), (0.9, 4.2)])
def test_what_is_stored_is_as_much_less_as_the_paper_has_it(share, rate, least):
    dense, kept = (dsg_memory.stored(policy, 512, 256) for policy in (NoDropout(), DynamicSparseGraph(rate, share=share)))
    assert 256 * 4 * 2 * 512 <= dense < 256 * 4 * (2 * 512 + 20)
    assert dense / kept > least


def a_layer():
    """Random, and what comes to it."""
    layer, rng = Linear(256, 256, rng=0), np.random.default_rng(1)
    return layer, [np.maximum(rng.standard_normal((24, 256)), 0).astype(np.float32) for _ in range(2)]


@pytest.mark.parametrize("share", dsg.SHARES)
def test_more_of_the_largest_are_found_than_by_chance(share, monkeypatch):
    layer, batches = a_layer()
    for epsilon in (0.99, 0.6):
        assert 0.3 < dsg_quality.recall(layer, batches, 0.8, share, epsilon) < 0.95
    monkeypatch.setattr(dsg_quality, "DynamicSparseGraph", lambda rate, epsilon, share: dsg.Oracle(rate, share))
    assert dsg_quality.recall(layer, batches, 0.8, share, 0.9) == 1.0


@pytest.mark.parametrize("epsilon", [0.3, 0.5, 0.9])
def test_guesses_are_within_their_bound(epsilon):
    """Of normalised vectors; k was made for a bound of 1 - 4 / n²."""
    layer, (x, _) = a_layer()
    assert dsg_quality.bound(256, epsilon) == pytest.approx(1 - 4 / 256**2, abs=1e-5)
    assert dsg_quality.within(layer, x, epsilon) >= dsg_quality.bound(256, epsilon) - 1e-3


def test_quality_has_rows_a_table_and_a_chart(monkeypatch, tmp_path):
    monkeypatch.setattr(dsg_quality, "layers", lambda quick: [("a layer", *a_layer())])
    results = Results(None)
    rows = dsg_quality.run(Options(quick=True), results, lambda text: None)
    assert [row["implementation"] for row in rows[:3]] == [f"{share} rate 0.8" for share in dsg.SHARES] and len(rows) == 6
    assert all(row["chance"] == 51 / 256 < row["found"] <= 1 for row in rows) and results.rows == rows
    head, *lines = cells(rows)
    assert head[4] == "largest outputs selected" and len(lines) == 6
    dsg_quality.plot(results, tmp_path / "quality.png")
    assert (tmp_path / "quality.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="--device cpu"):
        dsg_quality.run(Options(device="cuda"), results, lambda text: None)


def test_all_cases_are_there():
    names = [experiment.name for experiment in papers_dsg.experiments(Options())]
    assert len(names) == len({(e.key, e.name) for e in papers_dsg.experiments(Options())}) == 2 + 4 * 5 + 2 + 17 + 1 + 4 * 3
    assert len(list(papers_dsg.experiments(Options(device="cuda")))) == len(names) + 1 + 4 * 3  # the VGG
    thrice = {e.name for e in papers_dsg.experiments(Options()) if e.seeds == 3}
    assert thrice == {
        "none",
        "none, batch norm",
        *(
            f"{name} p=0.6"
            for name in (
                "batch",
                "tile",
                "sample",
                "batch oracle",
                "sample oracle",
                "batch random",
                "sample random",
                "sample double mask",
                "sample single mask",
                "batch dense at last",
                "tile dense at last",
                "sample dense at last",
            )
        ),
    }
    assert [papers_dsg._but_at_last(0.6, epoch) for epoch in range(papers_dsg.EPOCHS)] == [0.6] * 5 + [0.0]
    for experiment in papers_dsg.experiments(Options()):
        assert experiment.variant()["dropout"] == "none" or " p=" in experiment.name
    assert [case.name for case in dsg.cases(Options(quick=True))] == [
        "forward 256-256, batch 32, rate 0.8",
        "step 784-256-256-10, batch 128, rate 0.8",
    ]
    assert next(papers_dsg.experiments(Options())).name == names[0] == "none"
