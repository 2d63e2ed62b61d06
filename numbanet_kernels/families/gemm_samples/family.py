"""Matrix products in which each sample keeps different outputs (`layouts.samples`). A pair (n, o) of a sample and an output may
be kept or dropped; the values v of the P kept pairs are stored in one array (P,), sample after sample.

    gemm_samples       v(n, o) = act(x[n] . w[o] + bias[o]) for the kept pairs (n, o)       x (N, I), w (O, I) -> (P,)
    gemm_samples_dx    dx[n] = sum of dy(n, o) w[o] over the kept pairs of sample n         dy (P,), w (O, I) -> (N, I)
    gemm_samples_dw    dw[o] = sum of dy(n, o) x[n] over the kept pairs of output o         dy (P,), x (N, I) -> (O, I), (O,)
                       db[o] = sum of dy(n, o) over the kept pairs of output o
    expand_samples     y[n, o] = v(n, o) for the kept pairs, 0 for dropped pairs            v (P,) -> (N, O)
    compact_samples    v(n, o) = x[n, o] for the kept pairs                                 x (N, O) -> (P,)

act is ReLU if `relu`, else the identity. If many samples keep the same outputs, the CPU multiplies these samples densely with
the rows of the kept outputs (`host.gathered_gemm`). Else it multiplies each output with four of its samples at a time, in
blocks of columns that fit the cache.
"""

from __future__ import annotations

import numpy as np

from ...layouts.samples import WORD, sample_lists
from ...runtime.expect import INT32, expect
from ...runtime.launch import ceil_div


# --- reference --------------------------------------------------------------------------------------------------------
def mask_of(lists):
    """Return an array (N, O) of bool that is True for kept pairs."""
    bits = np.asarray(lists.bits).view(np.uint32)
    mask = (bits[:, :, None] >> np.arange(WORD, dtype=np.uint32) & 1).reshape(len(bits), bits.shape[1] * WORD)
    return mask[:, : lists.width].astype(bool)[np.arange(lists.starts.size - 1) // lists.group]


def expand_samples_reference(values, lists):
    mask = mask_of(lists)
    dense = np.zeros(mask.shape)
    dense[mask] = values
    return dense


def compact_samples_reference(x, lists, count):
    return np.float64(x)[mask_of(lists)]


def gemm_samples_reference(x, w, lists, count, bias=None, relu=False):
    """Return act(x w.T + bias) of the kept pairs, in float64."""
    y = np.float64(x) @ np.float64(w).T + (0 if bias is None else np.float64(bias))
    return (np.maximum(y, 0) if relu else y)[mask_of(lists)]


def gemm_samples_dx_reference(dy, w, lists):
    return expand_samples_reference(dy, lists) @ np.float64(w)


def gemm_samples_dw_reference(dy, x, lists):
    """Return (dw, db) of gemm_samples_dw, in float64."""
    dense = expand_samples_reference(dy, lists)
    return dense.T @ np.float64(x), dense.sum(0)


def check(op, lists, values=None, **arrays):
    """Return the number of samples; raise ValueError unless the arrays fit the lists."""
    samples = lists.starts.size - 1
    if samples < 0 or lists.group < 1 or lists.width < 0:
        raise ValueError(f"{op}: starts {lists.starts.shape} and groups of {lists.group} samples do not form lists")
    words = ceil_div(lists.width, WORD)
    expect(
        op,
        bits=(lists.bits, (ceil_div(samples, lists.group), words), INT32),
        starts=(lists.starts, (samples + 1,), INT32),
        values=(values, ("kept",)),
        **arrays,
    )
    return samples


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    def lists(group):
        mask = np.random.default_rng(5).random((ceil_div(N, group), O)) < 0.4
        return sample_lists(mask, N, group)

    single = lists(1)
    count = int(single.starts[-1])
    return {
        "expand_samples": lambda: dev.expand_samples(a(count), single),
        "compact_samples": lambda: dev.compact_samples(a(N, O), single, count),
        "gemm_samples": lambda: dev.gemm_samples(a(N, I), a(O, I), single, count, a(O), relu=True),
        "gemm_samples, together": lambda: dev.gemm_samples(a(N, I), a(O, I), lists(32), int(lists(32).starts[-1])),
        "gemm_samples_dx": lambda: dev.gemm_samples_dx(a(count), a(O, I), single),
        "gemm_samples_dw": lambda: dev.gemm_samples_dw(a(count), a(N, I), single),
    }
