"""The suite of the Challenge finds what is wrong, its peers compute the same, and it runs end to end."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from bench.machinery.harness import Options
from bench.steps import challenge
from numbanet.challenge import WAYS

ROOT = Path(__file__).resolve().parents[2]
TASKS = {
    **{way: lambda size, way=way: challenge.numbanet_task(size, way, "cpu") for way in WAYS},
    "SciPy": challenge.scipy_task,
    "GraphBLAS": challenge.graphblas_task,
}


@pytest.mark.parametrize("name", TASKS)
def test_all_compute_the_same(name):
    if name == "GraphBLAS" and not importlib.util.find_spec("graphblas"):
        pytest.skip("needs python-graphblas")
    outputs = TASKS[name](challenge.QUICK).outputs()
    found = outputs["categories"]
    assert challenge.error(challenge.QUICK, outputs) == 0 and 0 < len(found) < challenge.QUICK.inputs
    for wrong in (found[1:], np.append(found, 10**6), found[:0]):
        assert challenge.error(challenge.QUICK, {"categories": wrong}) > 0


def test_a_large_network_must_lose_inputs_and_keep_some():
    live = np.array([9, 5, 5])
    assert challenge.growth_error({"live": live, "categories": np.arange(5)}) == 0
    assert challenge.growth_error({"live": live, "categories": np.arange(0)}) == 1
    assert challenge.growth_error({"live": live * 0 + 9, "categories": np.arange(9)}) == 1
    assert challenge.growth_error({"live": live[::-1], "categories": np.arange(5)}) == 1


def test_work_is_counted():
    case = next(challenge.cases(Options(quick=True)))
    flops = {implementation.name: implementation.flops for implementation in case.implementations}
    assert (
        flops["buffer"]
        == 2 * 500 * 12 * 64 * 32
        > flops["compact"]
        == 2 * challenge.by_layer(challenge.QUICK, "compact", "cpu")["multiplications"].sum()
        > 0
    )
    assert {implementation.name: implementation.peer for implementation in case.implementations}["compact"] == "SciPy"


def test_the_suite_runs_and_draws(run_bench, tmp_path):
    status, _, errors = run_bench("challenge", "--quick", "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png")
    assert status == 0, errors
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    timed = {row["implementation"]: row for row in rows if row["suite"] == "challenge"}
    assert timed["compact"]["ratio"] > 0 and all(row["error"] == 0 and row["median_ms"] > 0 for row in timed.values())
    layers = [row for row in rows if row["suite"] == "challenge-layers"]
    assert [row["implementation"] for row in layers] == ["compact", "filter", "buffer", "saturated"]
    assert all(len(row["live"]) == len(row["seconds"]) == 12 for row in layers)
    assert (tmp_path / "a.png").stat().st_size > 10_000
