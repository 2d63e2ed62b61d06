"""Keys of `x[key]`, and arrays of one value, on every device as in NumPy."""

import numpy as np
import pytest

from numbanet_kernels.families import indexing
from numbanet_kernels.runtime import memory

X = np.arange(6, dtype=np.float32).reshape(2, 3)
# of each row, equal numbers of other kinds come one after the other: what is kept of one key must not serve another
KEYS = [
    (1, True, 1.0, np.bool_(True), np.int64(1), np.uint8(1), np.float32(1), np.array(1), np.array(True), [1], [True, False]),
    (0, False, 0.0, [], (), None, ..., [0.0], np.zeros(0), np.zeros(0, np.int32), range(0), range(2)),
    (slice(1), slice(1.0), slice(True), slice(None, np.int64(1)), slice(None, None, -1), slice(None, None, 0)),
    (((0, 1),), ((0, 1), (2, 1)), (0, 1), ([0, 1], [True, False, True]), (np.array([0, 1]), slice(1, None)), ((0, 1), ...)),
    (np.array([1, -1]), np.array([1, -1], np.int8), np.array([1, -1.0]), np.array([1, 0], bool), np.array(["1"]), "1"),
    (X > 2, np.ones((2, 2), bool), [[True] * 3] * 2, [5], -3, 2**70, np.array([1, 1], np.uint64), (..., None, 1), (1, 1, 1)),
]


def outcome(call):
    """The result and its kind, or the kind of the error."""
    try:
        return np.asarray(call()).tolist()
    except (IndexError, TypeError, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("row", range(len(KEYS)))
def test_keys_mean_what_they_mean_to_numpy(suffix, put, get, row):
    x, getitem = put(X), getattr(indexing, f"getitem_{suffix}")
    for key in KEYS[row]:
        assert outcome(lambda key=key: get(getitem(x, key))) == outcome(lambda key=key: X[key]), repr(key)


@pytest.mark.parametrize("row", range(len(KEYS)))
def test_values_are_put_where_numpy_reads_them(suffix, put, get, row):
    putitem = getattr(indexing, f"putitem_{suffix}")

    def expected(key):
        dx = np.zeros_like(X)
        np.add.at(dx, key, np.ones_like(X[key]))
        return dx

    for key in KEYS[row]:
        wanted = outcome(lambda key=key: expected(key))
        dy = put(np.ones(np.shape(X[key]) if isinstance(wanted, list) else 1))
        assert outcome(lambda key=key, dy=dy: get(putitem(dy, key, X.shape))) == wanted, repr(key)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64, np.int8])
def test_an_array_is_filled(suffix, put, get, dtype):
    full, out = getattr(memory, f"full_{suffix}"), getattr(memory, f"empty_{suffix}")((2, 3), dtype)
    assert full((2, 3), 7, dtype, out=out) is out
    for found in (out, full((2, 3), 7, dtype)):
        assert found.dtype == dtype
        np.testing.assert_array_equal(get(found), np.full((2, 3), 7))
    with pytest.raises(ValueError, match=rf"full \({suffix}\)"):
        full((3, 2), 7, dtype, out=out)
    with pytest.raises(TypeError, match=rf"full \({suffix}\)"):
        full((2, 3), 7, np.int16, out=out)
