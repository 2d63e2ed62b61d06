"""Times of a product by size of its blocks and by number of blocks along k, on a GPU: python -m bench.kernels.gemm_ways [FILE]

`numbanet_kernels.blocks.gemm_block` chooses both by a model of time. Its constants were fitted to bench/results/gemm-ways.json,
which this command writes; it also prints which constants choose best among the recorded times.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..machinery.machine import ROOT, commit, machine, now

OUT = ROOT / "bench/results/gemm-ways.json"
# (M, N, K, whether A is read along k, whether B is): forward, dx and dw of a network's layers
FORWARD, DX, DW = (True, True), (True, False), (False, False)
PRODUCTS = [
    (128, 2048, 784, *FORWARD),
    (128, 2048, 2048, *FORWARD),
    (128, 2048, 2048, *DX),
    (2048, 2048, 128, *DW),
    (2048, 784, 128, *DW),
    (128, 10, 2048, *FORWARD),
    (10, 2048, 128, *DW),
    (128, 1024, 1024, *FORWARD),
    (128, 4096, 4096, *FORWARD),
    (4096, 4096, 128, *DW),
    (128, 620, 620, *FORWARD),
    (620, 784, 128, *DW),
    (128, 1300, 1300, *FORWARD),
    (1024, 1024, 1024, *FORWARD),
    (20, 6000, 1500, *FORWARD),
    (2048, 2048, 2048, *FORWARD),
]
PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
LEAST = 128  # smallest k of a block
TIMES, TURNS = 10, 3  # products in a graph, and how often it is timed


def measured() -> list[dict[str, Any]]:
    """Return the time of each product in each way, in microseconds: the least of a few turns."""
    from numbanet_kernels.blocks import gemm_block
    from numbanet_kernels.runtime.arrays import to_device
    from numbanet_kernels.runtime.availability import multiprocessors

    values = to_device(np.random.default_rng(0).standard_normal(1 << 24).astype(np.float32))
    found = []
    gemm_block.launch_block(values[:64], values[:64], (8, 8, 8), (8, 1), (1, 8), values[:64].reshape(8, 8))  # fills caches
    for m, n, k, a_along_k, b_along_k in PRODUCTS:
        for tile, parts in itertools.product(gemm_block.TILES, PARTS):
            blocks = math.ceil(m / tile) * math.ceil(n / tile)
            if parts > 1 and (k // parts < LEAST or blocks * parts > 6 * multiprocessors()):
                continue
            us = _microseconds(values, m, n, k, a_along_k, b_along_k, tile, parts)
            found.append({"product": [m, n, k, a_along_k, b_along_k], "tile": tile, "parts": parts, "us": round(us, 1)})
    return found


def _microseconds(values: Any, m: int, n: int, k: int, a_along_k: bool, b_along_k: bool, tile: int, parts: int) -> float:
    from numba import cuda

    from numbanet_kernels.blocks import gemm_block
    from numbanet_kernels.runtime import graph, pool
    from numbanet_kernels.runtime.arrays import device_array

    out, sums = device_array((m, n)), None if a_along_k else device_array((m,))
    ways = {"a_sums": sums, "tile": tile, "passes": 0, "span": 16 * math.ceil(k / parts / 16)}
    steps = (k, 1) if a_along_k else (1, m), (1, k) if b_along_k else (n, 1)

    def work() -> Any:
        for _ in range(TIMES):
            gemm_block.launch_block(values[: m * k], values[: k * n], (m, n, k), *steps, out, **ways)
        return out

    recorded, events, least = graph.Graph(work, pool.Arena(1 << 30)), [cuda.event(), cuda.event()], math.inf
    recorded.replay()
    for _ in range(TURNS):
        events[0].record()
        recorded.replay()
        events[1].record()
        events[1].synchronize()
        least = min(least, events[0].elapsed_time(events[1]) * 1e3 / TIMES)
    return least


def ratios(ways: list[dict[str, Any]]) -> dict[tuple, float]:
    """Return, for each product, time as `gemm_block` chooses, in the nearest way that was measured, / time in the best way."""
    from numbanet_kernels.blocks import gemm_block

    found = {}
    for product in sorted({tuple(way["product"]) for way in ways}):
        times = {(way["tile"], way["parts"]): way["us"] for way in ways if tuple(way["product"]) == product}
        m, n, k, *_ = product
        tile = gemm_block.tile_for(m, n, depth=k)
        parts = math.ceil(k / gemm_block.span_for(m, n, k, tile))
        nearest = min((way for way in times if way[0] == tile), key=lambda way: abs(math.log(way[1] / parts)))
        found[product] = times[nearest] / min(times.values())
    return found


def best_constants(ways: list[dict[str, Any]], most: int = 5) -> list[tuple]:
    """Return the best constants for these times: (mean ratio, TILES[64], SLOTS[64], FIXED, ADDED)."""
    from numbanet_kernels.blocks import gemm_block

    before = gemm_block.TILES[64], gemm_block.SLOTS[64], gemm_block.FIXED, gemm_block.ADDED

    def use(constants: tuple) -> None:
        gemm_block.TILES[64], gemm_block.SLOTS[64], gemm_block.FIXED, gemm_block.ADDED = constants

    found = []
    try:
        for constants in itertools.product((1.0, 1.5, 2.0, 2.5, 3.0, 4.0), (1, 2, 3, 4, 6), (0, 16, 32, 64), (0, 2, 4, 8, 16)):
            use(constants)
            found.append((float(np.exp(np.mean(np.log(list(ratios(ways).values()))))), *constants))
    finally:
        use(before)
    return sorted(found)[:most]


def main(arguments: list[str]) -> None:
    """Measure, write the file, and print what the constants choose."""
    ways = measured()
    record = {"date": now(), "commit": commit(), "quick": False, "machine": machine(), "rows": [], "ways": ways}
    Path(arguments[0] if arguments else OUT).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for product, ratio in ratios(ways).items():
        print(*product, f"{ratio:.2f} times as long as the best way")
    for mean, *constants in best_constants(ways):
        print(f"TILES[64], SLOTS[64], FIXED, ADDED = {constants}: {mean:.3f} times as long in the mean")


if __name__ == "__main__":
    main(sys.argv[1:])
