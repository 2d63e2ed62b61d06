"""The Sparse Deep Neural Network Graph Challenge: y <- min(max(W y + b, 0), 32) through many sparse layers, in several ways.

The Challenge's rate, inputs x connections / time, counts products that are never computed: most inputs are 0 after a few
layers. The number of multiplications is therefore reported as well.
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
MARGIN = 1.01  # factor by which sums must exceed the ceiling, so that the order of summation does not matter
SHARE = 0.5  # maximal share of the free memory for activations


@dataclasses.dataclass(frozen=True)
class ChallengeResult:
    """Result and cost of a run of the Challenge.

    Attributes
    ----------
    categories : ndarray
        Indices of the inputs that are not 0 after the last layer.
    correct : bool or None
        Whether these are the Challenge's categories; None if those are unknown.
    seconds : float
        Time from sparse inputs and layers in memory to the categories; buffers were touched before.
    by_layer : ndarray
        Seconds of each layer; making inputs dense counts to the first.
    live : ndarray
        For each layer, the number of inputs that were not 0 before it.
    multiplications : ndarray
        For each layer, the number of multiplications.
    connections : int
        Number of weights of all layers.
    inputs, pieces : int
        Number of inputs, and of pieces in which they were processed.
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
        """Edges per second as the Challenge defines them: inputs x connections / seconds, computed or not."""
        return self.inputs * self.connections / self.seconds

    @property
    def share_done(self) -> float:
        """Share of inputs x connections that was multiplied."""
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
    """Run the Challenge once; timing starts when files, layers and buffers are in memory and everything is compiled.

    Parameters
    ----------
    neurons, layers : int, optional
        Those of a ChallengeData, else 1024 and 120 by default. The Challenge has 1024, 4096, 16384, 65536, and 120, 480, 1920.
    data : path, "generated" or ChallengeData, optional
        The folder of the official files, by default as for `load_challenge`; "generated" is a `RadixNet` with enlarged and
        thresholded images of MNIST.
    way : str, default "compact"
        "compact": live inputs (not all 0) are packed together before each layer. "filter": a layer skips groups of inputs
        without a live one, which stay in place. "buffer": all inputs pass all layers, in two alternating arrays. "plain": all
        inputs, each layer in a new array. The latter three are named in the FSSL paper (section IV) without further details.
        "saturated" is a shortcut, not plain execution: "compact" until all live inputs are at the ceiling everywhere and no
        later layer changes that; the check counts in the time.
    device : str, default "cpu"
    inputs : int, optional
        Use only the first n images; all by default.
    memory : int, optional
        Maximal bytes for activations: inputs are processed in the number of pieces that this requires. By default half of the
        free memory.
    say : callable, optional
        Called with a line about the memory that is needed and its division.

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
        raise ValueError(f"challenge: there is no way {way!r}; choose from {', '.join(WAYS)}")
    if inputs is not None and inputs < 1:
        raise ValueError(f"challenge: inputs must be 1 at least, not {inputs}")
    dev = named(device)
    data = first_inputs(_data(neurons, layers, data, inputs), inputs)
    Prepared(first_inputs(data, LANES)._replace(network=[data.network[0]]), way, dev, LANES).run()  # compiled
    return Prepared(data, way, dev, _plan(data, memory, say)).run()


# --- data -------------------------------------------------------------------------------------------------------------
def _data(neurons, layers, data, inputs):
    """The data that were given, generated or loaded."""
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
    """The same data with only the first inputs, or all."""
    if count is None or count >= len(data.starts) - 1:
        return data
    end = data.starts[count]
    truth = None if data.truth is None else data.truth[data.truth < count]
    return data._replace(starts=data.starts[: count + 1], columns=data.columns[:end], values=data.values[:end], truth=truth)


def generated(neurons: int, layers: int, inputs: int | None = None, seed: int = 0) -> ChallengeData:
    """A `RadixNet` with the training images of MNIST, enlarged and thresholded."""
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


# --- memory -----------------------------------------------------------------------------------------------------------
def _free() -> int:
    """Bytes of free memory on this machine; 4 GB if unknown."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 << 30


def _plan(data, memory, say):
    """The number of inputs per piece: so that two arrays of activations fit into memory."""
    count, layer = len(data.starts) - 1, data.network[0]
    each = 2 * 4 * len(layer.indices)  # bytes per input
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
    """The layers of a network on a device: (arrays of a layer, its rows in groups). As many as fit into `room` bytes stay
    there; the others are uploaded each time."""

    def __init__(self, dev: Device, network: Sequence[EllLayer], room: int) -> None:
        self.dev, self.network = dev, network
        self.shared: dict[int, tuple[Any, Any]] = {}  # arrays that all layers of a generated network share
        each = network[0].indices.nbytes
        self.resident = [self._made(layer) for layer in range(min(len(network), max(room // each, 1)))]

    def _once(self, host):
        """The array on the device, and the host's, which keeps its id valid."""
        return self.shared.setdefault(id(host), (host, self.dev.upload(host)))[1]

    def _made(self, layer):
        indices, values, bias = self.network[layer]
        _within(f"indices of layer {layer + 1}", indices, len(self.network[0].indices))
        order, count = grouped(indices)
        return (self.dev.upload(indices), self._once(values), self._once(bias)), Grouped(self.dev.upload(order), count)

    def __getitem__(self, layer: int) -> tuple[tuple[Any, Any, Any], Grouped]:
        return self.resident[layer] if layer < len(self.resident) else self._made(layer)


def _within(name, numbers, limit):
    """ValueError unless all are from 0 to limit - 1, which kernels do not check."""
    if numbers.size and not (0 <= numbers.min() and numbers.max() < limit):
        raise ValueError(f"challenge: {name} must be from 0 to {limit - 1}, not {numbers.min()} to {numbers.max()}")


# --- running ----------------------------------------------------------------------------------------------------------
class Prepared:
    """The Challenge with its layers on a device and its buffers allocated and touched: `run` may be called repeatedly.

    Parameters
    ----------
    data : ChallengeData
    way : str
    dev : Device
    piece : int
        Number of inputs that are processed at once; a multiple of LANES.

    Raises
    ------
    ValueError
        If starts, columns or a layer's indices are out of range.
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
        """Process all inputs, piece by piece."""
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
        """The categories among some inputs; adds each layer's figures to the totals."""
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
        """True if all of the first samples are at the ceiling, and stay there in this layer and all later ones."""
        if (self.dev.download(x).min(axis=1).ravel()[:samples] < CEILING).any():
            return False
        return all(
            (CEILING * values.sum(axis=1) + bias >= MARGIN * CEILING).all()
            for values, bias in _distinct(self.data.network[n][1:] for n in range(layer, len(self.data.network)))
        )

    def _dense(self, first, stop):
        """Some inputs, as dense slabs."""
        starts = self.data.starts[first : stop + 1]
        part = slice(starts[0], starts[-1])
        given = map(self.dev.upload, (starts - starts[0], self.data.columns[part], self.data.values[part]))
        return self.dev.in_slabs(*given, self.neurons, out=self.dev.part(self.buffers[0], 0, -(-(stop - first) // LANES)))


def _distinct(parts):
    """The tuples of arrays that differ from the previous one."""
    last = None
    for part in parts:
        if last is None or any(a is not b for a, b in zip(part, last)):
            yield part
        last = part


def _compact(dev, x, alive, numbers, layer, buffer):
    """The next layer for the live inputs only, which are packed together first if some are not live."""
    weights, rows = layer
    index = np.flatnonzero(alive)
    lanes = None if len(index) == len(x) * LANES else dev.upload(index.astype(np.int32))
    y, live = dev.ell(x, *weights, CEILING, lanes=lanes, rows=rows, out=dev.part(buffer, 0, -(-len(index) // LANES)))
    return y, dev.download(live), numbers[index], len(index)


def _filter(dev, x, alive, numbers, layer, buffer):
    """The next layer with live inputs in place; inputs of the same group as a live one are computed, too."""
    weights, rows = layer
    y, live = dev.ell(x, *weights, CEILING, alive=dev.upload(alive), rows=rows, out=dev.part(buffer, 0, len(x)))
    together = dev.samples_together()
    samples = together * int(alive.reshape(-1, together).any(axis=1).sum())
    return y, dev.download(live), numbers, samples


def _all(dev, x, _, numbers, layer, buffer):
    """The next layer for all inputs, into a buffer or a new array."""
    weights, rows = layer
    y, live = dev.ell(x, *weights, CEILING, rows=rows, out=None if buffer is None else dev.part(buffer, 0, len(x)))
    return y, dev.download(live), numbers, len(x) * LANES
