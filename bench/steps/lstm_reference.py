"""Training steps of a language model in float64: an embedding, LSTM layers, a linear layer; SGD with gradient clipping.

Dropout of a step is a dictionary {name: plan, or array of factors}. The names are those of the factors' operands:

    "embedding", "output_l0", …   the output of the embedding, of a layer        (H,) or (T, N, H)
    "input_l0", …, "answer"       W_ih, the weight of the last layer
    "recurrent_l0", …             h[t - 1] in the product with W_hh
    "columns_l0", …               not a factor: indices of the columns of dz that the backward pass computes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
CELLS = 4  # n parameters of a layer: W_ih, W_hh, b_ih, b_hh


def factor(drawn: Mapping[str, Any], name: str) -> Any:
    """The factor of an operand, by name; 1 if it has no dropout."""
    plan = drawn.get(name)
    if plan is None or isinstance(plan, Array):
        return 1.0 if plan is None else plan
    return plan.mask() * plan.scale


def _sigmoid(a: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(a / 2)


def _flat(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


# --- one layer of cells -----------------------------------------------------------------------------------------------
def forward(
    layer: int, x: Array, weights: list[Array], state: tuple[Array, Array], drawn: Mapping[str, Any]
) -> tuple[Array, Array, Array]:
    """gates (T, N, 4H), and h and c (T + 1, N, H), which begin with the initial state, for x (T, N, I)."""
    w_ih, w_hh, b_ih, b_hh = weights
    recurrent, gates, h, c = factor(drawn, f"recurrent_l{layer}"), [], [state[0]], [state[1]]
    input_part = _flat(x) @ (w_ih * factor(drawn, f"input_l{layer}")).T + b_ih + b_hh
    for z in input_part.reshape(*x.shape[:2], -1):
        i, f, g, o = np.split(z + (h[-1] * recurrent) @ w_hh.T, 4, axis=1)
        gates.append(np.concatenate([_sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)], 1))
        i, f, g, o = np.split(gates[-1], 4, axis=1)
        c.append(f * c[-1] + i * g)
        h.append(o * np.tanh(c[-1]))
    return np.array(gates), np.array(h), np.array(c)


def backward(
    layer: int, dy: Array, x: Array, passed: tuple[Array, Array, Array], weights: list[Array], drawn: Mapping[str, Any]
) -> tuple[Array, list[Array]]:
    """(dx, gradients of the layer's parameters) for dy (T, N, H)."""
    (w_ih, w_hh, *_), (gates, h, c) = weights, passed
    recurrent, of_w = factor(drawn, f"recurrent_l{layer}"), factor(drawn, f"input_l{layer}")
    computed = np.zeros(gates.shape[2])
    computed[drawn.get(f"columns_l{layer}", slice(None))] = 1
    back, carried, dz = 0.0, 0.0, np.empty(gates.shape)
    for t in reversed(range(len(gates))):
        i, f, g, o = np.split(gates[t], 4, axis=1)
        dh, q = dy[t] + back, np.tanh(c[t + 1])
        dc = carried + dh * o * (1 - q * q)
        dz[t] = computed * np.concatenate(
            [dc * g * i * (1 - i), dc * c[t] * f * (1 - f), dc * i * (1 - g * g), dh * q * o * (1 - o)], 1
        )
        back, carried = dz[t] @ w_hh * recurrent, dc * f
    db = _flat(dz).sum(0)
    gradients = [_flat(dz).T @ _flat(x) * of_w, _flat(dz).T @ _flat(h[:-1] * recurrent), db, db]
    return (_flat(dz) @ (w_ih * of_w)).reshape(x.shape), gradients


def cells(x: Array, weights: list[Array], states: list[tuple[Array, Array]], drawn: Mapping[str, Any]) -> tuple[Array, Any]:
    """y of all layers, and a function dy -> (dx, gradients of the parameters). Replaces `states` by those after the last time
    step."""
    parts, passed, inputs = [weights[start : start + CELLS] for start in range(0, len(weights), CELLS)], [], []
    for layer, of_layer in enumerate(parts):
        inputs.append(x)
        passed.append(forward(layer, x, of_layer, states[layer], drawn))
        _, h, c = passed[-1]
        states[layer] = h[-1], c[-1]
        x = h[1:] * factor(drawn, f"output_l{layer}")

    def back(dy: Array) -> tuple[Array, list[Array]]:
        gradients: list[Array] = []
        for layer in reversed(range(len(parts))):
            dy = dy * factor(drawn, f"output_l{layer}")
            dy, of_layer = backward(layer, dy, inputs[layer], passed[layer], parts[layer], drawn)
            gradients = [*of_layer, *gradients]
        return dy, gradients

    return x, back


# --- the model --------------------------------------------------------------------------------------------------------
def empty_states(layers: int, n: int, hidden: int) -> list[tuple[Array, Array]]:
    """Initial states of all layers: zeros."""
    return [(np.zeros((n, hidden)), np.zeros((n, hidden)))] * layers


def gradients(
    weights: list[Array], x: Array, targets: Array, states: list[tuple[Array, Array]], drawn: Mapping[str, Any]
) -> list[Array]:
    """Gradients of the mean cross-entropy of targets (T N,), the words after x (T, N), in the order of the parameters."""
    table, *inner, w, b = weights
    of_table, of_w = factor(drawn, "embedding"), factor(drawn, "answer")
    y, back = cells(table[x] * of_table, inner, states, drawn)
    dy = _flat(y) @ (w * of_w).T + b
    dy = np.exp(dy - dy.max(axis=1, keepdims=True))
    dy /= dy.sum(axis=1, keepdims=True)
    dy[np.arange(len(targets)), targets] -= 1
    dy /= len(targets)
    dx, of_cells = back((dy @ (w * of_w)).reshape(y.shape))
    of_embedding = np.zeros_like(table)
    np.add.at(of_embedding, x, dx * of_table)
    return [of_embedding, *of_cells, dy.T @ _flat(y) * of_w, dy.sum(0)]


def steps(
    weights: Iterable[Array],
    batches: Iterable[tuple[Array, Array, bool]],
    drawn: Iterable[Mapping[str, Any]],
    layers: int,
    rate: float,
    clip: float,
) -> list[Array]:
    """Weights after a step for each element of `drawn`; batches are (inputs (T, N), targets (T N,), whether states are
    reset)."""
    weights = [np.float64(w) for w in weights]
    states: list[tuple[Array, Array]] = []
    for of_step, (x, targets, fresh) in zip(drawn, batches):
        if fresh:
            states = empty_states(layers, x.shape[1], weights[2].shape[1])
        grads = gradients(weights, x, targets, states, of_step)
        clip_factor = min(1.0, clip / np.sqrt(sum(float(np.vdot(g, g)) for g in grads)))
        for w, g in zip(weights, grads, strict=True):
            w -= rate * clip_factor * g
    return weights
