"""The model of a card that the emulated card states: what programs ask a driver about a device.

The numbers are those of compute capability 8.0 (CUDA C++ Programming Guide, "Compute Capabilities") and of an A100 with 108
multiprocessors. They decide what is launched and what is refused. The PTX machine itself knows no multiprocessors and no clock.
"""

from __future__ import annotations

from ..runtime.driverless import EMULATED as CAPABILITY

NAME = "numbanet's PTX machine"
UUID = "00000000-0000-0000-0000-000000000000"
DRIVER = 13000  # the version of the driver: 13.0
MULTIPROCESSORS, THREADS_OF_ONE, BLOCKS_OF_ONE = 108, 2048, 32  # threads and blocks that a multiprocessor holds
THREADS, WARP = 1024, 32  # of a block
BLOCK, GRID = (1024, 1024, 64), (2**31 - 1, 65535, 65535)
SHARED, SHARED_MOST, SHARED_OF_ONE = 48 << 10, 163 << 10, 164 << 10  # bytes: of a block, of one that asks for more, of all
REGISTERS, REGISTERS_OF_THREAD = 65536, 255

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": CAPABILITY[0],
    "COMPUTE_CAPABILITY_MINOR": CAPABILITY[1],
    "MULTIPROCESSOR_COUNT": MULTIPROCESSORS,
    "WARP_SIZE": WARP,
    "MAX_THREADS_PER_BLOCK": THREADS,
    "MAX_THREADS_PER_MULTIPROCESSOR": THREADS_OF_ONE,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": BLOCKS_OF_ONE,
    **{f"MAX_BLOCK_DIM_{axis}": most for axis, most in zip("XYZ", BLOCK, strict=True)},
    **{f"MAX_GRID_DIM_{axis}": most for axis, most in zip("XYZ", GRID, strict=True)},
    "MAX_SHARED_MEMORY_PER_BLOCK": SHARED,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": SHARED_MOST,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": SHARED_OF_ONE,
    "MAX_REGISTERS_PER_BLOCK": REGISTERS,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": REGISTERS,
    "TOTAL_CONSTANT_MEMORY": 65536,
    "L2_CACHE_SIZE": 40 << 20,
    "CLOCK_RATE": 1410000,
    "MEMORY_CLOCK_RATE": 1215000,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120,
    "MAX_PITCH": 2**31 - 1,
    "TEXTURE_ALIGNMENT": 512,
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    **{
        name: 1
        for name in (
            "CAN_MAP_HOST_MEMORY",
            "UNIFIED_ADDRESSING",
            "MANAGED_MEMORY",
            "CONCURRENT_MANAGED_ACCESS",
            "PAGEABLE_MEMORY_ACCESS",
            "CONCURRENT_KERNELS",
            "ASYNC_ENGINE_COUNT",
            "COOPERATIVE_LAUNCH",
            "STREAM_PRIORITIES_SUPPORTED",
            "GLOBAL_L1_CACHE_SUPPORTED",
            "LOCAL_L1_CACHE_SUPPORTED",
        )
    },
}


def blocks_that_fit(threads: int, shared: int) -> int:
    """Return how many blocks with this many threads and bytes of shared memory a multiprocessor holds at once."""
    whole = -(-threads // WARP) * WARP
    by_shared = SHARED_OF_ONE // (shared + 1024) if shared else BLOCKS_OF_ONE  # each block costs 1 KiB of the system's
    return max(min(THREADS_OF_ONE // whole, BLOCKS_OF_ONE, by_shared), 0)
