"""A step of a GRU, forward and backward, against its float64 reference, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import gru

SIZES = [(1, 1, 1), (1, 20, 7), (5, 3, 16), (4, 21, 33), (3, 2, 50), (2, 0, 3)]  # T, N, H


def case(rng, steps, n, hidden, lengths):
    """(dy, back, carried, z, s, h), and where samples end."""
    shapes = (steps, n, hidden), (n, hidden), (n, hidden), *[(steps, n, 3 * hidden)] * 2, (steps + 1, n, hidden)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes], {
        "lengths": rng.integers(0, steps + 1, n).astype(np.int32) if lengths else None
    }


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected).max(initial=0)))


def given(put, options):
    return {name: None if value is None else put(value) for name, value in options.items()}


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_forward(suffix, put, get, rng, size, lengths):
    (*_, z, s, h), options = case(rng, *size, lengths)
    for t in {0, size[0] - 1}:
        placed = [put(a.copy()) for a in (z, s, h)]
        getattr(gru, f"gru_cell_{suffix}")(*placed, t, **given(put, options))
        gates, after = gru.gru_cell_reference(z, s, h, t, **options)
        found = [get(a) for a in placed]
        close(found[0][t], gates)
        close(found[2][t + 1], after)
        for ours, before, written in zip(found, (z, s, h), (t, None, t + 1)):
            others = [i for i in range(len(ours)) if i != written]
            np.testing.assert_array_equal(ours[others], before[others])  # nothing else is touched


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_backward(suffix, put, get, rng, size, lengths):
    (dy, back, carried, z, s, h), options = case(rng, *size, lengths)
    t = size[0] - 1
    gates = np.zeros_like(z)
    gates[t] = gru.gru_cell_reference(z, s, h, t)[0]
    placed = [put(a.copy()) for a in (dy, back, carried, gates, s, h)]
    getattr(gru, f"gru_cell_grad_{suffix}")(*placed, t, **given(put, options))
    expected = gru.gru_cell_grad_reference(dy, back, carried, gates, s, h, t, **options)
    for ours, theirs in zip((get(placed[3])[t], get(placed[4])[t], get(placed[2])), expected, strict=True):
        close(ours, theirs)
    for ours, before in ((placed[0], dy), (placed[1], back), (placed[5], h)):
        np.testing.assert_array_equal(get(ours), before)


@pytest.mark.parametrize("lengths", [None, np.array([0, 1, 2, 2])])
def test_gradients_are_those_of_the_formula(rng, lengths):
    """Against differences of the forward pass in float64, of a step whose products are known."""
    arrays, _ = case(rng, 2, 4, 3, False)
    dy, back, carried, z, s, h = map(np.float64, arrays)
    gates, t = np.zeros_like(z), 1
    gates[t] = gru.gru_cell_reference(z, s, h, t)[0]
    found = gru.gru_cell_grad_reference(dy, back, carried, gates, s, h, t, lengths)
    for array, slopes in zip((z, s, h), found):
        for at in np.ndindex(slopes.shape):
            ends = []
            for step in (1e-6, -1e-6):
                array[t][at] += step
                ends.append((gru.gru_cell_reference(z, s, h, t, lengths)[1] * (dy[t] + back + carried)).sum())
                array[t][at] -= step
            assert abs((ends[0] - ends[1]) / 2e-6 - slopes[at]) < 1e-7


@pytest.mark.parametrize("size", [1e-30, 1e-4, 0.01, 0.3, 0.59, 0.63, 3.0, 30.0])
def test_small_states_are_not_rounded(size, suffix, put, get, rng):
    z = np.float32(size * rng.uniform(-1, 1, (1, 3, 60)))
    s, h = np.zeros_like(z), np.zeros((2, 3, 20), np.float32)
    expected = gru.gru_cell_reference(z, s, h, 0)
    z, h = put(z), put(h)
    getattr(gru, f"gru_cell_{suffix}")(z, put(s), h, 0)
    np.testing.assert_allclose(get(z)[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(get(h)[1], expected[1], rtol=1e-6, atol=3e-7 * min(size, 1))  # m + u (0 - m) may cancel


@pytest.mark.parametrize(
    "change, message",
    [
        ({"z": (2, 3, 5), "s": (2, 3, 5)}, r"must be \(T, N, 3 H\)"),
        ({"s": (2, 3, 5)}, "s must be"),
        ({"h": (2, 3, 2)}, r"\(T \+ 1, N, H\)"),
        ({"h": (3, 4, 2)}, "h must be"),
        ({"lengths": (2,)}, "lengths"),
        ({"t": 2}, "t 2 must be a step, from 0 to 1"),
        ({"t": -1}, "must be a step"),
        ({"t": 0.5}, "must be a step"),
    ],
)
def test_what_does_not_fit_is_refused(suffix, put, change, message):
    given = {"z": (2, 3, 6), "s": (2, 3, 6), "h": (3, 3, 2), "t": 0} | change
    arrays = {
        name: put(np.zeros(value, np.int32 if name == "lengths" else np.float32)) if isinstance(value, tuple) else value
        for name, value in given.items()
    }
    with pytest.raises(ValueError, match=message):
        getattr(gru, f"gru_cell_{suffix}")(**arrays)
    with pytest.raises(ValueError, match=message):
        gates = arrays.pop("z")
        slopes = [put(np.zeros(shape, np.float32)) for shape in ((2, 3, 2), (3, 2), (3, 2))]
        getattr(gru, f"gru_cell_grad_{suffix}")(*slopes, gates, **arrays)


def test_cpu_threads_own_samples_and_nan_stays_with_its_own():
    rng = np.random.default_rng(0)
    z, s, h = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 5, 60), (1, 5, 60), (2, 5, 20)))
    z[0, 3, 0] = np.nan
    gru.gru_cell_cpu(z, s, h, 0)
    assert np.isnan(h[1]).sum() == 1 and np.isnan(h[1, 3, 0])
