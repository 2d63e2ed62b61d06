"""Blocks that divide one product along k, for `gemm_block`: each stores its sums, and the block that ends last adds up all."""

from __future__ import annotations

from numba import float32, int32

from ..runtime.declare import cuda, inlined
from .copies import THREADS
from .intrinsics import fence, parking


def split_products(zeros, each, summed):
    """Return device functions for blocks that divide one product along k; each factory makes its own (`inlined`)."""
    park, add_parked = parking(THREADS)

    @inlined
    def last_to_park(sums, a_sum, parked, at, tickets, ticket, number, parts, t):
        """Store the sums of a block; return True if all other blocks have already stored theirs."""
        park(sums, parked, at)
        if summed:
            park((a_sum,), parked, at + (each - 1) * THREADS)
        cuda.syncthreads()
        if t == 0:  # the fences make the sums of all threads visible before the ticket is, and those of other blocks after it
            fence()
            ticket[0] = cuda.atomic.add(tickets, number, int32(1))
            fence()
        cuda.syncthreads()
        last = ticket[0] == parts - 1
        if last and t == 0:
            cuda.atomic.exch(tickets, number, int32(0))
        return last

    @inlined
    def all_parked(parked, at, further, parts):
        """Return the sums of all parts, added in the order of k."""
        sums, a_sum = zeros(), float32(0)
        for _ in range(parts):
            sums = add_parked(sums, parked, at)
            if summed:
                (a_sum,) = add_parked((a_sum,), parked, at + (each - 1) * THREADS)
            at += further
        return sums, a_sum

    @inlined
    def add_parts(sums, a_sum, parked, tickets, ticket, t):
        """Store the sums of a block; if it is the last block of its product, add up those of all blocks instead. Return (True
        if it is the last block, the sums of all blocks).
        """
        part, parts = int32(cuda.blockIdx.z), int32(cuda.gridDim.z)
        number, blocks = int32(cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x), int32(cuda.gridDim.x * cuda.gridDim.y)
        at, further = (part * blocks + number) * int32(each * THREADS) + t, blocks * int32(each * THREADS)
        last = last_to_park(sums, a_sum, parked, at, tickets, ticket, number, parts, t)
        if last:
            sums, a_sum = all_parked(parked, at - part * further, further, parts)
        return last, sums, a_sum

    return add_parts
