"""dsg: that training is that of the masked network, with batch norm as well, what a fit records, and refusals."""

import pickle
import warnings

import numpy as np
import pytest

from numbanet import (
    BatchNorm1d,
    Context,
    Conv2d,
    DynamicSparseGraph,
    Flatten,
    LanguageModel,
    Linear,
    MagnitudePruning,
    MaxPool2d,
    Net,
    Plans,
    ReLU,
    Sequential,
    SkewNormalSchedule,
    SparseLinear,
    Tensor,
    TileDropout,
)
from numbanet.dropout import Together, policy, recurrent
from numbanet.dropout.graph import WINDOWS, _windows, johnson_lindenstrauss, kept_of
from numbanet.layers import Flow, Tree
from numbanet_kernels.layouts.ternary import ternary

N = 40
FORMS = [
    {},
    {"share": "tile", "group": 17},
    {"share": "tile", "group": 3, "threshold": "shared"},
    {"share": "sample"},
    {"share": "sample", "threshold": "shared"},
]


def network(inputs=200, hidden=60, device="cpu"):
    return Sequential(
        [
            Linear(inputs, hidden, rng=0, device=device),
            ReLU(),
            Linear(hidden, hidden, rng=1, device=device),
            ReLU(),
            Linear(hidden, 3, rng=2, device=device),
        ]
    )


def samples(n=N, inputs=200, seed=0):
    rng, y = np.random.default_rng(seed), np.arange(n) % 3
    return np.float32(rng.standard_normal((n, inputs)) + 1.5 * (np.arange(inputs) % 3 == y[:, None])), y


def plan_of(chosen, model, x, number=0):
    tree = Tree(model)
    site = tree.droppable()[number]
    return chosen.choose_from_flow(site, Flow(x), tree.owners[site.path], np.random.default_rng(0))


def choosing(chosen, model, dev, **options):
    """A pass in which the policy chooses."""
    return Context(dev, Plans(dev, Tree(model).sites, choose=chosen.choosing(model, None)), **options)


# --- batch norm -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    "share, double", [("sample", True), ("sample", False), ("tile", True), ("tile", False), ("batch", True)]
)
def test_the_mask_is_applied_again_after_batch_norm(dev, share, double):
    """Product, ReLU, mask, batch norm, mask; or without the last one."""
    model = Sequential(
        [Linear(200, 60, rng=0, device=dev), ReLU(), BatchNorm1d(60, device=dev), Linear(60, 3, rng=1, device=dev)]
    )
    x, chosen = Tensor(samples()[0], dev), DynamicSparseGraph(0.6, epsilon=0.9, share=share, group=20, double=double)
    shift = np.linspace(-1, 1, 60)
    dev.copy(dev.upload(shift.astype(np.float32)), out=model.layers[2].bias.data)
    step = choosing(chosen, model, dev, training=True)
    y = model(x, step)
    mask = np.broadcast_to(step.plans.of(model.layers[0]).mask(), (N, 60))
    h = np.maximum(np.float64(x.numpy()) @ model.layers[0].weight.numpy().T, 0) * mask
    normed = ((h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5) + shift) * (mask if double else 1.0)
    np.testing.assert_allclose(y.numpy(), normed @ np.float64(model.layers[3].weight.numpy()).T, rtol=1e-3, atol=1e-3)
    y.sum().backward()
    assert np.isfinite(model.layers[0].weight.grad.numpy()).all()


@pytest.mark.parametrize("wrong", [False, True])
def test_batch_norm_before_relu_is_a_concern(wrong):
    """What is chosen is what ReLU would give without it."""
    middle = [BatchNorm1d(60), ReLU()] if wrong else [ReLU(), BatchNorm1d(60)]
    model = Sequential([BatchNorm1d(200), Linear(200, 60, rng=0), *middle, Linear(60, 3, rng=1), BatchNorm1d(3)])
    net = Net(model.layers, dropout=DynamicSparseGraph(0.5, epsilon=0.9), epochs=1, device="cpu")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        net.fit(*samples())
    assert [text for text in (str(warning.message) for warning in said) if not text.startswith("fit: ")] == [
        "dsg: BatchNorm1d(60) is between Linear(200, 60) and its ReLU, but neurons are chosen by ReLU of the product; "
        "put it after ReLU (product, ReLU, batch norm)"
    ] * wrong
    assert DynamicSparseGraph(0.0).cautions(model) == []


# --- training ---------------------------------------------------------------------------------------------------------
def fitted(dropout, epochs=6, **options):
    X, y = samples(240)
    net = Net(
        (60, 60),
        **{
            "epochs": epochs,
            "batch_size": 24,
            "random_state": 0,
            "learning_rate": 0.02,
            "dropout": dropout,
            "device": "cpu",
            **options,
        },
    )
    return net.fit(X, y), X, y


def test_a_fit_learns_and_counts_what_it_does():
    net, X, y = fitted(DynamicSparseGraph(0.6, epsilon=0.9))
    assert net.score(*samples(90, seed=1)) > 0.9 and net.history_[-1]["loss"] < net.history_[0]["loss"]
    assert all(0.3 < record["flops_share"] < 0.9 for record in net.history_)
    k, kept = johnson_lindenstrauss(60, 0.9), kept_of(60, 0.6)
    products = 2 * 24 * (2 * 200 * kept + 3 * kept * kept + 3 * 3 * kept)
    looks = 16 * (ternary(k, 200, 0).columns.size + 2 * k * 60) + 60 * ternary(k, 200, 0).columns.size / 10
    looks += 16 * 2 * 60 * 60  # k would be more than the 60 inputs
    dense = 2 * 24 * (2 * 200 * 60 + 3 * 60 * 60 + 9 * 60)
    assert net.history_[0]["flops_share"] == pytest.approx((products + looks) / dense)


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.slow
def test_a_step_is_that_of_the_masked_network(dev, options):
    """With masks on the activations of a dense network, in float64."""
    model, (X, _) = network(device=dev), samples()
    chosen = DynamicSparseGraph(0.7, epsilon=0.9, **options)
    step = choosing(chosen, model, dev, training=True)
    y = model(Tensor(X, dev), step)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    y.backward(dy)
    weights = [np.float64(p.numpy()) for p in model.parameters()]
    masks = [step.plans.of(model.layers[i]).mask() for i in (0, 2)]
    h, inputs = np.float64(X), []
    for w, b, mask in zip(weights[::2], weights[1::2], [*masks, np.ones(3)], strict=True):
        inputs.append(h)
        z = h @ w.T + b
        h = np.maximum(z, 0) * mask
    np.testing.assert_allclose(y.numpy(), z, rtol=1e-4, atol=1e-4)
    d = dy
    for i in (2, 1, 0):
        layer = model.layers[2 * i]
        np.testing.assert_allclose(layer.weight.grad.numpy(), d.T @ inputs[i], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(layer.bias.grad.numpy(), d.sum(0), rtol=1e-3, atol=1e-3)
        d = d @ weights[2 * i] * (inputs[i] > 0)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_every_form_learns_and_may_select_in_prediction(options):
    for selecting in (False, True):
        net, *_ = fitted(DynamicSparseGraph(0.6, epsilon=0.9, select_in_prediction=selecting, **options))
        assert net.score(*samples(90, seed=1)) > 0.85
        plain = net.model_(Tensor(samples(90, seed=1)[0])).softmax().numpy()
        assert np.allclose(net.predict_proba(samples(90, seed=1)[0]), plain, rtol=1e-2, atol=0) != selecting


def test_by_default_those_select_in_prediction_that_choose_for_each_sample_alone():
    """What others choose depends on who is predicted beside a sample."""
    X = samples(90, seed=1)[0]
    for share, threshold in (("batch", "exact"), ("tile", "exact"), ("sample", "exact"), ("sample", "shared")):
        chosen = DynamicSparseGraph(0.6, epsilon=0.9, share=share, threshold=threshold)
        net, *_ = fitted(chosen, epochs=1)
        assert chosen.select_in_prediction == (share == "sample")
        np.testing.assert_allclose(net.predict_proba(X[:7]), net.predict_proba(X)[:7], rtol=1e-4, atol=1e-6)


def test_together_predicts_as_the_policy_of_it_that_selects():
    for selecting in (False, True):
        chosen = DynamicSparseGraph(0.6, epsilon=0.9, select_in_prediction=selecting)
        net, X = fitted(Together(TileDropout(0.0), chosen), epochs=2)[0], samples(90, seed=1)[0]
        found, plain = net.predict_proba(X), net.model_(Tensor(X)).softmax().numpy()
        net.policy_ = chosen
        np.testing.assert_array_equal(found, net.predict_proba(X))
        assert np.allclose(found, plain, rtol=1e-2, atol=0) != selecting


@pytest.mark.parametrize(
    "arguments, size", [((3, 8, 3), 9), ((3, 8, 5, 1, 2), 6), ((3, 8, (2, 3), 2, 1, 2), 8), ((3, 8, 3, 1, 1), 2)], ids=str
)
def test_filters_are_chosen_by_windows_of_some_images(dev, rng, arguments, size):
    """Those that are looked at are rows of the input matrix, where windows lie inside."""
    layer = Conv2d(*arguments, rng=0, device=dev)
    x = Tensor(rng.standard_normal((5, size, size, 3)), dev)
    windows = dev.download(_windows(x, layer))
    assert windows.shape == (5 * WINDOWS, layer.weight.shape[1] * int(np.prod(layer.window.kernel)))
    if size > 2:
        y = layer(x.transpose(0, 3, 1, 2)).numpy().transpose(0, 2, 3, 1).reshape(5, -1, 8)
        found = windows @ layer.weight.numpy().reshape(8, -1).T
        for number, row in enumerate(found):
            assert np.abs(y[number // WINDOWS] - row).max(1).min() < 1e-4


def test_a_convolutional_network_learns_and_refuses_other_forms():
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    X = np.float32(0.1 * rng.standard_normal((60, 2, 8, 8)))
    for i, label in enumerate(y):
        X[i, :, 3] += 2.0 * (label == 1)
        X[i, :, :, 4] += 2.0 * (label == 2)
    layers = [
        Conv2d(2, 12, 3, padding=1, rng=0),
        ReLU(),
        MaxPool2d(2),
        Conv2d(12, 16, 3, padding=1, rng=1),
        ReLU(),
        Flatten(),
        Linear(256, 3, rng=2),
    ]
    given = {"epochs": 15, "batch_size": 15, "learning_rate": 0.02, "random_state": 0, "device": "cpu"}
    net = Net(layers, dropout=DynamicSparseGraph(0.5), **given).fit(X, y)
    assert net.score(X, y) > 0.9 and all(record["flops_share"] < 0.8 for record in net.history_)
    with pytest.raises(ValueError, match="share='batch', or a rate of 0 for this layer"):
        Net(layers, dropout=DynamicSparseGraph(0.5, share="sample"), **given).fit(X, y)


@pytest.mark.parametrize(
    "make",
    [
        lambda chosen: Net([SparseLinear(200, 20), ReLU(), Linear(20, 3)], dropout=chosen, device="cpu"),
        lambda chosen: LanguageModel(8, steps=4, dropout=chosen, device="cpu"),
        lambda chosen: LanguageModel(8, steps=4, dropout=chosen, recurrent_dropout="rdp", device="cpu"),
        lambda chosen: LanguageModel(8, steps=4, dropout=Together(chosen, recurrent(policy("rdp"))), device="cpu"),
    ],
)
def test_a_model_without_a_layer_to_choose_from_is_refused(make):
    model = make(DynamicSparseGraph(0.5))
    given = (["a", "b"] * 50,) if isinstance(model, LanguageModel) else samples()
    with pytest.raises(ValueError, match="hidden Linear and Conv2d layers, and there are none"):
        model.fit(*given)


def test_sparse_layers_are_computed_whole_and_rates_stay_with_their_layers():
    """What pruning does: the second layer's rate stays its own when the first one has become sparse."""
    layers = [SparseLinear(200, 60, rng=0), ReLU(), Linear(60, 60, rng=1), ReLU(), Linear(60, 3, rng=2)]
    chosen = DynamicSparseGraph((0.7, 0.2), epsilon=0.9)
    tree = Tree(Sequential(layers))
    assert [(tree.owners[site.path], chosen.rate_of(site)) for site in chosen.sites(tree)] == [(layers[2], 0.2)]
    net = Net(layers, dropout=chosen, epochs=1, device="cpu").fit(*samples())
    assert net.history_[0]["dropout_rate"] == 0.2
    with pytest.raises(ValueError, match="3 entries for 2 hidden layers"):
        chosen._with((0.7, 0.2, 0.1)).sites(Sequential(layers))
    pruned, *_ = fitted(DynamicSparseGraph(0.5, epsilon=0.9), epochs=4, sparsity=MagnitudePruning(0.9))
    assert pruned.history_[0]["dropout_rate"] == 0.5 and pruned.history_[-1]["dropout_rate"] == 0.0


def test_rate_0_is_the_dense_network():
    nets = [fitted(dropout)[0] for dropout in (DynamicSparseGraph(0.0), "none")]
    for ours, theirs in zip(*(net.model_.parameters() for net in nets), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert all(record["flops_share"] == 1 for record in nets[0].history_)


def test_the_same_seed_gives_the_same_bits_and_a_pickle_goes_on_alike():
    chosen = DynamicSparseGraph(0.5, epsilon=0.9)
    nets = [fitted(chosen, random_state=seed)[0] for seed in (3, 3, 4)]
    states = [net.model_.state_dict() for net in nets]
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(np.array_equal(states[0][name], states[2][name]) for name in states[0])
    X, y = samples(240)
    other = pickle.loads(pickle.dumps(nets[0]))
    for net in (nets[0], other):
        net.partial_fit(X, y)
    np.testing.assert_array_equal(other.predict_proba(X), nets[0].predict_proba(X))


def test_names_rates_by_layer_and_schedules():
    assert type(policy("dsg", 0.3)) is DynamicSparseGraph and policy("dsg", 0.3).rate == 0.3
    with pytest.warns(UserWarning, match="larger epsilon"):
        net, X, _ = fitted("dsg", dropout_rate=(0.0, 0.5), epochs=1)
    assert net.predict(X).shape == (240,) and net.history_[0]["dropout_rate"] == 0.25
    schedule = SkewNormalSchedule(0.4, 4)
    net, *_ = fitted(DynamicSparseGraph(schedule, epsilon=0.9), epochs=4)
    np.testing.assert_allclose([r["dropout_rate"] for r in net.history_], [schedule(epoch) for epoch in range(4)])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rate": 1.0}, "DynamicSparseGraph: rate must be"),
        ({"rate": -0.1}, "DynamicSparseGraph: rate must be"),
        ({"epsilon": 0}, "epsilon must be a number between 0 and 1"),
        ({"epsilon": 1.0}, "epsilon must be"),
        ({"epsilon": "half"}, "epsilon must be"),
        ({"epsilon": float("nan")}, "epsilon must be"),
        ({"share": "layer"}, "share must be one of 'batch', 'tile', 'sample'"),
        ({"threshold": 1}, "threshold must be one of"),
        ({"group": 0}, "group must be"),
        ({"refresh": 0}, "refresh must be an integer of at least 1, got 0"),
        ({"samples": 1.5}, "samples must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DynamicSparseGraph(**options)
