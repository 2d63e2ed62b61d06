# %% [markdown]
# # 3. Dropout as skipped work
#
# Dropout trains a different sub-network in each step: every neuron is dropped with probability p. At p = 0.7 a step uses
# less than a third of the neurons, but conventional dropout computes all of them and multiplies the dropped ones by zero.
# This walkthrough shows why a processor cannot skip these zeros, and which zeros it can skip.
#
# Source of both patterns: Song, Wang, Ru, Peng, Huang, Zhao, Liang, Jiang, "Approximate Random Dropout for DNN training
# acceleration in GPGPU" (2018).

# %%
import os
from pathlib import Path
from time import perf_counter

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from numbanet import BernoulliPlan, Context, Linear, ReLU, RowPlan, Sequential, Tensor, TilePlan, no_grad, ops
from numbanet.dropout.search import pattern_distribution
from numbanet.layers import ActivationSpec

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#2f6690", "#d17a22", "#6b7280", "#e5e7eb"
LIGHT = "#9db9cc"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})
rng = np.random.default_rng(0)


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


def draw(ax, matrix, title, xlabel, ylabel, colours=(PALE, BLUE)):
    """Draw a matrix of small integers as coloured cells."""
    palette = matplotlib.colors.ListedColormap(colours)
    ax.imshow(matrix, cmap=palette, vmin=0, vmax=len(colours) - 1, interpolation="nearest")
    ax.set_title(title, loc="left", fontsize=11)
    ax.set(xlabel=xlabel, ylabel=ylabel, xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


# %% [markdown]
# ## Zeros at random positions
#
# A layer computes y[n, o] = act(Σ_i x[n, i] w[o, i] + b[o]) for N samples. Conventional dropout then multiplies each
# y[n, o] by an independent random factor: 0 with probability p, else 1/(1 - p), so that the mean is unchanged.
# `BernoulliPlan` draws these factors; here it is applied to ones, to make the factors visible. The second picture is a
# **row pattern**: it keeps the neurons bias, bias + dp, bias + 2 dp, … for all samples.

# %%
N, O = 32, 64
coins = BernoulliPlan(O, rate=2 / 3, key=1)
scattered = ops.dropout(Tensor(np.ones((N, O))), plan=coins).numpy() > 0
rows = RowPlan(O, dp=3, bias=1)
striped = np.broadcast_to(rows.mask(), (N, O))

fig, axes = plt.subplots(1, 2, figsize=(10, 3.1), layout="constrained")
for ax, mask, name in zip(axes, (scattered, striped), ("bernoulli, p = 2/3", "rdp, dp = 3")):
    draw(ax, mask, f"{name}: {mask.mean():.0%} of y kept", f"neuron ({O})", f"sample ({N})")
save("dropout_activations.png")

# %% [markdown]
# Both keep a third of the outputs. But hardware does not compute single numbers: threads run in groups, and a block computes
# a tile of y from tiles of x and w (walkthrough 2). Time is saved only if *all* outputs of a group are dropped. For a
# group of g outputs, the probability of this is p^g.

# %%
for g in (1, 4, 16, 32):
    print(f"groups of {g:2d} outputs: {(2 / 3) ** g:.1e} of them are dropped entirely")

# %% [markdown]
# If whole columns of y are dropped, whole rows of w are not read. The rest is a smaller *dense* product, which hardware
# computes fastest.
#
# ## The part of a weight that a pattern keeps
#
# A **plan** defines which part of a product is computed in this step. Here are three plans for a weight w of 64 × 48:
#
# * **rdp**, output side: `RowPlan(64, dp, bias)` keeps every dp-th row of w.
# * **rdp on both sides**: the layer before dropped neurons too, so the corresponding columns of w would be multiplied by
#   zeros. One row in dp and one column in dp' are left: 1/(dp dp') of the product.
# * **tdp**: w is divided into tiles of T × T. `TilePlan` keeps the tile in tile row r and tile column c if
#   (r + c) mod dp = bias or, with mix > 0, if (a[r] + b[c]) mod dp = bias for fixed permutations a and b. It drops
#   *connections* instead of neurons, as DropConnect does.

# %%
I = 48
before = RowPlan(I, dp=2, bias=0)
tiles = TilePlan((O, I), tile=8, dp=5, bias=1)
kept_rows = np.broadcast_to(rows.mask()[:, None], (O, I))
both = np.outer(rows.mask(), before.mask())
panels = [(kept_rows, "rdp, output side: dp 3"), (both, "rdp, both sides: dp 3, dp 2"), (tiles.mask(), "tdp: tiles of 8, dp 5")]

fig, axes = plt.subplots(1, 4, figsize=(11, 4), layout="constrained", width_ratios=(I, I, before.count, I))
for ax, (mask, title) in zip(axes[[0, 1, 3]], panels):
    draw(ax, mask, f"{title}\n{mask.mean():.1%} kept", f"input ({I})", f"output ({O})")
draw(
    axes[2],
    np.ones((rows.count, before.count)),
    "the same, compact",
    f"kept inputs ({before.count})",
    f"kept outputs ({rows.count})",
    (BLUE, BLUE),
)
axes[2].set(xlim=(-0.5, before.count - 0.5), ylim=(O - 0.5, -0.5))  # at the same scale as the other panels
axes[2].set_ylabel(f"kept outputs ({rows.count})", y=1 - rows.count / O / 2, fontsize=10)
axes[2].xaxis.set_label_coords(0.5, 1 - rows.count / O - 0.03)
save("dropout_weights.png")

# %% [markdown]
# With row plans, activations are compact: the output of one layer, (N, kept), is directly the input of the next layer. The
# zeros of dropped neurons are never stored. Elementwise functions work on compact arrays too, and `expand` inserts the
# zeros if an operation needs them.
#
# ## Tiles are block-diagonal
#
# The kept tiles form diagonals: tile row r keeps the tile columns
#
# c ≡ bias - r  (mod dp).
#
# Tile rows r and r + dp keep the same tile columns, so tile rows form **dp classes** (fewer if there are fewer rows). Two
# classes never share a column. If rows and columns are sorted by class, each class is one dense block on the diagonal. So
# a tile pattern is dp small dense products, and the kept positions follow from a formula, without a search.
#
# The paper numbers the tiles row by row instead, t = r C + c with C tile columns, and keeps the tiles with
# t mod dp = bias. The classes are the same in another order, unless C and dp have a common factor. In that case several
# tile rows keep the same columns, and the other columns are not used in this step; networks then learn less. If the tiles
# always have the same order, the same tiles are always kept together, and networks overfit to these few patterns.
# So `TileDropout` draws one of four orders in each step.

# %%
tile_rows, tile_cols = tiles.grid
P = min(tiles.dp, tiles.grid[0])
print(f"{tile_rows} tile rows, dp = {tiles.dp}: {P} classes")

class_of_row = np.arange(tile_rows) % P
class_of_col = (tiles.bias - np.arange(tile_cols)) % tiles.dp
row_order = np.argsort(class_of_row, kind="stable")
col_order = np.argsort(class_of_col, kind="stable")

coloured = np.where(tiles.tile_mask(), 1 + class_of_row[:, None], 0)
fig, axes = plt.subplots(1, 2, figsize=(7.6, 4.6), layout="constrained")
shades = (PALE, BLUE, ORANGE, LIGHT, "#1d3f5a", "#e8b986")[: P + 1]
for ax, matrix, r_names, c_names, title in (
    (axes[0], coloured, range(tile_rows), range(tile_cols), "kept tiles of w, coloured by class"),
    (axes[1], coloured[row_order][:, col_order], row_order, col_order, "the same, sorted by class"),
):
    draw(ax, matrix, title, "tile column c", "tile row r", shades)
    ax.set_xticks(range(tile_cols), c_names)
    ax.set_yticks(range(tile_rows), r_names)
    ax.tick_params(length=0, colors=GREY)
    ax.set_xticks(np.arange(tile_cols + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(tile_rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=2)
    ax.tick_params(which="minor", length=0)
save("dropout_tiles.png")

# %% [markdown]
# ## Is it the same number?
#
# A plan must not change the mathematics. Every operation with a plan is tested against its mask M = plan.mask(): the
# result *and* every gradient must equal those of the dense layer with the weight w ∘ M.

# %%
x = Tensor(rng.standard_normal((N, I)), requires_grad=True)
w = Tensor(rng.standard_normal((O, I)), requires_grad=True)
b = Tensor(rng.standard_normal(O), requires_grad=True)
dy = rng.standard_normal((N, O)).astype(np.float32)


def gradients(y, dy):
    """(y, dx, dw, db) for the gradient dy of y."""
    for leaf in (x, w, b):
        leaf.zero_grad()
    y.backward(dy)
    return y.numpy(), x.grad.numpy(), w.grad.numpy(), b.grad.numpy()


def largest_difference(planned, dense):
    return max(np.abs(p - d).max() for p, d in zip(planned, dense))


def report(name, planned, dense):
    difference = largest_difference(planned, dense)
    print(f"{name:10s} largest difference in y, dx, dw, db: {difference:.1e}")
    assert difference < 1e-3


# rdp on both sides: x and y are compact; expand inserts the zeros into y
compact = x[:, np.flatnonzero(before.mask())]
planned = ops.expand(ops.linear_rows(compact, w, b, rows=rows, cols=before, relu=True), plan=rows)
zeros = Tensor(rows.mask().astype(np.float32))
dense = ops.linear(x * before.mask(), w, b, relu=True) * zeros
report("rdp", gradients(planned, dy), gradients(dense, dy))

# tdp: shapes stay as they are
dense = ops.linear(x, w * tiles.mask(), b, relu=True)
report("tdp", gradients(ops.linear_tiles(x, w, b, plan=tiles, relu=True), dy), gradients(dense, dy))

# %% [markdown]
# ## The share of FLOPs
#
# How many FLOPs remain in the mean over many steps? A step draws dp with probability d[dp] (walkthrough 4) such that
# Σ d[dp] (1 - 1/dp) = p. So the mean share of kept neurons or tiles is Σ d[dp]/dp = **1 - p**, as in conventional dropout.
# For tdp this is also the share of FLOPs. For rdp, two layers draw their patterns independently, so a weight between two
# dropped layers keeps **(1 - p)²** of its FLOPs.
#
# The picture shows this share for a whole training step (forward, dx, dw, with first and last layer), averaged over d.

# %%
WIDTHS = (784, 2048, 2048, 10)
layers = [Linear(n_in, n_out, rng=0) for n_in, n_out in zip(WIDTHS, WIDTHS[1:])]
network = Sequential([layers[0], ReLU(), layers[1], ReLU(), layers[2]])


def flops(plans=None):
    """FLOPs of a training step of 128 samples under these plans."""
    return network.cost(ActivationSpec((128, WIDTHS[0])), Context(plans=plans, model=network).plans)[0].flops


def share(policy, p):
    """Mean FLOPs of a training step over those of dense training."""
    d = pattern_distribution(p)
    total = 0.0
    for i, d_i in enumerate(d, 1):
        for j, d_j in enumerate(d, 1):
            if policy == "rdp":
                plans = {layers[0]: RowPlan(WIDTHS[1], i, 0), layers[1]: RowPlan(WIDTHS[2], j, 0)}
            else:
                plans = {layer: TilePlan(layer.weight.shape, 32, dp, 0) for layer, dp in zip(layers, (i, j))}
            total += d_i * d_j * flops(plans)
    return total / flops()


rates = np.linspace(0, 0.85, 18)
shares = {policy: [share(policy, p) for p in rates] for policy in ("tdp", "rdp")}
fig, ax = plt.subplots(figsize=(6.8, 3.8), layout="constrained")
ax.plot(rates, np.ones_like(rates), "--", color=GREY, linewidth=2)
ax.text(0.87, 1, "bernoulli", color=GREY, va="center")
for policy, colour, mark, power in (("tdp", ORANGE, "s", 1), ("rdp", BLUE, "o", 2)):
    ax.plot(rates, (1 - rates) ** power, color="black", linewidth=1, linestyle=":", zorder=3)  # above the coloured curve
    ax.plot(rates, shares[policy], mark + "-", color=colour, linewidth=4, alpha=0.7, markersize=7, markevery=3)
    ax.text(0.87, shares[policy][-1], policy, color=colour, va="center")
ax.text(0.42, 0.64, "1 − p", fontsize=10)
ax.text(0.2, 0.5, "(1 − p)²", fontsize=10, ha="right")
ax.text(0.02, 0.1, "dotted: the formulas", fontsize=10)
ax.set(xlabel="drop rate p", ylabel="share of the FLOPs of a step", xlim=(0, 0.97), ylim=(0, 1.06))
ax.set_title(f"What is left to compute: {' · '.join(map(str, WIDTHS))}, 128 samples", loc="left", fontsize=11)
save("dropout_flops.png")
for p in (0.5, 0.7):
    print(f"p = {p}   tdp {share('tdp', p):.1%}   rdp {share('rdp', p):.1%}")

# %% [markdown]
# ## Mask-driven or list-driven
#
# A kernel can get a pattern in two ways.
#
# * **As a mask.** The grid has a block for every row or tile of y. A block reads the mask and returns at once if its row or
#   tile is dropped. This is simple, but every block is launched, and the blocks that do work are spread unevenly.
# * **As a list.** The grid has a block for every kept row or tile. Block i looks up the i-th kept index, or computes it:
#   kept rows are bias + i dp, and kept tiles follow the formula above. No block is launched for dropped work.
#
# `families/gemm_rows/cuda.py` of `numbanet_kernels` has both for rows; that with a mask is for teaching. For rows a mask
# costs more than idle blocks. A block that computes 32 adjacent rows can never skip all of them, so with a mask each block
# computes one row, and a number of x that it loads is used for one output instead of 32. The table counts the blocks for a
# weight of H × H and 128 samples, with 32 samples per block:

# %%
H, samples, tile = 2048, 128, 32
print("dp    mask-driven: launched   at work    list-driven: launched = at work")
for dp in (1, 2, 4, 8):
    count = RowPlan(H, dp, 0).count
    print(f"{dp:2d} {H * samples // tile:24d} {count * samples // tile:9d} {-(-count // tile) * samples // tile:33d}")

# %% [markdown]
# On a CPU the list is even simpler. The kept rows w[bias::dp] of a row-major matrix are a matrix with a dp times larger row
# stride, and BLAS accepts such a *leading dimension* without a copy. We compare the time of such a product with that of
# conventional dropout:


# %%
def milliseconds(f, repeats=15):
    f()
    times = []
    for _ in range(repeats):
        start = perf_counter()
        f()
        times.append(perf_counter() - start)
    return 1e3 * min(times)  # the run that other processes disturbed least


H = 1024
w = Tensor(rng.standard_normal((H, H)))
x = Tensor(rng.standard_normal((128, H)))
coins = BernoulliPlan(H, 0.5, key=1, scale=2.0)
with no_grad(), threadpool_limits(1):  # one core, so that the figures can be compared
    times = {
        "dense": [milliseconds(lambda: ops.linear(x, w))],
        "bernoulli": [milliseconds(lambda: ops.dropout(ops.linear(x, w), plan=coins))],
    }
    for dp in (2, 4, 8):
        plan = RowPlan(H, dp, 0)
        compact = Tensor(x.numpy()[:, ::dp])
        times.setdefault("rdp", []).append(milliseconds(lambda: ops.linear_rows(compact, w, rows=plan, cols=plan)))
        tiled = TilePlan((H, H), 32, dp, 0)
        times.setdefault("tdp", []).append(milliseconds(lambda: ops.linear_tiles(x, w, plan=tiled)))

dense = times["dense"][0]
print(f"forward, 128 x {H} by {H} x {H}: dense {dense:.2f} ms, with bernoulli dropout {times['bernoulli'][0]:.2f} ms")
for i, dp in enumerate((2, 4, 8)):
    print(f"dp {dp}   rdp on both sides {times['rdp'][i]:5.2f} ms   tdp {times['tdp'][i]:5.2f} ms")

# %% [markdown]
# The times of row patterns fall with the FLOPs, because only the kept columns of w are copied. Tile patterns must copy panels
# of x and blocks of w. On a CPU and at small periods, this can take as much time as they save; on a GPU, kernels must load
# tiles into shared memory anyway, so the copy costs nothing extra. Conventional dropout takes longer than the dense product.
#
# Whether the network still *learns* with such regular patterns is the subject of walkthroughs 4 (which patterns, and how
# often) and 5 (training).
