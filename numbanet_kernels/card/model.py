"""The model of a card that the emulated card states: what programs ask a driver about a device.

The numbers are those of compute capability 8.0 (CUDA C++ Programming Guide, "Compute Capabilities") and of an A100 with 108
multiprocessors. They decide what is launched and what is refused. The PTX machine itself knows no multiprocessors and no clock.
"""

from __future__ import annotations

from ..ptx.arguments import MOST_DEPTH, MOST_LOCAL, MOST_THREADS
from ..runtime.driverless import EMULATED as CAPABILITY
from .sheets import DEFAULT, SHEETS, WARP

NAME = "numbanet's PTX machine"
UUID = "00000000-0000-0000-0000-000000000000"
DRIVER = 13000  # the version of the driver: 13.0
SHEET = SHEETS[DEFAULT]
THREADS, LOCAL = MOST_THREADS, MOST_LOCAL  # of a block, and bytes of a thread
BLOCK, GRID = (THREADS, THREADS, MOST_DEPTH), (2**31 - 1, 65535, 65535)
SHARED, SHARED_MOST = 48 << 10, SHEET.shared - SHEET.reserved  # bytes: of a block, and of one that asks for more
MOST_DYNAMIC = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, by which a kernel asks for more

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": CAPABILITY[0],
    "COMPUTE_CAPABILITY_MINOR": CAPABILITY[1],
    "MULTIPROCESSOR_COUNT": SHEET.multiprocessors,
    "WARP_SIZE": WARP,
    "MAX_THREADS_PER_BLOCK": THREADS,
    "MAX_THREADS_PER_MULTIPROCESSOR": SHEET.threads,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": SHEET.blocks,
    **{f"MAX_BLOCK_DIM_{axis}": most for axis, most in zip("XYZ", BLOCK, strict=True)},
    **{f"MAX_GRID_DIM_{axis}": most for axis, most in zip("XYZ", GRID, strict=True)},
    "MAX_SHARED_MEMORY_PER_BLOCK": SHARED,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": SHARED_MOST,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": SHEET.shared,
    "MAX_REGISTERS_PER_BLOCK": SHEET.registers,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": SHEET.registers,
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
    return SHEET.occupancy(threads, shared).blocks
