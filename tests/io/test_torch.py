"""Networks for PyTorch and from it: equal outputs and names, refusals by name, and training that goes on."""

import numpy as np
import pytest

from numbanet import DynamicSparseGraph, EarlyDropout, LanguageModel, Layer, Net, NetRegressor, Tensor, device, layers as L
from numbanet.io import from_torch, to_torch
from numbanet.layers import registry

from .networks import drawn, outputs

torch = pytest.importorskip("torch", reason="PyTorch is the other side (extra `test`)")
nn = torch.nn

WORDS = "the cat sat on the mat and the dog sat on the rug".split() * 12


def _computed(module, x):
    with torch.no_grad():
        return module(torch.tensor(x)).numpy()


@pytest.mark.parametrize("seed", range(200))
def test_random_networks_go_there_and_back(seed):
    network, x = drawn(seed)
    expected, module = outputs(network, x), to_torch(network)
    np.testing.assert_allclose(_computed(module, x), expected, rtol=1e-5, atol=1e-5)
    back = from_torch(module)
    np.testing.assert_allclose(outputs(back, x), expected, rtol=1e-6, atol=1e-6)
    if not any(isinstance(layer, L.SparseLinear) for layer in network.layers):
        names = {name for name in network.state_dict() if not name.endswith(("order", "mean.order"))}
        assert set(module.state_dict()) == names
        assert {name: value.shape for name, value in back.state_dict().items()} == {
            name: value.shape for name, value in network.state_dict().items()
        }


def test_every_layer_can_be_written_and_read():
    from numbanet.io import onnx_writer, torch_writer

    every = set(registry.__all__) - {"Sequential"}
    assert set(torch_writer.WRITERS) == set(onnx_writer.WRITERS) == every

    def kinds(network):
        for layer in network.layers:
            yield from kinds(layer) if isinstance(layer, L.Sequential) else [type(layer).__name__]

    networks = [drawn(seed)[0] for seed in range(60)]
    assert {kind for network in networks for kind in kinds(network)} == every
    assert {kind for network in networks for kind in kinds(from_torch(to_torch(network)))} == every - {"SparseLinear"}


@pytest.mark.parametrize("kind", ["classes", "images", "numbers", "number"])
def test_estimators_compute_the_same(kind, rng):
    X, y = rng.random((30, 1, 12, 12), np.float32), np.arange(30) % 3
    if kind == "images":
        net = Net("lenet5", image_shape=(1, 12, 12), epochs=1).fit(X, y)
        expected = net.decision_function(X) if hasattr(net, "decision_function") else np.log(net.predict_proba(X))
    else:
        X = X.reshape(30, -1)
        target = {"classes": y, "numbers": np.c_[y * 40.0 + 7, -y], "number": y * 40.0 + 7}[kind]
        net = (Net if kind == "classes" else NetRegressor)((8,), epochs=2, dropout="tdp").fit(X, target)
        expected = np.log(net.predict_proba(X)) if kind == "classes" else net.predict(X)
    found = _computed(to_torch(net), X)
    if kind in ("classes", "images"):
        found = torch.log_softmax(torch.tensor(found), dim=1).numpy()
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def test_flat_images_are_taken_as_predict_takes_them(rng):
    X = rng.random((20, 144), np.float32)
    module = to_torch(Net("lenet5", image_shape=(1, 12, 12), epochs=1).fit(X, np.arange(20) % 2))
    np.testing.assert_array_equal(_computed(module, X), _computed(module, X.reshape(20, 1, 12, 12)))


def test_images_without_their_axis_of_one_channel_and_flat_samples_of_widths(rng):
    X = rng.random((20, 12, 12), np.float32)
    net = Net("lenet5", image_shape=(1, 12, 12), epochs=1).fit(X, np.arange(20) % 2)
    logits = _computed(to_torch(net), X)
    np.testing.assert_array_equal(logits, _computed(to_torch(net), X[:, None]))
    np.testing.assert_array_equal(net.classes_[logits.argmax(1)], net.predict(X))
    flat = Net((8,), image_shape=(1, 12, 12), epochs=1).fit(X.reshape(20, -1), np.arange(20) % 2)
    logits = _computed(to_torch(flat), X.reshape(20, -1))
    np.testing.assert_array_equal(flat.classes_[logits.argmax(1)], flat.predict(X.reshape(20, -1)))


@pytest.mark.parametrize("options", [{"hidden": (8, 12)}, {"hidden": (8, 8), "tied": True}])
def test_a_language_model_carries_states(options, rng):
    model = LanguageModel(epochs=1, steps=5, batch_size=2, **options).fit(WORDS)
    module, words = to_torch(model), rng.integers(0, len(model.vocabulary_), (7, 3))
    with torch.no_grad():
        whole, _ = module(torch.tensor(words))
        first, states = module(torch.tensor(words[:4]))
        second, _ = module(torch.tensor(words[4:]), states)
    expected = model.model_(Tensor.wrap(words.astype(np.int32), device("cpu"))).numpy().reshape(whole.shape)
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(torch.cat([first, second]), whole, rtol=1e-5, atol=1e-6)
    assert sum(part.numel() for part in module.parameters()) == sum(np.prod(t.shape) for t in model.model_.parameters())


def test_a_frozen_weight_stays_frozen_and_weights_are_copies():
    first = L.Linear(3, 2, rng=0)
    first.weight.requires_grad = False
    module = to_torch(L.Sequential([first]))
    assert not module[0].weight.requires_grad and module[0].bias.requires_grad
    with torch.no_grad():
        module[0].weight += 1
    assert not np.allclose(first.weight.numpy(), module[0].weight.numpy())
    back = from_torch(module)
    assert not back.layers[0].weight.requires_grad
    before = back.layers[0].weight.numpy().copy()
    with torch.no_grad():
        module[0].weight += 1
    np.testing.assert_array_equal(back.layers[0].weight.numpy(), before)


def test_a_checkpoint_is_trained_further_here_and_goes_back(rng):
    X = rng.standard_normal((200, 6)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Sequential(nn.Identity(), nn.Linear(16, 2))).eval()
    net = Net(from_torch(module).layers, epochs=1, learning_rate=1e-30, dropout="rdp").fit(X, y)
    np.testing.assert_allclose(net.predict_proba(X), torch.softmax(module(torch.tensor(X)), 1).detach(), rtol=1e-5, atol=1e-6)
    net.set_params(epochs=30, learning_rate=0.05).fit(X, y)
    assert net.score(X, y) > 0.9
    tuned = to_torch(net)
    module.load_state_dict(
        {"0.weight": tuned[0].weight, "0.bias": tuned[0].bias, "3.1.weight": tuned[2][0].weight, "3.1.bias": tuned[2][0].bias}
    )
    assert (module(torch.tensor(X)).argmax(1).numpy() == net.predict(X)).all()


def test_modules_and_layers_that_are_used_twice(rng):
    act, linear = nn.ReLU(), nn.Linear(6, 6)
    module, x = nn.Sequential(linear, act, linear, act), rng.standard_normal((3, 6)).astype(np.float32)
    back = from_torch(module)
    np.testing.assert_allclose(outputs(back, x), _computed(module, x), rtol=1e-5, atol=1e-6)
    assert back.layers[0].weight is back.layers[2].weight and len(list(back.parameters())) == 2
    lstm, x = L.LSTM(4, 4, batch_first=True, rng=0), rng.standard_normal((3, 5, 4)).astype(np.float32)
    np.testing.assert_allclose(
        _computed(to_torch(L.Sequential([lstm, lstm])), x), outputs(L.Sequential([lstm, lstm]), x), rtol=1e-5, atol=1e-6
    )


def test_a_layer_that_is_used_twice_is_one_module(rng):
    """Parameters and statistics stay tied: also those of a sparse weight, of batch normalisation and of nested layers."""
    norm, sparse = L.BatchNorm1d(6), L.SparseLinear(6, 6, density=0.2, rng=0)
    nested = L.Sequential([L.Linear(6, 6, rng=1), L.Tanh()])
    network = L.Sequential([sparse, norm, nested, L.Sequential([sparse, norm]), nested, L.Linear(6, 2, rng=2)])
    x = rng.standard_normal((5, 6)).astype(np.float32)
    norm.running_mean.assign(rng.standard_normal(6).astype(np.float32))
    module = to_torch(network)
    np.testing.assert_allclose(_computed(module, x), outputs(network, x), rtol=1e-5, atol=1e-6)
    assert module[0] is module[3][0] and module[1] is module[3][1] and module[2] is module[4]
    assert len(list(module.parameters())) == len(list(network.parameters())) == 8
    assert sum(part.numel() for part in module.parameters()) == 36 + 6 + 2 * 6 + 36 + 6 + 12 + 2
    module.train()(torch.tensor(x)).sum().backward()
    torch.optim.SGD(module.parameters(), 0.1).step()
    back = from_torch(module.eval())
    np.testing.assert_allclose(outputs(back, x), _computed(module, x), rtol=1e-5, atol=1e-6)
    assert back.layers[1].running_mean is back.layers[3].layers[1].running_mean and len(list(back.parameters())) == 8


def test_padding_of_pytorch_ends_no_sequence(rng):
    embedding, ids = nn.Embedding(9, 4, padding_idx=0), np.array([[1, 2, 0, 0], [3, 0, 4, 5]])
    y, _ = nn.LSTM(4, 5, batch_first=True).eval()(embedding(torch.tensor(ids)))
    found = outputs(from_torch(nn.Sequential(embedding)), ids)
    np.testing.assert_array_equal(found, embedding(torch.tensor(ids)).detach())
    assert from_torch(nn.Sequential(embedding)).padding is None


@pytest.mark.parametrize("named", [False, True])
def test_a_link_is_refused(named, rng):
    from numbanet.losses import FunctionLoss, Loss

    class Poisson(Loss):
        def __call__(self, output, target):
            return (output.exp() - target * output).sum(axis=1)

        def inverse_link(self, output):
            return output.exp()

    loss = FunctionLoss(Poisson().__call__, lambda output: output.exp()) if named else Poisson()
    net = NetRegressor((4,), loss=loss, epochs=1).fit(rng.random((20, 3), np.float32), np.arange(20) % 3)
    with pytest.raises(TypeError, match="to_torch: the inverse link of"):
        to_torch(net)
    with pytest.raises(TypeError, match="export: the inverse link of"):
        net.export("a.onnx")


class OwnForTorch(Layer):
    def __call__(self, x):
        return x * 2


class OwnModule(nn.Linear):
    def forward(self, x):
        return 2 * x


class OwnOrder(nn.Module):
    def __init__(self, *inside):
        super().__init__()
        self.first, self.second = nn.ReLU(), nn.Sequential(*inside)

    def forward(self, x):
        return self.second(self.first(x)) + x


def hooked(container):
    container.register_forward_hook(lambda module, x, y: 2 * y)
    return container


def test_a_list_of_modules_is_read_in_its_order(rng):
    parts = nn.ModuleList([nn.Linear(4, 3), nn.ModuleList([nn.Tanh(), nn.Linear(3, 2)])])
    x = rng.standard_normal((5, 4)).astype(np.float32)
    theirs = nn.Sequential(parts[0], *parts[1])(torch.from_numpy(x))
    np.testing.assert_allclose(from_torch(parts)(Tensor(x)).numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "module, error, message",
    [
        (
            OwnOrder(nn.GroupNorm(1, 2)),
            TypeError,
            r"itself \(OwnOrder\) computes what its forward.*second\.0 \(GroupNorm\) has no",
        ),
        (hooked(nn.Sequential(nn.ReLU())), TypeError, r"itself \(Sequential\) computes what its forward says"),
        (
            nn.Sequential(hooked(nn.ModuleList([nn.ReLU()]))),
            TypeError,
            r"module 0 \(ModuleList\) computes what its forward says",
        ),
        (OwnOrder(nn.Dropout()), TypeError, r"itself \(OwnOrder\) computes what .*: write it as a Sequential of its modules$"),
        (nn.Sequential(nn.ReLU(), nn.Sequential(nn.GroupNorm(1, 2))), TypeError, r"module 1\.0 \(GroupNorm\) has no"),
        (OwnModule(2, 2), TypeError, r"module itself \(OwnModule\) has no counterpart"),
        (
            nn.Sequential(nn.MaxPool2d(2, return_indices=True)),
            ValueError,
            r"module 0 \(MaxPool2d\): .*return_indices=True is not",
        ),
        (nn.Sequential(nn.Conv2d(1, 1, 2, padding="same")), ValueError, r"module 0 \(Conv2d\): padding='same' of an even"),
        (nn.LSTM(2, 2, 2, dropout=0.5), ValueError, r"module itself \(LSTM\): dropout between its layers"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), TypeError, r"module itself .* has no counterpart"),
        (nn.BatchNorm1d(2, track_running_stats=False), ValueError, r"track_running_stats=False is not supported"),
        (3, TypeError, "from_torch takes a torch.nn.Module, not int"),
    ],
)
def test_what_has_no_counterpart_is_named(module, error, message):
    with pytest.raises(error, match=message):
        from_torch(module)


def test_a_users_layer_is_named():
    with pytest.raises(TypeError, match=r"layer 1\.0 is a OwnForTorch, a layer of your own, which cannot be written"):
        to_torch(L.Sequential([L.ReLU(), L.Sequential([OwnForTorch()])]))
    with pytest.raises(TypeError, match="to_torch takes a fitted estimator or a layer, not list"):
        to_torch([])


@pytest.mark.parametrize("padding", ["same", "valid", 2])
def test_paddings_of_convolutions(padding, rng):
    module = nn.Sequential(nn.Conv2d(2, 3, (3, 5), padding=padding, dilation=(1, 2)))
    x = rng.standard_normal((2, 2, 12, 12)).astype(np.float32)
    np.testing.assert_allclose(outputs(from_torch(module), x), _computed(module, x), rtol=1e-5, atol=1e-5)


def test_a_selection_of_neurons_is_refused(rng, tmp_path):
    X, y = rng.standard_normal((60, 8)).astype(np.float32), np.arange(60) % 2
    policy = DynamicSparseGraph(0.5, share="sample", epsilon=0.9)
    net = Net((16, 16), dropout=policy, epochs=1, random_state=0).fit(X, y)
    for convert in (to_torch, lambda net: net.export(tmp_path / "net.onnx")):
        with pytest.raises(ValueError, match="dropout 'dsg' selects the neurons .* select_in_prediction=False"):
            convert(net)
    assert not (tmp_path / "net.onnx").exists()
    whole = Net((16, 16), dropout=policy.changed(select_in_prediction=False), epochs=1, random_state=0).fit(X, y)
    np.testing.assert_allclose(to_torch(whole)(torch.tensor(X)).softmax(-1).detach(), whole.predict_proba(X), atol=1e-6)
    assert len(to_torch(net.model_)) == 5
    last = DynamicSparseGraph(EarlyDropout(0.5, until=0.5), share="sample", epsilon=0.9)  # selects nothing in the end
    dense = Net((16, 16), dropout=last, epochs=2, random_state=0).fit(X, y)
    np.testing.assert_allclose(to_torch(dense)(torch.tensor(X)).softmax(-1).detach(), dense.predict_proba(X), atol=1e-6)
