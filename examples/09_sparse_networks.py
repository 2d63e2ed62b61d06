# %% [markdown]
# # 9. Sparse networks: skipping inputs whose activations are all zero
#
# A sparse network has few weights, and after a few layers the activations of most inputs are all zero. This walkthrough runs
# the Sparse Deep Neural Network Graph Challenge, 120 layers of 1024 neurons with 32 weights each. It draws which images still
# have activations that are not zero after each layer (we call them alive), and the cost of computing the others.
#
# Sources: Kepner et al., "Sparse Deep Neural Network Graph Challenge" (HPEC 2019); Kepner & Robinett, "RadiX-Net" (2019);
# Wang et al., "Performance of Training Sparse Deep Neural Networks on GPUs".

# %%
import os
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from numbanet.challenge.radixnet import enlarged
from numbanet.datasets import load_digits
from numbanet.sparse import ChallengeData, RadixNet, challenge, load_challenge

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#2f6690", "#d17a22", "#6b7280", "#e5e7eb"
GREEN = "#5b8c5a"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


threadpool_limits(1)  # one core, so that seconds can be compared

# %% [markdown]
# ## The network and its images
#
# A layer is y ← min(max(W y + b, 0), 32). W has 32 weights of 1/16 in each row and each column, b is -0.3 everywhere. The
# structure is a RadiX-Net's: in a group of six layers each input is connected to each output. The images are MNIST's, 32 × 32
# pixels of 0 or 1. If the official files are not on this machine (in the folder that `NUMBANET_DATA` names, or in the cache), a
# network of the same structure is generated, for scikit-learn's digits. Nothing is downloaded here.


# %%
def digits():
    """scikit-learn's digits as the Challenge's images, and a generated network."""
    X = load_digits()[0].reshape(-1, 8, 8)
    X = np.pad(np.kron(X / X.max(), np.ones((3, 3), np.float32)), ((0, 0), (2, 2), (2, 2)))
    pixels = enlarged(X.astype(np.float32), 32)
    starts = np.concatenate([[0], np.cumsum(pixels.sum(axis=1))]).astype(np.int32)
    columns = np.nonzero(pixels)[1].astype(np.int32)
    return ChallengeData(starts, columns, np.ones(len(columns), np.float32), RadixNet(1024, 120), None)


try:
    data = load_challenge()
except FileNotFoundError:
    data = digits()
images, layers = len(data.starts) - 1, len(data.network)
print(f"{images} images of {data.starts[-1] / images:.0f} pixels, {layers} layers of {data.network[0].indices.size} weights")

# %% [markdown]
# ## Layers by hand
#
# All rows of W have the same number of weights, so that two arrays (the ELL format) contain them: `indices` (1024, 32), the
# input of each weight, and `values`. With activations (neurons, images), a layer is three lines of NumPy.

# %%
SHOWN, FIRST = 300, 30  # images and layers


def by_hand(data, count, depth):
    """Activations (neurons, images) of the first images before each of the first layers, and after the last one."""
    y = np.zeros((len(data.network[0].indices), count), np.float32)
    y[data.columns[: data.starts[count]], np.repeat(np.arange(count), np.diff(data.starts[: count + 1]))] = 1
    activations = [y]
    for indices, values, bias in list(data.network)[:depth]:
        total = sum(values[:, k, None] * y[indices[:, k]] for k in range(indices.shape[1]))
        y = np.clip(total + bias[:, None], 0, 32)
        activations.append(y)
    return activations


def draw_pictures(axes, activations, image, title):
    """The activations of one image after some layers, as 32 x 32 pixels."""
    for ax, layer in zip(axes, (0, 1, 2, 4, 8, 16, FIRST)):
        ax.imshow(activations[layer][:, image].reshape(32, 32).T, cmap="Blues", vmin=0, vmax=max(1, activations[layer].max()))
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_color(PALE)
        ax.spines[:].set_visible(True)
        ax.set_title("image" if layer == 0 else f"after {layer}", fontsize=9)
    axes[0].set_ylabel(title, fontsize=9)


activations = by_hand(data, SHOWN, FIRST)
alive = np.array([y.any(axis=0) for y in activations])  # (layer, image)
age = alive[1:].sum(axis=0)  # n layers after which an image is alive
survivor, short, shortest = (int(np.argmin(np.abs(age - wanted))) for wanted in (FIRST, 6, 2))
fig, axes = plt.subplots(3, 7, figsize=(10, 4.6), layout="constrained")
for row, image in zip(axes, (shortest, short, survivor)):
    draw_pictures(row, activations, image, f"lives {'on' if age[image] == FIRST else f'{age[image]} layers'}")
save("sparse_activations.png")
last = activations[-1][:, alive[-1]]
print(f"of {SHOWN} images {alive[-1].sum()} live after {FIRST} layers, with neurons from {last.min():g} to {last.max():g}")
assert alive[1:].any() and (age < FIRST).any()
assert not (alive[1:] & ~alive[:-1]).any(), "what is 0 stays 0"

# %% [markdown]
# The activations of images with few pixels vanish: the bias subtracts 0.3 from each sum, so they become smaller in every layer.
# Those of images with many pixels grow until all neurons reach 32: one bit of information about an image is left. Multiplying
# zeros is wasted work.
#
# ## Which images stay alive
#
# `challenge` runs all layers. Before each layer it compacts the images that are alive into adjacent columns, so that it
# computes only them. The Challenge's rate, inputs × connections / time, counts all products, including skipped ones.

# %%
INPUTS = min(images, 3008)  # a multiple of 16: images are computed in groups of 16
runs = {way: challenge(data=data, way=way, inputs=INPUTS) for way in ("compact", "filter", "buffer")}
compact = runs["compact"]
for way, run in runs.items():
    print(f"{way}: {run.seconds:.2f} s, {run.rate:.2g} edges/s, of which {run.share_done:.1%} were multiplied")
    assert np.array_equal(run.categories, compact.categories) and run.correct in (True, None)
known = compact.categories[compact.categories < SHOWN]
assert len(known) and alive[-1, known].all(), "an image that is alive at the end is alive before"


def draw_dying(left, right):
    """Left: which images are alive before each layer, the longest-lived first. Right: their share."""
    order = np.argsort(-age, kind="stable")
    left.imshow(alive[:, order].T, cmap=matplotlib.colors.ListedColormap((PALE, BLUE)), aspect="auto", interpolation="nearest")
    left.set(xlabel="layers done", ylabel=f"{SHOWN} images, those that live longest first")
    left.set_title("not 0 yet", loc="left", fontsize=10)
    share = compact.live / compact.inputs
    right.step(np.arange(layers), share, where="post", color=BLUE, linewidth=1.8)
    right.fill_between(np.arange(layers), share, step="post", color=BLUE, alpha=0.15)
    right.set(xlabel="layers done", ylabel="share of the images that is not 0 yet", ylim=(0, 1.02), xlim=(0, layers))
    right.set_title(f"{compact.inputs} images: {share.mean():.1%} of all multiplications", loc="left", fontsize=10)


fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
draw_dying(left, right)
save("sparse_dying.png")
assert (np.diff(compact.live) <= 0).all() and compact.live[-1] == len(compact.categories)

# %% [markdown]
# ## The cost of three algorithms
#
# `buffer` computes all images in all layers. `filter` skips images that are all 0, but does not move the others: it computes 16
# or 8 adjacent images together, and if one of them is alive, the group costs as much as if all were. `compact` moves images
# that are alive next to each other while it reads them, so that the cost of a layer is proportional to their number.


# %%
def draw_ways(left, right):
    """Left: milliseconds of each layer. Right: their cumulative sum."""
    for (way, run), colour, dash in zip(runs.items(), (BLUE, GREEN, ORANGE), ("-", "--", ":")):
        left.plot(np.arange(1, layers + 1), 1e3 * run.by_layer, dash, color=colour, linewidth=1.5, label=way)
        right.plot(np.arange(1, layers + 1), 1e3 * np.cumsum(run.by_layer), dash, color=colour, linewidth=1.8)
        right.annotate(
            f" {run.multiplications.sum() / 1e9:.1f}G",
            (layers, 1e3 * run.by_layer.sum()),
            color=colour,
            fontsize=9,
            va="center",
        )
    left.set(xlabel="layer", ylabel="ms of the layer", yscale="log")
    left.legend(frameon=False, loc="lower left", ncols=3, bbox_to_anchor=(0, 1))
    right.set(xlabel="layer", ylabel="ms up to this layer")
    right.set_title("multiplications in the end", loc="right", fontsize=9)


fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
draw_ways(left, right)
save("sparse_ways.png")
assert compact.multiplications.sum() < runs["filter"].multiplications.sum() < runs["buffer"].multiplications.sum()
