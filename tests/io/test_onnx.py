"""Networks for onnxruntime: equal outputs, free batch sizes and lengths, metadata, and refusals by name."""

import json

import numpy as np
import pytest

from numbanet import LanguageModel, Layer, Net, NetRegressor, Tensor, device, layers as L
from numbanet.io import export, to_torch
from numbanet.io.onnx_graph import Graph
from numbanet.io.onnx_writer import Value, write

from .networks import drawn, outputs

onnx = pytest.importorskip("onnx", reason="writes the files: pip install onnx")
runtime = pytest.importorskip("onnxruntime", reason="computes the files: pip install onnxruntime")

WORDS = "the cat sat on the mat and the dog sat on the rug".split() * 12


def _session(content):
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(content if isinstance(content, bytes) else str(content), options)


@pytest.mark.parametrize("seed", range(200))
def test_random_networks_compute_the_same(seed):
    network, x = drawn(seed)
    expected, graph = outputs(network, x), Graph()
    graph.inputs["X"] = np.int64 if x.dtype.kind == "i" else np.float32, ["samples", *x.shape[1:]]
    value = write(graph, network, Value("X", (1, *x.shape[1:])))
    graph.rename(value.name, "y")
    graph.outputs["y"] = np.float32, ["samples", *expected.shape[1:]]
    session = _session(graph.model({}).SerializeToString())
    for count in (len(x), 1):
        (found,) = session.run(None, {"X": x[:count]})
        np.testing.assert_allclose(found, expected[:count], rtol=1e-5, atol=1e-5)
    weights = {weight.name for weight in onnx.load_from_string(graph.model({}).SerializeToString()).graph.initializer}
    linear = {name for name in network.state_dict() if name.endswith("weight") and "num_batches" not in name}
    assert linear <= weights


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("pool", [(3, 4, 2), (2, 3, 4), (3, 1, 1)], ids=str)  # kernel, stride, dilation
def test_windows_of_a_dilated_pooling_end_far_outside(pool, padding, rng, tmp_path):
    """By more than the kernel's length, which onnxruntime takes for an error; padding is never the maximum."""
    kernel, stride, dilation = pool
    X = -1 - rng.random((20, 2, 9, 9), np.float32)
    layers = [
        L.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=True),
        L.AdaptiveAvgPool2d(1),
        L.Flatten(),
        L.Linear(2, 3, rng=0),
    ]
    net = Net(layers, epochs=1).fit(X, np.arange(20) % 3)
    net.export(tmp_path / "a.onnx")
    (found,) = _session(tmp_path / "a.onnx").run(["probabilities"], {"X": X})
    np.testing.assert_allclose(found, net.predict_proba(X), atol=1e-5)


def test_sequences_have_any_length(rng, tmp_path):
    ids = rng.integers(1, 9, (20, 6))
    ids[:10, 4:] = 0
    layers = [L.Embedding(9, 4, padding_idx=0), L.LSTM(4, 5, batch_first=True), L.LastStep(), L.Linear(5, 3)]
    net = Net(layers, epochs=1).fit(ids, np.arange(20) % 3)
    export(net, tmp_path / "a.onnx")
    session = _session(tmp_path / "a.onnx")
    assert session.get_inputs()[0].shape == ["samples", "steps"]
    for x in (ids, ids[:3, :4], np.hstack([ids, np.zeros_like(ids)])):
        np.testing.assert_allclose(session.run(["probabilities"], {"X": x})[0], net.predict_proba(x), atol=1e-5)


def test_labels_for_each_step(rng, tmp_path):
    X, y = rng.standard_normal((12, 5, 3)).astype(np.float32), rng.integers(0, 2, (12, 5))
    net = Net([L.GRU(3, 4, batch_first=True), L.Linear(4, 2)], epochs=1).fit(X, y)
    export(net, tmp_path / "a.onnx")
    session = _session(tmp_path / "a.onnx")
    for x in (X, X[:2, :3]):
        np.testing.assert_allclose(session.run(None, {"X": x})[0], net.predict_proba(x), atol=1e-5)


@pytest.mark.parametrize("kind", ["classes", "labels", "numbers", "number"])
def test_rows_are_predicted_in_the_units_of_their_targets(kind, rng, tmp_path):
    X, y = rng.random((30, 4), np.float32), np.arange(30) % 3
    target = {
        "classes": np.array(["low", "middle", "high"])[y],
        "labels": np.eye(3, dtype=int)[y] | np.eye(3, dtype=int)[0],
        "numbers": np.c_[y * 40.0 + 7, -y],
        "number": y * 40.0 + 7,
    }[kind]
    net = (NetRegressor if "number" in kind else Net)((8,), epochs=2).fit(X, target)
    net.export(tmp_path / "a.onnx")
    (found,) = _session(tmp_path / "a.onnx").run(None, {"X": X})
    expected = net.predict(X) if "number" in kind else net.predict_proba(X)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"hidden": (8, 12)}, {"hidden": (8, 8), "tied": True}])
def test_a_language_model_has_its_states_as_inputs_and_outputs(options, rng, tmp_path):
    model = LanguageModel(epochs=1, steps=5, batch_size=2, **options).fit(WORDS)
    model.export(tmp_path / "a.onnx")
    session, words = _session(tmp_path / "a.onnx"), rng.integers(0, len(model.vocabulary_), (7, 3))
    names = [value.name for value in session.get_inputs()[1:]]
    assert [f"{name}_out" for name in names] == [value.name for value in session.get_outputs()[1:]]
    states = {value.name: np.zeros((value.shape[0], 3, value.shape[2]), np.float32) for value in session.get_inputs()[1:]}
    whole, *_ = session.run(None, {"words": words, **states})
    expected = model.model_(Tensor.wrap(words.astype(np.int32), device("cpu"))).numpy().reshape(whole.shape)
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)
    first, *states = session.run(None, {"words": words[:4], **states})
    second, *_ = session.run(None, {"words": words[4:], **dict(zip(names, states, strict=True))})
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=1e-5, atol=1e-5)


def test_metadata_say_what_the_network_is(rng, tmp_path):
    X = rng.random((20, 4), np.float32)
    net = Net((8,), epochs=2, dropout="rdp").fit(X, np.array(["no", "yes"])[np.arange(20) % 2])
    net.export(tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    told = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert told["classes"] == ["no", "yes"] and told["class"] == "Net" and told["epochs"] == 2
    assert told["parameters"] == {"layers": "(8,)", "epochs": "2", "dropout": "'rdp'"}
    assert [one.version for one in model.opset_import] == [17] and model.producer_name == "numbanet"
    text = LanguageModel((4,), epochs=1, steps=5, batch_size=2).fit(WORDS)
    text.export(tmp_path / "b.onnx")
    told = {entry.key: json.loads(entry.value) for entry in onnx.load(tmp_path / "b.onnx").metadata_props}
    assert told["vocabulary"] == list(text.vocabulary_.words)


class DoubledForOnnx(Layer):
    def __call__(self, x):
        return x * 2


def test_what_cannot_be_written_is_refused_by_name(rng, tmp_path):
    X, y = rng.random((20, 4), np.float32), np.arange(20) % 2
    net = Net([L.Linear(4, 2), L.Sequential([DoubledForOnnx()])], epochs=1).fit(X, y)
    with pytest.raises(TypeError, match=r"layer 1\.0 is a DoubledForOnnx, a layer of your own, which cannot be written"):
        net.export(tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        Net((4,), epochs=1).fit(X, y).export(tmp_path / "none" / "a.onnx")
    with pytest.raises(ValueError, match="must end in .onnx"):
        Net((4,), epochs=1).fit(X, y).export(tmp_path / "a.pb")
    with pytest.raises(TypeError, match="export takes a fitted estimator, not Sequential"):
        export(net.model_, tmp_path / "a.onnx")
    with pytest.raises(ValueError, match="not fitted"):
        export(Net(), tmp_path / "a.onnx")


# name: (network, samples) of each family
FAMILIES = {
    "rows": lambda rng: ((16, 8), rng.random((1000, 12), np.float32)),
    "lenet5": lambda rng: ("lenet5", rng.random((1000, 1, 28, 28), np.float32)),
    "alexnet": lambda rng: ("alexnet", rng.random((1000, 3, 16, 16), np.float32)),
    "vgg19": lambda rng: ("vgg19", rng.random((1000, 3, 16, 16), np.float32)),
    "vgg19, fewer": lambda rng: ("vgg19", rng.random((40, 3, 16, 16), np.float32)),
    "sequences": lambda rng: (
        [L.Embedding(30, 8), L.LSTM(8, 12, batch_first=True), L.LastStep(), L.Linear(12, 3)],
        rng.integers(0, 30, (1000, 9)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", [pytest.param(name, marks=[pytest.mark.long] * (name == "vgg19")) for name in FAMILIES])
def test_onnxruntime_pytorch_and_numbanet_agree(family, rng, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is the third (extra `test`)")
    network, X = FAMILIES[family](rng)
    net = Net(network, epochs=1, batch_size=8, learning_rate=1e-4, random_state=0).fit(X[:16], np.arange(16) % 3)
    expected = net.predict_proba(X)
    net.export(tmp_path / "a.onnx")
    with torch.no_grad():
        theirs = to_torch(net)(torch.from_numpy(X)).softmax(-1).numpy()
    np.testing.assert_allclose(theirs, expected, atol=1e-5)
    np.testing.assert_allclose(_session(tmp_path / "a.onnx").run(["probabilities"], {"X": X})[0], expected, atol=1e-5)
