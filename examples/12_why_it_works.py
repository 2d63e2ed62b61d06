# %% [markdown]
# # 12. Why it works, and what it costs
#
# Patterns skip work (walkthrough 3) and are drawn so that every neuron is dropped with probability p (walkthrough 4). With
# patterns, a network learns nearly as well as with conventional dropout ("bernoulli"), but not quite. Three choices decide how
# well: the scale of the kept values, the variance of the initial weights, and the largest period. A section looks at windows,
# and the last one compares the figures of the papers with ours.
#
# Sources: Song, Wang, Ru, Peng, Huang, Zhao, Liang, Jiang, "Approximate Random Dropout for DNN training acceleration in
# GPGPU" (2018); Song, Xu, Li, Jing, Liang, Jiang, "DNN Training Acceleration via Exploring GPGPU Friendly Sparsity";
# Hendrycks, Gimpel, "Adjusting for dropout variance in batch normalization and weight initialization" (2016).

# %%
import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from numbanet import BatchwiseDropout, Linear, RowDropout, WindowDropout
from numbanet.dropout.search import default_dp_max, pattern_distribution
from numbanet.plans import AxisPlan, Site

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
RESULTS = Path(globals().get("__file__", "12")).resolve().parents[1] / "bench" / "results"  # recorded runs
BLUE, ORANGE, GREY, PALE = "#1d4e79", "#e08e3c", "#6b7280", "#d7dde5"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})
rng = np.random.default_rng(0)


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


def recorded(name):
    """The rows of a file in bench/results."""
    if not RESULTS.is_dir():
        raise FileNotFoundError(
            f"recorded runs are in a checkout: open this notebook in its folder examples/, not {Path.cwd()}"
        )
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"]


# %% [markdown]
# ## The scale of kept values
#
# In training, dropout multiplies an activation by z: 0 if it is dropped, a *scale* if it is kept. In prediction nothing is
# dropped or scaled, so the mean of z must be 1. In conventional dropout this determines the scale: 1/(1 - p). With patterns, a
# step with period dp keeps the share 1/dp, and every function scale(dp) with E[scale(dp) / dp] = 1 is possible. numbanet uses a
# power of dp,
#
# scale(dp) = dp^a / E[dp^(a - 1)],
#
# where a is chosen by name. "rate", a = 0, is 1/(1 - p) in every step, as in conventional dropout. "pattern", a = 1, is dp, the
# inverse of the share that *this* step keeps. "root", a = 1/2, is in between. The default is "root" for rows and "pattern" for
# tiles.

# %%
SCALES = ("rate", "root", "pattern")
P = 0.5
d = pattern_distribution(P)
dp = np.arange(1, len(d) + 1)
print("how often each period is drawn at p = 0.5:", d.round(3))


def scales(rate, dp_max, a):
    """scale(dp) for dp = 1 … dp_max, (dp_max,)."""
    d, dp = pattern_distribution(rate, dp_max), np.arange(1, dp_max + 1.0)
    return dp**a / (d @ dp ** (a - 1))


for name, a in zip(SCALES, (0, 0.5, 1)):
    found = scales(P, len(d), a)
    print(f"{name:8s} scale(dp) = {found.round(3)}   mean of z: {d @ (found / dp):.3f}")

# %% [markdown]
# `NUMBANET_PROFILE=1` prints these scales with the plans: at p = 0.5 and "root", a kept value is multiplied by 2.044 in steps
# with dp = 2, not by 2. Steps with dp = 1 drop nothing but multiply by more than 1, and steps with dp = 3 multiply by less than
# 3, so that the mean of z is 1. The plans of a policy have the same scale:

# %%
drawn = {}
while len(drawn) < len(d):
    period, bias, scale = RowDropout(P).draw(0, rng)
    drawn[period] = f"dp = {period}, bias = {bias}, scale = {scale:.3f}"
print(*(drawn[period] for period in dp), sep="\n")
assert "scale = 2.044" in drawn[2]

# %% [markdown]
# ### Two kinds of noise
#
# Why is neither a = 0 nor a = 1 the best choice for rows? A neuron sums products x_i w_i z_i. In conventional dropout the z_i
# are independent. In a pattern they depend on the same dp, and their noise has two parts. The mean of z over n inputs has the
# variance
#
# common + (single - common) / n.
#
# Here *single* = Var(z_i) = E[scale² / dp] - 1 is the variance of one factor, and *common* = Var(scale / dp) is the variance of
# a step's kept share times its scale. In a wide layer (large n) the first part averages out, but the second does not.
#
# "rate" has the least possible single noise, p/(1 - p) as in conventional dropout, and the most common noise: a step that keeps
# few inputs gives small sums, and one that keeps all gives large ones. "pattern" has no common noise, and the most single
# noise: a step with dp = 16 multiplies kept values by 16. "root" has a moderate amount of both.


# %%
def noise(rate, dp_max, a):
    """(single, common)"""
    d, dp, scale = pattern_distribution(rate, dp_max), np.arange(1, dp_max + 1), scales(rate, dp_max, a)
    return d @ (scale**2 / dp) - 1, d @ (scale / dp) ** 2 - 1


PERIODS = (4, 8, 16)
print(f"p = 0.7; coins: single {0.7 / 0.3:.2f}, common 0")
for dp_max in PERIODS:
    for name, a in zip(SCALES, (0, 0.5, 1)):
        single, common = noise(0.7, dp_max, a)
        print(f"dp up to {dp_max:2d}   {name:8s} single {single:5.2f}   common {common:5.2f}")

# the same by simulation: means of z over a layer of 1024
means = {}
for name in SCALES:
    policy = RowDropout(0.7, dp_max=16, scale=name)
    draws = [policy.draw(0, rng) for _ in range(4000)]
    means[name] = np.array([scale * len(range(bias, 1024, period)) / 1024 for period, bias, scale in draws])
    print(f"{name:8s} variance of the mean of z over 4000 steps: {means[name].var():.2f}")

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
periods = np.arange(1, 17)
for name, a, style, colour in zip(SCALES, (0, 0.5, 1), (":", "-", "--"), (GREY, BLUE, ORANGE)):
    left.plot(periods, scales(0.7, 16, a), style, color=colour, linewidth=2.2)
    left.text(16.3, scales(0.7, 16, a)[-1], f'"{name}"', va="center", color=colour)
left.set(xlabel="period dp of the step", ylabel="what is kept is multiplied by", xlim=(0.5, 19.5), xticks=(1, 4, 8, 12, 16))
left.set_title("Three scales at p = 0.7, periods up to 16", loc="left", fontsize=11)
at = np.arange(len(PERIODS) * 3) + np.repeat(np.arange(len(PERIODS)), 3) * 0.6
found = np.array([noise(0.7, dp_max, a) for dp_max in PERIODS for a in (0, 0.5, 1)])
right.bar(at - 0.2, found[:, 0], 0.38, color=ORANGE, label="single: noise of one product")
right.bar(at + 0.2, found[:, 1], 0.38, color=BLUE, label="common: noise of the whole step", hatch="//", edgecolor="white")
right.axhline(0.7 / 0.3, color=GREY, linestyle=":", linewidth=1.5)
right.text(at[-1] + 0.6, 0.7 / 0.3, "coins,\nsingle", color=GREY, va="center", fontsize=10)
right.set_xticks(at, SCALES * len(PERIODS), rotation=45, ha="right", fontsize=9)
for i, dp_max in enumerate(PERIODS):
    right.text(at[3 * i + 1], found[:, 0].max() * 1.02, f"dp up to {dp_max}", ha="center", color=GREY)
right.set(ylabel="variance", ylim=(0, 1.45 * found.max()))
right.legend(frameon=False, fontsize=10, loc="upper left")
right.set_title("Two kinds of noise", loc="left", fontsize=11)
save("why_scale.png")

# %% [markdown]
# ## Why the variance of initial weights is adjusted
#
# Initial weights have random signs, so the mean square of a sum of x_i w_i z_i is E[z²] = single + 1 times its value without
# dropout. At p = 0.7 each layer multiplies the mean square by more than three, and after a few layers the initial loss is far
# too large. So `Net` divides the variance of the weights after a dropped layer by E[z²]: it sets the parameter
# `variance_factor` of `Linear` to 1 / E[z²]. For conventional dropout this is 1 - p (Hendrycks and Gimpel); for patterns it
# depends on the scale.

# %%
RATE, WIDTH, DEPTH, STEPS = 0.7, 512, 6, 30
policy = RowDropout(RATE)
factor = policy.variance_factor(0)
print(f"factor at p = {RATE}: {factor:.3f}; with coins {1 - RATE:.3f}")


def mean_squares(factor, policy=policy):
    """The mean square of each layer's output, (DEPTH,), averaged over STEPS steps."""
    rng = np.random.default_rng(1)
    weights = [
        Linear(WIDTH, WIDTH, variance_factor=factor if layer else 1.0, rng=layer).weight.numpy() for layer in range(DEPTH)
    ]
    found = np.zeros((STEPS, DEPTH))
    for step in range(STEPS):
        x = rng.standard_normal((64, WIDTH)).astype(np.float32)
        for layer, w in enumerate(weights):
            x = np.maximum(x @ w.T, 0)
            found[step, layer] = np.mean(x**2)
            period, bias, scale = policy.draw(0, rng) if policy else (1, 0, 1.0)
            x[:, np.arange(WIDTH) % period != bias] = 0
            x *= scale
    return found.mean(0)


curves = {
    "rdp, weights as without dropout": (mean_squares(1.0), "o-", ORANGE),
    "rdp, weights adjusted": (mean_squares(factor), "s-", BLUE),
    "no dropout": (mean_squares(1.0, None), "^:", GREY),
}
fig, ax = plt.subplots(figsize=(7.4, 3.9), layout="constrained")
for name, (values, style, colour) in curves.items():
    ax.plot(range(1, DEPTH + 1), values, style, color=colour, linewidth=2, label=name)
ax.set(xlabel="layer", ylabel="mean square of the output", yscale="log", xticks=range(1, DEPTH + 1))
ax.legend(frameon=False)
ax.set_title(f"Before the first update: {DEPTH} layers of {WIDTH}, p = {RATE}", loc="left", fontsize=11)
save("why_weights.png")
grown = curves["rdp, weights as without dropout"][0]
print(f"each layer multiplies it by {(grown[-1] / grown[0]) ** (1 / (DEPTH - 1)):.2f}; 1 / factor is {1 / factor:.2f}")

# %% [markdown]
# ## Why large periods cost accuracy
#
# Among all distributions with mean rate p, the search chooses the one with the largest entropy (walkthrough 4), which spreads
# over all periods up to `dp_max`. With periods up to 16 and p = 0.7, nearly half of the steps train an eighth of the neurons or
# fewer, with large scales, and other steps must train all neurons. Both kinds of noise grow with `dp_max`, and in a wide layer
# only one of them averages out. So the default `dp_max` is the smallest period that drops more than p, but at least 3; with it,
# the three scales hardly differ.

# %%
print("rate   dp up to   steps that keep 1/8 or less   largest scale   single   common")
for rate in (0.5, 0.7):
    for dp_max in (default_dp_max(rate), 8, 16):
        d, (single, common) = pattern_distribution(rate, dp_max), noise(rate, dp_max, 0.5)
        largest = scales(rate, dp_max, 0.5).max()
        print(f"{rate:4.1f} {dp_max:9d} {d[7:].sum():29.0%} {largest:15.2f} {single:8.2f} {common:8.2f}")

# %% [markdown]
# The table shows the effect on training in recorded runs (`python -m bench mlp-settings`): the difference of test accuracy to
# bernoulli in percentage points, after ten epochs of 784-1024-1024-10, by scale and largest period.

# %%
points = [row for row in recorded("mlp-settings.json") if row["suite"] == "mlp-settings-points"]
columns = list(points[0]["points_of"])


def shown(value):
    return "" if value is None else f"{value:+.2f}" if isinstance(value, float) else value


print(f"{'':36s}", *(f"{name:>10s}" for name in columns))
for row in points:
    print(f"{row['case']:36s}", *(f"{shown(row['points_of'][name]):>10s}" for name in columns))

# %%
fig, axes = plt.subplots(1, 2, figsize=(10, 4.1), layout="constrained", sharey=True)
for ax, data in zip(axes, ("mnist", "fashion-mnist")):
    for scale, style, colour in zip(SCALES, ("^:", "o-", "s--"), (GREY, BLUE, ORANGE)):
        found = {
            int(row["case"].rsplit("=")[-1]): row["points_of"]["rdp p=0.7"]
            for row in points
            if row["case"].startswith(f"{data}, {scale} ") and "search" not in row["case"]
        }
        found = {dp_max: value for dp_max, value in found.items() if isinstance(value, float)}  # without diverged runs
        ax.plot(list(found), list(found.values()), style, color=colour, linewidth=2, label=f'"{scale}"')
    ax.axhline(0, color=GREY, linewidth=1)
    ax.set(xlabel="largest period", xticks=(4, 5, 8, 16))
    ax.set_yscale("symlog", linthresh=1)
    ax.set_yticks([1, 0, -1, -10, -100], ["+1", "as bernoulli", "-1", "-10", "-100"])
    ax.minorticks_off()
    ax.set_ylim(-100, 1.2)
    ax.set_title(f"{data}, rdp at p = 0.7", loc="left", fontsize=11)
axes[0].set_ylabel("points of test accuracy")
axes[0].legend(frameon=False, loc="lower left", title="scale (lines end\nwhere runs diverged)")
save("why_periods.png")

# %% [markdown]
# The largest period matters most. "pattern" has only single noise, "rate" has mostly common noise, and both lose accuracy at
# large periods: so each kind of noise costs accuracy, and large scales can make training diverge. At the smallest periods, the
# scales of rows differ little. For tiles, "pattern" is better by half a point on Fashion-MNIST: every neuron is computed in
# each step and uses the same share of its inputs, so the noise is common to all neurons, and "pattern" removes it. The search
# for the distribution hardly matters: the rows with "search" use the papers' Algorithm 1, whose rate is slightly off.
#
# ## Why windows work
#
# `"window"` keeps adjacent neurons, from a random one on, around the end of the layer. So its sets are very few: a layer of n
# neurons has n windows of each size, where "batchwise" has n over K sets, and rdp's periods have about dp of them each. Three
# properties of such sets can be compared: how often each neuron is dropped, how often two neurons are dropped together, and how
# many different sets there are.

# %%
WIDE, DRAWS = 64, 20_000
site = Site("0.output", "output", (WIDE, WIDE), (AxisPlan,))
kept = {}
for policy in (RowDropout(P), BatchwiseDropout(P), WindowDropout(P)):
    kept[policy.name] = np.array([policy.plan(site, rng).mask() for _ in range(DRAWS)])
kept["bernoulli"] = rng.random((DRAWS, WIDE)) >= P  # one sample's


def correlations(masks):
    """The correlation of two neurons at each distance around the circle, averaged over all such pairs, (WIDE // 2 + 1,)."""
    centred = masks - masks.mean(0)
    return np.array([np.mean(centred * np.roll(centred, shift, 1)) for shift in range(WIDE // 2 + 1)]) / centred.var()


found = {name: correlations(masks) for name, masks in kept.items()}
print(f"{WIDE} neurons, p = {P}, {DRAWS} draws")
print("             dropped, of all neurons    correlation of neighbours   of opposite neurons   different sets drawn")
for name, masks in kept.items():
    dropped, sets = 1 - masks.mean(0), len(np.unique(np.packbits(masks, axis=1), axis=0))
    ends = f"{found[name][1]:+25.2f} {found[name][-1]:+21.2f} {sets:22d}"
    print(f"{name:12s} {dropped.min():.3f} to {dropped.max():.3f}  {ends}")
    assert abs(dropped - P).max() < 5 * 0.5 / np.sqrt(DRAWS)  # every neuron is dropped with probability p

# %%
fig, ax = plt.subplots(figsize=(7.4, 3.9), layout="constrained")
lines = {"window": ("-", BLUE), "rdp": ("--", ORANGE), "batchwise": (":", GREY)}
for name, (style, colour) in lines.items():
    ax.plot(found[name], style, color=colour, linewidth=2.2, label=name)
ax.axhline(0, color=PALE, linewidth=1, zorder=0)
ax.set(xlabel="distance of two neurons in the layer", ylabel="correlation of being kept", xlim=(0, WIDE // 2))
ax.legend(frameon=False)
ax.set_title(f"Which neurons are kept together: {WIDE} neurons, p = {P}", loc="left", fontsize=11)
save("why_windows.png")

# %% [markdown]
# In a window, neighbours are nearly always kept together, and opposite neurons never: the correlation falls in a straight line
# from 1 to -1. This is no worse for learning, for two reasons. First, dropout acts against neurons that rely on each other
# (co-adaptation). Before training, which neurons are adjacent is arbitrary, and every neuron must still be useful without half
# of the others, in every half that a window can leave out. Second, the window of the next layer is drawn independently, so
# that the pairs of a weight's row and column are kept together as rarely as with any other sets. What is lost is independence
# of neighbours, which may rely on each other. Recorded runs (`python -m bench time-to-accuracy`) show what this costs:

# %%
learned = {(row["case"], row["implementation"]): row for row in recorded("time-to-accuracy.json")}
KINDS = ("none", "bernoulli", "rdp", "window", "window early")
print(f"{'test accuracy, p = 0.5':58s}", *(f"{name:>12s}" for name in KINDS))
for case in dict.fromkeys(case for case, _ in learned):
    shown = (learned.get((case, name)) for name in KINDS)  # not each kind was recorded in each case
    print(f"{case:58s}", *(f"{'-' if row is None else format(row['accuracy'], '.4f'):>12s}" for row in shown))

# %% [markdown]
# The column "window early" is of dropout in the first three quarters of the epochs. Windows lose most against conventional
# dropout on 1000 images; in the other cases the differences are tenths of a point, about as large as those between seeds. What
# windows gain is time: the kept part of a weight is a slice, which products read where it is.
#
# A slice is read fastest if it begins where a cache line does, so windows of wide layers begin at multiples of `align` neurons.
# Then there are fewer windows. The rows "align" of the first table of recorded runs, above, show what that costs: with 128
# windows of 1024 neurons (align=8) nothing that three seeds could tell, with 64 and 32 in the mean 0.1 to 0.2 points. So by
# default a layer keeps at least 128 windows. Rows "shuffle" are of neurons that are reordered after each epoch, so that others
# become adjacent: on all images that gains nothing, neither for windows nor for rdp.
#
# ## The papers' figures and ours
#
# Both papers train 784-H-H'-10 on MNIST at p = 0.7 and report the same figures (Table I of the first, Table 1 of the second):
# the difference of accuracy to conventional dropout in percentage points, and the speedup of training, in Caffe on a GTX 1080
# Ti. Our figures were recorded on two CPU cores: the points after 15 epochs (`papers-mlp`), and the time of a bernoulli step
# divided by that of a step with patterns (`mlp`). The points can be compared directly. Of the speedups only the trend can be
# compared, because they were measured on different hardware.

# %%
THEIRS = {
    ("1024-64", "rdp"): (-0.42, 1.27),
    ("1024-64", "tdp"): (-0.38, 1.19),
    ("1024-1024", "rdp"): (-0.35, 1.45),
    ("1024-1024", "tdp"): (-0.21, 1.41),
    ("2048-2048", "rdp"): (-0.37, 1.77),
    ("2048-2048", "tdp"): (-0.31, 1.60),
    ("4096-4096", "rdp"): (-0.47, 2.16),
    ("4096-4096", "tdp"): (-0.31, 1.95),
}  # the paper prints rdp of 2048 without the minus sign
accuracy = {(row["case"], row["implementation"]): row for row in recorded("papers-mlp.json")}
steps = {(row["case"], row["implementation"]): row["median_ms"] for row in recorded("cpu-mlp.json")}
print(f"{'':16s} {'points':>8s} {'':8s} {'times shorter':>15s}")
print(f"{'':16s} {'theirs':>8s} {'ours':>8s} {'theirs':>8s} {'ours':>8s} {'by FLOPs':>9s}")
for (size, kind), (lost, faster) in THEIRS.items():
    ours = accuracy[f"784-{size}-10 p=0.7, 15 epochs", kind]
    bernoulli, pattern = (steps.get((f"784-{size}-10 p=0.7", name)) for name in ("bernoulli", kind))
    most = 1 / ours["flops_share"]
    times = "none yet" if pattern is None else f"{bernoulli / pattern:.2f}"
    print(f"{size:11s} {kind:4s} {lost:+8.2f} {ours['points']:+8.2f} {faster:8.2f} {times:>8s} {most:9.2f}")

# %% [markdown]
# The papers lose less than half a point of accuracy, and so do we. Our rows gain accuracy in most cases, because conventional
# dropout at the high rate p = 0.7 learns slowly in 15 epochs. The papers' speedups grow with the width, as ours do, but are
# further below the ratio of FLOPs: a fast GPU spends less of a step in these layers.
#
# The next table is for a language model of 8800 words with two LSTM layers of 1500 units (Table II and Table 2), with row
# patterns in both layers. The papers give the speedup of training over conventional dropout; ours is the speedup of a step over
# PyTorch with dropout.

# %%
lstm = {(row["case"], row["implementation"]): row for row in recorded("lstm.json")}
for rate, theirs in ((0.3, 1.18), (0.5, 1.47), (0.7, 1.53)):
    row = lstm[f"2x1500, 8800 words, step p={rate}", "rdp"]
    print(f"p = {rate}   theirs {theirs:.2f}   ours {row['ratio']:.2f}   by FLOPs {row['ceiling']:.2f}")

# %% [markdown]
# The same files also show limits: on Fashion-MNIST, patterns reach a lower accuracy than bernoulli with most settings, and on
# MNIST, no kind of dropout is much better than none. The README says at its top when to use dropout patterns, and when not.
