"""Thresholds: where they are kept, how they are measured, and that no result depends on them."""

import json
import sys
import time

import numpy as np
import pytest

from numbanet import Net
from numbanet.cli import main
from numbanet_kernels.host import calibration, thresholds
from numbanet_kernels.host.thresholds import Thresholds


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "costs.json"
    monkeypatch.setenv("NUMBANET_COSTS", str(path))
    return path


def test_what_is_saved_is_loaded(file):
    assert thresholds.load() == Thresholds()
    assert thresholds.save(Thresholds(1, 2, 3)) == file and thresholds.load() == Thresholds(1, 2, 3)
    assert [path.name for path in file.parent.iterdir()] == ["costs.json"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"shared_elements": 1},
        {**Thresholds()._asdict(), "shared_flops": -1},
        {**Thresholds()._asdict(), "shared_flops": "many"},
    ],
)
def test_a_file_that_makes_no_sense_is_not_used(file, content):
    file.parent.mkdir()
    file.write_text("" if content is None else json.dumps(content))
    with pytest.warns(UserWarning, match="numbanet devices --calibrate"):
        assert thresholds.load() == Thresholds()


def test_the_usual_place_is_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBANET_COSTS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert thresholds.path().name == "costs.json" and "numbanet" in thresholds.path().parts
    assert sys.platform != "linux" or thresholds.path() == tmp_path / "numbanet" / "costs.json"


@pytest.mark.parametrize("second, expected", [((2, 2, 0.5, 0.5), 4), ((0.5, 2, 0.5, 0.5), 4), ((0.5,) * 4, 1), ((2,) * 4, 16)])
def test_crossing_is_where_the_second_way_wins_for_good(second, expected):
    assert calibration.crossing((1, 2, 4, 8), (1, 1, 1, 1), second) == expected


def test_a_way_that_is_faster_from_a_size_on_is_found(monkeypatch):
    monkeypatch.setattr(calibration, "compare", lambda first, second: (first, second))
    assert calibration.measured((size, 1.0, 0.5 if size >= 100 else 1.5) for size in (10, 50, 100, 200)) == 100


@pytest.mark.alone
def test_interleaved_comparison_tells_fast_from_slow():
    slow, fast = calibration.compare(lambda: time.sleep(0.002), lambda: time.sleep(0.0005))
    assert slow > fast


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dropout", ["rdp", "tdp"])
def test_results_do_not_depend_on_costs(rng, dropout):
    X, y = rng.standard_normal((300, 70)), np.arange(300) % 3
    found = []
    for chosen in (Thresholds(0, 0, 0), Thresholds(*(1 << 40,) * 3)):
        with thresholds.using(chosen):
            net = Net((96, 64), dropout=dropout, epochs=2, batch_size=50, random_state=0).fit(X, y)
        found.append([p.numpy() for p in net.model_.parameters()])
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_calibration_from_the_command_line(file, capsys):
    assert main(["devices", "--calibrate"]) == 0
    shown = capsys.readouterr().out
    assert "lazy_elements" in shown and str(file.name) in shown
    found = thresholds.load()
    assert all(value >= 0 for value in found) and thresholds.current == Thresholds(lazy_elements=0)
