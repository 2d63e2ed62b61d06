"""Policies: every neuron and weight is dropped at the stated rate, masks change, layers are independent."""

import re

import numpy as np
import pytest
from scipy import stats

from numbanet import (
    GRU,
    BatchwiseDropout,
    BernoulliDropout,
    Conv2d,
    Dropout,
    DynamicSparseGraph,
    Flatten,
    Linear,
    Net,
    ReLU,
    RowDropout,
    Site,
    SparseLinear,
    TileDropout,
    WindowDropout,
)
from numbanet.dropout import POLICIES, EarlyDropout, SkewNormalSchedule, automatic, policy, recurrent
from numbanet.dropout.search import pattern_distribution

STEPS = 20_000
ROOT_OF_SHARE = float(pattern_distribution(0.6) @ np.arange(1, 4) ** -0.5)  # E[dp^(-1/2)] at the rate of `test_scale`
CONFIDENCE = 1 - 1e-4  # of each test as a whole: one false alarm in ten thousand runs with fresh seeds (the seeds are fixed)


def site(o, i, number=0):
    return Site("output", "output", (o, i), number=number)


def check_frequencies(masks, rate):
    """The drop frequency of every unit is `rate`: two-sided, at CONFIDENCE over all units together (Bonferroni)."""
    dropped = len(masks) - masks.sum(0)
    bound = stats.norm.isf((1 - CONFIDENCE) / 2 / dropped.size) * np.sqrt(rate * (1 - rate) / len(masks))
    worst = np.abs(dropped / len(masks) - rate).max()
    assert worst <= bound, f"a unit is dropped {worst:.4f} more or less often than {rate}; {bound:.4f} would be chance"


@pytest.mark.parametrize("kind", [RowDropout, BatchwiseDropout, WindowDropout])
@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7])
def test_every_neuron_is_dropped_at_the_rate(rate, kind):
    rng, rows = np.random.default_rng(1), kind(rate)
    check_frequencies(np.array([rows.plan(site(50, 9), rng).mask() for _ in range(STEPS)]), rate)


def test_conventional_dropout_keeps_the_mean_of_activations():
    plan = BernoulliDropout((0.3, 0.8)).plan(site(500, 9, 1), np.random.default_rng(6))
    assert (plan.rate, plan.scale) == (0.8, pytest.approx(5.0))


def test_batchwise_keeps_equally_many_of_any_neurons():
    rng, drawn = np.random.default_rng(7), BatchwiseDropout((0.5, 0.9))
    plans = [drawn.plan(site(6, 9), rng) for _ in range(STEPS)]
    assert {(plan.count, plan.scale) for plan in plans} == {(3, 2.0)} and len(set(plans)) == 20  # 6 over 3
    assert drawn.plan(site(4, 9, 1), rng).count == 1 and "3 of the 4 neurons" in drawn.caution(site(4, 9, 1))
    assert drawn.caution(site(6, 9)) is None and BatchwiseDropout(0.0).plan(site(6, 9), rng) is None


def test_a_window_meets_its_rate_in_the_mean_and_keeps_neighbours():
    rng, drawn = np.random.default_rng(8), WindowDropout(0.25)
    plans = [drawn.plan(site(6, 9), rng) for _ in range(STEPS)]  # 4.5 of 6 are kept
    assert {(plan.count, plan.scale) for plan in plans} == {(4, 1.5), (5, 1.2)} and len(set(plans)) == 2 * 6
    assert abs(np.mean([plan.count for plan in plans]) - 4.5) < 3 * 0.5 / np.sqrt(STEPS)
    for plan in set(plans):
        mask = plan.mask()
        assert np.count_nonzero(mask != np.roll(mask, 1)) == 2  # one run, around the end
    assert WindowDropout(0.0).plan(site(6, 9), rng) is None and WindowDropout(0.5).caution(site(6, 9)) is None


@pytest.mark.parametrize("rate, counts", [(0.5, {40}), (0.3, {56}), (0.35, {48, 56}), (0.9, {8})])
def test_aligned_windows_start_and_end_at_multiples(rate, counts):
    drawn, rng = WindowDropout(rate, align=8), np.random.default_rng(5)
    plans = [drawn.plan(site(80, 9), rng) for _ in range(STEPS)]
    assert all(plan.start % 8 == plan.count % 8 == 0 and plan.scale == 80 / plan.count for plan in plans)
    assert {plan.count for plan in plans} == counts
    check_frequencies(np.array([plan.mask() for plan in plans]), rate)


@pytest.mark.parametrize("n, rate", [(84, 0.5), (16, 0.7), (7, 0.5)])
def test_windows_that_cannot_be_aligned_exactly_are_not(n, rate):
    """The width is no multiple, or fewer neurons are kept."""
    plans = [WindowDropout(rate, align=8).plan(site(n, 9), rng) for rng in map(np.random.default_rng, range(60))]
    others = [WindowDropout(rate).plan(site(n, 9), rng) for rng in map(np.random.default_rng, range(60))]
    assert plans == others and any(plan.start % 8 for plan in plans)


@pytest.mark.parametrize("n, align", [(4096, 32), (2048, 16), (1024, 8), (1040, 8), (1028, 1), (512, 1)])
def test_by_default_windows_of_wide_layers_are_aligned_and_many(n, align):
    drawn, rng = WindowDropout(0.7), np.random.default_rng(5)
    plans = [drawn.plan(site(n, 9), rng) for _ in range(STEPS)]
    assert np.gcd.reduce([number for plan in plans for number in (plan.start, plan.count)]) == align == drawn.step(site(n, 9))
    assert len({plan.start for plan in plans}) >= 128
    check_frequencies(np.array([plan.mask() for plan in plans]), 0.7)


@pytest.mark.parametrize("align", [0, -3, 2.0, "32"])
def test_invalid_alignments_are_refused(align):
    with pytest.raises(ValueError, match=f"window: align must be a positive integer, got {align!r}"):
        WindowDropout(0.5, align=align)
    assert "2 neurons keeps at least one neuron" in WindowDropout(0.9).caution(site(2, 9))


@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_every_tile_is_dropped_at_the_rate(rate):
    rng, tiles = np.random.default_rng(2), TileDropout(rate, tile=2)
    check_frequencies(np.array([tiles.plan(site(10, 14), rng).tile_mask().ravel() for _ in range(STEPS)]), rate)


def test_the_check_itself_finds_a_wrong_rate():
    rng, rows = np.random.default_rng(1), RowDropout(0.5)
    with pytest.raises(AssertionError, match="more or less often"):
        check_frequencies(np.array([rows.plan(site(50, 9), rng).mask() for _ in range(STEPS)]), 0.52)


@pytest.mark.parametrize("name", ["rdp", "tdp"])
def test_layers_draw_independently(name):
    rng, drawn = np.random.default_rng(3), {"rdp": RowDropout, "tdp": TileDropout}[name](0.5, dp_max=8)
    pairs = np.array([[drawn.plan(site(64, 64, layer), rng).dp for layer in (0, 1)] for _ in range(STEPS)])
    table = np.array([[np.sum((pairs[:, 0] == i) & (pairs[:, 1] == j)) for j in range(1, 9)] for i in range(1, 9)])
    assert stats.chi2_contingency(table).pvalue > 1 - CONFIDENCE


@pytest.mark.parametrize("name", ["rdp", "tdp"])
def test_masks_change_from_step_to_step(name):
    rng, drawn = np.random.default_rng(4), {"rdp": RowDropout, "tdp": TileDropout}[name](0.5, dp_max=8)
    plans = [drawn.plan(site(64, 64), rng) for _ in range(10_000)]
    # two steps are alike with probability sum_dp d(dp)^2 / dp, at most 0.3 here; dense steps (dp = 1) among them
    assert np.mean([a == b for a, b in zip(plans, plans[1:])]) < 0.3
    assert len(set(plans)) == (sum(range(1, 9)) if name == "rdp" else 1 + 4 * sum(range(2, 9)))


def test_the_same_seed_gives_the_same_plans():
    for name in POLICIES:
        drawn = [
            [policy(name, 0.5).plan(site(64, 32), rng) for _ in range(5)]
            for rng in (np.random.default_rng(5), np.random.default_rng(5))
        ]
        assert drawn[0] == drawn[1]


@pytest.mark.parametrize("name, expected", [("none", [1, 1, 1]), ("bernoulli", [1, 0.7, 0.4]), ("batchwise", [1, 0.7, 0.4])])
def test_keeps_of_conventional_dropout(name, expected):
    assert policy(name, (0.3, 0.6)).variance_factors(2) == pytest.approx(expected)


@pytest.mark.parametrize("scale", ["rate", "root", "pattern"])
def test_keeps_is_what_of_the_mean_square_was_there_before(scale):
    rows, rng = RowDropout((0.0, 0.6), dp_max=8, scale=scale), np.random.default_rng(8)
    squares = [plan.scale**2 * plan.mask().mean() for plan in (rows.plan(site(840, 1, 1), rng) for _ in range(STEPS))]
    share = pytest.approx(1 / np.mean(squares), rel=0.03)
    assert rows.variance_factors(2) == [1, 1, share]
    assert TileDropout((0.0, 0.6), dp_max=8, scale=scale).variance_factors(2) == [1, share, 1]


def test_a_policy_of_ones_own_leaves_initial_weights_alone():
    class Mine(Dropout):
        name = "mine"

        def plan(self, site, rng):
            return None

    assert Mine().variance_factors(2) == [1, 1, 1]


@pytest.mark.parametrize(
    "scale, expected",
    [
        ("rate", lambda plan, rate: 1 / (1 - rate)),
        ("root", lambda plan, rate: np.sqrt(plan.dp) / ROOT_OF_SHARE),
        ("pattern", lambda plan, rate: plan.dp),
    ],
)
@pytest.mark.parametrize("kind", [RowDropout, TileDropout])
def test_scale(kind, scale, expected):
    rng, drawn = np.random.default_rng(6), kind(0.6, scale=scale)
    for _ in range(20):
        plan = drawn.plan(site(64, 64), rng)
        assert plan.scale == pytest.approx(expected(plan, 0.6))
    assert (RowDropout().scale, TileDropout().scale) == ("root", "pattern")


def test_all_scales_leave_the_mean_as_it_is():
    for scale in ("rate", "root", "pattern"):
        rng, drawn = np.random.default_rng(7), RowDropout(0.5, scale=scale)
        plans = [drawn.plan(site(40, 1), rng) for _ in range(STEPS)]
        kept = np.array([plan.scale * plan.mask() for plan in plans])
        error = kept.std(0) / np.sqrt(STEPS) * stats.norm.isf((1 - CONFIDENCE) / 2 / 40)
        assert (np.abs(kept.mean(0) - 1) <= error).all()


def test_rates_by_layer():
    rng, drawn = np.random.default_rng(8), RowDropout((0.0, 0.5))
    assert drawn.plan(site(64, 64), rng) is None and drawn.plan(site(64, 64, 1), rng) is not None
    drawn.check(2)
    with pytest.raises(ValueError, match="2 entries for 3 hidden layers"):
        drawn.check(3)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: policy("dropconnect"), "'dropconnect'.*'none', 'bernoulli', 'rdp', 'tdp'"),
        (lambda: policy("rdp", 1.0), r"dropout_rate.*\[0, 1\).*1.0"),
        (lambda: policy("rdp", float("nan")), "dropout_rate"),
        (lambda: policy("rdp", "half"), "dropout_rate"),
        (lambda: policy("bernoulli", ()), "empty"),
        (lambda: policy("rdp", np.array(0.5)), "dropout_rate"),
        (lambda: RowDropout(1.0), r"^RowDropout: rate must be a number in \[0, 1\).*got 1.0"),
        (lambda: automatic(None, 1.0), r"^dropout_rate must be a number in \[0, 1\).*got 1.0"),
        (lambda: policy("rdp", (0.5, -0.1)), "dropout_rate"),
        (lambda: RowDropout(0.9, dp_max=4), "dp_max"),
        (lambda: RowDropout(0.5, scale="none"), "scale"),
        (lambda: RowDropout(0.5, search="random"), "'random'"),
        (lambda: TileDropout(0.5, tile=0), "tile"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_high_rates_work_by_default_and_objects_show_what_they_are():
    assert RowDropout(0.95).plan(site(64, 64), np.random.default_rng(0)).dp >= 1
    assert repr(BernoulliDropout(0.3)) == "BernoulliDropout(rate=0.3)"
    assert policy(RowDropout(0.2), 0.9).rate == 0.2


@pytest.mark.parametrize(
    "chosen, shape, message",
    [
        (TileDropout(0.5), (16, 64), r"\(16, 64\) has 2 tiles of 32 x 32"),
        (TileDropout(0.5), (16, 16), "has 1 tile of 32 x 32"),
        (RowDropout(0.5), (2, 64), "2 neurons is too narrow"),
        (TileDropout(0.5, tile=8), (16, 64), None),
        (RowDropout(0.5), (16, 64), None),
        (TileDropout(0.0), (16, 16), None),
        (RowDropout((0.0, 0.5)), (2, 64), None),
        (BernoulliDropout(0.5), (1, 1), None),
    ],
)
def test_layers_too_small_for_a_pattern_are_a_concern(chosen, shape, message):
    said = chosen.caution(site(*shape))
    assert said is None if message is None else re.search(message, said)


def test_a_fit_says_its_concerns_once_at_the_users_line():
    with pytest.warns(UserWarning, match="1 tile of") as said:
        Net((32,), dropout="tdp", epochs=9, random_state=0).fit(np.tile(np.eye(2, 5), (10, 1)), np.arange(20) % 2)
    assert len(said) == 1 and said[0].filename == __file__


@pytest.mark.parametrize(
    "given, message",
    [
        ("rpd", r"'rpd'; did you mean 'rdp'\? Choose one of 'none'"),
        ("RDP", "did you mean 'rdp'"),
        ("autom", "did you mean 'auto'"),
        (0.5, r"it is a rate: dropout='window', dropout_rate=0\.5"),
        (EarlyDropout(0.5), "it is a rate: .*dropout_rate=EarlyDropout"),
        ([], "choose one of 'none'"),
        (True, "no dropout True; choose"),
        (1.5, "no dropout 1.5; choose"),
        (EarlyDropout, "EarlyDropout'>; choose"),
    ],
)
def test_what_is_no_kind_says_what_was_meant(given, message):
    with pytest.raises(ValueError, match=message):
        policy(given)


@pytest.mark.parametrize(
    "rate, message",
    [
        (EarlyDropout, r"^dropout_rate: EarlyDropout is a class; give an object of it"),
        ([0.1, SkewNormalSchedule], r"^dropout_rate: SkewNormalSchedule is a class; give an object of it"),
        (lambda: 0.5, r"^dropout_rate: <function .* must take one argument, the epoch, counted from 0 \("),
    ],
    ids=["class", "class of a sequence", "no argument"],
)
def test_a_function_that_gives_no_rate_of_an_epoch_is_refused(rate, message):
    with pytest.raises(TypeError, match=message):
        policy("rdp", rate)
    with pytest.raises(TypeError, match=message.replace("dropout_rate", "RowDropout: rate")):
        RowDropout(rate)


# --- layers that do not support the plans of a kind -------------------------------------------------------------------
def grouped(whole):
    """Layers of which the second convolution has groups; the first and a linear one, if `whole`, are as others."""
    first = [Conv2d(4, 8, 3, padding=1, rng=0), ReLU()] if whole else []
    last = [Linear(8 * 36, 40, rng=2), ReLU(), Linear(40, 3, rng=3)] if whole else [Linear(8 * 36, 3, rng=2)]
    return [*first, Conv2d(8 if whole else 4, 8, 3, padding=1, groups=4, rng=1), ReLU(), Flatten(), *last]


@pytest.mark.parametrize("kind", ["rdp", "window", "batchwise", "bsdp", "dsg"])
def test_layers_that_a_kind_cannot_drop_are_left_out_with_a_warning(kind, rng):
    """Convolutions with groups: they are computed as without dropout, and other layers drop."""
    X, y, said = rng.standard_normal((32, 4, 6, 6)).astype(np.float32), np.arange(32) % 3, "; kinds that work there: "
    message = rf"{kind}: nothing is dropped in 2 \(Conv2d\(8, 8, 3, padding=1, groups=4\)\){said}'bernoulli', 'rsdp'$"
    net = Net(grouped(True), dropout=kind, epochs=1, batch_size=16, random_state=0)
    with pytest.warns(UserWarning, match=message):
        net.fit(X, y)
    assert net.history_[-1]["dropout_rate"] < 0.5
    if kind == "bsdp":  # the entries are those of the convolutions, also of the one that is left out
        (first, second), (_, sensitive) = net.history_[-1]["dropped"], net.history_[-1]["sensitive"]
        assert first > 0 and second == sensitive == 0
    rows = [line.split() for line in str(net.model_).splitlines()]
    assert {row[0]: kind in row for row in rows if "Conv2d" in str(row)} == {"0": True, "2": False}
    assert net.history_[-1]["flops_share"] < 1 and np.isfinite(net.history_[-1]["loss"])
    with pytest.warns(UserWarning, match=rf"{kind}: nothing is dropped in 0 \(Conv2d\(4, .*{said}"):
        alone = Net(grouped(False), dropout=kind, epochs=1, random_state=0).fit(X, y)
    assert alone.history_[-1]["flops_share"] == 1
    without = Net(grouped(False), epochs=1, random_state=0).fit(X, y)
    np.testing.assert_array_equal(alone.predict_proba(X), without.predict_proba(X))


def test_layers_that_a_kind_can_drop_are_not_warned_of():
    from numbanet import Sequential

    for kind in ("bernoulli", "rsdp"):
        assert policy(kind, 0.5).cautions(Sequential(grouped(True))) == []
    assert policy("rdp", (0.5, 0.0, 0.5)).cautions(Sequential(grouped(True))) == []  # nothing is to be dropped there
    net = Net(grouped(True), dropout=DynamicSparseGraph(0.5, share="sample"), epochs=1)
    with pytest.raises(ValueError, match="dsg: .* for a whole batch; use share='batch'"):
        net.fit(np.zeros((9, 4, 6, 6), np.float32), np.arange(9) % 3)
    sparse = Sequential([SparseLinear(64, 64, density=0.2, rng=0), ReLU(), Linear(64, 64, rng=1), ReLU(), Linear(64, 9, rng=2)])
    left = [said for said in TileDropout(0.5, tile=8).cautions(sparse) if "nothing" in said]
    assert len(left) == 1 and left[0].startswith("tdp: nothing is dropped in 0 (SparseLinear(64, 64")
    assert left[0].endswith("; kinds that work there: 'bernoulli', 'rdp', 'batchwise', 'window'")


def test_a_kind_that_is_left_out_is_none_of_those_that_work():
    """A GRU takes row patterns for a whole sequence, but none that differ between time steps."""
    from numbanet import Sequential

    model = Sequential([GRU(8, 16, rng=0), Linear(16, 2, rng=1)])
    (said,) = recurrent(RowDropout(0.5), steps=3).cautions(model)
    assert said == "rdp: nothing is dropped in 0 (GRU(8, 16)); kinds that work there: 'batchwise', 'window'"
    assert recurrent(RowDropout(0.5)).cautions(model) == []


@pytest.mark.parametrize("draws", [False, True])
def test_layers_that_let_no_policy_choose_are_named(draws):
    """A recurrent layer takes a plan that is drawn before the pass, and asks for none during it."""
    from numbanet import Dropout, IndexPlan, Sequential

    class Choosing(Dropout):
        name, data_dependent, makes = "choosing", True, IndexPlan

        def plan(self, site, rng):
            return IndexPlan(16, np.arange(8)) if draws and not site.chosen else None

        def choose(self, site, x, w, rng):
            return IndexPlan(8, np.arange(4))

    model = Sequential([GRU(8, 16, rng=0), Linear(16, 8, rng=1), ReLU(), Linear(8, 2, rng=2)])
    kinds = "'bernoulli', 'rdp', 'tdp', 'batchwise', 'window'"
    said = f"choosing: nothing is dropped in 0 (GRU(8, 16)); kinds that work there: {kinds}"
    assert Choosing(0.5).cautions(model) == ([] if draws else [said])
    assert Choosing((0.0, 0.5)).cautions(model) == []


def test_a_layer_that_no_kind_can_drop_is_named():
    from numbanet import Sequential

    class Closed(Linear):
        def sites(self):
            return tuple(site._replace(takes=()) for site in super().sites())

    model = Sequential([Closed(4, 8, rng=0), ReLU(), Linear(8, 8, rng=1), ReLU(), Linear(8, 2, rng=2)])
    assert any(said.endswith("kinds that work there: none") for said in RowDropout(0.5).cautions(model))
