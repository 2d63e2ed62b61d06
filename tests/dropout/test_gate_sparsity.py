"""GateSparsity: which columns, which steps; gradients against those of the formula."""

import numpy as np
import pytest

from numbanet import LSTM, Context, LanguageModel, Sequential, Tensor
from numbanet.dropout import GateSparsity
from numbanet.gradients import Packed
from numbanet.layers import Flow, Tree
from numbanet_kernels.families.lstm import lstm_grad_reference, lstm_reference, lstm_scores_reference


def arrays(rng, steps=5, n=4, inputs=3, hidden=8):
    x = rng.standard_normal((steps, n, inputs)).astype(np.float32)
    return x, rng.standard_normal((steps, n, hidden)).astype(np.float32)


GATES = Tree(LSTM(3, 8)).droppable("gates")[0]  # the site, which is that of any LSTM by itself


def gradients(layer, x, dy, gates, dev):
    """(dx, gradients of the parameters) of one backward pass with this plan of the gates."""
    x = Tensor(x, dev, requires_grad=True)
    layer.forward(Flow(x), Context(dev, {layer.sites()[-1]: gates}, model=layer)).x.backward(dy)
    return x, [p.gradient for p in layer.parameters()]


def test_columns_are_those_of_the_largest_norm(dev, rng):
    """dx and the gradients of all weights are those of dz with the chosen columns alone."""
    x, dy = arrays(rng)
    layer, policy = LSTM(3, 8, rng=1, device=dev), GateSparsity(0.5, schedule=1.0, probe=1).at(0)
    found, (dw, du, *_) = gradients(layer, x, dy, policy.plan(GATES, rng), dev)
    w, u, b_ih, b_hh = (np.float64(p.numpy()) for p in layer.parameters())
    z = x @ w.T + b_ih + b_hh
    zeros = np.zeros((4, 8))
    gates, h, c = lstm_reference(z, u, zeros, zeros)
    scores = lstm_scores_reference(dy, gates, c)
    kept = np.sort(np.argsort(-scores)[:16])
    dz = np.zeros_like(gates)
    dz[:, :, kept] = lstm_grad_reference(dy, gates, c, u, columns=kept)[0]
    assert isinstance(dw, Packed) and isinstance(du, Packed) and dw.values.shape == (16, 3) and du.values.shape == (16, 8)
    expected = dz @ w, np.einsum("tnj,tni->ji", dz, x), np.einsum("tnj,tnh->jh", dz, h[:-1])
    for ours, theirs in zip((found.grad, dw, du), expected, strict=True):
        values = ours.numpy() if isinstance(ours, Tensor) else np.asarray(dev.download(ours.dense(dev)))
        np.testing.assert_allclose(values, theirs, rtol=1e-4, atol=1e-4)
    for p in (layer.bias_ih_l0, layer.bias_hh_l0):
        np.testing.assert_allclose(p.grad.numpy(), dz.sum((0, 1)), rtol=1e-4, atol=1e-4)
    dense = lstm_grad_reference(dy, gates, c, u)[0]
    expected = (dz * dense).sum() / np.linalg.norm(dz) / np.linalg.norm(dense)
    assert policy.report() == pytest.approx({"gates_kept": 0.5, "gates_cosine": expected}, rel=1e-4)
    assert policy.report() == {}


def test_thresholds_leave_out_their_share(rng):
    x, dy = arrays(rng, 9, 20, 3, 30)
    layer, policy = LSTM(3, 30, rng=1), GateSparsity(0.7, "threshold", schedule=1.0, probe=2).at(0)
    for _ in range(3):
        gradients(layer, x, dy, policy.plan(GATES, rng), layer.weight_ih_l0.device)
    report = policy.report()
    assert abs(report["gates_kept"] - 0.3) < 0.02 and 0.9 < report["gates_cosine"] < 1


def test_inner_layers_are_thinned_out_too(rng):
    x, dy = arrays(rng)
    layer = LSTM(3, 8, 2, rng=1)
    _, found = gradients(layer, x, dy, GateSparsity(0.25, schedule=1.0).at(0).plan(GATES, rng), layer.weight_ih_l0.device)
    assert [g.values.shape[0] for g in found if isinstance(g, Packed)] == [24] * 4


@pytest.mark.parametrize(
    "schedule, epochs, shares",
    [
        (0.5, 4, [1, 1, 0, 0]),
        (0.8, 2, [1, 0.6]),
        (1.0, 2, [1, 1]),
        (0.0, 2, [0, 0]),
        (lambda epoch: 0.5**epoch, 3, [1, 0.5, 0.25]),
    ],
)
def test_schedules(schedule, epochs, shares, rng):
    policy = GateSparsity(0.5, schedule=schedule).over(epochs)
    assert [policy.share(epoch) for epoch in range(epochs)] == pytest.approx(shares)
    for epoch, share in enumerate(shares):
        drawn = np.mean([policy.at(epoch).plan(GATES, rng) is not None for _ in range(400)])
        assert abs(drawn - share) < 0.12


def test_a_step_is_sparse_in_all_layers_or_in_none(rng):
    sites = Tree(Sequential([LSTM(3, 8), LSTM(8, 4)])).droppable("gates")
    policy = GateSparsity(0.5, schedule=lambda epoch: 0.5).at(0)
    drawn = [[policy.plan(site, rng) is not None for site in sites] for _ in range(100)]
    assert len(sites) == 2 and all(first == second for first, second in drawn)
    assert 20 < sum(first for first, _ in drawn) < 80


def test_as_many_steps_are_sparse_as_the_schedule_says():
    """The first step of an epoch goes by the schedule of its own epoch, though its plans are drawn in the one before."""
    words = [f"{i % 7}" for i in range(8 * 30 + 1)]
    model = LanguageModel((8,), gate_sparsity=0.5, gate_schedule=0.8, epochs=5, steps=5, batch_size=8, random_state=0)
    shares = [record["flops_share"] for record in model.fit(words).history_]
    assert len(set(shares[:4])) == 1 and shares[0] < 0.8 and shares[4] == 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sparsity": 1}, "gate_sparsity"),
        ({"sparsity": -0.1}, "gate_sparsity"),
        ({"mode": "rows"}, "gate_mode"),
        ({"schedule": 1.5}, "gate_schedule"),
        ({"probe": 0}, "probe"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GateSparsity(**options)
    with pytest.raises(ValueError, match="epoch 0"):
        GateSparsity(schedule=lambda epoch: 2).share(0)
