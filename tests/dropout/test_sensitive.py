"""rsdp and bsdp: the rate that was asked for is dropped, sensitive regions less often; thresholds, records and refusals."""

import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy import stats

from numbanet import (
    BlockPlan,
    BlockSensitiveDropout,
    Conv2d,
    Flatten,
    Flow,
    IndexPlan,
    Linear,
    MaxPool2d,
    Net,
    ReLU,
    RowSensitiveDropout,
    Sequential,
    SkewNormalSchedule,
    Tensor,
)
from numbanet.dropout import policy
from numbanet.dropout.sensitive import MOST, rates_of
from numbanet.layers import CHANNELS_LAST, Tree

CONFIDENCE = 1 - 1e-4  # of each test as a whole: one false alarm in ten thousand runs with fresh seeds (the seeds are fixed)
DRAWS = 400
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
CONTRASTS = (0.0, 0.5, 1.0)
KINDS = {"rsdp": RowSensitiveDropout, "bsdp": BlockSensitiveDropout}


@pytest.fixture(params=KINDS)
def kind(request):
    """The class of each policy."""
    return KINDS[request.param]


# --- rates ------------------------------------------------------------------------------------------------------------
@given(st.floats(0, 0.999), st.integers(1, 10_000), st.floats(0, 1), st.data())
def test_the_rates_of_regions_have_the_mean_that_was_asked_for(rate, regions, contrast, data):
    share = data.draw(st.integers(0, regions)) / regions
    low, high = rates_of(rate, share, contrast)
    assert (share * low if share else 0) + (1 - share) * high == pytest.approx(rate, abs=1e-9)
    if share == 1:
        assert low == rate  # there are no others
        return
    assert -1e-9 <= low <= rate + 1e-9 and rate - 1e-9 <= high <= max(MOST, rate)
    if rate - share * (1 - contrast) * rate <= (1 - share) * max(MOST, rate):  # the others can make up for it
        assert low == pytest.approx((1 - contrast) * rate, abs=1e-9)


def check_mean(values, expected):
    """The mean of independent draws is the expected one, two-sided, at CONFIDENCE."""
    values = np.asarray(values, float)
    bound = stats.norm.isf((1 - CONFIDENCE) / 2) * values.std(ddof=1) / np.sqrt(len(values)) + 1e-5  # rates have 16 bits
    assert abs(values.mean() - expected) <= bound, f"{values.mean():.5f}, not {expected}; {bound:.5f} would be chance"


def drawn(kind, rate, share, contrast, count=DRAWS, **options):
    """Kept rows or blocks (count, …) of an input matrix of 12 images, 16 positions, 45 columns; what is sensitive; the grid."""
    each = {"together": 1} if kind is RowSensitiveDropout else {}
    rng, chosen = np.random.default_rng(1), kind(rate, contrast=contrast, **(each | options))
    images, shape, region = 12, (192, 45), (8, 45) if kind is RowSensitiveDropout else (16, 3)
    grid = tuple(-(-n // side) for n, side in zip(shape, region))
    masks = []
    sensitive = np.random.default_rng(2).permuted(np.arange(np.prod(grid)) < share * np.prod(grid) - 0.5).reshape(grid)
    for _ in range(count):
        plan = chosen.choose_regions(
            sensitive, images, shape, region, rates_of(rate, sensitive.mean(), contrast), 1.0, 1 - rate, rng
        )
        if kind is RowSensitiveDropout:
            assert isinstance(plan, IndexPlan) and plan.n == shape[0]
            masks.append(plan.mask())
        else:
            assert isinstance(plan, BlockPlan) and plan.shape == shape and (plan.height, plan.width) == region
            masks.append(plan.mask()[:: region[0], :: region[1]].ravel())
    likely = np.repeat(sensitive[:, 0], region[0]) if kind is RowSensitiveDropout else sensitive.ravel()
    return np.array(masks), likely, grid


@pytest.mark.parametrize("contrast", CONTRASTS)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("rate", [0.3, 0.6])
def test_the_overall_rate_is_the_one_asked_for(kind, rate, share, contrast):
    masks, likely, _ = drawn(kind, rate, share, contrast)
    check_mean(1 - masks.mean(1), rate)
    if kind is RowSensitiveDropout:  # each row is drawn by its own rate
        low, high = rates_of(rate, likely.mean(), contrast)
        for rows, expected in ((likely, low), (~likely, high)):
            if rows.any():
                check_mean(1 - masks[:, rows].mean(1), expected)


def test_the_check_itself_finds_a_wrong_rate(kind):
    masks, *_ = drawn(kind, 0.5, 0.5, 0.5)
    with pytest.raises(AssertionError, match="would be chance"):
        check_mean(1 - masks.mean(1), 0.52)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_sensitive_regions_are_kept_more_often_the_higher_the_contrast(kind, share):
    gaps = []
    for contrast in CONTRASTS:
        masks, likely, _ = drawn(kind, 0.5, share, contrast)
        gaps.append(masks[:, likely].mean() - masks[:, ~likely].mean())
        if contrast == 0:  # by chance
            check_mean(masks[:, likely].mean(1) - masks[:, ~likely].mean(1), 0.0)
    assert 0.05 < gaps[1] < gaps[2] and abs(gaps[0]) < 0.02
    if kind is RowSensitiveDropout and share < 0.5:  # with contrast 1 they are never dropped
        assert masks[:, likely].all()


@pytest.mark.parametrize("share", SHARES)
def test_every_block_row_keeps_the_same_number(share):
    masks, _, (rows, columns) = drawn(BlockSensitiveDropout, 0.45, share, 0.5, 50)
    counts = masks.reshape(-1, rows, columns).sum(2)
    assert (counts == counts[:, :1]).all() and set(counts[:, 0]) == {8, 9}  # of 15; 8.25 in the mean


@pytest.mark.parametrize("together", [1, 2, 5, 12])
def test_images_drop_the_same_positions_together(together):
    masks, _, _ = drawn(RowSensitiveDropout, 0.5, 0.3, 0.5, together=together)
    by_image = masks.reshape(len(masks), 12, 16)
    first = np.arange(12) // together * together
    np.testing.assert_array_equal(by_image, by_image[:, first])
    assert together == 12 or not (by_image[:, 0] == by_image[:, together]).all()


@pytest.mark.parametrize("together", [2, 5, 12])
def test_images_keep_the_same_blocks_together(together):
    """Of 12 images, each with 2 block rows of 15 blocks; every group draws others."""
    groups, rng, policy = -(-12 // together), np.random.default_rng(1), BlockSensitiveDropout(0.4, together=together)
    sensitive = np.random.default_rng(2).random((2 * groups, 15)) < 0.3
    masks = []
    for _ in range(200):
        plan = policy.choose_regions(sensitive, 12, (192, 45), (8, 3), rates_of(0.4, sensitive.mean(), 0.5), 1.0, 1.0, rng)
        assert plan.together == together
        masks.append(plan.mask()[::8, ::3].reshape(12, 2, 15))
    masks = np.array(masks)
    np.testing.assert_array_equal(masks, masks[:, np.arange(12) // together * together])
    check_mean(1 - masks.mean((1, 2, 3)), 0.4)
    assert not (masks[:, :, 0] == masks[:, :, 1]).all() and (together == 12 or not (masks[:, 0] == masks[:, together]).all())


def test_blocks_are_alike_where_images_go_abreast():
    """In convolutions with few channels, if blocks divide images; of each group of images the first is looked at."""
    model, rng = Sequential(network()), np.random.default_rng(3)
    X, _ = images(40)
    x = Tensor(np.ascontiguousarray(X.transpose(0, 2, 3, 1)))
    plan = chosen_for(BlockSensitiveDropout(0.5).calibrated(model, Tensor(X)), model, x, rng)
    positions = plan.shape[0] // 40
    own = plan.chosen.reshape(40, positions // plan.height, -1)
    assert plan.together == 16 and positions % plan.height == 0
    np.testing.assert_array_equal(own, own[np.arange(40) // 16 * 16])
    assert not np.array_equal(own[0], own[16])
    window = model.layers[0].window
    for blocky, channels, group in (
        (BlockSensitiveDropout(together=8), 16, 8),
        (BlockSensitiveDropout(), 17, 1),
        (BlockSensitiveDropout(rows=25), 3, 16),
        (BlockSensitiveDropout(rows=30), 3, 1),
        (BlockSensitiveDropout(together=1), 3, 1),
    ):
        assert blocky.group(100, window, channels) == group
        assert blocky.region(64, 100, window, channels)[0] == (blocky.rows or (500 if group == 1 else 100))


# --- looking at data --------------------------------------------------------------------------------------------------
def network(seed=0):
    return [
        Conv2d(2, 6, 3, padding=1, rng=seed),
        ReLU(),
        MaxPool2d(2),
        Conv2d(6, 8, 3, padding=1, rng=seed + 1),
        ReLU(),
        Flatten(),
        Linear(8 * 16, 3, rng=seed + 2),
    ]


def chosen_for(policy, model, x, rng):
    """The plan of the first convolution for images (N, H, W, C) that come to it."""
    site = (tree := Tree(model)).droppable("patches")[0]
    return policy.choose_from_flow(site, Flow(x, CHANNELS_LAST), tree.owners[site.path], rng)


def images(n=48, seed=0):
    """Bright strokes on nearly empty images, one way or the other, or none."""
    rng, y = np.random.default_rng(seed), np.arange(n) % 3
    X = np.float32(0.1 * rng.standard_normal((n, 2, 8, 8)))
    for i, label in enumerate(y):
        at = rng.integers(2, 6)
        X[i, :, at] += 2.0 * (label == 1)
        X[i, :, :, at] += 2.0 * (label == 2)
    return X, y


def fitted(dropout, X=None, y=None, **options):
    X, y = images() if X is None else (X, y)
    given = {"epochs": 3, "batch_size": 16, "random_state": 0, "learning_rate": 0.02, "dropout": dropout, **options}
    return Net(network(), **given).fit(X, y), X, y


@pytest.mark.parametrize("options, tolerance", [({}, 0.08), ({"sample": 1.0, "most": 2000}, 0.05)], ids=["few", "many"])
@pytest.mark.parametrize("wanted", [0.1, 0.3, 0.6, 0.9])
def test_thresholds_make_the_asked_share_sensitive(kind, wanted, options, tolerance):
    """In the mean over steps, as well as the values tell that were looked at: few of a region, or all."""
    X, _ = images(256 if kind is RowSensitiveDropout else 1024)  # of which one in 16 is looked at
    size = {} if kind is RowSensitiveDropout else {"rows": 64, "columns": 6}  # there are enough of them
    model, given, rng = Sequential(network()), kind(0.5, sensitive=wanted, **size, **options), np.random.default_rng(3)
    found = given.calibrated(model, Tensor(X))
    assert given.thresholds == {} and sorted(found.thresholds) == [0, 1] and found is not given
    x = Tensor(np.ascontiguousarray(X.transpose(0, 2, 3, 1)))
    for _ in range(60):
        chosen_for(found, model, x, rng)
    assert found.report()["sensitive"] == [pytest.approx(wanted, abs=tolerance), 0]
    assert found.report() == {"dropped": [0, 0], "sensitive": [0, 0]}  # since the last call


def test_given_thresholds_stay(kind):
    X, _ = images(16)
    found = kind(0.5, thresholds={1: 0.25}).calibrated(Sequential(network()), Tensor(X))
    assert found.thresholds[1] == 0.25 and found.thresholds[0] != 0.25


def test_what_is_bright_is_sensitive_and_kept(kind):
    """With the lower half of all images bright, and contrast 1, only the upper half is dropped."""
    x = np.zeros((8, 16, 16, 4), np.float32)
    x[:, 8:] = 1.0
    model = Sequential([Conv2d(4, 3, 1, rng=0), Flatten(), Linear(768, 2)])
    options = {} if kind is RowSensitiveDropout else {"rows": 128, "columns": 1}
    chosen = kind(0.4, contrast=1.0, thresholds={0: 1.0}, **options)
    plans = [chosen_for(chosen, model, Tensor(x), np.random.default_rng(seed)) for seed in range(30)]
    kept = np.mean([plan.mask().reshape(8, 2, 128, -1).mean((0, 2, 3)) for plan in plans], axis=0)
    if kind is RowSensitiveDropout:
        assert kept[1] == 1 and kept[0] == pytest.approx(0.2, abs=0.02)
    report = chosen.report()
    assert report["sensitive"] == [0.5] and report["dropped"][0] == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize(
    "shape, arguments, options",
    [
        ((3, 5, 5, 2), (2, 3, 3), {}),
        ((1, 3, 3, 2), (2, 3, 3), {}),
        ((7, 4, 9, 5), (5, 3, (2, 3)), {"stride": (1, 2), "padding": 1}),
        ((2, 20, 19, 1), (1, 3, 5), {}),
        ((2, 3, 3, 130), (130, 3, 1), {}),
        ((5, 6, 6, 6), (6, 4, 3), {"groups": 2}),
    ],
    ids=str,
)
def test_plans_fit_images_of_any_size(kind, shape, arguments, options):
    model = Sequential([layer := Conv2d(*arguments, **options, rng=0)])
    x, chosen = Tensor(np.random.default_rng(0).standard_normal(shape)), kind(0.5)
    plans = [chosen_for(chosen, model, x, np.random.default_rng(seed)) for seed in range(40)]
    if not chosen.fits(layer.sites()[1]):  # blocks of a convolution with groups: it is left out
        assert layer.groups == 2 and kind is BlockSensitiveDropout and plans == [None] * 40
        return
    assert {plan.shape[0] for plan in plans} == {rows := shape[0] * int(np.prod(layer.window.positions(*shape[1:3])))}
    if layer.groups == 1:
        assert layer(Tensor(x.numpy().transpose(0, 3, 1, 2)), {layer.sites()[1]: plans[0]}).shape[0] == shape[0]
    assert np.mean([plan.density for plan in plans]) == pytest.approx(0.5, abs=0.3 if rows == 1 else 0.15)


# --- training ---------------------------------------------------------------------------------------------------------
def test_a_fit_learns_records_and_keeps_its_policy(kind):
    given = kind(0.4)
    net, X, y = fitted(given, epochs=25)
    assert net.score(X, y) > 0.9 and net.history_[-1]["loss"] < net.history_[0]["loss"]
    assert given.thresholds == {} and sorted(net.policy_.thresholds) == [0, 1] and net.policy_.rate == 0.4
    for record in net.history_:
        assert len(record["dropped"]) == len(record["sensitive"]) == 2
        assert all(0 <= share <= 1 for share in record["sensitive"])
    dropped = np.mean([record["dropped"] for record in net.history_], axis=0)
    np.testing.assert_allclose(dropped, 0.4, atol=0.05)
    assert 0.5 < np.mean([record["flops_share"] for record in net.history_]) < 0.8


def test_prediction_is_not_dropped_and_a_pickle_predicts_the_same(kind):
    net, X, _ = fitted(kind(0.6))
    plain = net.model_(Tensor(X)).softmax().numpy()
    np.testing.assert_allclose(net.predict_proba(X), plain, rtol=1e-5, atol=1e-6)
    other = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(other.predict_proba(X), net.predict_proba(X))
    assert other.policy_.thresholds == net.policy_.thresholds and other.history_ == net.history_


def test_the_same_seed_gives_the_same_bits(kind):
    nets = [fitted(kind(0.5), random_state=seed)[0] for seed in (3, 3, 4)]
    states = [net.model_.state_dict() for net in nets]
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(np.array_equal(states[0][name], states[2][name]) for name in states[0])
    assert nets[0].policy_.thresholds == nets[1].policy_.thresholds


def test_rate_0_drops_nothing(kind):
    nets = [fitted(dropout)[0] for dropout in (kind(0.0), "none")]
    for ours, theirs in zip(*(net.model_.parameters() for net in nets), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert [record["flops_share"] for record in nets[0].history_] == [1, 1, 1]


def test_rates_by_layer(kind):
    net, *_ = fitted(kind((0.0, 0.5)))
    assert all(record["dropped"][0] == record["sensitive"][0] == 0 for record in net.history_)  # it is not looked at
    np.testing.assert_allclose(np.mean([record["dropped"][1] for record in net.history_]), 0.5, atol=0.1)
    with pytest.raises(ValueError, match="3 entries for 2 hidden layers"):
        fitted(kind((0.1, 0.2, 0.3)))


def test_a_schedule_sets_the_rate_of_each_epoch(kind):
    schedule = SkewNormalSchedule(0.4, 4)
    net, *_ = fitted(kind(schedule), epochs=4)
    asked = [schedule(epoch) for epoch in range(4)]
    np.testing.assert_allclose([record["dropout_rate"] for record in net.history_], asked)
    np.testing.assert_allclose([np.mean(record["dropped"]) for record in net.history_ if "dropped" in record], asked, atol=0.12)
    assert sorted(net.policy_.thresholds) == [0, 1]


def test_names_stand_for_the_policies(kind):
    assert type(policy(kind.name, 0.3)) is kind and policy(kind.name, 0.3).rate == 0.3
    net, X, _ = fitted(kind.name, dropout_rate=0.3, epochs=1)
    assert type(net.policy_) is kind and net.predict(X).shape == (48,)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": "rate"},
        {"sample": 1.0, "most": 1000},
        {"sample": 0.0},
        {"most": 1},
        {"contrast": 0.0},
        {"contrast": 1.0},
        {"votes": 0.0},
        {"votes": 1.0},
    ],
    ids=str,
)
def test_every_option_trains(kind, options):
    net, *_ = fitted(kind(0.5, **options), epochs=2)
    assert np.isfinite([record["loss"] for record in net.history_]).all()


@pytest.mark.parametrize("scale, expected", [("none", 1.0), ("rate", 2.5)])
def test_scale(kind, scale, expected):
    x = Tensor(np.ones((4, 8, 8, 2)))
    plan = chosen_for(kind(0.6, scale=scale), Sequential(network()), x, np.random.default_rng(0))
    assert plan.scale == pytest.approx(expected)


@pytest.mark.parametrize("layers", [(5,), [Linear(4, 5, rng=0), ReLU(), Linear(5, 2, rng=1)]], ids=["widths", "layers"])
def test_a_network_without_convolutions_is_refused(kind, layers):
    with pytest.raises(ValueError, match=f"{kind.name} is for convolutions, and the network has none"):
        Net(layers, dropout=kind(0.5)).fit(np.eye(20, 4), np.arange(20) % 2)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rate": 1.0}, "SensitiveDropout: rate must be"),
        ({"sample": 1.1}, "sample must be a number from 0 to 1, got 1.1"),
        ({"votes": -0.1}, "votes must be"),
        ({"sensitive": "many"}, "sensitive must be a number from 0 to 1, got 'many'"),
        ({"contrast": True}, "contrast must be a number"),
        ({"contrast": float("nan")}, "contrast must be"),
        ({"most": 0}, "most must be a positive integer, got 0"),
        ({"most": 1.5}, "most must be"),
        ({"scale": "pattern"}, "scale must be 'none' or 'rate', got 'pattern'"),
        ({"rows": 0}, "rows must be a positive integer, got 0"),
        ({"rows": 1.5}, "rows must be"),
    ],
)
def test_bad_arguments_are_named(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: RowSensitiveDropout(together=0), "together must be a positive integer, got 0"),
        (lambda: RowSensitiveDropout(tile=3), "tile must be None, 'auto', 2 or 4, got 3"),
        (lambda: RowSensitiveDropout(tile="4"), "tile must be"),
        (lambda: RowSensitiveDropout(tile=True), "tile must be"),
        (lambda: BlockSensitiveDropout(channels=1), "channels must be True or False, got 1"),
        (lambda: BlockSensitiveDropout(columns=-1), "columns must be a positive integer, got -1"),
        (lambda: BlockSensitiveDropout(together=0), "together must be a positive integer, got 0"),
    ],
)
def test_bad_arguments_of_one_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
