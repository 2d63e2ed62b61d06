# %% [markdown]
# # 13. Training by hand: the loop inside `Net.fit`
#
# `Net.fit` is a loop: take a batch, compute the loss, compute its gradient, update the weights. This walkthrough writes the
# loop in ten lines, and then changes parts for which `Net` has no parameter: the plans of each step, the loss, and the layers
# that are trained. It uses only public classes: tensors, layers, plans and optimisers.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from numbanet import SGD, AdamW, Linear, ReLU, RowDropout, Sequential, Tensor, check_grad, no_grad, ops, where
from numbanet.datasets import load_digits

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY = "#1d4e79", "#d17a22", "#6b7280"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


threadpool_limits(1)  # one core: small products gain little from more
X_train, y_train, X_test, y_test = load_digits()
y_train, y_test = y_train.astype(np.int32), y_test.astype(np.int32)

# %% [markdown]
# ## The loop
#
# `backward` adds a gradient to every parameter; `step` updates the parameters and clears the gradients. A comparison of tensors
# is a mask of 1 and 0, so the mean of `predictions == y` is the accuracy.


# %%
def network(seed=0):
    return Sequential([Linear(64, 128, rng=seed), ReLU(), Linear(128, 10, rng=seed + 1)])


def batches(X, y, rng, size=64):
    order = rng.permutation(len(y))
    for start in range(0, len(y), size):
        some = order[start : start + size]
        yield Tensor(X[some]), y[some]


def accuracy(model, X, y):
    with no_grad():
        return (model(Tensor(X)).argmax(axis=1) == y).mean().item()


model, rng = network(), np.random.default_rng(0)
optimizer = SGD(model.parameters(), learning_rate=0.05, momentum=0.9)
for _ in range(5):
    for x, labels in batches(X_train, y_train, rng):
        loss = ops.softmax_cross_entropy(model(x), labels=labels)
        loss.backward()
        optimizer.step()
print(f"accuracy on the test images: {accuracy(model, X_test, y_test):.1%}, loss of the last batch: {loss.item():.3f}")

# %% [markdown]
# ## Dropout: a plan for each step
#
# A policy draws a plan for every *site*: a place in the network where dropout is applied, such as the output of a layer. If a
# model is called with plans, it computes only the parts that they keep. The gradients of weights are compact too, and
# optimisers accept them. Without plans, as in `accuracy`, the model computes everything. The values kept in training were
# scaled, so both have the same mean.


# %%
def train(model, optimizer, loss_of, X, y, epochs=8, policy=None, seed=0):
    """Train a model; return the accuracy on the test images after each epoch."""
    rng, plans, found = np.random.default_rng(seed), None, []
    for _ in range(epochs):
        for x, labels in batches(X, y, rng):
            if policy is not None:
                plans = {site: policy.plan(site, rng) for site in policy.sites(model)}
            loss_of(model(x, plans), labels).backward()
            optimizer.step()
        found.append(accuracy(model, X_test, y_test))
    return found


def cross_entropy(logits, labels):
    return ops.softmax_cross_entropy(logits, labels=labels)


curves = {}
for name, policy in (("cross-entropy", None), ("half of the neurons dropped", RowDropout(0.5))):
    model = network()
    curves[name] = train(model, SGD(model.parameters(), 0.05, 0.9), cross_entropy, X_train, y_train, policy=policy)
    print(f"{name}: {curves[name][-1]:.1%}")

plan = RowDropout(0.5).plan(RowDropout(0.5).sites(model)[0], rng)
print("a plan of the first layer:", plan, f"keeps {plan.density:.0%}")

# %% [markdown]
# ## A new loss
#
# Any tensor with one element can be differentiated. The focal loss (Lin et al. 2017, eq. 5) gives less weight to samples that
# are classified well: -(1 - p)² log p, where p is the probability of the label. A mask selects the label's column.
# `check_grad` compares the gradient with finite differences; call it for every new loss.


# %%
def focal(logits, labels):
    chosen = labels[:, None] == np.arange(logits.shape[1])
    logarithms = where(chosen, logits.log_softmax(), 0).sum(axis=1)
    return (-((1 - logarithms.exp()) ** 2) * logarithms).mean()


logits = Tensor(rng.standard_normal((6, 10)), requires_grad=True)
print(f"largest relative error of its gradient: {check_grad(lambda z: focal(z, y_train[:6]), [logits]):.1e}")
model = network()
curves["focal loss"] = train(model, AdamW(model.parameters(), 0.003, weight_decay=0.01), focal, X_train, y_train)
print(f"focal loss: {curves['focal loss'][-1]:.1%}")

for (name, values), colour, mark in zip(curves.items(), (GREY, BLUE, ORANGE), ("x", "o", "s"), strict=True):
    plt.plot(range(1, len(values) + 1), values, color=colour, marker=mark, label=name)
plt.xlabel("epoch")
plt.ylabel("accuracy on the test images")
plt.legend(frameon=False)
plt.title("One loop, three ways to learn")
save("training_by_hand.png")

# %% [markdown]
# ## Freezing a layer
#
# A network that was trained on the digits 0 to 4 has learned features that are also useful for 5 to 9. `requires_grad_(False)`
# freezes a layer: it gets no gradient, and no optimiser changes it, neither by momentum nor by weight decay. Here the first
# layer is frozen, and a new last layer learns the digits 5 to 9 from ten images of each.

# %%
low, high = y_train < 5, np.concatenate([np.flatnonzero(y_train == digit)[:10] for digit in range(5, 10)])
model = network()
train(model, SGD(model.parameters(), 0.05, 0.9), cross_entropy, X_train[low], y_train[low])
model.layers[0].requires_grad_(False)
model.layers[2] = Linear(128, 10, rng=5)
before = model.layers[0].weight.numpy().copy()
optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.02, 0.9, weight_decay=1e-4)
train(model, optimizer, cross_entropy, X_train[high], y_train[high], epochs=30)
others = y_test >= 5
print("the frozen layer is as it was:", np.array_equal(before, model.layers[0].weight.numpy()))
print(f"accuracy on the digits 5 to 9, from 50 images: {accuracy(model, X_test[others], y_test[others]):.1%}")
assert np.array_equal(before, model.layers[0].weight.numpy())
