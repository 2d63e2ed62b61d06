"""RadiX-Net: sparse networks in which, after d layers, there is exactly one path from each input node to each output node.

A group of d mixed-radix layers is defined by radices r_0 ... r_(d-1). Each layer has N = r_0 r_1 ... r_(d-1) nodes. In layer i,
the inputs of node j are the nodes j + n r_0 r_1 ... r_(i-1) (mod N) for n = 0 ... r_i - 1. So each node before layer 0 has
exactly one path to each node after layer d - 1. Every node then stands for `width` neurons, and all neurons of two connected
nodes are connected (the Kronecker product with ones).

The networks of the Challenge have radices of 2 and 16 neurons per node, so that a neuron has 32 inputs and 32 outputs, and
groups of d = log2(neurons / 16) layers. Layers 1 to 6 of the official network of 1024 neurons equal the unpermuted layers here,
entry by entry. In later groups of the official networks, one permutation per group is applied to the inputs, and none to the
outputs. This is done here, too, but with other permutations, because the rule of the official ones is not published.

J. Kepner, R. Robinett, "RadiX-Net: Structured Sparse Matrices for Deep Neural Networks", IPDPS Workshops 2019; the sizes are
those of J. Kepner et al., "Sparse Deep Neural Network Graph Challenge", HPEC 2019.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numbanet_kernels.layouts.sparse import ELL

from ..arguments import is_integer

WIDTH = 16  # neurons per node
CEILING = 32.0  # upper bound of activations
NEURONS, LAYERS = (1024, 4096, 16384, 65536), (120, 480, 1920)  # the sizes of the official networks


class EllLayer(NamedTuple):
    """A layer for the operation `ell`, in which each of the O neurons has K weights: `indices` (O, K), int32, are the inputs of
    each neuron, in any order and without padding; `values` (O, K) are the weights, and `bias` (O,) the biases, float32."""

    indices: np.ndarray
    values: np.ndarray
    bias: np.ndarray

    def to_ell(self, inputs: int | None = None) -> ELL:
        """Return the weights, without the bias, as a sparse matrix (O, inputs), which `SparseLinear` takes.

        Parameters
        ----------
        inputs : int, optional
            Number of inputs; by default the number of neurons, as in the Challenge's networks.

        Raises
        ------
        ValueError
            If a neuron has an input twice, or if an index is out of range.
        """
        order = np.argsort(self.indices, axis=1)
        indices, values = (np.take_along_axis(part, order, axis=1) for part in (self.indices, self.values))
        if indices.size and indices.min() < 0:
            # -1 is the padding of an `ELL`
            raise ValueError(f"EllLayer.to_ell: indices must not be negative, got {indices.min()}")
        return ELL(indices, values, (len(indices), len(indices) if inputs is None else inputs))


def challenge_bias(neurons: int) -> float:
    """Return the bias of the Challenge: -0.3 for 1024 neurons, and 0.05 less for each factor of four."""
    return -0.3 - 0.05 * math.log(neurons / 1024, 4)


def mixed_radix(radices: Sequence[int], width: int = 1) -> list[np.ndarray]:
    """Return, for each layer, an int32 array (neurons, radix * width): the sorted indices of the inputs of each neuron.

    Raises
    ------
    ValueError
        If there are no radices, or one is below 2, or width is below 1.
    TypeError
        If one of them is no integer.
    """
    radices, width = tuple(map(operator.index, radices)), operator.index(width)
    if not radices or min(radices) < 2 or width < 1:
        raise ValueError(f"mixed_radix: radices must be at least 2 and the width at least 1, not {radices} and {width}")
    nodes, stride, layers = math.prod(radices), 1, []
    node = np.arange(nodes * width) % nodes
    for radix in radices:
        inputs = (node[:, None] + stride * np.arange(radix)) % nodes
        copies = inputs[:, :, None] + nodes * np.arange(width)
        layers.append(np.sort(copies.reshape(len(node), -1), axis=1).astype(np.int32))
        stride *= radix
    return layers


@dataclasses.dataclass(frozen=True)
class RadixNet(Sequence):
    """A network with the structure of the Challenge, as a sequence of `EllLayer`. A layer is made when it is accessed; equal
    arguments give equal layers.

    Parameters
    ----------
    neurons : int, default 1024
        Number of neurons of a layer: 16 times a power of 2, at least 32. The Challenge has 1024, 4096, 16384 and 65536.
    layers : int, default 120
        Number of layers. The Challenge has 120, 480 and 1920.
    seed : int, default 0
        Seed of the permutations.

    Raises
    ------
    ValueError
        If `neurons` is not such a number, or `layers` is below 1.
    TypeError
        If one of them is no integer.
    """

    neurons: int = 1024
    layers: int = 120
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("neurons", "layers"):
            if not is_integer(getattr(self, name)):
                raise TypeError(f"RadixNet: {name} must be an integer, not {getattr(self, name)!r}")
        nodes = self.neurons // WIDTH
        if nodes < 2 or nodes & (nodes - 1) or nodes * WIDTH != self.neurons:
            raise ValueError(f"RadixNet: neurons must be {WIDTH} times a power of 2, from {2 * WIDTH} on, not {self.neurons}")
        if self.layers < 1:
            raise ValueError(f"RadixNet: layers must be at least 1, not {self.layers}")

    @property
    def depth(self) -> int:
        """d, the number of layers of a group: after d layers each input reaches each output."""
        return (self.neurons // WIDTH).bit_length() - 1

    def __len__(self) -> int:
        return self.layers

    def __getitem__(self, layer: Any) -> Any:
        if isinstance(layer, slice):
            return [self[number] for number in range(*layer.indices(self.layers))]
        if not -self.layers <= layer < self.layers:
            raise IndexError(f"RadixNet: there are {self.layers} layers, and no layer {layer}")
        group, position = divmod(layer % self.layers, self.depth)
        indices = _pure(self.neurons)[position]
        if group:
            order = np.random.default_rng([self.seed, self.neurons, group]).permutation(self.neurons).astype(np.int32)
            indices = np.sort(order[indices], axis=1)
        return EllLayer(indices, *_weights(self.neurons, indices.shape[1]))


@functools.lru_cache(maxsize=1)
def _pure(neurons):
    return mixed_radix((2,) * ((neurons // WIDTH).bit_length() - 1), WIDTH)


@functools.lru_cache(maxsize=1)
def _weights(neurons, inputs):
    """Return (values, bias) of a layer with `inputs` weights per neuron; they are the same for all layers."""
    return np.full((neurons, inputs), 2 / inputs, np.float32), np.full(neurons, challenge_bias(neurons), np.float32)


# --- inputs -----------------------------------------------------------------------------------------------------------
TOGETHER = 64  # number of images that are enlarged at once
THRESHOLD = 0.71  # share of the largest grey value; with 0.71 the images agree best with the official ones of 1024 pixels


def enlarged(images: np.ndarray, side: int, threshold: float = THRESHOLD) -> np.ndarray:
    """Enlarge images (N, H, W) with grey values from 0 to 1 to side x side pixels, and return an array (N, side * side) of bool
    that is True where the grey value is above the threshold.

    Enlarging uses cubic interpolation. The pixels of an image are sorted column by column. The official images were made from
    MNIST in a similar, undocumented way: of their 1024 pixels per image, 99.3 % are equal to those made here.
    """
    high, wide = (_cubic(length, side).T for length in images.shape[1:])
    pixels = np.empty((len(images), side, side), bool)
    for first in range(0, len(images), TOGETHER):
        some = images[first : first + TOGETHER] @ wide
        np.greater(some.transpose(0, 2, 1) @ high, threshold, out=pixels[first : first + TOGETHER])
    return pixels.reshape(len(images), -1)


def _cubic(length, side):
    """Return the matrix (side, length) that enlarges a line of `length` pixels to `side` pixels by cubic convolution (Keys
    1981); pixels beyond the ends equal the end pixels.
    """
    at = (np.arange(side) + 0.5) * length / side - 0.5
    matrix = np.zeros((side, length), np.float32)
    for step in range(-1, 3):
        pixel = np.floor(at) + step
        t = np.abs(at - pixel)
        weight = np.where(t <= 1, 1.5 * t**3 - 2.5 * t**2 + 1, -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2)
        np.add.at(matrix, (np.arange(side), np.clip(pixel, 0, length - 1).astype(int)), weight)
    return matrix
