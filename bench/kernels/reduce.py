"""Reductions of activations and of a large array, against PyTorch. They read the array once: memory bandwidth limits them."""

from __future__ import annotations

SUITE = "reduce"
SIZES = (128, 2048, 10), (128, 2048, 2048), (2048, 2048, 2048)
PEERS = {
    "sum, all": lambda t, x: x.sum(),
    "sum, rows": lambda t, x: x.sum(1),
    "sum, columns": lambda t, x: x.sum(0),
    "sum_rows": lambda t, x: x.sum(0) * 0.5,
    "max, rows": lambda t, x: x.amax(1),
    "argmax": lambda t, x: x.argmax(1),
}
