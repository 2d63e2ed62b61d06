"""Losses by name and of one's own: values and gradients against PyTorch, scores against scikit-learn, and what tasks make of
them."""

import dataclasses
import pickle

import numpy as np
import pytest
from sklearn import metrics

from numbanet import (
    AbsoluteError,
    CrossEntropy,
    FunctionLoss,
    Huber,
    Loss,
    Quantile,
    SquaredError,
    Tensor,
    check_grad,
    device,
    ops,
)
from numbanet.losses import OF_CLASSES, OF_NUMBERS, loss_named
from numbanet.training.task import Classification, Regression

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")
functional = torch.nn.functional

NUMBERS = {
    SquaredError(): functional.mse_loss,
    AbsoluteError(): functional.l1_loss,
    Huber(0.4): lambda p, t: functional.huber_loss(p, t, delta=0.4),
    Quantile(0.8): lambda p, t: torch.maximum(0.8 * (t - p), -0.2 * (t - p)).mean(),
}
CLASSES = {
    CrossEntropy(share): lambda p, t, share=share: functional.cross_entropy(p, t, label_smoothing=share)
    for share in (0.0, 0.25)
}


@pytest.fixture
def sample(rng):
    """(output, targets, weights) of 9 samples with two numbers each."""
    return (np.float32(rng.standard_normal((9, 2))), np.float32(rng.standard_normal((9, 2))), np.float32(rng.integers(1, 4, 9)))


# --- values and gradients ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("loss", [*NUMBERS, *CLASSES], ids=repr)
def test_values_and_gradients_are_pytorchs(dev, rng, loss):
    output = np.float32(rng.standard_normal((7, 3)))
    target = rng.integers(0, 3, 7) if loss in CLASSES else np.float32(rng.standard_normal((7, 3)))
    ours, theirs = Tensor(output, dev, requires_grad=True), torch.tensor(output, requires_grad=True)
    found = loss(ours, np.int32(target) if loss in CLASSES else Tensor(target, dev))
    expected = {**NUMBERS, **CLASSES}[loss](theirs, torch.tensor(target))
    found.backward()
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", [*NUMBERS, *CLASSES], ids=repr)
def test_a_weight_counts_as_so_many_samples(dev, rng, loss, sample):
    output, target, weights = sample
    target = rng.integers(0, 2, 9).astype(np.int32) if loss in CLASSES else target
    weighed = loss.mean(Tensor(output, dev), dev.upload(target), dev.upload(weights / weights.sum()))
    counts = weights.astype(int)
    repeated = loss.mean(Tensor(np.repeat(output, counts, 0), dev), dev.upload(np.repeat(target, counts, 0)), None)
    assert weighed.item() == pytest.approx(repeated.item(), rel=1e-5)


# --- of one's own ----------------------------------------------------------------------------------------------------
class Relative(Loss):
    """|output - target| / |target|, of the exponential of what the network gives."""

    def __call__(self, output, target):
        return ((output.exp() - target) / target).abs().mean(axis=1)

    def inverse_link(self, output):
        return output.exp()


def test_a_loss_by_sample_is_weighed_and_one_number_is_not(dev, sample):
    output, target, weights = sample
    shares = weights / weights.sum()
    x = Tensor(output, dev)
    by_sample = loss_named(lambda y, t: ((y - t) ** 2).mean(axis=1))
    whole = loss_named(lambda y, t: ((y - t) ** 2).mean())
    for given in (None, dev.upload(shares)):
        expected = SquaredError().mean(x, dev.upload(target), given).item()
        assert by_sample.mean(x, dev.upload(target), given).item() == pytest.approx(expected, rel=1e-5)
    assert whole.mean(x, dev.upload(target), None).item() == pytest.approx(np.mean((output - target) ** 2), rel=1e-5)
    with pytest.raises(ValueError, match=r"one number for all samples, which cannot be weighted: .* shape \(9,\)"):
        whole.mean(x, dev.upload(target), dev.upload(shares))
    assert not (whole.weighs or whole.records or Relative().weighs) and SquaredError().weighs


def test_its_gradient_is_checked_like_that_of_an_op(dev, rng):
    x = Tensor(rng.standard_normal((5, 2)), dev, requires_grad=True)
    target, weights = dev.upload(np.full((5, 2), 9, np.float32)), dev.upload(np.full(5, 0.2, np.float32))
    check_grad(lambda x: Relative().mean(x, target, weights), [x])


@pytest.mark.parametrize(
    "function, error, message",
    [
        (lambda y, t: 1.0, TypeError, r"must give a Tensor of shape \(9,\) or \(\), not float"),
        (lambda y, t: (y - t).abs(), ValueError, r"must give a Tensor of shape \(9,\), .* not \(9, 2\)"),
    ],
)
def test_what_a_function_gives_is_looked_at(sample, function, error, message):
    with pytest.raises(error, match=message):
        FunctionLoss(function).mean(Tensor(sample[0]), sample[1], None)


def test_a_subclass_that_computes_something_else_is_not_taken_for_its_parent(sample):
    class Cubed(SquaredError):
        def __call__(self, output, target):
            return (output - target).abs() ** 3

    output, target = (x[:, 0].copy() for x in sample[:2])
    assert Cubed().mean(Tensor(output), target, None).item() == pytest.approx(np.mean(np.abs(output - target) ** 3), rel=1e-5)
    assert not Cubed().records and not Cubed().weighs


# --- by name ----------------------------------------------------------------------------------------------------------
def test_names_losses_and_functions(sample):
    for known in (OF_NUMBERS, OF_CLASSES):
        for name, kind in known.items():
            assert loss_named(name, known) == kind() and loss_named(kind(), known) == kind()
    own = Relative()
    assert loss_named(own) is own and loss_named(own, OF_CLASSES) is own
    assert loss_named(abs) == FunctionLoss(abs)
    for loss in (*NUMBERS, *CLASSES):
        assert pickle.loads(pickle.dumps(loss)) == loss == dataclasses.replace(loss)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: loss_named("hinge"),
            "no loss 'hinge'; choose 'squared_error', 'absolute_error', 'huber', 'quantile', or give",
        ),
        (lambda: loss_named(None), "no loss None"),
        (lambda: loss_named(Huber), "no loss <class .*Huber.>; give an object of the class, such as Huber"),
        (lambda: loss_named(Huber(), OF_CLASSES), r"Huber\(delta=1.0\) is for another kind of target; choose 'cross_entropy'"),
        (lambda: loss_named("cross_entropy"), "no loss 'cross_entropy'"),
        (lambda: Huber(0), r"Huber: delta must be a number in \(0, inf\), got 0"),
        (lambda: Huber("1"), "Huber: delta"),
        (lambda: Quantile(1.0), r"Quantile: level must be a number in \(0, 1\), got 1.0"),
        (lambda: Quantile(True), "level"),
        (lambda: CrossEntropy(1.0), r"CrossEntropy: label_smoothing must be a number in \[0, 1\), got 1.0"),
        (lambda: CrossEntropy(-0.1), "label_smoothing"),
    ],
)
def test_bad_losses_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- scores, and the best constant ------------------------------------------------------------------------------------
SCORES = {
    SquaredError(): metrics.r2_score,
    AbsoluteError(): metrics.d2_absolute_error_score,
    Quantile(0.8): lambda y, p, **options: metrics.d2_pinball_score(y, p, alpha=0.8, **options),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", SCORES, ids=repr)
def test_scores_are_scikit_learns(rng, loss, weighted):
    targets, predictions = rng.standard_normal((2, 41, 3))
    weights = rng.integers(1, 4, 41).astype(float) if weighted else None
    expected = SCORES[loss](targets, predictions, sample_weight=weights)
    assert loss.score(targets, predictions, weights) == pytest.approx(expected, abs=0.02 if weighted else 1e-9)
    assert loss.score(targets, targets, weights) == 1 and np.isnan(loss.score(targets[:1], targets[:1], None))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", NUMBERS, ids=repr)
def test_no_constant_is_better_than_the_best(rng, loss, weighted):
    targets = rng.standard_normal((50, 2)) ** 3
    weights = rng.random(50) if weighted else None
    best, (_, least) = loss.constant(targets, weights), loss.best_constant(targets, weights)
    found = [np.average(loss.values(best + step - targets), axis=0, weights=weights) for step in (0, -0.1, -1e-3, 1e-3, 0.1)]
    assert all((other >= found[0] - 1e-12).all() for other in found[1:])
    assert least == pytest.approx(found[0].mean())
    constant = np.broadcast_to(best, targets.shape)
    assert loss.score(targets, constant, weights) == pytest.approx(0, abs=1e-9)
    same = np.ones((4, 2))
    assert loss.best_constant(same, None) is None
    assert loss.score(same, same, None) == 1 and loss.score(same, same + 1, None) == 0


def test_smoothed_labels_have_more_to_lose():
    labels = np.array([0, 0, 0, 2])
    assert CrossEntropy().best_constant(labels, None)[1] == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))
    shares = np.array([0.375, 0, 0.125]) + 0.5 / 3  # the class that does not occur has its share, too
    loss = CrossEntropy(0.5)
    least = loss(Tensor(np.tile(np.log(shares), (4, 1))), Tensor.wrap(labels.astype(np.int32), device("cpu"))).item()
    assert loss.best_constant(labels, None)[1] == pytest.approx(least, rel=1e-6)
    assert least == pytest.approx(-(shares * np.log(shares)).sum(), rel=1e-6)


# --- tasks ------------------------------------------------------------------------------------------------------------
def test_a_task_follows_its_loss(dev, sample):
    output, target, weights = sample
    for loss in NUMBERS:
        task, shares = Regression(loss), dev.upload(weights / weights.sum())
        assert task.records and task.loss(Tensor(output, dev), dev.upload(target), shares).item() == pytest.approx(
            loss.mean(Tensor(output, dev), dev.upload(target), shares).item()
        )
        assert task.score(target, output, weights) == loss.score(target, output, weights)
        assert task.constant(target, None).score == 0 and task.answer(dev, (given := dev.upload(output))) is given
    assert Regression().criterion == SquaredError() and Classification().criterion == CrossEntropy()
    assert Classification(CrossEntropy(0.1)).records and not Regression(Relative()).records


def test_predictions_go_through_the_inverse_link(dev, sample):
    output, target, _ = sample
    task = Regression(Relative())
    np.testing.assert_allclose(dev.download(task.answer(dev, dev.upload(output))), np.exp(output), rtol=1e-6)
    assert task.constant(target, None) is None and task.score(target, output, None) == metrics.r2_score(target, output)
    turned = Classification(FunctionLoss(lambda y, t: ops.softmax_cross_entropy(-y, labels=t), lambda y: (-y).softmax()))
    np.testing.assert_array_equal(dev.download(turned.answer(dev, dev.upload(output))), output.argmin(1))
    np.testing.assert_allclose(dev.download(turned.probabilities(dev, dev.upload(output))).sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(dev.download(Classification().probabilities(dev, dev.upload(output))).sum(1), 1, rtol=1e-6)
    assert turned.loss(Tensor(output, dev), dev.upload(np.zeros(9, np.int32)), None).shape == ()


@pytest.mark.parametrize(
    "link, error, message",
    [
        (lambda y: 1, TypeError, "must give a Tensor, not int"),
        (lambda y: y.sum(), ValueError, r"the shape \(9, 2\) of the output, not"),
    ],
)
def test_what_a_link_gives_is_looked_at(sample, link, error, message):
    with pytest.raises(error, match=message):
        Regression(FunctionLoss(abs, link)).answer(Tensor([1.0]).device, sample[0])
