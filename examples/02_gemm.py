# %% [markdown]
# # 2. One matrix product, three kernels
#
# A dense network spends nearly all its time in one operation, the matrix product (GEMM):
#
# C[m, n] = Σ_k A[m, k] B[k, n]
#
# The arithmetic is simple. Its speed depends on how often each number is loaded from memory. This walkthrough reads three
# kernels of `numbanet_kernels/families/gemm.py`, counts their loads, and runs them: on a GPU if there is one, else on the
# emulated device.

# %%
import inspect
import os
import textwrap
from fractions import Fraction
from pathlib import Path
from time import perf_counter

import matplotlib
import matplotlib.pyplot as plt
import numba
import numpy as np

from numbanet_kernels.families.gemm import gemm_reference, gemm_version
from numbanet_kernels.ptx import class_of
from numbanet_kernels.runtime.availability import cuda_problem, nvvm_problem
from numbanet_kernels.runtime.declare import all_kernels, cuda
from numbanet_kernels.runtime.emulation import counters, emulated
from numbanet_kernels.runtime.memory import download_cuda, upload_cuda

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#2f6690", "#d17a22", "#6b7280", "#e5e7eb"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


# %% [markdown]
# ## FLOPs and bytes
#
# A is M × K, B is K × N. Each of the M N outputs needs K multiply-adds, so the product costs **2 M N K FLOPs**. If each
# operand is read once and the result is written once, **4 (M K + K N + M N) bytes** are moved, the least possible number.
# The ratio of FLOPs to bytes is the *arithmetic intensity*. For square matrices of side n it is at most
#
# 2 n³ / (12 n²) = n/6 FLOPs per byte.
#
# A processor has such a ratio too: the FLOPs that it can compute while its memory delivers one byte. If a kernel has a lower
# intensity, it waits for memory, and the arithmetic units are idle. So each version below loads less than the one before.


# %%
def flops(m, n, k):
    return 2 * m * n * k


def least_bytes(m, n, k):
    return 4 * (m * k + k * n + m * n)


for side in (16, 128, 1024, 4096):
    work, traffic = flops(side, side, side), least_bytes(side, side, side)
    print(f"side {side:4d}   {work / 1e9:9.5f} GFLOP   {traffic / 1e6:8.3f} MB   at best {work / traffic:6.1f} FLOPs per byte")

# %% [markdown]
# The same is true for a CPU. Below, one loop follows the formula, and BLAS (through NumPy) computes the same product in
# tiles that fit into the caches and vector registers. Both do the same number of multiply-adds. (BLAS may also use several
# cores.)


# %%
@numba.njit("void(f4[:, ::1], f4[:, ::1], f4[:, ::1])")
def by_the_formula(a, b, c):
    for m in range(c.shape[0]):
        for n in range(c.shape[1]):
            acc = numba.float32(0)
            for k in range(a.shape[1]):
                acc += a[m, k] * b[k, n]
            c[m, n] = acc


rng = np.random.default_rng(0)
side = 512
a, b = rng.standard_normal((2, side, side), dtype=np.float32)
c = np.empty_like(a)
for name, product in (("loop", lambda: by_the_formula(a, b, c)), ("BLAS", lambda: np.matmul(a, b, out=c))):
    seconds = []
    for _ in range(3):
        start = perf_counter()
        product()
        seconds.append(perf_counter() - start)
    print(f"{name}   {flops(side, side, side) / min(seconds) / 1e9:7.1f} GFLOP/s")

# %% [markdown]
# ## Version 1: naive
#
# On a GPU thousands of threads run at the same time, in *blocks*. The threads of a block can share a small, fast memory on
# the chip; all arrays are in the large, slow *global* memory. In the simplest kernel, one thread computes one output by
# the formula. `am, ak` are the strides of A: A[m, k] = a[m·am + k·ak], so a transposed operand needs no copy.

# %%
KERNELS = {
    name: next(kernel for kernel in all_kernels() if kernel.__name__ == f"gemm_{name}")
    for name in ("naive", "tiled", "register")
}


def excerpt(version, first, last):
    """Print the lines of a kernel's source from the one that holds `first` to the next one that holds `last`."""
    lines = inspect.getsource(KERNELS[version].function).splitlines()
    start = next(i for i, line in enumerate(lines) if first in line)
    stop = next(i for i in range(start, len(lines)) if last in lines[i])
    print(textwrap.dedent("\n".join(lines[start : stop + 1])))


excerpt("naive", "cuda.grid(2)", "acc +=")

# %% [markdown]
# Every multiply-add loads two numbers from global memory: 8 bytes for 2 FLOPs, an intensity of 1/4. (The chip's caches
# serve many of these loads. Without them, the kernel would be much slower still.)
#
# ## Version 2: a tile in shared memory
#
# All threads of a T × T block together need only T rows of A and T columns of B, and each of these numbers T times. So
# they load a T × T tile of A and of B into shared memory, one number per thread, wait for each other, and multiply from
# this copy. After the first barrier the tile is complete; after the second, no thread reads it any more.

# %%
excerpt("tiled", "for k0 in", "row, col =")

# %% [markdown]
# Per step, a block loads 2 T² numbers and does T³ multiply-adds: **2/T global loads per multiply-add**. But each
# multiply-add still needs two loads from shared memory. These are fast, but they take time: there are twice as many loads
# as multiply-adds.
#
# ## Version 3: a tile in registers
#
# The same idea is applied once more, to registers. They are faster than shared memory, but private to a thread. So each
# thread computes r × r outputs: r numbers of A and r of B are used in r² multiply-adds, **2/r shared loads per
# multiply-add**. Here r = 4: 8 loads for 16 multiply-adds. And because the 16 × 16 threads now compute a 64 × 64 tile,
# there are also fewer global loads: 2/64.

# %%
excerpt("register", "for k in range(depth_tile)", "c30, c31, c32, c33 = c30")

# %% [markdown]
# The 16 sums are 16 separate scalars, because a thread cannot index its registers: the compiler might put a small array
# into memory.
#
# The picture shows what one thread (orange) and its block (blue) read, for a 16 × 16 result: T = 4 in the middle, and
# T = 8, r = 2 on the right.

# %%
SIDE, DEPTH, GAP = 16, 16, 2
SHADES = matplotlib.colors.ListedColormap([PALE, "#a9c3d6", ORANGE])
fig, axes = plt.subplots(1, 3, figsize=(10, 3.9), layout="constrained")
row, col = 5, 9
cases = (
    ("1 naive", [], [row], [col], "each thread\nreads for itself"),
    ("2 tiled, T = 4", [(4, 8, 8, 12)], [row], [col], "a block shares\nwhat it reads"),
    ("3 register, T = 8, r = 2", [(0, 8, 8, 16)], [1, 5], [9, 13], "a thread reuses\nwhat it reads"),
)
for ax, (title, blocks, rows, cols, what) in zip(axes, cases):
    picture_a, picture_b, picture_c = np.zeros((SIDE, DEPTH)), np.zeros((DEPTH, SIDE)), np.zeros((SIDE, SIDE))
    for r0, r1, c0, c1 in blocks:
        picture_a[r0:r1], picture_b[:, c0:c1], picture_c[r0:r1, c0:c1] = 1, 1, 1
    picture_a[rows], picture_b[:, cols] = 2, 2
    picture_c[np.ix_(rows, cols)] = 2
    for picture, x0, y0, label in (
        (picture_a, 0, DEPTH + GAP, "A"),
        (picture_b, DEPTH + GAP, 0, "B"),
        (picture_c, DEPTH + GAP, DEPTH + GAP, "C"),
    ):
        height, width = picture.shape
        ax.pcolormesh(
            np.arange(width + 1) + x0,
            np.arange(height + 1) + y0,
            picture,
            cmap=SHADES,
            vmin=0,
            vmax=2,
            edgecolors="white",
            linewidth=0.6,
        )
        ax.text(x0 + 0.3, y0 - 0.4, label, color=GREY, va="bottom")
    ax.text(DEPTH / 2, DEPTH / 2, what, ha="center", va="center", color=GREY, fontsize=10)
    ax.set(aspect="equal", xlim=(-1.5, 35.5), ylim=(34.5, -2.2))
    ax.set_axis_off()
    ax.set_title(title, fontsize=11)
save("gemm_tiles.png")

# %% [markdown]
# ## The count
#
# The table gives the loads per multiply-add, and the FLOPs per byte from global memory, which are 2 / (4 × global loads):
#
# | version | global loads | shared loads | FLOPs per global byte |
# |---|---|---|---|
# | naive | 2 | 0 | 1/4 |
# | tiled T | 2/T | 2 | T/4 |
# | register T, r | 2/T | 2/r | T/4 |

# %%
COUNTS = [
    ("naive", Fraction(2), Fraction(0)),
    ("tiled\nT = 16", Fraction(2, 16), Fraction(2)),
    ("register\nT = 64, r = 4", Fraction(2, 64), Fraction(2, 4)),
]
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.7), layout="constrained")
at = np.arange(3)
for shift, index, colour, label in ((-0.2, 1, ORANGE, "global memory"), (0.2, 2, BLUE, "shared memory")):
    values = [count[index] for count in COUNTS]
    left.bar(at + shift, [float(value) for value in values], 0.38, color=colour, label=label)
    for x, value in zip(at + shift, values):
        left.text(x, float(value) + 0.04, str(value), ha="center", color=GREY, fontsize=10)
left.set_xticks(at, [count[0] for count in COUNTS])
left.set(ylabel="loads per multiply-add", ylim=(0, 2.6))
left.legend(frameon=False, loc="upper center", ncols=2, fontsize=10)
left.set_title("What each version loads", loc="left", fontsize=11)

tile = np.array([1, 128])
right.plot(tile, tile / 4, color=PALE, linewidth=2.5, zorder=1)
for size, name, place in ((1, "naive", (10, -3)), (16, "tiled, T = 16", (-10, 4)), (64, "register, T = 64", (-10, 4))):
    right.plot(size, size / 4, "o", color=BLUE, markersize=7)
    right.annotate(
        f"{name}: {size / 4:g}",
        (size, size / 4),
        place,
        textcoords="offset points",
        color=GREY,
        fontsize=10,
        ha="left" if size == 1 else "right",
    )
best = flops(1024, 1024, 1024) / least_bytes(1024, 1024, 1024)
right.axhline(best, color=ORANGE, linewidth=1.5, linestyle="--")
right.text(1, best * 0.87, "each number fetched once, side 1024", color=ORANGE, fontsize=10, va="top")
right.set_xscale("log", base=2)
right.set_yscale("log", base=2)
right.set_xticks([1, 4, 16, 64], [1, 4, 16, 64])
right.set_yticks([0.25, 1, 4, 16, 64, 256], ["1/4", 1, 4, 16, 64, 256])
right.set(xlabel="side T of the block's tile", ylabel="FLOPs per byte from global memory")
right.set_title("Arithmetic intensity", loc="left", fontsize=11)
save("gemm_intensity.png")

# %% [markdown]
# ## The compiled code
#
# PTX is NVIDIA's portable assembly. Numba can compile to PTX without a GPU, so we can count the instructions in the compiled
# kernels. The compiler unrolls the inner loops, so the absolute numbers mean little. The *ratios* of loads to multiply-adds
# (`fma`) are near those of the table, but not equal, for four reasons. Each instruction is counted once, however often it is
# executed. If the length of a loop is not a multiple of the unrolled steps, the remaining steps are a second copy of its body.
# The epilogue multiplies by a scale and adds a bias. And the global loads of the tiled versions are outside the inner loop.
# The end of this walkthrough counts the *executed* global loads, which agree with the table.

# %%
if nvvm_problem() is None:
    print(f"{'version':10s} {'fma':>5s} {'ld.global':>10s} {'ld.shared':>10s}   shared loads per fma   by the table")
    for (version, kernel), (_, _, shared) in zip(KERNELS.items(), COUNTS):
        ptx = kernel.ptx((8, 0))
        fma, from_global, from_shared = (ptx.count(code) for code in ("fma.rn.f32", "ld.global", "ld.shared"))
        print(f"{version:10s} {fma:5d} {from_global:10d} {from_shared:10d}   {from_shared / fma:20.2f} {float(shared):14.2f}")
    lines = [line.strip() for line in KERNELS["register"].ptx((8, 0)).splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("ld.shared"))
    print("\nthe register kernel's inner loop begins:", *lines[first : first + 12], sep="\n    ")
else:
    print("no PTX here:", nvvm_problem())

# %% [markdown]
# ## Running them
#
# If there is a GPU, we compare each version with the float64 reference, and time it. Otherwise the *emulated device* runs the
# compiled kernels on the CPU. It is slow, so the matrices are small. But unlike a GPU, it counts every executed instruction.

# %%
TILES = {"naive": 16, "tiled": 16, "register": 64}


def run_emulated():
    for m, n, k in ((64, 64, 64), (50, 60, 45)):
        a, b = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
        for version, tile in TILES.items():
            counters.clear()
            with emulated():
                c = download_cuda(gemm_version(version, tile, upload_cuda(a), upload_cuda(b)))
            error = np.abs(c - gemm_reference(a, b)).max()
            (found,) = counters.values()
            loads = sum(
                lanes
                for lanes, instruction in zip(found.lanes, found.program.instructions)
                if class_of(instruction) == "global load"
            )
            print(
                f"({m}, {k}) x ({k}, {n})   {version:8s} T = {tile:2d}   largest error {error:.1e}   "
                f"global loads per multiply-add {loads / (m * n * k):.3f}"
            )


def run_on_gpu(side=2048, repeats=10):
    a, b = rng.standard_normal((2, side, side), dtype=np.float32)
    expected = gemm_reference(a, b)
    a, b = upload_cuda(a), upload_cuda(b)
    for version, tile in TILES.items():
        c = gemm_version(version, tile, a, b)
        error = np.abs(download_cuda(c) - expected).max()
        start, stop = cuda.event(), cuda.event()
        start.record()
        for _ in range(repeats):
            gemm_version(version, tile, a, b, out=c)
        stop.record()
        stop.synchronize()
        seconds = cuda.event_elapsed_time(start, stop) / 1e3 / repeats
        print(
            f"{version:8s} T = {tile:2d}   largest error {error:.1e}   {flops(side, side, side) / seconds / 1e12:6.2f} TFLOP/s"
        )


if cuda_problem() is None:
    run_on_gpu()
elif nvvm_problem() is None:
    print("emulated, because:", cuda_problem())
    run_emulated()
else:
    print("neither here nor emulated:", cuda_problem(), nvvm_problem())

# %% [markdown]
# If the sides are multiples of the tile, the emulated device counts the loads of the formulas: 2, then 2/16, then 2/64. For
# other sides, the last tiles extend beyond the matrix. The kernel fills this part with zeros, which are multiplied but not
# loaded.
#
# Further versions could use wider loads, load the next tile while multiplying the current one, or use tensor cores: all of
# these shorten the wait for memory. A different way to save time is to leave out a part of the product: walkthrough 3.
