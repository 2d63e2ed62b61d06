"""Data sheets of cards: how many blocks of a kernel fit a multiprocessor, and the least time for what a kernel does.

Both are models. Occupancy follows the rules of the CUDA Occupancy Calculator; limits are those of the CUDA C++ Programming
Guide, "Compute Capabilities". The least time is that of a roofline (Williams et al. 2009): arithmetic at the peak rate, or
bytes at the peak bandwidth. It knows no cache and no latency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..ptx import Line

WARP, SECTOR = 32, 32  # threads; bytes


class Occupancy(NamedTuple):
    """Blocks and warps that a multiprocessor holds at once, the most warps that it could hold, and what limits them."""

    blocks: int
    warps: int
    most: int
    limit: str

    @property
    def share(self) -> float:
        return self.warps / self.most


class Bound(NamedTuple):
    """The least seconds of memory and of arithmetic, and the FLOPs per byte at which both take as long (the ridge)."""

    memory: float
    arithmetic: float
    ridge: float

    @property
    def seconds(self) -> float:
        return max(self.memory, self.arithmetic)

    @property
    def by(self) -> str:
        """The one that takes longer."""
        return "memory" if self.memory >= self.arithmetic else "arithmetic"


class Sheet(NamedTuple):
    """The data sheet of a card."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    threads: int  # that a multiprocessor holds, and so on
    blocks: int
    shared: int  # bytes
    reserved: int  # bytes of shared memory of each block that the system takes
    flops: float  # float32 FLOP/s of all cores, at the boost clock
    double: float  # float64 FLOP/s
    mma: float  # FLOP/s of tensor cores in TF32, without sparsity; those of float16 have twice as many
    bandwidth: float  # bytes/s of global memory
    registers: int = 65536
    of_thread: int = 255  # registers

    def occupancy(self, threads: int, shared: int, registers: int = 0) -> Occupancy:
        """Return the occupancy of blocks with this many threads and bytes of shared memory, whose threads have this many
        registers; 0 if that is not known.
        """
        warps = -(-threads // WARP)
        limits = {"threads": self.threads // (warps * WARP), "blocks": self.blocks}
        if shared:
            unit = 128 if self.capability >= (8, 0) else 256
            limits["shared memory"] = self.shared // (-(-(shared + self.reserved) // unit) * unit)
        if registers:
            of_warp = -(-registers * WARP // 256) * 256
            limits["registers"] = self.registers // of_warp // 4 * 4 // warps  # each of four schedulers has a quarter of them
        limit = min(limits, key=lambda name: limits[name])
        return Occupancy(limits[limit], limits[limit] * warps, self.threads // WARP, limit)

    def bound(self, counted: Line) -> Bound:
        """Return the least time for counters: all sectors from global memory, and FLOPs of three kinds one after the other."""
        single = counted.flops - counted.double_flops - counted.mma_flops
        arithmetic = single / self.flops + counted.double_flops / self.double + counted.mma_flops / self.mma
        peak = counted.flops / arithmetic if arithmetic else self.flops
        return Bound(SECTOR * counted.sectors / self.bandwidth, arithmetic, peak / self.bandwidth)


KIB = 1 << 10
SHEETS = {
    sheet.name: sheet
    for sheet in (
        Sheet("T4", (7, 5), 40, 1024, 16, 64 * KIB, 0, 8.1e12, 0.25e12, 32.5e12, 0.32e12),
        Sheet("A100", (8, 0), 108, 2048, 32, 164 * KIB, KIB, 19.5e12, 9.7e12, 156e12, 2.039e12),  # with 80 GB, SXM
        Sheet("RTX 3090", (8, 6), 82, 1536, 16, 100 * KIB, KIB, 35.6e12, 0.556e12, 35.6e12, 0.936e12),
        Sheet("RTX 4090", (8, 9), 128, 1536, 24, 100 * KIB, KIB, 82.6e12, 1.29e12, 82.6e12, 1.008e12),
        Sheet("L4", (8, 9), 58, 1536, 24, 100 * KIB, KIB, 30.3e12, 0.473e12, 60e12, 0.3e12),
        Sheet("H100", (9, 0), 132, 2048, 32, 228 * KIB, KIB, 67e12, 34e12, 494.5e12, 3.35e12),  # SXM
        Sheet("H200", (9, 0), 132, 2048, 32, 228 * KIB, KIB, 67e12, 34e12, 494.5e12, 4.8e12),
    )
}
DEFAULT = "A100"  # which the emulated card states to be (`model`)


def sheet(name: str) -> Sheet:
    """Return the data sheet of a card; raise ValueError if there is none. Case and spaces do not matter."""
    for known, found in SHEETS.items():
        if known.replace(" ", "").lower() == name.replace(" ", "").lower():
            return found
    raise ValueError(f"there is no data sheet of {name!r}: choose from {', '.join(SHEETS)}")
