"""What is frozen is not trained, by whatever means, is saved as such, and learns again when it is thawed."""

import copy
import pickle

import numpy as np
import pytest

from numbanet import (
    LSTM,
    SGD,
    Adam,
    AdamW,
    BatchNorm1d,
    BernoulliDropout,
    GroupLasso,
    LanguageModel,
    Linear,
    MagnitudePruning,
    Net,
    NetRegressor,
    ReLU,
    Rewire,
    RowPlan,
    Sequential,
    SparseLinear,
    Tensor,
    ops,
)
from numbanet.training.task import LanguageModelling

N = 40


def layers(first=Linear):
    made = first(12, 16, rng=0) if first is Linear else first(12, 16, density=0.5, rng=0)
    return [made.requires_grad_(False), BatchNorm1d(16), ReLU(), Linear(16, 16, rng=1), ReLU(), Linear(16, 3, rng=2)]


@pytest.fixture
def data(rng):
    y = np.arange(N) % 3
    return np.float32(rng.standard_normal((N, 12)) + y[:, None]), y


def values(layer):
    return {name: np.array(tensor.numpy()) for name, tensor, _ in layer.named()}


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_a_layer_and_all_that_it_holds_is_frozen_and_thawed():
    model = Sequential([Linear(3, 4), LSTM(4, 2), BatchNorm1d(2)])
    assert model.requires_grad_(False) is model
    assert not any(parameter.requires_grad for parameter in model.parameters()) and list(model.parameters())
    model.layers[1].requires_grad_()
    assert [name for name, tensor, trained in model.named() if trained and tensor.requires_grad] == [
        "1.weight_ih_l0",
        "1.weight_hh_l0",
        "1.bias_ih_l0",
        "1.bias_hh_l0",
    ]
    assert not any(tensor.requires_grad for _, tensor, trained in model.named() if not trained)


def test_it_has_no_gradient_and_forgets_the_one_it_had(dev, rng):
    layer, x = Linear(3, 4, device=dev), Tensor(rng.standard_normal((5, 3)), dev)
    layer(x).sum().backward()
    layer.requires_grad_(False)
    assert layer.weight.grad is None
    head = Linear(4, 2, device=dev)
    head(layer(x)).sum().backward()
    assert layer.weight.grad is None and head.weight.grad is not None


OPTIMIZERS = {
    "sgd": lambda p: SGD(p, 0.1, weight_decay=0.5),
    "momentum": lambda p: SGD(p, 0.1, 0.9, weight_decay=0.5),
    "adam": lambda p: Adam(p, 0.1, weight_decay=0.5),
    "adamw": lambda p: AdamW(p, 0.1, weight_decay=0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("when", ["before the passes", "between passes and step"])
def test_no_step_moves_it_by_gradient_momentum_or_decay(dev, rng, name, when):
    model = Sequential([Linear(6, 8, rng=0), ReLU(), Linear(8, 3, rng=1)])
    for parameter in model.parameters():
        parameter.move(dev)
    optimizer, first, x = OPTIMIZERS[name](model.parameters()), model.layers[0], Tensor(rng.standard_normal((5, 6)), dev)

    def passes():
        ops.softmax_cross_entropy(model(x), labels=[0, 1, 2, 0, 1]).backward()

    passes()
    optimizer.step()
    if when == "between passes and step":
        passes()
    before = values(first.requires_grad_(False))
    for _ in range(3):
        if when == "before the passes":
            passes()
        optimizer.step()
        optimizer.settle()
        assert same(values(first), before)
        passes()
    first.requires_grad_()
    passes()
    optimizer.step()
    assert not same(values(first), before)


def test_what_lazy_steps_left_undone_is_made_up_for_before(rng):
    """The steps of before count, none of after."""
    lazy, dense = (Linear(6, 8, rng=0) for _ in range(2))
    optimizers = [SGD(layer.parameters(), 0.1, 0.9, weight_decay=0.1) for layer in (lazy, dense)]
    x, plan = Tensor(rng.standard_normal((5, 6))), RowPlan(8, 4, 1)
    for step in range(6):
        for layer, optimizer in zip((lazy, dense), optimizers, strict=True):
            layer.requires_grad_(step < 3)
            if step < 3:
                layer(x, {layer: plan}).sum().backward()
            optimizer.step({layer.weight: plan} if layer is lazy and step < 3 else None)
    optimizers[0].settle()
    np.testing.assert_allclose(lazy.weight.numpy(), dense.weight.numpy(), rtol=1e-5, atol=1e-7)


FITS = {
    "sgd": {"weight_decay": 0.1},
    "adam": {"optimizer": "adam", "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "rows": {"dropout": "rdp", "weight_decay": 0.1},
    "bits": {"dropout": BernoulliDropout(0.5)},
    "lasso": {"sparsity": GroupLasso(0.05), "epochs": 5},
    "pruning": {"sparsity": MagnitudePruning(0.5), "epochs": 5},
    "clipped": {"clip_norm": 0.1},
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_leaves_it_alone(name, data):
    given = layers()
    before = values(given[0])
    net = Net(given, **{"epochs": 3, "batch_size": 8, "random_state": 0, "device": "cpu", **FITS[name]}).fit(*data)
    first = next(layer for layer in net.model_.layers if type(layer) is Linear)
    assert not first.weight.requires_grad
    for i, row in enumerate(first.weight.numpy()):  # whole units may leave, none may change
        assert any(np.array_equal(row, own) for own in before["weight"]), f"row {i} has changed"
    if "sparsity" not in FITS[name]:
        assert same(values(first), before)
        assert same(values(net.partial_fit(*data).model_.layers[0]), before)


def test_rewiring_leaves_it_alone(data):
    given = layers(SparseLinear)
    given[3] = SparseLinear(16, 16, density=0.5, rng=1)
    before, other = values(given[0]), values(given[3])
    net = Net(given, sparsity=Rewire(every=1), epochs=4, batch_size=8, random_state=0, device="cpu").fit(*data)
    assert same(values(net.model_.layers[0]), before)
    assert not np.array_equal(net.model_.layers[3].col_indices.numpy(), other["col_indices"])


def test_it_is_saved_loaded_copied_and_pickled_as_such(data, tmp_path):
    net = Net(layers(), epochs=1, batch_size=8, random_state=0, device="cpu").fit(*data)
    net.save(tmp_path / "net")
    for other in (net, Net.load(tmp_path / "net"), pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert [name for name, tensor, trained in other.model_.named() if trained and not tensor.requires_grad] == [
            "0.weight",
            "0.bias",
        ]
        before = values(other.model_.layers[0])
        other.partial_fit(*data)
        assert same(values(other.model_.layers[0]), before)


def test_a_network_that_is_frozen_as_a_whole_is_loaded(data, tmp_path):
    net = Net(layers(), epochs=1, batch_size=8, random_state=0, device="cpu").fit(*data)
    net.model_.requires_grad_(False)
    net.save(tmp_path / "net")
    np.testing.assert_array_equal(Net.load(tmp_path / "net").predict_proba(data[0]), net.predict_proba(data[0]))


def test_nothing_left_to_train_is_refused(data):
    with pytest.raises(ValueError, match="nothing to train"):
        NetRegressor([Linear(12, 1).requires_grad_(False)]).fit(*data)


def test_optimisers_say_what_to_do_with_it():
    layer = Linear(2, 2).requires_grad_(False)
    with pytest.raises(TypeError, match="(?s)parameters must be tensors .* leave out what is frozen, or freeze it after"):
        SGD(layer.parameters(), 0.1)


@pytest.mark.parametrize("dropout", ["none", "rdp", "window"])
@pytest.mark.parametrize("kind", [SGD, Adam])
def test_what_a_function_leaves_out_of_an_optimiser_is_not_trained(kind, dropout, data, tmp_path):
    """Nor after the fit went on from a checkpoint, a file or a pickle; what the function chose learns as if alone."""
    X, y = data

    def optimizer(parameters, rate):
        return kind(list(parameters)[2:], rate)

    def made(**options):
        given = [Linear(12, 16, rng=0), ReLU(), Linear(16, 16, rng=1), ReLU(), Linear(16, 3, rng=2)]
        given[0].requires_grad_(options.pop("trained", True))
        return Net(given, dropout=dropout, epochs=4, batch_size=10, learning_rate=0.01, random_state=0, **options)

    net = made(optimizer=optimizer).fit(X, y, checkpoint=tmp_path / "run", every=3, keep=99)
    frozen = made(optimizer=kind, trained=False).fit(X, y)
    (tmp_path / "one").mkdir()
    some = sorted((tmp_path / "run").iterdir())[1]
    some.rename(tmp_path / "one" / some.name)
    resumed = Net.resume(tmp_path / "one", optimizer=optimizer).fit(X, y)
    for ours, theirs, again in zip(*(m.model_.parameters() for m in (net, frozen, resumed)), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        np.testing.assert_array_equal(ours.numpy(), again.numpy())
    first, moved = values(net.model_.layers[0]), values(net.model_.layers[2])
    copied = copy.deepcopy(net)
    copied.partial_fit(X, y)
    assert same(first, values(copied.model_.layers[0])) and not same(moved, values(copied.model_.layers[2]))


def test_a_function_that_leaves_parameters_out_and_sparsity_are_refused(data):
    with pytest.raises(ValueError, match="sparsity changes all weights.*requires_grad_"):
        Net((16,), optimizer=lambda p, rate: Adam(p[2:], rate), sparsity=GroupLasso(0.1), epochs=1).fit(*data)
    with pytest.raises(TypeError, match="must take parameters and a learning rate"):
        Net((16,), optimizer=lambda p: Adam(p), epochs=1).check()


@pytest.mark.parametrize("tied", [False, True])
def test_a_language_model_with_frozen_lower_layers_is_trained_in_chunks_as_at_once(tied, monkeypatch):
    words = "the cat sat on the mat and the dog sat on the rug".split() * 10

    def trained(most):
        monkeypatch.setattr(LanguageModelling, "MOST_LOGITS", most)
        net = LanguageModel((8,), epochs=1, batch_size=2, steps=6, tied=tied, random_state=0).fit(words)
        net.model_.requires_grad_(False)
        net.model_.layers[-1].requires_grad_()
        return values(net.partial_fit(words).model_)

    for (name, one), other in zip(trained(1 << 20).items(), trained(64).values(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6, err_msg=name)
