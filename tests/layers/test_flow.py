"""What passes between layers, and layers that hold layers: nothing is lost, whatever stands between."""

import copy

import numpy as np
import pytest

from numbanet import (
    LSTM,
    BatchNorm1d,
    BatchNorm2d,
    Context,
    Conv2d,
    DynamicSparseGraph,
    Embedding,
    Flatten,
    Flow,
    LastStep,
    Layer,
    Linear,
    MaxPool2d,
    Net,
    ReLU,
    RowDropout,
    Sequential,
    SparseLinear,
    Tanh,
    Tensor,
)
from numbanet.layers import ActivationSpec, Columns, Tags, Tree
from numbanet.plans import Plans, RowPlan, on_device

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


class Doubling(Layer):
    """A user's layer that knows nothing of flows."""

    def __call__(self, x):
        return x + x


class ResidualBlock(Layer):
    """A residual block as a user writes it."""

    def __init__(self, width):
        self.width = width
        self.body = Sequential([Linear(width, width, rng=1), ReLU(), BatchNorm1d(width), Linear(width, width, rng=2)])

    def __call__(self, x):
        return x + self.body(x)


class Swish(Layer):
    def __init__(self):
        self.gain = Tensor(1.0, requires_grad=True)

    def __call__(self, x):
        return x * (self.gain * x).sigmoid()


# --- lengths of sequences ---------------------------------------------------------------------------------------------
BETWEEN = {
    "Linear": lambda: [Linear(6, 6, rng=3)],
    "SparseLinear": lambda: [SparseLinear(6, 6, 0.3, rng=3)],
    "a user's layer": lambda: [Doubling()],
    "Sequential": lambda: [Sequential([Linear(6, 6, rng=3), Tanh()])],
    "a user's layer that holds an LSTM": lambda: [Recurrent()],
    "a flow without tags": lambda: [Anew()],
}


class Anew(Layer):
    """It makes a flow of its own."""

    def forward(self, flow, context):
        return Flow(flow.dense() * 2.0)


class Recurrent(Layer):
    def __init__(self):
        self.cells = LSTM(6, 6, batch_first=True, rng=4)

    def __call__(self, x):
        return self.cells(x)[0]


@pytest.mark.parametrize("between", BETWEEN)
def test_lengths_of_sequences_pass_through_every_layer(between, dev):
    """Padding changes nothing, whatever stands between the embedding and the LSTM, or after it."""
    from numbanet.layers import to

    x = np.array([[1, 2, 3], [4, 5, 1], [2, 2, 2]], np.int32)
    padded = np.pad(x, ((0, 0), (0, 4)))
    model = Sequential(
        [
            Embedding(6, 6, padding_idx=0, rng=0),
            *BETWEEN[between](),
            LSTM(6, 6, batch_first=True, rng=1),
            *BETWEEN[between](),
            LastStep(),
        ]
    )
    to(model, dev)
    short, long = (model(Tensor.wrap(dev.upload(ids), dev)).numpy() for ids in (x, padded))
    np.testing.assert_allclose(long, short, rtol=1e-6, atol=1e-7)


def test_every_layer_carries_the_tags_of_a_flow():
    tags, plan = Tags(np.array([2, 1])), RowPlan(4, 2, 0)
    for layer, shape in (
        (Linear(4, 4), (2, 3, 4)),
        (SparseLinear(4, 4, 0.2, rng=0), (2, 3, 4)),
        (BatchNorm1d(4), (2, 4, 3)),
        (ReLU(), (2, 3, 4)),
        (LSTM(4, 4, batch_first=True), (2, 3, 4)),
        (Doubling(), (2, 3, 4)),
        (Conv2d(4, 4, 1), (2, 4, 3, 3)),
        (BatchNorm2d(4), (2, 4, 3, 3)),
        (MaxPool2d(2), (2, 4, 4, 4)),
        (Flatten(), (2, 3, 4)),
        (ResidualBlock(4), (6, 4)),
    ):
        assert layer.forward(Flow(Tensor(np.ones(shape)), tags=tags), Context()).tags is tags, layer
    for layer in (Linear(4, 4), SparseLinear(4, 4, 0.2, rng=0)):
        x = Tensor(np.ones((2, 3, 2)))
        flow = Flow(x, Columns(on_device(plan, x.device)), (plan,), tags)
        assert layer.forward(flow, Context(plans={layer: plan})).tags is tags, layer


# --- layers that hold layers ------------------------------------------------------------------------------------------
def theirs(width, layers):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(
                torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, width)
            )

        def forward(self, x):
            return x + self.body(x)

    model = torch.nn.Sequential(torch.nn.Linear(5, width), Block(), torch.nn.Linear(width, 3))
    model.load_state_dict(
        {name: torch.tensor(value).reshape(model.state_dict()[name].shape) for name, value in layers.state_dict().items()}
    )
    return model


def test_a_residual_block_is_trained_as_in_pytorch(rng):
    """Its weights under PyTorch's names, its batch norm in training mode, its gradients."""
    ours = Sequential([Linear(5, 8, rng=0), ResidualBlock(8), Linear(8, 3, rng=5)])
    assert "1.body.0.weight" in ours.state_dict() and "1.body.2.running_var" in ours.state_dict()
    other, x = theirs(8, ours), rng.standard_normal((16, 5)).astype(np.float32)
    y = ours(Tensor(x), Context(training=True))
    expected = other.train()(torch.tensor(x))
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    (y * y).sum().backward()
    (expected * expected).sum().backward()
    for (name, tensor, trained), (_, parameter) in zip(
        [named for named in ours.named() if named[2]], other.named_parameters(), strict=True
    ):
        np.testing.assert_allclose(tensor.grad, parameter.grad.numpy(), rtol=2e-4, atol=2e-5, err_msg=name)
        assert trained
    np.testing.assert_allclose(ours[1].body[2].running_var.numpy(), other[1].body[2].running_var.numpy(), rtol=1e-5)
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), other.eval()(torch.tensor(x)).detach().numpy(), rtol=1e-5, atol=1e-5)


def samples(n=96):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 12)).astype(np.float32)
    return X, (X[:, 0] * X[:, 1] > 0).astype(int)


@pytest.mark.parametrize("dropout", ["none", "rdp", "tdp", "batchwise", "bernoulli", "dsg"])
def test_a_residual_block_learns_under_dropout_is_saved_and_loaded(dropout, tmp_path):
    X, y = samples()
    layers = [Linear(12, 32, rng=0), ReLU(), ResidualBlock(32), ReLU(), Linear(32, 2, rng=1)]
    net = Net(
        layers, dropout=dropout, dropout_rate=0.3, epochs=4, batch_size=32, random_state=0, learning_rate=0.05, device="cpu"
    ).fit(X, y)
    before = {name: tensor.numpy() for name, tensor, _ in Sequential(layers).named()}
    changed = [name for name, tensor, _ in net.model_.named() if not np.array_equal(tensor.numpy(), before[name])]
    assert set(changed) == set(before)
    net.save(tmp_path / "net")
    other = Net.load(tmp_path / "net")
    assert isinstance(other.model_[2], ResidualBlock) and np.array_equal(other.predict_proba(X), net.predict_proba(X))
    assert net.history_[-1]["flops_share"] < 1 or dropout in ("none", "bernoulli")


def test_a_residual_block_moves_and_is_copied(dev):
    from numbanet.layers import to

    block = copy.deepcopy(ResidualBlock(4))
    to(block, dev)
    assert {tensor.device for _, tensor, _ in block.named()} == {dev} and len(list(block.parameters())) == 6


def test_sites_inside_a_users_layer_are_sites():
    model = Sequential([Linear(12, 32), ReLU(), ResidualBlock(32), Linear(32, 2)])
    assert [site.path for site in model.droppable()] == ["0.output", "2.body.0.output", "2.body.3.output"]
    assert [site.number for site in model.droppable("tiles")] == [0, 1, 2]
    drawn = {site: RowPlan(32, 4, 1, 4.0) for site in model.droppable()}
    x = Tensor(np.random.default_rng(0).standard_normal((6, 12)))
    y = model(x, Context(plans=drawn, model=model, training=True)).numpy()

    def linear(layer, x, plan=None):
        z = x @ layer.weight.numpy().T + layer.bias.numpy()
        return z if plan is None else z * plan.mask() * plan.scale

    first, block, last = model[0], model[2].body, model[3]
    plan = RowPlan(32, 4, 1, 4.0)
    h = np.maximum(linear(first, x.numpy(), plan), 0)
    inner = np.maximum(linear(block[0], h, plan), 0)
    held = inner[:, plan.indices()]
    normed = np.zeros_like(inner)
    normed[:, plan.indices()] = (held - held.mean(0)) / np.sqrt(held.var(0) + 1e-5)
    np.testing.assert_allclose(y, linear(last, h + linear(block[3], normed, plan)), rtol=2e-3, atol=2e-4)


def test_flops_inside_a_users_layer_are_those_that_are_done():
    model, n = Sequential([Linear(12, 32), ResidualBlock(32), Linear(32, 2)]), 10
    dense = 2 * n * (12 * 32 * 2 + 32 * 32 * 3 * 2 + 32 * 2 * 3)
    assert model.cost(ActivationSpec((n, 12)), Plans())[0].flops == dense
    inner = model[1].body[0]
    thinned = model.cost(ActivationSpec((n, 12)), Context(plans={inner: RowPlan(32, 4, 0)}).plans)[0].flops
    assert thinned == dense - 2 * n * 3 * (32 * 24 + 24 * 32)


def test_what_is_passed_over_by_dropout_is_named():
    class Own(Layer):
        def __init__(self):
            self.matrix = Tensor(np.eye(32), requires_grad=True)

        def __call__(self, x):
            return x @ self.matrix

    X, y = samples()
    with pytest.warns(UserWarning, match=r"rdp: all weights of 2 \(Own\) are computed, which is right unless"):
        Net([Linear(12, 32), ReLU(), Own(), Linear(32, 2)], dropout="rdp", epochs=1).fit(X, y)


def test_a_layer_that_holds_itself_is_refused():
    block = ResidualBlock(3)
    block.again = Sequential([block])
    with pytest.raises(ValueError, match="contains itself"):
        Tree(block)


@pytest.mark.parametrize("held", [lambda layer: [layer], lambda layer: (layer, [layer]), lambda layer: {"a": layer}])
def test_layers_in_lists_and_dicts_are_found(held):
    class Holder(Layer):
        def __init__(self):
            self.parts = held(Linear(2, 2))

    assert len(list(Holder().parameters())) == 2


# --- shapes that a layer does not say ---------------------------------------------------------------------------------
def test_a_users_layer_stands_before_layers_of_images():
    X = np.random.default_rng(0).standard_normal((48, 3, 8, 8)).astype(np.float32)
    y = (X.mean((1, 2, 3)) > 0).astype(int)
    layers = [
        Conv2d(3, 4, 3, rng=0),
        Swish(),
        MaxPool2d(2),
        Swish(),
        BatchNorm2d(4),
        Conv2d(4, 4, 3, rng=1),
        Swish(),
        Flatten(),
        Linear(4, 2, rng=2),
    ]
    net = Net(layers, epochs=2, batch_size=16, device="cpu").fit(X, y)
    assert net.model_[1].gain.item() != 1.0 and net.predict(X).shape == (48,)


def test_a_users_layer_that_cannot_take_what_comes_is_refused_before_training():
    class Paired(Layer):
        def __call__(self, x):
            return x.reshape(x.shape[0], 2, 5)

    with pytest.raises(ValueError, match=r"Paired\(\): it cannot take a batch of shape \(32, 12\)"):
        Net([Paired(), Flatten(), Linear(10, 2)], batch_size=32).fit(*samples())


# --- a subclass of a known layer --------------------------------------------------------------------------------------
class Named(ReLU):
    """What a ReLU does, by another name."""


class Shifted(ReLU):
    """A ReLU that is not one."""

    def forward(self, flow, context):
        return flow._replace(x=flow.x + 1.0)


@pytest.mark.parametrize("kind, units", [(ReLU, True), (Named, True), (Shifted, False)])
def test_subclasses_of_known_layers_say_what_they_do_to_units(kind, units, tmp_path):
    assert kind().passes_units is units
    X, y = samples()
    net = Net([Linear(12, 8, rng=0), kind(), Linear(8, 2, rng=1)], epochs=1, device="cpu").fit(X, y)
    net.save(tmp_path / "net")
    assert type(Net.load(tmp_path / "net").model_[1]) is kind


# --- channels that a policy chooses -----------------------------------------------------------------------------------
def test_features_of_chosen_channels_stay_compact():
    """The same whether channels were drawn before the pass or chosen in it."""
    model = Sequential([Conv2d(3, 8, 3, rng=0), ReLU(), Flatten(), Linear(8 * 36, 4, rng=1)])
    tree, x = Tree(model), Tensor(np.random.default_rng(0).standard_normal((16, 3, 8, 8)))
    chosen = Plans("cpu", tree.sites, choose=DynamicSparseGraph(0.5).choosing(tree, np.random.default_rng(0)))
    flow, _ = model.before_last(Flow(x), Context("cpu", chosen))
    drawn, _ = model.before_last(Flow(x), Context("cpu", {model[0]: chosen.of(model[0])}))
    assert isinstance(flow.layout, Columns) and flow.x.shape == (16, 4 * 36) and np.array_equal(flow.x.numpy(), drawn.x.numpy())


def test_a_rate_for_each_site_counts_those_inside():
    X, y = samples()
    layers = [Linear(12, 32, rng=0), ResidualBlock(32), Linear(32, 2, rng=1)]
    net = Net(layers, dropout=RowDropout((0.5, 0.0, 0.5)), epochs=1, random_state=0, device="cpu").fit(X, y)
    assert 0.1 < net.history_[0]["flops_share"] < 1


# --- what a model is, as a table --------------------------------------------------------------------------------------
def test_a_model_is_printed_as_a_table():
    model = Sequential([Linear(12, 32), ReLU(), ResidualBlock(32), Sequential([Linear(32, 2)])])
    assert "Linear(12, 32)" in str(model) and "FLOPs" in str(model)
    model.expect((12,), RowDropout(0.5))
    rows = {line.split()[0]: line for line in str(model).splitlines() if line.split() and line.split()[0][0].isdigit()}
    assert list(rows) == ["0", "1", "2", "2.body.0", "2.body.1", "2.body.2", "2.body.3", "3.0", "2,658"]
    assert rows["0"].split()[3:] == ["32", "416", "1.54", "k", "rdp", "0.5"] and rows["2.body.0"].endswith("rdp 0.5")
    assert rows["3.0"].split()[3:] == ["2", "66", "384"]  # the answer
    total = model.cost(ActivationSpec((1, 12)), Plans())[0].flops
    assert f"{total / 1000:.3g} k" in rows["2,658"] and repr(model).startswith("Sequential([Linear(12, 32), ")


# --- sequences of other lengths ---------------------------------------------------------------------------------------
def test_sequences_may_have_other_lengths_than_those_of_fit(rng):
    X = np.where(np.arange(9) < rng.integers(2, 10, (60, 1)), rng.integers(1, 6, (60, 9)), 0)
    y = X[:, 0] > 2
    net = Net(
        [
            Embedding(6, 5, padding_idx=0, rng=0),
            Linear(5, 5, rng=1),
            LSTM(5, 6, batch_first=True, rng=2),
            LastStep(),
            Linear(6, 2, rng=3),
        ],
        epochs=2,
        random_state=0,
        device="cpu",
    ).fit(X, y)
    expected = net.predict_proba(X)
    np.testing.assert_allclose(net.predict_proba(np.pad(X, ((0, 0), (0, 4)))), expected, rtol=1e-5)
    short = X[(X[:, 4:] == 0).all(1)]
    np.testing.assert_allclose(net.predict_proba(short[:, :4]), expected[(X[:, 4:] == 0).all(1)], rtol=1e-5)
    assert net.partial_fit(X[:, :5], y).predict(X).shape == (60,)
    with pytest.raises(ValueError, match=r"X has samples of shape \(9, 2\), and Net expects \(9,\)"):
        net.predict(np.zeros((3, 9, 2), int))


def test_features_may_not_be_others_than_those_of_fit(rng):
    X, y = samples()
    net = Net([Linear(12, 4, rng=0), ReLU(), Linear(4, 2, rng=1)], epochs=1, device="cpu").fit(X, y)
    for other in (X[:, :7], X[0], X[:, :, None]):
        with pytest.raises(ValueError, match=r"X has samples of shape .*, and Net expects \(12,\)"):
            net.predict(other)
