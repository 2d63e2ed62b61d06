# %% [markdown]
# # 16. Transposing a matrix: what the counters say
#
# A transpose computes nothing: each number is read once and written once. Still, a first kernel for it may be several times
# slower than a good one. Which line is to blame? Here the counters of the emulated card say it, line by line, for four
# kernels in plain `numba.cuda`: a naive one, one with a tile in shared memory, one whose tile is padded, and one whose threads
# move four numbers each. This needs no GPU, only the compiler: `pip install "numba-cuda[cu13]"`. For a file of your own
# `numbanet check my_kernels.py --counters` does the same.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numba import cuda, float32

import numbanet
from numbanet_kernels.runtime.availability import nvvm_problem

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY = "#2f6690", "#d17a22", "#6b7280"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})

if nvvm_problem() is not None:
    raise SystemExit(f"this walkthrough compiles kernels: {nvvm_problem()}")


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


SIDE, TILE, PITCH = 256, 32, 33
x = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
counted = {}


def transposed(kernel, rows):
    """Transpose x in blocks of 32 x `rows` threads, check the result, and return the counters."""
    y = np.zeros_like(x)
    with numbanet.emulated(counters=True) as card:
        kernel[(SIDE // TILE, SIDE // TILE), (TILE, rows)](x, y)
    assert (y == x.T).all()
    (counted[kernel.py_func.__name__],) = card.counters
    return card.counters


# %% [markdown]
# ## Naive
#
# Each thread moves one number. Threads are numbered along `col` first, so the 32 threads of a *warp* have the same `row` and
# neighbouring `col`. The table has the instructions of warps by line, the threads of a warp that run them (`lanes`), the
# *sectors* of 32 bytes of global memory that warps touch, and the least number of sectors that could hold the data.


# %%
@cuda.jit
def naive(x, y):
    col, row = cuda.grid(2)
    value = x[row, col]
    y[col, row] = value


print(transposed(naive, 32))

# %% [markdown]
# The load is as good as it can be: a warp reads 32 neighbouring floats, which lie in four sectors. The store is not: the
# threads of a warp write to 32 rows of `y`, each to a sector of its own, of which they need four bytes. The line has eight
# times the sectors that its data needs.
#
# Exchanging the indices, `y[row, col] = x[col, row]`, would only move the problem to the load: either the rows or the columns
# are read along the wrong axis. What helps is a detour.

# %% [markdown]
# ## A tile in shared memory
#
# A block reads a tile of 32 x 32 numbers row by row and writes it to shared memory. When the whole tile is there, it reads the
# *columns* of the tile, and writes them to `y` row by row. Now both sides of global memory have neighbouring threads at
# neighbouring addresses.


# %%
@cuda.jit
def tiled(x, y):
    tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = TILE * cuda.blockIdx.x, TILE * cuda.blockIdx.y
    tile[ty, tx] = x[row + ty, col + tx]
    cuda.syncthreads()
    y[col + ty, row + tx] = tile[tx, ty]


print(transposed(tiled, 32))

# %% [markdown]
# All sectors are needed ones. But there is a new column: cycles of shared memory. It has 32 *banks*, and word k lies in bank
# k mod 32. A row of the tile has 32 words, so a whole column lies in one bank. The warp that reads it gets one word in each
# cycle, and takes 32 cycles in place of one: 31 of 32 are due to conflicts.

# %% [markdown]
# ## A padded tile
#
# One word more in each row, 33 in place of 32, moves each row by a bank. Nobody uses that word, but the words of a column are
# now in 32 different banks.


# %%
@cuda.jit
def padded(x, y):
    tile = cuda.shared.array((TILE, PITCH), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = TILE * cuda.blockIdx.x, TILE * cuda.blockIdx.y
    tile[ty, tx] = x[row + ty, col + tx]
    cuda.syncthreads()
    y[col + ty, row + tx] = tile[tx, ty]


print(transposed(padded, 32))

# %% [markdown]
# Nothing is left to remark on: each sector is needed, and no bank makes a warp wait. What remains are instructions, and most of
# them compute addresses.

# %% [markdown]
# ## Four numbers for each thread
#
# If each thread moves four numbers, a block needs only 8 rows of threads for its tile, and a part of the arithmetic on
# addresses is done once for all four.


# %%
@cuda.jit
def four(x, y):
    tile = cuda.shared.array((TILE, PITCH), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = TILE * cuda.blockIdx.x, TILE * cuda.blockIdx.y
    for k in range(0, TILE, 8):
        tile[ty + k, tx] = x[row + ty + k, col + tx]
    cuda.syncthreads()
    for k in range(0, TILE, 8):
        y[col + ty + k, row + tx] = tile[tx, ty + k]


print(transposed(four, 8))

# %% [markdown]
# ## All four
#
# The picture has what each kernel does for one warp of 32 numbers: sectors of global memory, cycles that banks of shared memory
# add, and instructions. Each version removes what the counters of the one before it have shown.

# %%
warps = SIDE * SIDE / 32
shown = {
    "sectors of global memory": [k.total.sectors / warps for k in counted.values()],
    "cycles of bank conflicts": [k.total.conflicts / warps for k in counted.values()],
    "instructions": [k.total.issued / warps for k in counted.values()],
}
figure, panels = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for axes, (title, values) in zip(panels, shown.items()):
    axes.bar(list(counted), values, color=[ORANGE if value > 1.5 * min(values) else BLUE for value in values], width=0.6)
    for place, value in enumerate(values):
        axes.text(place, value + 0.01 * max(values), f"{value:.3g}", ha="center", va="bottom", color=GREY, fontsize=10)
    axes.set_ylim(0, 1.15 * max(values))
    axes.set_title(title, loc="left", fontsize=11)
figure.supylabel("for each warp of numbers", fontsize=11)
save("transpose_counters.png")

# %% [markdown]
# ## What a card would do: a model
#
# The counters are exact, but they are no times. Two models say what they mean for a card, from its data sheet alone.
# *Occupancy* is the share of warps that fit a multiprocessor at once, by threads, registers and shared memory; a warp that
# waits for memory costs nothing as long as others can run. The *roofline* says how long the counted bytes and FLOPs take at
# least. Neither knows caches: on a card, the L2 cache collects some of the scattered stores of the naive kernel, so that it
# loses less than is counted.

# %%
for name, kernel in counted.items():
    for card in ("T4", "A100", "H200"):
        figures = kernel.figures(numbanet.emulation.sheet(card))
        print(
            f"{name:7s} on {card:5s} occupancy {figures.occupancy.share:4.0%}, bound by {figures.bound.by}, "
            f"at least {1e6 * figures.bound.seconds:.2f} µs"
        )

# %% [markdown]
# `card.counters.html("lines.html")` writes the same tables with the whole source text and with colours, as one page for the
# browser. In a notebook, `card.counters` as the last line of a cell shows it.
