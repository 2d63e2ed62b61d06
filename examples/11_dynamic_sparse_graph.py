# %% [markdown]
# # 11. A dynamic sparse graph: estimate which neurons have large outputs, compute only those
#
# Dropout skips random neurons. A dynamic sparse graph skips neurons whose outputs would be small, and must estimate which these
# are before it computes them. This walkthrough draws how well a random projection estimates outputs, which neurons are selected
# for each digit, and how much is saved at each rate.
#
# Source: Liu et al., "Dynamic Sparse Graph for Efficient Deep Learning" (2019); Achlioptas, "Database-friendly random
# projections" (2003).

# %%
import os
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from numbanet import Context, DynamicSparseGraph, Linear, Net, Plans, ReLU, Sequential, Tensor, device, no_grad
from numbanet.datasets import load_digits
from numbanet.dropout.graph import johnson_lindenstrauss, kept_of
from numbanet.layers import ActivationSpec, Flow, Tree
from numbanet_kernels.layouts.ternary import dense, ternary

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#2f6690", "#d17a22", "#6b7280", "#e5e7eb"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})
rng, cpu = np.random.default_rng(0), device("cpu")


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


threadpool_limits(1)  # one core

# %% [markdown]
# ## Estimating an inner product
#
# R is a random matrix of k rows with entries 1, 0 and -1, a third of which are not 0. f(v) = sqrt(3 / k) R v needs only
# additions, and the mean of f(x) · f(w) over R is x · w. The error decreases with k, which is computed from epsilon and the
# number of neurons. The picture shows the estimates against the true outputs, for a layer of 512 inputs and 512 neurons with
# random weights:

# %%
X = np.maximum(rng.standard_normal((40, 512)), 0).astype(np.float32)
W = (rng.standard_normal((512, 512)) * np.sqrt(2 / 512)).astype(np.float32)
true = X @ W.T


def estimates(epsilon):
    """f(x) · f(w) for all samples and neurons, and k."""
    k = johnson_lindenstrauss(512, epsilon)
    lists = ternary(k, 512, 0)
    return cpu.project(X, lists, k) @ cpu.project(W, lists, k).T, k


assert np.allclose(
    cpu.project(X, ternary(299, 512, 0), 299), X @ dense(ternary(299, 512, 0), 299, 512).T * np.sqrt(3 / 299), atol=1e-4
)
share = 0.2  # of the neurons that are kept
figure, panels = plt.subplots(1, 3, figsize=(11, 3.8), sharey=True, layout="constrained")
for panel, epsilon in zip(panels, (0.5, 0.7, 0.9)):
    estimate, k = estimates(epsilon)
    count = int(share * 512)
    best, chosen = (np.argsort(values, axis=1)[:, -count:] for values in (true, estimate))
    recall = np.mean([np.isin(a, b).mean() for a, b in zip(best, chosen)])
    selected = np.zeros(true.shape, bool)
    np.put_along_axis(selected, chosen, True, axis=1)
    some = rng.random(true.shape) < 0.15
    for mask, colour in ((~selected, GREY), (selected, ORANGE)):
        panel.plot(true[mask & some], estimate[mask & some], ".", ms=2.5, color=colour, alpha=0.5)
    panel.axline((0, 0), slope=1, color="black", lw=0.8)
    panel.set_title(f"ε = {epsilon}, k = {k}\n{recall:.0%} of the largest fifth selected", loc="left", fontsize=10)
    panel.set_xlabel("output")
panels[0].set_ylabel("estimate")
save("dsg_guesses.png")

# %% [markdown]
# Orange outputs are selected, so they would be computed. A random selection would contain a fifth of the largest fifth; a
# projection to half as many numbers as there are inputs contains more, but far from all.
#
# ## Which neurons a digit uses
#
# With `share="sample"` each sample has its own set of neurons. The picture shows how often each neuron of the first hidden
# layer is selected for each digit, sorted by the digit that uses it most, in a network trained with a rate of 0.8. (These
# images have 64 pixels, fewer than a projection would have numbers: numbanet warns of that, and selects by the true outputs.)

# %%
X_train, y_train, X_test, y_test = load_digits()
options = {"epochs": 12, "batch_size": 32, "learning_rate": 0.02, "random_state": 0, "device": "cpu"}
policy = DynamicSparseGraph(0.8, epsilon=0.9, share="sample")
net = Net(
    [Linear(64, 128, rng=0), ReLU(), Linear(128, 128, rng=1), ReLU(), Linear(128, 10, rng=2)], dropout=policy, **options
).fit(X_train, y_train)
plain = Net((128, 128), dropout="none", **options).fit(X_train, y_train)
print(
    "test accuracy:",
    *(
        f"{fitted.score(X_test, y_test):.3f} {how}"
        for fitted, how in ((net, "with four in five neurons left out,"), (plain, "with all"))
    ),
)
first = net.model_.droppable()[0]
with no_grad():
    mask = policy.choose_from_flow(first, Flow(Tensor(X_test)), net.model_[0], rng).mask()
by_digit = np.stack([mask[y_test == digit].mean(0) for digit in range(10)])
order = np.lexsort((-by_digit.max(0), by_digit.argmax(0), by_digit.max(0) < 0.02))  # those that no digit uses come last
figure, panel = plt.subplots(figsize=(9, 3.2), layout="constrained")
picture = panel.imshow(by_digit[:, order], aspect="auto", cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
panel.set(xlabel="neurons of the first hidden layer", ylabel="digit", yticks=range(10))
panel.spines[:].set_visible(False)
figure.colorbar(picture, label="how often computed")
save("dsg_digits.png")

# %% [markdown]
# Digits share some neurons, and other neurons serve one digit. Many neurons serve none: a neuron that is not selected does not
# learn, and so it is not selected later either. This differs from dropout, which trains every neuron in some steps.
#
# ## What is saved
#
# There are three forms: one set of neurons for the batch (`batch`), one for each group of samples (`tile`), one for each sample
# (`sample`). The left panel shows the operations of a training step of 784-2048-2048-10 with a batch of 128, including those of
# the selection: the projection of some samples, the estimates, and every 50 steps the projection of all weights. The right
# panel shows the memory of the activations that are stored for the backward pass: values for `batch`, values and a bit mask of
# the neurons of each group or sample for the others.

# %%
model = Sequential([Linear(784, 2048, rng=0), ReLU(), Linear(2048, 2048, rng=1), ReLU(), Linear(2048, 10, rng=2)])
batch = Tensor(rng.random((128, 784)))
rates, forms = (0.0, 0.5, 0.8, 0.9), ("batch", "tile", "sample")
full = model.cost(ActivationSpec((128, 784)), Plans())[0].flops
work, stored = {form: [] for form in forms}, {form: [] for form in forms}
for form in forms:
    for rate in rates:
        chosen, spent = DynamicSparseGraph(rate, share=form, select_in_prediction=True), []
        once = chosen.inference_policy(0)  # weights are constant, so that only the first pass projects them
        for _ in range(2):
            plans = Plans(sites=Tree(model).sites, choose=once.choosing(model, rng))
            with no_grad():
                model(batch, Context(plans=plans))
            spent.append(once.pop_flops())
        done = model.cost(ActivationSpec((128, 784)), plans)[0].flops + spent[1] + (spent[0] - spent[1]) / chosen.refresh
        work[form].append(full / done)
        bits = 0 if form == "batch" else 2048 / 8 / (chosen.group if form == "tile" else 1)
        stored[form].append(4 * 2048 / (4 * kept_of(2048, rate) + bits) if rate else 1.0)
figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for panel, ratios, title in (
    (panels[0], work, "operations of a step, times fewer"),
    (panels[1], stored, "activations stored, times fewer"),
):
    for form, colour, line in zip(forms, (BLUE, ORANGE, GREY), ("o-", "s--", "^:")):
        panel.plot(rates, ratios[form], line, color=colour, label=form)
    panel.set(title=title, xlabel="share of the neurons left out", yscale="log", yticks=[1, 2, 5, 10, 20])
    panel.get_yaxis().set_major_formatter(matplotlib.ticker.ScalarFormatter())
    panel.grid(axis="y", color=PALE)
panels[0].legend(frameon=False)
save("dsg_saved.png")
for form in forms:
    print(f"{form:6}", ", ".join(f"{rate:.0%}: {w:.1f} / {s:.1f}" for rate, w, s in zip(rates, work[form], stored[form])))

# %% [markdown]
# Processors are fastest at dense products and slowest at single pairs of a sample and a neuron. So `batch` saves
# time as well as operations, while `sample` saves mostly memory. `python -m bench dsg` measures both.
