"""The Sparse Deep Neural Network Graph Challenge: y <- min(max(W y + b, 0), 32) through many sparse layers, in several ways.

W is the weight of a layer, b its bias, and y the activations of an image. The rate that the Challenge asks for, inputs x
connections / time, also counts products that are never computed: most inputs are 0 after a few layers. So the number of
multiplications is reported as well.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbanet_kernels.layouts.slabs import LANES

from ..arguments import check_count, host_array, is_real
from ..device import Device, device as named
from .files import ChallengeData, load_challenge
from .inference import WAYS, Prepared, free_memory
from .radixnet import EllLayer, RadixNet, enlarged
from .result import ChallengeResult

SHARE = 0.5  # largest share of the free memory that activations may take


def challenge(
    neurons: int | None = None,
    layers: int | None = None,
    data: str | os.PathLike[str] | ChallengeData | None = None,
    way: str = "compact",
    device: str | Device = "cpu",
    inputs: int | None = None,
    memory: int | None = None,
    say: Callable[[str], Any] = lambda text: None,
) -> ChallengeResult:
    """Run the Challenge once; timing starts when files, layers and buffers are in memory and all code is compiled.

    Parameters
    ----------
    neurons, layers : int, optional
        By default those of `data` if it is a ChallengeData, else 1024 and 120. The Challenge has 1024, 4096, 16384 or 65536
        neurons, and 120, 480 or 1920 layers.
    data : path, "generated" or ChallengeData, optional
        The folder of the official files, by default as for `load_challenge`; "generated" is a `RadixNet` with enlarged and
        thresholded images of MNIST.
    way : str, default "compact"
        How inputs pass the layers; an input is live if its activations are not all 0. "compact": live inputs are packed
        together before each layer. "filter": inputs stay in place, and a layer skips groups of inputs without a live one.
        "buffer": all inputs pass all layers, which write to two alternating arrays. "plain": all inputs pass all layers, and
        each layer writes to a new array. The latter three are named in the FSSL paper (section IV) without further details.
        "saturated": "compact" until all activations of the live inputs are at the ceiling and no later layer changes that;
        then the rest is skipped. The check for this is included in the time.
    device : str, default "cpu"
        The device of the inference.
    inputs : int, optional
        If it is given, only the first `inputs` images are used.
    memory : int, optional
        The largest number of bytes for activations; the inputs are processed in as many pieces as this requires. By default,
        half of the free memory.
    say : callable, optional
        A function that is called with a line of text, which states the memory that is needed, and the number of pieces.

    Returns
    -------
    ChallengeResult

    Raises
    ------
    ValueError
        If a size, the way or a file is invalid, or a ChallengeData has other sizes, arrays that do not fit each other, or
        a bias above 0, with which an input without activations would not stay so; MemoryError if not even LANES inputs fit.
    TypeError
        If `data` is none of these, or has arrays of another kind of values.

    References
    ----------
    J. Kepner et al., "Sparse Deep Neural Network Graph Challenge", HPEC 2019.
    """
    _check(way, memory, neurons=neurons, layers=layers, inputs=inputs)
    dev = named(device)
    data = first_inputs(_data(neurons, layers, data, inputs), inputs)
    # a short run with one layer, in which all code is compiled
    Prepared(first_inputs(data, LANES)._replace(network=[data.network[0]]), way, dev, LANES).run()
    return Prepared(data, way, dev, _plan(data, memory, say)).run()


def _check(way, memory, **counts):
    """Raise ValueError unless the way is known, and the memory and each of the counts that is given is a number."""
    if way not in WAYS:
        raise ValueError(f"challenge: unknown way {way!r}; choose from {', '.join(WAYS)}")
    for name, given in counts.items():
        if given is not None:
            check_count(f"challenge: {name}", given)
    if memory is not None and not (is_real(memory) and math.isfinite(memory)):
        raise ValueError(f"challenge: memory must be a number of bytes, got {memory!r}")


# --- data -------------------------------------------------------------------------------------------------------------
def _data(neurons, layers, data, inputs):
    """Return the given, generated or loaded data."""
    if not isinstance(data, ChallengeData):
        if data is not None and not isinstance(data, str | os.PathLike):
            raise TypeError(f"challenge: data must be a folder, 'generated' or a ChallengeData, not {type(data).__name__}")
        size = 1024 if neurons is None else neurons, 120 if layers is None else layers
        return generated(*size, inputs) if data == "generated" else load_challenge(*size, data)
    data = _converted(data)
    sizes = len(data.network[0].indices), len(data.network)
    if neurons not in (None, sizes[0]) or layers not in (None, sizes[1]):
        raise ValueError(
            f"challenge: the data have {sizes[0]} neurons and {sizes[1]} layers; neurons {neurons} and layers "
            f"{layers} must match, or be left out"
        )
    return data


def _converted(data):
    """Return ChallengeData that a user made with arrays of the types that kernels take; raise an error unless they fit."""
    starts, columns = (_array(name, getattr(data, name), np.int32) for name in ("starts", "columns"))
    values = _array("values", data.values, np.float32)
    if not isinstance(data.network, Sequence) or isinstance(data.network, EllLayer):
        raise TypeError(f"challenge: network must be a sequence of EllLayer, not {type(data.network).__name__}")
    if starts.ndim != 1 or len(starts) < 2 or not len(data.network):
        raise ValueError(
            f"challenge: data must have one input and one layer at least, not starts {starts.shape} and "
            f"{len(data.network)} layers"
        )
    if columns.ndim != 1 or values.shape != columns.shape:
        raise ValueError(f"challenge: give one value for each column, not columns {columns.shape} and values {values.shape}")
    if (starts[1:] < starts[:-1]).any():
        raise ValueError("challenge: starts must not decrease: image n has the columns from starts[n] to starts[n + 1] - 1")
    truth = None if data.truth is None else _truth(data.truth, len(starts) - 1)
    # the layers of a RadixNet are right, and are made only when they are accessed
    network = data.network if isinstance(data.network, RadixNet) else list(_layers(data.network))
    return ChallengeData(starts, columns, values, network, truth)


def _truth(truth, inputs):
    """Return the expected categories as an array; raise an error unless they are increasing indices of inputs."""
    found = host_array("challenge: truth", truth)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"challenge: truth must hold the indices of inputs, not {found.dtype}")
    if found.ndim != 1 or (found[1:] <= found[:-1]).any() or (found.size and not 0 <= found[0] <= found[-1] < inputs):
        raise ValueError(f"challenge: truth must be increasing indices of {inputs} inputs, from 0 on, got {found!r}")
    return found


def _layers(network):
    """Yield the layers of a network as `_layer` returns them; raise an error unless they have equally many neurons."""
    neurons = None
    for number, layer in enumerate(network, 1):
        layer = _layer(number, layer)
        neurons = len(layer.bias) if neurons is None else neurons
        if len(layer.bias) != neurons:
            raise ValueError(f"challenge: layer {number} must have {neurons} neurons, as the first one, not {len(layer.bias)}")
        yield layer


def _layer(number, layer):
    """Return a layer with arrays of the types of `EllLayer`; raise an error unless they fit each other and the ways."""
    name = f"of layer {number}"
    if not isinstance(layer, tuple) or len(layer) != 3:
        raise TypeError(f"challenge: layer {number} must be an EllLayer, not {type(layer).__name__}")
    indices = _array(f"indices {name}", layer[0], np.int32)
    values, bias = (_array(f"{what} {name}", part, np.float32) for what, part in zip(("values", "bias"), layer[1:]))
    if indices.ndim != 2 or values.shape != indices.shape or bias.shape != indices.shape[:1]:
        raise ValueError(
            f"challenge: indices, values and bias {name} must be (O, K), (O, K) and (O,), not {indices.shape}, {values.shape} "
            f"and {bias.shape}"
        )
    if not indices.size:
        raise ValueError(f"challenge: indices {name} {indices.shape} must have at least one neuron, and one input of each")
    if not (bias <= 0).all():
        raise ValueError(
            f"challenge: the bias {name} must not be above 0, got {bias.max():g}: inputs whose activations are all 0 are left "
            "out, and with such a bias they would not stay 0. Use SparseLinear layers in a Net for such networks"
        )
    return EllLayer(indices, values, bias)


def _array(name, values, dtype):
    """Return values as an array of this type, and an array of this type as it is; raise an error if a value cannot be kept."""
    if isinstance(values, np.ndarray) and values.dtype == dtype:
        return values
    found = host_array(f"challenge: {name}", values)
    if dtype == np.int32 and found.size:
        if found.dtype.kind not in "iu":
            raise TypeError(f"challenge: {name} must be integers, not {found.dtype}")
        if found.min() < -(2**31) or found.max() >= 2**31:
            raise ValueError(f"challenge: {name} must be int32 numbers, not {found.min()} to {found.max()}")
    return found.astype(dtype)


def first_inputs(data: ChallengeData, count: int | None) -> ChallengeData:
    """Return the same data with only the first `count` inputs; if it is None, with all inputs."""
    if count is None or count >= len(data.starts) - 1:
        return data
    end = data.starts[count]
    truth = None if data.truth is None else data.truth[data.truth < count]
    return data._replace(starts=data.starts[: count + 1], columns=data.columns[:end], values=data.values[:end], truth=truth)


def generated(neurons: int, layers: int, inputs: int | None = None, seed: int = 0) -> ChallengeData:
    """Return `ChallengeData` with a `RadixNet` of this seed, and with the first `inputs` training images of MNIST, by default
    all, enlarged and thresholded; `truth` is None. Raise ValueError if `neurons` is no square number, or `RadixNet` refuses an
    argument.
    """
    from numbanet.datasets import load_mnist

    network, side = RadixNet(neurons, layers, seed), int(np.sqrt(neurons))
    if side * side != neurons:
        raise ValueError(f"challenge: images need a square number of neurons, not {neurons}")
    images = load_mnist(flat=False)[0][:inputs, 0]
    columns, counts = [], []
    for first in range(0, len(images), 500):
        pixels = enlarged(images[first : first + 500], side)
        columns.append((np.flatnonzero(pixels) % neurons).astype(np.int32))
        counts.append(pixels.sum(axis=1))
    starts, pixels = np.concatenate([[0], np.cumsum(np.concatenate(counts))]), np.concatenate(columns)
    return ChallengeData(starts.astype(np.int32), pixels, np.broadcast_to(np.float32(1), pixels.shape), network, None)


def _plan(data, memory, say):
    """Return the number of inputs of a piece, so that two arrays of activations fit into memory."""
    count, layer = len(data.starts) - 1, data.network[0]
    each = 2 * 4 * len(layer.indices)  # bytes per input
    room = int(SHARE * free_memory()) if memory is None else int(memory)
    piece = min(room // each // LANES, -(-count // LANES)) * LANES
    if piece < LANES:
        raise MemoryError(f"challenge: {LANES} inputs need {LANES * each:,} bytes for activations, and may use {room:,}")
    pieces = -(-count // piece)
    last = data.network[-1]  # which tells what all layers share
    own = sum(part.nbytes for part, other in zip(layer, last) if part is not other)
    weights = sum(part.nbytes for part in layer) + (len(data.network) - 1) * own
    say(
        f"{count} inputs need {count * each / 1e9:.2f} GB for activations, {len(data.network)} layers {weights / 1e9:.2f} GB; "
        f"{pieces} piece{'s' * (pieces > 1)} of {piece} inputs"
    )
    return piece
