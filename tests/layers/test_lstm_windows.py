"""Windows of units in recurrent layers: the values and gradients of an IndexPlan with the same units, and less work."""

import warnings

import numpy as np
import pytest

from numbanet import GRU, LSTM, Context, Embedding, IndexPlan, LanguageModel, Linear, RowDropout, Sequential, Tensor, WindowPlan
from numbanet.dropout import Together, WindowDropout, recurrent
from numbanet.gradients import Packed
from numbanet.layers import ActivationSpec, Flow, Layer, Tree
from numbanet.plans import UnitWindow
from numbanet.training.recorder import Recorder
from numbanet.training.sgd import SGD
from numbanet_kernels.host import thresholds
from numbanet_kernels.runtime import replay

WINDOWS = [  # (H, (start, count) of the first layer, and of the second one)
    (12, (2, 5), (10, 4)),
    (12, (11, 1), (0, 1)),
    (12, (3, 12), (0, 12)),
    (12, (7, 0), (4, 11)),
]
LARGE = 300, (200, 150), (10, 100)  # products read the weights where they are


def gradients(dev, kind, hidden, windows, n, cell=LSTM, steps=4):
    """(y, and the gradients of x and of the parameters) of two layers whose outputs and recurrent inputs keep windows."""
    layers = cell(7, hidden, 2, rng=1, device=dev)
    model = Sequential([layers, Linear(hidden, 5, rng=2, device=dev)])
    sites, plans = {site.path: site for site in Tree(model).sites.values()}, {}
    for layer, (start, count) in enumerate(windows):
        window = WindowPlan(hidden, start, count, 1.5)
        made = {
            "indices": [IndexPlan(hidden, window.indices(), 1.5)] * 2,
            "windows": [window] * 2,
            "units": [window, UnitWindow(hidden, start, count, 1.5, cell.gates)],
        }[kind]
        plans.update({sites[f"0.{site}_l{layer}"]: plan for site, plan in zip(("output", "recurrent"), made, strict=True)})
    rng = np.random.default_rng(3)
    x = Tensor(rng.standard_normal((steps, n, 7), np.float32), dev, requires_grad=True)
    y = model(x, Context(dev, plans, training=True, model=model))
    (y * Tensor(rng.standard_normal(y.shape, np.float32), dev)).sum().backward()
    return [y.numpy(), x.grad.numpy(), *(p.grad.numpy() for p in model.parameters())], layers


@pytest.mark.slow
@pytest.mark.parametrize("cell", [LSTM, GRU])
@pytest.mark.parametrize("kind", ["windows", "units"])
@pytest.mark.parametrize("hidden, first, second", WINDOWS)
def test_windows_are_index_plans_of_the_same_units(dev, hidden, first, second, kind, cell):
    n, steps = (3, 4) if dev.name != "emulated" else (2, 2)
    expected, _ = gradients(dev, "indices", hidden, (first, second), n, cell, steps)
    found, layers = gradients(dev, kind, hidden, (first, second), n, cell, steps)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * max(np.abs(theirs).max(initial=0), 1e-30))
    if cell is LSTM and kind == "units" and first[1] < hidden:
        gradient = layers.weight_hh_l0.gradient
        assert isinstance(gradient, Packed) and gradient.values.shape == (4 * first[1], first[1])


@pytest.mark.parametrize("kind", ["windows", "units"])
def test_large_windows_are_index_plans_of_the_same_units(kind):
    hidden, *windows = LARGE
    expected, _ = gradients("cpu", "indices", hidden, windows, 20)
    for ours, theirs in zip(gradients("cpu", kind, hidden, windows, 20)[0], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


def test_units_of_other_outputs_are_refused():
    layer, x = LSTM(7, 12, rng=1), Tensor(np.ones((2, 3, 7)))
    sites = Tree(layer).sites
    for outputs in ({}, {sites[layer, "output_l0"]: WindowPlan(12, 3, 5)}):
        plans = {**outputs, sites[layer, "recurrent_l0"]: UnitWindow(12, 2, 5)}
        with pytest.raises(ValueError, match="must keep the units of output_l0"):
            layer.forward(Flow(x), Context("cpu", plans, model=layer))


def test_final_states_have_gradients_under_windows():
    """They come from all units, so none is left out."""
    hidden, found = 12, {}
    for kind in (IndexPlan(12, [1, 2, 3]), UnitWindow(12, 1, 3)):
        layer = LSTM(7, hidden, rng=1)
        sites = Tree(layer).sites
        plans = {sites[layer, "output_l0"]: WindowPlan(12, 1, 3), sites[layer, "recurrent_l0"]: kind}
        _, (h, c) = layer(Tensor(np.ones((3, 2, 7))), context=Context("cpu", plans, model=layer))
        (h.sum() + (c * c).sum()).backward()
        found[type(kind)] = layer.weight_ih_l0.grad.numpy()
    assert found[IndexPlan].any(axis=1).all()
    np.testing.assert_allclose(found[UnitWindow], found[IndexPlan], rtol=1e-6)


# --- policies ---------------------------------------------------------------------------------------------------------
def test_a_layer_keeps_one_window_for_outputs_and_recurrence():
    model, rng = (
        Tree(Sequential([Embedding(9, 10, rng=0), LSTM(10, 10, 2, rng=1), Linear(10, 9, rng=2)])),
        np.random.default_rng(0),
    )
    drawn = [
        Together(WindowDropout(0.5), recurrent(WindowDropout(0.5), as_outputs=True)).plans(model, rng) for _ in range(4000)
    ]
    for plans in drawn:
        for layer in range(2):
            seen, outputs = plans[f"1.recurrent_l{layer}"], plans[f"1.output_l{layer}"]
            assert type(seen) is UnitWindow and seen.same_units(outputs) and seen.scale == outputs.scale and seen.gates == 4
    kept = np.mean([plans["1.recurrent_l1"].mask() for plans in drawn], axis=0)
    assert np.abs(kept - 0.5).max() < 5 * np.sqrt(0.25 / len(drawn))
    assert any(plans["1.recurrent_l0"].start != plans["1.recurrent_l1"].start for plans in drawn)


@pytest.mark.parametrize(
    "other",
    [recurrent(WindowDropout(0.4), as_outputs=True), recurrent(WindowDropout(0.5)), recurrent(RowDropout(0.5))],
    ids=["another rate", "independent", "another policy"],
)
def test_other_policies_keep_their_own_units(other):
    model, rng = Tree(Sequential([LSTM(10, 10, rng=1), Linear(10, 9, rng=2)])), np.random.default_rng(0)
    policy = Together(WindowDropout(0.5), other)
    assert not any(isinstance(plan, UnitWindow) for _ in range(20) for plan in policy.plans(model, rng).values())
    both = Tree(Sequential([LSTM(10, 10, bidirectional=True, rng=1), Linear(20, 9, rng=2)]))
    policy = Together(WindowDropout(0.5), recurrent(WindowDropout(0.5), as_outputs=True))
    assert not any(isinstance(plan, UnitWindow) for plan in policy.plans(both, rng).values())


@pytest.mark.parametrize("dropout, rate, said", [("none", 0.25, 1), ("window", 0.5, 1), ("rdp", 0.25, 1), ("window", 0.25, 0)])
def test_windows_that_do_not_follow_the_outputs_are_named(dropout, rate, said):
    """`recurrent_dropout_rate` is 0.25 by default, and `dropout_rate` is 0.5."""
    options = {"dropout": dropout, "dropout_rate": rate, "recurrent_dropout": "window", "recurrent_sampling": "outputs"}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        LanguageModel((16,), epochs=1, batch_size=4, steps=7, random_state=0, **options).fit("a b c d".split() * 20)
    assert sum("windows of their own" in str(w.message) for w in seen) == said


@pytest.mark.parametrize("rates, said", [((0.3, 0.5), 0), ((0.5, 0.3), 1), ((0.3, 0.4), 1), ((0.3, 0.0), 0), (0.3, 1)])
def test_rates_of_windows_are_compared_layer_by_layer(rates, said):
    model = Sequential([LSTM(10, 8, num_layers=2, rng=1), Linear(8, 9, rng=2)])
    policy = Together(WindowDropout((0.3, 0.5)), recurrent(WindowDropout(rates), as_outputs=True))
    assert sum("windows of their own" in message for message in policy.cautions(model)) == said


class HoldsRecurrent(Layer):
    """Its LSTM has a name that is like that of a site."""

    def __init__(self):
        self.recurrent_net = LSTM(8, 16, num_layers=2)

    def __call__(self, x):
        return self.recurrent_net(x)


def test_windows_follow_the_outputs_of_any_layer():
    policy = Together(WindowDropout(0.5), recurrent(WindowDropout(0.5), as_outputs=True))
    for model, path in ((HoldsRecurrent(), "recurrent_net."), (LSTM(8, 16, num_layers=2), "")):
        drawn = policy.plans(Tree(model), np.random.default_rng(0))
        units = drawn[f"{path}recurrent_l0"]  # the outputs of the second layer are the answer, which nothing drops
        assert isinstance(units, UnitWindow) and units.same_units(drawn[f"{path}output_l0"])


def test_only_windows_follow_the_outputs():
    with pytest.raises(ValueError, match="possible with 'window' only, not 'rdp'"):
        recurrent(RowDropout(0.5), as_outputs=True)
    with pytest.raises(ValueError, match="recurrent_sampling must be 'sequence', 'step' or 'outputs', got 'none'"):
        fit(recurrent_sampling="none")


def test_units_without_gradients_have_no_flops():
    layer = LSTM(8, 8, rng=1)
    sites, spec = Tree(layer).sites, ActivationSpec((5, 2, 8), None, True)
    outputs = {sites[layer, "output_l0"]: WindowPlan(8, 1, 2)}

    def cost(plan):
        return layer.cost(spec, Context("cpu", {**outputs, sites[layer, "recurrent_l0"]: plan}, model=layer).plans)[0]

    apart, together = cost(WindowPlan(8, 1, 2)), cost(UnitWindow(8, 1, 2))
    assert together.forward == apart.forward and together.backward == apart.backward / 4


# --- training ---------------------------------------------------------------------------------------------------------
def fit(device="cpu", momentum=0.9, clip=None, **options):
    words = np.random.default_rng(0).integers(30, size=700)
    settings = {"hidden": (24, 24), "embedding": 20, "vocabulary_size": 30, "epochs": 2, "batch_size": 4, "steps": 5}
    settings |= {"dropout": "window", "dropout_rate": 0.5, "recurrent_dropout": "window", "recurrent_dropout_rate": 0.5}
    settings |= {"recurrent_sampling": "outputs"}
    settings |= {"momentum": momentum, "clip_norm": clip, "learning_rate": 0.5, "random_state": 0, "device": device}
    return LanguageModel(**{**settings, **options}).fit(list(map(str, words)))


@pytest.mark.parametrize("options", [{}, {"clip": 0.25}, {"momentum": 0.0, "recurrent_sampling": "sequence"}], ids=str)
def test_training_under_windows_is_that_of_updates_of_all(monkeypatch, options):
    """Exact momentum, though updates leave out the columns that no step reads."""
    monkeypatch.setattr(thresholds, "current", thresholds.current._replace(lazy_elements=0))
    lazy = fit(**options)
    names = {name for name, tensor, _ in lazy.model_.named() if tensor in lazy.optimizer_.lazy}
    monkeypatch.setattr(SGD, "_arrange", lambda self, parameter, part: None)
    every = fit(**options)
    assert not every.optimizer_.lazy and len(names) >= 4, names
    for ours, theirs in zip(lazy.model_.parameters(), every.model_.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=2e-6)


def test_steps_under_windows_are_replayed(monkeypatch):
    counts = []
    original = replay.run
    monkeypatch.setattr(replay, "run", lambda *given: (counts.append(1), original(*given))[1])
    recorded = fit()
    assert len(counts) > 20
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(Recorder, "possible", never, raising=False)
    counts.clear()
    alone = fit()
    assert not counts
    for ours, theirs in zip(recorded.model_.parameters(), alone.model_.parameters(), strict=True):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
