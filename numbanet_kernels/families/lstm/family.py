"""LSTM through time (Hochreiter & Schmidhuber 1997, with forget gates). The gates are in PyTorch's order i, f, g, o. Time step
t reads h[t] and computes h[t + 1]:

    lstm        a[t] = z[t] + scale h[t][:, units] w[:, units].T        z (T, N, 4H): products of x, with biases; w (4H, H)
                i = sigmoid(a_i),  f = sigmoid(a_f),  o = sigmoid(a_o),  g = tanh(a_g),  which overwrite z
                c[t + 1] = f c[t] + i g,   h[t + 1] = o tanh(c[t + 1])  h, c (T + 1, N, H) begin with h0 and c0
    lstm_grad   dh = dy[t] + scale dz[t + 1] w for the units in the list, dh = dy[t] for all other units,   q = tanh(c[t + 1])
                dc = dh o (1 - q^2) + dc[t + 1] f[t + 1],   dz_i = dc g i (1 - i),   dz_f = dc c[t] f (1 - f),
                dz_g = dc i (1 - g^2),   dz_o = dh q o (1 - o);         dz (T, N, 4H) overwrites the gates
    lstm_scores scores[j] = sum_t,n |dz[t, n, j]| without recurrent gradients: dh = dy[t] and dc = dh o (1 - q^2)

    lstm_seen   y[t, n, u] = h[t, n, u] for the units u in list t, else 0       h (T, N, H), units (T, K)

dw = scale sum_t dz[t].T h[t][:, units] is one product over all T N rows; if each time step has its own units, `lstm_seen`
computes the h for it. Options:

    units       increasing int32 (1, K) for all time steps, or (T, K): a time step reads only these units of h
    lengths     int32 (N,): the number of time steps of each sample; after its end h is 0 and c does not change
    columns     increasing int32 (K,): only these of the 4H columns of dz are computed, and dz is (T, N, K)
    threshold   elements of dz whose magnitude is at most the threshold are set to 0

A time step takes 8 N H^2 FLOPs and reads 16 H^2 bytes of w. With few samples a time step takes as long as reading w, so w is
packed once and, if it fits, stays in cache.
"""

from __future__ import annotations

import numpy as np

from ...runtime.expect import INT32, expect
from ..elementwise import sigmoid_reference


# --- reference --------------------------------------------------------------------------------------------------------
def _seen(units, t, hidden):
    """Return an array (H,) that is 1 for the units of h that time step t reads, else 0."""
    seen = np.ones(hidden)
    if units is not None:
        seen[:] = 0
        seen[units[t if len(units) > 1 else 0]] = 1
    return seen


def _alive(lengths, t, samples):
    """Return an array (N, 1) that is 1 for the samples that have a time step t, else 0."""
    return np.ones((samples, 1)) if lengths is None else (t < np.asarray(lengths))[:, None].astype(float)


def lstm_reference(z, w, h0, c0, units=None, scale=1.0, lengths=None):
    """Return (gates, h, c) of lstm, in float64."""
    hidden, gates, h, c = w.shape[1], [], [np.float64(h0)], [np.float64(c0)]
    for t, brought in enumerate(np.float64(z)):
        a = brought + scale * (h[-1] * _seen(units, t, hidden)) @ np.float64(w).T
        i, f, g, o = np.split(a, 4, axis=1)
        i, f, g, o, alive = *map(sigmoid_reference, (i, f)), np.tanh(g), sigmoid_reference(o), _alive(lengths, t, len(a))
        new = f * c[-1] + i * g
        gates.append(np.concatenate([i, f, g, o], 1))
        c.append(alive * new + (1 - alive) * c[-1])
        h.append(alive * o * np.tanh(new))
    return np.array(gates).reshape(z.shape), np.array(h), np.array(c)


def lstm_grad_reference(dy, gates, c, w, units=None, scale=1.0, lengths=None, dc=None, columns=None, threshold=0.0):
    """Return (dz, dh0, dc0) of lstm_grad, in float64."""
    (steps, n, hidden), back = dy.shape, np.zeros(dy.shape[1:])
    dc, dz = np.zeros((n, hidden)) if dc is None else np.float64(dc), np.zeros(gates.shape)
    for t in reversed(range(steps)):
        i, f, g, o = np.split(np.float64(gates[t]), 4, axis=1)
        alive, q = _alive(lengths, t, n), np.tanh(np.float64(c[t + 1]))
        dh = dy[t] + back
        own = dc + dh * o * (1 - q * q)
        dz[t] = alive * np.concatenate(
            [own * g * i * (1 - i), own * c[t] * f * (1 - f), own * i * (1 - g * g), dh * q * o * (1 - o)], 1
        )
        dz[t][np.abs(dz[t]) <= threshold] = 0
        if columns is not None:
            dz[t][:, np.setdiff1d(np.arange(4 * hidden), columns)] = 0
        dc = alive * own * f + (1 - alive) * dc
        back = scale * (dz[t] @ np.float64(w)) * _seen(units, t, hidden)
    return dz if columns is None else dz[:, :, columns], back, dc


def lstm_scores_reference(dy, gates, c, lengths=None):
    """Return the scores (4H,), in float64."""
    dy = dy * np.array([_alive(lengths, t, dy.shape[1]) for t in range(len(dy))]).reshape(*dy.shape[:2], 1)
    i, f, g, o = np.split(np.float64(gates), 4, axis=2)
    q = np.tanh(np.float64(c[1:]))
    own = dy * o * (1 - q * q)
    terms = [own * g * i * (1 - i), own * c[:-1] * f * (1 - f), own * i * (1 - g * g), dy * q * o * (1 - o)]
    return np.abs(np.concatenate(terms, 2)).sum((0, 1))


def lstm_seen_reference(h, units):
    """Return y of lstm_seen: h for the units in the list of each time step, 0 for all other units."""
    return np.array([step * _seen(units, t, h.shape[2]) for t, step in enumerate(h)]).reshape(h.shape)


# --- checks, for CPU and CUDA -----------------------------------------------------------------------------------------
def check(op, gates, w, units=None, lengths=None, columns=None, **states):
    """Check the arguments: `gates` (T, N, 4H), which may also be z, w (4H, H), and states, which are given as name=(array,
    shape). Return (T, N, H); raise ValueError if the arguments do not fit.
    """
    found = expect(
        op,
        w=(w, ("4H", "H")),
        gates=(gates, ("T", "N", "4H")),
        **states,
        units=(units, ("S", "K"), INT32),
        lengths=(lengths, ("N",), INT32),
        columns=(columns, ("J",), INT32),
    )
    steps, n, hidden = found["T"], found["N"], found["H"]
    if found["4H"] != 4 * hidden:
        raise ValueError(f"{op}: w {w.shape} must be (4 H, H)")
    if units is not None and (found["S"] not in (1, steps) or found["K"] > hidden):
        raise ValueError(f"{op}: units {units.shape} must have one row or {steps}, of at most {hidden} units")
    if columns is not None and found["J"] > 4 * hidden:
        raise ValueError(f"{op}: columns {columns.shape} exceed {4 * hidden}")
    return steps, n, hidden


def check_seen(op, h, units):
    """Raise ValueError unless each time step of h (T, N, H) has a list of at most H units."""
    found = expect(op, h=(h, AFTER), units=(units, ("T", "K"), INT32))
    if found["K"] > found["H"]:
        raise ValueError(f"{op}: units {units.shape} must have at most {found['H']} units a row")


STATE, AFTER = ("N", "H"), ("T", "N", "H")


def started(empty, copy, first, steps):
    """Return an array (T + 1, N, H) for a state at all time steps, which begins with `first`."""
    states = empty((steps + 1, *first.shape))
    copy(first, out=states[0])
    return states


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    H, T = O // 2, 3

    def grad(H=H, **options):
        gates = np.tanh(a(T, N, 4 * H))
        return dev.lstm_grad(a(T, N, H), gates, a(T + 1, N, H), a(4 * H, H) * np.float32(0.05), **options)

    return {
        "lstm": lambda: dev.lstm(a(T, N, 4 * H), a(4 * H, H), a(N, H), a(N, H)),
        "lstm, units and lengths": lambda: dev.lstm(
            a(T, N, 4 * H),
            a(4 * H, H),
            a(N, H),
            a(N, H),
            units=np.arange(1, H, 2, dtype=np.int32)[None],
            scale=2.0,
            lengths=(a.indices(T, N) + 1).astype(np.int32),
        ),
        "lstm, large": lambda: dev.lstm(a(2, N, 4 * O), a(4 * O, O), a(N, O), a(N, O)),
        "lstm_grad": lambda: grad(dc=a(N, H)),
        "lstm_grad, large": lambda: grad(
            O, units=np.stack([np.arange(t % 2, O - 1 + t % 2, 2) for t in range(T)]).astype(np.int32)
        ),
        "lstm_grad, columns": lambda: grad(columns=np.arange(0, 4 * H, 3, dtype=np.int32)),
        "lstm_grad, units": lambda: grad(units=np.stack([np.arange(t, H - 3 + t) for t in range(3)]).astype(np.int32)),
        "lstm_seen": lambda: dev.lstm_seen(a(T, N, H), np.stack([np.arange(t, H - 3 + t) for t in range(3)]).astype(np.int32)),
        "lstm_scores": lambda: dev.lstm_scores(a(T, N, H), np.tanh(a(T, N, 4 * H)), a(T + 1, N, H)),
    }
