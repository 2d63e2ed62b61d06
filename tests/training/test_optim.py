"""Optimisers on tensors, with PyTorch as an outside oracle: gradients, and ten steps of a multilayer perceptron."""

import pickle

import numpy as np
import pytest

from numbanet import SGD, Adam, AdamW, Context, Linear, Net, ReLU, RowPlan, Sequential, Tanh, Tensor, TilePlan, ops
from numbanet.device import problem
from numbanet.gradients import Dense, Packed
from numbanet.layers import Tree
from numbanet.training.lazy import LazyUpdates

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")

SIZES, N = (12, 20, 16, 5), 8
LABELS = np.array([0, 3, 2, 4, 1, 1, 0, 2], np.int32)


def pair(activation=ReLU, theirs=torch.nn.ReLU):
    """The same network here and in PyTorch."""
    ours = Sequential([Linear(12, 20, rng=0), activation(), Linear(20, 16, rng=1), activation(), Linear(16, 5, rng=2)])
    their = torch.nn.Sequential(
        *(
            module
            for i in range(3)
            for module in (
                (torch.nn.Linear(SIZES[i], SIZES[i + 1]), theirs()) if i < 2 else (torch.nn.Linear(SIZES[i], SIZES[i + 1]),)
            )
        )
    )
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), their.parameters()):
            other.copy_(torch.from_numpy(mine.numpy()))
    return ours, their


def step(ours, their, x, optimizers):
    """One training step of both; returns both losses."""
    loss = ops.softmax_cross_entropy(ours(Tensor(x)), labels=LABELS)
    other = torch.nn.functional.cross_entropy(their(torch.from_numpy(x)), torch.from_numpy(LABELS.astype(np.int64)))
    for each in (loss, other):
        each.backward()
    optimizers[0].step()
    optimizers[1].step()
    optimizers[1].zero_grad()
    return loss.item(), other.item()


@pytest.mark.parametrize("activation, theirs", [(ReLU, torch.nn.ReLU), (Tanh, torch.nn.Tanh)])
def test_gradients_equal_those_of_pytorch(rng, activation, theirs):
    ours, their = pair(activation, theirs)
    x = rng.standard_normal((N, 12)).astype(np.float32)
    ops.softmax_cross_entropy(ours(Tensor(x)), labels=LABELS).backward()
    torch.nn.functional.cross_entropy(their(torch.from_numpy(x)), torch.from_numpy(LABELS.astype(np.int64))).backward()
    for mine, other in zip(ours.parameters(), their.parameters()):
        np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_a_parameter_that_is_given_twice_takes_one_step():
    w = Tensor(np.ones(3), requires_grad=True)
    (w * 2.0).sum().backward()
    SGD([w, w], 0.5).step()
    np.testing.assert_allclose(w.numpy(), 0.0)


@pytest.mark.parametrize("rows", [None, RowPlan(4, 2, 1)])
def test_a_bias_has_its_gradient_without_that_of_a_frozen_weight(rng, rows):
    x, w, b = (Tensor(rng.standard_normal(shape), requires_grad=shape == (4,)) for shape in ((5, 3), (4, 3), (4,)))
    y = ops.linear(x, w, b) if rows is None else ops.linear_rows(x, w, b, rows=rows, cols=RowPlan(3, 1, 0))
    y.sum().backward()
    np.testing.assert_allclose(b.grad.numpy(), np.full(4, 5.0) if rows is None else [0, 5, 0, 5])


OPTIMIZERS = {
    "sgd": (lambda p: SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (lambda p: SGD(p, 0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, 0.9)),
    "nesterov, decay": (
        lambda p: SGD(p, 0.1, 0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=0.01),
    ),
    "adam": (lambda p: Adam(p, 0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam, decay": (
        lambda p: Adam(p, 0.01, (0.8, 0.99), weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.99), weight_decay=0.1),
    ),
    "adamw": (lambda p: AdamW(p, 0.01), lambda p: torch.optim.AdamW(p, 0.01)),
    "adamw, decay": (
        lambda p: AdamW(p, 0.01, (0.8, 0.99), weight_decay=2.0),
        lambda p: torch.optim.AdamW(p, 0.01, (0.8, 0.99), weight_decay=2.0),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_equal_those_of_pytorch(rng, name):
    ours, their = pair()
    mine, other = OPTIMIZERS[name]
    optimizers = mine(ours.parameters()), other(their.parameters())
    for _ in range(10):
        losses = step(ours, their, rng.standard_normal((N, 12)).astype(np.float32), optimizers)
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for a, b in zip(ours.parameters(), their.parameters()):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-5)


def droppable(model):
    """The layers of the sites that a policy would have plans for."""
    owners = Tree(model).owners
    return [owners[site.path] for site in model.droppable()]


PLANS = {
    "rows": lambda first, second: {first: RowPlan(20, 2, 1, 2.0), second: RowPlan(16, 3, 2, 3.0)},
    "tiles": lambda first, second: {first: TilePlan((20, 12), 4, 2, 1, 2.0), second: TilePlan((16, 20), 4, 3, 0, 3.0)},
}


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_packed_gradients_update_like_dense_ones(rng, kind, name):
    ours, _ = pair()
    packed, dense = ([Tensor(p.numpy().copy(), requires_grad=True) for p in ours.parameters()] for _ in range(2))
    optimizers = [OPTIMIZERS[name][0](parameters) for parameters in (packed, dense)]
    x = rng.standard_normal((N, 12))
    for _ in range(3):
        plans = PLANS[kind](*droppable(ours))
        ops.softmax_cross_entropy(ours(Tensor(x), plans), labels=LABELS).backward()
        assert sum(isinstance(p.gradient, Packed) for p in ours.parameters()) >= 2
        for source, a, b in zip(ours.parameters(), packed, dense):
            a.gradient, b.gradient = source.gradient, Dense(source.grad.data)
            source.zero_grad()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(packed, dense):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-7)


DRAWN = {
    "rows": lambda rng, shape: RowPlan(shape[0], dp := int(rng.integers(1, 6)), int(rng.integers(dp)), float(dp)),
    "tiles": lambda rng, shape: TilePlan(shape, 3, dp := int(rng.integers(1, 6)), int(rng.integers(dp)), float(dp)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_200_lazy_steps_equal_dense_ones(rng, monkeypatch, kind, name):
    """What a plan reads is up to date in every step, everything is in the end, and something was left undone on the way."""
    monkeypatch.setattr(LazyUpdates, "LIMIT", 50)  # passed several times
    model, _ = pair()
    dense = [Tensor(p.numpy().copy(), requires_grad=True) for p in model.parameters()]
    lazy, whole = (OPTIMIZERS[name][0](parameters) for parameters in (model.parameters(), dense))
    layers = droppable(model)
    now, behind, prepared = Context(), 0, 0
    for step in range(200):
        for layer, weight in zip(layers, dense[::2]):
            plan = now.plans.of(layer)
            mask = (
                np.broadcast_to(np.ones(1, bool), weight.shape)
                if plan is None
                else (plan.mask() if kind == "tiles" else np.broadcast_to(plan.mask()[:, None], weight.shape))
            )
            difference, norm = layer.weight.numpy() - weight.numpy(), np.linalg.norm(weight.numpy())
            assert np.linalg.norm(difference[mask]) <= 1e-5 * norm
            behind += np.linalg.norm(difference) > 1e-4 * norm
        ops.softmax_cross_entropy(model(Tensor(rng.standard_normal((N, 12))), now), labels=LABELS).backward()
        for p, q in zip(model.parameters(), dense):
            q.gradient = p.gradient and Dense(p.grad.data)
        plans = Context(plans={layer: DRAWN[kind](rng, layer.weight.shape) for layer in layers}, model=model).plans
        if step == 120:
            lazy.learning_rate = whole.learning_rate = 0.003
        now = Context("cpu", plans, packed=lazy.step(Tree(model).reads(plans)))
        prepared += bool(now.packed)
        whole.step()
    assert (prepared > 100) == (isinstance(lazy, SGD) and kind == "tiles")
    assert (behind > 100) == (isinstance(lazy, SGD) and lazy.momentum > 0)
    lazy.settle()
    for p, q in zip(model.parameters(), dense):
        assert np.linalg.norm(p.numpy() - q.numpy()) <= 1e-5 * np.linalg.norm(q.numpy())


def test_a_step_without_a_gradient_or_a_wish_settles(rng):
    weight = Tensor(rng.standard_normal((6, 4)), requires_grad=True)
    dense = Tensor(weight.numpy().copy(), requires_grad=True)
    optimizers = SGD([weight], 0.1, 0.9), SGD([dense], 0.1, 0.9)
    for wanted, gradient in (({weight: RowPlan(6, 3, 1)}, True), ({weight: RowPlan(6, 2, 0)}, False), (None, True)):
        for p, optimizer in zip((weight, dense), optimizers):
            p.gradient = Dense(np.outer(RowPlan(6, 3, 1).mask(), np.ones(4)).astype(np.float32)) if gradient else None
            optimizer.step(wanted)
        if wanted is None or not gradient:
            np.testing.assert_allclose(weight.numpy(), dense.numpy(), rtol=1e-5)


@pytest.mark.skipif(problem("emulated") is not None, reason="needs NVVM")
def test_weights_on_two_devices_are_late_each_for_itself(rng):
    weights = [
        [Tensor(w, device=where, requires_grad=True) for where in ("cpu", "emulated")]
        for w in [rng.standard_normal((6, 4)).astype(np.float32)] * 2
    ]
    (mine, other), dense = weights
    lazy, whole = SGD([mine, other], 0.1, 0.9), SGD(dense, 0.1, 0.9)
    plan = RowPlan(6, 3, 1)
    for step in range(5):
        for a, b in zip((mine, other), dense, strict=True):
            if a is other or step % 2:
                g = np.outer(plan.mask(), rng.standard_normal(4)).astype(np.float32)
                a.gradient, b.gradient = (Dense(p.device.upload(g)) for p in (a, b))
        lazy.step({other: plan})
        whole.step()
    lazy.settle()
    for a, b in zip((mine, other), dense, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda p: SGD(p, -0.1), "learning_rate"),
        (lambda p: SGD(p, 0.1, 1.0), "momentum"),
        (lambda p: SGD(p, float("nan")), "rate"),
        (lambda p: SGD(p, 0.1, nesterov=True), "nesterov needs a momentum"),
        (lambda p: Adam(p, 0.1, (0.9, 1.0)), "betas"),
        *[
            (lambda p, betas=betas: Adam(p, 0.1, betas), "betas must be two numbers")
            for betas in ((0.9,), (0.9, 0.9, 0.9), 0.9, None, "ab")
        ],
        (lambda p: SGD(p, 0.1, weight_decay=-1), "weight_decay"),
        (lambda p: SGD([]), "SGD: there are no parameters; give tensors"),
        (lambda p: AdamW(iter(()), 0.1), "AdamW: there are no parameters"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make([Tensor([1.0], requires_grad=True)])


@pytest.mark.parametrize("parameters", [Tensor([1.0], requires_grad=True), [np.ones(3)], [Tensor([1.0])]], ids=repr)
def test_parameters_must_be_tensors_with_gradients(parameters):
    with pytest.raises(TypeError, match="parameters must be"):
        SGD(parameters, 0.1)


@pytest.mark.parametrize("norm", [0.1, 100.0])
def test_clipping_is_pytorchs(dev, rng, norm):
    """The norm of all gradients as one vector; an op hands over one array for two parameters."""
    values = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (4,), (4,))]
    x = rng.standard_normal((5, 3)).astype(np.float32)
    ours = [Tensor(v, dev, requires_grad=True) for v in values]
    theirs = [torch.from_numpy(v.copy()).requires_grad_() for v in values]
    (ops.linear(Tensor(x, dev), ours[0], ops.add(ours[1], ours[2])) ** 2).sum().backward()
    ((torch.from_numpy(x) @ theirs[0].T + theirs[1] + theirs[2]) ** 2).sum().backward()
    torch.nn.utils.clip_grad_norm_(theirs, norm)
    SGD(ours, 0.5, clip_norm=norm).step()
    torch.optim.SGD(theirs, 0.5).step()
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.detach(), rtol=1e-4, atol=1e-5)


def test_gradients_that_are_parts_of_another_one_are_clipped(dev):
    a, b, c = (Tensor(np.zeros(size), dev, requires_grad=True) for size in (6, 3, 3))
    dy = np.arange(1.0, 7.0)
    (a + ops.concatenate([b, c])).backward(dy)
    SGD([a, b], 1.0, clip_norm=0.1).step()
    factor = 0.1 / np.sqrt((dy**2).sum() + (dy[:3] ** 2).sum())
    np.testing.assert_allclose(a.numpy(), -factor * dy, rtol=1e-5)
    np.testing.assert_allclose(b.numpy(), -factor * dy[:3], rtol=1e-5)
    np.testing.assert_allclose(c.grad.numpy(), dy[3:])


@pytest.mark.parametrize("plan", [RowPlan(18, 2, 1), TilePlan((18, 11), 4, 3, 1), TilePlan((18, 11), 4, 2, 0)], ids=str)
def test_packed_gradients_are_clipped_by_what_they_hold(dev, rng, plan):
    """Ragged tiles leave places that hold anything."""
    layer = Linear(11, 18, rng=0, device=dev)
    layer(Tensor(rng.standard_normal((5, 11)), dev), {layer: plan}).sum().backward()
    before, w, bias = layer.weight.grad.numpy().copy(), layer.weight.numpy().copy(), layer.bias.grad.numpy().copy()
    if isinstance(plan, TilePlan):
        values = layer.weight.gradient.values  # what is no element of the weight may be anything
        spoiled = np.full(values.shape, np.nan, np.float32)
        filled = np.array(dev.download(values))
        there = np.array(
            dev.download(
                dev.unpack_gradient(
                    dev.upload(np.arange(values.size, dtype=np.float32).reshape(values.shape) + 1),
                    layer.weight.gradient.packing,
                    w.shape,
                )
            )
        ).astype(int)
        places = there[there > 0] - 1
        spoiled.reshape(-1)[places] = filled.reshape(-1)[places]
        dev.copy(dev.upload(spoiled), out=values)
    norm = np.sqrt((before**2).sum() + (bias**2).sum())
    SGD(layer.parameters(), 1.0, clip_norm=norm / 2).step()
    np.testing.assert_allclose(layer.weight.numpy(), w - before / 2, rtol=1e-5, atol=1e-6)


# --- parameters that miss steps ---------------------------------------------------------------------------------------
MISSING = ((0, 2), (1,), (0,), (0, 1, 2), (), (2,), (1,), (0, 1))  # which parameters have a gradient, step by step


def missing(name, rng, dev="cpu"):
    """Parameters here and in PyTorch, optimisers of both, and a step of both with gradients for some."""
    values = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (4,), (2, 5))]
    ours = [Tensor(v.copy(), dev, requires_grad=True) for v in values]
    theirs = [torch.from_numpy(v.copy()).requires_grad_() for v in values]
    mine, other = (make(parameters) for make, parameters in zip(OPTIMIZERS[name], (ours, theirs)))

    def step(present):
        for i, (a, b) in enumerate(zip(ours, theirs)):
            g = rng.standard_normal(values[i].shape).astype(np.float32)
            a.gradient = Dense(a.device.upload(g)) if i in present else None
            b.grad = torch.from_numpy(g) if i in present else None
        mine.step()
        other.step()
        for a, b in zip(ours, theirs):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6)

    return ours, mine, step


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("present", [MISSING, [(2,)] * 20 + [(0, 1, 2)] * 2], ids=["now and then", "late"])
def test_a_parameter_without_a_gradient_misses_the_step_as_in_pytorch(dev, rng, name, present):
    _, _, step = missing(name, rng, dev)
    for who in present:
        step(who)


def test_without_decay_adamw_is_adam_to_the_last_bit(dev, rng):
    ours = [Tensor(np.ones((3, 4)), dev, requires_grad=True) for _ in range(2)]
    optimizers = Adam(ours[:1], 0.1), AdamW(ours[1:], 0.1, weight_decay=0.0)
    for _ in range(5):
        g = np.float32(rng.standard_normal((3, 4)))
        for p, optimizer in zip(ours, optimizers, strict=True):
            p.gradient = Dense(dev.upload(g))
            optimizer.step()
    np.testing.assert_array_equal(ours[0].numpy(), ours[1].numpy())


def test_an_estimator_makes_adamw_with_its_weight_decay():
    made = Net(optimizer="adamw", learning_rate=0.1, weight_decay=0.2, clip_norm=3.0)._make_optimizer([])
    assert type(made) is AdamW and (made.learning_rate, made.weight_decay, made.clip_norm) == (0.1, 0.2, 3.0)


def test_a_layer_that_is_thawed_begins_as_in_pytorch(rng):
    """Its first step of Adam is one of the learning rate, however many the others took."""
    ours, their = pair()
    optimizers = Adam(ours.parameters(), 0.01), torch.optim.Adam(their.parameters(), 0.01)
    for at in range(8):
        for layers in (ours.layers, their):
            layers[0].weight.requires_grad = not 1 <= at < 5
        step(ours, their, rng.standard_normal((N, 12)).astype(np.float32), optimizers)
    for a, b in zip(ours.parameters(), their.parameters()):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["pickle", "snapshot", "old pickle", "exchange"])
def test_how_many_steps_each_parameter_took_is_kept(rng, way):
    ours, mine, step = missing("adam", rng)
    step((0, 1))
    step((0,))
    if way == "exchange":
        other = Tensor(ours[1].numpy(), requires_grad=True)
        mine.exchange(ours[1], other, lambda array: array)
        assert mine.parameters[1] is other
    elif way == "snapshot":
        saved = mine.snapshot()
        step((0, 1, 2))
        mine.restore(saved)
    else:
        saved = mine.__getstate__()
        if way == "old pickle":  # of when all parameters had one number of steps
            del saved["counts"]
        mine = Adam.__new__(Adam)
        mine.__setstate__(pickle.loads(pickle.dumps(saved)))
    assert (mine.steps, mine.counts) == (2, [2, 2, 2] if way == "old pickle" else [2, 1, 0])
    mine.reset()
    mine.prepare()
    assert (mine.steps, mine.counts) == (0, [0, 0, 0])
