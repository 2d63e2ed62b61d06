"""Pictures of profiles: a dot for each layer, direction and device, and the Pareto front of time and energy."""

import math

import pytest

from numbanet import plots
from numbanet.placement import pareto

from .tables import chain, profile, random_profile

pytest.importorskip("matplotlib", reason="draws: pip install matplotlib")


@pytest.fixture
def figures(monkeypatch):
    found = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: found.append(figure) or path)
    return found


def test_a_roofline_has_a_dot_for_each_layer_on_each_device(figures, tmp_path):
    table = random_profile(0, 4, ("a", "b"))
    plots.layer_rooflines(table, tmp_path / "a.png")
    figures[0].draw_without_rendering()
    for axes, device in zip(figures[0].axes, "ab", strict=True):
        roof, forward, backward = axes.lines
        speeds = [table.of(s.path, device, "forward").gflops.value for s in table.stages]
        assert forward.get_ydata() == pytest.approx(speeds) and len(backward.get_xdata()) >= 3
        assert max(roof.get_ydata()) == pytest.approx(max([*speeds, *backward.get_ydata()]))
        assert {text.get_text() for text in axes.texts} == {s.path for s in table.stages}


def test_the_front_of_time_and_energy(figures, tmp_path):
    tables = {"one": random_profile(1, 4, ("a", "b", "c")), "two": random_profile(2, 3, ("a", "b"))}
    plots.time_and_energy(tables, tmp_path / "a.png")
    figures[0].draw_without_rendering()
    for axes, (name, table) in zip(figures[0].axes, tables.items(), strict=True):
        front = pareto(table)
        assert list(axes.lines[0].get_xdata()) == [each.ms.value for each in front]
        assert axes.get_title("left") == name and len(axes.texts) == len(table.devices)
        for line in axes.lines[2:]:  # no device alone is better than the front in both
            x, y = line.get_xdata()[0], line.get_ydata()[0]
            assert not any(x < each.ms.value * (1 - 1e-9) and y < each.joules.value * (1 - 1e-9) for each in front)
            assert math.isfinite(x) and math.isfinite(y)


def test_pictures_are_written(tmp_path):
    table = random_profile(0, 3, ("a", "b"))
    for path in (plots.layer_rooflines(table, tmp_path / "a.png"), plots.time_and_energy({"x": table}, tmp_path / "b.svg")):
        assert path.stat().st_size > 1000


def test_without_joules_there_is_no_picture_of_energy(tmp_path):
    table = profile(chain([10, 10]), {"a": [[(3, None)] * 3]})
    with pytest.raises(ValueError, match="needs ms and joules"):
        plots.time_and_energy({"x": table}, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
