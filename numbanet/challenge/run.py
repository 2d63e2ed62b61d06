"""The Sparse Deep Neural Network Graph Challenge: y <- min(max(W y + b, 0), 32) through many sparse layers, in several ways.

W is the weight of a layer, b its bias, and y the activations of an image. The rate that the Challenge asks for, inputs x
connections / time, also counts products that are never computed: most inputs are 0 after a few layers. So the number of
multiplications is reported as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from numbanet_kernels.layouts.slabs import LANES

from ..device import Device, device as named
from .files import ChallengeData, load_challenge
from .inference import WAYS, Prepared, free_memory
from .radixnet import RadixNet, enlarged
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
        If a size, the way or a file is invalid, or a ChallengeData has other sizes; MemoryError if not even LANES inputs
        fit.

    References
    ----------
    J. Kepner et al., "Sparse Deep Neural Network Graph Challenge", HPEC 2019.
    """
    if way not in WAYS:
        raise ValueError(f"challenge: unknown way {way!r}; choose from {', '.join(WAYS)}")
    if inputs is not None and inputs < 1:
        raise ValueError(f"challenge: inputs must be at least 1, not {inputs}")
    dev = named(device)
    data = first_inputs(_data(neurons, layers, data, inputs), inputs)
    # a short run with one layer, in which all code is compiled
    Prepared(first_inputs(data, LANES)._replace(network=[data.network[0]]), way, dev, LANES).run()
    return Prepared(data, way, dev, _plan(data, memory, say)).run()


# --- data -------------------------------------------------------------------------------------------------------------
def _data(neurons, layers, data, inputs):
    """Return the given, generated or loaded data."""
    if not isinstance(data, ChallengeData):
        size = 1024 if neurons is None else neurons, 120 if layers is None else layers
        return generated(*size, inputs) if data == "generated" else load_challenge(*size, data)
    if len(data.starts) < 2 or not len(data.network):
        raise ValueError(
            f"challenge: data must have one input and one layer at least, not starts {data.starts.shape} and "
            f"{len(data.network)} layers"
        )
    sizes = len(data.network[0].indices), len(data.network)
    if neurons not in (None, sizes[0]) or layers not in (None, sizes[1]):
        raise ValueError(
            f"challenge: the data have {sizes[0]} neurons and {sizes[1]} layers; neurons {neurons} and layers "
            f"{layers} must match, or be left out"
        )
    return data


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
    room = int(SHARE * free_memory()) if memory is None else memory
    piece = min(room // each // LANES, -(-count // LANES)) * LANES
    if piece < LANES:
        raise MemoryError(f"challenge: {LANES} inputs need {LANES * each:,} bytes for activations, and may use {room:,}")
    pieces = -(-count // piece)
    weights = len(data.network) * layer.indices.nbytes
    say(
        f"{count} inputs need {count * each / 1e9:.2f} GB for activations, {len(data.network)} layers {weights / 1e9:.2f} GB; "
        f"{pieces} piece{'s' * (pieces > 1)} of {piece} inputs"
    )
    return piece
