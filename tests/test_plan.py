"""Plans as plain mathematics: masks, counts, densities, index views (property tests)."""
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from numbanet import RowPlan, TilePlan, device
from numbanet.lists import PackedGradient
from numbanet.plan import pack_rows
from numbanet_kernels.tiles import arrangement

CPU = device("cpu")


@st.composite
def row_plans(draw):
    dp = draw(st.integers(1, 12))
    return RowPlan(draw(st.integers(0, 40)), dp, draw(st.integers(0, dp - 1)))


@st.composite
def tile_plans(draw):
    dp = draw(st.integers(1, 9))
    shape = draw(st.tuples(st.integers(0, 30), st.integers(0, 30)))
    return TilePlan(shape, draw(st.integers(1, 8)), dp, draw(st.integers(0, dp - 1)), mix=draw(st.integers(0, 3)))


@given(row_plans())
def test_row_plan_views_agree_with_the_mask(plan):
    mask = plan.mask()
    np.testing.assert_array_equal(np.flatnonzero(mask), plan.kept(CPU))
    assert plan.count == mask.sum() and plan.flops(3, 5) == 2 * 3 * 5 * plan.count
    assert plan.density == (mask.mean() if plan.n else 1.0)
    positions = plan.positions(CPU)
    np.testing.assert_array_equal(positions >= 0, mask)
    np.testing.assert_array_equal(positions[mask], np.arange(plan.count))
    assert all(i % plan.dp == plan.bias for i in np.flatnonzero(mask))


@given(tile_plans())
def test_tile_plan_keeps_one_tile_in_dp(plan):
    mask, (rows, cols), (a, b) = plan.mask(), plan.grid, arrangement(plan.grid, plan.mix)
    for r in range(rows):
        for c in range(cols):
            block = mask[r * plan.tile:(r + 1) * plan.tile, c * plan.tile:(c + 1) * plan.tile]
            assert block.all() == block.any() == ((a[r] + b[c]) % plan.dp == plan.bias)
    assert plan.size == mask.sum() and plan.flops(3) == 6 * plan.size
    assert plan.density == (mask.mean() if mask.size else 1.0)


@settings(deadline=None)
@given(tile_plans(), st.integers(0, 2**32 - 1))
def test_packing_and_unpacking_keeps_what_the_mask_keeps(plan, seed):
    dense = np.random.default_rng(seed).standard_normal(plan.shape).astype(np.float32)
    packing = plan.packing(CPU)
    packed = np.full((packing.row_pos.max(initial=-1) + 1, packing.cols.shape[1]), np.nan, np.float32)
    for r, (place, z) in enumerate(zip(packing.row_pos, packing.row_class)):
        kept = packing.cols[z][packing.cols[z] >= 0]
        packed[place, :kept.size] = dense[r, kept]
    np.testing.assert_array_equal(PackedGradient(packed, packing, plan.shape).dense(CPU), dense * plan.mask())


@given(row_plans(), row_plans(), st.integers(0, 2**32 - 1))
def test_row_packing_keeps_what_both_masks_keep(rows, cols, seed):
    dense = np.random.default_rng(seed).standard_normal((rows.n, cols.n)).astype(np.float32)
    packed = np.ascontiguousarray(dense[rows.mask()][:, cols.mask()])
    gradient = PackedGradient(packed, pack_rows(rows, cols, CPU), dense.shape)
    np.testing.assert_array_equal(gradient.dense(CPU), dense * rows.mask()[:, None] * cols.mask())


@given(row_plans(), tile_plans())
def test_plans_are_values(rows, tiles):
    for plan in (rows, tiles):
        assert plan == type(plan)(**{f: getattr(plan, f) for f in plan.__dataclass_fields__}) and hash(plan) == hash(plan)
        with pytest.raises(AttributeError):
            plan.dp = 1


@pytest.mark.parametrize("make", [lambda: RowPlan(4, 0, 0), lambda: RowPlan(4, 2, 2), lambda: RowPlan(-1, 2, 0),
                                  lambda: TilePlan((4, 4), 0, 2, 0), lambda: TilePlan((4, 4), 2, 2, -1),
                                  lambda: TilePlan((4, 4), 2, 2, 0, mix=-1)])
def test_impossible_plans_are_refused(make):
    with pytest.raises(ValueError, match="Plan: "):
        make()
