# %% [markdown]
# # 6. Reading a kernel
#
# What does a GPU kernel do all day? On a card one guesses from its time. Here the *compiled* kernel runs on the CPU, on a
# machine that executes its PTX (NVIDIA's portable assembly) for all threads at once, checks every access and counts.
# No GPU and no driver are needed, only the compiler: `pip install "numba-cuda[cu13]"`.
#
# We take the three versions of the matrix product of walkthrough 2, and `block`, the kernel that numbanet trains with,
# and look at what each step changed.

# %%
import os
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # pictures go to files: no display needed
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
    plt.close()
    print("wrote", PICTURES / name)


# %% [markdown]
# ## Running compiled code
#
# Inside `emulated()`, arrays lie in the memory of the host and launches go to the PTX machine. Everything else is as on a
# card: the same launchers, the same grid, the same compiled kernel.

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
    """(the result, the counters) of one product."""
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
# ## What it counted
#
# A GPU runs threads in *warps* of 32, one instruction for all of them: `issued` counts those. Global memory comes in
# *sectors* of 32 bytes: `bytes` counts every sector that a warp touches, `least` what would hold just the numbers it asked
# for. Shared memory has 32 *banks*, and two words of one bank are fetched one after the other: `conflicts` are the cycles
# spent waiting for that.

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
# Read it from above. *Naive* asks memory for two numbers for each multiply-add. *Tiled* asks for far fewer, because a block
# shares what it loads, and now waits at barriers instead. In *register* a number that was fetched from shared memory serves
# four outputs, so there are fewer loads, and fewer instructions to say where from. In *block* it serves eight, and one load
# brings four numbers: most of what it issues are the multiply-adds that the product consists of.

# %%
CLASSES = {
    "fma": ("multiply-add", BLUE),
    "shared load": ("shared loads and stores", ORANGE),
    "global load": ("global", GREEN),
    "integer": ("addresses and the rest", PALE),
}


def classed(found):
    """Issued instructions in the four classes of the picture."""
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
# ## The line that is executed most
#
# Counters belong to instructions, so the hot lines of the PTX can be listed. These are the naive kernel's. The compiler has
# unrolled its loop over k: some of the hot lines are multiply-adds, and all others fetch their numbers and say where from.

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
# ## Coalescing and banks, access by access
#
# For every load and store the machine knows how many sectors a warp touched, and how long it waited for banks. The picture
# counts both for each multiply-add of the product: one access of `block` fetches 16 bytes a thread and touches more sectors
# than one of `naive`, but it needs far fewer of them. A warp that reads 32 neighbouring floats touches 4 sectors, and none of
# their bytes is wasted. The *naive* kernel's half warps ask for one number of A all together: a whole sector comes for its
# four bytes. Tiles in shared memory have longer rows than they need, so that neighbours in a column lie in different banks;
# some stores still meet. The *block* kernel pads its rows by four floats, so that loads of 16 bytes stay aligned. Without the
# padding the threads that walk along k hit the same banks.

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
# ## What a card would not tell you
#
# A kernel with a missing barrier often gives the right answer, until it does not. This one turns an array around in pieces of
# 64: each thread writes to shared memory, and reads what another wrote. Its second barrier is missing, so a fast warp may
# write the next piece while a slow one still reads this one.


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
# The same machine finds reads of memory that was never written, accesses beyond an array, misaligned ones, and barriers that
# a part of the block never reaches. `numbanet kernels --counters gemm_rows gemm_tiles --plot roof.png` counts the kernels of
# this library and shows which of them wait for memory; `Net(..., device="emulated")` trains on it.
