"""CPU loops for products with a sparse matrix: neurons before samples, so that vectors lie along the samples.

    panels   x (N, I) is copied to panels (P, I, SAMPLES), padded with zeros: an input of a panel is SAMPLES contiguous floats
    sums     out[s] = sum_k values[k] panel[ids[k], s]      for one row of the matrix at a time; the sums stay in registers
    dots     out[k] = sum_s panel[ids[k], s] row[s]         the gradient of the values of a row of the matrix

An entry of the matrix costs one multiply-add per vector of samples, and each multiply-add reads one operand from memory: 2 N
FLOPs on 4 N bytes. A panel of 2048 inputs takes 512 KiB, half of the L2 cache. The cache delivers 32 bytes a cycle, half of
what the multiply-adds could consume, so the ceiling is half of the dense peak of a core. In a random structure, two rows share
too few columns for a shared load of x to save more time than the search for such rows takes.
"""

from __future__ import annotations

import functools

import numba
import numpy as np
from llvmlite import ir
from numba import float32
from numba.extending import intrinsic

from ...host import threads
from ...host.simd import FLOATS, NUMBER, REAL, WIDTH, aligned, data_of, multiply_add, spread, vector_at
from ...host.transpose import COLUMNS, EMPTY, NO_INDICES, transpose_block
from ...layouts.slabs import LANES
from ...runtime.declare import host_function, host_kernel
from ...runtime.memory import empty_cpu

SAMPLES = LANES  # panels have the layout of slabs (`layouts.slabs`)
VECTORS = SAMPLES // WIDTH
_all = functools.lru_cache(maxsize=64)(functools.partial(np.arange, dtype=np.int32))


# --- loops ------------------------------------------------------------------------------------------------------------
def _row_of(builder, panel, ids, k, inputs):
    """Return the address of row ids[k] of a panel; an index beyond the last row is replaced by that of the last row."""
    index, last = builder.load(builder.gep(ids, [k])), builder.trunc(builder.sub(inputs, NUMBER(1)), ir.IntType(32))
    inside = builder.select(builder.icmp_unsigned("<", index, last), index, last)
    return builder.gep(panel, [builder.mul(builder.zext(inside, NUMBER), NUMBER(SAMPLES))])


def _vector(builder, address, v):
    return builder.load(vector_at(builder, address, NUMBER(v * WIDTH)), align=4)


def _loop(builder, first, stop, state, body):
    """Build the loop `state = body(k, state)` for k = first … stop - 1, and return the final state."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(NUMBER)
    held = [builder.phi(value.type) for value in state]
    builder.cbranch(builder.icmp_signed("<", k, stop), inside, after)
    builder.position_at_end(inside)
    after_body = body(k, held)
    k.add_incoming(first, before)
    k.add_incoming(builder.add(k, NUMBER(1)), builder.block)
    for phi, initial, value in zip(held, state, after_body):
        phi.add_incoming(initial, before)
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return held


@intrinsic
def _sums(typing_context, panel, inputs, ids, values, first, stop, out):
    """out[s] = sum_k values[k] panel[ids[k], s] for first <= k < stop"""

    def generate(context, builder, signature, arguments):
        panel, inputs, ids, values, first, stop, out = data_of(context, builder, signature, arguments)

        def entry(k, sums):
            row, value = _row_of(builder, panel, ids, k, inputs), spread(builder, builder.load(builder.gep(values, [k]))).value
            return [multiply_add(builder, value, _vector(builder, row, v), total) for v, total in enumerate(sums)]

        sums = _loop(builder, first, stop, [FLOATS([REAL(0.0)] * WIDTH)] * VECTORS, entry)
        for v, total in enumerate(sums):
            builder.store(total, vector_at(builder, out, NUMBER(v * WIDTH)), align=4)
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(panel, integer, ids, values, integer, integer, out), generate


@intrinsic
def _dots(typing_context, panel, inputs, ids, row, first, stop, out, added):
    """out[k] = sum_s panel[ids[k], s] row[s] for first <= k < stop, added to out[k] if `added`"""

    def generate(context, builder, signature, arguments):
        panel, inputs, ids, row, first, stop, out, added = data_of(context, builder, signature, arguments)
        row_vectors = [_vector(builder, row, v) for v in range(VECTORS)]
        kind = ir.FunctionType(REAL, [REAL, FLOATS])
        name = f"llvm.vector.reduce.fadd.v{WIDTH}f32"
        reduce = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)

        def entry(k, _):
            other = _row_of(builder, panel, ids, k, inputs)
            total = builder.fmul(row_vectors[0], _vector(builder, other, 0))
            for v in range(1, VECTORS):
                total = multiply_add(builder, row_vectors[v], _vector(builder, other, v), total)
            address = builder.gep(out, [k])
            start = builder.select(added, builder.load(address), REAL(0.0))
            builder.store(builder.call(reduce, [start, total], fastmath=("reassoc",)), address)
            return []

        _loop(builder, first, stop, [], entry)
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(panel, integer, ids, row, integer, integer, out, numba.boolean), generate


# --- panels -----------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, ::1], f4[:, :, ::1], i8, i8)")
def _transpose_in(x, panels, first, stop):
    """panels[p, i, s] = x[p SAMPLES + s, i] for first <= i < stop; 0 if x has no such sample. COLUMNS columns are transposed at
    a time, so that the output also stays in the L1 cache.
    """
    for p in range(panels.shape[0]):
        n0, n1 = p * SAMPLES, min((p + 1) * SAMPLES, x.shape[0])
        panel = panels[p]
        for i in range(first, stop, COLUMNS):
            transpose_block(x, n0, n1, i, min(i + COLUMNS, stop), panel, i, 0, True)
        if n1 - n0 < SAMPLES:
            for i in range(first, stop):
                panel[i, n1 - n0 :] = 0


def panels_of(samples):
    """Return P, the number of panels that hold `samples` samples."""
    return -(-samples // SAMPLES)


def transposed(x):
    """Return x (N, I) as panels (P, I, SAMPLES)."""
    panels = aligned(panels_of(x.shape[0]), x.shape[1], SAMPLES)

    def work(part):
        span = part.of(x.shape[1])
        _transpose_in(x, panels, span.start, span.stop)

    threads.share(work, x.size)
    return panels


# --- products ---------------------------------------------------------------------------------------------------------
@host_function
def _live(ids, values, inverse, inputs, first, stop, live_ids, live_values):
    """For each of the entries first … stop - 1 whose input is kept, write to live_ids the position of the input among the kept
    inputs, and to live_values the value. Return the number of these entries; both arrays have room for one entry more.
    """
    count = 0
    for k in range(first, stop):
        position = inverse[min(max(ids[k], 0), inverse.size - 1)] if inverse.size else -1
        live_ids[count], live_values[count] = position, values[k]
        count += 0 <= position < inputs
    return count


@host_kernel(
    "void(f4[:, :, ::1], i4[::1], i4[::1], i4[::1], f4[::1], i4[::1], i4[::1], b1, f4[::1], b1, b1, i8, i8, f4[:, ::1])"
)
def _product(panels, starts, stops, ids, values, rows, inverse, selected, bias, biased, relu, first, stop, y):
    """y[n, j] = act(sum_k values[k] x[n, ids[k]] + bias[rows[j]]) for first <= j < stop. The sum is over the entries k of row
    rows[j], if `selected` only over those whose input is kept; act is ReLU if `relu`, else the identity.
    """
    inputs, low, room = panels.shape[1], float32(0) if relu else float32(-np.inf), ids.size if selected else 0
    live_ids, live_values = np.empty(room + 1, np.int32), np.empty(room + 1, np.float32)
    out = np.empty((COLUMNS, SAMPLES), np.float32)
    for p in range(panels.shape[0]):
        n0, n1 = p * SAMPLES, min((p + 1) * SAMPLES, y.shape[0])
        for j0 in range(first, stop, COLUMNS):
            j1 = min(j0 + COLUMNS, stop)
            for j in range(j0, j1):
                o, row = min(max(rows[j], 0), starts.size - 1), out[j - j0]
                k0, k1 = max(starts[o], 0), min(stops[o], ids.size) if inputs else 0
                if selected:
                    count = _live(ids, values, inverse, inputs, k0, k1, live_ids, live_values)
                    _sums(panels[p], inputs, live_ids, live_values, 0, count, row)
                else:
                    _sums(panels[p], inputs, ids, values, k0, k1, row)
                added = bias[o] if biased else float32(0)
                for s in range(SAMPLES):
                    value = row[s] + added
                    row[s] = low if value < low else value  # with this order of the comparison, NaN stays NaN
            transpose_block(out, 0, j1 - j0, 0, n1 - n0, y, n0, j0, False)


def product(panels, starts, stops, ids, values, y, rows=None, inverse=None, bias=None, relu=False):
    """y[n, j] = act(sum_k values[k] x[n, ids[k]] + bias[rows[j]]) over the entries k of row rows[j]; act is ReLU if `relu`,
    else the identity. `panels` hold x; if `inverse` is given, only the inputs that it keeps.
    """
    rows = _all(y.shape[1]) if rows is None else rows
    rest = (
        rows,
        NO_INDICES if inverse is None else inverse,
        inverse is not None,
        EMPTY if bias is None else bias,
        bias is not None,
        relu,
    )

    def work(part):
        span = part.of(y.shape[1])
        _product(panels, starts, stops, ids, values, *rest, span.start, span.stop, y)

    threads.share(work, flops=2 * y.shape[0] * ids.size)


@host_kernel("void(f4[:, :, ::1], f4[:, :, ::1], i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], b1, i8, i8, f4[::1])")
def _entries(dys, xs, starts, stops, ids, rows, inverse, selected, first, stop, dw):
    """dw[k] = sum_n dy[n, j] x[n, ids[k]] for the entries k of row rows[j], for first <= j < stop; if `selected`, dw[k] = 0 for
    entries whose input is dropped.
    """
    inputs, room = xs.shape[1], ids.size if selected else 0
    live_ids, live_values, sums = np.empty(room + 1, np.int32), np.empty(room + 1, np.float32), np.empty(room + 1, np.float32)
    for p in range(xs.shape[0]):
        for j in range(first, stop):
            o = min(max(rows[j], 0), starts.size - 1)
            k0, k1 = max(starts[o], 0), min(stops[o], ids.size) if inputs else 0
            if not selected:
                _dots(xs[p], inputs, ids, dys[p, j], k0, k1, dw, p > 0)
                continue
            count, m = _live(ids, dw, inverse, inputs, k0, k1, live_ids, live_values), 0
            _dots(xs[p], inputs, live_ids, dys[p, j], 0, count, sums, False)
            for k in range(k0, k1):
                live = m < count and inverse[min(max(ids[k], 0), inverse.size - 1)] == live_ids[m]
                dw[k] = (dw[k] if p else float32(0)) + (sums[m] if live else float32(0))
                m += live


def entries(dys, xs, starts, stops, ids, dw, rows=None, inverse=None):
    """dw[k] = sum_n dy[n, j] x[n, ids[k]] for the entries k of each row rows[j]. Entries of rows that `rows` does not list are
    left unchanged. `dys` and `xs` are panels of dy and x.
    """
    lists = _all(dys.shape[1]) if rows is None else rows, NO_INDICES if inverse is None else inverse, inverse is not None

    def work(part):
        span = part.of(dys.shape[1])
        _entries(dys, xs, starts, stops, ids, *lists, span.start, span.stop, dw)

    threads.share(work, flops=2 * SAMPLES * xs.shape[0] * ids.size)


def by_column(values, order):
    """Return values[order], computed on all threads; if `order` is that of an `Entries`, the values are sorted by column."""
    sorted_values = empty_cpu(order.shape)

    def work(part):
        span = part.of(order.size)
        np.take(values, order[span], out=sorted_values[span], mode="clip")

    if values.size:
        threads.share(work, sorted_values.size)
    return sorted_values
