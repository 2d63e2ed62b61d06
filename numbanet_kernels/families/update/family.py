"""Updates of parameters in place, each fused into one pass over the weight. g is the gradient, w the weight, and t the number
of the step, from 1 on:

    sgd    g += decay w;  v = momentum v + g;  w -= lr v        (nesterov: w -= lr (g + momentum v))
    adam   g += decay w;  m = b1 m + (1 - b1) g;  s = b2 s + (1 - b2) g²;
           w -= lr (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps)
           decoupled: no decay in g; w *= 1 - lr decay before the step (AdamW; Loshchilov & Hutter 2019, algorithm 2)

These are the updates of PyTorch. w, v, m and s are (R, C). The gradient is dense (R, C), or packed (`packed`). On the CPU, v, m
and s are set to 0 if they are subnormal (`lazy_sgd.flushed`), s if |g| is below 3e-18: eps should be above 0.

If an update has `lazy`, a `layouts.packed.LazyBlocks`, some blocks of w skip the step, and others make the steps that they
skipped (`lazy_sgd`). If an update has `into`, the CPU also writes the wanted blocks of row r, in order, to
into.packed[into.rows[r]], as many as fit.

sgd and adam take a list of `SGDUpdate` or `AdamUpdate`, one for each weight; all lazy updates in a list have the same powers.
On CUDA up to TOGETHER weights are updated by one launch. Numbers that change between steps are in device arrays, so that a
recorded update can be replayed with other numbers: sgd accepts lr as an array (1,), and adam takes an array of
`layouts.packed.adam_numbers`.
"""

from __future__ import annotations

import numpy as np

from ...layouts.packed import AdamUpdate, SGDUpdate, adam_numbers
from .lazy_sgd import lazy_example
from .packed import packed_example, unpack_gradient_reference

NUMBERS = 10  # number of the numbers that adam takes


# --- reference --------------------------------------------------------------------------------------------------------
def sgd_reference(w, v, g, lr, momentum=0.0, nesterov=False, decay=0.0, packing=None):
    """Return (w, v) after the step, in float64."""
    w, v = np.float64(w), np.float64(v)
    g = unpack_gradient_reference(g, packing, w.shape) + decay * w
    v = momentum * v + g
    return w - lr * (g + momentum * v if nesterov else v), v


def adam_reference(w, m, s, g, lr, beta1, beta2, eps, step, decay=0.0, decoupled=False, packing=None):
    """Return (w, m, s) after the step, in float64."""
    w, m, s = np.float64(w), np.float64(m), np.float64(s)
    g = unpack_gradient_reference(g, packing, w.shape) + (0 if decoupled else decay * w)
    w = w * (1 - lr * decay) if decoupled else w
    m, s = beta1 * m + (1 - beta1) * g, beta2 * s + (1 - beta2) * g * g
    return w - lr * (m / (1 - beta1**step)) / (np.sqrt(s / (1 - beta2**step)) + eps), m, s


def sgd_lazy_reference(w, v, g, lr, momentum, nesterov, decay, packing, lazy):
    """Return (w, v, after) after the step, in float64: current blocks make the step with g, and blocks that are only wanted
    make all skipped steps with gradient 0.
    """
    lag, (height, width) = lazy.lag, lazy.block
    new_w, new_v, after = np.array(w, np.float64), np.array(v, np.float64), np.array(lag) + 1
    g = unpack_gradient_reference(g, packing, w.shape)
    for u, b in np.ndindex(*lag.shape):
        block = slice(u * height, (u + 1) * height), slice(b * width, (b + 1) * width)
        missed = lag[u, b]
        if lazy.current[u, b] or lazy.wanted[u, b]:
            for gradient in [np.zeros_like(g[block])] * (missed + 1) if missed else [g[block]]:
                new_w[block], new_v[block] = sgd_reference(new_w[block], new_v[block], gradient, lr, momentum, nesterov, decay)
            after[u, b] = 0
    return new_w, new_v, after


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "sgd": lambda: dev.sgd([SGDUpdate(a(O, I), a(O, I), a(O, I))], 0.1, 0.9),
        "sgd, packed": lambda: dev.sgd([SGDUpdate(a(O, I), a(O, I), *packed_example(a, O, I))], 0.1, 0.9),
        "sgd, lazy": lambda: dev.sgd([SGDUpdate(a(O, I), a(O, I), *packed_example(a, O, I), lazy_example(a, O, I))], 0.1, 0.9),
        "adam": lambda: dev.adam(
            [AdamUpdate(a(O, I), a(O, I), a(O, I, above=0.1), *packed_example(a, O, I))],
            np.float32(adam_numbers(0.1, 0.9, 0.999, 1e-8, 3)),
        ),
    }
