"""Softmax, log-softmax and their gradients, on the outputs of a classifier and on wide rows, against PyTorch."""

from __future__ import annotations

SUITE = "softmax"
SIZES = (128, 2048, 10), (128, 2048, 2048)
PEERS = {
    "softmax": lambda t, x: t.softmax(x, 1),
    "log_softmax": lambda t, x: t.log_softmax(x, 1),
    "softmax_grad": lambda t, dy, y: t.ops.aten._softmax_backward_data(dy, y, 1, y.dtype),
    "log_softmax_grad": lambda t, dy, y: t.ops.aten._log_softmax_backward_data(dy, y, 1, y.dtype),
}
