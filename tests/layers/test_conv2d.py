"""Conv2d: equal to PyTorch's, and under plans to the dense network whose dropped parts are multiplied by 0."""

import numpy as np
import pytest

from numbanet import (
    SGD,
    Adam,
    BatchNorm2d,
    BernoulliPlan,
    BlockPlan,
    Context,
    Conv2d,
    Flatten,
    IndexPlan,
    Linear,
    MaxPool2d,
    Plans,
    ReLU,
    RowPlan,
    Sequential,
    Tensor,
    check_grad,
    ops,
)
from numbanet.gradients import Dense, Packed
from numbanet.layers import ActivationSpec, Tree
from numbanet.plans import AxisPlan, ChannelBlockPlan, PositionTilePlan
from numbanet_kernels.layouts.windows import Window
from tests.layers.tolerance import close

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


# --- PyTorch's --------------------------------------------------------------------------------------------------------
# arguments, options, images; FEW run on every device
FEW = [((3, 5, 3), {"padding": 1}, (2, 3, 5, 4)), ((4, 6, (3, 2)), {"stride": (2, 1), "groups": 2}, (1, 4, 6, 5))]
MANY = [
    ((3, 4, 3), {}, (3, 3, 9, 8)),
    ((1, 6, 5), {"padding": 2}, (2, 1, 12, 11)),
    ((3, 7, 3), {"stride": 2}, (2, 3, 9, 8)),
    ((8, 5, 1), {}, (2, 8, 5, 6)),
    ((3, 5, 7), {"padding": 3}, (1, 3, 7, 8)),
    ((4, 3, (1, 5)), {"padding": (0, 2)}, (2, 4, 3, 6)),
    ((3, 4, 3), {"dilation": (2, 1), "padding": (2, 1)}, (2, 3, 8, 7)),
    ((6, 6, 3), {"groups": 6}, (2, 6, 6, 5)),
    ((6, 9, 3), {"groups": 3, "stride": 2, "padding": 1, "bias": False}, (2, 6, 7, 6)),
    ((3, 4, 3), {"bias": False}, (2, 3, 5, 5)),
    ((3, 4, 3), {}, (0, 3, 5, 5)),
    ((5, 33, 2), {"stride": 2}, (3, 5, 4, 6)),
    ((2, 3, 2), {"padding": 3}, (1, 2, 1, 1)),
]


def passes(ours, theirs, host, dev):
    """Output and all gradients, ours and PyTorch's."""
    x, other = Tensor(host, dev, requires_grad=True), torch.from_numpy(host).requires_grad_()
    y, y_other = ours(x), theirs(other)
    assert y.shape == tuple(y_other.shape)
    dy = np.random.default_rng(2).standard_normal(y.shape).astype(np.float32)
    y.backward(dy)
    y_other.backward(torch.from_numpy(dy))
    return (
        [y.numpy(), x.grad.numpy(), *(p.grad.numpy() for p in ours.parameters())],
        [y_other.detach(), other.grad, *(p.grad for p in theirs.parameters())],
    )


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("arguments, options, shape", FEW, ids=str)
def test_it_equals_pytorchs(dev, rng, arguments, options, shape, relu):
    """Values and gradients; a ReLU after it is done by it."""
    ours, theirs = Conv2d(*arguments, **options, device=dev), torch.nn.Conv2d(*arguments, **options)
    ours.load_state_dict(theirs.state_dict())
    assert [(name, tensor.shape) for name, tensor, _ in ours.named()] == [
        (name, tuple(tensor.shape)) for name, tensor in theirs.state_dict().items()
    ]
    if relu:
        ours, theirs = Sequential([ours, ReLU()]), torch.nn.Sequential(theirs, torch.nn.ReLU())
        assert len(list(ours._stages())) == 1
    found = passes(ours, theirs, np.float32(rng.standard_normal(shape)), dev)
    for mine, other in zip(*found, strict=True):
        close(mine, other)
    assert ours.cost(ActivationSpec(shape), Plans(dev))[1].shape == found[0][0].shape


@pytest.mark.parametrize("arguments, options, shape", MANY, ids=str)
def test_it_equals_pytorchs_for_any_arguments(rng, arguments, options, shape):
    for relu in (False, True):
        test_it_equals_pytorchs("cpu", rng, arguments, options, shape, relu)


def test_relu_on_its_own_gives_what_the_fused_one_gives(dev, rng):
    layer, host = Conv2d(3, 4, 3, rng=0, device=dev), np.float32(rng.standard_normal((2, 3, 6, 5)))
    fused, apart = Sequential([layer, ReLU()])(Tensor(host, dev)), ReLU()(layer(Tensor(host, dev)))
    np.testing.assert_array_equal(fused.numpy(), apart.numpy())


def test_the_gradient_of_the_op_by_differences(dev, rng):
    x, w, b = (Tensor(rng.standard_normal(s), dev, requires_grad=True) for s in ((2, 4, 3, 3), (4, 3, 2, 2), (4,)))
    window, plan = Window((2, 2), (1, 1), (0, 1)), BlockPlan((24, 12), 5, 5, [[0, 2], [1, 2], [0, 1], [0, 2], [1, 2]], 1.5)
    for options in ({}, {"positions": IndexPlan(24, np.arange(1, 24, 3), 2.0)}, {"blocks": plan}):
        check_grad(lambda *t, options=options: ops.conv2d(*t, window=window, **options), [x, w, b])


def test_kept_filters_and_channels_are_those_of_a_smaller_weight(dev, rng):
    """Enough of them for Winograd's filtering on CUDA."""
    rows, cols, window = (
        IndexPlan(21, np.arange(1, 21, 2), 2.0),
        IndexPlan(18, np.arange(0, 18, 2)),
        Window((3, 3), (1, 1), (1, 1)),
    )
    shapes = (4, 5, 6, 9), (21, 18, 3, 3), (21,)
    hosts = [np.float32(rng.standard_normal(shape)) for shape in shapes]
    ours = [Tensor(host, dev, requires_grad=True) for host in hosts]
    theirs = [torch.from_numpy(np.float64(host)).requires_grad_() for host in hosts]
    y = ops.conv2d(*ours, window=window, rows=rows, cols=cols, relu=True)
    kept = np.array(rows.indices())
    x, w, b = theirs[0].permute(0, 3, 1, 2), theirs[1][kept][:, np.array(cols.indices())], theirs[2][kept]
    expected = torch.relu(2 * torch.nn.functional.conv2d(x, w, b, padding=1)).permute(0, 2, 3, 1)
    dy = np.float32(rng.standard_normal(expected.shape))
    y.backward(dy)
    expected.backward(torch.from_numpy(np.float64(dy)))
    close(y.numpy(), expected.detach())
    for mine, other in zip(ours, theirs, strict=True):
        close(mine.grad.numpy(), other.grad)


@pytest.mark.parametrize(
    "init, options, variance",
    [("he", {}, 2 / 180), ("glorot", {}, 2 / (180 + 360)), ("he", {"groups": 2}, 2 / 90), ("glorot", {"groups": 2}, 2 / 270)],
)
def test_initial_weights_have_the_stated_variance(init, options, variance):
    layer = Conv2d(20, 40, 3, init=init, rng=0, **options)
    assert layer.weight.numpy().var() == pytest.approx(variance, rel=0.05) and not layer.bias.numpy().any()
    np.testing.assert_array_equal(layer.weight.numpy(), Conv2d(20, 40, 3, init=init, rng=0, **options).weight.numpy())


def test_repr_shows_what_is_not_usual():
    layers = [Conv2d(3, 4, 3), Conv2d(4, 4, (3, 2), 2, (1, 0), 2, 2, False)]
    assert list(map(repr, layers)) == [
        "Conv2d(3, 4, 3)",
        "Conv2d(4, 4, (3, 2), stride=2, padding=(1, 0), dilation=2, groups=2, bias=False)",
    ]


# --- plans ------------------------------------------------------------------------------------------------------------
def convolved(layer, x, w, b, own, inner):
    """A convolution by PyTorch in float64, as a product with its input matrix, of which plans drop parts."""
    kernel, stride, padding, dilation = layer.window
    patches = torch.nn.functional.unfold(x, kernel, dilation, padding, stride)
    n, _, places = patches.shape
    a = patches.reshape(n, x.shape[1], -1, places).permute(0, 3, 2, 1).reshape(n * places, -1)
    if isinstance(inner, BlockPlan):
        a = a * torch.from_numpy(inner.scale * inner.mask())
    y = a @ w.permute(0, 2, 3, 1).flatten(1).T + b
    if isinstance(inner, AxisPlan):
        y = y * torch.from_numpy(inner.scale * inner.mask())[:, None]
    if own is not None:
        y = y * torch.from_numpy(own.scale * own.mask())
    return y.reshape(n, *layer.window.positions(*x.shape[2:]), -1).permute(0, 3, 1, 2)


def masked(model, plans, host, dy):
    """[y, dx and the gradients of the parameters] of the dense network in float64, by PyTorch."""
    tensors = {name: torch.from_numpy(np.array(value, float)).requires_grad_() for name, value in model.state_dict().items()}
    x = first = torch.from_numpy(np.float64(host)).requires_grad_()
    mask = None
    for i, layer in enumerate(model.layers):
        own = [tensors.get(f"{i}.{name}") for name in ("weight", "bias")]
        if isinstance(layer, Conv2d):
            plan, inner = plans.get((layer, "output")), plans.get((layer, "input"))
            x, mask = convolved(layer, x, *own, plan, inner), None if plan is None else torch.from_numpy(1.0 * plan.mask())
        elif isinstance(layer, BatchNorm2d):
            x = torch.nn.functional.batch_norm(x, None, None, *own, training=True)
            x = x if mask is None else x * mask[:, None, None]
        elif isinstance(layer, Linear):
            x = x @ own[0].T + own[1]
        else:
            x = {ReLU: torch.relu, Flatten: lambda x: x.flatten(1), MaxPool2d: lambda x: torch.nn.functional.max_pool2d(x, 2)}[
                type(layer)
            ](x)
    x.backward(torch.from_numpy(dy))
    trained = [name for name, _, wanted in model.named() if wanted]
    return [x.detach(), first.grad, *(tensors[name].grad for name in trained)]


def network(dev, batch_norm=False):
    """Two convolutions, the second one after pooling, and a linear layer. Their input matrices: (N 30, 18) and (N 6, 63)."""
    norm = [BatchNorm2d(7, device=dev)] if batch_norm else []
    return Sequential(
        [
            Conv2d(2, 7, 3, padding=(1, 0), rng=0, device=dev),
            *norm,
            ReLU(),
            MaxPool2d(2),
            Conv2d(7, 5, 3, padding=1, rng=1, device=dev),
            ReLU(),
            Flatten(),
            Linear(30, 3, rng=2, device=dev),
        ]
    )


N, SIZE = 3, (5, 8)  # images, and their height and width: the first convolution gives 5 x 6 positions, pooling 2 x 3
FILTERS = [
    (RowPlan(7, 2, 1, 1.5), RowPlan(5, 3, 0, 2.0)),
    (IndexPlan(7, [0, 1, 5], 2.5), None),
    (None, IndexPlan(5, [4])),
    (RowPlan(7, 7, 6), IndexPlan(5, [1, 2], 2.0)),
    (RowPlan(7, 9, 8), IndexPlan(5, [])),
    (IndexPlan(7, range(7), 0.5), RowPlan(5, 2, 0)),
]
POSITIONS = [
    (RowPlan(90, 2, 1, 2.0), None),
    (IndexPlan(90, [0, 3, 4, 50, 89], 1.5), IndexPlan(18, [2, 17])),
    (None, IndexPlan(18, [])),
    (PositionTilePlan((3, 6, 5), 4, [0, 2, 5, 7, 10], 2.0), PositionTilePlan((3, 2, 3), 2, [1, 4], 1.5)),
]


def block_plan(shape, height, width, count, scale):
    order = np.random.default_rng(3).random((-(-shape[0] // height), -(-shape[1] // width))).argsort(1)
    return BlockPlan(shape, height, width, np.sort(order[:, :count], 1), scale)


BLOCKS = [
    (block_plan((90, 18), 30, 6, 2, 1.5), None),
    (block_plan((90, 18), 7, 4, 3, 1), block_plan((18, 63), 6, 7, 4, 1.75)),
    (None, block_plan((18, 63), 4, 10, 0, 1.0)),
    (
        ChannelBlockPlan((3, 6, 5), 2, 9, 2, 1, [[0], [1]], 1.5),
        ChannelBlockPlan((3, 2, 3), 1, 9, 7, 1, [[0, 3], [2, 6], [1, 2]]),
    ),
    (None, block_plan((18, 63), 20, 64, 1, 0.5)),
]


def check_plans(dev, rng, by_site, batch_norm=False):
    """A network whose convolutions have these plans, (first, second) by the name of a site, against the masked dense one."""
    model = network(dev, batch_norm)
    first, second = (layer for layer in model.layers if isinstance(layer, Conv2d))
    plans = {
        (layer, name): plan for name, pair in by_site.items() for layer, plan in zip((first, second), pair) if plan is not None
    }
    sites = Tree(model).sites
    host, dy = rng.standard_normal((N, 2, *SIZE)), rng.standard_normal((N, 3))
    x = Tensor(host, dev, requires_grad=True)
    y = model(x, Context(dev, {sites[place]: plan for place, plan in plans.items()}, training=True, model=model))
    y.backward(dy)
    for mine, other in zip(
        [y, x.grad, *(p.grad for p in model.parameters())], masked(model, plans, np.float32(host), dy), strict=True
    ):
        close(mine.numpy(), other, 5e-5 if batch_norm else 2e-5)
    return model


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("pair", FILTERS, ids=str)
def test_plans_of_filters(dev, rng, pair, batch_norm):
    """Compact through ReLU, pooling, BatchNorm2d, the next convolution, Flatten and Linear."""
    model = check_plans(dev, rng, {"output": pair}, batch_norm)
    outs = [n if plan is None else plan.count for plan, n in zip(pair, (7, 5))]
    weights = [layer.weight.gradient for layer in (model.layers[0], model.layers[-4], model.layers[-1])]
    assert [isinstance(w, Packed) for w in weights] == [outs[0] < 7, outs != [7, 5], outs[1] < 5]
    assert [int(np.prod(w.values.shape)) for w in weights] == [outs[0] * 18, outs[1] * outs[0] * 9, 3 * outs[1] * 6]


@pytest.mark.parametrize("pair", POSITIONS + BLOCKS, ids=str)
@pytest.mark.parametrize("filters", [(None, None), FILTERS[0]], ids=["all filters", "some filters"])
def test_plans_of_the_input(dev, rng, pair, filters):
    if isinstance(pair[0], BlockPlan):
        filters = None, filters[1]
    if isinstance(pair[1], BlockPlan):
        filters = filters[0], None
    check_plans(dev, rng, {"input": pair, "output": filters})


def test_plans_of_the_input_before_batch_norm(dev, rng):
    for pair in (POSITIONS[0], BLOCKS[1]):
        check_plans(dev, rng, {"input": pair}, True)


def test_random_bits_come_after_the_activation_and_before_pooling(dev, rng):
    model, plan = network(dev), BernoulliPlan(7, 0.4, 3, 1 / 0.6)
    first, _, pool, *others = model.layers
    x = Tensor(rng.standard_normal((N, 2, *SIZE)), dev)
    hidden = ops.dropout(first(x).relu().transpose(0, 2, 3, 1), plan=plan)
    assert 0.3 < np.mean(hidden.numpy()[first(x).relu().numpy().transpose(0, 2, 3, 1) > 0] == 0) < 0.5
    expected = Sequential(others)(pool(hidden.transpose(0, 3, 1, 2)))
    close(model(x, {first: plan}).numpy(), expected.numpy())


def test_groups_take_what_is_compact_and_drop_positions(dev, rng):
    first, second = Conv2d(2, 6, 3, rng=0, device=dev), Conv2d(6, 4, 2, groups=2, rng=1, device=dev)
    plan, positions = RowPlan(6, 2, 1, 2.0), IndexPlan(2 * 4, [0, 5, 6], 1.5)
    x = Tensor(rng.standard_normal((2, 2, 5, 5)), dev)
    model = Sequential([first, second])
    y = model(x, {first: plan, Tree(model).sites[second, "input"]: positions})
    hidden = first(x).numpy() * (plan.mask() * plan.scale)[:, None, None]
    expected = second(Tensor(hidden, dev)).numpy() * (positions.mask() * 1.5).reshape(2, 1, 2, 2)
    close(y.numpy(), expected)


# --- costs, updates ---------------------------------------------------------------------------------------------------
def test_the_flops_are_those_of_the_kept_products():
    model = network("cpu")
    first, second = model.layers[0], model.layers[3]

    def flops(name, pair):
        sites = [Tree(model).sites[layer, name] for layer in (first, second)]
        plans = {site: plan for site, plan in zip(sites, pair) if plan is not None}
        return model.cost(ActivationSpec((N, 2, *SIZE)), Context(plans=plans, model=model).plans)[0].flops

    def products(rows, cols, last):
        """Forward and dW of the first, of `rows` elements of its input matrix and `cols` filters; dx too of the others."""
        return 2 * (2 * rows[0] * cols[0] + 3 * rows[1] * cols[1] + 3 * N * last * 3)

    def kept(pair, n):
        """What the masks of two plans hold."""
        return [whole if plan is None else int(plan.mask().sum()) for plan, whole in zip(pair, n)]

    assert flops("input", (None, None)) == products((90 * 18, 18 * 63), (7, 5), 30)
    for pair in BLOCKS:
        assert flops("input", pair) == pytest.approx(products(kept(pair, (90 * 18, 18 * 63)), (7, 5), 30))
    for pair in POSITIONS:
        rows = kept(pair, (90, 18))
        assert flops("input", pair) == pytest.approx(products((rows[0] * 18, rows[1] * 63), (7, 5), 30))
    for pair in FILTERS:
        cols = kept(pair, (7, 5))
        assert flops("output", pair) == pytest.approx(products((90 * 18, 18 * 9 * cols[0]), cols, 6 * cols[1]))


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: SGD(parameters, 0.1, 0.9, weight_decay=0.01),
        lambda parameters: SGD(parameters, 0.1, 0.9, nesterov=True),
        lambda parameters: Adam(parameters, 0.01),
    ],
    ids=["SGD", "Nesterov", "Adam"],
)
@pytest.mark.slow
def test_packed_gradients_train_as_dense_ones_do(dev, rng, make):
    """In several steps, each with other filters."""
    packed, dense = network(dev), network(dev)
    dense.load_state_dict(packed.state_dict())
    optimizers = [make(model.parameters()) for model in (packed, dense)]
    for pair in FILTERS[:5]:
        host = rng.standard_normal((N if dev.name != "emulated" else 1, 2, *SIZE))
        for model, optimizer in zip((packed, dense), optimizers):
            plans = {layer: plan for layer, plan in zip((model.layers[0], model.layers[3]), pair) if plan is not None}
            (model(Tensor(host, dev), plans) ** 2).mean().backward()
            if model is dense:
                for parameter in model.parameters():
                    parameter.gradient = Dense(dev.upload(parameter.grad.numpy()))
            optimizer.step()
            optimizer.zero_grad()
    for optimizer in optimizers:
        optimizer.settle()
    for ours, theirs in zip(packed.parameters(), dense.parameters(), strict=True):
        close(ours.numpy(), theirs.numpy(), 1e-6)


def test_a_step_reads_the_kept_filters():
    model, plan = network("cpu"), RowPlan(7, 2, 1)
    first, tree = model.layers[0], Tree(model)

    def reads(plans):
        return {weight: part.plan for weight, part in tree.reads(Context(plans=plans, model=model).plans).items()}

    assert reads({first: plan}) == {first.weight: plan}
    assert reads({first: BernoulliPlan(7, 0.5, 1), tree.sites[first, "input"]: RowPlan(90, 2, 0)}) == {}
