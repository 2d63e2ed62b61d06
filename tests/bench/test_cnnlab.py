"""The suite of layers by device has rows of layers, placements and held-out sizes, and states errors and noise."""

import numpy as np
import pytest

from bench.machinery.harness import Options
from bench.machinery.results import Results, load
from bench.machinery.table import markdown
from bench.training import papers_cnnlab


@pytest.mark.slow
def test_layers_placements_and_held_out_sizes(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBANET_PROFILES", str(tmp_path / "profiles"))
    results, said = Results(tmp_path / "a.json", quick=True), []
    rows = papers_cnnlab.run(Options(quick=True), results, said.append)
    assert load(tmp_path / "a.json")["rows"] == rows and len(said) == 3
    layers = [row for row in rows if row["case"].startswith("lenet5 2x1x28x28, 0 Conv2d 5x5 + ReLU")]
    assert {row["case"].rpartition(", ")[2] for row in layers} == {"forward", "backward", "update"}
    assert {"cpu:1", "cpu"} <= {row["implementation"] for row in layers} and all(row["layer_ms"] > 0 for row in layers)
    assert all(row["joules"] is None or row["joules"] > 0 for row in layers)  # never a silent 0
    steps = {
        row["implementation"]: row["predicted_ms"]
        for row in rows
        if row["case"].endswith("training step") and "lenet5" in row["case"]
    }
    (best,) = (name for name in steps if name.startswith("chosen"))
    assert steps[best] <= min(steps["cpu"], steps["cpu:1"])
    held = [row for row in rows if row["case"].startswith("held out")]
    assert len(held) == 2 * 4
    for part in (held[:4], held[4:]):
        assert part[2]["off"] == pytest.approx(np.mean([row["off"] for row in part[:2]]))
        assert part[3]["off"] == max(row["off"] for row in part[:2])
        assert all(row["off"] == pytest.approx(abs(row["predicted_ms"] / row["layer_ms"] - 1)) for row in part[:2])
    assert "measured again" in markdown(rows)
    pytest.importorskip("matplotlib")
    papers_cnnlab.plot(results, tmp_path / "a.png")
    assert all((tmp_path / f"a{which}.png").stat().st_size > 1000 for which in ("", "-energy"))


def test_sizes_are_those_that_are_said(rng):
    for _ in range(50):
        (layer, _), shape = papers_cnnlab.linear(rng)
        assert 32 <= layer.in_features == shape[1] <= 2048 and 16 <= shape[0] < 256
        (layer, _), shape = papers_cnnlab.convolution(rng)
        assert 32 <= layer.in_channels == shape[1] < 256 and 2 <= shape[0] < 16
