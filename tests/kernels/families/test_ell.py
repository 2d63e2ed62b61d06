"""Sparse layers of a fixed number of weights a row, and sparse samples in slabs, against their float64 references on every
device."""

import numpy as np
import pytest

from numbanet_kernels.families import ell
from numbanet_kernels.layouts.slabs import LANES, ROWS, Grouped, grouped


def layer(rng, inputs, rows, depth, same=1):
    """(indices, values, bias) whose rows read the same inputs in sets of so many, in random order"""
    sets = np.stack([rng.permutation(inputs)[:depth] for _ in range(-(-rows // same))])
    indices = rng.permutation(np.repeat(sets, same, axis=0)[:rows]).astype(np.int32)
    return indices, rng.standard_normal((rows, depth)).astype(np.float32), rng.standard_normal(rows).astype(np.float32) - 1


def on(put, rows):
    return Grouped(put(rows.order), rows.count)


CASES = [(1, 1, 1, 1, 1), (3, 40, 33, 7, 1), (2, 70, 64, 32, 16), (9, 20, 19, 5, 6), (1, 64, 130, 12, 4)]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("which", ["all", "lanes", "one lane", "alive", "none"])
@pytest.mark.parametrize("slabs, inputs, rows, depth, same", CASES)
def test_a_layer(suffix, put, get, rng, slabs, inputs, rows, depth, same, which, together):
    x = rng.standard_normal((slabs, inputs, LANES)).astype(np.float32)
    indices, values, bias = layer(rng, inputs, rows, depth, same)
    n = slabs * LANES
    chosen = {
        "all": {},
        "lanes": {"lanes": np.flatnonzero(rng.random(n) < 0.6)},
        "one lane": {"lanes": np.array([n - 1])},
        "alive": {"alive": rng.random(n) < 0.1},
        "none": {"alive": np.zeros(n)},
    }[which]
    chosen = {name: value.astype(np.int32) for name, value in chosen.items()}
    expected, some = ell.ell_reference(x, indices, values, bias, 1.5, **chosen)
    order = on(put, grouped(indices)) if together else None
    found, live = getattr(ell, f"ell_{suffix}")(
        *map(put, (x, indices, values, bias)), 1.5, rows=order, **{name: put(value) for name, value in chosen.items()}
    )
    np.testing.assert_allclose(get(found), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(get(live), some)


def test_what_is_not_finite_is_not_hidden(suffix, put, get):
    x = np.zeros((1, 2, LANES), np.float32)
    x[0, 0, :3] = np.nan, np.inf, -np.inf
    weights = np.array([[0]], np.int32), np.ones((1, 1), np.float32), np.zeros(1, np.float32)
    y, live = getattr(ell, f"ell_{suffix}")(put(x), *map(put, weights), 5.0)
    np.testing.assert_array_equal(get(y)[0, 0, :4], [np.nan, 5, 0, 0])
    assert get(live)[:4].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("which", ["new", "old"])
def test_a_result_may_lie_in_a_given_array(suffix, put, get, rng, which):
    x = rng.standard_normal((2, 9, LANES)).astype(np.float32)
    weights = layer(rng, 9, 11, 4)
    out = put(np.full((2, 11, LANES), 7.0)) if which == "old" else None
    found, _ = getattr(ell, f"ell_{suffix}")(
        *map(put, (x, *weights)), 2.0, alive=put(np.arange(128, dtype=np.int32) % 2), out=out
    )
    assert out is None or found is out
    expected, _ = ell.ell_reference(x, *weights, 2.0, alive=np.arange(128) % 2)
    np.testing.assert_allclose(get(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:1], lambda x: x[1:]], ids=["x", "its beginning", "its end"])
def test_a_result_may_not_lie_in_the_input(view):
    x = np.zeros((2, 1, LANES), np.float32)
    weights = np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32), np.zeros(1, np.float32)
    out = view(x)
    with pytest.raises(ValueError, match="out must not be x"):
        ell.ell_cpu(x, *weights, 2.0, lanes=np.arange(len(out) * LANES, dtype=np.int32), out=out)


@pytest.mark.parametrize("counts", [[0], [3, 0, 1], [2] * 64, [1, 4] * 50])
def test_sparse_samples(suffix, put, get, rng, counts):
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    columns = np.concatenate([rng.permutation(7)[:count] for count in counts]).astype(np.int32)
    values = rng.standard_normal(len(columns)).astype(np.float32)
    out = put(np.full((-(-len(counts) // LANES), 7, LANES), 3.0))
    found = getattr(ell, f"in_slabs_{suffix}")(put(starts), put(columns), put(values), 7, out=out)
    np.testing.assert_array_equal(get(found), ell.in_slabs_reference(starts, columns, values, 7))


@pytest.mark.parametrize("same, rows", [(1, 9), (3, 12), (4, 16), (6, 18), (16, 64), (5, 23)])
def test_rows_with_the_same_inputs_are_found(rng, same, rows):
    indices, _, _ = layer(rng, 50, rows, 6, same)
    order, count = grouped(indices)
    assert sorted(order) == list(range(rows)) and count == rows // same * (same // ROWS) + rows % same // ROWS
    for group in order[: count * ROWS].reshape(-1, ROWS):
        assert (indices[group] == indices[group[0]]).all()


BAD = [
    ({"x": (1, 9, 63)}, "x"),
    ({"indices": (0, 11)}, "one column"),
    ({"values": (4, 3)}, "values"),
    ({"bias": 10}, "bias"),
    ({"alive": 63}, "alive"),
    ({"out": (1, 11, 63)}, "out"),
    ({"rows": 3}, "groups of"),
]


@pytest.mark.parametrize("change, message", BAD, ids=[message for _, message in BAD])
def test_what_does_not_fit_is_refused(suffix, put, rng, change, message):
    indices, values, bias = layer(rng, 9, 11, 4)
    given = {"x": np.zeros((1, 9, LANES)), "indices": indices, "values": values, "bias": bias}
    if "indices" in change:
        given.update(indices=np.zeros((11, 0), np.int32), values=np.zeros((11, 0)))
    elif "rows" in change:
        given["rows"] = Grouped(put(np.arange(11, dtype=np.int32)), change["rows"])
    else:
        ((name, shape),) = change.items()
        given[name] = np.zeros(shape, np.int32 if name == "alive" else np.float64)
    given = {name: value if name == "rows" else put(value) for name, value in given.items()}
    with pytest.raises(ValueError, match=message):
        getattr(ell, f"ell_{suffix}")(ceiling=2.0, **given)


@pytest.mark.parametrize("inputs", [-1, 0])
def test_sparse_samples_need_inputs(suffix, put, inputs):
    given = np.array([0, 1], np.int32), np.zeros(1, np.int32), np.ones(1)
    with pytest.raises(ValueError, match=f"in_slabs .* cannot be those of {inputs} inputs"):
        getattr(ell, f"in_slabs_{suffix}")(*map(put, given), inputs)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("indices", [[9]], "from 0 to 8"),
        ("indices", [[-1]], "from 0 to 8"),
        ("lanes", [3, 3], "increase"),
        ("lanes", [64], "from 0 to 63"),
    ],
)
def test_places_that_are_not_there_are_refused(name, value, message):
    given = {"indices": [[0]], "lanes": None, name: value}
    indices, lanes = (value and np.array(value, np.int32) for value in given.values())
    with pytest.raises(ValueError, match=message):
        ell.ell_cpu(
            np.zeros((1, 9, LANES), np.float32), indices, np.ones((1, 1), np.float32), np.zeros(1, np.float32), 2.0, lanes=lanes
        )
