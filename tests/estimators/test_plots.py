"""Pictures: names stand beside their dots, scores are drawn by seconds as well, and grey tells the kinds of dropout apart."""

import math
import types

import numpy as np
import pytest

from numbanet import demo, plots
from numbanet.dropout import POLICIES

pytest.importorskip("matplotlib", reason="draws: pip install matplotlib")

SHOWN = [name for name, policy in POLICIES.items() if policy.kind != "patches"]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """draw(function, …) -> the figure, laid out."""
    figures = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: figures.append(figure))

    def draw(function, *given):
        function(*given[:1], tmp_path / "a.png", *given[1:])
        figures[-1].draw_without_rendering()
        return figures[-1]

    return draw


def _history(epochs, seconds, score=0.5):
    return [{"epoch": i + 1, "score": score + i / 100, "loss": 1 / (i + 1), "seconds": seconds} for i in range(epochs)]


@pytest.mark.parametrize("kernels", [1, 5, 60])
def test_the_name_of_a_kernel_stands_beside_its_dot_and_on_no_other(drawn, kernels, rng):
    intensities = {f"kernel {i}": float(x) for i, x in enumerate(10 ** rng.uniform(-2, 2.5, kernels))}
    below = drawn(plots.rooflines, {**intensities, "copy": 0.0}).axes[1]
    assert sorted(text.get_text() for text in below.texts) == sorted(intensities)
    boxes = [text.get_window_extent() for text in below.texts]
    for text, box in zip(below.texts, boxes):
        x, y = below.transData.transform(text.xy)
        assert math.isclose(text.xy[0], intensities[text.get_text()])
        assert 0 < max(box.x0 - x, x - box.x1) < 15 and box.y0 < y < box.y1
    for box, above in zip(boxes, boxes[1:]):
        assert box.y1 <= above.y0 + 1


def test_scores_are_drawn_by_epoch_and_by_seconds(drawn):
    histories = {"bernoulli": _history(6, 2.0), "rdp": _history(6, 0.5)}
    figure = drawn(plots.learning_curves, histories, demo._promise(histories))
    by_epoch, by_seconds, _ = figure.axes
    for line, seconds in zip(by_seconds.lines[::2], (2.0, 0.5)):
        np.testing.assert_allclose(line.get_xdata(), seconds * np.arange(6))
    for line, other in zip(by_epoch.lines, by_seconds.lines[::2]):
        np.testing.assert_array_equal(line.get_ydata(), other.get_ydata())
    assert "seconds" in by_seconds.get_xlabel() and "rdp 0.25" in figure._suptitle.get_text()


def test_fitted_nets_and_their_histories_are_drawn_alike(drawn):
    history = _history(3, 0.1)
    net = types.SimpleNamespace(history_=history)
    for given in ({"mine": history}, {"mine": net}, history, net):
        (line,) = drawn(plots.learning_curves, given).axes[0].lines
        assert line.get_label() == ("mine" if isinstance(given, dict) else "net")
        np.testing.assert_array_equal(line.get_ydata(), [0.5, 0.51, 0.52])


@pytest.mark.parametrize(
    "about, name",
    [
        ({}, "validation score"),
        ({"classes_": [0, 1]}, "test accuracy"),
        ({"classes_": [0, 1], "scoring": "f1"}, "validation score"),
    ],
)
def test_the_score_of_a_net_has_its_name(drawn, about, name):
    net = types.SimpleNamespace(history_=[{**record, "validation_score": 0.5} for record in _history(3, 0.1)], **about)
    assert drawn(plots.learning_curves, net).axes[0].get_ylabel() == name
    assert drawn(plots.learning_curves, net.history_).axes[0].get_ylabel() == "test accuracy"


def test_numbers_are_labels(drawn):
    (legend,) = drawn(plots.learning_curves, {0.1: _history(3, 0.1), 2: _history(3, 0.1), "2": _history(2, 0.1)}).legends
    assert [text.get_text() for text in legend.get_texts()] == ["0.1", "2", "2"]


def test_all_lines_are_training_scores_if_one_history_has_no_others(drawn):
    validated = [{**record, "validation_score": 0.1} for record in _history(3, 0.1)]
    axes = drawn(plots.learning_curves, {"a": validated, "b": _history(3, 0.1, 0.6)}, "", "test accuracy").axes[0]
    assert axes.get_ylabel() == "training score"
    for line, first in zip(axes.lines, (0.5, 0.6)):
        np.testing.assert_allclose(line.get_ydata(), first + np.arange(3) / 100)
    axes = drawn(plots.learning_curves, {"a": validated}, "", "test accuracy").axes[0]
    assert axes.get_ylabel() == "test accuracy" and set(axes.lines[0].get_ydata()) == {0.1}


@pytest.mark.parametrize("given", [[], (), types.SimpleNamespace()], ids=["list", "tuple", "unfitted"])
def test_a_history_without_epochs_is_refused_by_its_label(drawn, given):
    with pytest.raises(ValueError, match="^histories: 'a' has no epochs; fit it before"):
        drawn(plots.learning_curves, {"b": _history(3, 0.1), "a": given})


@pytest.mark.parametrize("n", [1, 3, 4, 12])
def test_all_lines_of_a_scaling_are_drawn_and_differ(drawn, n):
    figure = drawn(lambda times, path: plots.scaling([1, 2], times, path), {f"way {i}": [1.0, 1.5] for i in range(n)})
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == [f"way {i}" for i in range(n)]
        assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == n


@pytest.mark.parametrize("epochs", [1, 2, 9])
def test_any_history_is_drawn(drawn, epochs):
    figure = drawn(plots.learning_curves, {"mine": _history(epochs, 0.1, math.nan), "rdp": _history(epochs, 0.1, -3.0)})
    low, high = figure.axes[0].get_ylim()
    assert low < -2.98 and -3 < high < 0  # the first fifth may lie below
    drawn(plots.learning_curves, {"mine": _history(1, 0.1, math.nan)})
    drawn(plots.learning_curves, {})


def test_a_long_title_stays_in_the_picture(drawn):
    figure = drawn(plots.learning_curves, {"none": _history(3, 0.1)}, "words of a title, " * 12)
    box = figure._suptitle.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and "\n" in figure._suptitle.get_text()


def test_the_legend_names_all_lines_below_the_plots(drawn):
    figure = drawn(plots.learning_curves, {name: _history(3, 0.1) for name in (*SHOWN, "window early")})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*SHOWN, "window early"]
    assert legend.get_window_extent().y1 < min(axes.get_window_extent().y0 for axes in figure.axes)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert lines["window"].get_color() != lines["window early"].get_color()


def test_grey_tells_the_kinds_of_dropout_apart(drawn):
    lines = drawn(plots.learning_curves, {name: _history(3, 0.1) for name in SHOWN}).axes[0].lines
    assert len(lines) == len(SHOWN) >= 4
    assert len({str(POLICIES[name].style.dashes) for name in SHOWN}) == len({line.get_marker() for line in lines}) == len(SHOWN)
    assert len({line.get_color() for line in lines}) == len(SHOWN)
