"""A sparse layer with the same number of weights a row (ELL), fused with its activation; and sparse samples made dense for it.

    ell        y[s, o, b] = min(max(sum_k values[o, k] x[s', indices[o, k], b'] + bias[o], 0), ceiling)
    in_slabs   x[s, columns[k], b] = values[k] for starts[n] <= k < starts[n + 1]      n = s LANES + b

Activations lie in slabs of LANES samples, neuron-major: x (slabs, I, LANES), so that all weights of a row are multiplied with
vectors of samples, and what a slab holds is near. Sample n is lane n of all: slab n // LANES, place n % LANES.

`lanes` moves together what is to be computed: sample n of y reads lane lanes[n] of x. `alive` says which samples of y are
computed where they are; the others are 0. Versions: on the CPU a thread has its own slabs, or its own rows where there are few
slabs; sums stay in registers, up to VECTORS vectors of samples a row. On CUDA a warp has neighbouring samples of a row.
Rows that read the same inputs (`grouped`) are multiplied ROWS at a time, each with all of its weights: what is left out is to
read a sample ROWS times. Reading is what takes the time: of one row alone, a vector of samples and the weight for each product.
"""
from __future__ import annotations

import numpy as np
from numba import float32

from ..host import threads
from ..host.lanes import WIDTH
from ..host.narrow import aligned
from ..host.slabs import moves_of, multiply, spread_out
from ..layouts.slabs import LANES, ROWS, grouped
from ..runtime.declare import cuda, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import empty_cuda, flat, full_cuda, upload_cuda

SAMPLES = ("slabs", "I", LANES)


# --- reference --------------------------------------------------------------------------------------------------------
def _by_lane(x):
    """(slabs, I, LANES) -> (I, all lanes)"""
    return np.float64(x).transpose(1, 0, 2).reshape(x.shape[1], -1)


def _in_slabs(x):
    """(O, N) -> (slabs, O, LANES), 0 where there is no sample."""
    found = np.zeros((len(x), ceil_div(x.shape[1], LANES) * LANES))
    found[:, :x.shape[1]] = x
    return np.ascontiguousarray(found.reshape(len(x), -1, LANES).transpose(1, 0, 2))


def ell_reference(x, indices, values, bias, ceiling, lanes=None, alive=None, rows=None):
    """y = min(max(W x + bias, 0), ceiling) of some lanes of x, 0 where not alive; which lanes of y are not 0. float64"""
    x = _by_lane(x)
    x = x if lanes is None else x[:, lanes]
    y = np.clip(np.einsum("ok,okn->on", np.float64(values), x[indices]) + np.float64(bias)[:, None], 0, ceiling)
    y = y if alive is None else y * (np.asarray(alive) != 0)
    return _in_slabs(y), (y != 0).any(axis=0).astype(np.int32)


def in_slabs_reference(starts, columns, values, inputs):
    """x of sparse samples: x[s, columns[k], b] = values[k]; exact"""
    x = np.zeros((inputs, len(starts) - 1))
    x[columns, np.repeat(np.arange(len(starts) - 1), np.diff(starts))] = values
    return _in_slabs(x)


# --- what is asked for ------------------------------------------------------------------------------------------------
def _check(op, x, indices, values, bias, lanes, alive, rows, out):
    """How many samples y has; ValueError unless arrays fit."""
    found = expect(op, x=(x, SAMPLES), indices=(indices, ("O", "K"), INT32), values=(values, ("O", "K")), bias=(bias, ("O",)),
                   lanes=(lanes, ("N",), INT32), order=(rows and rows.order, ("O",), INT32))
    count = found.get("N", x.shape[0] * LANES)
    expect(op, alive=(alive, (count,), INT32), out=(out, (ceil_div(count, LANES), found["O"], LANES)))
    if not found["K"] or not x.size and count:
        raise ValueError(f"{op}: indices {indices.shape} must have one column at least, and x {tuple(x.shape)} one input")
    if rows is not None and not 0 <= rows.count * ROWS <= found["O"]:
        raise ValueError(f"{op}: there are no {rows.count} groups of {ROWS} in {found['O']} rows")
    if out is not None and (out is x or isinstance(x, np.ndarray) and np.may_share_memory(out, x)):
        raise ValueError(f"{op}: out must not be x, of which later rows are still read")
    return count


def _within(op, name, indices, limit):
    """ValueError unless all of them are from 0 to limit - 1."""
    if indices.size and not (0 <= indices.min() and indices.max() < limit):
        raise ValueError(f"{op}: {name} must be from 0 to {limit - 1}, not {indices.min()} to {indices.max()}")


def _check_samples(op, starts, columns, values, inputs, out):
    entries = "entries",
    found = expect(op, starts=(starts, ("N + 1",), INT32), columns=(columns, entries, INT32), values=(values, entries))
    if not found["N + 1"]:
        raise ValueError(f"{op}: starts {starts.shape} must have one number more than there are samples")
    if inputs < (1 if found["entries"] else 0):
        raise ValueError(f"{op}: {found['entries']} columns, values {values.shape}, cannot be those of {inputs} inputs")
    shape = ceil_div(found["N + 1"] - 1, LANES), inputs, LANES
    expect(op, out=(out, shape))
    return shape


# --- CPU --------------------------------------------------------------------------------------------------------------
def empty_slabs_cpu(slabs, neurons):
    """An array (slabs, neurons, LANES) of unset values for activations."""
    return aligned(slabs, neurons, LANES)


def _divided(part, slabs, groups, moved):
    """(first slab, stop, first group, stop) of a part: its slabs, or its groups of all slabs, where these are few and stay."""
    if moved or slabs >= 4 * part.count:
        return part.of(slabs).start, part.of(slabs).stop, 0, groups
    return 0, slabs, part.of(groups).start, part.of(groups).stop


def samples_together_cpu():
    """How many samples a loop computes together, where one of them is alive."""
    return WIDTH


def ell_cpu(x, indices, values, bias, ceiling, lanes=None, alive=None, rows=None, out=None):
    """y = min(max(W x + bias, 0), ceiling) of the lanes of x that are named, or are alive; which lanes of y are not 0"""
    op = "ell (cpu)"
    count, inputs = _check(op, x, indices, values, bias, lanes, alive, rows, out), x.shape[1]
    total, depth = indices.shape
    order, groups = rows or (np.arange(total, dtype=np.int32), 0)
    _within(op, "indices", indices, inputs)
    _within(op, "rows", order, total)
    slabs = ceil_div(count, LANES)
    y = empty_slabs_cpu(slabs, total) if out is None else out
    marks = np.zeros(slabs * LANES, np.int32)
    marks[:count] = 1 if alive is None else alive
    moves, starts = np.zeros((0, 3), np.int64), np.zeros(0, np.int64)
    if lanes is not None and count:
        _within(op, "lanes", lanes, x.shape[0] * LANES)
        if (lanes[1:] <= lanes[:-1]).any():
            raise ValueError(f"{op}: lanes must increase")
        moves, starts = moves_of(lanes, inputs)
    live = []

    def work(part):
        found, room = np.zeros(slabs * LANES, np.int32), aligned((inputs + 1) * LANES if starts.size else 0)
        live.append(found)
        multiply(x.reshape(-1), indices.reshape(-1), values.reshape(-1), depth, bias, ceiling, order, groups, marks, moves,
                 starts, room, y.reshape(-1), found, inputs, *_divided(part, slabs, total - (ROWS - 1) * groups, starts.size))

    threads.share(work, flops=2 * count * indices.size)
    return y, np.bitwise_or.reduce(live)[:count]


def in_slabs_cpu(starts, columns, values, inputs, out=None):
    """x[s, columns[k], b] = values[k] for starts[n] <= k < starts[n + 1], n = s LANES + b, else 0: sparse samples made dense"""
    op = "in_slabs (cpu)"
    x = empty_slabs_cpu(*_check_samples(op, starts, columns, values, inputs, out)[:2]) if out is None else out
    _check_samples(op, starts, columns, values, inputs, out)
    _within(op, "columns", columns, inputs)
    _within(op, "starts", starts, columns.size + 1)
    threads.share(lambda part: spread_out(starts, columns, values, x, part.of(len(x)).start, part.of(len(x)).stop), x.size)
    return x


# --- CUDA -------------------------------------------------------------------------------------------------------------
GROUPS, SHARE = 4, 4  # of rows: at the same time in a block, and how often


@kernels("ell")
def _slabs():
    @kernel("void(f4[::1], i4[:, ::1], f4[:, ::1], f4[::1], f4, i4[::1], i4, i4[::1], i4[::1], f4[::1], i4[::1], i4)")
    def ell(x, indices, values, bias, ceiling, order, groups, lanes, alive, y, live, inputs):
        """One thread, one sample of a group of rows: a warp reads neighbours, and weights that are the same for all."""
        tx, slab = cuda.threadIdx.x, cuda.blockIdx.x
        n, rows, some = slab * LANES + tx, order.size, False
        number = groups + rows - groups * ROWS
        on, source = n < live.size, n
        if on and lanes.size:
            source = min(max(lanes[n], 0), x.size // inputs - 1)
        if on and alive.size:
            on = alive[n] != 0
        start = source // LANES * inputs * LANES + source % LANES
        for turn in range(SHARE):
            g = (cuda.blockIdx.y * SHARE + turn) * GROUPS + cuda.threadIdx.y
            if g < number:
                r = g * ROWS if g < groups else g + groups * (ROWS - 1)
                last = ROWS - 1 if g < groups else 0
                o0, o1 = min(max(order[r], 0), rows - 1), min(max(order[r + min(last, 1)], 0), rows - 1)
                o2, o3 = min(max(order[r + min(last, 2)], 0), rows - 1), min(max(order[r + last], 0), rows - 1)
                t0, t1, t2, t3 = bias[o0], bias[o1], bias[o2], bias[o3]
                for k in range(indices.shape[1] if on else 0):
                    sample = x[start + min(max(indices[o0, k], 0), inputs - 1) * LANES]
                    t0 += values[o0, k] * sample
                    t1 += values[o1, k] * sample
                    t2 += values[o2, k] * sample
                    t3 += values[o3, k] * sample
                for i in range(last + 1):
                    o = o0 if i == 0 else o1 if i == 1 else o2 if i == 2 else o3
                    total = t0 if i == 0 else t1 if i == 1 else t2 if i == 2 else t3
                    total = float32(0) if total < float32(0) or not on else ceiling if total > ceiling else total
                    y[(slab * rows + o) * LANES + tx] = total
                    some |= total != float32(0)
        if some:
            cuda.atomic.max(live, n, 1)

    return ell


@kernels("ell")
def _spreading():
    @kernel("void(i4[::1], i4[::1], f4[::1], f4[::1], i4)")
    def in_slabs(starts, columns, values, x, inputs):
        """One thread, one sample: its zeros, then its values."""
        n = cuda.grid(1)
        first = n // LANES * inputs * LANES + n % LANES
        if first < x.size:
            for i in range(inputs):
                x[first + i * LANES] = float32(0)
            if n < starts.size - 1:
                for k in range(max(starts[n], 0), min(starts[n + 1], columns.size)):
                    x[first + min(max(columns[k], 0), inputs - 1) * LANES] = values[k]

    return in_slabs


def samples_together_cuda():
    return 1  # those of a warp take their time together; multiplications are counted for those that are alive


def empty_slabs_cuda(slabs, neurons):
    return empty_cuda((slabs, neurons, LANES))


def ell_cuda(x, indices, values, bias, ceiling, lanes=None, alive=None, rows=None, out=None):
    """As `ell_cpu`. Nobody looks at what is in indices, lanes and rows: places beyond count as the first or the last."""
    count, inputs = _check("ell (cuda)", x, indices, values, bias, lanes, alive, rows, out), x.shape[1]
    slabs, total = ceil_div(count, LANES), len(indices)
    order, groups = rows or (upload_cuda(np.arange(total, dtype=np.int32)), 0)
    y = empty_slabs_cuda(slabs, total) if out is None else out
    live, every = full_cuda((count,), 0, np.int32), upload_cuda(np.zeros(0, np.int32))
    launch(_slabs(), (slabs, ceil_div(total - (ROWS - 1) * groups, GROUPS * SHARE)), (LANES, GROUPS), flat(x), indices, values,
           bias, ceiling, order, groups, every if lanes is None else lanes, every if alive is None else alive, flat(y), live,
           inputs)
    return y, live


def in_slabs_cuda(starts, columns, values, inputs, out=None):
    shape = _check_samples("in_slabs (cuda)", starts, columns, values, inputs, out)
    x = empty_slabs_cuda(*shape[:2]) if out is None else out
    launch(_spreading(), shape[0], LANES, starts, columns, values, flat(x), inputs)
    return x


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    def layer():
        indices = a.indices(I, O, 8)
        indices[:O // 8 * 4] = indices[:O // 8].repeat(4, axis=0)  # some rows have the same inputs
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

    return {"ell": lambda: dev.ell(a(slabs, I, LANES), *layer(), 2.0),
            "ell, some lanes together": lambda: among(lanes=lanes),
            "ell, some lanes alive": lambda: among(alive=alive),
            "in_slabs": lambda: dev.in_slabs(*samples())}
