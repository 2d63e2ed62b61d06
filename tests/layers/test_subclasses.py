"""Subclasses of known layers, and layers that define `forward`: they do what they say, and cost what they do."""

import gc
import sys
import weakref

import numpy as np
import pytest

from numbanet import Context, Layer, Linear, Net, Plans, ReLU, Rewire, RowPlan, Sequential, SparseLinear, Tensor
from numbanet.layers import ActivationSpec, base


class Doubled(Linear):
    """What a Linear gives, twice."""

    def __call__(self, x):
        return super().__call__(x) * 2.0


class Tripled(Linear):
    """The same by `forward`."""

    def forward(self, flow, context):
        flow = super().forward(flow, context)
        return flow.with_(flow.dense() * 3.0)


class Untransposed(Linear):
    """It reads all of its weight, whatever a plan keeps."""

    def __call__(self, x):
        return x @ self.weight.transpose(1, 0)


class Leaky(ReLU):
    def __call__(self, x):
        return x.relu() - (-x).relu() * 0.1


class Skipping(Sequential):
    def __call__(self, x):
        return x + super().__call__(x)


class Square(Linear):
    """A constructor of its own."""

    def __init__(self, width):
        super().__init__(width, width)
        self.width = width


def samples(n=64):
    X = np.random.default_rng(0).standard_normal((n, 12)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("kind, factor", [(Linear, 1.0), (Doubled, 2.0), (Tripled, 3.0)])
def test_what_a_subclass_does_is_done_in_a_model(kind, factor):
    """Also before a ReLU, with which the parent is fused, and under a plan."""
    layer, x = kind(12, 8, rng=0), samples()[0]
    z = factor * (x @ layer.weight.numpy().T)
    for plan in (None, RowPlan(8, 2, 1, 2.0)):
        mask = 1.0 if plan is None else plan.mask() * plan.scale
        y = Sequential([layer, ReLU()])(Tensor(x), Context(plans={} if plan is None else {layer: plan}))
        np.testing.assert_allclose(y.numpy(), np.maximum(z, 0) * mask, rtol=1e-4, atol=1e-5)


def test_activations_and_chains_are_subclassed():
    x, inner = samples()[0], Linear(12, 12, rng=1)
    model = Sequential([Leaky(), Skipping([inner, ReLU()])])
    leaky = np.where(x > 0, x, 0.1 * x)
    np.testing.assert_allclose(
        model(Tensor(x)).numpy(), leaky + np.maximum(leaky @ inner.weight.numpy().T, 0), rtol=1e-4, atol=1e-5
    )


def test_a_class_below_such_a_subclass_says_again_what_it_does():
    class Again(Doubled):
        def forward(self, flow, context):
            return flow.with_(flow.dense() * 0.0)

    class Quadrupled(Doubled):
        def __call__(self, x):
            return super().__call__(x) * 2.0

    x = samples()[0]
    assert not Sequential([Again(12, 12)])(Tensor(x)).numpy().any()
    layer = Quadrupled(12, 8, rng=0)
    np.testing.assert_allclose(Sequential([layer])(Tensor(x)).numpy(), 4 * x @ layer.weight.numpy().T, rtol=1e-4, atol=1e-5)


def test_no_part_of_an_update_waits_where_a_subclass_may_read_all():
    plans = {layer: RowPlan(8, 2, 1, 2.0) for layer in (Linear(12, 8), Untransposed(12, 8), Tripled(12, 8))}
    for layer, plan in plans.items():
        assert bool(layer.reads(Context(plans={layer: plan}).plans)) is (type(layer) is Linear)


@pytest.mark.parametrize("dropout", ["none", "rdp", "tdp"])
def test_subclasses_learn_and_are_saved(dropout, tmp_path):
    X, y = samples()
    layers = [Doubled(12, 32), Leaky(), Skipping([Linear(32, 32), ReLU()]), Square(32), Tripled(32, 2)]
    net = Net(layers, dropout=dropout, epochs=3, batch_size=16, random_state=0, device="cpu").fit(X, y)
    net.save(tmp_path / "net")
    other = Net.load(tmp_path / "net")
    assert [type(layer) for layer in other.model_.layers] == [type(layer) for layer in layers]
    np.testing.assert_array_equal(other.predict_proba(X), net.predict_proba(X))


def test_a_class_that_was_defined_again_is_the_one_that_is_there_now(monkeypatch, tmp_path):
    """As where a cell of a notebook is run again: the class before may live on."""
    before, X, y = Doubled, *samples()
    again = type("Doubled", (Linear,), {"__call__": before.__call__, "__module__": before.__module__})
    monkeypatch.setattr(sys.modules[__name__], "Doubled", again)
    again.__call__ = lambda self, x: Linear.__call__(self, x) * 2.0
    net = Net([again(12, 4, rng=0), Linear(4, 2, rng=1)], epochs=1, device="cpu").fit(X, y)
    net.save(tmp_path / "net")
    assert type(Net.load(tmp_path / "net").model_[0]) is again
    with pytest.raises(TypeError, match="several layers of the class Doubled"):
        Net([before(12, 4, rng=0), Linear(4, 2, rng=1)], epochs=1, device="cpu").fit(X, y).save(tmp_path / "old")


class Around(Layer):
    """It is given what it holds."""

    def __init__(self, inner, others=()):
        self.inner, self.others = inner, others

    def __call__(self, x):
        y = self.inner(x)
        for layer in self.others:
            y = layer(y)
        return x + y


class Several(Layer):
    def __init__(self, *parts):
        self.parts = parts

    def __call__(self, x):
        return self.parts[0](x)


def test_layers_that_are_given_to_others_are_saved(tmp_path):
    X, y = samples()
    layers = [
        Around(SparseLinear(12, 12, 0.3, rng=0)),
        Around(Linear(12, 12), [Sequential([SparseLinear(12, 12, 0.3)]), ReLU()]),
        Linear(12, 2),
    ]
    net = Net(layers, epochs=1, random_state=0, device="cpu").fit(X, y)
    net.save(tmp_path / "net")
    np.testing.assert_array_equal(Net.load(tmp_path / "net").predict_proba(X), net.predict_proba(X))
    net = Net([Several(Linear(12, 2))], epochs=1, device="cpu").fit(X, y)
    with pytest.raises(TypeError, match=r"Several\(\) takes \*parts, .*make it one list"):
        net.save(tmp_path / "net")


def test_entries_inside_of_a_users_layer_are_rewired():
    X, y = samples()
    net = Net(
        [Around(SparseLinear(12, 12, 0.3, rng=0)), Linear(12, 2, rng=1)],
        sparsity=Rewire(every=2),
        epochs=4,
        batch_size=16,
        random_state=0,
        device="cpu",
    ).fit(X, y)
    before, after = (layer.state_dict() for layer in (SparseLinear(12, 12, 0.3, rng=0), net.model_[0].inner))
    assert not np.array_equal(before["col_indices"], after["col_indices"]) and net.history_[0]["rewired"] > 0


# --- layers with `forward` alone --------------------------------------------------------------------------------------
class Forwarding(Layer):
    """It hands flows on, which stay compact."""

    def __init__(self):
        self.one, self.body = Linear(12, 12, rng=0), Sequential([Linear(12, 12, rng=1), ReLU()])

    def forward(self, flow, context):
        return self.one.forward(self.body.forward(flow, context), context)


class Calling(Forwarding):
    """It calls what it holds."""

    def forward(self, flow, context):
        return flow.with_(self.one(self.body(flow.dense())))


@pytest.mark.parametrize("kind", [Forwarding, Calling])
def test_a_layer_with_forward_costs_what_the_layers_that_it_calls_do(kind):
    layer, spec = kind(), ActivationSpec((10, 12), None, True)
    cost, out = layer.cost(spec, Plans())
    assert cost == Linear(12, 12).cost(spec, Plans())[0].plus(Linear(12, 12).cost(spec, Plans())[0]) and out.shape == (10, 12)
    assert not any("forward" in vars(inner) for inner in (layer.one, layer.body))
    net = Net([Linear(12, 12), layer, Linear(12, 2)], dropout="rdp", epochs=1, random_state=0, device="cpu").fit(*samples())
    assert 0 < net.history_[0]["flops_share"] < 0.9


def test_a_layer_with_forward_that_cannot_take_what_comes_is_refused_before_training():
    with pytest.raises(ValueError, match=r"Forwarding\(\): it cannot take a batch of shape \(32, 11\)"):
        Net([Linear(12, 11), Forwarding(), Linear(12, 2)], batch_size=32).fit(*samples())


class Detached(Layer):
    """It returns an array, so that no gradient reaches the layers before it."""

    def __call__(self, x):
        return x.numpy()


def test_a_layer_that_returns_no_tensor_is_refused():
    message = r"Detached\(\): __call__ must return a Tensor, made by tensors' methods or numbanet.ops, not ndarray"
    with pytest.raises(ValueError, match=message):
        Net([Linear(12, 12), Detached(), Linear(12, 2)], epochs=1).fit(*samples())
    with pytest.raises(TypeError, match=message):
        Sequential([Linear(12, 12), Detached()])(Tensor(np.ones((2, 12))))


class Briefly(Layer):
    """Calls a layer that it makes."""

    def __init__(self):
        self.weight = Tensor(np.ones((4, 4)), requires_grad=True)

    def __call__(self, x):
        return Linear(4, 4, rng=0)(x) @ self.weight


@pytest.mark.parametrize("make", [lambda: Skipping([Linear(4, 4), ReLU()]), Briefly], ids=["itself", "another"])
def test_what_is_known_of_a_layer_does_not_keep_it_alive(make):
    layer, spec = make(), ActivationSpec((8, 4))
    costs, plans = [], Plans("cpu")
    for _ in range(2):
        called = [type(called) for called, _ in base.trial(layer, (8, 4))[0]]
        assert called == [Linear if make is Briefly else Skipping]
        costs.append(layer.cost(spec, plans)[0].flops)
    assert costs[0] == costs[1] > 0
    gone = weakref.ref(layer)
    del layer
    Linear(4, 4)(Tensor(np.ones((1, 4))))  # the next call of a layer ends the pass before
    gc.collect()
    assert gone() is None
