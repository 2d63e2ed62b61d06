# %% [markdown]
# # 6. Reading a kernel
#
# On what does a GPU kernel spend its time? On a GPU, one mostly sees the total time. Here an interpreter on the CPU executes
# the *compiled* kernel, its PTX (NVIDIA's portable assembly), for all threads at once. It checks every memory access and counts
# instructions and bytes. This needs no GPU and no driver, only the compiler: `pip install "numba-cuda[cu13]"`.
#
# We compare the three versions of the matrix product of walkthrough 2 with `block`, the kernel that numbanet uses for training.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numba import float32

from numbanet_kernels import ptx
from numbanet_kernels.blocks.gemm_block import launch_block
from numbanet_kernels.families.gemm import gemm_version
from numbanet_kernels.runtime import emulation
from numbanet_kernels.runtime.arrays import device_array, to_device
from numbanet_kernels.runtime.availability import nvvm_problem
from numbanet_kernels.runtime.declare import cuda, kernel
from numbanet_kernels.runtime.emulation import EMULATED, emulated, program

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE, GREEN = "#2f6690", "#d17a22", "#6b7280", "#d7dde5", "#5b8c5a"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})

if nvvm_problem() is not None:
    raise SystemExit(f"this walkthrough compiles kernels: {nvvm_problem()}")


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


# %% [markdown]
# ## Running compiled code
#
# Inside `emulated()`, arrays are in the memory of the host, and launches run in the PTX interpreter. Everything else is the
# same as on a GPU: the launchers, the grid, and the compiled kernel.

# %%
SIDE, DEPTH = 128, 48
rng = np.random.default_rng(0)
a, b = rng.standard_normal((SIDE, DEPTH), dtype=np.float32), rng.standard_normal((DEPTH, SIDE), dtype=np.float32)


def block(x, y, padding=4):
    return launch_block(
        x.reshape(-1),
        y.reshape(-1),
        (SIDE, SIDE, DEPTH),
        (DEPTH, 1),
        (SIDE, 1),
        device_array((SIDE, SIDE)),
        tile=128,
        padding=padding,
    )


def counted(product):
    """Compute a product on the emulated device; return (the result, the counters)."""
    emulation.counters.clear()
    with emulated():
        result = product(to_device(a), to_device(b))
    (found,) = emulation.counters.values()
    return result, found


VERSIONS = {
    "naive": lambda x, y: gemm_version("naive", 16, x, y),
    "tiled": lambda x, y: gemm_version("tiled", 16, x, y),
    "register": lambda x, y: gemm_version("register", 64, x, y),
    "block": block,
}
counters = {}
for name, product in VERSIONS.items():
    c, counters[name] = counted(product)
    print(f"{name:9s} largest error {np.abs(c - a.astype(float) @ b).max():.1e}")

# %% [markdown]
# ## The counters
#
# A GPU runs threads in *warps* of 32, which execute an instruction together: `issued` counts the instructions of warps. Global
# memory is read in *sectors* of 32 bytes: `global bytes` counts all sectors that a warp touches, and `least` the fewest sectors
# that could hold the requested numbers. Shared memory has 32 *banks*. If the threads of a warp access different words in the
# same bank, the accesses are made one after the other: `conflicts` counts the extra cycles.

# %%
summaries = {name: found.summary() for name, found in counters.items()}
print(
    f"{'':9s} {'issued':>9s} {'fma':>5s} {'global bytes':>13s} {'least':>9s} {'FLOPs/byte':>11s} {'conflicts':>10s} "
    f"{'barriers':>9s}"
)
for name, found in summaries.items():
    print(
        f"{name:9s} {found['issued']:9,d} {found['issued fma'] / found['issued']:5.0%} {found['bytes']:13,d} "
        f"{32 * found['least sectors']:9,d} {found['intensity']:11.2f} {found['bank conflicts']:10,d} "
        f"{found.get('issued barrier', 0):9,d}"
    )

# %% [markdown]
# *Naive* loads two numbers from global memory for each multiply-add. *Tiled* loads far fewer, because the threads of a block
# share them, but it waits at barriers. In *register*, a number from shared memory is used for four outputs, so there are fewer
# loads and fewer instructions that compute addresses. In *block*, a number is used for eight outputs, and one instruction loads
# four numbers: most of its instructions are the multiply-adds of the product.

# %%
CLASSES = {
    "fma": ("multiply-add", BLUE),
    "shared load": ("shared loads and stores", ORANGE),
    "global load": ("global", GREEN),
    "integer": ("addresses and the rest", PALE),
}


def classed(found):
    """The number of issued instructions in each of the four classes of the picture."""
    parts = dict.fromkeys(CLASSES, 0)
    for key, n in found.items():
        kind = key.removeprefix("issued ")
        if key.startswith("issued "):
            group = (
                "fma"
                if kind == "fma"
                else "shared load"
                if kind.startswith("shared")
                else "global load"
                if kind.startswith("global") or kind == "copy"
                else "integer"
            )
            parts[group] += n
    return parts


fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
names = list(VERSIONS)
bottoms = np.zeros(len(names))
for group, (label, colour) in CLASSES.items():
    values = np.array([classed(summaries[name])[group] for name in names]) / 1e3
    left.bar(names, values, bottom=bottoms, color=colour, label=label, width=0.6)
    bottoms += values
left.set_ylabel("thousand instructions of warps")
left.legend(frameon=False, fontsize=10)
left.set_title("What is issued", loc="left", fontsize=11)
shares = [summaries[name]["issued fma"] / summaries[name]["issued"] for name in names]
right.bar(names, shares, color=BLUE, width=0.6)
for i, share in enumerate(shares):
    right.text(i, share + 0.01, f"{share:.0%}", ha="center", color=GREY, fontsize=10)
right.set(ylabel="share of multiply-adds", ylim=(0, 1))
right.set_title("How much of it is the product", loc="left", fontsize=11)
save("kernel_instructions.png")

# %% [markdown]
# ## The instructions that are executed most
#
# There is a counter for each instruction, so the most executed lines of the PTX can be listed, here for the naive kernel. The
# compiler has unrolled its loop over k. Some of these lines are multiply-adds; the others load numbers and compute addresses.

# %%
found = counters["naive"]
hot = found.issued == found.issued.max()
lines = np.flatnonzero(hot)
fma = sum(ptx.class_of(found.program.instructions[i]) == "fma" for i in lines)
print(f"{len(lines)} instructions are executed {found.issued.max():,} times each, {fma} of them multiply-adds; the last:")
for i in lines[-12:]:
    instruction = found.program.instructions[i]
    print(f"  {instruction.line:5d}  {found.program.python[i]:12s}  {instruction.text[:80]}")

# %% [markdown]
# ## Coalescing and bank conflicts
#
# For every load and store, the interpreter counts the sectors that a warp touches and the cycles that it waits for banks. The
# picture shows both per multiply-add of the product, because one access of `block` loads 16 bytes per thread and touches more
# sectors than one of `naive`, but there are far fewer accesses.
#
# If a warp reads 32 adjacent floats, it touches 4 sectors and uses all of their bytes. In the *naive* kernel, the 16 threads of
# a half warp read the same number of A: a whole sector is loaded for four bytes. The tiles in shared memory have padded rows,
# so that adjacent elements of a column are in different banks; some stores still conflict. The *block* kernel pads its rows by
# four floats, so that loads of 16 bytes stay aligned. Without the padding, threads that access adjacent values of k access the
# same banks.

# %%
_, counters["block,\nno padding"] = counted(lambda x, y: block(x, y, padding=0))

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
labels = list(counters)
at = np.arange(len(labels))
products = SIDE * SIDE * DEPTH
touched, least = (
    np.array([32 * getattr(found, name).sum() for found in counters.values()]) / products for name in ("sectors", "least")
)
waits = [1000 * found.conflicts.sum() / products for found in counters.values()]
left.bar(at - 0.2, touched, 0.38, color=ORANGE, label="in the sectors touched")
left.bar(at + 0.2, least, 0.38, color=BLUE, hatch="//", edgecolor="white", label="in as few as would do")
for i, value in enumerate(touched):
    left.text(i - 0.2, value * 1.05, f"{value:.2g}", ha="center", color=GREY, fontsize=10)
left.set_xticks(at, labels)
left.set(ylabel="bytes for each multiply-add", yscale="log", ylim=(least.min() / 2, 6 * touched.max()))
left.legend(frameon=False, fontsize=10, loc="upper right")
left.set_title("Global memory (less is better)", loc="left", fontsize=11)
right.bar(at, waits, 0.6, color=ORANGE)
for i, wait in enumerate(waits):
    right.text(i, wait + 0.02 * max(waits), f"{wait:.2g}", ha="center", color=GREY, fontsize=10)
right.set_xticks(at, labels)
right.set(ylabel="cycles waited, for 1000 multiply-adds", ylim=(0, 1.15 * max(waits)))
right.set_title("Bank conflicts (less is better)", loc="left", fontsize=11)
save("kernel_memory.png")

# %% [markdown]
# ## Errors that a GPU does not report
#
# A kernel with a missing barrier gives the right result in most runs, and a wrong one in others. This kernel reverses each
# piece of 64 elements of an array: each thread writes to shared memory, and then reads what another thread wrote. Its second
# barrier is missing, so a fast warp may write the next piece while a slow one still reads this one.


# %%
@kernel("void(f4[::1], f4[::1])")
def turned(x, y):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    for first in range(0, x.size, 64):
        tile[63 - t] = x[first + t]
        cuda.syncthreads()
        y[first + t] = tile[t]


x, y = np.arange(128, dtype=np.float32), np.empty(128, np.float32)
try:
    ptx.run(program(turned, EMULATED), (1,), (64,), (x, y), name="turned")
except ptx.PtxError as error:
    print(error)

# %% [markdown]
# The interpreter also finds reads of uninitialised memory, accesses outside of an array, misaligned accesses, and barriers that
# only some threads of the block reach. `numbanet kernels --counters gemm_rows gemm_tiles --plot roof.png` counts the kernels of
# numbanet and shows which of them are limited by memory. `Net(..., device="emulated")` trains on the emulated device.
