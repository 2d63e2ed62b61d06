"""Costs: where they are kept, how they are measured, and that no result depends on them."""
import json
import sys
import time

import numpy as np
import pytest

from numbanet import Net
from numbanet.cli import main
from numbanet_kernels import calibrate, costs
from numbanet_kernels.costs import Costs


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "costs.json"
    monkeypatch.setenv("NUMBANET_COSTS", str(path))
    return path


def test_what_is_saved_is_loaded(file):
    assert costs.load() == Costs()
    assert costs.save(Costs(1, 2, 3)) == file and costs.load() == Costs(1, 2, 3)
    assert [path.name for path in file.parent.iterdir()] == ["costs.json"]


@pytest.mark.parametrize("content", [None, [], {}, {"shared_elements": 1}, {**Costs()._asdict(), "shared_flops": -1},
                                     {**Costs()._asdict(), "shared_flops": "many"}])
def test_a_file_that_makes_no_sense_is_not_used(file, content):
    file.parent.mkdir()
    file.write_text("" if content is None else json.dumps(content))
    with pytest.warns(UserWarning, match="numbanet devices --calibrate"):
        assert costs.load() == Costs()


def test_the_usual_place_is_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBANET_COSTS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert costs.path().name == "costs.json" and "numbanet" in costs.path().parts
    assert sys.platform != "linux" or costs.path() == tmp_path / "numbanet" / "costs.json"


@pytest.mark.parametrize("second, expected", [((2, 2, 0.5, 0.5), 4), ((0.5, 2, 0.5, 0.5), 4), ((0.5,) * 4, 1), ((2,) * 4, 16)])
def test_crossing_is_where_the_second_way_wins_for_good(second, expected):
    assert calibrate.crossing((1, 2, 4, 8), (1, 1, 1, 1), second) == expected


def test_a_way_that_is_faster_from_a_size_on_is_found(monkeypatch):
    monkeypatch.setattr(calibrate, "compare", lambda first, second: (first, second))
    assert calibrate.measured((size, 1.0, 0.5 if size >= 100 else 1.5) for size in (10, 50, 100, 200)) == 100


def test_interleaved_comparison_tells_fast_from_slow():
    slow, fast = calibrate.compare(lambda: time.sleep(0.002), lambda: time.sleep(0.0005))
    assert slow > fast


@pytest.mark.parametrize("dropout", ["rdp", "tdp"])
def test_results_do_not_depend_on_costs(rng, dropout):
    X, y = rng.standard_normal((300, 70)), np.arange(300) % 3
    found = []
    for chosen in (Costs(0, 0, 0), Costs(*(1 << 40,) * 3)):
        with costs.using(chosen):
            net = Net((96, 64), dropout=dropout, epochs=2, batch_size=50, random_state=0).fit(X, y)
        found.append([p.numpy() for p in net.model_.parameters()])
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_calibration_from_the_command_line(file, capsys):
    assert main(["devices", "--calibrate"]) == 0
    shown = capsys.readouterr().out
    assert "lazy_elements" in shown and str(file.name) in shown
    found = costs.load()
    assert all(value >= 0 for value in found) and costs.current == Costs(lazy_elements=0)
