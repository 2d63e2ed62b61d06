"""Inference through the layers of the Challenge. There are several ways, which differ in the inputs (images) for which a layer
is computed, and in the arrays that it writes. An input is live before a layer if its activations there are not all 0. No
bias may be above 0 (`run` checks this): so an input that is not live stays so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbanet_kernels.layouts.slabs import LANES, Grouped, grouped

from ..device import Device
from .files import ChallengeData
from .radixnet import CEILING, EllLayer
from .result import ChallengeResult

WAYS = ("compact", "filter", "buffer", "plain", "saturated")
# sums must exceed the ceiling by this factor, so that rounding, which depends on the order of summation, does not matter
MARGIN = 1.01


# --- memory -----------------------------------------------------------------------------------------------------------
def free_memory() -> int:
    """Return the number of bytes of free memory on this machine; 4 GB if it is unknown."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 << 30


class _Uploaded:
    """The layers of a network on a device. An element is (arrays of a layer, groups of its rows). As many layers as fit into
    `room` bytes stay on the device, one at least; the other layers are uploaded in each pass.
    """

    def __init__(self, dev: Device, network: Sequence[EllLayer], room: int) -> None:
        self.dev, self.network = dev, network
        # (host array, device array) by the id of the host array, which is held, so that no other array gets its id: the values
        # and biases of the layers that stay, and those of the last other layer, because layers may share them
        self.kept: dict[int, tuple[Any, Any]] = {}
        self.last: dict[int, tuple[Any, Any]] = {}
        self.resident: list[tuple[Any, Grouped]] = []
        for number, layer in enumerate(network, 1):
            room -= self._bytes(layer)
            if room < 0 and self.resident:
                break
            self.resident.append(self._made(number, layer, self.kept))

    def _bytes(self, layer):
        """Return the number of bytes that a layer takes on the device besides what is there."""
        indices, *others = layer
        order = 4 * len(indices)
        return indices.nbytes + order + sum(array.nbytes for array in others if id(array) not in self.kept)

    def _once(self, host, found):
        """Return the array `host` on the device: the one that is there, or else a new one, which is added to `found`."""
        known = self.kept.get(id(host)) or self.last.get(id(host)) or (host, self.dev.upload(host))
        found[id(host)] = known
        return known[1]

    def _made(self, number, layer, found):
        indices, values, bias = layer
        _within(f"indices of layer {number}", indices, len(self.network[0].indices))
        order, count = grouped(indices)
        arrays = self.dev.upload(indices), self._once(values, found), self._once(bias, found)
        return arrays, Grouped(self.dev.upload(order), count)

    def __getitem__(self, layer: int) -> tuple[tuple[Any, Any, Any], Grouped]:
        if layer < len(self.resident):
            return self.resident[layer]
        found: dict[int, tuple[Any, Any]] = {}
        made = self._made(layer + 1, self.network[layer], found)
        self.last = found
        return made


def _within(name, numbers, limit):
    """Raise ValueError unless all numbers are in 0 … limit - 1; kernels do not check this."""
    if numbers.size and not (0 <= numbers.min() and numbers.max() < limit):
        raise ValueError(f"challenge: {name} must be from 0 to {limit - 1}, not {numbers.min()} to {numbers.max()}")


# --- running ----------------------------------------------------------------------------------------------------------
class Prepared:
    """The Challenge, ready to be timed: the layers are on a device, and the buffers are allocated and have been written once,
    so that timings do not include page faults. `run` may be called repeatedly.

    Parameters
    ----------
    data : ChallengeData
        The images and the network.
    way : str
        As for `challenge`.
    dev : Device
        The device of the inference.
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
        self.layers = _Uploaded(dev, data.network, free_memory() // 4)
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
        """Process one piece of the inputs, and return the indices of the inputs that are not 0 after the last layer. Add the
        numbers and the times of each layer to the totals `live`, `done` and `seconds`.
        """
        before = time.perf_counter()
        x = self._dense(first, min(first + self.piece, self.count))
        numbers = np.arange(first, min(first + self.piece, self.count))
        alive = np.zeros(len(x) * LANES, np.int32)
        alive[: len(numbers)] = 1
        step = {"compact": _compact, "saturated": _compact, "filter": _filter}.get(self.way, _all)
        for layer in range(len(live)):
            live[layer] += alive[: len(numbers)].sum()  # without lanes that hold no input
            buffer = None if self.way == "plain" else self.buffers[1 - layer % 2]
            x, alive, numbers, samples = step(self.dev, x, alive, numbers, self.layers[layer], buffer)
            done[layer] += samples * self.size
            all_live = samples == alive[: len(numbers)].sum()
            ended = self.way == "saturated" and all_live and self._saturated(x, samples, layer + 1)
            now = time.perf_counter()
            seconds[layer] += now - before
            before = now
            if ended:
                live[layer + 1 :] += samples
                break
        return numbers[alive[: len(numbers)] != 0]

    def _saturated(self, x, samples, layer):
        """Return True if all activations of the first `samples` samples are and stay at the ceiling, from layer `layer` on."""
        if (self.dev.download(x).min(axis=1).ravel()[:samples] < CEILING).any():
            return False
        return all(
            (CEILING * values.sum(axis=1) + bias >= MARGIN * CEILING).all()
            for values, bias in _distinct(self.data.network[n][1:] for n in range(layer, len(self.data.network)))
        )

    def _dense(self, first, stop):
        """Return the inputs first … stop - 1 in dense form, as slabs (`numbanet_kernels.layouts.slabs`)."""
        starts = self.data.starts[first : stop + 1]
        part = slice(starts[0], starts[-1])
        given = map(self.dev.upload, (starts - starts[0], self.data.columns[part], self.data.values[part]))
        return self.dev.in_slabs(*given, self.neurons, out=self.dev.part(self.buffers[0], 0, -(-(stop - first) // LANES)))


def _distinct(parts):
    """Yield those tuples of arrays in `parts` whose arrays are not the same objects as those of the previous tuple."""
    last = None
    for part in parts:
        if last is None or any(a is not b for a, b in zip(part, last)):
            yield part
        last = part


def _compact(dev, x, alive, numbers, layer, buffer):
    """Compute the next layer for the live inputs only. If some inputs are not live, the live ones are first packed together."""
    weights, rows = layer
    index = np.flatnonzero(alive)
    lanes = None if len(index) == len(x) * LANES else dev.upload(index.astype(np.int32))
    y, live = dev.ell(x, *weights, CEILING, lanes=lanes, rows=rows, out=dev.part(buffer, 0, -(-len(index) // LANES)))
    return y, dev.download(live), numbers[index], len(index)


def _filter(dev, x, alive, numbers, layer, buffer):
    """Compute the next layer without moving live inputs. Inputs in the same group as a live one are computed as well."""
    weights, rows = layer
    y, live = dev.ell(x, *weights, CEILING, alive=dev.upload(alive), rows=rows, out=dev.part(buffer, 0, len(x)))
    together = dev.samples_together()
    samples = together * int(alive.reshape(-1, together).any(axis=1).sum())
    return y, dev.download(live), numbers, samples


def _all(dev, x, _, numbers, layer, buffer):
    """Compute the next layer for all inputs; write it to `buffer` if there is one, else to a new array."""
    weights, rows = layer
    y, live = dev.ell(x, *weights, CEILING, rows=rows, out=None if buffer is None else dev.part(buffer, 0, len(x)))
    return y, dev.download(live), numbers, len(x) * LANES
