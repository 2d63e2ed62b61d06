"""`gemm_samples` on the CPU."""

from __future__ import annotations

from ...host import threads
from ...host.gathered_gemm import multiply_listed
from ...host.packed_gemm import all_of
from ...runtime.declare import tape
from ...runtime.memory import empty_cpu
from . import cpu_loops
from .family import check

TOGETHER = 16  # if at least this many samples have the same outputs, their products are dense


def _checked(op, lists, values=None, **arrays):
    """Check the lists and arrays, and return the number of samples; raise ValueError unless they fit together. During a
    recording the bits are not checked: replays read those of other plans of the same kind, which have the same starts.
    """
    samples = check(op, lists, values, **arrays)
    if (tape.get() is None and cpu_loops.wrong(lists)) or (values is not None and values.size != lists.starts[-1]):
        mismatch = "" if values is None else f", or not {values.size} values"
        raise ValueError(f"{op}: starts do not match the number of bits set{mismatch}")
    return samples


def _values(op, lists, count):
    """Return a new array for `count` values; raise ValueError if the lists do not keep `count` pairs."""
    if count != lists.starts[-1]:
        raise ValueError(f"{op}: the lists have {lists.starts[-1]} values, not {count}")
    return empty_cpu((count,))


def expand_samples_cpu(values, lists):
    """x[n, o] = the value of the pair (n, o), 0 if it is dropped"""
    samples = _checked("expand_samples (cpu)", lists, values)
    return cpu_loops.move(empty_cpu((samples, lists.width)), values, lists, True)


def compact_samples_cpu(x, lists, count):
    """values = x[n, o] of the kept pairs (n, o); `count` is their number"""
    _checked("compact_samples (cpu)", lists, x=(x, (lists.starts.size - 1, lists.width)))
    return cpu_loops.move(x, _values("compact_samples (cpu)", lists, count), lists, False)


def gemm_samples_cpu(x, w, lists, count, bias=None, relu=False):
    """values = act(x[n] . w[o] + bias[o]) of the kept pairs; `count` is their number"""
    op, samples = "gemm_samples (cpu)", lists.starts.size - 1
    _checked(op, lists, x=(x, (samples, "I")), w=(w, (lists.width, "I")), bias=(bias, (lists.width,)))
    values = _values(op, lists, count)
    if lists.group < TOGETHER:
        return cpu_loops.dots(x, w, lists, bias, relu, values)
    groups = [
        (x[group], w, outputs, None, block, own, relu) for group, outputs, block, own in cpu_loops.blocks(lists, values, bias)
    ]
    flops = 2 * values.size * x.shape[1]
    if not threads.worthwhile(flops=flops) or len(groups) % threads.count():
        for group in groups:
            multiply_listed(*group)
        return values

    def work(part):
        for group in groups[part.of(len(groups))]:
            multiply_listed(*group, alone=True)

    threads.share(work)
    return values


def gemm_samples_dx_cpu(dy, w, lists):
    """dx[n] = sum of dy w[o] over the kept pairs of n"""
    _checked("gemm_samples_dx (cpu)", lists, dy, w=(w, (lists.width, "I")))
    return cpu_loops.added(w, dy, lists.starts, cpu_loops.listed(lists), all_of(dy.size))


def gemm_samples_dw_cpu(dy, x, lists):
    """Return (dw, db), where dw[o] = sum of dy x[n] over the kept pairs of o, and db[o] = sum of dy over them."""
    _checked("gemm_samples_dw (cpu)", lists, dy, x=(x, (lists.starts.size - 1, "I")))
    firsts, samples, positions = cpu_loops.pairs(lists)
    db = empty_cpu((lists.width,))
    cpu_loops.sum_pairs(dy, firsts, positions, db)
    return cpu_loops.added(x, dy, firsts, samples, positions), db
