"""CPU loops over the outputs that each sample keeps (`layouts.samples`).

wrong          counts the samples whose values do not begin where those of the previous sample end
move           copies values to the dense form or back
pairs          lists the kept pairs (sample, output), sorted by output
listed         lists the output of each kept pair
blocks         lists the kept outputs of each group of samples
dots           computes dot products of single pairs, four samples of an output at a time, in blocks of columns that fit the
               cache
added          computes weighted sums of listed rows, COLUMNS columns at a time in registers
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import float32, int32, uint32
from numba.core import cgutils
from numba.extending import intrinsic

from ...host import threads
from ...host.simd import FLOATS, NUMBER, REAL, WIDTH, Lanes, aligned, below, copy_floats, data_of, load, spread
from ...host.transpose import EMPTY
from ...runtime.declare import host_function, host_kernel
from ...runtime.memory import empty_cpu

# --- bits -------------------------------------------------------------------------------------------------------------
# index of the only set bit, at (bit * 0x077CB531 mod 2^32) >> 27 (Leiserson, Prokop, Randall 1998)
_AT = np.zeros(32, np.int32)
_AT[[(0x077CB531 << i & 0xFFFFFFFF) >> 27 for i in range(32)]] = np.arange(32)


@host_function
def _outputs(bits, width, at, outputs):
    """Write the outputs that a row of bit words keeps to `outputs`, increasing, as many as fit; return their number."""
    count = 0
    for i in range(bits.size):
        word = uint32(bits[i])
        while word:
            low = word & (~word + uint32(1))
            o = i * 32 + at[uint32(low * uint32(0x077CB531)) >> uint32(27)]
            if o < width and count < outputs.size:
                outputs[count] = o
                count += 1
            word ^= low
    return count


@host_kernel("void(i4[:, ::1], i4[::1], i8, i8, i4[::1], i4[::1])")
def _count(bits, starts, group, width, at, wrong):
    """wrong[0] = the number of samples whose values do not begin where those of the previous sample end."""
    outputs = np.empty(width, np.int32)
    wrong[0] = int32(starts[0] != 0)
    for g in range(bits.shape[0]):
        count = _outputs(bits[g], width, at, outputs)
        for n in range(g * group, min((g + 1) * group, starts.size - 1)):
            wrong[0] += int32(starts[n + 1] - starts[n] != count)


def wrong(lists):
    """Return the number of samples whose values do not begin where those of the previous sample end."""
    errors = np.zeros(1, np.int32)
    _count(lists.bits, lists.starts, lists.group, lists.width, _AT, errors)
    return int(errors[0])


@host_kernel("void(f4[:, ::1], f4[::1], i4[:, ::1], i4[::1], i8, i4[::1], b1, i8, i8)")
def _move(x, values, bits, starts, group, at, expanding, first, stop):
    """Copy the values of the samples first … stop - 1 to the dense form x if `expanding`, else from x to the values."""
    outputs, before, count = np.empty(x.shape[1], np.int32), -1, 0
    for n in range(first, stop):
        if n // group != before:
            before = n // group
            count = _outputs(bits[before], x.shape[1], at, outputs)
        row, row_values = x[n], values[starts[n] : starts[n + 1]]
        if expanding:
            row[:] = 0
            for k in range(count):
                row[outputs[k]] = row_values[k]
        else:
            for k in range(count):
                row_values[k] = row[outputs[k]]


def move(x, values, lists, expanding):
    """Copy the values to the dense form x (N, O) if `expanding`, else x to the values."""

    def work(part):
        span = part.of(len(x))
        _move(x, values, lists.bits, lists.starts, lists.group, _AT, expanding, span.start, span.stop)

    threads.share(work, x.size)
    return x if expanding else values


@host_kernel("void(i4[:, ::1], i4[::1], i8, i4[::1], i4[::1], i4[::1], i4[::1])")
def _by_output(bits, starts, group, at, firsts, samples, positions):
    """Sort the kept pairs by output: the pairs p of output o, firsts[o] <= p < firsts[o + 1], have the sample samples[p] and
    the value at positions[p].
    """
    width = firsts.size - 1
    outputs, count = np.empty(width, np.int32), 0
    firsts[:] = 0
    for turn in range(2):
        for n in range(starts.size - 1):
            if n % group == 0:
                count = _outputs(bits[n // group], width, at, outputs)
            for k in range(count):
                p = firsts[outputs[k] + 1]
                if turn:
                    samples[p], positions[p] = n, starts[n] + k
                firsts[outputs[k] + 1] = p + 1
        if turn == 0:  # the starts are shifted by one place: filling moves each of them to where the next output begins
            total = int32(0)
            for o in range(width):
                size = firsts[o + 1]
                firsts[o + 1] = total
                total += size


def pairs(lists):
    """Return (firsts, samples, positions), the kept pairs sorted by output: output o has the pairs p = firsts[o] …
    firsts[o + 1] - 1, with the sample samples[p] and the value at positions[p].
    """
    count = int(lists.starts[-1])
    firsts, samples, positions = (empty_cpu((size,), np.int32) for size in (lists.width + 1, count, count))
    _by_output(lists.bits, lists.starts, lists.group, _AT, firsts, samples, positions)
    return firsts, samples, positions


@host_kernel("void(i4[:, ::1], i4[::1], i8, i8, i4[::1], i4[::1])", makes_arrays=True)
def _list_all(bits, starts, group, width, at, outputs):
    """Write the outputs of each sample to `outputs`, one sample after the other."""
    for n in range(starts.size - 1):
        if n % group == 0:
            _outputs(bits[n // group], width, at, outputs[starts[n] : starts[n + 1]])
        else:
            before, count = starts[n - 1], starts[n + 1] - starts[n]
            outputs[starts[n] : starts[n + 1]] = outputs[before : before + count]


def listed(lists):
    """Return an int32 array with the output of each kept pair, in the order of the values."""
    outputs = empty_cpu((int(lists.starts[-1]),), np.int32)
    _list_all(lists.bits, lists.starts, lists.group, lists.width, _AT, outputs)
    return outputs


def blocks(lists, values, bias):
    """Yield (slice of the samples, kept outputs (K,), view of the values (samples, K), bias (K,) or None) for each group of
    samples.
    """
    for g in range(len(lists.bits)):
        n0, n1 = g * lists.group, min((g + 1) * lists.group, lists.starts.size - 1)
        first, stop = int(lists.starts[n0]), int(lists.starts[n1])
        count = (stop - first) // (n1 - n0)
        outputs, own = empty_cpu((count,), np.int32), None if bias is None else empty_cpu((count,))
        _listed(lists.bits[g], lists.width, _AT, EMPTY if bias is None else bias, outputs, EMPTY if bias is None else own)
        yield slice(n0, n1), outputs, values[first:stop].reshape(n1 - n0, count), own


@host_kernel("void(i4[::1], i8, i4[::1], f4[::1], i4[::1], f4[::1])")
def _listed(bits, width, at, bias, outputs, own):
    """Write the outputs that a row of bits keeps, and their bias to `own`."""
    _outputs(bits, width, at, outputs)
    for k in range(own.size):
        own[k] = bias[outputs[k]]


# --- products ---------------------------------------------------------------------------------------------------------
BLOCK = 512  # number of columns of x in one pass, 256 KiB for 128 samples
REDUCE = f"llvm.vector.reduce.fadd.v{WIDTH}f32"


@intrinsic
def _four_dots(typing_context, x, first, second, third, fourth, w, at, length, sums):
    """sums[s] = x[p:p + length] . w[at:at + length], where p is offset s of the four offsets `first` … `fourth` into flat x."""

    def generate(context, builder, signature, arguments):
        x, *addresses, w, at, length, sums = data_of(context, builder, signature, arguments)
        zero = FLOATS([REAL(0.0)] * WIDTH)
        totals = [cgutils.alloca_once_value(builder, zero) for _ in addresses]
        with cgutils.for_range_slice(builder, NUMBER(0), length, NUMBER(WIDTH)) as (i, _):
            some = below(builder, builder.sub(length, i))
            row = load(builder, w, builder.add(at, i), some)
            for address, total in zip(addresses, totals):
                product = row * load(builder, x, builder.add(address, i), some)
                builder.store((Lanes(builder, builder.load(total)) + product).value, total)
        for s, total in enumerate(totals):
            reduced = builder.module.globals.get(REDUCE) or ir.Function(
                builder.module, ir.FunctionType(REAL, [REAL, FLOATS]), REDUCE
            )
            value = builder.call(reduced, [REAL(-0.0), builder.load(total)], fastmath=("reassoc",))
            builder.store(value, builder.gep(sums, [NUMBER(s)]))
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(x, integer, integer, integer, integer, w, integer, integer, sums), generate


@host_kernel("void(f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], i4[::1], f4[::1], b1, b1, f4[::1], i8, i8)")
def _dots(x, w, firsts, samples, positions, bias, biased, relu, values, first, stop):
    """Compute the values of the pairs of the outputs first … stop - 1, four samples of an output at a time."""
    sums, depth = np.empty(4, np.float32), x.shape[1]
    for d0 in range(0, max(depth, 1), BLOCK):
        length = min(BLOCK, depth - d0)
        for o in range(first, stop):
            added, last = bias[o] if biased else float32(0), firsts[o + 1] - 1
            for p in range(firsts[o], firsts[o + 1], 4):
                _four_dots(
                    x,
                    samples[p] * depth + d0,
                    samples[min(p + 1, last)] * depth + d0,
                    samples[min(p + 2, last)] * depth + d0,
                    samples[min(p + 3, last)] * depth + d0,
                    w,
                    o * depth + d0,
                    length,
                    sums,
                )
                for s in range(min(4, last + 1 - p)):
                    total = sums[s] + (values[positions[p + s]] if d0 else float32(0))
                    if d0 + BLOCK >= depth:
                        total += added
                        total = float32(0) if relu and total < 0 else total  # not max(total, 0), because NaN must stay NaN
                    values[positions[p + s]] = total


def dots(x, w, lists, bias, relu, values):
    """Compute values = act(x[n] . w[o] + bias[o]) of the kept pairs (n, o)."""
    by_output = pairs(lists)

    def work(part):
        span = part.of(lists.width)
        _dots(x, w, *by_output, EMPTY if bias is None else bias, bias is not None, relu, values, span.start, span.stop)

    threads.share(work, flops=2 * values.size * x.shape[1])
    return values


# number of columns of a weight or an activation that are summed at a time, in registers: 512 KiB for 2048 rows
COLUMNS = 4 * WIDTH


@intrinsic
def _sum_listed(typing_context, room, rows, positions, factors, first, stop, sums):
    """sums[v] = sum of factors[positions[p]] room[rows[p], v] for first <= p < stop; room (…, COLUMNS), sums (COLUMNS,)."""

    def generate(context, builder, signature, arguments):
        room, rows, positions, factors, first, stop, sums = data_of(context, builder, signature, arguments)
        totals = [cgutils.alloca_once_value(builder, FLOATS([REAL(0.0)] * WIDTH)) for _ in range(COLUMNS // WIDTH)]

        def vector(data, number):
            return builder.gep(builder.bitcast(data, FLOATS.as_pointer()), [NUMBER(number)])

        with cgutils.for_range_slice(builder, first, stop, NUMBER(1)) as (p, _):
            row = builder.sext(builder.load(builder.gep(rows, [p])), NUMBER)
            factor = builder.load(builder.gep(factors, [builder.sext(builder.load(builder.gep(positions, [p])), NUMBER)]))
            data, factor = builder.gep(room, [builder.mul(row, NUMBER(COLUMNS))]), spread(builder, factor)
            for v, total in enumerate(totals):
                product = Lanes(builder, builder.load(vector(data, v), align=4)) * factor
                builder.store((Lanes(builder, builder.load(total)) + product).value, total)
        for v, total in enumerate(totals):
            builder.store(builder.load(total), vector(sums, v), align=4)
        return context.get_dummy_value()

    return numba.void(room, rows, positions, factors, numba.int64, numba.int64, sums), generate


@host_kernel("void(f4[:, ::1], f4[::1], i4[::1], i4[::1], i4[::1], f4[:, ::1], f4[:, ::1], i8, i8)")
def _add_listed(source, factors, firsts, rows, positions, room, sums, first, stop):
    """sums[j] = sum of factors[positions[p]] source[rows[p]] over firsts[j] <= p < firsts[j + 1], for first <= j < stop. `room`
    (rows, COLUMNS) holds the columns of one pass.
    """
    total, width = np.empty(COLUMNS, np.float32), source.shape[1]
    for i0 in range(0, width, COLUMNS):
        length = min(COLUMNS, width - i0)
        for r in range(source.shape[0]):
            copy_floats(source, r * width + i0, room, r * COLUMNS, length)
        for j in range(first, stop):
            _sum_listed(room, rows, positions, factors, firsts[j], firsts[j + 1], total)
            copy_floats(total, 0, sums, j * width + i0, length)


def added(source, factors, firsts, rows, positions):
    """Return sums (firsts.size - 1, columns of `source`), computed on all threads: sums[j] = the sum of factors[positions[p]]
    source[rows[p]] over firsts[j] <= p < firsts[j + 1].
    """
    sums = empty_cpu((firsts.size - 1, source.shape[1]))

    def work(part):
        span = part.of(len(sums))
        _add_listed(source, factors, firsts, rows, positions, aligned(len(source), COLUMNS), sums, span.start, span.stop)

    threads.share(work, flops=2 * factors.size * source.shape[1])
    return sums


@host_kernel("void(f4[::1], i4[::1], i4[::1], f4[::1])")
def sum_pairs(dy, firsts, positions, sums):
    """sums[o] = sum of dy over the kept pairs of o"""
    for o in range(sums.size):
        total = float32(0)
        for p in range(firsts[o], firsts[o + 1]):
            total += dy[positions[p]]
        sums[o] = total
