"""Elementwise functions and their gradients on activations, against PyTorch. They are limited by memory bandwidth."""

from __future__ import annotations

SUITE = "elementwise"
PEERS = {
    "relu": lambda t, x: t.relu(x),
    "gelu": lambda t, x: t.nn.functional.gelu(x),
    "tanh": lambda t, x: t.tanh(x),
    "sigmoid": lambda t, x: t.sigmoid(x),
    "exp": lambda t, x: t.exp(x),
    "log": lambda t, x: t.log(x),
    "sqrt": lambda t, x: t.sqrt(x),
    "add": lambda t, a, b: a + b,
    "mul": lambda t, a, b: a * b,
    "div": lambda t, a, b: a / b,
    "relu_grad": lambda t, dy, y: t.ops.aten.threshold_backward(dy, y, 0),
    "gelu_grad": lambda t, dy, x: t.ops.aten.gelu_backward(dy, x),
    "tanh_grad": lambda t, dy, y: t.ops.aten.tanh_backward(dy, y),
    "sigmoid_grad": lambda t, dy, y: t.ops.aten.sigmoid_backward(dy, y),
}
