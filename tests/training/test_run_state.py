"""Run and its snapshot: what training changes, all of it, can be put back; copies are few and stay on the device."""

import copy
import pickle

import numpy as np
import pytest

from numbanet import GroupLasso, Hook, MagnitudePruning, Net, RowDropout
from numbanet.datasets import load_digits
from numbanet.device import problem
from numbanet.training import optim, recovery

X, Y, _, _ = load_digits()
SMALL = {"layers": (32, 32), "epochs": 3, "random_state": 0, "device": "cpu"}


class Once(Hook):
    """Does something in an epoch, counted from 0, before it is recorded."""

    def __init__(self, epoch, do):
        self.at, self.do = epoch, do

    def epoch_end(self, run, record):
        if run.epoch == self.at:
            self.do(run)


class Counts(Hook):
    """Has a state: how many steps it has seen."""

    steps = 0

    def after_update(self, run):
        self.steps += 1

    def state(self):
        return self.steps

    def restore(self, state):
        self.steps = state


def all_of(run):
    """Everything that training changes, by value."""
    return pickle.dumps(
        [
            run.model.state_dict(),
            run.optimizer.snapshot(),
            run.optimizer.learning_rate,
            run.streams.state(),
            run.epoch,
            [hook.state() for hook in run.hooks],
        ]
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam"},
        {"dropout": RowDropout(0.5)},
        {"dropout": "bernoulli"},
        {"sparsity": GroupLasso(8e-3)},
        {"sparsity": MagnitudePruning(0.5)},
    ],
    ids=["sgd", "adam", "rdp", "bernoulli", "lasso", "pruning"],
)
def test_a_run_goes_back_to_its_snapshot(options):
    seen = []

    def keep(run):
        run.optimizer.learning_rate *= 0.5
        seen.extend([run.snapshot(), all_of(run), [p.shape for p in run.model.parameters()]])

    def back(run):
        assert all_of(run) != seen[1]
        history = list(run.history)
        run.restore(seen[0])
        assert all_of(run) == seen[1] and [p.shape for p in run.model.parameters()] == seen[2]
        run.history[:] = history

    net = Net(**{**SMALL, "epochs": 4}, **options, callbacks=[Counts(), Once(0, keep), Once(2, back)]).fit(X, Y)
    assert seen[0].epoch == 0 and net.n_iter_ == 4


def test_weights_alone_go_back_alone():
    def do(run):
        before, steps = run.snapshot(weights_only=True), run.optimizer.steps
        weights = run.model.state_dict()
        run.model.layers[0].weight.assign(np.zeros(run.model.layers[0].weight.shape, np.float32))
        run.restore(before)
        assert run.optimizer.steps == 0 < steps and run.optimizer.state == []
        for name, value in run.model.state_dict().items():
            np.testing.assert_array_equal(value, weights[name])

    Net(**SMALL, callbacks=[Once(1, do)]).fit(X, Y)


def test_partial_fit_copies_nothing_to_the_host_and_uses_its_memory_again(monkeypatch):
    """Its copies lie on the device, in arrays that stay from call to call."""
    net = Net(**SMALL).fit(X, Y)
    assert net._undo.saved is None  # a new network needs none
    with monkeypatch.context() as patch:
        patch.setattr(optim, "on_host", lambda dev, array: pytest.fail("a copy on the host"))
        net.partial_fit(X, Y)
    first = list(map(id, net._undo.saved.arrays))
    assert len(first) == 12  # weights and velocities
    net.partial_fit(X, Y)
    assert list(map(id, net._undo.saved.arrays)) == first
    assert "_undo" not in vars(pickle.loads(pickle.dumps(net))) and "_undo" not in vars(copy.deepcopy(net))
    assert net.fit(X, Y)._undo.saved is None


@pytest.mark.skipif(problem("emulated") is not None, reason="needs the CUDA compiler")
def test_copies_lie_on_the_device_of_the_network():
    net = Net((4,), epochs=1, batch_size=8, random_state=0, device="emulated")
    net.partial_fit(X[:16], Y[:16] % 2, classes=[0, 1]).partial_fit(X[:16], Y[:16] % 2)
    kind = type(net.model_.layers[0].weight.data)
    assert all(type(array) is kind for array in net._undo.saved.arrays)


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam"}, {"sparsity": GroupLasso(8e-3, "columns")}], ids=str)
@pytest.mark.parametrize("name", ["partial_fit", "fit"])
def test_a_failed_call_that_goes_on_from_trained_weights_is_undone(name, options):
    def fail(net, record):
        net.optimizer_.learning_rate = 7.0
        raise OSError("full disk")

    net, other = (Net(**SMALL, **options, warm_start=True).fit(X, Y) for _ in range(2))
    for _ in range(2):
        with pytest.raises(OSError, match="full disk"):
            getattr(net.set_params(callbacks=[fail]), name)(X, Y)
        assert net.optimizer_.learning_rate == other.optimizer_.learning_rate and net.n_iter_ == 3
    for one in (net.set_params(callbacks=None), other):
        one.partial_fit(X, Y)
    for ours, theirs in zip(net.model_.parameters(), other.model_.parameters(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_hooks_state_goes_back_with_a_failed_call():
    class Fails(Counts):
        def epoch_recorded(self, run, record):
            if run.epoch > 3:
                raise OSError("full disk")

    hook = Fails()
    net = Net(**SMALL, callbacks=[hook]).fit(X, Y)
    steps = hook.steps
    with pytest.raises(OSError, match="full disk"):
        net.partial_fit(X, Y)
    assert hook.steps == steps > 0


def test_what_a_failed_call_has_frozen_is_trained_again():
    def fail(net, record):
        net.model_.layers[0].requires_grad_(False)
        raise OSError("full disk")

    net = Net(**SMALL).fit(X, Y).set_params(callbacks=[fail])
    with pytest.raises(OSError, match="full disk"):
        net.partial_fit(X, Y)
    assert all(p.requires_grad for p in net.model_.parameters())


class Sets(Hook):
    """Sets the learning rate, what rests and what is frozen when the second epoch is recorded; breaks the fourth one once."""

    watches, broken = False, False

    def __init__(self):
        self.seen = []

    def epoch_start(self, run, epoch):
        last = run.optimizer.parameters[-1]
        frozen = [p.requires_grad for p in run.model.parameters()].count(False)
        self.seen.append((epoch, run.optimizer.learning_rate, last in run.optimizer.resting, frozen))
        if epoch == 3 and not self.broken:
            self.broken = True
            last.assign(np.full(last.shape, np.nan, np.float32))

    def epoch_recorded(self, run, record):
        if run.epoch == 2:
            run.optimizer.adjust(0.5)
            run.optimizer.rest(run.optimizer.parameters[-1:])
            run.model.layers[0].requires_grad_(False)


def test_what_a_hook_sets_when_an_epoch_is_recorded_stays_if_training_goes_back(monkeypatch):
    monkeypatch.setattr(recovery, "APART", 3)  # steps, of which an epoch has two
    hook = Sets()
    Net(**{**SMALL, "epochs": 4}, batch_size=50, learning_rate=0.1, callbacks=[hook]).fit(X[:100], Y[:100])
    before, after = (0.1, False, 0), (0.5, True, 2)
    assert hook.seen == [(0, *before), (1, *before), (2, *after), (3, *after), (2, *after), (3, *after)]
