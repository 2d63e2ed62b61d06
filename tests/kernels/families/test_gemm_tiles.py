"""Kept tiles: every function against its float64 reference, which is the masked dense product."""

import numpy as np
import pytest

from numbanet_kernels.blocks import gemm_block
from numbanet_kernels.families import gemm_tiles
from numbanet_kernels.layouts import tiles
from numbanet_kernels.layouts.tiles import Pattern

OLDER = True  # products have other kernels on an older card: all tests run on one as well

# (N, O, I), tile, dp: ragged edges, one tile, dp that divides the number of tile columns and dp that does not
CASES = [
    ((5, 9, 11), 4, 1),
    ((5, 9, 11), 4, 2),
    ((5, 9, 11), 4, 3),
    ((6, 8, 16), 4, 4),
    ((6, 8, 16), 4, 3),
    ((1, 1, 1), 4, 2),
    ((5, 18, 10), 4, 5),
    ((3, 4, 40), 4, 7),
    ((0, 9, 11), 4, 2),
    ((5, 3, 2), 2, 6),
    ((5, 10, 6), 2, 8),
    ((35, 70, 50), 8, 3),
]  # the last: whole squares of a turned activation, and their edges


@pytest.mark.slow
@pytest.mark.parametrize("shape, tile, dp", CASES)
def test_forward_dx_dw_equal_reference(suffix, put, get, rng, shape, tile, dp):
    n, o, i = shape
    x, w, b, dy = (rng.standard_normal(s) for s in ((n, i), (o, i), (o,), (n, o)))
    gate = np.maximum(x, 0)  # what a ReLU leaves

    def function(name):
        return getattr(gemm_tiles, f"{name}_{suffix}")

    for bias in range(dp):
        pattern, close = Pattern((o, i), tile, dp, bias, bias % 3), dict(rtol=1e-5, atol=1e-5)
        y = get(function("gemm_tiles")(put(x), put(w), pattern, put(b), True, 1.5))
        dx = get(function("gemm_tiles_dx")(put(dy), put(w), pattern, 1.5))
        packed, db = map(get, function("gemm_tiles_dw")(put(dy), put(x), pattern, 1.5))
        masked = get(function("gemm_tiles_dx")(put(dy), put(w), pattern, 1.5, where=put(gate)))
        np.testing.assert_allclose(masked, gemm_tiles.gemm_tiles_dx_reference(dy, w, pattern, 1.5, gate), **close)
        np.testing.assert_allclose(db, dy.sum(axis=0), **close)
        np.testing.assert_allclose(y, gemm_tiles.gemm_tiles_reference(x, w, pattern, b, True, 1.5), **close)
        np.testing.assert_allclose(dx, gemm_tiles.gemm_tiles_dx_reference(dy, w, pattern, 1.5), **close)
        np.testing.assert_allclose(unpacked(packed, pattern), gemm_tiles.gemm_tiles_dw_reference(dy, x, pattern, 1.5), **close)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [(5, 9, 11), (35, 70, 50)])
def test_what_is_prepared_of_dy_gives_the_same_products_and_db(suffix, put, get, rng, shape, gated, later):
    """dy as an array, or as a product that is still to be done."""
    n, o, i = shape
    x, w, dy, y = (rng.standard_normal(s) for s in ((n, i), (o, i), (n, o), (n, o)))
    np.maximum(y, 0, out=y)  # what a ReLU leaves
    pattern, close = Pattern((o, i), 4, 3, 1, 5), dict(rtol=1e-5, atol=1e-5)

    def function(name):
        return getattr(gemm_tiles, f"{name}_{suffix}")

    def product(where=None):
        return put(dy if where is None else np.where(np.array(where) > 0, dy, 0))

    found, outputs = function("tile_outputs")(product if later else put(dy), pattern, 1.5, put(y) if gated else None)
    dz = np.where(y > 0, dy, 0) if gated else dy
    dx = get(function("gemm_tiles_dx")(found, put(w), pattern, 1.5, outputs=outputs))
    packed, db = map(get, function("gemm_tiles_dw")(found, put(x), pattern, 1.5, outputs=outputs))
    np.testing.assert_allclose(db, dz.sum(axis=0), **close)
    np.testing.assert_allclose(dx, gemm_tiles.gemm_tiles_dx_reference(dz, w, pattern, 1.5), **close)
    np.testing.assert_allclose(unpacked(packed, pattern), gemm_tiles.gemm_tiles_dw_reference(dz, x, pattern, 1.5), **close)


def unpacked(packed, pattern):
    """The dense form of a packed dw, from the words of the module's docstring."""
    shape, tile, dp, bias, mix = pattern
    rows, cols = -(-shape[0] // tile), -(-shape[1] // tile)
    a, b = tiles.arrangement((rows, cols), mix)
    kept = [[c for c in range(cols) if (a[r] + b[c]) % dp == bias] for r in range(rows)]
    dense = np.zeros((rows * tile, cols * tile))
    for place, r in enumerate(sorted(range(rows), key=lambda r: (a[r] % dp, r))):
        for k, c in enumerate(kept[r]):
            dense[r * tile : (r + 1) * tile, c * tile : (c + 1) * tile] = packed[
                place * tile : (place + 1) * tile, k * tile : (k + 1) * tile
            ]
    return dense[: shape[0], : shape[1]]


@pytest.mark.parametrize("mix", [0, 1])
@pytest.mark.parametrize("grid, dp", [((3, 3), 3), ((2, 4), 4), ((5, 3), 5), ((8, 10), 7), ((0, 3), 2), ((3, 0), 2)])
def test_classes_share_no_column_and_cover_the_kept_tiles(grid, dp, mix):
    for bias in range(dp):
        pattern = Pattern(grid, 1, dp, bias, mix)
        packed, covered = tiles.packed_tiles(pattern), np.zeros(grid, int)
        classes = [(rows[rows >= 0], cols[cols >= 0]) for rows, cols in zip(packed.rows, packed.cols, strict=True)]
        for z, (rows, cols) in enumerate(classes):
            covered[np.ix_(rows, cols)] += 1
            assert (packed.row_class[rows] == z).all()
        np.testing.assert_array_equal(covered, tiles.kept_tiles(pattern))
        columns = [c for _, cols in classes for c in cols]
        assert len(columns) == len(set(columns))
        in_order = [r for rows, _ in classes for r in rows]
        np.testing.assert_array_equal(packed.row_position[in_order], np.arange(grid[0]))


def test_lists_reach_as_far_as_blocks_do():
    assert all(tiles.ROOM % tile == 0 for tile in gemm_block.TILES)


def test_arrangements_are_permutations_of_their_own():
    found = [tiles.arrangement((7, 9), mix) for mix in range(5)]
    for a, b in found:
        assert sorted(a) == list(range(7)) and sorted(b) == list(range(9))
    assert (found[0][0] == np.arange(7)).all() and len({(*a, *b) for a, b in found}) == 5


def test_masked_version(rng, on_cuda, put, get):
    x, w, mask = rng.standard_normal((5, 11)), rng.standard_normal((9, 11)), rng.random((3, 3)) < 0.5
    y = get(gemm_tiles.gemm_tiles_masked(put(x), put(w), put(mask.astype(np.int32)), 4))
    dense = np.kron(mask, np.ones((4, 4)))[:9, :11]
    np.testing.assert_allclose(y, x @ (w * dense).T, rtol=1e-5, atol=1e-5)


def test_bad_arguments_are_named(suffix, put):
    function = getattr(gemm_tiles, f"gemm_tiles_{suffix}")
    with pytest.raises(ValueError, match=r"x \(4, 5\).*must be \(4, 6\)"):
        function(put(np.zeros((4, 5))), put(np.zeros((9, 6))), Pattern((9, 6), 4, 2, 0))
    with pytest.raises(ValueError, match="bias=2"):
        function(put(np.zeros((4, 6))), put(np.zeros((9, 6))), Pattern((9, 6), 4, 2, 2))
    with pytest.raises(TypeError, match="is not a Pattern"):
        function(put(np.zeros((4, 6))), put(np.zeros((9, 6))), (4, 2, 1, 0))
