"""RadiX-Nets: as many weights in every row and column, a path from each input to each output, the same ones each time."""

import os

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from numbanet.challenge import EllLayer, RadixNet, load_challenge, mixed_radix
from numbanet.challenge.radixnet import challenge_bias, enlarged
from numbanet.datasets import load_mnist

DATA = os.environ.get("NUMBANET_DATA")


def dense(indices):
    found = np.zeros((len(indices), len(indices)))
    np.add.at(found, (np.arange(len(indices))[:, None], indices), 1)
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.integers(1, 4))
def test_each_input_has_as_many_paths_to_each_output(radices, width):
    layers = mixed_radix(radices, width)
    paths = np.eye(int(np.prod(radices)) * width)
    for radix, indices in zip(radices, layers, strict=True):
        assert indices.dtype == np.int32 and (np.diff(indices) > 0).all()
        weights = dense(indices)
        assert (weights.sum(0) == radix * width).all() and (weights.sum(1) == radix * width).all() and weights.max() == 1
        paths = weights @ paths
    assert (paths == width ** (len(radices) - 1)).all()


@pytest.mark.parametrize("neurons", [32, 64, 256, 1024])
def test_the_challenges_structure(neurons):
    network, pure = RadixNet(neurons, 25), mixed_radix((2,) * (neurons // 16).bit_length().__sub__(1), 16)
    for first in range(0, 24 // network.depth * network.depth, network.depth):
        paths = np.eye(neurons)
        for layer in range(first, first + network.depth):
            indices, values, bias = network[layer]
            assert indices.shape == values.shape == (neurons, 32) and (np.diff(indices) > 0).all()
            assert (np.bincount(indices.ravel()) == 32).all() and (values == 1 / 16).all()
            assert (bias == np.float32(challenge_bias(neurons))).all()
            assert np.array_equal(indices, pure[layer - first]) == (first == 0 or neurons == 32)
            paths = dense(indices) @ paths
        assert paths.min() > 0, "an input does not reach an output"


def test_it_is_always_the_same_and_seeds_differ():
    one, other = RadixNet(256, 12, seed=3), RadixNet(256, 24, seed=3)
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(one, other))  # in any order, of any number of layers
    assert np.array_equal(one[9].indices, one[-3].indices)
    changed = [not np.array_equal(a.indices, b.indices) for a, b in zip(one, RadixNet(256, 12, seed=4), strict=True)]
    assert changed == [False] * 4 + [True] * 8
    with pytest.raises(IndexError, match="no layer 12"):
        one[12]


@pytest.mark.parametrize("inputs", [None, 9])
def test_a_layer_as_a_matrix(inputs):
    """Its indices are in any order."""
    layer = EllLayer(
        np.array([[3, 0], [1, 2], [0, 1], [2, 3]], np.int32),
        np.arange(1, 9, dtype=np.float32).reshape(4, 2),
        np.zeros(4, np.float32),
    )
    expected = np.zeros((4, inputs or 4), np.float32)
    np.put_along_axis(expected, layer.indices, layer.values, axis=1)
    found = layer.to_ell(inputs)
    np.testing.assert_array_equal(found.dense(), expected)
    for wrong, message in (([0, 0], "row 0 has column 0 twice"), ([0, 9], "contains column 9"), ([-1, 0], "negative, got -1")):
        with pytest.raises(ValueError, match=message):
            layer._replace(indices=np.array([wrong] * 4, np.int32)).to_ell(inputs)


def test_slices_of_a_network_are_lists_of_its_layers():
    network = RadixNet(32, 5)
    for some in (slice(2), slice(-2, None), slice(None, None, 2), slice(4, 1)):
        expected = [network[number] for number in range(5)[some]]
        assert [layer.indices.tolist() for layer in network[some]] == [layer.indices.tolist() for layer in expected]
    for array, plain in zip(mixed_radix(np.array([2, 3])), mixed_radix((2, 3)), strict=True):
        np.testing.assert_array_equal(array, plain)


def test_the_challenges_biases():
    assert [round(challenge_bias(1024 * 4**n), 10) for n in range(4)] == [-0.3, -0.35, -0.4, -0.45]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: RadixNet(1000), "16 times a power of 2.* not 1000"),
        (lambda: RadixNet(16), "from 32 on"),
        (lambda: RadixNet(48), "not 48"),
        (lambda: RadixNet(64, 0), "layers must be at least 1"),
        (lambda: mixed_radix(np.array([], np.int64)), "radices"),
        (lambda: mixed_radix(()), "radices"),
        (lambda: mixed_radix((2, 1)), "radices"),
        (lambda: mixed_radix((2,), 0), "width"),
    ],
)
def test_other_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("make", [lambda: RadixNet(64.0), lambda: RadixNet(64, 2.5), lambda: mixed_radix((2.5, 3))])
def test_sizes_that_are_no_integers_are_refused(make):
    with pytest.raises(TypeError, match="integer"):
        make()


def test_images_are_enlarged_as_they_are():
    images = np.zeros((1, 28, 28), np.float32)
    images[0, 7:14, 14:28] = 1  # a quarter of the height, half of the width, in the second quarter from above
    found = enlarged(images, 64)[0].reshape(64, 64).T  # pixels go column by column
    assert (found[17:31, 34:] == 1).all() and found[:15].sum() == found[33:].sum() == found[:, :30].sum() == 0
    np.testing.assert_array_equal(enlarged(images, 28)[0].reshape(28, 28).T, images[0])


# --- against the official files ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def official():
    if not DATA or not os.path.isdir(os.path.join(DATA, "graphchallenge")):
        pytest.skip("needs the official files in NUMBANET_DATA/graphchallenge")
    return load_challenge()


@pytest.mark.slow
def test_the_official_structure(official):
    """The first group is pure; the others have their inputs permuted by one permutation a group."""
    pure = [dense(indices).astype(bool) for indices in mixed_radix((2,) * 6, 16)]
    for first in range(0, 120, 6):
        layers = [dense(layer.indices).astype(bool) for layer in official.network[first : first + 6]]
        nodes = layers[0][:64] & np.roll(layers[0][:64], 1, axis=0)  # neurons 0 ... 63 and their neighbours share a node each
        assert (nodes.sum(1) == 16).all() and (nodes.sum(0) == 1).all()
        node = nodes.argmax(0)  # of each input
        for weights, plain in zip(layers, pure, strict=True):
            assert np.array_equal(weights, plain[:, :64][:, node])
        assert np.array_equal(node, np.arange(1024) % 64) == (first == 0)


def test_the_official_images_are_nearly_those_of_mnist(official):
    count = 2000
    images = np.zeros((count, 1024), bool)
    images[np.repeat(np.arange(count), np.diff(official.starts[: count + 1])), official.columns[: official.starts[count]]] = (
        True
    )
    made = enlarged(load_mnist(flat=False)[0][:count, 0], 32)
    assert 0.992 < (made == images).mean() < 0.995
