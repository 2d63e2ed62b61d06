"""A layer with a sparse weight that has K values in each row (ELL), fused with its activation; and the layout of its inputs:

    ell        y[s, o, b] = min(max(sum_k values[o, k] x[s', indices[o, k], b'] + bias[o], 0), ceiling)
    in_slabs   x[s, columns[k], b] = values[k] for starts[n] <= k < starts[n + 1], where n = s LANES + b; all else is 0

Activations are stored in slabs of LANES samples, with neurons before samples: x (slabs, I, LANES). Sample n is in slab
n // LANES at lane n % LANES. So each weight multiplies vectors of samples, and a slab stays in cache.

By default s' = s and b' = b. If `lanes` is given, only some samples of x are computed: sample n of y is sample lanes[n] of x.
If `alive` is given, sample n of y is computed if alive[n] is not 0, and is 0 otherwise. On the CPU threads divide the slabs, or
the rows if slabs are few; sums stay in registers, for up to VECTORS vectors of samples per row. On CUDA a warp computes
adjacent samples of a row. Rows that read the same inputs (`grouped`) are multiplied ROWS at a time, so that samples are read
once instead of ROWS times. Reading is the bottleneck: a single row reads a vector of samples and a weight for each product.
"""

from __future__ import annotations

import numpy as np

from ...layouts.slabs import LANES, ROWS, grouped
from ...runtime.expect import INT32, expect
from ...runtime.launch import ceil_div

SAMPLES = ("slabs", "I", LANES)


# --- reference --------------------------------------------------------------------------------------------------------
def _by_lane(x):
    """Return x (slabs, I, LANES) as an array (I, slabs LANES)."""
    return np.float64(x).transpose(1, 0, 2).reshape(x.shape[1], -1)


def _in_slabs(x):
    """Return x (O, N) as slabs (slabs, O, LANES), padded with 0."""
    padded = np.zeros((len(x), ceil_div(x.shape[1], LANES) * LANES))
    padded[:, : x.shape[1]] = x
    return np.ascontiguousarray(padded.reshape(len(x), -1, LANES).transpose(1, 0, 2))


def ell_reference(x, indices, values, bias, ceiling, lanes=None, alive=None, rows=None):
    """Return (y, live) of ell, in float64: y = min(max(W x + bias, 0), ceiling) for the samples that `lanes` selects; 0 for
    samples that are not alive. live[n] is 0 if all values of sample n of y are 0, else 1.
    """
    x = _by_lane(x)
    x = x if lanes is None else x[:, lanes]
    y = np.clip(np.einsum("ok,okn->on", np.float64(values), x[indices]) + np.float64(bias)[:, None], 0, ceiling)
    y = y if alive is None else y * (np.asarray(alive) != 0)
    return _in_slabs(y), (y != 0).any(axis=0).astype(np.int32)


def in_slabs_reference(starts, columns, values, inputs):
    """Return sparse samples in slabs: x[s, columns[k], b] = values[k]; exact."""
    x = np.zeros((inputs, len(starts) - 1))
    x[columns, np.repeat(np.arange(len(starts) - 1), np.diff(starts))] = values
    return _in_slabs(x)


# --- checks -----------------------------------------------------------------------------------------------------------
def check(op, x, indices, values, bias, lanes, alive, rows, out):
    """Return the number of samples of y; raise ValueError unless the arrays fit."""
    sizes = expect(
        op,
        x=(x, SAMPLES),
        indices=(indices, ("O", "K"), INT32),
        values=(values, ("O", "K")),
        bias=(bias, ("O",)),
        lanes=(lanes, ("N",), INT32),
        order=(rows and rows.order, ("O",), INT32),
    )
    count = sizes.get("N", x.shape[0] * LANES)
    expect(op, alive=(alive, (count,), INT32), out=(out, (ceil_div(count, LANES), sizes["O"], LANES)))
    if not sizes["K"] or not x.size and count:
        raise ValueError(f"{op}: indices {indices.shape} and x {tuple(x.shape)} must have at least one column and input")
    if rows is not None and not 0 <= rows.count * ROWS <= sizes["O"]:
        raise ValueError(f"{op}: {rows.count} groups of {ROWS} rows exceed {sizes['O']} rows")
    if out is not None and (out is x or isinstance(x, np.ndarray) and np.may_share_memory(out, x)):
        raise ValueError(f"{op}: out must not be x: later rows still read x")
    return count


def check_samples(op, starts, columns, values, inputs, out):
    entries = ("entries",)
    sizes = expect(op, starts=(starts, ("N + 1",), INT32), columns=(columns, entries, INT32), values=(values, entries))
    if not sizes["N + 1"]:
        raise ValueError(f"{op}: starts {starts.shape} must have one more element than there are samples")
    if inputs < (1 if sizes["entries"] else 0):
        raise ValueError(f"{op}: {sizes['entries']} columns, values {values.shape}, cannot be those of {inputs} inputs")
    shape = ceil_div(sizes["N + 1"] - 1, LANES), inputs, LANES
    expect(op, out=(out, shape))
    return shape


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    def layer():
        indices = a.indices(I, O, 8)
        indices[: O // 8 * 4] = indices[: O // 8].repeat(4, axis=0)  # some rows have the same inputs
        return indices, a(O, 8), a(O)

    def samples():
        counts = a.indices(5, N)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        columns = np.concatenate([np.arange(count) for count in counts]).astype(np.int32)
        return starts, columns, a(len(columns)), I

    slabs, lanes = ceil_div(N, LANES), np.arange(0, N, 3, dtype=np.int32)
    alive = (np.arange(slabs * LANES) % 5 < 2).astype(np.int32)

    def among(**options):
        indices, values, bias = layer()
        return dev.ell(a(slabs, I, LANES), indices, values, bias, 2.0, rows=grouped(indices), **options)

    return {
        "ell": lambda: dev.ell(a(slabs, I, LANES), *layer(), 2.0),
        "ell, some lanes together": lambda: among(lanes=lanes),
        "ell, some lanes alive": lambda: among(alive=alive),
        "in_slabs": lambda: dev.in_slabs(*samples()),
    }
