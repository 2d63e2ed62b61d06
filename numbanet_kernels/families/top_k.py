"""Operations that select the outputs to compute from estimates of their values:

    scores     s[o] = sum_n max(0, x[n] . w[o] + bias[o])      x (N, I), w (O, I), bias (O,) or None -> s (O,)
    top_k      sets bit o of row n if v[n, o] is one of the k largest values of row n; of equal values, the first ones are taken
               v (N, O) -> bits (N, words of 32 bits)
    above      sets bit o of row n if v[n, o] is not below a threshold      v (N, O) -> bits (N, words of 32 bits)
    bit_lists  lists the bits that are set among the first n, in increasing order, and for each bit its position in this list,
               -1 if it is not set; k bits must be set      bits (1, words) -> inverse (n,), indices (k,) int32

Scores are the outputs after ReLU, summed over samples. The CPU never stores the product (N, O); CUDA stores it until it is
summed. The k-th largest value is found by bisection on integers: the bits of floats, read as integers, sort like the floats if
those of a negative float are replaced by minus the bits of its absolute value.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import float32, int32, int64

from ..host import packed_gemm, threads
from ..host.packed_gemm import multiply_panel
from ..host.simd import WIDTH
from ..host.transpose import EMPTY
from ..layouts.samples import WORD, sample_lists
from ..runtime.declare import cuda, host_function, host_kernel, inlined, kernel, kernels
from ..runtime.expect import INT32, expect, shapes
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, assign, blocks_for, copy_cuda, empty_cpu, empty_cuda, flat
from .gemm import gemm_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def scores_reference(x, w, bias=None):
    """Return s = the sum of max(0, x w.T + bias) over samples, in float64."""
    return np.maximum(np.float64(x) @ np.float64(w).T + (0 if bias is None else np.float64(bias)), 0).sum(0)


def _bits(mask):
    """Return the mask as words of 32 bits, int32."""
    return sample_lists(mask, len(mask), 1).bits


def top_k_reference(v, k):
    order = np.argsort(-np.float64(v), axis=1, kind="stable")[:, :k]
    mask = np.zeros(v.shape, bool)
    np.put_along_axis(mask, order, True, axis=1)
    return _bits(mask)


def above_reference(v, threshold):
    return _bits(np.asarray(v) >= np.float32(threshold))


def bit_lists_reference(bits, n, k):
    mask = np.unpackbits(np.asarray(bits, "<i4").view(np.uint8), bitorder="little")[:n]
    return np.where(mask, np.cumsum(mask, dtype=np.int64) - 1, -1), np.flatnonzero(mask)


def _lists(op, empty, bits, n, k):
    """Return arrays for the two lists of `bit_lists`; raise ValueError unless the bits are those of a row of n values."""
    if not 0 <= k <= n:
        raise ValueError(f"{op}: {k} of {n} bits cannot be set")
    expect(op, bits=(bits, (1, ceil_div(n, WORD)), INT32))
    return empty((n,), np.int32), empty((k,), np.int32)


def _words(op, empty, v, k=0):
    """Return an array for the bits of v (N, O); raise ValueError unless rows have at least k values."""
    n, outputs = expect(op, v=(v, ("N", "O"))) and v.shape
    if not 0 <= k <= outputs:
        raise ValueError(f"{op}: cannot take the {k} largest of rows of {outputs}")
    return empty((n, ceil_div(outputs, WORD)), np.int32)


_CHECKS = {op: shapes(op, x="NI", w="OI", bias="O") for op in ("scores (cpu)", "scores (cuda)")}


# --- CPU --------------------------------------------------------------------------------------------------------------
# Few samples, and a weight that stays for many steps: BLAS would pack the weight in each step, which takes longer than the
# product.
@host_kernel("void(f4[:, :, ::1], i8, f4[:, :, :, ::1], i4[::1], f4[::1], b1, f4[::1], i8, i8)")
def _scores(x, samples, panels, rows, bias, biased, sums, first, stop):
    """Compute the scores of the panels first … stop - 1, of WIDTH rows of w each; x (tiles, depth, samples of a tile)."""
    size = x.shape[2]
    values = np.empty((size, WIDTH), np.float32)
    for b in range(first, stop):
        panel_sums, o = sums[b * WIDTH : (b + 1) * WIDTH], b * WIDTH
        panel_sums[:] = 0
        for t in range(x.shape[0]):
            multiply_panel(x[t], panels[0, b], rows, values)
            for r in range(min(size, samples - t * size)):
                for v in range(panel_sums.size):
                    value = values[r, v] + (bias[o + v] if biased else float32(0))
                    panel_sums[v] += float32(0) if value < 0 else value  # not max(value, 0), because NaN must stay NaN


def scores_packed_cpu(w, out=None, first=0):
    """packed = w in the form that `scores` reads; it can be used again as long as w does not change.

    If only some rows have changed, w may hold only the changed rows, which begin at row `first`, a multiple of WIDTH; `out` is
    then the packed form of all rows.
    """
    op = "scores_packed (cpu)"
    expect(op, w=(w, ("O", "I")))
    panels = packed_gemm.packed_outputs(w, _numbers(w.shape[1]), 1, lambda work: threads.share(work, w.size))
    if out is None:
        return panels
    panel_range = slice(first // WIDTH, first // WIDTH + panels.shape[1])
    count = expect(op, out=(out, (1, "panels", w.shape[1] + 1, WIDTH)))["panels"]
    if first % WIDTH or first < 0 or panel_range.stop > count or (len(w) % WIDTH and panel_range.stop < count):
        raise ValueError(f"{op}: {len(w)} rows from {first} on must be whole panels of {WIDTH} rows, of {count} rows")
    out[:, panel_range] = panels
    return out


_numbers = functools.lru_cache(maxsize=64)(lambda n: np.arange(n, dtype=np.int32))


def scores_cpu(x, w, bias=None, packed=None):
    """s[o] = sum_n max(0, x[n] . w[o] + bias[o]); `packed` is the result of `scores_packed` for w"""
    n, inputs, outputs = _CHECKS["scores (cpu)"](x, w, bias)
    packed = scores_packed_cpu(w) if packed is None else packed
    expect("scores (cpu)", packed=(packed, (1, ceil_div(outputs, WIDTH), inputs + 1, WIDTH)))
    rows, depth = packed_gemm.all_rows(inputs)
    size, sums = packed_gemm.tile_of(n), empty_cpu((outputs,))
    tiles = packed_gemm.tiles(n, size, depth)[0]
    for t, tile in enumerate(tiles):
        some = x[t * size : (t + 1) * size]
        assign(some.T, out=tile[:inputs, : len(some)])

    def work(part):
        span = part.of(packed.shape[1])
        _scores(tiles, n, packed, rows[0], EMPTY if bias is None else bias, bias is not None, sums, span.start, span.stop)

    threads.share(work, flops=2 * x.size * outputs)
    return sums


@host_function
def _order(v):
    """Return integers that sort like the floats whose bits are v; -0 is 0."""
    return int32(-2147483648) - v if v < 0 else v


@host_kernel("void(i4[:, ::1], i8, i4[:, ::1], i8, i8)")
def _top_k(v, k, bits, first, stop):
    """Compute the bits of the rows first … stop - 1 of `top_k`; v holds the bits of floats."""
    keys = np.empty(v.shape[1], np.int32)
    for n in range(first, stop):
        bits[n] = 0
        for o in range(keys.size):
            keys[o] = _order(v[n, o])
        low, high = int64(-(1 << 31)), int64(1 << 31)  # at least k values are >= low, and fewer than k are >= high
        while high - low > 1 and k > 0:
            middle, count = (low + high) >> 1, int32(0)
            least = int32(middle)
            for o in range(keys.size):
                count += int32(keys[o] >= least)
            low, high = (middle, high) if count >= k else (low, middle)
        least, left = int32(low), int32(k)
        for o in range(keys.size):
            left -= int32(keys[o] > least)
        for o in range(keys.size if k > 0 else 0):
            tie = keys[o] == least and left > 0
            left -= int32(tie)
            if keys[o] > least or tie:
                bits[n, o // 32] |= int32(1) << int32(o % 32)


@host_kernel("void(f4[:, ::1], f4, i4[:, ::1], i8, i8)")
def _above(v, threshold, bits, first, stop):
    for n in range(first, stop):
        bits[n] = 0
        for o in range(v.shape[1]):
            bits[n, o // 32] |= int32(v[n, o] >= threshold) << int32(o % 32)


def _by_rows(loop, v, given, bits):
    def work(part):
        span = part.of(len(v))
        loop(v, given, bits, span.start, span.stop)

    threads.share(work, 16 * v.size)
    return bits


def top_k_cpu(v, k):
    """bit o of row n = 1 if v[n, o] is one of the k largest values of row n, else 0

    Of equal values, the first ones are taken. NaN counts as the largest value or, if its sign bit is set, as the smallest.
    """
    bits = _words("top_k (cpu)", empty_cpu, v, k)
    return _by_rows(_top_k, v.view(np.int32), k, bits)


def above_cpu(v, threshold):
    """bit o of row n = 1 if v[n, o] is not below the threshold, else 0"""
    return _by_rows(_above, v, threshold, _words("above (cpu)", empty_cpu, v))


@host_kernel("void(i4[:, ::1], i4[::1], i4[::1])")
def _bit_lists(bits, inverse, indices):
    count, indices[:] = 0, 0  # if fewer bits are set, the rest of the list is valid, too
    for o in range(inverse.size):
        inverse[o] = -1
        if (bits[0, o // 32] >> int32(o % 32)) & int32(1) and count < indices.size:
            inverse[o], indices[count] = count, o
            count += 1


def bit_lists_cpu(bits, n, k):
    """indices = the bits that are set among the first n, increasing; inverse[o] = the position of bit o in indices, or -1

    bits (1, words), of which k bits are set -> (inverse (n,), indices (k,)), int32
    """
    inverse, indices = _lists("bit_lists (cpu)", empty_cpu, bits, n, k)
    _bit_lists(bits, inverse, indices)
    return inverse, indices


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("top_k")
def _summing():
    @kernel("void(f4[::1], f4[::1], b1, f4[::1], i4)")
    def sum_positive(values, bias, biased, sums, samples):
        """Each thread computes the sum of one output; adjacent threads read adjacent columns."""
        o = cuda.grid(1)
        if o < sums.size:
            total, added = float32(0), bias[o] if biased else float32(0)
            for n in range(samples):
                value = values[n * sums.size + o] + added
                if not value < float32(0):  # NaN stays NaN
                    total += value
            sums[o] = total

    return sum_positive


@kernels("top_k")
def _choosing():
    @inlined
    def order_of(v):
        return int32(int32(-2147483648) - v) if v < int32(0) else v

    @kernel("void(i4[::1], i4[::1], i4, i4)")
    def top_k(v, bits, outputs, k):
        """Each block selects in one row: all threads count, to find the k-th largest value; then one thread sets the bits."""
        counts = cuda.shared.array(THREADS, int32)
        t, n = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
        words = (outputs + int32(31)) // int32(32)
        least, step = int32(-2147483648), int32(0)
        for power in range(32):  # from the highest bit on, the bound is raised if at least k values are not below it
            step = int32(-2147483648) if power == 0 else int32(1) << int32(31 - power)
            trial, count = least ^ step if power == 0 else least | step, int32(0)
            for o in range(t, outputs, THREADS):
                count += int32(1) if order_of(v[n * outputs + o]) >= trial else int32(0)
            counts[t] = count
            cuda.syncthreads()
            half = THREADS // 2
            while half > 0:
                if t < half:
                    counts[t] += counts[t + half]
                cuda.syncthreads()
                half //= 2
            least = trial if counts[0] >= k else least
            cuda.syncthreads()
        if t == 0:
            left = k
            for o in range(outputs):
                left -= int32(1) if order_of(v[n * outputs + o]) > least else int32(0)
            for word in range(words):
                selected = int32(0)
                for b in range(32):
                    o = word * 32 + b
                    if o < outputs and k > 0:
                        key = order_of(v[n * outputs + o])
                        if key > least or (key == least and left > 0):
                            selected |= int32(1) << int32(b)
                            left -= int32(1) if key == least else int32(0)
                bits[n * words + word] = selected

    @kernel("void(f4[::1], f4, i4[::1], i4)")
    def above(v, threshold, bits, outputs):
        """Each thread computes one word of bits."""
        i, words = cuda.grid(1), (outputs + int32(31)) // int32(32)
        if i < bits.size:
            selected, first = int32(0), i // words * outputs
            for b in range(32):
                o = i % words * 32 + b
                if o < outputs and v[first + o] >= threshold:
                    selected |= int32(1) << int32(b)
            bits[i] = selected

    return top_k, above


def top_k_cuda(v, k):
    bits = _words("top_k (cuda)", empty_cuda, v, k)
    launch(_choosing()[0], v.shape[0] if bits.size else 0, THREADS, flat(v).view(np.int32), flat(bits), v.shape[1], k)
    return bits


def above_cuda(v, threshold):
    bits = _words("above (cuda)", empty_cuda, v)
    launch(_choosing()[1], blocks_for(bits.size), THREADS, flat(v), threshold, flat(bits), v.shape[1])
    return bits


@kernels("top_k")
def _listing():
    @kernel("void(i4[::1], i4[::1], i4[::1])")
    def bit_lists(bits, inverse, indices):
        """Each thread places one bit: it counts the bits that are set before. Thread n - 1 fills what is left of the list."""
        o = cuda.grid(1)
        if o < inverse.size:
            word, place = o // 32, int32(0)
            for i in range(word):
                place += int32(cuda.popc(bits[i]))
            place += int32(cuda.popc(bits[word] & ((int32(1) << int32(o % 32)) - int32(1))))
            chosen = (bits[word] >> int32(o % 32)) & int32(1) and place < indices.size
            inverse[o] = place if chosen else int32(-1)
            if chosen:
                indices[place] = o
            if o == inverse.size - 1:
                for i in range(place + int32(chosen), indices.size):
                    indices[i] = 0

    return bit_lists


def bit_lists_cuda(bits, n, k):
    inverse, indices = _lists("bit_lists (cuda)", empty_cuda, bits, n, k)
    launch(_listing(), blocks_for(n), THREADS, flat(bits), inverse, indices)
    return inverse, indices


def scores_packed_cuda(w, out=None, first=0):
    """packed = w itself, because CUDA packs nothing; if `out` is given, the changed rows w are copied into it."""
    if out is None:
        return w
    sizes = expect("scores_packed (cuda)", w=(w, ("O", "I")), out=(out, ("all", "I")))
    if not 0 <= first <= sizes["all"] - sizes["O"]:
        raise ValueError(f"scores_packed (cuda): rows {first} to {first + sizes['O']} are outside {sizes['all']} rows")
    copy_cuda(w, out[first : first + sizes["O"]])
    return out


def scores_cuda(x, w, bias=None, packed=None):
    _CHECKS["scores (cuda)"](x, w, bias)
    values, sums = gemm_cuda(x, w, tb=True), empty_cuda((w.shape[0],))
    launch(
        _summing(),
        blocks_for(sums.size),
        THREADS,
        flat(values),
        sums if bias is None else bias,
        bias is not None,
        sums,
        x.shape[0],
    )
    return sums


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "scores": lambda: dev.scores(a(16, I), a(2 * O, I), a(2 * O)),
        "top_k": lambda: dev.top_k(a(N, O), O // 3),
        "above": lambda: dev.above(a(N, O), 0.5),
        "bit_lists": lambda: dev.bit_lists(_bits(np.arange(8 * O)[None] % 3 == 0), 8 * O, ceil_div(8 * O, 3)),
    }
