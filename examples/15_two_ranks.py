# %% [markdown]
# # 15. Two ranks: one model in several processes, and what travels between them
#
# If one machine is too slow, several processes, the *ranks*, train one model together: each computes the gradient of its share
# of a batch, and the gradients are summed. The sum must travel between the ranks in every step, and for a wide network it is
# large: as many numbers as the network has weights. With row or tile dropout most of these numbers are zero, and all ranks can
# know which, if they draw the same plan. Then only the others travel.
#
# Here the ranks are two threads of one process, so that this file runs anywhere. A program of your own that calls
# `Net(..., parallel="mpi")` trains in two processes if it is started by `mpiexec -n 2 python train.py`.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from numbanet import SGD, Linear, Net, ReLU, RowDropout, Sequential, Tensor, ops
from numbanet.datasets import load_digits
from numbanet.parallel import run_ranks
from numbanet.parallel.model import Link, Step

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY = "#1d4e79", "#d17a22", "#6b7280"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


threadpool_limits(1)
X, y, X_test, y_test = load_digits()
y, y_test = y.astype(np.int32), y_test.astype(np.int32)

# %% [markdown]
# ## A sum over ranks
#
# `run_ranks` calls a function in each of several threads, with an object that knows the number of its rank. `sum` replaces an
# array by its sum over all ranks: MPI calls it an *all-reduce*. Each rank must call it.


# %%
def add(ranks):
    array = np.full(3, 10.0**ranks.rank, np.float32)
    return ranks.sum(array)


print(run_ranks(3, add))

# %% [markdown]
# ## Half a batch each
#
# The loss of a batch is the mean over its samples. If each rank weights its samples by 1 / (number of samples of *all* ranks),
# its loss is its part of the mean, and the gradients of the parts add up to the gradient of the batch.


# %%
def network(width=256):
    return Sequential([Linear(64, width, rng=0), ReLU(), Linear(width, width, rng=1), ReLU(), Linear(width, 10, rng=2)])


def gradient(model, rows, of, plans=None):
    weights = np.full(len(rows), 1 / of, np.float32)
    loss = ops.softmax_cross_entropy(model(Tensor(X[rows]), plans), labels=y[rows], weights=weights)
    loss.backward()
    return [parameter.gradient.values for parameter in model.parameters()]


rows = np.arange(64)


def half(ranks):
    """The gradient of half of the batch, summed over the ranks."""
    arrays = gradient(network(), rows[ranks.part(64)], 64)
    return [ranks.sum(np.ascontiguousarray(array)) for array in arrays]


whole = gradient(network(), rows, 64)
for both in run_ranks(2, half):
    print("largest difference:", max(np.abs(a - b).max() for a, b in zip(whole, both)))

# %% [markdown]
# ## Equal plans, and what they leave to send
#
# Now with dropout. Each rank draws plans from a generator with the *same* seed, so all ranks drop the same neurons. A weight
# between two layers that keep a part of their neurons has gradients for the kept rows and columns only. The gradient is stored
# as this smaller array, `gradient.values`; the ranks sum it as it lies, and nobody needs to say where the numbers belong.


# %%
def train(ranks, steps=60):
    """A loop by hand on one rank: returns the model, and the bytes of each step that travelled."""
    model, policy, plans = network(), RowDropout(0.7), np.random.default_rng(0)
    order, sent = np.random.default_rng(1), []
    optimizer = SGD(model.parameters(), learning_rate=0.05, momentum=0.9)
    for _ in range(steps):
        rows = order.permutation(len(y))[:64]  # equal on all ranks as well
        drawn = {site: policy.plan(site, plans) for site in model.droppable()}
        kept = gradient(model, rows[ranks.part(64)], 64, drawn)
        for array in kept:
            ranks.sum(array)
        sent.append(sum(array.nbytes for array in kept))
        optimizer.step()
    return model, sent


(first, sent), (second, _) = run_ranks(2, train)
(alone, _) = run_ranks(1, train)[0]
pairs = list(zip(first.parameters(), second.parameters(), alone.parameters()))
dense = sum(4 * parameter.size for parameter in first.parameters())
print("equal on both ranks:", all(np.array_equal(a.numpy(), b.numpy()) for a, b, _ in pairs))
print("largest difference to one process:", max(np.abs(a.numpy() - c.numpy()).max() for a, _, c in pairs))
print(f"bytes of a step: {np.mean(sent):,.0f} of {dense:,} ({np.mean(sent) / dense:.0%})")

# %% [markdown]
# The share varies, because each step draws another pattern: of 256 neurons it keeps every second, third or fourth, and rarely
# all. With the middle weight between two layers that both drop neurons, it falls with the *square* of the kept share.

# %%
figure, axes = plt.subplots(figsize=(7, 3))
axes.step(range(len(sent)), np.array(sent) / 1e3, where="mid", color=BLUE)
axes.axhline(dense / 1e3, color=GREY, linestyle="--")
axes.text(len(sent), dense / 1e3, "all gradients", va="bottom", ha="right", color=GREY)
axes.set(xlabel="step", ylabel="kB sent by a rank", ylim=(0, 1.15 * dense / 1e3))
save("15_bytes.png")

# %% [markdown]
# ## The same by `Net`
#
# `parallel` makes all of this happen in `fit`: the share of each batch, the sum of kept gradients between the passes and the
# update, and also what the loop above leaves out: figures of all samples, validation, early stopping, and an end of all ranks
# if one fails. The history counts the bytes.


# %%
def fit(ranks):
    net = Net((256, 256), dropout="rdp", dropout_rate=0.7, epochs=5, random_state=0, device="cpu", parallel=ranks)
    return net.fit(X, y)


one, (net, _) = fit(None), run_ranks(2, fit)
record = net.history_[-1]
print(f"loss {record['loss']:.4f} on two ranks, {one.history_[-1]['loss']:.4f} in one process")
print(f"test accuracy {net.score(X_test, y_test):.3f} and {one.score(X_test, y_test):.3f}")
print(f"{record['exchanged_bytes']:,} bytes sent in the last epoch, {record['exchanged_share']:.0%} of all gradients")

# %% [markdown]
# ## How far does it scale?
#
# A message of n bytes takes a latency plus n divided by the bandwidth. In a *ring* of P ranks, each sends 2 (P - 1) messages of
# n / P bytes, so the bytes hardly grow with P, and the latency does. `numbanet scale` measures a step of your network and draws
# this picture for it; here the step of a rank is assumed to take 20 ms for 784-4096-4096-10 with p = 0.7, whose gradients have
# 80 MB, 10 MB of them kept, over 10 Gbit/s.

# %%
link, ranks = Link(latency=20e-6, bandwidth=1.25e9), 2 ** np.arange(11)
figure, axes = plt.subplots(figsize=(7, 3))
for name, size, colour in (("all gradients", 80e6, ORANGE), ("kept ones", 10e6, BLUE)):
    step = Step(0.02, size)
    axes.plot(ranks, [step.efficiency(int(n), link) for n in ranks], color=colour, label=name)
    print(
        f"{name}: 64 ranks take {1e3 * step.predicted(64, link):.0f} ms a step, {1e3 * link.ring(size, 64):.0f} of them to send"
    )
axes.set_xscale("log", base=2)
axes.set(xlabel="ranks", ylabel="efficiency", ylim=(0, 1.05))
axes.legend(frameon=False)
save("15_ranks.png")
