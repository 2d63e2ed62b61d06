"""Figures, derived figures, and the file of a profile."""

import dataclasses
import json

import pytest

from numbanet.placement import NONE, Figure, LayerTimes, Profile, Stage, folder
from numbanet.placement.figures import product, ratio, total

from .tables import random_profile


def test_figures_are_measured_estimated_or_unavailable_never_a_silent_0():
    measured, estimated = Figure(2.0), Figure(3.0, "estimated")
    assert total([measured, estimated]) == Figure(5.0, "estimated") and total([measured, NONE]) == NONE
    assert product(measured, estimated, 10) == Figure(60.0, "estimated") and product(measured, NONE) == NONE
    assert ratio(8.0, measured) == Figure(4.0) and ratio(0.0, measured) == ratio(1.0, Figure(0.0)) == NONE
    assert [figure.shown() for figure in (measured, estimated, NONE)] == ["2", "~3", "-"]
    assert NONE.number == float("inf") and not NONE.known


@pytest.mark.parametrize(
    "value, tag", [(None, "measured"), (0.0, "unavailable"), (1.0, "guessed"), (-1.0, "measured"), (float("nan"), "measured")]
)
def test_bad_figures_are_refused(value, tag):
    with pytest.raises(ValueError, match="Figure: "):
        Figure(value, tag)


def test_derived_figures():
    entry = LayerTimes("0", "Linear", "cpu", "forward", Figure(2.0), 4e9, 1e6, Figure(50.0), Figure(0.1, "estimated"))
    assert entry.gflops == Figure(2000.0) and entry.gflops_per_mm2(500) == Figure(4.0) and entry.gflops_per_mm2(None) == NONE
    assert entry.gflops_per_watt == Figure(40.0, "estimated")
    assert dataclasses.replace(entry, flops=0.0).gflops == NONE


def test_memory_and_directions_of_a_stage():
    """500 values out, 1000 parameters; in training each has a gradient, and parameters a velocity."""
    stage = Stage("0", ("0",), "Linear", "Linear", (5, 10), (5, 100), 1000, False)
    assert stage.memory(False) == pytest.approx(4e-6 * (500 + 1000)) and stage.megabytes == pytest.approx(4e-6 * 50)
    assert stage.memory(True) == pytest.approx(4e-6 * (2 * 500 + 3 * 1000))
    assert stage.directions(True) == ("forward", "backward", "update") and stage.directions(False) == ("forward",)
    first = dataclasses.replace(stage, parameters=0)
    assert first.directions(True) == ("forward",)  # nothing before it or in it is trained
    assert dataclasses.replace(first, differentiable=True).directions(True) == ("forward", "backward")


def test_a_profile_is_the_same_after_it_was_written_and_read(tmp_path):
    table = dataclasses.replace(random_profile(3, 4, ("a", "b")), settings={"recorded": True})
    path = table.save(tmp_path / "deeper" / "profile.json")
    assert Profile.load(path) == table
    assert [file.name for file in path.parent.iterdir()] == ["profile.json"]  # nothing half-written is left


def damaged(text, part, key, value):
    record = json.loads(text)
    record[part][0][key] = value
    return json.dumps(record)


def damage(record, key):
    record = json.loads(record)
    del record[key]
    return json.dumps(record)


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda text: text[:100], "cannot be read as a profile"),
        (lambda text: '{"rows": []}', "is not a profile of numbanet"),
        (lambda text: "[1, 2]", "is not a profile of numbanet"),
        (lambda text: text.replace('"version": 1', '"version": 99', 1), "version 99"),
        (lambda text: damage(text, "entries"), "damaged profile .*entries"),
        (lambda text: text.replace('"tag": "measured"', '"tag": "guessed"', 1), "damaged profile .*guessed"),
        (lambda text: damaged(text, "entries", "ms", 5), "damaged profile .*ms must be Figure, got 5"),
        (lambda text: damaged(text, "entries", "ms", None), "damaged profile .*ms must be Figure, got None"),
        (lambda text: damaged(text, "entries", "flops", "9"), "damaged profile .*flops must be float, got '9'"),
        (lambda text: damaged(text, "transfers", "latency_ms", 5), "damaged profile .*latency_ms must be Figure, got 5"),
        (lambda text: damaged(text, "stages", "inputs", [2, "x"]), "damaged profile .*inputs must be tuple"),
        (lambda text: damaged(text, "stages", "colour", 5), "damaged profile .*colour"),
        (lambda text: text.replace('"device": "a"', '"device": "z"', 1), "damaged profile .*'z'"),
    ],
)
def test_a_file_that_is_no_profile_is_named_with_what_to_do(tmp_path, change, why):
    path = random_profile(3, 2, ("a", "b")).save(tmp_path / "mine.json")
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=rf"mine\.json.*{why}.*numbanet devices --profile"):
        Profile.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json.*numbanet devices --profile"):
        Profile.load(tmp_path / "none.json")


def test_an_unknown_device_is_named_with_those_that_are_there():
    with pytest.raises(ValueError, match="no device 'tpu'; it has 'a', 'b'"):
        random_profile(0, 2, ("a", "b")).facts("tpu")


def test_the_folder_of_profiles(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBANET_PROFILES", str(tmp_path))
    assert folder() == tmp_path
    monkeypatch.delenv("NUMBANET_PROFILES")
    assert folder().name == "profiles" and folder().parent.name == "numbanet"
