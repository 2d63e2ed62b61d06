# %% [markdown]
# # 7. Convolutions, and which part of an image to drop
#
# A convolution can be computed as a matrix product. This walkthrough draws that product, then shows which parts of it dropout
# can skip: rows of the input matrix (`rsdp`) or blocks of it (`bsdp`), chosen by the values of the image.
#
# Source: Song, Xu, Li, Jing, Liang, Jiang, "DNN Training Acceleration via Exploring GPGPU Friendly Sparsity", sections 4
# and 5.

# %%
import os
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from numbanet import BlockSensitiveDropout, Context, Net, Plans, RowSensitiveDropout, SkewNormalSchedule, Tensor, no_grad
from numbanet.datasets import load_digits, load_mnist
from numbanet.layers import Conv2d, Tree

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#2f6690", "#d17a22", "#6b7280", "#e5e7eb"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})
rng = np.random.default_rng(0)


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


def draw(ax, matrix, title, xlabel="", ylabel="", cmap="Greys", **limits):
    """A matrix as grey cells."""
    ax.imshow(matrix, cmap=cmap, interpolation="nearest", **limits)
    ax.set_title(title, loc="left", fontsize=10)
    ax.set(xlabel=xlabel, ylabel=ylabel, xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


threadpool_limits(1)  # one core, so that seconds can be compared

# %% [markdown]
# The images are MNIST's if its files are on this machine (in the folder that `NUMBANET_DATA` names, or in the cache); else
# scikit-learn's digits, enlarged to the same 28 × 28. Nothing is downloaded here.


# %%
def enlarged(X):
    """Rows of 8 × 8 pixels as images (1, 28, 28)."""
    return np.pad(np.kron(X.reshape(-1, 1, 8, 8), np.ones((3, 3), np.float32)), ((0, 0), (0, 0), (2, 2), (2, 2)))


try:
    X_train, y_train, X_test, y_test = load_mnist(flat=False, download=False)
except FileNotFoundError:
    X_train, y_train, X_test, y_test = load_digits()
    X_train, X_test = enlarged(X_train), enlarged(X_test)
X_train, y_train, X_test, y_test = X_train[:600], y_train[:600], X_test[:300], y_test[:300]
print("training", X_train.shape, "  test", X_test.shape)

# %% [markdown]
# ## A convolution as a matrix product
#
# At each output position a convolution multiplies the patch under its window by each filter and adds up. Write the patch
# of each position as a row: that is the **input matrix** A, one row for a position, one column for a tap of the window
# (and a channel). Write each filter as a column of w. Then y = A w, and all the work is one product.
#
# Below: a piece of a digit, 8 × 8; windows of 3 × 3 fit at 6 × 6 positions. Four filters make four columns.

# %%
image = X_train[0, 0, 5:13, 11:19]
conv = Conv2d(1, 4, 3, bias=False, rng=1)
patches = np.lib.stride_tricks.sliding_window_view(image, (3, 3))
A = patches.reshape(36, 9)
w = conv.weight.numpy().reshape(4, 9).T
with no_grad():
    y = conv(Tensor(image[None, None])).numpy()[0]
difference = np.abs((A @ w).T.reshape(4, 6, 6) - y).max()
print(f"A {A.shape} times w {w.shape}: largest difference from Conv2d {difference:.1e}")
assert difference < 1e-5

shown = (1, 3), (4, 2)  # two positions
fig, axes = plt.subplots(1, 4, figsize=(10, 4.4), layout="constrained", width_ratios=(8, 5, 3, 3))
draw(axes[0], image, "image, two patches", vmin=-0.15, vmax=1)
draw(axes[1], A, "input matrix A", "tap (9)", "output position (36)", vmin=-0.15, vmax=1)
draw(axes[2], w, "weight w", "filter (4)", "tap (9)", "RdBu", vmin=-1, vmax=1)
draw(axes[3], A @ w, "y = A w", "filter (4)", "output position (36)", "RdBu", vmin=-1.5, vmax=1.5)
for (row, column), colour in zip(shown, (BLUE, ORANGE)):
    axes[0].add_patch(plt.Rectangle((column - 0.5, row - 0.5), 3, 3, fill=False, edgecolor=colour, linewidth=2.5))
    position = row * 6 + column
    for ax, width in ((axes[1], 9), (axes[3], 4)):
        ax.add_patch(plt.Rectangle((-0.5, position - 0.5), width, 1, fill=False, edgecolor=colour, linewidth=2))
save("conv_matrix.png")

# %% [markdown]
# A contains every pixel up to nine times, so building it (`im2col`) costs memory and time. numbanet never builds it: it gathers
# tiles of A into the cache and multiplies them there. But A shows which parts of the product can be *skipped*.
#
# ## Where an image is sensitive
#
# Most values of a feature map are near zero, and the large ones are close to each other. So A is divided into regions. The
# policy reads a few values of each region; if more than half of them exceed a threshold, the region is *sensitive*. Sensitive
# regions are dropped rarely, others often, so that the mean is the dropout rate. `fit` computes the threshold of each layer
# from some training images.
#
# Here is LeNet-5 after a short training, with thresholds computed for its present weights. For a few test images we call the
# policy 60 times at each of the two convolutions, and count how often it keeps each output position: bright positions are kept
# most of the time. Here each image has its own plan (together=1); by default 16 images of a batch share one, which is faster.

# %%
net = Net("lenet5", dropout="rsdp", dropout_rate=0.5, epochs=2, batch_size=32, learning_rate=0.02, random_state=0)
net.fit(X_train, y_train)
model = net.model_
policy = RowSensitiveDropout(0.5, contrast=0.8, together=1).calibrated(model, Tensor(X_train[:64]))
sites, chosen = Tree(model).sites, model.droppable(policy.kind)
few, kept_shares = X_test[:4], {}


def count_choices(site, flow, layer):
    """Called for each site of a layer as soon as its input is computed: images with channels last."""
    if site in chosen:
        masks = [policy.choose_from_flow(site, flow, layer, rng).mask() for _ in range(60)]
        positions = layer.window.positions(*flow.x.shape[1:3])
        kept_shares[site.number] = np.mean(masks, axis=0).reshape(len(flow.x), *positions)


with no_grad():
    model(Tensor(few), Context(plans=Plans(sites=sites, choose=count_choices)))
fig, axes = plt.subplots(3, 4, figsize=(8.5, 6.6), layout="constrained")
for i, column in enumerate(axes.T):
    draw(column[0], few[i, 0], "image" if i == 0 else "", vmin=0, vmax=1)
    for number in (0, 1):
        title = f"convolution {number + 1}: how often\na position is kept" if i == 0 else ""
        picture = column[1 + number].imshow(kept_shares[number][i], cmap="cividis", vmin=0.2, vmax=0.9)
        column[1 + number].set_title(title, loc="left", fontsize=10)
        column[1 + number].set(xticks=[], yticks=[])
        column[1 + number].spines[:].set_visible(False)
fig.colorbar(picture, ax=axes[1:, :], shrink=0.6, label="share of 60 draws")
save("conv_sensitive.png")
report = policy.report()
print("by convolution:", {name: np.round(report[name], 2).tolist() for name in ("dropped", "sensitive")})

# %% [markdown]
# ## Rows and blocks
#
# Dropping saves time only if the dropped parts are large. Two shapes, drawn on the input matrix of the second convolution for
# one image: 100 positions, 5 × 5 taps of 6 channels.
#
# * **rsdp** drops rows of A, which are whole positions. There y is zero, and forward and backward compute kept rows only.
# * **bsdp** drops blocks, the *same number in every block row*, so that all block rows have the same work. It draws at random
#   which blocks it keeps, sensitive ones most likely. (By default blocks are taller, so that the products are larger.)

# %%
second = [layer for layer in model.layers if isinstance(layer, Conv2d)][1]
blocks = BlockSensitiveDropout(0.5, rows=10, columns=6, contrast=0.8).calibrated(model, Tensor(X_train[:64]))
matrices, plans = [], {}


def record(site, flow, layer):
    """Record both plans of the second convolution, and its input matrix with channels as the fastest index."""
    if site in chosen and layer is second:
        windows = np.lib.stride_tricks.sliding_window_view(flow.x.numpy()[0], (5, 5), axis=(0, 1))  # OH, OW, C, KH, KW
        matrices.append(windows.transpose(0, 1, 3, 4, 2).reshape(100, 150))
        plans["rsdp"] = policy.choose_from_flow(site, flow, layer, rng)
        plans["bsdp"] = blocks.choose_from_flow(site, flow, layer, rng)


with no_grad():
    model(Tensor(few[:1]), Context(plans=Plans(sites=sites, choose=record)))
values = np.minimum(matrices[0] / np.quantile(matrices[0], 0.98), 1)
fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.2), layout="constrained")
for ax, name in zip(axes, (None, "rsdp", "bsdp")):
    mask = np.ones(values.shape, bool) if name is None else np.broadcast_to(plans[name].mask().reshape(100, -1), values.shape)
    colours = np.where(mask[..., None], plt.get_cmap("Greys")(values)[..., :3], matplotlib.colors.to_rgb("#e8b986"))
    draw(
        ax,
        colours,
        "input matrix" if name is None else f"{name}: {mask.mean():.0%} kept",
        "tap and channel (150)",
        "output position (100)",
    )
save("conv_dropped.png")
each = plans["bsdp"].mask().reshape(10, 10, 25, 6).all(axis=(1, 3)).sum(axis=1)
print("blocks kept in each block row:", each.tolist())
assert len(set(each.tolist())) == 1

# %% [markdown]
# ## A rate that changes
#
# At the beginning of training and at its end a network needs more of its inputs than in between. `SkewNormalSchedule` follows a
# skew normal density: low at first, rising, low at the end, with exactly the given mean. It is a function epoch → rate; any
# other such function works as well.

# %%
EPOCHS = 20
fig, ax = plt.subplots(figsize=(6.8, 3.6), layout="constrained")
for skew, colour, style in ((-2.0, BLUE, "o-"), (0.0, GREY, "^:"), (2.0, ORANGE, "s--")):
    schedule = SkewNormalSchedule(0.5, EPOCHS, skew=skew)
    ax.plot(
        range(1, EPOCHS + 1),
        [schedule(epoch) for epoch in range(EPOCHS)],
        style,
        color=colour,
        markersize=4,
        label=f"skew {skew:g}",
    )
    assert abs(np.mean(schedule.rates) - 0.5) < 1e-9
ax.plot([0, EPOCHS], [0.5, 0.5], color=GREY, linewidth=1, linestyle=":")
ax.text(EPOCHS + 0.3, 0.5, "mean", color=GREY, va="center")
ax.set(xlabel="epoch", ylabel="dropout rate", ylim=(0, 0.85), xlim=(0, EPOCHS + 2), xticks=range(0, EPOCHS + 1, 5))
ax.set_title("Rates with the same mean", loc="left", fontsize=11)
ax.legend(frameon=False)
save("conv_schedule.png")

# %% [markdown]
# ## LeNet-5
#
# Four kinds of training on 600 images. `flops_share` counts all products of a step, including those of the linear layers,
# which these policies do not change.

# %%
EPOCHS, RATE = 3, 0.5
ways = {
    "none": "none",
    "rsdp": RowSensitiveDropout(RATE),
    "bsdp": BlockSensitiveDropout(RATE),
    "rsdp, rising and falling": RowSensitiveDropout(SkewNormalSchedule(RATE, EPOCHS)),
}
fig, ax = plt.subplots(figsize=(6.8, 3.8), layout="constrained")
print(f"{'':25s} {'test':>7s} {'seconds':>8s} {'share of FLOPs':>15s}")
for (name, dropout), colour, style in zip(ways.items(), (GREY, BLUE, ORANGE, "#5b8c5a"), ("x:", "o-", "s-.", "^--")):
    net = Net("lenet5", dropout=dropout, epochs=EPOCHS, batch_size=32, learning_rate=0.02, random_state=0)
    history = net.fit(X_train, y_train, validation=(X_test, y_test)).history_
    print(
        f"{name:25s} {history[-1]['validation_score']:7.1%} {sum(record['seconds'] for record in history):8.2f} "
        f"{np.mean([record['flops_share'] for record in history]):15.1%}"
    )
    ax.plot(
        range(1, EPOCHS + 1),
        [1 - record["validation_score"] for record in history],
        style,
        color=colour,
        linewidth=1.8,
        label=name,
    )
ax.set(xlabel="epoch", ylabel="test error", yscale="log", xticks=range(1, EPOCHS + 1))
ax.set_yticks([0.1, 0.2, 0.5], ["10 %", "20 %", "50 %"])
ax.minorticks_off()
ax.set_title("LeNet-5 on 600 images, half of each input matrix dropped", loc="left", fontsize=11)
ax.legend(frameon=False, handlelength=3)
save("conv_lenet5.png")

# %% [markdown]
# In a network this small and in so few epochs, dropping saves no time, because the choice of what to drop and the first steps
# cost more than the products that are left out, and it costs accuracy.
# `python -m bench cnn` times larger networks against PyTorch, and `python -m bench papers-cnn` measures their accuracy.
