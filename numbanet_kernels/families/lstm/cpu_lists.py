"""LSTM on the CPU: the lists that the loops of `cpu_steps` take. Compiled loops compute them, so that each replay of a recorded
step computes them from its plan.
"""

from __future__ import annotations

from ...host.simd import WIDTH
from ...runtime.declare import host_kernel


@host_kernel("void(i4[:, ::1], i4[:, ::1], i4[:, ::1])")
def write_places(lists, places, found):
    """found[s, lists[s, k]] = places[s, k], or places[0, k] if `places` has one row; all other entries are -1."""
    for s in range(found.shape[0]):
        own, out = places[min(s, places.shape[0] - 1)], found[s]
        out[:] = -1
        for k in range(lists.shape[1]):
            if 0 <= lists[s, k] < out.size:
                out[lists[s, k]] = own[k]


@host_kernel("void(i4[::1], i8, i8[::1])")
def write_starts(outs, hidden, starts):
    """starts[b] = the first unit of block b of WIDTH listed units; the last entry is `hidden`, the number of units."""
    for b in range(starts.size):
        starts[b] = 0 if b == 0 else hidden if b == starts.size - 1 else outs[b * WIDTH]


@host_kernel("void(f4[:, ::1], f4, f4[:, :])")
def add_scaled(x, scale, y):
    """y += scale x"""
    for n in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[n, j] += scale * x[n, j]
