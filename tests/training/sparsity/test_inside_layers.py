"""Sparsity walks the tree of layers: what a user's layer holds is pruned, shrunk and compacted as other layers are."""

import pickle

import numpy as np
import pytest

from numbanet import (
    LSTM,
    SGD,
    Conv2d,
    Flatten,
    GroupLasso,
    LastStep,
    Layer,
    Linear,
    MagnitudePruning,
    Net,
    ReLU,
    Select,
    Sequential,
    SparseLinear,
    Tensor,
)
from numbanet.datasets import load_digits
from numbanet.training.sparsity import Thinning, compaction

X, Y, X_TEST, Y_TEST = load_digits()


class ResidualBody(Layer):
    """x + body(x)"""

    def __init__(self, width, hidden):
        self.width, self.hidden = width, hidden
        self.body = Sequential([Linear(width, hidden, rng=1), ReLU(), Linear(hidden, width, rng=2)])

    def forward(self, flow, context):
        x = flow.dense()
        return flow.with_(x + self.body(x, context))


class CalledBody(ResidualBody):
    """The same by `__call__`."""

    def __call__(self, x):
        return x + self.body(x)


class AddingChain(Sequential):
    """x + its layers"""

    def __call__(self, x):
        return x + super().__call__(x)


class TwoAttributes(Layer):
    """Its layers are attributes: how they follow one another is not known."""

    def __init__(self, width, hidden):
        self.width, self.hidden = width, hidden
        self.first, self.second = Linear(width, hidden, rng=1), Linear(hidden, width, rng=2)

    def __call__(self, x):
        return x + self.second(self.first(x).relu())


class PeekingInside(ResidualBody):
    """It needs what its body has inside: layer by layer."""

    def __call__(self, x):
        hidden = self.body[0](x)
        return x + self.body[2](self.body[1](hidden)) * hidden.sum()


class CallingBesides(ResidualBody):
    """It calls its body, and one of its layers besides."""

    def __call__(self, x):
        return x + self.body(x) * self.body[0](x).sum()


class TwoLayers(Sequential):
    """A constructor of its own; it does what a `Sequential` does."""

    def __init__(self, width, hidden):
        self.width, self.hidden = width, hidden
        super().__init__([Linear(width, hidden, rng=1), ReLU(), Linear(hidden, width, rng=2)])


class SquareOfWidth(Linear):
    """A constructor of its own; it does what a `Linear` does."""

    def __init__(self, width):
        super().__init__(width, width, rng=1)
        self.width = width


class Twofold(Linear):
    """It does something else with its weight."""

    def __call__(self, x):
        return super().__call__(x) * 2.0


class OwnFilters(Conv2d):
    """A constructor of its own; it does what a `Conv2d` does."""

    def __init__(self, channels):
        super().__init__(1, channels, 3, rng=0)
        self.channels = channels


class ResidualImages(Layer):
    """x + a body of convolutions with zeros around"""

    def __init__(self, channels):
        self.channels = channels
        self.body = Sequential([Conv2d(channels, 6, 3, padding=1, rng=1), ReLU(), Conv2d(6, channels, 3, padding=1, rng=2)])

    def __call__(self, x):
        return x + self.body(x)


def inside(*blocks, width=6):
    return Sequential([Linear(5, width, rng=0), ReLU(), *blocks, Linear(width, 3, rng=3)])


def shapes(model):
    return [tuple(tensor.shape) for name, tensor, _ in model.named() if name.endswith("weight") and tensor.ndim > 1]


# --- compaction -------------------------------------------------------------------------------------------------------
BODY = [(6, 5), (7, 6), (6, 7), (3, 6)]  # before: units of the body leave, all others stay
CASES = {  # layers; (path, axis, places) that are zero; weight shapes afterwards
    "rows in a body": (lambda: inside(ResidualBody(6, 9)), [("2.body.0", 0, (1, 4))], BODY),
    "by __call__": (lambda: inside(CalledBody(6, 9)), [("2.body.0", 0, (1, 4))], BODY),
    "columns in a body": (lambda: inside(CalledBody(6, 9)), [("2.body.2", 1, (1, 4))], BODY),
    "features of a body": (lambda: inside(CalledBody(6, 9)), [("2.body.0", 1, (0, 3))], [(6, 5), (9, 4), (6, 9), (3, 6)]),
    "outputs of a body": (lambda: inside(CalledBody(6, 9)), [("2.body.2", 0, (1, 4))], [(6, 5), (9, 6), (6, 9), (3, 6)]),
    "units before it": (lambda: inside(CalledBody(6, 9)), [("0", 0, (1, 4))], [(6, 5), (9, 6), (6, 9), (3, 6)]),
    "columns after it": (lambda: inside(CalledBody(6, 9)), [("3", 1, (2,))], [(6, 5), (9, 6), (6, 9), (3, 5)]),
    "a subclass of Sequential": (
        lambda: inside(AddingChain([Linear(6, 9, rng=1), ReLU(), Linear(9, 6, rng=2)])),
        [("2.0", 0, (1, 4))],
        BODY,
    ),
    "a block in a block": (lambda: inside(AddingChain([CalledBody(6, 9)])), [("2.0.body.0", 0, (1, 4))], BODY),
    "a chain in the chain": (
        lambda: Sequential([Linear(5, 6, rng=0), Sequential([ReLU(), Sequential([Linear(6, 4, rng=1)])]), Linear(4, 3, rng=2)]),
        [("0", 0, (1, 2)), ("2", 1, (0,))],
        [(4, 5), (3, 4), (3, 3)],
    ),
    "a chain with a constructor": (
        lambda: inside(TwoLayers(6, 9)),
        [("2.0", 0, (1,)), ("0", 0, (0,))],
        [(5, 5), (8, 5), (6, 8), (3, 6)],
    ),
    "a linear one with a constructor": (
        lambda: inside(SquareOfWidth(6)),
        [("2", 0, (1,)), ("0", 0, (0,))],
        [(5, 5), (5, 5), (3, 5)],
    ),
    "one that acts otherwise": (
        lambda: inside(Twofold(6, 6, rng=1)),
        [("2", 0, (1,)), ("2", 1, (2,))],
        [(6, 5), (6, 6), (3, 6)],
    ),
    "attributes": (lambda: inside(TwoAttributes(6, 9)), [("2.first", 0, (1, 4))], [(6, 5), (9, 6), (6, 9), (3, 6)]),
    "one that looks inside": (lambda: inside(PeekingInside(6, 9)), [("2.body.0", 0, (1, 4))], [(6, 5), (9, 6), (6, 9), (3, 6)]),
    "one that looks inside besides": (
        lambda: inside(CallingBesides(6, 9)),
        [("2.body.0", 0, (1, 4))],
        [(6, 5), (9, 6), (6, 9), (3, 6)],
    ),
    "one that is there twice": (
        lambda: inside(*[CalledBody(6, 9)] * 2),
        [("2.body.0", 0, (1, 4))],
        [(6, 5), *[(9, 6), (6, 9)] * 2, (3, 6)],
    ),
    "filters": (
        lambda: Sequential([OwnFilters(4), ResidualImages(4), Flatten(), Linear(144, 3, rng=3)]),
        [("1.body.0", 0, (1, 4)), ("1.body.2", 1, (2,))],
        [(4, 1, 3, 3), (3, 4, 3, 3), (4, 3, 3, 3), (3, 144)],
    ),
    "filters with a constructor": (
        lambda: Sequential([OwnFilters(4), ReLU(), Conv2d(4, 5, 3, rng=1), Flatten(), Linear(80, 3, rng=3)]),
        [("0", 0, (1,))],
        [(3, 1, 3, 3), (5, 3, 3, 3), (3, 80)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_units_inside_leave_and_the_function_stays(name, rng):
    make, zeros, after = CASES[name]
    model = make()
    x = Tensor(rng.standard_normal((7, *((1, 8, 8) if "filters" in name else (5,)))).astype(np.float32))
    held = {path: tensor for path, tensor, _ in model.named()}
    for path, tensor in held.items():
        if path.endswith("bias"):
            tensor.numpy()[...] = rng.standard_normal(tensor.shape)
    if "filters" in name:  # zeros are padded: only filters that give 0 may leave
        held.get("1.body.0.bias", Tensor(np.zeros(1))).numpy()[...] = -1
    for path, axis, places in zeros:
        held[f"{path}.weight"].numpy()[(slice(None),) * axis + (list(places),)] = 0
    before = np.array(model(x).numpy())
    optimizer = SGD(list(model.parameters()), 0.01)
    compaction.compact(model, optimizer, x.shape)
    np.testing.assert_allclose(model(x).numpy(), before, rtol=1e-5, atol=1e-5)
    assert shapes(model) == after
    assert any(isinstance(layer, Select) for layer in getattr(model[2], "body", ())) == (name == "features of a body")


# --- training ---------------------------------------------------------------------------------------------------------
OPTIONS = {"epochs": 6, "batch_size": 32, "learning_rate": 0.02, "random_state": 0, "device": "cpu"}


def fitted(sparsity, block=CalledBody, **options):
    layers = [Linear(64, 32, rng=0), ReLU(), block(32, 48), ReLU(), Linear(32, 10, rng=3)]
    return Net(layers, sparsity=sparsity, **{**OPTIONS, **options}).fit(X, Y)


LASSO = GroupLasso(8e-3)


@pytest.mark.slow
@pytest.mark.parametrize("block", [ResidualBody, CalledBody, TwoLayers])
@pytest.mark.parametrize("groups", ["rows", "columns"])
def test_a_body_shrinks_while_it_learns(block, groups):
    net = fitted(GroupLasso(8e-3, groups), block)
    held = next(layer for layer in net.model_.layers if isinstance(layer, block))
    first, second = (part for part in getattr(held, "body", held).layers if isinstance(part, Linear))
    assert first.out_features == second.in_features < 48 and net.score(X_TEST, Y_TEST) > 0.85
    assert net.history_[-1]["weights_kept"] < 0.9 and net.history_[-1]["flops_share"] < 0.95
    if block is not TwoLayers:
        assert second.out_features == 32 == net.model_[-1].in_features or groups == "columns"


def test_tiles_of_a_body_become_sparse():
    layers = [Linear(64, 64, rng=0), ReLU(), CalledBody(64, 96), ReLU(), Linear(64, 10, rng=3)]
    net = Net(layers, sparsity=GroupLasso(7e-3, "tiles"), **OPTIONS).fit(X, Y)
    held = next(layer for layer in net.model_.layers if isinstance(layer, CalledBody))
    assert any(isinstance(part, SparseLinear) for part in held.body.layers)
    assert net.score(X_TEST, Y_TEST) > 0.85


def test_costs_are_measured_inside():
    net = fitted(GroupLasso(8e-3, cost_weight=0.5), epochs=2)
    assert {part for part in net._thinning.costs} == {
        net.model_[0],
        net.model_[2].body[0],
        net.model_[2].body[2],
        net.model_[4],
    }


@pytest.mark.parametrize("block", [ResidualBody, CalledBody, TwoAttributes, TwoLayers])
def test_the_smallest_weights_inside_become_zero(block):
    """Layers that a `Sequential` holds become sparse ones; others keep a mask, as nobody knows who reads their weight."""
    net = fitted(MagnitudePruning(0.8), block)
    total, last = 64 * 32 + 2 * 32 * 48 + 320, 320
    assert net.history_[-1]["weights_kept"] == pytest.approx(1 - 0.8 * (total - last) / total, abs=4 / total)
    parts = [part for _, part in getattr(net.model_[2], "body", net.model_[2]).children() if not isinstance(part, ReLU)]
    assert [type(part) for part in parts] == [Linear if block is TwoAttributes else SparseLinear] * 2
    assert type(net.model_[4]) is Linear and net.score(X_TEST, Y_TEST) > 0.85


def test_subclasses_are_pruned_as_their_bases_are():
    class OwnLSTM(LSTM):
        """The same."""

    net = Net(
        [OwnLSTM(8, 12, batch_first=True, rng=0), LastStep(), Twofold(12, 12, rng=1), SquareOfWidth(12), Linear(12, 10, rng=2)],
        sparsity=MagnitudePruning(0.5),
        **OPTIONS,
    ).fit(X.reshape(-1, 8, 8), Y)
    recurrent, _, doubled, square, answer = net.model_
    for weight in (recurrent.weight_ih_l0, recurrent.weight_hh_l0, doubled.weight):
        assert np.count_nonzero(weight.numpy()) == weight.size // 2
    assert type(doubled) is Twofold and type(square) is SparseLinear and square.weight.nnz == 72
    assert answer.weight.numpy().all()


def test_what_a_layer_holds_can_be_all_there_is_to_prune():
    layers = [CalledBody(64, 16), Linear(64, 10, rng=0)]
    net = Net(layers, sparsity=GroupLasso(1e-3), **{**OPTIONS, "epochs": 1}).fit(X, Y)
    assert net.history_[0]["sparsity_loss"] > 0
    with pytest.raises(ValueError, match="no rows that can be removed"):
        Net([PeekingInside(64, 16), Linear(64, 10)], sparsity=LASSO, **OPTIONS).fit(X, Y)


# --- going back, and files ----------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    "sparsity", [LASSO, GroupLasso(5e-3, ("rows", "columns")), MagnitudePruning(0.8)], ids=["rows", "both", "single"]
)
def test_a_snapshot_brings_back_what_layers_hold(monkeypatch, sparsity):
    plain, found = fitted(sparsity), []

    def epoch_end(self, run, record, original=Thinning.epoch_end):
        saved, before = run.snapshot(), run.model.state_dict()
        first = original(self, run, record)
        after = [p.shape for p in run.model.parameters()]
        run.restore(saved)
        restored = run.model.state_dict()
        assert restored.keys() == before.keys() and all(np.array_equal(restored[name], before[name]) for name in before)
        self.epoch_start(run, run.epoch)
        again = original(self, run, record)
        assert again["weights_kept"] == first["weights_kept"] and after == [p.shape for p in run.model.parameters()]
        found.append(after)
        return first

    monkeypatch.setattr(Thinning, "epoch_end", epoch_end)
    net = fitted(sparsity)
    assert len(found) == 6 and found[0] != found[-1]
    for ours, theirs in zip(net.model_.parameters(), plain.model_.parameters(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("block", [ResidualBody, CalledBody, TwoLayers])
@pytest.mark.parametrize("sparsity", [LASSO, MagnitudePruning(0.8)], ids=["lasso", "pruning"])
def test_what_has_shrunk_inside_is_saved(block, sparsity, tmp_path):
    """Though its constructor would make it as large as it was."""
    net = fitted(sparsity, block)
    net.save(tmp_path / "net")
    for again in (pickle.loads(pickle.dumps(net)), Net.load(tmp_path / "net")):
        np.testing.assert_array_equal(again.predict_proba(X_TEST), net.predict_proba(X_TEST))
        assert shapes(again.model_) == shapes(net.model_)


def test_a_subclass_that_has_shrunk_is_saved_as_its_base(tmp_path):
    net = Net([Linear(64, 32, rng=0), ReLU(), SquareOfWidth(32), ReLU(), Linear(32, 10, rng=3)], sparsity=LASSO, **OPTIONS).fit(
        X, Y
    )
    assert type(net.model_[2]) is SquareOfWidth and net.model_[2].out_features < 32
    net.save(tmp_path / "net")
    again = Net.load(tmp_path / "net")
    np.testing.assert_array_equal(again.predict_proba(X_TEST), net.predict_proba(X_TEST))
    assert type(again.model_[2]) is Linear
