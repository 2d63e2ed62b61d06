# %% [markdown]
# # 10. A network that shrinks while it learns
#
# Most weights of a trained network can be removed without loss of accuracy. But single zero weights save nothing, because a
# dense product still multiplies them. Here the weights of whole neurons, and of whole input features, become zero during
# training. They are removed from the arrays, and the following steps compute smaller products.
#
# Sources: Wen et al., "Learning structured sparsity in deep neural networks" (2016); Yuan & Lin, "Model selection and
# estimation in regression with grouped variables" (2006); Wang & Leng, "A note on adaptive group lasso" (2008); Zhu & Gupta,
# "To prune, or not to prune" (2017).

# %%
import os
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from numbanet import GroupLasso, MagnitudePruning, Net, Select, device
from numbanet.datasets import load_digits, load_mnist

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, GREEN = "#2f6690", "#d17a22", "#6b7280", "#5b8c5a"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


threadpool_limits(1)  # one core, so that seconds can be compared

# %% [markdown]
# The images are MNIST's if its files are on this machine (in the folder that `NUMBANET_DATA` names, or in the cache); else
# scikit-learn's digits, enlarged to the same 28 × 28. Nothing is downloaded here.


# %%
def enlarged(X):
    """Rows of 8 × 8 pixels as rows of 28 × 28."""
    return np.pad(np.kron(X.reshape(-1, 8, 8), np.ones((3, 3), np.float32)), ((0, 0), (2, 2), (2, 2))).reshape(-1, 784)


try:
    X_train, y_train, X_test, y_test = load_mnist(download=False)
except FileNotFoundError:
    X_train, y_train, X_test, y_test = load_digits()
    X_train, X_test = enlarged(X_train), enlarged(X_test)
X_train, y_train, X_test, y_test = X_train[:2000], y_train[:2000], X_test[:1000], y_test[:1000]
print("training", X_train.shape, "  test", X_test.shape)

# %% [markdown]
# ## One step of a group lasso
#
# The penalty is the sum of the *norms* of groups, here the rows of a weight, one for each neuron. Its gradient pulls each row
# towards zero with the same force however short the row is, so that short rows reach zero and stop there. At zero a norm has
# no gradient; a **proximal step** after each update does exactly what is meant:
#
# w ← w · max(0, 1 − t / |w|)
#
# Each row becomes shorter by t, and rows shorter than t become zero. Below: 60 neurons with two weights each. On the right t is
# multiplied by the mean norm over |w|, so that long rows, which matter most for the error, change least.

# %%
rng = np.random.default_rng(0)
rows = (rng.standard_normal((60, 2)) * np.linspace(0.1, 1.4, 60)[:, None]).astype(np.float32)
norms = np.linalg.norm(rows, axis=1)
fig, axes = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained", sharex=True, sharey=True)
for ax, reference, title in ((axes[0], 0.0, "all by the same length"), (axes[1], norms.mean() / 2**0.5, "short ones more")):
    after = rows.copy()
    left = device("cpu").shrink(after, 1, 2, 0.35, reference)[1]
    ax.quiver(*rows.T, *(after - rows).T, angles="xy", scale_units="xy", scale=1, color=GREY, width=0.004, zorder=1)
    ax.scatter(*rows.T, s=14, color=BLUE, label="before", zorder=2)
    ax.scatter(*after[left[:, 0] > 0].T, s=14, color=ORANGE, label="after", zorder=3)
    ax.plot(0, 0, "x", color="black", markersize=9)
    ax.set_title(f"{title}: {np.count_nonzero(left == 0)} of 60 are zero", loc="left", fontsize=11)
    ax.set(aspect="equal", xlabel="first weight")
    assert np.array_equal(left[:, 0] == 0, ~after.any(axis=1))
axes[0].set_ylabel("second weight")
axes[0].legend(frameon=False)
save("shrinking_step.png")

# %% [markdown]
# ## The arrays, epoch by epoch
#
# 784-160-160-10 with a penalty on rows *and* columns: if a row is zero, its neuron has a constant output; if a column is zero,
# the next layer does not use that neuron or pixel. Both are removed at the end of an epoch, with their biases and their state
# in the optimiser. The contribution of a constant neuron to the next layer is added to that layer's bias, so that the network
# computes the same function. The first half of the epochs has the penalty; the others fine-tune.

# %%
EPOCHS = 10
options = {"epochs": EPOCHS, "batch_size": 32, "learning_rate": 0.04, "learning_rate_schedule": "linear", "random_state": 0}
drawn = {}


def record_arrays(net, record):
    """Called after every epoch: record the pixels that the network reads, and its weights."""
    select = [layer.plan.indices() for layer in net.model_.layers if isinstance(layer, Select)]
    weights = [np.abs(p.numpy()) for p in net.model_.parameters() if p.ndim == 2]
    drawn[record["epoch"]] = select[0] if select else np.arange(784), weights


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # these fits only compile all code before timing
    for sparsity in (GroupLasso(0.1), GroupLasso(0.1, "tiles"), MagnitudePruning()):
        Net((64,), sparsity=sparsity, epochs=2, random_state=0).fit(X_train[:200], y_train[:200])

net = Net((160, 160), sparsity=GroupLasso(5e-4, groups=("rows", "columns")), callbacks=[record_arrays], **options)
net.fit(X_train, y_train, validation=(X_test, y_test))
for epoch in range(1, EPOCHS + 1):
    print(f"epoch {epoch:2d}:", "-".join(str(n) for n in (len(drawn[epoch][0]), *(len(w) for w in drawn[epoch][1]))))
print(net.model_)
assert net.history_[-1]["weights_kept"] < 0.3

# %% [markdown]
# After epochs 1, 3, 4 and 10, all at one scale: the first weight (neurons × pixels), and under it the second.

# %%
shown = (1, 3, 4, EPOCHS)
fig, axes = plt.subplots(2, len(shown), figsize=(10, 3.9), layout="constrained", sharex=True, sharey=True)
for column, epoch in zip(axes.T, shown):
    for ax, weight in zip(column, drawn[epoch][1]):
        order = np.argsort(-np.linalg.norm(weight, axis=1))
        ax.imshow(
            weight[order],
            cmap="Greys",
            vmin=0,
            vmax=0.15,
            aspect="auto",
            interpolation="nearest",
            extent=(0, weight.shape[1], weight.shape[0], 0),
        )
        ax.set(xlim=(0, 784), ylim=(160, 0), xticks=[], yticks=[])
        ax.add_patch(plt.Rectangle((0, 0), *weight.shape[::-1], fill=False, edgecolor=BLUE, linewidth=1.5))
        ax.set_title(f"{weight.shape[0]} × {weight.shape[1]}", loc="left", fontsize=9)
        ax.spines[:].set_visible(False)
    column[0].set_title(
        f"epoch {epoch}:  {drawn[epoch][1][0].shape[0]} × {drawn[epoch][1][0].shape[1]}", loc="left", fontsize=9
    )
axes[0, 0].set_ylabel("first weight")
axes[1, 0].set_ylabel("second weight")
save("shrinking_arrays.png")

# %% [markdown]
# The pixels that the network still reads. It drops the margin first, which is the same in all images.

# %%
fig, axes = plt.subplots(1, len(shown), figsize=(10, 2.7), layout="constrained")
for ax, epoch in zip(axes, shown):
    read = np.zeros(784)
    read[drawn[epoch][0]] = 1
    ax.imshow(X_train.mean(axis=0).reshape(28, 28), cmap="Greys", vmax=1)
    ax.imshow(np.where(read, np.nan, 1).reshape(28, 28), cmap="Oranges", vmin=0, vmax=4)
    ax.set_title(f"epoch {epoch}: {len(drawn[epoch][0])} read", loc="left", fontsize=10)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
save("shrinking_pixels.png")

# %% [markdown]
# ## What it costs and what it saves
#
# The loss has three parts: the error, the penalty, and, with `cost_weight`, the penalty multiplied by the time that a layer's
# weights take on this device. The left panel shows the shares of weights and FLOPs that remain in each epoch.

# %%
epochs = [record["epoch"] for record in net.history_]
fig, axes = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
for key, colour, style, label in (
    ("weights_kept", BLUE, "o-", "weights kept"),
    ("flops_share", ORANGE, "s--", "FLOPs of the epoch"),
):
    axes[0].plot(epochs, [record[key] for record in net.history_], style, markersize=4, color=colour, label=label)
axes[0].set(ylim=(0, 1.05), title="shares")
for key, colour, style, label in (("loss", BLUE, "o-", "error"), ("sparsity_loss", ORANGE, "s--", "sparsity")):
    axes[1].plot(epochs, [record[key] for record in net.history_], style, markersize=4, color=colour, label=label)
axes[1].set(ylim=(0, 6.5), title="parts of the loss")
axes[2].plot(epochs, [100 * record["validation_score"] for record in net.history_], "o-", markersize=3.5, color=GREEN)
axes[2].set(title="test accuracy, %")
for ax in axes:
    ax.axvspan(EPOCHS // 2 + 0.5, EPOCHS + 0.5, color="#e5e7eb", zorder=0)
    ax.set(xlabel="epoch, grey: fine-tuning", xticks=range(1, EPOCHS + 1, 2))
for ax in axes[:2]:
    ax.legend(frameon=False)
save("shrinking_history.png")

# %% [markdown]
# For comparison: the same network dense; with a penalty on rows; with a penalty on tiles of 32 × 32, which gives
# sparse layers of tiles; and with pruning of single weights, which gives sparse layers of single entries. In networks this
# small the fixed cost of a step hides a part of the savings; `python -m bench papers-fssl` measures larger ones.


# %%
def prediction(net):
    """The shortest time of five predictions, in milliseconds."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        net.predict(X_test)
        times.append(1e3 * (time.perf_counter() - began))
    return min(times)


ways = {
    "dense": None,
    "rows": GroupLasso(1e-3, "rows"),
    "tiles": GroupLasso(1.2e-3, "tiles"),
    "single weights": MagnitudePruning(0.9),
}
nets = {
    "rows and columns": net,
    **{name: Net((160, 160), sparsity=sparsity, **options).fit(X_train, y_train) for name, sparsity in ways.items()},
}
print(f"{'':18s} {'test':>7s} {'kept':>7s} {'training, s':>12s} {'prediction, ms':>15s}")
for name, fitted in nets.items():
    print(
        f"{name:18s} {fitted.score(X_test, y_test):7.1%} {fitted.history_[-1].get('weights_kept', 1):7.1%} "
        f"{sum(record['seconds'] for record in fitted.history_):12.2f} {prediction(fitted):15.2f}"
    )
