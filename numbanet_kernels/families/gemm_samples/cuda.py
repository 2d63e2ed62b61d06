"""`gemm_samples` on CUDA."""

from __future__ import annotations

from numba import float32, int32, uint32

from ...layouts.samples import WORD
from ...runtime.declare import cuda, inlined, kernel, kernels
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import THREADS, blocks_for, empty_cuda, flat
from ..gemm import gemm_dw_cuda
from .family import check

WARPS, LANES = 4, 32  # number of words of a block, one per warp, and number of outputs of a word
ROOM = WARPS * LANES * (LANES + 1)  # with rows of LANES + 1 floats there are no bank conflicts


def _positions():
    """Return two device functions: `ones` counts the set bits of a word, and `position_of` returns the offset of the values
    of a word of a sample. Each factory makes its own pair.
    """

    @inlined
    def ones(word):
        """Return the number of set bits of the 32-bit `word`. It counts within pairs of bits, then groups of four, then bytes;
        a product sums the bytes. The sum is cast to 32 bits, because Numba widens products of 32-bit integers to 64 bits.
        """
        pairs = word - ((word >> uint32(1)) & uint32(0x55555555))
        fours = (pairs & uint32(0x33333333)) + ((pairs >> uint32(2)) & uint32(0x33333333))
        return int32((((fours + (fours >> uint32(4))) & uint32(0x0F0F0F0F)) * uint32(0x01010101)) >> uint32(24)) & int32(0xFF)

    @inlined
    def position_of(bits, starts, n, group, words, word):
        """Return the offset in `values` of the first kept output of word number `word` of sample n."""
        position = starts[n]
        for i in range(word):
            position += ones(uint32(bits[n // group * words + i]))
        return position

    return ones, position_of


@kernels("gemm_samples")
def _move_kernel():
    ones, position_of = _positions()

    @kernel("void(f4[::1], f4[::1], i4[::1], i4[::1], i4, i4, b1)")
    def move_samples(x, values, bits, starts, group, width, expanding):
        """Each thread copies one entry of the dense form."""
        i = cuda.grid(1)
        if i < x.size:
            n, o, words = i // width, i % width, (width + int32(31)) // int32(32)
            word = uint32(bits[n // group * words + o // 32])
            bit = uint32(1) << uint32(o % 32)
            position = position_of(bits, starts, n, group, words, o // 32) + ones(word & (bit - uint32(1)))
            kept = (word & bit) != uint32(0) and 0 <= position < values.size
            if expanding:
                x[i] = values[position] if kept else float32(0)
            elif kept:
                values[position] = x[i]

    return move_samples


@kernels("gemm_samples")
def _product_kernels():
    ones, position_of = _positions()

    @kernel("void(f4[::1], f4[::1], i4[::1], i4[::1], i4, i4, i4, f4[::1], b1, b1, f4[::1])")
    def gemm_samples(x, w, bits, starts, group, width, depth, bias, biased, relu, values):
        """Each warp computes the outputs of one word of a sample, and each thread computes one output. The kept rows of w are
        first loaded into shared memory.
        """
        rows, piece = cuda.shared.array(ROOM, float32), cuda.shared.array(LANES, float32)
        lane, warp, n = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), int32(cuda.blockIdx.x)
        word, words = int32(cuda.blockIdx.y * WARPS) + warp, (width + int32(31)) // int32(32)
        bits_of_word = uint32(bits[n // group * words + word]) if word < words else uint32(0)
        o, total = word * 32 + lane, float32(0)
        for i0 in range(0, depth, LANES):
            if warp == 0:
                piece[lane] = x[n * depth + i0 + lane] if i0 + lane < depth else float32(0)
            for r in range(LANES):
                inside = ((bits_of_word >> uint32(r)) & uint32(1)) != uint32(0) and word * 32 + r < width and i0 + lane < depth
                at = (warp * LANES + r) * (LANES + 1) + lane
                rows[at] = w[(word * 32 + r) * depth + i0 + lane] if inside else float32(0)
            cuda.syncthreads()
            for i in range(LANES):
                total += piece[i] * rows[(warp * LANES + lane) * (LANES + 1) + i]
            cuda.syncthreads()
        bit = uint32(1) << uint32(lane)
        if (bits_of_word & bit) != uint32(0) and o < width:
            position = position_of(bits, starts, n, group, words, word) + ones(bits_of_word & (bit - uint32(1)))
            total += bias[o] if biased else float32(0)
            if 0 <= position < values.size:
                values[position] = float32(0) if relu and total < float32(0) else total

    @kernel("void(f4[::1], f4[::1], i4[::1], i4[::1], i4, i4, i4, f4[::1])")
    def gemm_samples_dx(dy, w, bits, starts, group, width, depth, dx):
        """Each thread computes one entry of dx; adjacent threads read adjacent columns of w."""
        # n along x, because the grid has fewer than 65,536 blocks along y
        n, words = int32(cuda.blockIdx.x), (width + int32(31)) // int32(32)
        i = int32(cuda.blockIdx.y * THREADS + cuda.threadIdx.x)
        if i < depth:
            position, total = starts[n], float32(0)
            for word in range(words):
                bits_of_word = uint32(bits[n // group * words + word])
                for b in range(32):
                    o = word * 32 + b
                    if ((bits_of_word >> uint32(b)) & uint32(1)) != uint32(0) and o < width and 0 <= position < dy.size:
                        total += dy[position] * w[o * depth + i]
                        position += int32(1)
            dx[n * depth + i] = total

    return gemm_samples, gemm_samples_dx


def _launch_move(x, values, lists, expanding):
    launch(
        _move_kernel(),
        blocks_for(x.size),
        THREADS,
        flat(x),
        values,
        flat(lists.bits),
        lists.starts,
        lists.group,
        lists.width,
        expanding,
    )
    return x if expanding else values


def expand_samples_cuda(values, lists):
    samples = check("expand_samples (cuda)", lists, values)
    return _launch_move(empty_cuda((samples, lists.width)), values, lists, True)


def compact_samples_cuda(x, lists, count):
    check("compact_samples (cuda)", lists, x=(x, (lists.starts.size - 1, lists.width)))
    return _launch_move(x, empty_cuda((count,)), lists, False)


def gemm_samples_cuda(x, w, lists, count, bias=None, relu=False):
    samples = lists.starts.size - 1
    check("gemm_samples (cuda)", lists, x=(x, (samples, "I")), w=(w, (lists.width, "I")), bias=(bias, (lists.width,)))
    values = empty_cuda((count,))
    launch(
        _product_kernels()[0],
        (samples, ceil_div(ceil_div(lists.width, WORD), WARPS)),
        (LANES, WARPS),
        flat(x),
        flat(w),
        flat(lists.bits),
        lists.starts,
        lists.group,
        lists.width,
        x.shape[1],
        values if bias is None else bias,
        bias is not None,
        relu,
        values,
    )
    return values


def gemm_samples_dx_cuda(dy, w, lists):
    samples = check("gemm_samples_dx (cuda)", lists, dy, w=(w, (lists.width, "I")))
    dx = empty_cuda((samples, w.shape[1]))
    launch(
        _product_kernels()[1],
        (samples, blocks_for(w.shape[1])),
        THREADS,
        dy,
        flat(w),
        flat(lists.bits),
        lists.starts,
        lists.group,
        lists.width,
        w.shape[1],
        flat(dx),
    )
    return dx


def gemm_samples_dw_cuda(dy, x, lists):
    check("gemm_samples_dw (cuda)", lists, dy, x=(x, (lists.starts.size - 1, "I")))
    return gemm_dw_cuda(expand_samples_cuda(dy, lists), x)
