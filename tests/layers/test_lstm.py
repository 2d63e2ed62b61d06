"""LSTM: equal to PyTorch's in values, states and gradients; what plans drop in it against the same with masks."""

import gc
import inspect
import itertools
import sys
import tracemalloc

import numpy as np
import pytest

from numbanet import (
    LSTM,
    BernoulliDropout,
    BernoulliPlan,
    Context,
    DynamicSparseGraph,
    Embedding,
    IndexPlan,
    LastStep,
    Linear,
    Net,
    NetRegressor,
    RowDropout,
    RowPlan,
    Sequential,
    Tensor,
    TileDropout,
    TilePlan,
    TimePlan,
    device,
    no_grad,
)
from numbanet.dropout import Together, recurrent
from numbanet.gradients import Packed
from numbanet.layers import ActivationSpec, Flow, Tags, Tree
from numbanet.training.adam import Adam
from numbanet_kernels.runtime import pool
from tests.layers.sentences import sentences
from tests.layers.tolerance import close

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


def pair(dev, inputs, hidden, layers, **options):
    """An LSTM and PyTorch's with the same weights."""
    theirs = torch.nn.LSTM(inputs, hidden, layers, **options)
    ours = LSTM(inputs, hidden, layers, device=dev, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


# --- PyTorch's --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    "layers, n, steps, stated, lengths",
    [
        *(
            (layers, n, steps, stated, False)
            for layers, n, steps, stated in itertools.product((1, 2, 3), (1, 20), (1, 35), (0, 1))
        ),
        (1, 5, 9, False, True),
        (2, 20, 35, True, True),
    ],
)
def test_equals_pytorchs(dev, rng, layers, n, steps, stated, lengths):
    if dev.name == "emulated":
        steps, n = min(steps, 4), min(n, 3)
    ours, theirs = pair(dev, 7, 12, layers)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((steps, n, 7), (layers, n, 12), (layers, n, 12))]
    x, *state = (Tensor(a, dev, requires_grad=True) for a in arrays)
    x_, *state_ = (torch.from_numpy(a).requires_grad_() for a in arrays)
    ends = rng.integers(1, steps + 1, n) if lengths else None
    y, (h, c) = ours(x, tuple(state) if stated else None, ends)
    given = torch.nn.utils.rnn.pack_padded_sequence(x_, torch.from_numpy(ends), enforce_sorted=False) if lengths else x_
    y_, (h_, c_) = theirs(given, tuple(state_) if stated else None)
    if lengths:
        y_ = torch.nn.utils.rnn.pad_packed_sequence(y_, total_length=steps)[0]
    slopes = [rng.standard_normal(a.shape).astype(np.float32) for a in (y, h, c)]
    for found, expected in zip((y, h, c), (y_, h_, c_)):
        close(found.numpy(), expected.detach())
    sum((found * Tensor(slope, dev)).sum() for found, slope in zip((y, h, c), slopes)).backward()
    sum((found * torch.from_numpy(slope)).sum() for found, slope in zip((y_, h_, c_), slopes)).backward()
    close(x.grad.numpy(), x_.grad, 2e-5)
    for found, expected in zip(state if stated else (), state_):
        close(found.grad.numpy(), expected.grad, 2e-5)
    for name, expected in theirs.named_parameters():
        close(getattr(ours, name).grad.numpy(), expected.grad, 2e-5)


@pytest.mark.parametrize("options", [{"batch_first": True}, {"bias": False}], ids=str)
def test_options_are_pytorchs(dev, rng, options):
    ours, theirs = pair(dev, 5, 6, 2, **options)
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    y, (h, c) = ours(Tensor(x, dev))
    y_, (h_, c_) = theirs(torch.from_numpy(x))
    for found, expected in zip((y, h, c), (y_, h_, c_)):
        close(found.numpy(), expected.detach())
    close(Sequential([ours])(Tensor(x, dev)).numpy(), y_.detach())


# --- plans ------------------------------------------------------------------------------------------------------------
def masked(ours, x, masks, scale):
    """y of two layers in float64, whose inputs and states are multiplied by masks: (of W_ih, of h, of y) by layer."""
    y = torch.from_numpy(x).double()
    weights = [
        {
            name: torch.tensor(getattr(ours, f"{name}_l{layer}").numpy()).double().requires_grad_()
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        for layer in range(2)
    ]
    for own, (tiles, seen, out) in zip(weights, masks):
        h = c = torch.zeros(x.shape[1], ours.hidden_size, dtype=torch.float64)
        outputs = []
        for t, step in enumerate(y):
            comes = h * (seen if seen.ndim < 2 else seen[t])
            a = step @ (own["weight_ih"] * tiles).T + comes @ own["weight_hh"].T + own["bias_ih"] + own["bias_hh"]
            i, f, g, o = a.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h * out)
        y = torch.stack(outputs)
    return y, weights


PLANS = {
    "output_l0": {"output_l0": RowPlan(12, 2, 1, 1.5)},
    "outputs": {"output_l0": RowPlan(12, 3, 0, 2.0), "output_l1": IndexPlan(12, [0, 5, 7], 1.5)},
    "nothing kept": {"output_l0": IndexPlan(12, np.zeros(0, int))},
    "tiles": {"input_l0": TilePlan((48, 7), 4, 2, 1, 2.0), "input_l1": TilePlan((48, 12), 4, 3, 0, 1.5)},
    "recurrent": {"recurrent_l0": RowPlan(12, 2, 0, 2.0), "recurrent_l1": IndexPlan(12, [1, 2, 11], 3.0)},
    "each time step": {
        "recurrent_l0": TimePlan(12, 2, 6, (0, 1, 1, 0, 7, 1, 0), 2.0),
        "recurrent_l1": TimePlan(12, 5, 2, (3, 11, 0, 4, 4, 9), 3.0),
    },
    "nothing at each time step": {"recurrent_l0": TimePlan(12, 13, 0, (0,) * 6, 2.0)},
    "all": {
        "output_l0": RowPlan(12, 2, 1, 2.0),
        "input_l1": TilePlan((48, 12), 4, 2, 0, 2.0),
        "recurrent_l0": RowPlan(12, 3, 2, 3.0),
        "output_l1": RowPlan(12, 2, 0, 2.0),
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_masks(dev, rng, name):
    ours, plans = LSTM(7, 12, 2, rng=1, device=dev), PLANS[name]
    steps, n = (6, 5) if dev.name != "emulated" else (2, 3)
    x = rng.standard_normal((steps, n, 7)).astype(np.float32)
    masks = [
        [
            torch.tensor(np.float64(plan.mask() * plan.scale) if (plan := plans.get(f"{kind}_l{layer}")) else 1.0)
            for kind in ("input", "recurrent", "output")
        ]
        for layer in range(2)
    ]
    step = Context(dev, {Tree(ours).sites[ours, place]: plan for place, plan in plans.items()}, model=ours)
    expected, weights = masked(ours, x, masks, 1.0)
    slopes = rng.standard_normal(expected.shape).astype(np.float32)
    (expected * torch.from_numpy(slopes)).sum().backward()
    flow = ours.forward(Flow(Tensor(x, dev, requires_grad=True)), step)
    y = flow.dense()
    close(y.numpy(), expected.detach())
    (y * Tensor(slopes, dev)).sum().backward()
    for layer, own in enumerate(weights):
        for weight, theirs in own.items():
            close(getattr(ours, f"{weight}_l{layer}").grad.numpy(), theirs.grad, 2e-5)
    if name == "outputs":
        assert isinstance(ours.weight_ih_l1.gradient, Packed) and flow.x.shape[2] == 3
    if name == "recurrent":
        assert isinstance(ours.weight_hh_l0.gradient, Packed)


def test_units_of_a_time_step_are_dropped_at_the_rate_and_apart_from_those_of_others():
    """Each unit at each step, also where no period divides their number."""
    rng, site = np.random.default_rng(0), LSTM(3, 10).sites()[2]
    plans = [recurrent(RowDropout(0.6, dp_max=4), steps=3).plan(site, rng) for _ in range(4000)]
    masks = np.array([plan.mask() for plan in plans])
    assert masks.shape == (4000, 3, 10) and np.abs(masks.mean(0) - 0.4).max() < 0.04
    assert {plan.dp for plan in plans} == {1, 2, 3, 4} and {plan.count for plan in plans if plan.dp == 3} == {3, 4}
    thinned = masks[[plan.dp == 2 for plan in plans]]
    assert abs((thinned[:, 0] == thinned[:, 1]).all(1).mean() - 0.5) < 0.05


def test_flops_of_units_that_are_dropped_at_each_time_step():
    layer = LSTM(6, 8)
    whole, thinned = (
        layer.cost(ActivationSpec((5, 2, 6)), Context(plans=plans, model=layer).plans)[0]
        for plans in ({}, {layer.sites()[2]: TimePlan(8, 4, 2, (0,) * 5)})
    )
    assert whole.forward - thinned.forward == 2 * 10 * 32 * 6 and thinned.backward == whole.backward


def test_bernoulli_drops_others_at_each_time_step(dev):
    ours = LSTM(3, 40, rng=0, device=dev)
    plan = BernoulliPlan(40, 0.5, 3, 2.0)
    x = Tensor(np.ones((4, 2, 3)), dev)
    y = ours.forward(Flow(x), Context(dev, {ours.sites()[0]: plan}, model=ours)).dense().numpy()
    whole = ours.forward(Flow(x), Context(dev)).dense().numpy()
    assert ((y == 0) | np.isclose(y, 2 * whole, rtol=1e-6)).all()
    zero = y == 0
    assert 0.3 < zero.mean() < 0.7 and (zero[0] != zero[1]).any()


# --- memory -----------------------------------------------------------------------------------------------------------
def test_states_are_carried_over(dev, rng):
    ours, state = LSTM(3, 5, 2, rng=0, device=dev), {}
    x = rng.standard_normal((6, 2, 3)).astype(np.float32)
    with no_grad():
        whole = ours.forward(Flow(Tensor(x, dev)), Context(dev)).x.numpy()
        parts = [ours.forward(Flow(Tensor(part, dev)), Context(dev, state=state)).x.numpy() for part in (x[:2], x[2:])]
    close(np.concatenate(parts), whole)


def test_last_step_of_each_length(dev, rng):
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    flow = LastStep().forward(Flow(Tensor(x, dev), tags=Tags(np.array([1, 4, 2]))), Context(dev))
    close(flow.x.numpy(), x[[0, 1, 2], [0, 3, 1]])
    close(LastStep()(Tensor(x, dev)).numpy(), x[:, 3])


@pytest.mark.slow
def test_long_sequences_are_trained(monkeypatch):
    """20,000 steps: without recursion, and with memory that grows as they do (from 5,000 on all arrays are of the pool)."""
    monkeypatch.setattr(pool, "host_pool", pool.Pool(pool.pages, chunk=0, keep=0, step=pool.PAGE))  # all is seen at once
    model = Sequential([LSTM(2, 8, 2, batch_first=True, rng=0), LastStep(), Linear(8, 1, rng=0)])
    optimizer, peaks, losses = Adam(model.parameters(), 0.001), {}, []

    def release():
        """What earlier steps held in cycles, and chunks that came back: a pool sees to them when it is asked the next time."""
        gc.collect()
        pool.host_pool.give_up(0)

    def train(steps):
        release()
        x = np.random.default_rng(0).standard_normal((1, steps, 2))
        loss = (model(Tensor(x)) - 1.0) ** 2
        loss.backward()
        optimizer.step()
        return loss.item()

    train(5000)  # compiles
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 200)
    tracemalloc.start()
    try:
        for steps in (5000, 20_000):
            release()
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            losses = [train(steps) for _ in range(2)]
            peaks[steps] = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        sys.setrecursionlimit(limit)
    assert losses[-1] < losses[0] and 3.2 < peaks[20_000] / peaks[5000] < 4.4
    assert peaks[20_000] > 20_000 * 8 * 4 * 2 * 6  # gates, h and c of both layers at least


# --- in a Net ---------------------------------------------------------------------------------------------------------
def sequence_layers(padded=True, **options):
    first = Embedding(6, 8, padding_idx=0 if padded else None, rng=0)
    return [first, LSTM(8, 12, batch_first=True, rng=1, **options), LastStep(), Linear(12, 2, rng=2)]


@pytest.mark.parametrize(
    "dropout",
    [
        "none",
        BernoulliDropout(0.2),
        RowDropout(0.3),
        TileDropout(0.3, tile=4),
        Together(RowDropout(0.2), recurrent(RowDropout(0.3), steps=9)),
    ],
    ids=str,
)
def test_a_net_classifies_sequences(rng, dropout):
    X, y = sentences(rng)
    net = Net(
        sequence_layers(),
        dropout=dropout,
        epochs=40,
        batch_size=30,
        optimizer="adam",
        learning_rate=0.02,
        random_state=0,
        device="cpu",
    ).fit(X, y)
    assert net.score(X, y) > 0.9
    longer = np.pad(X, ((0, 0), (0, 0)))
    np.testing.assert_allclose(net.predict_proba(longer), net.predict_proba(X))


def test_padding_changes_nothing(rng):
    """Neither what is predicted nor what is learned of a sequence depends on how far it is filled up."""
    model = Sequential(sequence_layers())
    X = sentences(rng, 5)[0].astype(np.int32)
    found = []
    for filled in (X, np.pad(X, ((0, 0), (0, 4)))):
        y = model.forward(Flow(Tensor.wrap(np.ascontiguousarray(filled), device("cpu"))), Context()).dense()
        y.sum().backward()
        found.append([y.numpy(), *(np.array(p.grad.numpy()) for p in model.parameters())])
        for p in model.parameters():
            p.zero_grad()
    for mine, other in zip(*found, strict=True):
        close(mine, other)
    assert (found[0][1][0] == 0).all()  # the padding's own vector


def test_a_net_predicts_numbers_from_series(rng):
    X = rng.standard_normal((90, 7, 3)).astype(np.float32)
    net = NetRegressor(
        [LSTM(3, 16, batch_first=True, rng=0), LastStep(), Linear(16, 1, rng=1)],
        epochs=80,
        learning_rate=0.01,
        batch_size=30,
        random_state=0,
        device="cpu",
    ).fit(X, X[:, :, 0].sum(axis=1))
    assert net.score(X, X[:, :, 0].sum(axis=1)) > 0.9


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: LSTM(0, 3), ValueError, "input_size"),
        (lambda: LSTM(2, 3.5), ValueError, "hidden_size"),
        (lambda: LSTM(2, 3, num_layers=True), ValueError, "num_layers"),
        (lambda: LSTM(2, 3)(np.ones((2, 2, 2))), TypeError, "Tensor"),
        (lambda: LSTM(2, 3)(Tensor(np.ones((2, 2)))), ValueError, "T, N, I"),
        (lambda: LSTM(2, 3)(Tensor(np.ones((2, 2, 3)))), ValueError, "I = 2"),
        (lambda: LSTM(2, 3)(Tensor(np.ones((2, 2, 2))), [Tensor(np.ones((1, 2, 4)))] * 2), ValueError, "states"),
        (lambda: LSTM(2, 3)(Tensor(np.ones((2, 2, 2))), lengths=[0, 1]), ValueError, "1 to 2"),
        (lambda: LSTM(2, 3)(Tensor(np.ones((2, 2, 2))), lengths=[-1, 1]), ValueError, "1 to 2"),
        (lambda: LSTM(2, 3)(Tensor(np.ones((2, 2, 2))), lengths=[1]), ValueError, "2 integers"),
        (lambda: _planned("output_l0", RowPlan(4, 2, 0)), ValueError, "output_l0"),
        (lambda: _planned("input_l0", RowPlan(3, 2, 0)), TypeError, "input_l0"),
        (lambda: _planned("output_l0", TimePlan(3, 2, 1, (0, 1))), TypeError, "output_l0"),
        (lambda: _planned("recurrent_l0", TimePlan(4, 2, 1, (0, 1))), ValueError, "recurrent_l0"),
        (
            lambda: _planned("recurrent_l0", TimePlan(3, 2, 1, (0,))),
            ValueError,
            "1 time steps for 3 units does not fit 2 steps",
        ),
        (lambda: recurrent(BernoulliDropout(0.5)), ValueError, "recurrent_dropout"),
        (lambda: recurrent(DynamicSparseGraph(0.5), steps=3), ValueError, "rdp"),
        (lambda: recurrent(RowDropout(0.5), steps=0), ValueError, "positive integer"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def _planned(name, plan):
    layer = LSTM(2, 3)
    layer.forward(Flow(Tensor(np.ones((2, 2, 2)))), Context(plans={Tree(layer).sites[layer, name]: plan}, model=layer))
