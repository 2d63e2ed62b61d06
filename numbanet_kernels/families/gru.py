"""The elementwise part of a time step of a GRU (Cho et al. 2014). The gates are r, u and m (in PyTorch: r, z and n).

    gru_cell       a = z[t] is the product with x, and s = s[t] is the product with h[t], both with biases. Computes
                   r = sigmoid(a_r + s_r),   u = sigmoid(a_u + s_u),   m = tanh(a_m + r s_m),   which overwrite z[t]
                   h[t + 1] = m + u (h[t] - m)
    gru_cell_grad  dh = dy[t] + back + carried, where back is the gradient from ds[t + 1]. Computes
                   dz_m = dh (1 - u) (1 - m^2),   dz_u = dh (h[t] - m) u (1 - u),   dz_r = dz_m s_m r (1 - r),
                   which overwrite the gates
                   ds_r = dz_r,   ds_u = dz_u,   ds_m = dz_m r,   which overwrite s[t]
                   carried = dh u

z, s, gates (T, N, 3H); h (T + 1, N, H); dy (T, N, H); back, carried (N, H). The matrix products are computed by `gemm`:
s[t] = h[t] w.T + b before a time step, and back = ds[t + 1] w after it; dw = sum_t ds[t].T h[t] is one product for all time
steps. `lengths` (N,) are the numbers of time steps of the samples; if they are given, h is 0 after the end of a sample, and no
gradient flows back from there.
"""

from __future__ import annotations

import math
import numbers

import numba
import numpy as np
from numba import float32, int32
from numba.extending import intrinsic

from ..blocks.intrinsics import sigmoids
from ..host import threads
from ..host.simd import NUMBER, WIDTH, data_of, for_lanes, load, store
from ..host.transpose import NO_INDICES
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import launch
from ..runtime.memory import THREADS, blocks_for, empty_cuda
from .elementwise import sigmoid_reference


# --- reference --------------------------------------------------------------------------------------------------------
def _alive(lengths, t, samples):
    """Return an array (N, 1) of bool that is True for the samples that have a time step t."""
    return np.ones((samples, 1), bool) if lengths is None else (t < np.asarray(lengths))[:, None]


def gru_cell_reference(z, s, h, t, lengths=None):
    """Return (gates of time step t, h[t + 1]) of gru_cell, in float64."""
    (a_r, a_u, a_m), (s_r, s_u, s_m) = (np.split(np.float64(x[t]), 3, axis=1) for x in (z, s))
    r, u, m = sigmoid_reference(a_r + s_r), sigmoid_reference(a_u + s_u), np.tanh(a_m + sigmoid_reference(a_r + s_r) * s_m)
    return np.concatenate([r, u, m], 1), np.where(_alive(lengths, t, len(m)), m + u * (np.float64(h[t]) - m), 0)


def gru_cell_grad_reference(dy, back, carried, gates, s, h, t, lengths=None):
    """Return (dz[t], ds[t], carried) of gru_cell_grad, in float64."""
    r, u, m = np.split(np.float64(gates[t]), 3, axis=1)
    dh = np.where(_alive(lengths, t, len(m)), np.float64(dy[t]) + back + carried, 0)
    dz_m, dz_u = dh * (1 - u) * (1 - m * m), dh * (h[t] - m) * u * (1 - u)
    dz_r = dz_m * np.split(np.float64(s[t]), 3, axis=1)[2] * r * (1 - r)
    return np.concatenate([dz_r, dz_u, dz_m], 1), np.concatenate([dz_r, dz_u, dz_m * r], 1), dh * u


# --- checks, for CPU and CUDA -----------------------------------------------------------------------------------------
def _check(op, gates, s, h, t, lengths, **states):
    """Check the arguments, and return (N, H); raise ValueError if they do not fit."""
    found = expect(
        op,
        gates=(gates, ("T", "N", "3H")),
        s=(s, ("T", "N", "3H")),
        h=(h, ("T+1", "N", "H")),
        lengths=(lengths, ("N",), INT32),
        **states,
    )
    steps, n, hidden = found["T"], found["N"], found["H"]
    if found["3H"] != 3 * hidden or found["T+1"] != steps + 1:
        raise ValueError(f"{op}: gates {gates.shape} must be (T, N, 3 H) for h {h.shape} of (T + 1, N, H)")
    if not isinstance(t, numbers.Integral) or not 0 <= t < steps:
        raise ValueError(f"{op}: t {t!r} must be a step, from 0 to {steps - 1}")
    return n, hidden


# --- CPU --------------------------------------------------------------------------------------------------------------
INTEGER = numba.int64


def _three(builder, data, at, step, some):
    """Load and return the vectors of the three gates, which are `step` floats apart."""
    return [load(builder, data, builder.add(at, builder.mul(step, NUMBER(g))), some) for g in range(3)]


def _store_three(builder, gates, data, at, step, some):
    for g, gate in enumerate(gates):
        store(builder, gate, data, builder.add(at, builder.mul(step, NUMBER(g))), some)


@intrinsic
def _cell(typing_context, z, s, at, step, h, before, after, width, alive):
    """Compute `width` units of one sample: z becomes the gates, and h[after] is computed from h[before]."""

    def generate(context, builder, signature, arguments):
        z, s, at, step, h, before, after, width, alive = data_of(context, builder, signature, arguments)

        def units(some):
            (a_r, a_u, a_m), (s_r, s_u, s_m) = (_three(builder, data, at, step, some) for data in (z, s))
            r, u, old = (a_r + s_r).sigmoid(), (a_u + s_u).sigmoid(), load(builder, h, before, some)
            m = (a_m + r * s_m).tanh()
            _store_three(builder, (r, u, m), z, at, step, some)
            store(builder, (m + u * (old - m)).where_not(alive, 0.0), h, after, some)

        for_lanes(builder, width, units)
        return context.get_dummy_value()

    return numba.void(z, s, INTEGER, INTEGER, h, INTEGER, INTEGER, INTEGER, numba.boolean), generate


@intrinsic
def _cell_grad(typing_context, dy, dy_at, back, carried, state_at, gates, s, at, step, h, before, width, alive):
    """Compute `width` units of one sample: gates become dz, s becomes ds, and `carried` is updated for the step before."""

    def generate(context, builder, signature, arguments):
        dy, dy_at, back, carried, state_at, gates, s, at, step, h, before, width, alive = data_of(
            context, builder, signature, arguments
        )

        def units(some):
            (r, u, m), (_, _, s_m) = (_three(builder, data, at, step, some) for data in (gates, s))
            dh = load(builder, dy, dy_at, some) + load(builder, back, state_at, some) + load(builder, carried, state_at, some)
            dh = dh.where_not(alive, 0.0)
            of_m = (dh * (1.0 - u) * (1.0 - m * m)).where_not(alive, 0.0)
            of_u = (dh * (load(builder, h, before, some) - m) * u * (1.0 - u)).where_not(alive, 0.0)
            of_r = (of_m * s_m * r * (1.0 - r)).where_not(alive, 0.0)
            _store_three(builder, (of_r, of_u, of_m), gates, at, step, some)
            _store_three(builder, (of_r, of_u, of_m * r), s, at, step, some)
            store(builder, dh * u, carried, state_at, some)

        for_lanes(builder, width, units)
        return context.get_dummy_value()

    return numba.void(
        dy, INTEGER, back, carried, INTEGER, gates, s, INTEGER, INTEGER, h, INTEGER, INTEGER, numba.boolean
    ), generate


@host_kernel("void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], i4[::1], i8, i8, i8)")
def _forward(z, s, h, lengths, t, first, stop):
    """Compute time step t of the samples first … stop - 1."""
    n, hidden = h.shape[1], h.shape[2]
    for sample in range(first, stop):
        for j in range(0, hidden, WIDTH):
            at, state = (t * n + sample) * 3 * hidden + j, (t * n + sample) * hidden + j
            _cell(
                z, s, at, hidden, h, state, state + n * hidden, min(WIDTH, hidden - j), lengths.size == 0 or t < lengths[sample]
            )


@host_kernel("void(f4[:, :, ::1], f4[:, ::1], f4[:, ::1], f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], i4[::1], i8, i8, i8)")
def _backward(dy, back, carried, gates, s, h, lengths, t, first, stop):
    """Compute the backward pass of time step t for the samples first … stop - 1."""
    n, hidden = h.shape[1], h.shape[2]
    for sample in range(first, stop):
        for j in range(0, hidden, WIDTH):
            at, state = (t * n + sample) * 3 * hidden + j, (t * n + sample) * hidden + j
            _cell_grad(
                dy,
                state,
                back,
                carried,
                sample * hidden + j,
                gates,
                s,
                at,
                hidden,
                h,
                state,
                min(WIDTH, hidden - j),
                lengths.size == 0 or t < lengths[sample],
            )


def gru_cell_cpu(z, s, h, t, lengths=None):
    """h[t + 1] = m + u (h[t] - m); the gates r, u, m of time step t overwrite z[t]"""
    n, hidden = _check("gru_cell (cpu)", z, s, h, t, lengths)

    def work(part):
        own = part.of(n)
        _forward(z, s, h, NO_INDICES if lengths is None else lengths, t, own.start, own.stop)

    threads.share(work, 3 * n * hidden)


def gru_cell_grad_cpu(dy, back, carried, gates, s, h, t, lengths=None):
    """carried = dh u, where dh = dy[t] + back + carried; dz[t] overwrites gates[t], ds[t] overwrites s[t]"""
    n, hidden = _check("gru_cell_grad (cpu)", gates, s, h, t, lengths, **_slopes(dy, back, carried))

    def work(part):
        own = part.of(n)
        _backward(dy, back, carried, gates, s, h, NO_INDICES if lengths is None else lengths, t, own.start, own.stop)

    threads.share(work, 3 * n * hidden)


def _slopes(dy, back, carried):
    return {"dy": (dy, ("T", "N", "H")), "back": (back, ("N", "H")), "carried": (carried, ("N", "H"))}


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("gru")
def _gru_kernels():
    sigmoid = sigmoids()

    @kernel("void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], i4[::1], i4)")
    def cell(z, s, h, lengths, t):
        """Each thread computes one unit of one sample."""
        i, hidden = int32(cuda.grid(1)), int32(h.shape[2])
        if i < h.shape[1] * hidden:
            n, u = i // hidden, i % hidden
            reset = sigmoid(z[t, n, u] + s[t, n, u])
            update = sigmoid(z[t, n, hidden + u] + s[t, n, hidden + u])
            new = math.tanh(z[t, n, 2 * hidden + u] + reset * s[t, n, 2 * hidden + u])
            z[t, n, u], z[t, n, hidden + u], z[t, n, 2 * hidden + u] = reset, update, new
            ended = lengths.size > 0 and t >= lengths[n]
            h[t + 1, n, u] = float32(0) if ended else new + update * (h[t, n, u] - new)

    @kernel("void(f4[:, :, ::1], f4[:, ::1], f4[:, ::1], f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], i4[::1], i4)")
    def cell_grad(dy, back, carried, gates, s, h, lengths, t):
        """Each thread computes one unit of one sample."""
        i, hidden, zero, one = int32(cuda.grid(1)), int32(h.shape[2]), float32(0), float32(1)
        if i < h.shape[1] * hidden:
            n, u = i // hidden, i % hidden
            of_r, of_u, of_m, of_s, on = zero, zero, zero, zero, zero
            if lengths.size == 0 or t < lengths[n]:
                r, g, m = gates[t, n, u], gates[t, n, hidden + u], gates[t, n, 2 * hidden + u]
                dh = dy[t, n, u] + back[n, u] + carried[n, u]
                of_m = dh * (one - g) * (one - m * m)
                of_u = dh * (h[t, n, u] - m) * g * (one - g)
                of_r = of_m * s[t, n, 2 * hidden + u] * r * (one - r)
                of_s, on = of_m * r, dh * g
            gates[t, n, u], gates[t, n, hidden + u], gates[t, n, 2 * hidden + u] = of_r, of_u, of_m
            s[t, n, u], s[t, n, hidden + u], s[t, n, 2 * hidden + u] = of_r, of_u, of_s
            carried[n, u] = on

    return cell, cell_grad


def gru_cell_cuda(z, s, h, t, lengths=None):
    n, hidden = _check("gru_cell (cuda)", z, s, h, t, lengths)
    launch(_gru_kernels()[0], blocks_for(n * hidden), THREADS, z, s, h, _ends(lengths), int(t))


def gru_cell_grad_cuda(dy, back, carried, gates, s, h, t, lengths=None):
    n, hidden = _check("gru_cell_grad (cuda)", gates, s, h, t, lengths, **_slopes(dy, back, carried))
    launch(_gru_kernels()[1], blocks_for(n * hidden), THREADS, dy, back, carried, gates, s, h, _ends(lengths), int(t))


def _ends(lengths):
    """Return the argument of kernels for `lengths`: an empty array if they are None, because all samples have T time steps."""
    return empty_cuda(0, INT32) if lengths is None else lengths


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    H, T = O // 2, 3

    def lengths():
        return (a.indices(T, N) + 1).astype(np.int32)

    def grad(**options):
        return dev.gru_cell_grad(
            a(T, N, H), a(N, H), a(N, H), np.tanh(a(T, N, 3 * H)), a(T, N, 3 * H), a(T + 1, N, H), 1, **options
        )

    return {
        "gru_cell": lambda: dev.gru_cell(a(T, N, 3 * H), a(T, N, 3 * H), a(T + 1, N, H), 2),
        "gru_cell, lengths": lambda: dev.gru_cell(a(T, N, 3 * H), a(T, N, 3 * H), a(T + 1, N, H), 1, lengths=lengths()),
        "gru_cell_grad": lambda: grad(),
        "gru_cell_grad, lengths": lambda: grad(lengths=lengths()),
    }
