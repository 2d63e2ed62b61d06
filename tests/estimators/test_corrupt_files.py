"""Files that hold no estimator, or a damaged one, are refused by their names, before they cost anything."""

import functools
import json
import pickle
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from numbanet import LanguageModel, Net, NetRegressor
from numbanet.datasets import load_digits
from numbanet.estimators import saving

pytestmark = pytest.mark.filterwarnings("ignore:fit. the network is no better")  # after so few epochs
X, Y, X_TEST, _ = load_digits()
FAST = {"epochs": 1, "random_state": 0, "device": "cpu"}


# --- damaged ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "net"
    net = Net((8,), **FAST).fit(X[:200, :10], Y[:200])
    net.save(path)
    return path, net.predict_proba(X_TEST[:, :10])


def test_no_byte_can_change_unseen(saved, tmp_path):
    """Where a byte is another one, the file is refused by its name, or what it holds is the same all the same."""
    path, expected = saved
    content, damaged, unharmed = path.read_bytes(), tmp_path / "damaged", 0
    header = 8 + int.from_bytes(content[:8], "little")
    rng = np.random.default_rng(0)
    places = [*range(24), *rng.choice(header, 300, replace=False), *rng.integers(header, len(content), 100)]
    for place in map(int, places):
        changed = content[place] ^ int(rng.integers(1, 256))
        damaged.write_bytes(content[:place] + bytes([changed]) + content[place + 1 :])
        try:
            net = Net.load(damaged)
        except ValueError as error:
            assert str(damaged) in str(error)
        else:
            np.testing.assert_array_equal(net.predict_proba(X_TEST[:, :10]), expected)
            unharmed += 1
    assert unharmed < 20


def test_a_file_that_is_cut_or_grown_is_refused(saved, tmp_path):
    content, cut = saved[0].read_bytes(), tmp_path / "cut"
    for length in (*range(0, len(content), 97), len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(ValueError, match="cut is not a safetensors file, or is truncated"):
            Net.load(cut)
    cut.write_bytes(content + b"more")
    with pytest.raises(ValueError, match="cut is not a safetensors file"):
        Net.load(cut)


# --- foreign ----------------------------------------------------------------------------------------------------------
class Attack:
    def __reduce__(self):
        return sys.exit, ("unpickled",)


def layer(kind, **arguments):
    return {"layer": kind, "with": arguments}


def crafted(path, arrays=None, **options):
    """A file whose digest is right."""
    arrays = {"0.weight": np.zeros((10, 3), "f"), "0.bias": np.zeros(10, "f")} if arrays is None else arrays
    told = {
        "version": saving.VERSION,
        "class": "Net",
        "shared": {},
        "layers": [SMALL],
        "given": True,
        "parameters": {},
        "fitted": {},
        **options,
    }
    save_file(arrays, path, {"numbanet": json.dumps({"sha256": saving._digest(told, arrays), **told})})


SMALL = layer("Linear", in_features=3, out_features=10, bias=True)
MANY = 10**6
LARGE = [
    layer("Linear", in_features=MANY, out_features=MANY, bias=True),
    layer("Embedding", num_embeddings=MANY, embedding_dim=MANY, padding_idx=None),
    layer("LSTM", input_size=3, hidden_size=MANY, num_layers=1, bias=True, batch_first=True),
    layer("Conv2d", in_channels=MANY, out_channels=MANY, kernel_size={"tuple": [1, 1]}, groups=1, bias=False),
    layer("BatchNorm1d", num_features=MANY**2),
    layer("BatchNorm2d", num_features=MANY**2),
]

FOREIGN = {
    "empty": (lambda path: path.write_bytes(b""), "is not a safetensors file"),
    "text": (lambda path: path.write_text("not at all" * 99), "is not a safetensors file"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps(Attack())), "is not a safetensors file"),
    "image": (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(999)), "is not a safetensors file"),
    "no metadata": (lambda path: save_file({"a": np.zeros(3)}, path), "numbanet did not save it"),
    "other metadata": (lambda path: save_file({"a": np.zeros(3)}, path, {"format": "pt"}), "numbanet did not save it"),
    "newer": (lambda path: crafted(path, version=4), "has version 4 of the format, .* reads version 3: update"),
    "older": (
        lambda path: crafted(path, version=2, parameters={"schedule": "linear"}),
        "has version 2 of the format, .* reads version 3: .* save again",
    ),
    "no JSON": (lambda path: save_file({"a": np.zeros(3)}, path, {"numbanet": "]"}), "is damaged"),
    "a number": (lambda path: save_file({"a": np.zeros(3)}, path, {"numbanet": "1"}), "is damaged"),
    "nothing": (lambda path: save_file({"a": np.zeros(3)}, path, {"numbanet": "{}"}), "is damaged"),
    "no digest": (lambda path: crafted(path, sha256=""), "is damaged"),
    "another class": (lambda path: crafted(path, **{"class": "LanguageModel"}), "holds a LanguageModel, not a Net: "),
    "no layers": (lambda path: crafted(path, layers=[]), "cannot be read"),
    "unknown layer": (
        lambda path: crafted(path, layers=[{"layer": "system", "with": {}}]),
        "has the class system: no layer class of this name is known here",
    ),
    "unknown setting": (lambda path: crafted(path, parameters={"dropout": {"setting": "eval", "with": {}}}), "cannot be read"),
    "unknown parameter": (lambda path: crafted(path, parameters={"depth": 3}), "cannot be read .*depth"),
    "shape": (
        lambda path: crafted(path, {"0.weight": np.zeros((9, 3), "f"), "0.bias": np.zeros(10, "f")}),
        "cannot be read .*0.weight has shape",
    ),
    "array missing": (lambda path: crafted(path, {"0.bias": np.zeros(10, "f")}), "cannot be read .*lacks 0.weight"),
    "no tensor": (
        lambda path: crafted(
            path, {"0.weight": np.zeros((10, 3), "f"), "0.forward": np.zeros(10, "f")}, shared={"0.bias": "0.forward"}
        ),
        "cannot be read .*0.forward is not a tensor",
    ),
    "frozen": (lambda path: crafted(path, frozen=["1.weight"]), "cannot be read .*1.weight"),
    "attribute": (
        lambda path: crafted(path, parameters={"dropout": {"setting": "RowDropout", "with": {}, "set": {"plan": 5}}}),
        "cannot be read .*RowDropout has no 'plan'",
    ),
    "deep": (
        lambda path: crafted(path, parameters={"depth": functools.reduce(lambda x, _: [x], range(900), 1)}),
        "cannot be read",
    ),
    "no range": (lambda path: crafted(path, parameters={"random_state": {"range": [0, 1, 0]}}), "cannot be read"),
    "no division": (lambda path: crafted(path, layers=[{**SMALL, "layer": "Conv2d"}]), "cannot be read"),
    **{
        f"fitted {name}": (
            lambda path, name=name: crafted(path, fitted={name: 5}),
            f"cannot be read .*{name}', which is not a fitted",
        )
        for name in ("predict", "_settings", "model_", "__class__", "")
    },
    **{
        f"large {wide['layer']}": (lambda path, wide=wide: crafted(path, layers=[wide]), "cannot be read .*(shape|lacks)")
        for wide in LARGE
    },
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_refused_by_its_name(name, tmp_path):
    write, message = FOREIGN[name]
    write(tmp_path / "net")
    with pytest.raises(ValueError, match=f"net:? .*{message}|net {message}"):
        Net.load(tmp_path / "net")


def test_nesting_is_refused_however_deep(tmp_path):
    for depth in (*range(800, 1010, 3), 10**5):
        text = json.dumps({"version": saving.VERSION, "class": "Net", "layers": 0}).replace("0", "[" * depth + "]" * depth)
        save_file({"a": np.zeros(3)}, tmp_path / "net", {"numbanet": text})
        with pytest.raises(ValueError, match="net is damaged"):
            Net.load(tmp_path / "net")


def test_a_file_of_another_kind_is_refused(saved):
    for kind in (NetRegressor, LanguageModel):
        with pytest.raises(ValueError, match=f"holds a Net, not a {kind.__name__}: use Net.load"):
            kind.load(saved[0])
