"""Dropout rates that change with the epoch: their mean and shape, and that every policy trains with them."""

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats
from sklearn.base import clone

from numbanet import (
    BatchwiseDropout,
    BernoulliDropout,
    ConstantSchedule,
    Dropout,
    EarlyDropout,
    IndexPlan,
    LateDropout,
    Net,
    RowDropout,
    Site,
    SkewNormalSchedule,
    TileDropout,
    WindowDropout,
)
from numbanet.datasets import load_digits
from numbanet.dropout import POLICIES, policy
from numbanet.dropout.schedule import mean
from numbanet.training import loop, recovery

X, Y, _, _ = load_digits()
X, Y = X[:384], Y[:384]  # three steps an epoch
SMALL = {"layers": (24, 16), "batch_size": 128, "random_state": 0, "device": "cpu"}
RISING = (0.0, 0.3, 0.6, 0.2)


class LoudDropout(Dropout):
    """Chosen in the step: the neurons with the largest weights stay."""

    name, data_dependent = "loud", True

    def plan(self, site, rng):
        return None

    def choose(self, site, x, w, rng):
        size = np.abs(w.numpy()).sum(1)
        count = max(1, round(len(size) * (1 - self.rate_of(site))))
        return IndexPlan(len(size), np.sort(np.argsort(size)[-count:]), len(size) / count)


KINDS = {
    "none": POLICIES["none"],
    "bernoulli": BernoulliDropout,
    "rdp": RowDropout,
    "batchwise": BatchwiseDropout,
    "window": WindowDropout,
    "tdp": lambda rate: TileDropout(rate, tile=2),
    "looking": LoudDropout,
}


def fitted(dropout, epochs=4, **options):
    return Net(**{**SMALL, "epochs": epochs, "dropout": dropout, **options}).fit(X, Y)


def weights(net):
    return [p.numpy().copy() for p in net.model_.parameters()]


def same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(weights(ours), weights(theirs), strict=True))


def rates(net):
    return [record["dropout_rate"] for record in net.history_]


# --- the schedule itself ----------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=200)
@given(
    rate=st.floats(0, 0.99, allow_subnormal=False),
    epochs=st.integers(1, 300),
    skew=st.floats(-6, 6),
    centre=st.floats(0.3, 0.7),
    spread=st.floats(0.15, 2),
    room=st.floats(0, 1),
)
def test_the_mean_is_the_rate_and_no_epoch_is_above_the_ceiling(rate, epochs, skew, centre, spread, room):
    ceiling = max(rate, min(rate + room * (1 - rate), 0.995))
    schedule = SkewNormalSchedule(rate, epochs, skew, centre, spread, ceiling)
    found = np.array(schedule.rates)
    assert abs(np.longdouble(found).mean() - rate) <= 8 * np.finfo(float).eps * max(rate, ceiling)
    assert (found >= 0).all() and (found <= ceiling).all() and len(found) == epochs
    slopes = np.sign(np.round(np.diff(found), 12))
    assert (np.diff(slopes[slopes != 0]) <= 0).all()  # it rises, then falls: one peak, or one plateau


def test_a_narrow_peak_needs_no_warning():
    with warnings.catch_warnings(action="error"):
        found = SkewNormalSchedule(0.5, 100, spread=0.01).rates
    assert np.mean(found) == pytest.approx(0.5)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.6, 0.7, 0.9])
@pytest.mark.parametrize("epochs", [10, 20, 300])
def test_rates_are_low_at_first_rise_more_slowly_than_they_fall_and_are_low_at_the_end(rate, epochs):
    schedule = SkewNormalSchedule(rate, epochs)
    found = np.array(schedule.rates)
    assert max(found[0], found[-1]) < (0.45 if rate <= 0.6 else 0.9) * rate < rate < found.max() <= (1 + rate) / 2
    peak = found.argmax()
    assert (np.diff(found[: peak + 1]) > 0).all() and (np.diff(found[peak:]) <= 0).all()
    rising, falling = (np.diff(found) > 0).sum(), (np.diff(found) < 0).sum()
    assert rising > falling if rate <= 0.6 else rising >= falling  # where more is cut off, few epochs are left to see it
    assert [schedule(epoch) for epoch in range(epochs)] == list(schedule.rates)
    assert schedule(epochs) == schedule(10 * epochs) == found[-1]


@pytest.mark.parametrize("skew", [-3.0, 0.0, 1.5])
def test_rates_have_the_expectation_deviation_and_skewness_asked_for(skew):
    """Equations 4 to 6 turned around: moments of the rates, taken as the probabilities of the epochs."""
    found, y = np.array(SkewNormalSchedule(0.01, 5000, skew, 0.45, 0.06).rates), (np.arange(5000) + 0.5) / 5000
    share = found / found.sum()
    centre = share @ y
    assert centre == pytest.approx(0.45, abs=1e-6) and share @ (y - centre) ** 2 == pytest.approx(0.06**2, rel=1e-4)
    expected = float(stats.skewnorm.stats(skew, moments="s"))
    assert share @ (y - centre) ** 3 / 0.06**3 == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_what_the_ceiling_cuts_off_is_given_to_the_others_in_proportion():
    free, cut = (np.array(SkewNormalSchedule(0.4, 30, ceiling=ceiling).rates) for ceiling in (0.99, 0.5))
    below = cut < 0.5
    assert 0 < below.sum() < 30 and free.max() > 0.5
    np.testing.assert_allclose(cut[below] / free[below], (cut[below] / free[below])[0], rtol=1e-12)
    assert (cut[below] > free[below]).all() and (cut[~below] == 0.5).all()
    np.testing.assert_allclose(SkewNormalSchedule(0.4, 30, ceiling=0.4).rates, 0.4, rtol=1e-13)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SkewNormalSchedule(1.0, 20), r"rate must be a number in \[0, 1\); got 1.0"),
        (lambda: SkewNormalSchedule("half", 20), "rate must be"),
        (lambda: SkewNormalSchedule(True, 20), "rate must be"),
        (lambda: SkewNormalSchedule(float("nan"), 20), "rate must be"),
        (lambda: SkewNormalSchedule(0.5, 0), "epochs must be an integer of at least 1; got 0"),
        (lambda: SkewNormalSchedule(0.5, 2.5), "epochs must be"),
        (lambda: SkewNormalSchedule(0.5, True), "epochs must be"),
        (lambda: SkewNormalSchedule(0.5, 20, skew=float("inf")), "skew must be a finite number"),
        (lambda: SkewNormalSchedule(0.5, 20, centre=1.5), "centre must be"),
        (lambda: SkewNormalSchedule(0.5, 20, spread=0), "spread must be"),
        (lambda: SkewNormalSchedule(0.5, 20, spread="wide"), "spread must be"),
        (lambda: SkewNormalSchedule(0.5, 20, ceiling=0.4), "ceiling must be .*at least the mean rate, 0.5; got 0.4"),
        (lambda: SkewNormalSchedule(0.5, 20, ceiling=1.0), "ceiling must be"),
        (lambda: SkewNormalSchedule(0.6, 20, spread=1e-9), "0.6 under the ceiling 0.8.* 20 of 20 epochs; take a larger spread"),
        (lambda: SkewNormalSchedule(0.9, 20, skew=1e9), "3 of 20 epochs; .*skew nearer to 0, a higher ceiling or a lower rate"),
        (lambda: ConstantSchedule(-0.1), "ConstantSchedule: rate"),
        (lambda: RowDropout(lambda epoch: epoch / 2).at(2), r"gave 1.0 for epoch 2, counted from 0; .*\[0, 1\)"),
        (lambda: BernoulliDropout((0.2, lambda epoch: None)).at(7), "gave None for epoch 7"),
        (lambda: BernoulliDropout(lambda epoch: True).at(0), "gave True for epoch 0"),
        (lambda: RowDropout((0.5, "low")), r"\[0, 1\) or a function .* got \(0.5, 'low'\)"),
        (lambda: TileDropout(RISING.__getitem__, dp_max=2).at(2), "rate 0.6 is out of reach with dp_max=2"),
        (
            lambda: RowDropout(RISING.__getitem__).plan(Site("output", "output", (9, 9), number=0), np.random.default_rng(0)),
            r"depends on the epoch; use the policy of an epoch, policy.at\(epoch\)",
        ),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_schedule_shows_what_it_is_and_survives_pickling_and_cloning():
    schedule = SkewNormalSchedule(0.6, epochs=3, skew=-4.0)
    assert eval(repr(schedule)) == schedule and "skew=-4.0" in repr(RowDropout(schedule))
    assert (again := pickle.loads(pickle.dumps(schedule))) == schedule and again.rates == schedule.rates
    net = Net(**SMALL, epochs=3, dropout="rdp", dropout_rate=schedule)
    assert clone(net).get_params()["dropout_rate"] == schedule and "SkewNormalSchedule" in repr(net)
    other = SkewNormalSchedule(0.3, epochs=3)
    assert rates(clone(net).set_params(dropout_rate=other).fit(X, Y)) == list(other.rates)
    assert same(pickle.loads(pickle.dumps(net.fit(X, Y))).partial_fit(X, Y), net.partial_fit(X, Y))


@pytest.mark.parametrize(
    "given", [{"dropout_rate": SkewNormalSchedule(0.5, 2)}, {"dropout_rate": (0.3, SkewNormalSchedule(0.5, 2))}]
)
def test_a_schedule_that_ends_before_the_fit_is_warned_of(given):
    message = r"SkewNormalSchedule: epochs=2, and the fit has 3, .* the last rate, 0\.58, .*: make it with epochs=3$"
    with pytest.warns(UserWarning, match=message) as caught:
        net = Net(**SMALL, epochs=3, dropout="rdp", **given).fit(X, Y)
    assert sum("Schedule" in str(one.message) for one in caught) == 1 and rates(net)[1] == rates(net)[2]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "SkewNormalSchedule")
        net.partial_fit(X, Y)  # the docstring says that the schedule keeps its last rate
        net.set_params(epochs=2).fit(X, Y)


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (EarlyDropout(0.5), [0.5, 0.5, 0.5, 0.0]),
        (EarlyDropout(0.5, 0.0), [0.0] * 4),
        (EarlyDropout(0.5, epochs=2), [0.5, 0.0, 0.0, 0.0]),
        (EarlyDropout(0.5, epochs=1), [0.0] * 4),
        (EarlyDropout(0.5, 0.1), [0.5, 0.0, 0.0, 0.0]),
        (LateDropout(0.5, 0.99), [0.0, 0.0, 0.0, 0.5]),
        (EarlyDropout(0.5, 1.0), [0.5] * 4),
        (EarlyDropout(0.5, until=0.25, epochs=8), [0.5, 0.5, 0.0, 0.0]),
        (LateDropout(0.5), [0.0, 0.5, 0.5, 0.5]),
        (LateDropout(0.5, since=0.5), [0.0, 0.0, 0.5, 0.5]),
    ],
    ids=str,
)
def test_dropout_in_a_part_of_a_fit(schedule, expected):
    net = fitted("rdp", dropout_rate=schedule)
    assert rates(net) == expected and len(expected) == net.n_iter_
    assert all((record["flops_share"] == 1) == (rate == 0) for record, rate in zip(net.history_, expected) if rate == 0)
    assert rates(net.partial_fit(X, Y))[-1] == expected[-1]
    assert eval(repr(schedule)) == schedule and pickle.loads(pickle.dumps(schedule)) == schedule
    assert schedule.over(4).over(8) == schedule.over(4)


def test_a_part_of_a_fit_needs_a_fit():
    with pytest.raises(ValueError, match=r"EarlyDropout\(.* is a share of the epochs of a fit: give epochs="):
        EarlyDropout(0.5)(0)
    with pytest.raises(ValueError, match="until must be a share of the epochs, a number in \\[0, 1\\]; got 3"):
        EarlyDropout(0.5, until=3)
    with pytest.raises(ValueError, match="LateDropout: rate must be a number"):
        LateDropout(1.5)
    with pytest.raises(ValueError, match="epochs must be None or an integer of at least 1; got 0"):
        LateDropout(0.5, epochs=0)


def test_weights_are_made_for_the_mean_over_the_parts_of_a_fit():
    assert policy("rdp", (EarlyDropout(0.6), 0.2)).over(4).at_mean_rate(4).rate == pytest.approx((0.45, 0.2))


# --- policies ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["rdp", "tdp"])
def test_plans_have_the_rate_of_their_epoch_in_the_mean(name):
    schedule, site, rng = SkewNormalSchedule(0.6, 6), Site("output", "output", (420, 420), number=0), np.random.default_rng(0)
    made = (RowDropout if name == "rdp" else TileDropout)(schedule, **({} if name == "rdp" else {"tile": 1}))
    for epoch, rate in enumerate(schedule.rates):
        now = made.at(epoch)
        periods = np.array([now.plan(site, rng).dp for _ in range(4000)])
        dropped = 1 - 1 / periods
        assert now.rate == rate and abs(np.mean(dropped) - rate) < 4.5 * np.std(dropped) / np.sqrt(4000)
        assert periods.max() == now.periods(site) == RowDropout(rate).periods(site)


def test_bernoulli_plans_have_the_rate_of_their_epoch():
    site = Site("output", "output", (9, 9), number=0)
    plans = [BernoulliDropout(RISING.__getitem__).at(epoch).plan(site, np.random.default_rng(0)) for epoch in range(4)]
    assert plans[0] is None and [plan.rate for plan in plans[1:]] == [0.3, 0.6, 0.2]


@pytest.mark.parametrize("name", KINDS)
def test_every_policy_trains_with_a_schedule_also_where_a_rate_is_0(name):
    net = fitted(KINDS[name](RISING.__getitem__), learning_rate=0.05)  # which knows no fifth epoch
    assert rates(net) == ([0.0] * 4 if name == "none" else list(RISING))
    assert net.history_[-1]["loss"] < net.history_[0]["loss"] - 0.03
    shares = [record["flops_share"] for record in net.history_]
    assert shares[0] == 1 and (
        shares[2] < 0.8 if name in ("rdp", "tdp", "batchwise", "window", "looking") else set(shares) == {1.0}
    )


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rate", [0.1, (0.0, 0.6)], ids=str)
def test_a_constant_schedule_trains_what_the_number_trains(name, rate):
    several = isinstance(rate, tuple)
    schedule = tuple(map(ConstantSchedule, rate)) if several else ConstantSchedule(rate)
    plain, ours = (fitted(KINDS[name](given), epochs=7) for given in (rate, schedule))
    assert same(plain, ours) and rates(plain) == rates(ours)
    assert rates(plain) == [0.0 if name == "none" else 0.3 if several else 0.1] * 7


def test_rates_by_layer_and_epoch():
    net = fitted("rdp", dropout_rate=(0.0, SkewNormalSchedule(0.4, 4)))
    assert rates(net) == pytest.approx([rate / 2 for rate in SkewNormalSchedule(0.4, 4).rates])
    with pytest.raises(ValueError, match="3 entries for 2 hidden layers"):
        net.fit(X, Y, dropout_rate=(0.0, 0.0, ConstantSchedule(0.1)))


def test_initial_weights_are_made_for_the_mean_rate():
    for name in ("bernoulli", "rdp", "tdp"):
        made = policy(name, (SkewNormalSchedule(0.6, 20), 0.3)).at_mean_rate(20)
        assert made.rate == pytest.approx((0.6, 0.3))
        assert made.variance_factors(2) == pytest.approx(policy(name, (0.6, 0.3)).variance_factors(2))
    net = Net((300,), dropout="bernoulli", dropout_rate=(0.9, 0.7).__getitem__, learning_rate=1e-12, epochs=2).fit(X, Y)
    assert weights(net)[2].var() == pytest.approx(0.2 * 2 / (300 + 10), rel=0.1)


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1), st.integers(1, 50))
def test_the_mean_of_equal_rates_is_the_rate(rates, count):
    assert mean([rates[0]] * count) == rates[0] and mean(rates) == pytest.approx(np.mean(rates), abs=1e-15)


def test_a_concern_of_a_single_epoch_is_said_once():
    with pytest.warns(UserWarning, match="rdp: a layer of 4 neurons is too narrow") as said:
        fitted(RowDropout((0.2, 0.9, 0.9, 0.2).__getitem__), layers=(4,))
    assert len([warning for warning in said if "too narrow" in str(warning.message)]) == 1


# --- training ---------------------------------------------------------------------------------------------------------
class Watch(RowDropout):
    """Row dropout that writes down with which rates plans are drawn."""

    def __init__(self, rate):
        super().__init__(rate)
        self.drawn = []

    def plan(self, site, rng):
        self.drawn.append(self.rate_of(site))
        return super().plan(site, rng)


@pytest.mark.parametrize("watched", [False, True])
def test_each_step_has_the_rate_of_its_epoch_also_where_plans_are_drawn_ahead(watched):
    made = Watch(RISING.__getitem__)
    net = fitted(made, layers=(24,), callbacks=[lambda net, record: None] if watched else None)
    assert made.drawn == [rate for rate in RISING for _ in range(3)]
    net.partial_fit(X, Y, dropout=(again := Watch(lambda epoch: epoch / 10)))
    net.partial_fit(X[:128], Y[:128], dropout=again)
    assert again.drawn == [0.4] * 3 + [0.5] and rates(net) == [*RISING, 0.4, 0.5]


@pytest.mark.parametrize("name", ["rdp", "tdp"])
def test_missed_steps_are_made_up_for_across_epochs(name):
    """With nobody watching, weights stay behind over the borders of epochs; watched, they are brought up to date at each."""
    ours, theirs = (fitted(KINDS[name](RISING.__getitem__), callbacks=found) for found in (None, [lambda net, record: None]))
    for a, b in zip(weights(ours), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["bernoulli", "rdp", "tdp"])
def test_epochs_that_are_trained_again_have_their_own_rates(monkeypatch, name):
    def breaking(run, *given, original=loop.epoch):
        record, broken = original(run, *given)
        epochs.append(run.stepper.rate())
        return {**record, "loss": np.nan} if run.optimizer.steps == 21 else record, broken

    epochs, given = [], [0.0, 0.3, 0.6, 0.5, 0.4, 0.7, 0.2, 0.1, 0.0]
    whole = fitted(KINDS[name](given.__getitem__), epochs=9, callbacks=[lambda net, record: record["epoch"] == 6])
    monkeypatch.setattr(recovery, "APART", 12)  # four epochs
    monkeypatch.setattr(loop, "epoch", breaking)
    with pytest.warns(UserWarning, match="not finite in epoch 7: .* weights of epoch 6"):
        net = fitted(KINDS[name](given.__getitem__), epochs=9)
    assert rates(net) == given[:6] and epochs == [*given[:7], *given[4:7]]
    assert [r["loss"] for r in net.history_] == pytest.approx([r["loss"] for r in whole.history_], rel=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dropout": "rdp", "dropout_rate": lambda epoch: epoch / 3}, "gave 1.0 for epoch 3"),
        ({"dropout": RowDropout(RISING.__getitem__, dp_max=2)}, "rate 0.6 is out of reach with dp_max=2"),
        ({"dropout": "none", "dropout_rate": lambda epoch: "low"}, "gave 'low' for epoch 0"),
    ],
)
def test_what_an_epoch_cannot_have_is_refused_before_training(options, message):
    seen = []
    net = Net(**{**SMALL, "epochs": 4, "callbacks": [lambda net, record: seen.append(record)], **options})
    for call in (net.check, lambda: net.fit(X, Y)):
        with pytest.raises(ValueError, match=message):
            call()
    assert not seen and not hasattr(net, "model_")
