"""GRU, and what GRU and LSTM share: equal to PyTorch's in both directions, with sequences of any length, under plans."""

import numpy as np
import pytest

from numbanet import (
    GRU,
    LSTM,
    BernoulliPlan,
    Context,
    IndexPlan,
    LastStep,
    RowPlan,
    Sequential,
    Tensor,
    TilePlan,
    TimePlan,
    check_grad,
    no_grad,
    ops,
)
from numbanet.gradients import Packed
from numbanet.layers import ActivationSpec, Flow, Tags, Tree
from numbanet.plans import Plans
from tests.layers.tolerance import close

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")

KINDS = [LSTM, GRU]


def pair(dev, kind, *sizes, **options):
    """A layer and PyTorch's with the same weights."""
    theirs = getattr(torch.nn, kind.__name__)(*sizes, **options)
    ours = kind(*sizes, device=dev, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def listed(state):
    return list(state) if isinstance(state, tuple) else [state]


# --- PyTorch's --------------------------------------------------------------------------------------------------------
CASES = [
    *(
        (GRU, False, layers, n, steps, stated, lengths)
        for layers, n, steps, stated, lengths in [
            (1, 1, 1, 0, 0),
            (1, 20, 35, 1, 0),
            (3, 5, 9, 1, 0),
            (2, 20, 35, 1, 1),
            (1, 5, 9, 0, 1),
        ]
    ),
    *(
        (kind, True, *case)
        for kind in KINDS
        for case in [(1, 1, 1, 1, 0), (1, 20, 35, 0, 0), (2, 5, 9, 1, 0), (2, 20, 35, 1, 1), (3, 4, 6, 0, 1)]
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind, both, layers, n, steps, stated, lengths", CASES)
def test_equals_pytorchs(dev, rng, kind, both, layers, n, steps, stated, lengths):
    if dev.name == "emulated":
        steps, n = min(steps, 4), min(n, 3)
    ours, theirs = pair(dev, kind, 7, 12, layers, bidirectional=both)
    assert {name: a.shape for name, a in ours.state_dict().items()} == {
        name: tuple(a.shape) for name, a in theirs.state_dict().items()
    }
    states = 2 if kind is LSTM else 1
    shapes = (steps, n, 7), *[((1 + both) * layers, n, 12)] * states
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    x, *state = (Tensor(a, dev, requires_grad=True) for a in arrays)
    x_, *state_ = (torch.from_numpy(a).requires_grad_() for a in arrays)
    ends = rng.integers(1, steps + 1, n) if lengths else None
    given = torch.nn.utils.rnn.pack_padded_sequence(x_, torch.from_numpy(ends), enforce_sorted=False) if lengths else x_
    y, found = ours(x, (tuple(state) if states > 1 else state[0]) if stated else None, ends)
    y_, found_ = theirs(given, (tuple(state_) if states > 1 else state_[0]) if stated else None)
    if lengths:
        y_ = torch.nn.utils.rnn.pad_packed_sequence(y_, total_length=steps)[0]
    outputs, outputs_ = [y, *listed(found)], [y_, *listed(found_)]
    slopes = [rng.standard_normal(a.shape).astype(np.float32) for a in outputs]
    for mine, expected in zip(outputs, outputs_, strict=True):
        close(mine.numpy(), expected.detach())
    sum((mine * Tensor(slope, dev)).sum() for mine, slope in zip(outputs, slopes)).backward()
    sum((other * torch.from_numpy(slope)).sum() for other, slope in zip(outputs_, slopes)).backward()
    close(x.grad.numpy(), x_.grad, 2e-5)
    for mine, expected in zip(state if stated else (), state_):
        close(mine.grad.numpy(), expected.grad, 2e-5)
    for name, expected in theirs.named_parameters():
        close(getattr(ours, name).grad.numpy(), expected.grad, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"bias": False},
        {"bias": False, "bidirectional": True},
        {"batch_first": True, "bidirectional": True},
    ],
    ids=str,
)
def test_options_are_pytorchs(dev, rng, kind, options):
    ours, theirs = pair(dev, kind, 5, 6, 2, **options)
    x, dy = (rng.standard_normal((3, 4, width)).astype(np.float32) for width in (5, 6 * (1 + options.get("bidirectional", 0))))
    y, state = ours(Tensor(x, dev))
    y_, state_ = theirs(torch.from_numpy(x))
    for found, expected in zip((y, *listed(state)), (y_, *listed(state_)), strict=True):
        close(found.numpy(), expected.detach())
    close(Sequential([ours])(Tensor(x, dev)).numpy(), y_.detach())
    y.backward(dy)
    y_.backward(torch.from_numpy(dy))
    for name, expected in theirs.named_parameters():
        close(getattr(ours, name).grad.numpy(), expected.grad, 2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_in_float64_it_is_the_formula(dev, rng, kind):
    """PyTorch's in float64, with sums as long as they are in use."""
    ours, theirs = pair(dev, kind, 40, 130 if dev.name != "emulated" else 20, bidirectional=True)
    x = rng.standard_normal((25 if dev.name != "emulated" else 3, 3, 40)).astype(np.float32)
    y_ = theirs.double()(torch.from_numpy(x).double())[0]
    close(ours(Tensor(x, dev))[0].numpy(), y_.detach(), 2e-6)


def test_initial_weights_are_drawn_layer_by_layer():
    """Those of a layer forwards are the same as without the other direction; uniform in ±1 / sqrt(H)."""
    for kind in KINDS:
        one, both = kind(5, 16, 2, rng=3), kind(5, 16, 2, bidirectional=True, rng=3)
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            np.testing.assert_array_equal(getattr(one, name).numpy(), getattr(both, name).numpy())
        largest = max(np.abs(p.numpy()).max() for p in both.parameters())
        assert 0.24 < largest <= 0.25 and len(list(both.parameters())) == 16


def test_steps_are_reversed_each_from_its_own_end(dev, rng):
    x = rng.standard_normal((4, 3, 2)).astype(np.float32)
    found = ops.reverse_steps(Tensor(x, dev), lengths=np.array([4, 1, 3])).numpy()
    np.testing.assert_array_equal(found[:, 0], x[::-1, 0])
    np.testing.assert_array_equal(found[:, 1], x[:, 1])
    np.testing.assert_array_equal(found[:, 2], x[[2, 1, 0, 3], 2])
    np.testing.assert_array_equal(ops.reverse_steps(Tensor(x, dev)).numpy(), x[::-1])
    for lengths in (None, np.array([4, 1, 3])):
        check_grad(lambda x, lengths=lengths: ops.reverse_steps(x, lengths=lengths), [Tensor(x, dev, requires_grad=True)])


@pytest.mark.parametrize("units", [None, RowPlan(4, 2, 1, 1.5)])
def test_the_gradient_is_that_of_the_value(dev, rng, units):
    given = [Tensor(rng.standard_normal(shape), dev, requires_grad=True) for shape in ((6, 12), (12, 4), (12,), (2, 4))]
    # which writes over z, that somebody has computed for it
    check_grad(lambda z, *others: ops.gru(z * 1.0, *others, steps=3, units=units), given)
    check_grad(
        lambda z, w, h0: ops.gru(z * 1.0, w, None, h0, steps=3, lengths=dev.upload(np.array([1, 3], np.int32))),
        [given[0], given[1], given[3]],
    )


# --- plans ------------------------------------------------------------------------------------------------------------
def masked(ours, x, masks):
    """y in float64 by PyTorch's cells, whose inputs and states are multiplied by masks, by name of the site."""
    kind, weights = type(ours), {}
    y, ones = torch.from_numpy(x).double(), torch.ones(1, dtype=torch.float64)
    for layer in range(ours.num_layers):
        outputs = []
        for end in ("", "_reverse")[: 1 + ours.bidirectional]:
            cell = f"l{layer}{end}"
            own = [
                torch.tensor(getattr(ours, f"{name}_{cell}").numpy()).double().requires_grad_()
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            weights[cell] = own
            w = own[0] * masks.get(f"input_{cell}", ones)
            h = c = torch.zeros(x.shape[1], ours.hidden_size, dtype=torch.float64)
            states = []
            for step in y.flip(0) if end else y:
                # the scale is in the mask: a cell of PyTorch's adds W h as it is, and takes the state apart from it
                if kind is LSTM:
                    a = step @ w.T + own[2] + h * masks.get(f"recurrent_{cell}", ones) @ own[1].T + own[3]
                    i, f, g, o = a.chunk(4, 1)
                    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                    h = torch.sigmoid(o) * torch.tanh(c)
                else:
                    a, s = step @ w.T + own[2], h * masks.get(f"recurrent_{cell}", ones) @ own[1].T + own[3]
                    (a_r, a_u, a_m), (s_r, s_u, s_m) = a.chunk(3, 1), s.chunk(3, 1)
                    u = torch.sigmoid(a_u + s_u)
                    h = (1 - u) * torch.tanh(a_m + torch.sigmoid(a_r + s_r) * s_m) + u * h
                states.append(h)
            outputs.append(torch.stack(states[::-1] if end else states))
        y = torch.cat(outputs, 2) * masks.get(f"output_l{layer}", ones)
    return y, weights


def plans_of(kind, both):
    """By name, plans of two layers of 12 units over 7 inputs, for one direction or both."""
    rows, width = (48 if kind is LSTM else 36), 24 if both else 12
    found = {
        "outputs": {"output_l0": RowPlan(width, 3, 0, 2.0), "output_l1": IndexPlan(width, [0, 5, width - 1], 1.5)},
        "tiles": {"input_l0": TilePlan((rows, 7), 4, 2, 1, 2.0), "input_l1": TilePlan((rows, width), 4, 3, 0, 1.5)},
        "recurrent": {"recurrent_l0": RowPlan(12, 2, 0, 2.0), "recurrent_l1": IndexPlan(12, [1, 2, 11], 3.0)},
        "nothing kept": {"output_l0": IndexPlan(width, np.zeros(0, int)), "recurrent_l0": IndexPlan(12, np.zeros(0, int))},
    }
    if both:
        found["tiles"]["input_l0_reverse"] = TilePlan((rows, 7), 4, 2, 0, 2.0)
        found["tiles"]["input_l1_reverse"] = TilePlan((rows, width), 4, 2, 1, 2.0)
        found["recurrent"]["recurrent_l0_reverse"] = RowPlan(12, 3, 1, 3.0)
    return {**found, "all": {**found["outputs"], **found["recurrent"], "input_l0": found["tiles"]["input_l0"]}}


@pytest.mark.parametrize("name", ["outputs", "tiles", "recurrent", "nothing kept", "all"])
@pytest.mark.parametrize("kind, both", [(GRU, False), (GRU, True), (LSTM, True)])
def test_plans_are_masks(dev, rng, kind, both, name):
    ours, plans = kind(7, 12, 2, bidirectional=both, rng=1, device=dev), plans_of(kind, both)[name]
    steps, n = (6, 5) if dev.name != "emulated" else (2, 3)
    x = rng.standard_normal((steps, n, 7)).astype(np.float32)
    sites = {site.path: site for site in Tree(ours).sites.values()}
    expected, weights = masked(
        ours, x, {place: torch.tensor(np.float64(plan.mask() * plan.scale)) for place, plan in plans.items()}
    )
    slopes = rng.standard_normal(expected.shape).astype(np.float32)
    (expected * torch.from_numpy(slopes)).sum().backward()
    flow = ours.forward(
        Flow(Tensor(x, dev, requires_grad=True)),
        Context(dev, {sites[place]: plan for place, plan in plans.items()}, model=ours),
    )
    y = flow.dense()
    close(y.numpy(), expected.detach())
    (y * Tensor(slopes, dev)).sum().backward()
    for cell, own in weights.items():
        for weight, theirs in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), own):
            close(getattr(ours, f"{weight}_{cell}").grad.numpy(), theirs.grad, 2e-5)
    if name == "outputs":
        assert isinstance(ours.weight_ih_l1.gradient, Packed) and flow.x.shape[2] == 3
    if name == "recurrent":
        assert isinstance(ours.weight_hh_l0.gradient, Packed)


@pytest.mark.parametrize("kind", KINDS)
def test_bernoulli_drops_others_at_each_time_step_of_both_directions(dev, kind):
    ours = kind(3, 20, bidirectional=True, rng=0, device=dev)
    x = Tensor(np.ones((4, 2, 3)), dev)
    y, whole = (
        ours.forward(Flow(x), Context(dev, plans, model=ours)).dense().numpy()
        for plans in ({ours.sites()[0]: BernoulliPlan(40, 0.5, 3, 2.0)}, {})
    )
    assert ((y == 0) | np.isclose(y, 2 * whole, rtol=1e-6)).all() and 0.3 < (y == 0).mean() < 0.7


def test_sites_reads_and_cost_know_both_directions():
    for kind, gates in ((LSTM, 4), (GRU, 3)):
        one, both = kind(6, 8, 2), kind(6, 8, 2, bidirectional=True)
        assert [site.path for site in both.sites() if site.kind != "gates"] == [
            "output_l0",
            "input_l0",
            "recurrent_l0",
            "input_l0_reverse",
            "recurrent_l0_reverse",
            "output_l1",
            "input_l1",
            "recurrent_l1",
            "input_l1_reverse",
            "recurrent_l1_reverse",
        ]
        assert both.sites()[0].shape[0] == both.sites()[5].shape[0] == 16
        cost, spec = both.cost(ActivationSpec((5, 2, 6)), Plans())
        rows = gates * 8
        assert spec.shape == (5, 2, 16) and cost.forward == 2 * 10 * 2 * rows * (6 + 8 + 16 + 8)
        assert one.cost(ActivationSpec((5, 2, 6)), Plans())[0].forward == 2 * 10 * rows * (6 + 8 + 8 + 8)
        plan = TilePlan((rows, 6), 4, 2, 1)
        sites = {site.path: site for site in Tree(both).sites.values()}
        plans = Context(plans={sites["input_l0_reverse"]: plan}, model=both).plans
        assert {weight: part.plan for weight, part in both.reads(plans).items()} == {both.weight_ih_l0_reverse: plan}
        thinned = both.cost(ActivationSpec((5, 2, 6)), Context(plans={both.sites()[2]: RowPlan(8, 2, 0)}, model=both).plans)[0]
        assert cost.forward - thinned.forward == 2 * 10 * rows * 4


def test_a_gru_takes_no_plan_of_each_time_step():
    layer = GRU(2, 3)
    with pytest.raises(TypeError, match="it does not know the plan TimePlan.* at recurrent_l0; it takes AxisPlan"):
        layer.forward(
            Flow(Tensor(np.ones((2, 2, 2)))), Context(plans={layer.sites()[2]: TimePlan(3, 2, 1, (0, 1))}, model=layer)
        )


# --- memory -----------------------------------------------------------------------------------------------------------
def test_the_state_of_a_gru_is_carried_over(dev, rng):
    ours, memory = GRU(3, 5, 2, rng=0, device=dev), {}
    x = rng.standard_normal((6, 2, 3)).astype(np.float32)
    with no_grad():
        whole = ours.forward(Flow(Tensor(x, dev)), Context(dev)).x.numpy()
        parts = [ours.forward(Flow(Tensor(part, dev)), Context(dev, state=memory)).x.numpy() for part in (x[:2], x[2:])]
    close(np.concatenate(parts), whole)
    assert len(memory) == 2 and all(len(arrays) == 1 for arrays in memory.values())


@pytest.mark.parametrize("kind", KINDS)
def test_what_reads_backwards_carries_nothing_over(kind):
    layer = kind(3, 5, bidirectional=True)
    with pytest.raises(ValueError, match=rf"{kind.__name__}\(3, 5, bidirectional=True\): states are carried over from one"):
        layer.forward(Flow(Tensor(np.ones((2, 2, 3)))), Context(state={}))


# --- what sequences end with ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("plan", [None, RowPlan(10, 3, 1, 2.0)])
def test_the_last_steps_of_both_directions(dev, rng, plan):
    layer, x = GRU(3, 5, batch_first=True, bidirectional=True, rng=0, device=dev), rng.standard_normal((3, 4, 3))
    model, lengths = Sequential([layer, LastStep(bidirectional=True)]), np.array([1, 4, 2])
    flow = model.forward(
        Flow(Tensor(x, dev), tags=Tags(lengths)), Context(dev, {} if plan is None else {layer.sites()[0]: plan}, model=layer)
    )
    _, h = layer(Tensor(x, dev), lengths=lengths)
    mask = 1 if plan is None else plan.mask() * plan.scale
    close(flow.dense().numpy(), np.concatenate(h.numpy(), 1) * mask)
    assert flow.tags.lengths is None and model.cost(ActivationSpec((3, 4, 3)), Plans())[1].shape == (3, 10)


def test_directions_are_two():
    with pytest.raises(ValueError, match=r"LastStep\(bidirectional=True\): its input has 5 features"):
        LastStep(True)(Tensor(np.ones((2, 3, 5))))
    with pytest.raises(ValueError, match="its input has 5 features"):
        LastStep(True).cost(ActivationSpec((2, 3, 5)), Plans())


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: GRU(0, 3), ValueError, "GRU: input_size"),
        (lambda: GRU(2, 3, dropout=0.5), ValueError, "GRU: dropout=0.5"),
        (lambda: GRU(2, 3)(np.ones((2, 2, 2))), TypeError, "GRU: x must be a Tensor"),
        (lambda: GRU(2, 3)(Tensor(np.ones((2, 2, 3)))), ValueError, "GRU: x must be .* I = 2"),
        (lambda: GRU(2, 3)(Tensor(np.ones((0, 2, 2)))), ValueError, "GRU: x .* has no time steps"),
        (lambda: GRU(2, 3)(Tensor(np.ones((2, 2, 2))), Tensor(np.ones((2, 2, 3)))), ValueError, r"states .* \(1, 2, 3\), 1 of"),
        (lambda: GRU(2, 3)(Tensor(np.ones((2, 2, 2))), (Tensor(np.ones((1, 2, 3))),)), ValueError, "GRU: .* 1 of .* got tuple"),
        (
            lambda: LSTM(2, 3)(Tensor(np.ones((2, 2, 2))), lengths=Tensor([2, 1])),
            ValueError,
            "LSTM: lengths .*a list of integers",
        ),
        (
            lambda: LSTM(2, 3)(Tensor(np.ones((2, 2, 2))), (Tensor(np.ones((1, 2, 3))),)),
            ValueError,
            "LSTM: states .* 2 of them",
        ),
        (lambda: LSTM(2, 3)(Tensor(np.ones((2, 2, 2))), 5), ValueError, r"LSTM: states .* \(1, 2, 3\), 2 of them, got int"),
        (
            lambda: LSTM(2, 3, bidirectional=True)(Tensor(np.ones((2, 2, 2))), [Tensor(np.ones((1, 2, 3)))] * 2),
            ValueError,
            r"\(2, 2, 3\), 2 of them",
        ),
        (lambda: GRU(2, 3)(Tensor(np.ones((2, 2, 2))), lengths=[0, 1]), ValueError, "GRU: lengths must be from 1 to 2"),
        (
            lambda: ops.gru(Tensor(np.ones((4, 5))), Tensor(np.ones((6, 2))), None, Tensor(np.ones((2, 2))), steps=2),
            ValueError,
            r"gru: z \(4, 5\), w \(6, 2\)",
        ),
        (
            lambda: ops.gru(
                Tensor(np.ones((4, 6))), Tensor(np.ones((6, 2))), None, Tensor(np.ones((2, 2))), steps=2, units=RowPlan(3, 2, 0)
            ),
            ValueError,
            "gru",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
