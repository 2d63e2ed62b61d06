"""When a network becomes sparse: schedules of pruning, epochs that can be the result, changes between fits."""

import warnings

import pytest

from numbanet import GroupLasso, MagnitudePruning, Net
from numbanet.datasets import load_digits

X, Y, X_TEST, Y_TEST = load_digits()


def net(sparsity, **options):
    return Net((16,), **{"epochs": 4, "batch_size": 128, "random_state": 0, "sparsity": sparsity, **options})


@pytest.mark.parametrize(
    "schedule, message",
    [
        (lambda p: p - 0.6 if p < 1 else 1.0, r"what the schedule gives must be a number in \[0, 1\], got -0.09"),
        (lambda p: 2 * p, "what the schedule gives must be .* got 2.0"),
        (lambda p: float("nan"), "what the schedule gives"),
        (lambda p: p / 2, "the schedule must give 1 at 1, not 0.5"),
    ],
    ids=["negative", "above 1", "no number", "not 1 at 1"],
)
def test_a_schedule_that_gives_no_shares_is_refused_before_training(schedule, message):
    pruned = net(MagnitudePruning(0.5, schedule=schedule))
    with pytest.raises(ValueError, match=f"MagnitudePruning: {message}"):
        pruned.fit(X, Y)
    assert not hasattr(pruned, "model_")


@pytest.mark.parametrize(
    "kind",
    [lambda share: GroupLasso(1e-4, fine_tuning=share), lambda share: MagnitudePruning(0.8, fine_tuning=share)],
    ids=["lasso", "magnitude"],
)
def test_early_stopping_without_an_epoch_that_could_be_the_result_is_told_of(kind):
    with pytest.warns(UserWarning, match="early_stopping: no epoch could be the result"):
        net(kind(0), early_stopping=True, patience=1).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "GroupLasso: strength=0.0001 has removed nothing")
        net(kind(0.5), early_stopping=True, patience=1).fit(X, Y)
        net(kind(0)).fit(X, Y)


def test_sparsity_that_is_set_after_fit_is_told_of():
    first = net(None, epochs=1).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first.partial_fit(X, Y)
    first.set_params(sparsity=GroupLasso(1e-3))
    with pytest.warns(UserWarning, match="partial_fit: the network continues with sparsity=None, with which it was started"):
        first.partial_fit(X, Y)
