"""rsdp with tiles of positions and bsdp with blocks of channels: which convolutions have them, rates, sensitivity."""

import numpy as np
import pytest

from numbanet import BlockSensitiveDropout, Conv2d, Flatten, Linear, ReLU, RowSensitiveDropout, Sequential, Tensor
from numbanet.plans import ChannelBlockPlan, PositionTilePlan
from tests.dropout.test_sensitive import DRAWS, check_mean, chosen_for

# --- tiles ------------------------------------------------------------------------------------------------------------
SAME = {"padding": 1, "rng": 0}


@pytest.mark.parametrize(
    "tile, layer, positions, side",
    [
        (None, Conv2d(16, 16, 3, **SAME), (8, 8), 1),
        ("auto", Conv2d(16, 16, 3, **SAME), (8, 8), 4),
        ("auto", Conv2d(16, 16, 3, **SAME), (7, 7), 4),
        ("auto", Conv2d(16, 16, 3, **SAME), (6, 6), 2),  # as many multiplications as with 4
        ("auto", Conv2d(16, 16, 3, **SAME), (4, 9), 2),  # along both axes there are at least two tiles
        ("auto", Conv2d(16, 16, 3, **SAME), (2, 8), 1),
        (4, Conv2d(16, 16, 3, **SAME), (6, 6), 4),
        (4, Conv2d(16, 16, 3, **SAME), (4, 4), 2),
        (4, Conv2d(16, 16, 3, **SAME), (2, 2), 1),
        (2, Conv2d(16, 16, 3, **SAME), (8, 8), 2),
        (4, Conv2d(3, 16, 3, **SAME), (8, 8), 1),
        (4, Conv2d(16, 15, 3, **SAME), (8, 8), 1),
        (4, Conv2d(16, 16, 5, **SAME), (8, 8), 1),
        (4, Conv2d(16, 16, 3, stride=2, **SAME), (8, 8), 1),
        (4, Conv2d(16, 16, 3, dilation=2, **SAME), (8, 8), 1),
        (4, Conv2d(32, 32, 3, groups=2, **SAME), (8, 8), 1),
    ],
    ids=str,
)
def test_the_side_of_tiles(tile, layer, positions, side):
    assert RowSensitiveDropout(0.5, tile=tile).side(layer, positions) == side


def tile_plans(size, count, contrast=0.5, **options):
    """Plans of a convolution of 16 channels for images that are dark but for their upper left quarter."""
    layer, x = Conv2d(16, 16, 3, **SAME), np.full((6, *size, 16), 0.01, np.float32)
    x[:, : size[0] // 2, : size[1] // 2] = 1.0
    model = Sequential([layer, ReLU(), Flatten(), Linear(16 * size[0] * size[1], 2, rng=0)])
    policy = RowSensitiveDropout(0.5, contrast=contrast, thresholds={0: 1.0}, votes=0.2, **options)
    rng = np.random.default_rng(1)
    return [chosen_for(policy, model, Tensor(x), rng) for _ in range(count)]


@pytest.mark.parametrize("size, side", [((12, 8), 4), ((10, 7), 4), ((4, 4), 2), ((9, 3), 2)])
def test_whole_tiles_are_dropped_at_the_rate_that_was_asked_for(size, side):
    plans = tile_plans(size, DRAWS, tile="auto")
    assert all(isinstance(plan, PositionTilePlan) and plan.grid == (6, *size) and plan.side == side for plan in plans)
    masks = np.array([plan.mask().reshape(6, *size) for plan in plans])
    for h, w in np.ndindex(*(-(-n // side) for n in size)):
        tile = masks[:, :, h * side : (h + 1) * side, w * side : (w + 1) * side]
        assert (tile.all((2, 3)) | ~tile.any((2, 3))).all()
    corners = masks[:, :, ::side, ::side]  # one position of each tile
    check_mean(1 - corners.mean((1, 2, 3)), 0.5)
    assert (corners != corners[:, :1]).any()  # each image has tiles of its own
    assert corners[:, :, 0, 0].mean() > corners[:, :, -1, -1].mean() + 0.1  # it is bright


def test_by_chance_all_tiles_are_dropped_alike():
    masks = np.array([plan.mask().reshape(6, 8, 8)[:, ::4, ::4] for plan in tile_plans((8, 8), DRAWS, contrast=0.0, tile=4)])
    for tile in masks.reshape(DRAWS, 6, 4).transpose(2, 0, 1):
        check_mean(1 - tile.mean(1), 0.5)


def test_where_there_are_no_tiles_positions_are_dropped_as_before():
    plain, tiled = (tile_plans((2, 9), 5, **options) for options in ({}, {"tile": "auto"}))
    assert plain == tiled and not any(isinstance(plan, PositionTilePlan) for plan in tiled)


def test_thresholds_make_the_asked_share_of_tiles_sensitive():
    rng = np.random.default_rng(0)
    x = np.abs(rng.standard_normal((64, 12, 12, 16))) * rng.random((64, 3, 3, 1)).repeat(4, 1).repeat(4, 2)
    model = Sequential([Conv2d(16, 16, 3, **SAME), Flatten(), Linear(16 * 144, 2, rng=0)])
    policy = RowSensitiveDropout(0.5, tile=4, most=64).calibrated(model, Tensor(x.transpose(0, 3, 1, 2)))
    for _ in range(30):
        chosen_for(policy, model, Tensor(x), rng)
    assert policy.report()["sensitive"] == [pytest.approx(policy.sensitive, abs=0.06)]


# --- blocks of channels -----------------------------------------------------------------------------------------------
def channel_plans(channels, count, images=6, size=(4, 4), contrast=0.5, **options):
    """Plans of a convolution for images whose first 16 channels are bright."""
    layer, x = Conv2d(channels, 4, 3, **SAME), np.full((images, *size, channels), 0.01, np.float32)
    x[..., :16] = 1.0
    model = Sequential([layer, ReLU(), Flatten(), Linear(4 * size[0] * size[1], 2, rng=0)])
    policy = BlockSensitiveDropout(0.4, contrast=contrast, thresholds={0: 1.0}, votes=0.2, channels=True, **options)
    rng = np.random.default_rng(1)
    return [chosen_for(policy, model, Tensor(x), rng) for _ in range(count)]


@pytest.mark.parametrize("channels, width", [(64, 16), (80, 16), (128, 32), (160, 32)])
def test_blocks_of_channels_are_dropped_at_the_rate_that_was_asked_for(channels, width):
    plans = channel_plans(channels, DRAWS)
    assert all(isinstance(plan, ChannelBlockPlan) and (plan.width, plan.taps) == (width, 9) for plan in plans)
    assert {plan.shape for plan in plans} == {(96, 9 * channels)} and {plan.height for plan in plans} == {48}  # three images
    check_mean([1 - plan.density for plan in plans], 0.4)
    bright, dark = (np.mean([block in plan.kept[0] for plan in plans]) for block in (0, channels // width - 1))
    assert bright > dark + 0.1


@pytest.mark.parametrize("channels, images, size, expected", [(48, 6, (4, 4), None), (72, 6, (4, 4), None), (64, 1, (4, 4), 1)])
def test_other_convolutions_have_blocks_of_taps(channels, images, size, expected):
    (plan,) = channel_plans(channels, 1, images, size)
    assert isinstance(plan, ChannelBlockPlan) == (expected is not None)
    assert expected is None or len(plan.kept) == expected


@pytest.mark.parametrize("kind", [RowSensitiveDropout, BlockSensitiveDropout])
@pytest.mark.parametrize("number, threshold", [(0, -1.0), (0, float("nan")), ("0", 1.0), (-1, 1.0), (0, "1")])
def test_thresholds_are_numbers_from_0_on_by_index(kind, number, threshold):
    with pytest.raises(ValueError, match=f"thresholds: {number!r}: {threshold!r} is no index"):
        kind(0.5, thresholds={number: threshold})
    assert kind(0.5, thresholds={np.int64(1): 0}).thresholds == {1: 0}
