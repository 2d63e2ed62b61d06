"""A fit that goes on from a checkpoint ends in the same bits as one that was not stopped, for every family."""

import zlib

import numpy as np
import pytest

from numbanet import Net
from numbanet.training.resuming import state
from numbanet.training.sparsity import lasso

from .stopped import FAMILIES, Counts, X, Y, alone, assert_same, begun, mlp

CALLBACKS = "validated"  # the family whose callbacks are objects of a user's class


def options(net, name):
    return {"callbacks": begun(name)[0].callbacks} if name == CALLBACKS else {}


@pytest.fixture(autouse=True)
def one_measurement(monkeypatch):
    """All fits of a test have the costs of layers that the first one measures: two measurements may differ."""
    costs = []

    def seconds(*arguments, measure=lasso.seconds):
        found = measure(*arguments)
        costs[:] = costs or found.values()
        return dict(zip(found, costs, strict=True))

    monkeypatch.setattr(lasso, "seconds", seconds)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_resumed_fit_ends_in_the_same_bits(name, tmp_path):
    """Checkpoints within epochs, of which some are chosen by the name of the family; and one at the end of an epoch."""
    net, data, given = begun(name)
    net.fit(*data, **given, checkpoint=tmp_path / "all", every=3, keep=1000)
    count = len(list((tmp_path / "all").iterdir()))
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for number in sorted({0, *rng.choice(count, 3, replace=False)}):
        folder = alone(tmp_path / "all", number, tmp_path / "one")
        other = type(net).resume(folder, **options(net, name))
        given.pop("dropout", None), given.pop("dropout_rate", None)  # the checkpoint has them
        assert_same(net, other.fit(*data, **given))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_when_checkpoints_are_written_changes_no_bit(name, tmp_path):
    net, other = begun(name)[0], begun(name)[0]
    _, data, given = begun(name)
    net.fit(*data, **given, checkpoint=tmp_path / "steps", every=3)
    other.fit(*data, **given, checkpoint=tmp_path / "epochs")
    assert len(list((tmp_path / "steps").iterdir())) == len(list((tmp_path / "epochs").iterdir())) == 2
    assert_same(net, other)
    for number in (0, 1):
        folder = alone(tmp_path / "epochs", number, tmp_path / "one")
        again = type(net).resume(folder, **options(net, name))
        assert_same(net, again.fit(*data, **{k: v for k, v in given.items() if not k.startswith("dropout")}))


class Some(Counts):
    """Has a state if it is asked to."""

    def __init__(self, counts):
        self.counts = counts

    def state(self):
        return self.steps if self.counts else None


@pytest.mark.parametrize("old", [False, True], ids=["now", "older"])
def test_each_of_several_hooks_of_a_class_gets_its_own_state(old, tmp_path, monkeypatch):
    """Checkpoints of the older form hold states without positions; then the first hooks of the class get them."""
    if old:
        monkeypatch.setattr(state, "_of_hooks", lambda run, new=state._of_hooks: [entry[:2] for entry in new(run)])
    mlp(callbacks=[Some(False), Some(True)]).fit(X, Y, checkpoint=tmp_path)
    hooks = [Some(old), Some(not old)]
    other = Net.resume(tmp_path, epochs=5, callbacks=hooks).fit(X, Y)
    assert [hook.steps for hook in hooks] == [other.optimizer_.steps if hook.counts else 8 for hook in hooks]
