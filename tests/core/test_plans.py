"""Plans as plain mathematics: masks, counts, densities, index views (property tests)."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from numbanet import BernoulliPlan, BlockPlan, IndexPlan, RowPlan, TilePlan, TimePlan, device
from numbanet.gradients import Packed
from numbanet.plans import ChannelBlockPlan, GroupPlan, PositionPlan, PositionTilePlan, on_device
from numbanet.plans.on_device import packing
from numbanet_kernels.layouts.tiles import arrangement

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


@st.composite
def index_plans(draw):
    n = draw(st.integers(1, 40))
    return IndexPlan(n, np.sort(draw(st.lists(st.integers(0, n - 1), unique=True))))


@st.composite
def block_plans(draw):
    shape = draw(st.tuples(st.integers(0, 30), st.integers(0, 30)))
    height, width, seed = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(0, 2**32 - 1))
    order = np.random.default_rng(seed).random((-(-shape[0] // height), -(-shape[1] // width))).argsort(1)
    return BlockPlan(shape, height, width, np.sort(order[:, : draw(st.integers(0, order.shape[1]))], 1))


@st.composite
def time_plans(draw):
    n, dp = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    return TimePlan(n, dp, draw(st.integers(0, -(-n // dp))), tuple(draw(st.lists(st.integers(0, n - 1), max_size=5))))


@given(st.tuples(*[st.integers(0, 9)] * 3), st.integers(1, 5), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_a_plan_of_position_tiles_keeps_whole_tiles(grid, side, seed, share):
    """Each position is kept if its tile is; the lists are padded with numbers beyond the last row and tile."""
    down, across = (-(-n // side) for n in grid[1:])
    kept = np.random.default_rng(seed).random((grid[0], down, across)) < share
    plan = PositionTilePlan(grid, side, np.flatnonzero(kept), 1.5)
    mask = np.zeros(grid, bool)
    for place in np.ndindex(grid):
        mask[place] = kept[place[0], place[1] // side, place[2] // side]
    np.testing.assert_array_equal(plan.mask(), mask.ravel())
    assert plan.n == mask.size and plan.scale == 1.5 and plan.density == (mask.mean() if mask.size else 1.0)
    assert not plan.trivial and plan.shape == (mask.size,) and plan == PositionTilePlan(grid, side, np.flatnonzero(kept), 1.5)
    for found, chosen in zip(plan.lists(), (mask, kept), strict=True):
        assert len(found) == chosen.size and (np.diff(found) > 0).all()
        np.testing.assert_array_equal(found[found < chosen.size], np.flatnonzero(chosen))


@given(st.tuples(*[st.integers(1, 6)] * 3), *[st.integers(1, 4)] * 4, st.data())
def test_a_plan_of_channel_blocks_keeps_all_taps_of_a_groups_channels(grid, images, taps, width, count, data):
    groups = -(-grid[0] // images)
    order = np.random.default_rng(data.draw(st.integers(0, 99))).random((groups, count)).argsort(1)
    kept = np.sort(order[:, : data.draw(st.integers(0, count))], 1)
    plan = ChannelBlockPlan(grid, images, taps, count * width, width, kept, 2.0)
    channels = np.zeros((grid[0], count * width), bool)
    for n in range(grid[0]):
        channels[n] = np.isin(np.arange(count * width) // width, kept[n // images])
    np.testing.assert_array_equal(plan.mask(), np.tile(channels, taps).repeat(grid[1] * grid[2], 0))
    assert plan.density == pytest.approx(plan.mask().mean()) and plan.scale == 2.0
    columns, own = plan.lists()
    assert columns.shape == (groups, taps * count) and own.shape == (groups, count)
    for found, chosen in ((columns, plan.chosen), (own, kept)):
        assert [row[row < found.shape[1]].tolist() for row in found] == chosen.tolist()


@given(time_plans())
def test_a_time_plan_keeps_equally_many_at_each_step(plan):
    mask, units = plan.mask(), on_device(plan, CPU).units
    assert mask.shape == plan.shape and units.shape == (len(plan.starts), plan.count)
    assert plan.density == pytest.approx(mask.mean() if mask.size else plan.density)
    for own, row, start in zip(mask, units, plan.starts):
        np.testing.assert_array_equal(np.flatnonzero(own), row)
        assert set(row) == {(start + k * plan.dp) % plan.n for k in range(plan.count)}
        if plan.n % plan.dp == 0 and plan.count * plan.dp == plan.n:
            np.testing.assert_array_equal(own, RowPlan(plan.n, plan.dp, start % plan.dp).mask())


@given(st.one_of(row_plans(), index_plans()))
def test_row_plan_views_agree_with_the_mask(plan):
    mask = plan.mask()
    np.testing.assert_array_equal(np.flatnonzero(mask), on_device(plan, CPU).indices)
    assert plan.count == mask.sum()
    assert plan.density == (mask.mean() if plan.n else 1.0)
    positions = on_device(plan, CPU).inverse
    np.testing.assert_array_equal(positions >= 0, mask)
    np.testing.assert_array_equal(positions[mask], np.arange(plan.count))
    if isinstance(plan, RowPlan):
        assert all(i % plan.dp == plan.bias for i in np.flatnonzero(mask))


@given(tile_plans())
def test_tile_plan_keeps_one_tile_in_dp(plan):
    mask, (rows, cols), (a, b) = plan.mask(), plan.grid, arrangement(plan.grid, plan.mix)
    for r in range(rows):
        for c in range(cols):
            block = mask[r * plan.tile : (r + 1) * plan.tile, c * plan.tile : (c + 1) * plan.tile]
            assert block.all() == block.any() == ((a[r] + b[c]) % plan.dp == plan.bias)
    assert plan.size == mask.sum()
    assert plan.density == (mask.mean() if mask.size else 1.0)


@given(block_plans())
def test_block_plan_keeps_the_same_number_in_every_block_row(plan):
    mask, found = plan.mask(), on_device(plan, CPU).blocks
    assert (found.height, found.width) == (plan.height, plan.width) and len(found.kept) == -(-plan.shape[0] // plan.height)
    assert plan.density == pytest.approx(mask.mean() if mask.size else 1.0)
    for b, columns in enumerate(np.asarray(found.kept)):
        rows = mask[b * plan.height : (b + 1) * plan.height]
        np.testing.assert_array_equal(rows, np.isin(np.arange(plan.shape[1]) // plan.width, columns)[None].repeat(len(rows), 0))


@settings(deadline=None)
@given(tile_plans(), st.integers(0, 2**32 - 1))
def test_packing_and_unpacking_keeps_what_the_mask_keeps(plan, seed):
    dense = np.random.default_rng(seed).standard_normal(plan.shape).astype(np.float32)
    at = on_device(plan, CPU).packing
    packed = np.full((at.row_pos.max(initial=-1) + 1, at.cols.shape[1]), np.nan, np.float32)
    for r, (place, z) in enumerate(zip(at.row_pos, at.row_class)):
        columns = at.cols[z][at.cols[z] >= 0]
        packed[place, : columns.size] = dense[r, columns]
    np.testing.assert_array_equal(Packed(packed, at, plan.shape).dense(CPU), dense * plan.mask())


@given(st.one_of(row_plans(), index_plans()), row_plans(), st.integers(0, 2**32 - 1))
def test_row_packing_keeps_what_both_masks_keep(rows, cols, seed):
    dense = np.random.default_rng(seed).standard_normal((rows.n, cols.n)).astype(np.float32)
    packed = np.ascontiguousarray(dense[rows.mask()][:, cols.mask()])
    gradient = Packed(packed, packing(on_device(rows, CPU), on_device(cols, CPU)), dense.shape)
    np.testing.assert_array_equal(gradient.dense(CPU), dense * rows.mask()[:, None] * cols.mask())


@given(row_plans(), tile_plans(), index_plans(), block_plans(), time_plans())
def test_plans_are_values(rows, tiles, indices, blocks, times):
    for plan in (rows, tiles, indices, blocks, times):
        assert plan == type(plan)(**{f: getattr(plan, f) for f in plan.__dataclass_fields__}) and hash(plan) == hash(plan)
        with pytest.raises(AttributeError):
            plan.scale = 2.0


@pytest.mark.parametrize("images, together", [(7, 3), (6, 3), (2, 16), (5, 1)])
def test_positions_of_groups_are_listed_only_where_they_must_be(images, together):
    mask = np.random.default_rng(images).random((-(-images // together), 10)) < 0.5
    plan = GroupPlan(images, mask, 1.5, together)
    listed = PositionPlan(10 * images, np.flatnonzero(np.repeat(mask, together, axis=0)[:images]), 1.5, together)
    (lists,) = plan.lists()
    assert plan.count == listed.count and plan.density == listed.density and "chosen" not in vars(plan)
    assert [list(row[row < 10]) for row in lists] == [list(np.flatnonzero(own)) for own in mask]
    assert plan == listed and hash(plan) == hash(listed) and plan.kind != listed.kind
    np.testing.assert_array_equal(plan.mask(), listed.mask())
    for wrong in (mask[1:], mask.astype(int), mask[0]):
        with pytest.raises(ValueError, match="GroupPlan: .* rows of bool are required"):
            GroupPlan(images, wrong, 1.5, together)


@given(st.one_of(row_plans(), index_plans(), tile_plans()))
def test_a_region_is_what_the_mask_says(plan):
    """Of a weight with the plan's axis in front, or of the plan's shape."""
    shape = plan.shape if isinstance(plan, TilePlan) else (plan.n, 3)
    mask = np.broadcast_to(plan.mask() if isinstance(plan, TilePlan) else plan.mask()[:, None], shape)
    region = plan.region(shape)
    if region is None:
        assert mask.all()
    else:
        blocks = np.kron(region.wanted, np.ones(region.block, bool))[: shape[0], : shape[1]]
        np.testing.assert_array_equal(blocks, mask)


def test_plans_of_one_kind_have_lists_of_the_same_shapes():
    for one, other in (
        (RowPlan(9, 2, 0), RowPlan(9, 4, 1)),
        (RowPlan(8, 2, 0), RowPlan(8, 2, 1)),
        (IndexPlan(9, [1, 2, 5]), IndexPlan(9, [0, 7, 8])),
        (IndexPlan(9, [1]), IndexPlan(9, [])),
        (TilePlan((9, 11), 4, 3, 0), TilePlan((9, 11), 4, 3, 2, mix=3)),
        (BlockPlan((4, 9), 2, 3, [[0], [1]]), BlockPlan((4, 9), 2, 3, [[2], [2]])),
        (TimePlan(9, 3, 2, (0, 4)), TimePlan(9, 3, 2, (5, 1))),
        (TimePlan(9, 3, 2, (0,)), TimePlan(9, 3, 3, (0,))),
        (BlockPlan((4, 9), 2, 3, [[0], [1]]), BlockPlan((4, 9), 2, 3, [[0, 1], [1, 2]])),
        (PositionTilePlan((2, 4, 4), 2, [0, 5], share=0.5), PositionTilePlan((2, 4, 4), 2, [], share=0.49)),
        (PositionTilePlan((2, 4, 4), 2, [0]), PositionTilePlan((2, 4, 4), 4, [0])),
        (ChannelBlockPlan((2, 4, 4), 1, 9, 6, 2, [[0], [1]]), ChannelBlockPlan((2, 4, 4), 1, 9, 6, 2, [[0, 1], [0, 2]])),
        (ChannelBlockPlan((2, 4, 4), 1, 9, 6, 2, [[0], [1]]), ChannelBlockPlan((2, 4, 4), 2, 9, 6, 2, [[0]])),
    ):
        shapes = [[np.shape(array) for array in plan.lists()] for plan in (one, other)]
        assert (one.kind == other.kind) == (shapes[0] == shapes[1])
    one, other = PositionTilePlan((2, 4, 4), 2, [0, 5]), PositionTilePlan((2, 4, 4), 2, [0, 1, 5, 7])
    assert (one.share, other.share) == (0.25, 0.5) and one.kind != other.kind  # the device may compute them in other ways
    key, other, rate = BernoulliPlan(4, 0.5, 1), BernoulliPlan(4, 0.5, 2), BernoulliPlan(4, 0.4, 1)
    assert key.kind == other.kind != rate.kind  # the key of random bits is read from memory, the rate is not


@pytest.mark.parametrize(
    "make",
    [
        lambda: RowPlan(4, 0, 0),
        lambda: RowPlan(4, 2, 2),
        lambda: RowPlan(-1, 2, 0),
        lambda: TilePlan((4, 4), 0, 2, 0),
        lambda: TilePlan((4, 4), 2, 2, -1),
        lambda: TilePlan((4, 4), 2, 2, 0, mix=-1),
        lambda: IndexPlan(4, [1, 1]),
        lambda: IndexPlan(4, [2, 4]),
        lambda: IndexPlan(4, [-1, 2]),
        lambda: IndexPlan(4, [0.5]),
        lambda: IndexPlan(4, [[1]]),
        lambda: IndexPlan(4, [3, 1]),
        lambda: TimePlan(0, 1, 0, ()),
        lambda: TimePlan(4, 2, 3, ()),
        lambda: TimePlan(4, 2, 1, (4,)),
        lambda: BlockPlan((4, 9), 0, 3, [[0]]),
        lambda: BlockPlan((4, -9), 2, 3, [[0], [0]]),
        lambda: BlockPlan((4, 9), 2, 3, [[0]]),
        lambda: BlockPlan((4, 9), 2, 3, [0, 1]),
        lambda: BlockPlan((4, 9), 2, 3, [[0], [3]]),
        lambda: BlockPlan((4, 9), 2, 3, [[-1], [0]]),
        lambda: BlockPlan((4, 9), 2, 3, [[1, 0], [0, 1]]),
        lambda: BlockPlan((4, 9), 2, 3, [[1, 1], [0, 1]]),
        lambda: BlockPlan((4, 9), 2, 3, [[0.5], [1]]),
        lambda: PositionTilePlan((2, 4, 4), 0, [0]),
        lambda: ChannelBlockPlan((2, 4, 4), 0, 9, 6, 2, [[0], [1]]),
        lambda: ChannelBlockPlan((2, 4, 4), 1, 9, 6, 4, [[0], [1]]),
        lambda: ChannelBlockPlan((2, 4, 4), 1, 9, 6, 2, [[0], [3]]),
        lambda: ChannelBlockPlan((2, 4, 4), 1, 9, 6, 2, [[0]]),
        lambda: PositionTilePlan((2, -4, 4), 2, []),
        lambda: PositionTilePlan((2, 4, 4), 2, [8]),
        lambda: PositionTilePlan((2, 4, 4), 2, [1, 0]),
    ],
)
def test_impossible_plans_are_refused(make):
    with pytest.raises(ValueError, match="Plan: "):
        make()
