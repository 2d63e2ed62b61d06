"""Results on the CPU do not depend on where arrays lie. A compiled loop may look whether its arrays overlap, within bounds that
are too wide, and if so handle single elements instead of vectors: both must round alike."""

import math

import numpy as np
import pytest

from numbanet import device
from numbanet_kernels import examples
from numbanet_kernels.runtime import memory
from numbanet_kernels.runtime.declare import host_kernel

CPU = device("cpu")
SIZES = [examples.SIZES, (24, 17, 13)]
ROOM = 1 << 28  # bytes


class Adjacent:
    """Memory in which each array begins where the one before ends or, if `down`, ends where that one begins."""

    def __init__(self, down):
        self.bytes, self.down, self.at = np.zeros(ROOM, np.uint8), down, ROOM * down

    def empty(self, shape, dtype):
        size = math.prod(shape) * np.dtype(dtype).itemsize
        start = self.at - size - (self.at - size) % 4 if self.down else -(-self.at // 4) * 4
        self.at = start if self.down else start + size
        return self.bytes[start : start + size].view(dtype).reshape(shape)

    def upload(self, values):
        placed = self.empty(values.shape, values.dtype)
        placed[...] = values
        return placed


def arrays(value):
    """Yield all arrays in nested tuples, lists and objects."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from arrays(part)
    elif hasattr(value, "__dict__"):
        yield from arrays(tuple(vars(value).values()))


def results(name, sizes, dev):
    """The bits of an operation's results, and of its arguments, to which it may write."""
    call = examples.example(name, sizes).on(dev)
    found = call.run(CPU)
    return [(array.shape, array.dtype, array.tobytes()) for array in arrays((found, call.arguments))]


@pytest.mark.parametrize("sizes", SIZES, ids=["blocks", "odd"])
@pytest.mark.parametrize("name", examples.families())
def test_results_do_not_depend_on_where_arrays_lie(name, sizes, monkeypatch):
    expected = results(name, sizes, CPU)
    monkeypatch.setattr(memory, "SMALL", -1)
    for down in (False, True):
        arena = Adjacent(down)
        monkeypatch.setattr(memory, "lend_host", lambda size, shape, dtype, arena=arena: arena.empty(shape, dtype))
        assert expected and results(name, sizes, arena) == expected


@host_kernel("void(f4[::1], f4[::1], f4[::1], f4[::1])")
def _quotients(x, z, roots, sums):
    for i in range(x.size):
        roots[i] = x[i] / math.sqrt(z[i])
        sums[i] = x[i] / z[i] + x[i] * z[i]


@host_kernel("void(f4[::1], f4[::1], f4[::1])")
def _first(x, z, root):
    root[0] = x[0] / math.sqrt(z[0])


def test_vectors_and_single_elements_are_rounded_alike(rng):
    """Which of them a loop uses may depend on where its arrays lie."""
    x, z = rng.standard_normal(1000, np.float32), np.abs(rng.standard_normal(1000, np.float32)) + np.float32(0.01)
    roots, sums, one, two, first = (np.empty(n, np.float32) for n in (1000, 1000, 1, 1, 1))
    _quotients(x, z, roots, sums)
    for i in range(x.size):
        _quotients(x[i : i + 1], z[i : i + 1], one, two)
        _first(x[i : i + 1], z[i : i + 1], first)
        assert (one[0], two[0], first[0]) == (roots[i], sums[i], roots[i])
