"""Products of which each sample keeps its own outputs (`layouts.samples`): what is kept lies in one axis, value after value.

    gemm_samples       values = act(x[n] . w[o] + bias[o]) for the kept pairs (n, o)      x (N, I), w (O, I) -> (kept pairs,)
    gemm_samples_dx    dx[n] = sum of dy w[o] over the kept pairs of n                      dy (kept pairs,) -> (N, I)
    gemm_samples_dw    dw[o] = sum of dy x[n] over the kept pairs of o, db[o] = sum of dy  -> (O, I), (O,)
    expand_samples     the dense form (N, O) of values, 0 where nothing is kept
    compact_samples    its adjoint: the values of a dense array

On the CPU outputs that many samples keep together are dense products with listed rows (`host.listed`); where each sample
has its own, an output is multiplied with four of its samples at a time, in blocks of columns that a cache holds.
"""
from __future__ import annotations

import numpy as np
from numba import float32, int32, uint32

from ..host import samples as loops, threads
from ..host.listed import multiply_listed
from ..layouts.samples import WORD, sample_lists
from ..runtime.declare import cuda, inlined, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat
from .gemm import gemm_dw_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def mask_of(lists):
    """(N, O) bool, True where kept."""
    bits = np.asarray(lists.bits).view(np.uint32)
    own = (bits[:, :, None] >> np.arange(WORD, dtype=np.uint32) & 1).reshape(len(bits), bits.shape[1] * WORD)
    return own[:, :lists.width].astype(bool)[np.arange(lists.starts.size - 1) // lists.group]


def expand_samples_reference(values, lists):
    mask = mask_of(lists)
    dense = np.zeros(mask.shape)
    dense[mask] = values
    return dense


def compact_samples_reference(x, lists, kept):
    return np.float64(x)[mask_of(lists)]


def gemm_samples_reference(x, w, lists, kept, bias=None, relu=False):
    """act(x w.T + bias) where kept, in float64"""
    y = np.float64(x) @ np.float64(w).T + (0 if bias is None else np.float64(bias))
    return (np.maximum(y, 0) if relu else y)[mask_of(lists)]


def gemm_samples_dx_reference(dy, w, lists):
    return expand_samples_reference(dy, lists) @ np.float64(w)


def gemm_samples_dw_reference(dy, x, lists):
    """(dw, db) in float64"""
    dense = expand_samples_reference(dy, lists)
    return dense.T @ np.float64(x), dense.sum(0)


def _check(op, lists, values=None, **arrays):
    """How many samples there are; ValueError unless the arrays fit the lists."""
    samples = lists.starts.size - 1
    if samples < 0 or lists.group < 1 or lists.width < 0:
        raise ValueError(f"{op}: starts {lists.starts.shape} and groups of {lists.group} samples are no lists")
    words = ceil_div(lists.width, WORD)
    expect(op, bits=(lists.bits, (ceil_div(samples, lists.group), words), INT32), starts=(lists.starts, (samples + 1,), INT32),
           values=(values, ("kept",)), **arrays)
    return samples


# --- CPU --------------------------------------------------------------------------------------------------------------
TOGETHER = 16  # samples that share their outputs from which on products are dense


def _kept(op, lists, values=None, **arrays):
    """How many samples there are; ValueError unless the lists are whole, and the arrays fit them."""
    samples = _check(op, lists, values, **arrays)
    if loops.wrong(lists) or (values is not None and values.size != lists.starts[-1]):
        found = "" if values is None else f", or not {values.size} values"
        raise ValueError(f"{op}: starts do not count what the bits keep{found}")
    return samples


def _values(op, lists, kept):
    """An array for so many values, or ValueError where the lists have others."""
    if kept != lists.starts[-1]:
        raise ValueError(f"{op}: the lists have {lists.starts[-1]} values, not {kept}")
    return empty_cpu((kept,))


def expand_samples_cpu(values, lists):
    """x[n, o] = the value of the pair (n, o), 0 where it is not kept"""
    samples = _kept("expand_samples (cpu)", lists, values)
    return loops.move(empty_cpu((samples, lists.width)), values, lists, True)


def compact_samples_cpu(x, lists, kept):
    """values = x[n, o] of the kept pairs, so many of them"""
    _kept("compact_samples (cpu)", lists, x=(x, (lists.starts.size - 1, lists.width)))
    return loops.move(x, _values("compact_samples (cpu)", lists, kept), lists, False)


def gemm_samples_cpu(x, w, lists, kept, bias=None, relu=False):
    """values = act(x[n] . w[o] + bias[o]) of the kept pairs, so many of them"""
    op, samples = "gemm_samples (cpu)", lists.starts.size - 1
    _kept(op, lists, x=(x, (samples, "I")), w=(w, (lists.width, "I")), bias=(bias, (lists.width,)))
    values = _values(op, lists, kept)
    if lists.group < TOGETHER:
        return loops.dots(x, w, lists, bias, relu, values)
    groups = [(x[own], w, outputs, None, block, None if bias is None else bias[outputs], relu)
              for own, outputs, block in loops.blocks(lists, values)]
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
    _kept("gemm_samples_dx (cpu)", lists, dy, w=(w, (lists.width, "I")))
    outputs = np.empty(dy.size, np.int32)
    for _, found, block in loops.blocks(lists, outputs):
        block[:] = found
    return loops.added(w, dy, lists.starts, outputs, np.arange(dy.size, dtype=np.int32))


def gemm_samples_dw_cpu(dy, x, lists):
    """(dw, db): dw[o] = sum of dy x[n] over the kept pairs of o, db[o] = sum of dy"""
    _kept("gemm_samples_dw (cpu)", lists, dy, x=(x, (lists.starts.size - 1, "I")))
    firsts, samples, places = loops.pairs(lists)
    db = empty_cpu((lists.width,))
    loops.sum_pairs(dy, firsts, places, db)
    return loops.added(x, dy, firsts, samples, places), db


# --- CUDA -------------------------------------------------------------------------------------------------------------
WARPS, LANES = 4, 32  # words and outputs of a block
ROOM = WARPS * LANES * (LANES + 1)  # neighbouring rows begin in other banks


@kernels("sampled")
def _pairing():
    @inlined
    def ones(word):
        """How many bits are set, by bytes that are added up in one; Numba widens products of 32 bits to 64."""
        pairs = word - ((word >> uint32(1)) & uint32(0x55555555))
        fours = (pairs & uint32(0x33333333)) + ((pairs >> uint32(2)) & uint32(0x33333333))
        return int32((((fours + (fours >> uint32(4))) & uint32(0x0F0F0F0F)) * uint32(0x01010101)) >> uint32(24)) & int32(0xFF)

    @inlined
    def place_of(bits, starts, n, group, words, word):
        """Where the values of a word of a sample begin."""
        place = starts[n]
        for i in range(word):
            place += ones(uint32(bits[n // group * words + i]))
        return place

    @kernel("void(f4[::1], f4[::1], i4[::1], i4[::1], i4, i4, b1)")
    def move_samples(x, values, bits, starts, group, width, expanding):
        """One thread, one entry of the dense form."""
        i = cuda.grid(1)
        if i < x.size:
            n, o, words = i // width, i % width, (width + int32(31)) // int32(32)
            own = uint32(bits[n // group * words + o // 32])
            bit = uint32(1) << uint32(o % 32)
            place = place_of(bits, starts, n, group, words, o // 32) + ones(own & (bit - uint32(1)))
            there = (own & bit) != uint32(0) and 0 <= place < values.size
            if expanding:
                x[i] = values[place] if there else float32(0)
            elif there:
                values[place] = x[i]

    @kernel("void(f4[::1], f4[::1], i4[::1], i4[::1], i4, i4, i4, f4[::1], b1, b1, f4[::1])")
    def gemm_samples(x, w, bits, starts, group, width, depth, bias, biased, relu, values):
        """A warp has a word of a sample, a thread an output of it; rows of w that are kept come by way of shared memory."""
        rows, piece = cuda.shared.array(ROOM, float32), cuda.shared.array(LANES, float32)
        lane, warp, n = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), int32(cuda.blockIdx.x)
        word, words = int32(cuda.blockIdx.y * WARPS) + warp, (width + int32(31)) // int32(32)
        own = uint32(bits[n // group * words + word]) if word < words else uint32(0)
        mine, total = word * 32 + lane, float32(0)
        for i0 in range(0, depth, LANES):
            if warp == 0:
                piece[lane] = x[n * depth + i0 + lane] if i0 + lane < depth else float32(0)
            for r in range(LANES):
                inside = ((own >> uint32(r)) & uint32(1)) != uint32(0) and word * 32 + r < width and i0 + lane < depth
                at = (warp * LANES + r) * (LANES + 1) + lane
                rows[at] = w[(word * 32 + r) * depth + i0 + lane] if inside else float32(0)
            cuda.syncthreads()
            for i in range(LANES):
                total += piece[i] * rows[(warp * LANES + lane) * (LANES + 1) + i]
            cuda.syncthreads()
        bit = uint32(1) << uint32(lane)
        if (own & bit) != uint32(0) and mine < width:
            place = place_of(bits, starts, n, group, words, word) + ones(own & (bit - uint32(1)))
            total += bias[mine] if biased else float32(0)
            if 0 <= place < values.size:
                values[place] = float32(0) if relu and total < float32(0) else total

    @kernel("void(f4[::1], f4[::1], i4[::1], i4[::1], i4, i4, i4, f4[::1])")
    def gemm_samples_dx(dy, w, bits, starts, group, width, depth, dx):
        """One thread, one sum: neighbouring threads read neighbours of a row of w."""
        n, words = int32(cuda.blockIdx.x), (width + int32(31)) // int32(32)  # there may be more samples than blocks along y
        i = int32(cuda.blockIdx.y * THREADS + cuda.threadIdx.x)
        if i < depth:
            place, total = starts[n], float32(0)
            for word in range(words):
                own = uint32(bits[n // group * words + word])
                for b in range(32):
                    o = word * 32 + b
                    if ((own >> uint32(b)) & uint32(1)) != uint32(0) and o < width and 0 <= place < dy.size:
                        total += dy[place] * w[o * depth + i]
                        place += int32(1)
            dx[n * depth + i] = total

    return move_samples, gemm_samples, gemm_samples_dx


def _launch_move(x, values, lists, expanding):
    launch(_pairing()[0], blocks_for(x.size), THREADS, flat(x), values, flat(lists.bits), lists.starts, lists.group,
           lists.width, expanding)
    return x if expanding else values


def expand_samples_cuda(values, lists):
    samples = _check("expand_samples (cuda)", lists, values)
    return _launch_move(empty_cuda((samples, lists.width)), values, lists, True)


def compact_samples_cuda(x, lists, kept):
    _check("compact_samples (cuda)", lists, x=(x, (lists.starts.size - 1, lists.width)))
    return _launch_move(x, empty_cuda((kept,)), lists, False)


def gemm_samples_cuda(x, w, lists, kept, bias=None, relu=False):
    samples = lists.starts.size - 1
    _check("gemm_samples (cuda)", lists, x=(x, (samples, "I")), w=(w, (lists.width, "I")), bias=(bias, (lists.width,)))
    values = empty_cuda((kept,))
    launch(_pairing()[1], (samples, ceil_div(ceil_div(lists.width, WORD), WARPS)), (LANES, WARPS), flat(x), flat(w),
           flat(lists.bits), lists.starts, lists.group, lists.width, x.shape[1], values if bias is None else bias,
           bias is not None, relu, values)
    return values


def gemm_samples_dx_cuda(dy, w, lists):
    samples = _check("gemm_samples_dx (cuda)", lists, dy, w=(w, (lists.width, "I")))
    dx = empty_cuda((samples, w.shape[1]))
    launch(_pairing()[2], (samples, blocks_for(w.shape[1])), THREADS, dy, flat(w), flat(lists.bits), lists.starts, lists.group,
           lists.width, w.shape[1], flat(dx))
    return dx


def gemm_samples_dw_cuda(dy, x, lists):
    _check("gemm_samples_dw (cuda)", lists, dy, x=(x, (lists.starts.size - 1, "I")))
    return gemm_dw_cuda(expand_samples_cuda(dy, lists), x)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    def lists(group):
        mask = np.random.default_rng(5).random((ceil_div(N, group), O)) < 0.4
        return sample_lists(mask, N, group)

    own = lists(1)
    kept = int(own.starts[-1])
    return {
        "expand_samples": lambda: dev.expand_samples(a(kept), own),
        "compact_samples": lambda: dev.compact_samples(a(N, O), own, kept),
        "gemm_samples": lambda: dev.gemm_samples(a(N, I), a(O, I), own, kept, a(O), relu=True),
        "gemm_samples, together": lambda: dev.gemm_samples(a(N, I), a(O, I), lists(32), int(lists(32).starts[-1])),
        "gemm_samples_dx": lambda: dev.gemm_samples_dx(a(kept), a(O, I), own),
        "gemm_samples_dw": lambda: dev.gemm_samples_dw(a(kept), a(N, I), own),
    }
