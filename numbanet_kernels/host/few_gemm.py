"""Products of few samples, such as one that is predicted, with a weight that is not packed:

    y[n, o] = act(scale * sum_i x[n, i] w[o, i] + bias[o])      x (N, I), w (O, I) -> y (N, O), act the identity or ReLU

The order of the sum over i does not depend on N, so the result for a sample is the same to the last bit for any N. BLAS has
other kernels for few samples, which add in another order. w is read once, and for one sample this takes most of the time.
"""

from __future__ import annotations

import numba
from numba import float32
from numba.core import cgutils
from numba.extending import intrinsic

from ..runtime.declare import host_kernel
from ..runtime.expect import shapes
from ..runtime.memory import empty_cpu
from . import threads
from .simd import FLOATS, NUMBER, REAL, WIDTH, below, data_of, load, multiply_add, sum_of_lanes
from .transpose import EMPTY

OUTPUTS, SAMPLES = 4, 4 if WIDTH == 16 else 2  # size of a block, whose sums stay in registers


def _block(builder, x_rows, w_rows, depth):
    """Generate the dot products of all pairs of the given rows of x and of w, which have `depth` elements. Return them as
    [output][sample]. Each dot product has WIDTH partial sums, which are added at the end.
    """
    sums = [[cgutils.alloca_once_value(builder, FLOATS([REAL(0.0)] * WIDTH)) for _ in x_rows] for _ in w_rows]

    def add(at, some=None):
        xs = [load(builder, row, at, some).value for row in x_rows]
        for row, totals in zip(w_rows, sums):
            part = load(builder, row, at, some).value
            for x, total in zip(xs, totals):
                builder.store(multiply_add(builder, part, x, builder.load(total)), total)

    whole = builder.and_(depth, NUMBER(-WIDTH))
    with cgutils.for_range_slice(builder, NUMBER(0), whole, NUMBER(WIDTH)) as (at, _):
        add(at)
    rest = builder.sub(depth, whole)
    with builder.if_then(builder.icmp_signed(">", rest, NUMBER(0))):
        add(whole, below(builder, rest))
    return [[sum_of_lanes(builder, builder.load(total)) for total in totals] for totals in sums]


@intrinsic
def _multiply_block(typing_context, x, w, y, samples, first, stop):
    """y[n, o] = sum_i x[n, i] w[o, i] for `samples` samples and the outputs first … min(first + OUTPUTS, stop) - 1."""

    def generate(context, builder, signature, arguments):
        x, w, y, samples, first, stop = data_of(context, builder, signature, arguments)
        depth, width = (
            builder.extract_value(context.make_array(kind)(context, builder, value).shape, 1)
            for kind, value in zip(signature.args[1:3], arguments[1:3])
        )
        last = builder.sub(stop, NUMBER(1))
        outputs = [first]  # if there are fewer outputs, the last one is computed several times, each time with the same value
        for i in range(1, OUTPUTS):
            here = builder.add(first, NUMBER(i))
            outputs.append(builder.select(builder.icmp_signed("<", here, last), here, last))
        w_rows = [builder.gep(w, [builder.mul(o, depth)]) for o in outputs]

        def blocks(start, end, count):
            with cgutils.for_range_slice(builder, start, end, NUMBER(count)) as (n, _):
                rows = [builder.add(n, NUMBER(i)) for i in range(count)]
                results = _block(builder, [builder.gep(x, [builder.mul(row, depth)]) for row in rows], w_rows, depth)
                for o, sums in zip(outputs, results):
                    for row, value in zip(rows, sums):
                        builder.store(value, builder.gep(y, [builder.add(builder.mul(row, width), o)]))

        whole = builder.and_(samples, NUMBER(-SAMPLES))
        blocks(NUMBER(0), whole, SAMPLES)
        blocks(whole, samples, 1)
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(x, w, y, integer, integer, integer), generate


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[::1], b1, b1, f4, f4[:, ::1], i8, i8)")
def _multiply(x, w, bias, biased, relu, scale, y, first, stop):
    """Compute the outputs first … stop - 1 of y for all samples."""
    for o in range(first, stop, OUTPUTS):
        _multiply_block(x, w, y, x.shape[0], o, stop)
    for n in range(y.shape[0]):
        for o in range(first, stop):
            value = scale * y[n, o]
            if biased:
                value += bias[o]
            if relu and value < 0:  # not max(value, 0), because NaN must stay NaN
                value = float32(0)
            y[n, o] = value


_CHECK = shapes("gemm_few (cpu)", x="NI", w="OI", bias="O")


def multiply_few(x, w, bias=None, relu=False, scale=1.0):
    """Return act(scale * x w.T + bias), where act is ReLU if `relu`, else the identity."""
    samples, depth, outputs = _CHECK(x, w, bias)
    y = empty_cpu((samples, outputs))

    def work(part):
        span = part.of(outputs)
        _multiply(x, w, EMPTY if bias is None else bias, bias is not None, relu, scale, y, span.start, span.stop)

    # the number of FLOPs decides, not the size of w: waking a thread takes longer than reading w
    threads.share(work, flops=2 * y.size * depth)
    return y
