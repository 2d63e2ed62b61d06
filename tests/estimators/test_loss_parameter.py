"""The parameter `loss` of the estimators: what is learned, by which score, and what is saved."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import r2_score

from numbanet import AbsoluteError, CrossEntropy, FunctionLoss, Huber, Loss, Net, NetRegressor, Quantile, SquaredError, ops

FAST = {"epochs": 30, "batch_size": 32, "learning_rate": 0.01, "random_state": 0, "device": "cpu"}


@pytest.fixture
def numbers(rng):
    """y = 100 + 10 x and one-sided noise: its mean is 5 above its median or so."""
    x = np.float32(rng.uniform(-1, 1, (400, 1)))
    return x, 100 + 10 * x[:, 0] + 10 * rng.exponential(size=400)


@pytest.fixture
def classes(rng):
    y = np.arange(120) % 3
    return np.float32(rng.standard_normal((120, 5)) + 3 * np.eye(5)[y]), y


class Poisson(Loss):
    """exp(output) - target * output, for counts."""

    def __call__(self, output, target):
        return (output.exp() - target * output).mean(axis=1)

    def inverse_link(self, output):
        return output.exp()


# --- numbers ----------------------------------------------------------------------------------------------------------
def fitted(loss, data, **options):
    return NetRegressor((16,), loss=loss, **{**FAST, **options}).fit(*data)


def test_by_default_it_is_least_squares_to_the_last_bit(numbers):
    ours, other = fitted("squared_error", numbers), NetRegressor((16,), **FAST).fit(*numbers)
    np.testing.assert_array_equal(ours.predict(numbers[0]), other.predict(numbers[0]))
    assert other.loss_ == SquaredError() and ours.history_[-1]["score"] == other.history_[-1]["score"]


@pytest.mark.parametrize("level", [0.2, 0.5, 0.9])
def test_a_quantile_is_above_its_share_of_the_targets(numbers, level):
    x, y = numbers
    net = fitted(Quantile(level), numbers, epochs=60)
    assert np.mean(y < net.predict(x)) == pytest.approx(level, abs=0.06)
    assert 0 < net.history_[-1]["score"] < 1


def test_absolute_errors_predict_medians_and_huber_lies_between(numbers):
    x, y = numbers
    means = {
        loss: (y - fitted(loss, numbers, epochs=60).predict(x)).mean() for loss in ("squared_error", "huber", "absolute_error")
    }
    assert abs(means["squared_error"]) < 0.8 < means["absolute_error"] and means["huber"] < means["absolute_error"]
    low = (y - fitted(Huber(0.05), numbers, epochs=60).predict(x)).mean()
    assert means["huber"] < low


def test_losses_do_not_depend_on_the_unit(numbers):
    x, y = numbers
    for loss in ("absolute_error", "huber", Quantile(0.7)):
        one, other = fitted(loss, (x, y), epochs=5), fitted(loss, (x, 1024 * y), epochs=5)
        np.testing.assert_allclose(1024 * one.predict(x), other.predict(x), rtol=1e-4)


def test_a_loss_of_ones_own_sees_targets_as_they_are(rng):
    x = np.float32(rng.uniform(-1, 1, (400, 2)))
    y = rng.poisson(np.exp(1 + x[:, 0]))
    net = NetRegressor((16,), loss=Poisson(), **{**FAST, "epochs": 60}).fit(x, y)
    assert (net.target_mean_, net.target_scale_) == (0, 1) and (net.predict(x) > 0).all()
    assert net.score(x, y) == pytest.approx(r2_score(y, np.exp(1 + x[:, 0])), abs=0.1)
    assert net.history_[-1]["score"] == pytest.approx(net.score(x, y), abs=0.1)
    assert pickle.loads(pickle.dumps(net)).score(x, y) == net.score(x, y) and clone(net).loss is not None


@pytest.mark.parametrize("n", [20, 100])
def test_functions_of_tensors_are_losses(numbers, n):
    """Also where all samples make one batch: equal ones are not merged, as one number cannot be weighted."""
    x, y = numbers[0][:n], numbers[1][:n]
    for function in (lambda o, t: ((o - t) ** 2).mean(), lambda o, t: ((o - t) ** 2).mean(axis=1)):
        net = NetRegressor((8,), loss=function, **FAST).fit(x, (y - y.mean()) / y.std())
        assert net.history_[-1]["loss"] < net.history_[0]["loss"] and net.loss_ == FunctionLoss(function)
    weights = np.arange(1, n + 1)
    NetRegressor((8,), loss=function, **FAST).fit(x, y, sample_weight=weights)
    with pytest.raises(ValueError, match="one number for all samples, which cannot be weighted"):
        NetRegressor((8,), loss=lambda o, t: (o - t).abs().mean(), **FAST).fit(x, y, sample_weight=weights)


@pytest.mark.parametrize("loss", ["huber", Quantile(0.8), "absolute_error"])
def test_early_stopping_watches_the_score_of_the_loss(numbers, loss):
    net = fitted(loss, numbers, early_stopping=True, patience=3)
    x, y = numbers
    targets = ((y - net.target_mean_) / net.target_scale_)[:, None]
    predictions = ((net.predict(x) - net.target_mean_) / net.target_scale_)[:, None]
    assert net.loss_.score(targets, predictions, None) == pytest.approx(
        max(record["validation_score"] for record in net.history_), abs=0.35
    )


# --- classes ----------------------------------------------------------------------------------------------------------
def test_smoothed_labels_make_probabilities_less_sure(classes):
    x, y = classes
    sharp, smooth = (Net((16,), loss=loss, **FAST).fit(x, y) for loss in ("cross_entropy", CrossEntropy(0.3)))
    assert sharp.score(x, y) > 0.9 and smooth.score(x, y) > 0.9
    sure = [net.predict_proba(x).max(axis=1).mean() for net in (smooth, sharp)]
    assert sure[0] < 0.8 < sure[1]
    np.testing.assert_array_equal(sharp.predict_proba(x), Net((16,), **FAST).fit(x, y).predict_proba(x))


class Turned(Loss):
    """Cross-entropy of the outputs times -1."""

    def __call__(self, output, target):
        return -ops.where(target[:, None] == np.arange(3), (-output).log_softmax(), 0).sum(axis=1)

    def inverse_link(self, output):
        return (-output).softmax()


def test_probabilities_are_those_of_the_inverse_link(classes):
    x, y = classes
    net = Net((16,), loss=Turned(), class_weight="balanced", **FAST).fit(x, y)
    assert net.score(x, y) > 0.9 and net.history_[-1]["score"] > 0.9
    np.testing.assert_allclose(net.predict_proba(x).sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(net.predict_proba(x).argmax(1), net.predict(x))
    np.testing.assert_allclose(net.predict_log_proba(x), np.log(net.predict_proba(x)), rtol=1e-4, atol=1e-6)


def test_several_labels_have_their_own(classes):
    labels = np.eye(3)[classes[1]]
    with pytest.raises(ValueError, match=r"CrossEntropy\(label_smoothing=0.1\) is for one label per sample"):
        Net((8,), loss=CrossEntropy(0.1), **FAST).fit(classes[0], labels)
    Net((8,), loss=CrossEntropy(), **{**FAST, "epochs": 1}).fit(classes[0], labels)


# --- both -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "net, message",
    [
        (Net(loss="squared_error"), "no loss 'squared_error'; choose 'cross_entropy'"),
        (Net(loss=Huber()), "is for another kind of target"),
        (NetRegressor(loss=CrossEntropy()), "is for another kind of target"),
        (NetRegressor(loss=None), "no loss None"),
        (NetRegressor(loss="l1"), "choose 'squared_error', 'absolute_error'"),
    ],
)
def test_a_loss_that_is_none_is_refused_before_training(net, message):
    with pytest.raises(ValueError, match=message):
        net.check()


def test_training_goes_on_with_a_changed_loss(numbers):
    net = fitted("huber", numbers, epochs=2).set_params(loss="quantile")
    assert net.loss_ == Huber() and net.partial_fit(*numbers).loss_ == Quantile()
    assert net.fit(*numbers).loss_ == Quantile()


@pytest.mark.parametrize("loss", ["huber", Huber(0.3), Quantile(0.9), AbsoluteError()], ids=repr)
def test_it_is_saved_and_loaded(numbers, tmp_path, loss):
    net = fitted(loss, numbers, epochs=2)
    net.save(tmp_path / "net")
    again = NetRegressor.load(tmp_path / "net")
    assert again.loss_ == net.loss_ and again.get_params()["loss"] == loss
    np.testing.assert_array_equal(again.predict(numbers[0]), net.predict(numbers[0]))
    again.partial_fit(*numbers)


def test_a_file_holds_no_function(classes, tmp_path):
    net = Net((4,), loss=Turned(), **{**FAST, "epochs": 1}).fit(*classes)
    with pytest.raises(TypeError, match="save: loss=.*save net.model_.state_dict"):
        net.save(tmp_path / "net")


@pytest.mark.slow
def test_losses_train_the_same_on_all_devices(dev, numbers, classes):
    options = {**FAST, "epochs": 2, "batch_size": 40, "device": dev.name}
    x, y = numbers
    for loss in ("absolute_error", "huber", Quantile(0.9), lambda o, t: ((o - t) / 100).abs().mean(axis=1)):
        one, other = (fitted(loss, (x[:80], y[:80]), **{**options, "device": name}) for name in ("cpu", dev.name))
        np.testing.assert_allclose(one.predict(x), other.predict(x), rtol=1e-3)
    for loss in (CrossEntropy(0.2), Turned()):
        one, other = (Net((8,), loss=loss, **{**options, "device": name}).fit(*classes) for name in ("cpu", dev.name))
        np.testing.assert_allclose(one.predict_proba(classes[0]), other.predict_proba(classes[0]), rtol=1e-3, atol=1e-4)
