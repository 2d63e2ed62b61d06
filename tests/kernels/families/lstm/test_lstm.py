"""LSTMs through time against their float64 reference, on every device."""

import itertools

import numpy as np
import pytest
import threadpoolctl

from numbanet_kernels.families import lstm
from numbanet_kernels.families.lstm import cpu
from numbanet_kernels.host import packed_gemm, thresholds

SIZES = [(1, 1, 1), (1, 20, 7), (5, 3, 16), (4, 21, 33), (7, 33, 5), (3, 2, 50)]  # T, N, H
FORMS = ["plain", "units", "units each step", "lengths", "no units", "both"]


def case(rng, steps, n, hidden, form):
    """(z, w, h0, c0) and what thins them out."""
    arrays = [
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((steps, n, 4 * hidden), (4 * hidden, hidden), (n, hidden), (n, hidden))
    ]
    rows = max(steps, 1) if form == "units each step" else 1
    count = 0 if form == "no units" else max(hidden // 2, 1)
    kept = np.stack([np.sort(rng.choice(hidden, count, replace=False)) for _ in range(rows)]).astype(np.int32)
    return arrays, {
        "units": kept if "units" in form or form == "both" else None,
        "scale": 1.5 if form != "plain" else 1.0,
        "lengths": rng.integers(1, steps + 1, n).astype(np.int32) if form in ("lengths", "both") else None,
    }


def given(put, options):
    """Options with their arrays on the device."""
    return {name: put(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected).max(initial=0)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES)
def test_forward(suffix, put, get, rng, size, form):
    (z, *others), options = case(rng, *size, form)
    gates, h, c = lstm.lstm_reference(z, *others, **options)
    placed = put(z.copy())
    found = getattr(lstm, f"lstm_{suffix}")(placed, *map(put, others), **given(put, options))
    alive = (
        np.ones((*size[:2], 1))
        if options["lengths"] is None
        else np.arange(size[0])[:, None, None] < options["lengths"][:, None]
    )
    close(get(placed) * alive, gates * alive)
    close(get(found[0]), h)
    close(get(found[1]), c)


@pytest.mark.parametrize(
    "form, chosen",
    [*itertools.product(FORMS, ["all"]), ("plain", "columns"), ("both", "columns"), ("plain", "none"), ("plain", "threshold")],
)
@pytest.mark.parametrize("size", SIZES)
def test_backward(suffix, put, get, rng, size, form, chosen):
    steps, n, hidden = size
    (z, w, *states), options = case(rng, *size, form)
    gates, _, c = (a.astype(np.float32) for a in lstm.lstm_reference(z, w, *states, **options))
    dy = rng.standard_normal((steps, n, hidden)).astype(np.float32)
    options["dc"] = rng.standard_normal((n, hidden)).astype(np.float32) if form != "lengths" else None
    if chosen in ("columns", "none"):
        count = 2 * hidden if chosen == "columns" else 0
        options["columns"] = np.sort(rng.choice(4 * hidden, count, replace=False)).astype(np.int32)
    options["threshold"] = 0.1 if chosen == "threshold" else 0.0
    expected = lstm.lstm_grad_reference(dy, gates, c, w, **options)
    found = getattr(lstm, f"lstm_grad_{suffix}")(put(dy), put(gates.copy()), put(c), put(w), **given(put, options))
    for ours, theirs in zip(found, expected, strict=True):
        if chosen == "threshold":  # an element at the threshold may fall on either side
            assert np.mean(np.abs(get(ours) - theirs) > 1e-4) < 0.01
        else:
            close(get(ours), theirs)


@pytest.mark.parametrize("form", ["plain", "lengths"])
@pytest.mark.parametrize("size", SIZES)
def test_scores(suffix, put, get, rng, size, form):
    steps, n, hidden = size
    (z, *others), options = case(rng, *size, form)
    gates, _, c = (a.astype(np.float32) for a in lstm.lstm_reference(z, *others, **options))
    dy = rng.standard_normal((steps, n, hidden)).astype(np.float32)
    lengths = options["lengths"]
    found = getattr(lstm, f"lstm_scores_{suffix}")(put(dy), put(gates), put(c), None if lengths is None else put(lengths))
    close(get(found), lstm.lstm_scores_reference(dy, gates, c, lengths))


@pytest.mark.parametrize("size", SIZES)
def test_what_each_step_sees(suffix, put, get, rng, size):
    h = rng.standard_normal(size).astype(np.float32)
    units = case(rng, *size, "units each step")[1]["units"]
    expected = lstm.lstm_seen_reference(h, units)
    assert (expected != 0).sum() == units.size * size[1]
    np.testing.assert_array_equal(get(getattr(lstm, f"lstm_seen_{suffix}")(put(h), put(units))), expected)


def test_a_step_sees_no_more_units_than_there_are(suffix, put):
    with pytest.raises(ValueError, match=r"lstm_seen .*: units \(2, 4\) must have at most 3 units a row"):
        getattr(lstm, f"lstm_seen_{suffix}")(put(np.ones((2, 5, 3))), put(np.zeros((2, 4), np.int32)))


def test_gradients_are_those_of_the_formula():
    """Against differences of the forward pass in float64."""
    rng = np.random.default_rng(0)
    (z, w, h0, c0), options = case(rng, 3, 2, 3, "both")
    dy, dc = rng.standard_normal((3, 2, 3)), rng.standard_normal((2, 3))

    def value(z, h0, c0):
        _, h, c = lstm.lstm_reference(z, w, h0, c0, **options)
        return (h[1:] * dy).sum() + (c[-1] * dc).sum()

    gates, _, c = lstm.lstm_reference(z, w, h0, c0, **options)
    inputs = [np.float64(a) for a in (z, h0, c0)]
    for place, found in enumerate(lstm.lstm_grad_reference(dy, gates, c, w, dc=dc, **options)):
        for at in np.ndindex(inputs[place].shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [a.copy() for a in inputs]
                moved[place][at] += step
                ends.append(value(*moved))
            assert abs((ends[0] - ends[1]) / 2e-6 - found[at]) < 1e-7


@pytest.mark.parametrize(
    "change, message",
    [
        ({"w": (6, 2), "z": (2, 3, 6)}, "4 H"),
        ({"w": (8, 3)}, "must be"),
        ({"z": (2, 3, 7)}, "gates"),
        ({"h0": (2, 2)}, "h0"),
        ({"c0": (4, 2)}, "c0"),
        ({"units": (3, 1)}, "one row or 2"),
        ({"units": (1, 3)}, "at most 2"),
        ({"lengths": (2,)}, "lengths"),
    ],
)
def test_what_does_not_fit_is_refused(suffix, put, change, message):
    shapes = {"z": (2, 3, 8), "w": (8, 2), "h0": (3, 2), "c0": (3, 2)} | change
    arrays = {
        name: put(np.zeros(shape, np.int32 if name in ("units", "lengths") else np.float32)) for name, shape in shapes.items()
    }
    with pytest.raises(ValueError, match=message):
        getattr(lstm, f"lstm_{suffix}")(**arrays)


# --- on the CPU -------------------------------------------------------------------------------------------------------
def both_passes(z, w, h0, c0, dy, **options):
    """(gates, h, c, dz, dh0, dc0) on the CPU, and by the references from the same gates and states."""
    gates = z.copy()
    h, c = lstm.lstm_cpu(gates, w, h0, c0, **options)
    expected = *lstm.lstm_reference(z, w, h0, c0, **options), *lstm.lstm_grad_reference(dy, gates, c, w, **options)
    found = gates.copy(), h, c, *lstm.lstm_grad_cpu(dy, gates, c, w, **options)
    return found, expected


@pytest.mark.parametrize("owned", ["units", "samples"])
@pytest.mark.parametrize("form", ["plain", "units", "units each step", "no units"])
@pytest.mark.parametrize("size", [*SIZES, (2, 45, 40), (0, 2, 3), (2, 0, 3)])
def test_cpu_threads_own_units_or_samples(monkeypatch, rng, size, form, owned):
    monkeypatch.setattr(cpu, "UNITS", 0 if owned == "units" else 1 << 62)
    arrays, options = case(rng, *size, form)
    dy = rng.standard_normal((*size[:2], size[2])).astype(np.float32)
    with thresholds.using(thresholds.Thresholds(1, 1, 0)), threadpoolctl.threadpool_limits(3, user_api="blas"):
        for ours, theirs in zip(*both_passes(*arrays, dy, **options), strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("samples", packed_gemm.SIZES)
def test_cpu_tiles_of_every_size(rng, samples):
    assert packed_gemm.tile_of(samples) == samples
    arrays, options = case(rng, 3, samples, 19, "plain")
    dy = rng.standard_normal((3, samples, 19)).astype(np.float32)
    for ours, theirs in zip(*both_passes(*arrays, dy, **options), strict=True):
        close(ours, theirs)


def test_cpu_gates_far_out_and_nan():
    """Sigmoid and tanh keep to their limits, and NaN stays with its sample."""
    z = np.array([-np.inf, -1e30, -200, -88, -20, -1e-3, 0, 1e-3, 20, 88, 200, 1e30, np.inf, np.nan], np.float32)
    a = np.ascontiguousarray(np.repeat(z[None, :, None], 4, 2))
    h, c = lstm.lstm_cpu(a, np.zeros((4, 1), np.float32), *np.zeros((2, len(z), 1), np.float32))
    with np.errstate(all="ignore"):
        expected = 1 / (1 + np.exp(-np.float64(z))), np.tanh(np.float64(z))
    np.testing.assert_allclose(a[0, :, 0], expected[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(a[0, :, 2], expected[1], rtol=0, atol=1e-6)
    assert np.isnan(h[1]).sum() == np.isnan(c[1]).sum() == 1 and np.isnan(h[1, -1, 0])


@pytest.mark.parametrize("name, wrong", [("units", [[1, 1]]), ("units", [[0, 2]]), ("units", [[-1, 0]]), ("columns", [3, 2])])
def test_cpu_lists_out_of_order_are_refused(name, wrong):
    a = np.zeros((1, 3, 8), np.float32)
    with pytest.raises(ValueError, match=f"{name} must increase"):
        lstm.lstm_grad_cpu(
            a[..., :2].copy(),
            a,
            np.zeros((2, 3, 2), np.float32),
            np.zeros((8, 2), np.float32),
            **{name: np.array(wrong, np.int32)},
        )


@pytest.mark.parametrize(
    "op, change",
    [
        ("lstm_grad", {"c": (2, 3, 2)}),
        ("lstm_grad", {"dy": (1, 3, 2)}),
        ("lstm_scores", {"c": (2, 3, 2)}),
        ("lstm_scores", {"gates": (2, 3, 4)}),
    ],
)
def test_cpu_steps_that_are_not_there_are_refused(op, change):
    """No loop reads beyond an array."""
    shapes = {"dy": (2, 3, 2), "gates": (2, 3, 8), "c": (3, 3, 2)} | ({"w": (8, 2)} if op == "lstm_grad" else {}) | change
    with pytest.raises(ValueError, match=f"{op} .* do not match"):
        getattr(lstm, f"{op}_cpu")(**{name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
