"""The Sparse Deep Neural Network Graph Challenge: y <- min(max(W y + b, 0), 32) through many sparse layers, by several ways.

The rate that the Challenge asks for, inputs x connections / time, counts products that were never done: most inputs are 0
after a few layers. What was really multiplied stands beside it.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbanet_kernels.layouts.slabs import LANES, Grouped, grouped

from ..device import Device, device as named
from .challenge_files import ChallengeData, load_challenge
from .radixnet import CEILING, EllLayer, RadixNet, enlarged

WAYS = ("compact", "filter", "buffer", "plain", "saturated")
MARGIN = 1.01  # by which sums must be above the ceiling, so that no order of adding up changes that
SHARE = 0.5  # of the memory that is free, at most for activations


@dataclasses.dataclass(frozen=True)
class ChallengeResult:
    """What came out, and what it took.

    Attributes
    ----------
    categories : ndarray
        Numbers of the inputs, from 0 on, that are not 0 after the last layer.
    correct : bool or None
        Whether these are the Challenge's; None where these are not known.
    seconds : float
        From sparse inputs and layers in memory to the categories; buffers have been touched before.
    by_layer : ndarray
        Seconds of each layer; what comes before the first layer, dense inputs, counts to it.
    live : ndarray
        Of each layer, how many inputs were not 0 yet before it.
    multiplications : ndarray
        Of each layer, how many were done.
    connections : int
        Weights of all layers.
    inputs, pieces : int
        How many inputs, and in how many pieces they went through all layers.
    way : str
    """

    categories: np.ndarray
    correct: bool | None
    seconds: float
    by_layer: np.ndarray
    live: np.ndarray
    multiplications: np.ndarray
    connections: int
    inputs: int
    pieces: int
    way: str

    @property
    def rate(self) -> float:
        """Edges a second, as the Challenge defines them: inputs x connections / seconds, done or not."""
        return self.inputs * self.connections / self.seconds

    @property
    def share_done(self) -> float:
        """Multiplications that were done, of inputs x connections."""
        return float(self.multiplications.sum()) / max(self.inputs * self.connections, 1)


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
    """Run the Challenge once: the time counts when files, layers and buffers are in memory and everything is compiled.

    Parameters
    ----------
    neurons, layers : int, optional
        Those of a ChallengeData, else 1024 and 120 by default. The Challenge's are 1024, 4096, 16384, 65536, and 120, 480,
        1920.
    data : path, "generated" or ChallengeData, optional
        The folder of the official files, or `load_challenge`'s own by default; "generated" is a `RadixNet` for images of MNIST
        that are enlarged and cut at a threshold.
    way : str, default "compact"
        "compact": inputs that are not 0 yet are moved together before each layer. "filter": a layer leaves out the inputs that
        are 0 where they are, as far as none is alive of those that are computed together. "buffer": all inputs go through all
        layers, in two arrays that take turns. "plain": all inputs, each layer in a new array. These three are those of the
        FSSL paper (section IV), which names them and says no more. "saturated" is a trick, not plain execution: as "compact",
        until all that live are at the ceiling everywhere, and no layer that follows would change that; to look for it counts.
    device : str, default "cpu"
    inputs : int, optional
        The first so many images; all by default.
    memory : int, optional
        Bytes for activations, at most: inputs go through the network in as many pieces as that takes. By default half of what
        is free on this machine.
    say : callable, optional
        Told, in a line, how much memory is needed and how it is shared out.

    Returns
    -------
    ChallengeResult

    Raises
    ------
    ValueError
        If a size, the way or a file is not what it may be, or a ChallengeData has other sizes; MemoryError if not even
        LANES inputs fit.

    References
    ----------
    J. Kepner et al., "Sparse Deep Neural Network Graph Challenge", HPEC 2019.
    """
    if way not in WAYS:
        raise ValueError(f"challenge: there is no way {way!r}; choose from {', '.join(WAYS)}")
    if inputs is not None and inputs < 1:
        raise ValueError(f"challenge: inputs must be 1 at least, not {inputs}")
    dev = named(device)
    data = first_inputs(_data(neurons, layers, data, inputs), inputs)
    Prepared(first_inputs(data, LANES)._replace(network=[data.network[0]]), way, dev, LANES).run()  # compiled
    return Prepared(data, way, dev, _plan(data, memory, say)).run()


# --- data -------------------------------------------------------------------------------------------------------------
def _data(neurons, layers, data, inputs):
    """What is given, made or loaded."""
    if not isinstance(data, ChallengeData):
        size = 1024 if neurons is None else neurons, 120 if layers is None else layers
        return generated(*size, inputs) if data == "generated" else load_challenge(*size, data)
    if len(data.starts) < 2 or not len(data.network):
        raise ValueError(
            f"challenge: data must have one input and one layer at least, not starts {data.starts.shape} and "
            f"{len(data.network)} layers"
        )
    own = len(data.network[0].indices), len(data.network)
    if neurons not in (None, own[0]) or layers not in (None, own[1]):
        raise ValueError(
            f"challenge: the data have {own[0]} neurons and {own[1]} layers; neurons {neurons} and layers "
            f"{layers} must be these, or left out"
        )
    return data


def first_inputs(data: ChallengeData, count: int | None) -> ChallengeData:
    """The same with the first inputs alone, or all."""
    if count is None or count >= len(data.starts) - 1:
        return data
    end = data.starts[count]
    truth = None if data.truth is None else data.truth[data.truth < count]
    return data._replace(starts=data.starts[: count + 1], columns=data.columns[:end], values=data.values[:end], truth=truth)


def generated(neurons: int, layers: int, inputs: int | None = None, seed: int = 0) -> ChallengeData:
    """A `RadixNet` and the training images of MNIST, enlarged and cut at a threshold."""
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
    starts, found = np.concatenate([[0], np.cumsum(np.concatenate(counts))]), np.concatenate(columns)
    return ChallengeData(starts.astype(np.int32), found, np.broadcast_to(np.float32(1), found.shape), network, None)


# --- memory -----------------------------------------------------------------------------------------------------------
def _free() -> int:
    """Bytes of memory that are free on this machine; 4 GB where it does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 << 30


def _plan(data, memory, say):
    """How many inputs go through the network at once: so many that two arrays of activations fit."""
    count, layer = len(data.starts) - 1, data.network[0]
    each = 2 * 4 * len(layer.indices)  # bytes of an input
    room = int(SHARE * _free()) if memory is None else memory
    piece = min(room // each // LANES, -(-count // LANES)) * LANES
    if piece < LANES:
        raise MemoryError(f"challenge: {LANES} inputs need {LANES * each:,} bytes for activations, and there are {room:,}")
    pieces = -(-count // piece)
    weights = len(data.network) * layer.indices.nbytes
    say(
        f"{count} inputs need {count * each / 1e9:.2f} GB for activations, {len(data.network)} layers {weights / 1e9:.2f} GB; "
        f"{pieces} piece{'s' * (pieces > 1)} of {piece} inputs"
    )
    return piece


class _Uploaded:
    """The layers of a network on a device: (arrays of a layer, its rows in groups). They are kept there while they fit into so
    many bytes; the others are made when they are needed, each time."""

    def __init__(self, dev: Device, network: Sequence[EllLayer], room: int) -> None:
        self.dev, self.network = dev, network
        self.shared: dict[int, tuple[Any, Any]] = {}  # what all layers of a generated network share goes there once
        each = network[0].indices.nbytes
        self.kept = [self._made(layer) for layer in range(min(len(network), max(room // each, 1)))]

    def _once(self, host):
        """The array on the device, and the host's, so that its identity stays."""
        return self.shared.setdefault(id(host), (host, self.dev.upload(host)))[1]

    def _made(self, layer):
        indices, values, bias = self.network[layer]
        _within(f"indices of layer {layer + 1}", indices, len(self.network[0].indices))
        order, count = grouped(indices)
        return (self.dev.upload(indices), self._once(values), self._once(bias)), Grouped(self.dev.upload(order), count)

    def __getitem__(self, layer: int) -> tuple[tuple[Any, Any, Any], Grouped]:
        return self.kept[layer] if layer < len(self.kept) else self._made(layer)


def _within(name, numbers, limit):
    """ValueError unless all are from 0 to limit - 1: kernels do not look."""
    if numbers.size and not (0 <= numbers.min() and numbers.max() < limit):
        raise ValueError(f"challenge: {name} must be from 0 to {limit - 1}, not {numbers.min()} to {numbers.max()}")


# --- running ----------------------------------------------------------------------------------------------------------
class Prepared:
    """The Challenge with its layers on a device and its buffers allocated and touched: `run` may be called often.

    Parameters
    ----------
    data : ChallengeData
    way : str
    dev : Device
    piece : int
        How many inputs go through the network at once; a multiple of LANES.

    Raises
    ------
    ValueError
        If starts, columns or indices of a layer name what is not there.
    """

    def __init__(self, data: ChallengeData, way: str, dev: Device, piece: int) -> None:
        self.data, self.way, self.dev, self.piece = data, way, dev, piece
        self.count, self.size = len(data.starts) - 1, data.network[0].indices.size
        self.neurons = len(data.network[0].indices)
        _within("starts", data.starts, len(data.columns) + 1)
        _within("columns", data.columns, self.neurons)
        self.layers = _Uploaded(dev, data.network, _free() // 4)
        slabs = min(-(-self.count // LANES), piece // LANES)
        self.buffers = [dev.empty_slabs(slabs, self.neurons) for _ in range(1 if way == "plain" else 2)]
        for buffer in self.buffers:
            dev.full(buffer.shape, 0.0, out=buffer)

    def run(self) -> ChallengeResult:
        """All inputs through all layers, piece by piece."""
        layers = len(self.data.network)
        live, done, seconds = np.zeros(layers, np.int64), np.zeros(layers, np.int64), np.zeros(layers)
        self.dev.synchronize()
        begin = time.perf_counter()
        categories = np.concatenate([self._piece(first, live, done, seconds) for first in range(0, self.count, self.piece)])
        total = time.perf_counter() - begin
        correct = None if self.data.truth is None else bool(np.array_equal(categories, self.data.truth))
        return ChallengeResult(
            categories,
            correct,
            total,
            seconds,
            live,
            done,
            layers * self.size,
            self.count,
            -(-self.count // self.piece),
            self.way,
        )

    def _piece(self, first, live, done, seconds):
        """The categories among some inputs; adds up what each layer took."""
        before = time.perf_counter()
        x = self._dense(first, min(first + self.piece, self.count))
        numbers = np.arange(first, min(first + self.piece, self.count))
        alive = np.zeros(len(x) * LANES, np.int32)
        alive[: len(numbers)] = 1
        step = {"compact": _compact, "saturated": _compact, "filter": _filter}.get(self.way, _all)
        for layer in range(len(live)):
            live[layer] += alive.sum()
            buffer = None if self.way == "plain" else self.buffers[1 - layer % 2]
            x, alive, numbers, samples = step(self.dev, x, alive, numbers, self.layers[layer], buffer)
            done[layer] += samples * self.size
            ended = self.way == "saturated" and samples == alive.sum() and self._saturated(x, samples, layer + 1)
            now = time.perf_counter()
            seconds[layer] += now - before
            before = now
            if ended:
                live[layer + 1 :] += samples
                break
        return numbers[alive[: len(numbers)] != 0]

    def _saturated(self, x, samples, layer):
        """Whether all of the first samples are at the ceiling, and stay there in this layer and those behind it."""
        if (self.dev.download(x).min(axis=1).ravel()[:samples] < CEILING).any():
            return False
        return all(
            (CEILING * values.sum(axis=1) + bias >= MARGIN * CEILING).all()
            for values, bias in _distinct(self.data.network[n][1:] for n in range(layer, len(self.data.network)))
        )

    def _dense(self, first, stop):
        """Some inputs, in slabs."""
        starts = self.data.starts[first : stop + 1]
        own = slice(starts[0], starts[-1])
        given = map(self.dev.upload, (starts - starts[0], self.data.columns[own], self.data.values[own]))
        return self.dev.in_slabs(*given, self.neurons, out=self.dev.part(self.buffers[0], 0, -(-(stop - first) // LANES)))


def _distinct(parts):
    """Those of some tuples of arrays that are not the one before them."""
    last = None
    for part in parts:
        if last is None or any(a is not b for a, b in zip(part, last)):
            yield part
        last = part


def _compact(dev, x, alive, numbers, layer, buffer):
    """The next layer of the living inputs alone, which are moved together where some are not."""
    weights, rows = layer
    places = np.flatnonzero(alive)
    lanes = None if len(places) == len(x) * LANES else dev.upload(places.astype(np.int32))
    y, found = dev.ell(x, *weights, CEILING, lanes=lanes, rows=rows, out=dev.part(buffer, 0, -(-len(places) // LANES)))
    return y, dev.download(found), numbers[places], len(places)


def _filter(dev, x, alive, numbers, layer, buffer):
    """The next layer, the living inputs where they are; what is computed together with one is multiplied, too."""
    weights, rows = layer
    y, found = dev.ell(x, *weights, CEILING, alive=dev.upload(alive), rows=rows, out=dev.part(buffer, 0, len(x)))
    together = dev.samples_together()
    samples = together * int(alive.reshape(-1, together).any(axis=1).sum())
    return y, dev.download(found), numbers, samples


def _all(dev, x, _, numbers, layer, buffer):
    """The next layer of all inputs, in a buffer or a new array."""
    weights, rows = layer
    y, found = dev.ell(x, *weights, CEILING, rows=rows, out=None if buffer is None else dev.part(buffer, 0, len(x)))
    return y, dev.download(found), numbers, len(x) * LANES
