"""The suite of placements: which ones are measured, and rows of the chosen one, the best one and each device alone."""

import itertools

import pytest

from bench.machinery.harness import Options
from bench.machinery.table import markdown
from bench.steps import placement as suite


def test_all_placements_or_the_stated_ones_are_measured():
    assert suite.measured_ones("ab", 4) == list(itertools.product("ab", repeat=4))
    some = suite.measured_ones("abc", 6)
    assert len(some) == len(set(some)) == suite.MOST and some == suite.measured_ones("abc", 6)
    changes = [sum(a != b for a, b in itertools.pairwise(way)) for way in some]
    assert changes.count(0) == 3 and changes.count(1) == 5 * 6 and max(changes) > 3


@pytest.mark.slow
def test_rows_compare_the_choice_with_all_placements(monkeypatch):
    monkeypatch.setattr("numbanet.placement.works.available", lambda: ["cpu:1", "cpu"])
    ((name, model), *_) = suite.models(True).items()
    rows = list(suite.enumerated(name, model, Options(quick=True)))
    by = {row["implementation"].partition(":" if "chosen" in row["implementation"] else " of")[0]: row for row in rows}
    best = next(row for row in rows if row["implementation"].startswith("best: "))
    alone = [row["layer_ms"] for row in rows if row["implementation"] in ("cpu", "cpu:1")]
    assert best["over_best"] == 1 and all(row["over_best"] >= 1 for row in rows if row["over_best"])
    assert len(alone) == 2 and best["layer_ms"] <= min(alone)
    chosen = by["chosen"]
    assert chosen["over_single"] == pytest.approx(chosen["layer_ms"] / min(alone))
    assert chosen["off"] == pytest.approx(abs(chosen["raced_ms"] / chosen["layer_ms"] - 1))
    assert "4 of 4 placements" in rows[-1]["implementation"] and rows[-1]["off"] >= rows[-2]["off"] > 0
    assert "over the best device alone" in markdown(rows)


@pytest.mark.slow
def test_a_placed_network_trains_like_the_others(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBANET_PROFILES", str(tmp_path))
    monkeypatch.setattr("numbanet.placement.measure.available", lambda: ["cpu"])
    (case,) = suite.cases(Options(quick=True))
    placed = next(each for each in case.implementations if each.name == "placed")
    outputs = placed.build(**placed.parameters).outputs()
    assert case.error(outputs) < case.tolerance and set(outputs["placement"]) == {"cpu"}
