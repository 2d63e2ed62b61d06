"""On the CPU, too, a fit that replays recorded steps gives the weights, losses and scores of one that computes each of them."""
import numpy as np
import pytest

from numbanet import Net, NetRegressor
from numbanet.training.recorder import Recorder
from numbanet_kernels.runtime import tape


@pytest.fixture
def replays(monkeypatch):
    """How often each tape was replayed."""
    counts = {}

    def replay(self, original=tape.Tape.replay):
        original(self)
        counts[self] = counts.get(self, 0) + 1

    monkeypatch.setattr(tape.Tape, "replay", replay)
    return counts


def fit(net=Net, layers=(9, 7), weights=False, **options):
    """Of 40 samples, 13 at a time: in an epoch three equal steps and a shorter one."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 6)), np.arange(40) % 3
    return net(layers, batch_size=13, random_state=0, **{"epochs": 5, "dropout": "none", **options}).fit(
        x, y, sample_weight=1 + y if weights else None)


def alone(monkeypatch, **options):
    """The same fit, op by op."""
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
        return fit(**options)


def equal(ours, theirs):
    state, other = ours.model_.state_dict(), theirs.model_.state_dict()
    assert state.keys() == other.keys()
    for name, value in state.items():
        assert value.tobytes() == other[name].tobytes(), name
    for record, expected in zip(ours.history_, theirs.history_, strict=True):
        assert {**record, "seconds": 0} == {**expected, "seconds": 0}


OPTIONS = {"adam": {"optimizer": "adam"}, "adamw": {"optimizer": "adamw", "weight_decay": 0.1}, "sgd": {"optimizer": "sgd"},
           "nesterov": {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
           "one output": {"net": NetRegressor}, "tanh": {"activation": "tanh"}, "gelu": {"activation": "gelu"},
           "sigmoid": {"activation": "sigmoid"}, "weights": {"weights": True}, "one sample": {"layers": (1,)},
           "huber": {"net": NetRegressor, "loss": "huber"}}


@pytest.mark.filterwarnings("ignore:fit. the network answers no better")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_replayed_steps_train_the_same(monkeypatch, replays, options):
    ours = fit(**options)
    assert list(replays.values()) == [14, 4]  # of 15 and 5 steps: the first is done op by op
    count = len(replays)
    equal(ours, alone(monkeypatch, **options))
    assert len(replays) == count
