# %% [markdown]
# # 4. Which patterns, and how often?
#
# Conventional dropout decides independently for each neuron. The zeros are at random positions, so a GPU computes them too.
# *Approximate random dropout* drops neurons in a regular **pattern** instead, which can be left out of the matrix product.
# But one fixed pattern is not random. This walkthrough shows how to make it random again: each step draws a new pattern
# from a suitable distribution.
#
# Source: Song, Wang, Ru, Peng, Huang, Zhao, Liang, Jiang, "Approximate Random Dropout for DNN training acceleration in GPGPU"
# (2018), Algorithm 1.

# %%
import os
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from numbanet.dropout.search import drop_rates, pattern_distribution, search_exact, search_loss, search_sgd

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#2f6690", "#d17a22", "#6b7280", "#e5e7eb"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


# %% [markdown]
# ## What a pattern is
#
# A pattern has a **period** dp and a **bias** b in 0 … dp - 1. It keeps the neurons b, b + dp, b + 2 dp, … and drops the
# others, a share of (dp - 1)/dp. With dp = 1, it keeps all neurons.


# %%
def kept(n, dp, bias):
    keep = np.zeros(n, dtype=bool)
    keep[bias::dp] = True
    return keep


examples = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 1), (8, 5)]
fig, ax = plt.subplots(figsize=(8, 3.2))
grid = np.array([kept(24, dp, bias) for dp, bias in examples])
ax.pcolormesh(grid, cmap=matplotlib.colors.ListedColormap([PALE, BLUE]), edgecolors="white", linewidth=2)
ax.invert_yaxis()
ax.set_xticks(np.arange(0, 24, 4) + 0.5, np.arange(0, 24, 4))
ax.set_yticks(np.arange(len(examples)) + 0.5, [f"dp {dp}, bias {bias}" for dp, bias in examples])
for row, (dp, _) in enumerate(examples):
    ax.text(24.5, row + 0.5, f"{(dp - 1) / dp:.0%} dropped", va="center", color=GREY)
ax.tick_params(length=0)
ax.spines[:].set_visible(False)
ax.set_xlabel("neuron of the layer")
ax.set_title("Patterns of a layer of 24 neurons (dark: kept and computed)", loc="left")
save("search_patterns.png")

# %% [markdown]
# ## Why one pattern is not enough
#
# There are two reasons. First, only the rates 0, 1/2, 2/3, 3/4, … are possible, and 0.7 is not one of them. Second, if dp is
# fixed, neurons at a distance of dp are always kept or dropped together. Then only dp different sub-networks are trained,
# while dropout is meant to train very many.
#
# So each step draws dp from a distribution **d** over 1 … N, and then the bias uniformly. A neuron is dropped with
# probability Σ d[dp] · (dp - 1)/dp = **d · p_u**. If this equals p, each neuron is dropped as often as in conventional
# dropout. We can count:

# %%
rng = np.random.default_rng(0)
d = pattern_distribution(0.7)
dropped = np.zeros(24)
for dp in rng.choice(np.arange(1, len(d) + 1), size=20_000, p=d):
    dropped += ~kept(24, dp, rng.integers(dp))
share = dropped / 20_000
print(f"wanted rate 0.7; each neuron was dropped in {share.min():.3f} to {share.max():.3f} of the steps")

# %% [markdown]
# ## Algorithm 1: search by gradient descent
#
# Many distributions d have d · p_u = p. We want one with a high entropy, so that the sub-networks vary. The paper combines
# both goals in one loss, and minimises it over v, where d = softmax(v), by gradient descent:
#
# loss(v) = λ1 (d · p_u - p)² + λ2 (1/N) Σ d log d,   λ1 = 0.9, λ2 = 0.1
#
# `search_loss` returns this loss and its gradient. Here is the descent in a few lines, from v = 0, the uniform distribution:

# %%
p, n = 0.7, 8
p_u = drop_rates(n)
v = np.zeros(n)
for step in range(400):
    loss, gradient = search_loss(v, p)
    if step in (0, 10, 100, 399):
        softmax = np.exp(v) / np.exp(v).sum()
        print(f"step {step:3d}   loss {loss:.8f}   rate {softmax @ p_u:.4f}")
    v -= 64 * gradient

sgd = search_sgd(p, n)
exact = search_exact(p, n)
print("largest difference to search_sgd:", f"{np.abs(softmax - sgd).max():.1e}")

# %% [markdown]
# The rate ends at 0.6963, not at 0.7: the entropy term moves d towards the uniform distribution, whose rate is 0.66.
#
# ## The result of the descent: an exponential
#
# At the minimum, the loss has the same derivative with respect to every d_i. It follows that
# log d_i = c · p_u,i + constant: **log d is a straight line in p_u**. So the N unknown numbers depend on one number c,
# with c = 2 N (λ1/λ2) (p - d · p_u).
#
# ## The exact solution
#
# Among the distributions with *exactly* d · p_u = p, the one with the largest entropy has the same form, and its rate
# increases with c. So a root search for one number replaces the descent, and there is no λ to tune. This is
# `search_exact`, the default.

# %%
slope = np.polyfit(p_u, np.log(sgd), 1)[0]
print(f"c of the line {slope:.6f}; 2 N (λ1/λ2) (p - d . p_u) = {2 * n * 9 * (p - sgd @ p_u):.6f}")
print("exact:", exact.round(3), f"rate {exact @ p_u:.6f}")

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
dp = np.arange(1, n + 1)
left.bar(dp - 0.2, sgd, 0.38, color=ORANGE, label=f"Algorithm 1: rate {sgd @ p_u:.4f}")
left.bar(dp + 0.2, exact, 0.38, color=BLUE, label=f"exact: rate {exact @ p_u:.4f}")
left.set(xlabel="period dp", ylabel="probability d", xticks=dp, ylim=(0, 0.185))
left.set_title("How often each period is drawn (p = 0.7, N = 8)", loc="left", fontsize=11)
left.legend(frameon=False, loc="upper left", ncols=2, fontsize=10, columnspacing=1)
for rate in (0.3, 0.5, 0.7, 0.8):
    d = search_sgd(rate, n)
    c, intercept = np.polyfit(p_u, np.log(d), 1)
    right.plot(p_u, c * p_u + intercept, color=PALE, linewidth=2.5, zorder=1)
    right.plot(p_u, np.log(d), "o", color=ORANGE, markersize=5)
    right.text(-0.03, np.log(d[0]), f"p = {rate}", ha="right", va="center", color=GREY, fontsize=10)
right.set(xlabel=r"drop rate of the pattern, $p_u = (dp - 1)/dp$", ylabel="log d", xlim=(-0.2, 0.92))
right.set_title("Algorithm 1 ends on straight lines in $p_u$", loc="left", fontsize=11)
save("search_distribution.png")

# %% [markdown]
# ## How large is the bias of Algorithm 1?
#
# The bias grows towards both ends of the range: with p = 0 the distribution still drops something, and with the largest rate it
# drops too little.

# %%
rates = np.linspace(0, p_u[-1], 60)
reached = np.array([search_sgd(rate, n) @ p_u for rate in rates])
print(f"p = 0: {reached[0]:.1%} dropped; p = {rates[-1]:.1%}: {reached[-1]:.1%}")
fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
ax.axhline(0, color=BLUE, linewidth=2, label="exact")
ax.plot(rates, reached - rates, color=ORANGE, linewidth=2, label="Algorithm 1 (λ1 = 0.9, λ2 = 0.1)")
ax.axvline(p_u.mean(), color=GREY, linewidth=1, linestyle=":")
ax.text(p_u.mean() + 0.01, 0.04, "rate of the uniform\ndistribution, 0.66", ha="left", va="center", color=GREY)
ax.set(xlabel="wanted drop rate p", ylabel="reached rate − p")
ax.set_title("The entropy term shifts the rate (N = 8)", loc="left", fontsize=11)
ax.legend(frameon=False, loc="lower left")
save("search_bias.png")

# %% [markdown]
# ## Why dp_max is small
#
# A larger N allows larger rates: the largest is (N - 1)/N. But the distribution with the largest entropy spreads over all
# periods, and most periods up to 64 drop nearly all neurons. For the mean to stay at p, small periods must also become more
# frequent: with N = 64, nearly a quarter of the steps drop nothing, and nearly half of them keep under 5 %.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
edges = [
    ("nothing dropped (dp 1)", 1, 1, "#1d3f5a"),
    ("dp 2 to 8", 2, 8, BLUE),
    ("dp 9 to 20", 9, 20, "#9db9cc"),
    ("dp above 20: under 5 % kept", 21, 64, ORANGE),
]
sizes = [4, 8, 16, 32, 64]
bottom = np.zeros(len(sizes))
for label, first, last, colour in edges:
    share = np.array([search_exact(0.7, size)[first - 1 : last].sum() for size in sizes])
    left.bar(range(len(sizes)), share, 0.65, bottom=bottom, color=colour, label=label)
    bottom += share
left.set(xlabel="largest period N (dp_max)", ylabel="share of the steps", ylim=(0, 1))
left.set_xticks(range(len(sizes)), sizes)
left.set_title("What the steps are spent on (p = 0.7)", loc="left", fontsize=11)
left.legend(frameon=False, fontsize=10, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)

for size, colour, dash in ((4, "#1d3f5a", "-"), (8, BLUE, "--"), (16, "#9db9cc", "-."), (64, ORANGE, ":")):
    d = search_exact(0.7, size)
    right.step(
        np.arange(1, size + 1), np.cumsum(d), where="post", color=colour, linestyle=dash, linewidth=2, label=f"N = {size}"
    )
    right.plot(size, 1, "o", color=colour, markersize=5)
right.set_xscale("log", base=2)
right.set_xticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
right.set(xlabel="period dp", ylabel="probability of a period up to dp", ylim=(0, 1.05))
right.set_title("The same as cumulative distributions", loc="left", fontsize=11)
right.legend(frameon=False, fontsize=10, loc="lower right")
save("search_dp_max.png")

for size in sizes:
    d = search_exact(0.7, size)
    print(f"N = {size:2d}   nothing dropped {d[0]:.1%}   dp above 20 {d[20:].sum():.1%}")

# %% [markdown]
# So the default dp_max is small: the smallest period that drops more than the rate, but at least 3, so that patterns vary.
# If a rate cannot be reached with the given dp_max, an error names a dp_max with which it can.

# %%
print("periods for rate 0.7:", len(pattern_distribution(0.7)), "  for rate 0.9:", len(pattern_distribution(0.9)))
try:
    pattern_distribution(0.9, dp_max=8)
except ValueError as error:
    print("ValueError:", error)
