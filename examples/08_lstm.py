# %% [markdown]
# # 8. An LSTM: memory, gradients through time, and what they may leave out
#
# An LSTM reads a sequence step by step and has a memory. This walkthrough builds one cell by hand, draws how far back in time
# gradients reach, shows which parts of its matrices dropout skips, trains a small model that writes text, and ends with the
# gates: half of their gradients can be skipped, too.
#
# Sources: Hochreiter & Schmidhuber, "Long short-term memory" (1997); Zaremba, Sutskever, Vinyals, "Recurrent neural network
# regularization" (2014); Song et al., "Approximate Random Dropout" (2018).

# %%
import os
import re
from pathlib import Path
from pydoc_data.topics import topics  # Python's manual: a text that everybody has

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from numbanet import LSTM, Adam, LanguageModel, Plans, RowDropout, RowPlan, Tensor, TileDropout, TilePlan, device, ops
from numbanet.dropout import GateSparsity
from numbanet.estimators.vocabulary import Vocabulary
from numbanet.layers import ActivationSpec, Context, Embedding, Linear, Sequential, Tree

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#2f6690", "#d17a22", "#6b7280", "#e5e7eb"
GREEN = "#5b8c5a"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})
rng = np.random.default_rng(0)


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


threadpool_limits(1)  # one core, so that seconds can be compared

# %% [markdown]
# ## A cell by hand
#
# A unit has a **cell** c, its memory, and an output h, the only value that other units read. Three gates, numbers from 0 to 1,
# are factors in each step: i scales the new value g, f scales the old memory, o scales the output.
#
# i, f, o = sigmoid, g = tanh of W_ih x[t] + b_ih + W_hh h[t-1] + b_hh
#
# c[t] = f c[t-1] + i g,  h[t] = o tanh c[t]
#
# All four come from one product: W_ih (4H, I) and W_hh (4H, H) have the rows of i, f, g, o in PyTorch's order. Eight lines of
# NumPy are an LSTM. numbanet computes the input products of all steps at once, and gates and states in one pass.


# %%
def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def by_hand(x, w_ih, w_hh, b_ih, b_hh):
    """x (T, N, I) -> the gates (T, N, 4, H), c and h (T, N, H) of all steps."""
    h = c = np.zeros((x.shape[1], w_hh.shape[1]))
    steps = []
    for x_t in x:
        i, f, g, o = np.split(x_t @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, axis=1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        steps.append((np.stack([i, f, g, o], axis=1), c, h))
    return map(np.array, zip(*steps))


x = rng.standard_normal((35, 20, 24)).astype(np.float32)  # 35 steps of 20 samples
lstm = LSTM(24, 32, rng=1)
y, (h_end, c_end) = lstm(Tensor(x))
gates, c, h = by_hand(x, *lstm.state_dict().values())
difference = max(np.abs(y.numpy() - h).max(), np.abs(c_end.numpy()[0] - c[-1]).max(), np.abs(h_end.numpy()[0] - h[-1]).max())
print(f"by hand and fused: largest difference {difference:.1e}")
assert difference < 1e-5

# %% [markdown]
# Weights set by hand show the purpose of the gates. One unit has three inputs: a value, and two signals, *write* and *read*.
# Write opens i and closes f, so that c becomes the value; read opens o. Between signals c stays the same.

# %%
T = 60
value = np.sin(np.arange(T) / 4) + 0.2 * rng.standard_normal(T)
write, read = np.zeros(T), np.zeros(T)
write[[6, 27, 43]], read[[13, 14, 21, 35, 36, 37, 52]] = 1, 1
x = np.stack([value, write, read], axis=1)[:, None].astype(np.float32)
latch = LSTM(3, 1)
w_ih, b_ih = [[0, 12, 0], [0, -12, 0], [1, 0, 0], [0, 0, 12]], [-6, 6, 0, -6]  # rows: i, f, g, o
names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
latch.load_state_dict(dict(zip(names, (w_ih, np.zeros((4, 1)), b_ih, np.zeros(4)))))
gates, c, h = by_hand(x, *latch.state_dict().values())
assert np.abs(latch(Tensor(x))[0].numpy() - h).max() < 1e-5
for t, end in ((6, 27), (27, 43), (43, T)):  # c after a write at step t, and before the next write
    assert abs(c[t, 0, 0] - np.tanh(value[t])) < 0.02 and abs(c[end - 1, 0, 0] - c[t, 0, 0]) < 0.1

fig, (above, middle, below) = plt.subplots(3, 1, figsize=(9, 5.2), layout="constrained", sharex=True, height_ratios=(3, 2.4, 3))
above.plot(value, color=GREY, linewidth=1.5, label="value")
above.vlines(np.flatnonzero(write), -1.5, 1.5, color=BLUE, linewidth=2, label="write")
above.vlines(np.flatnonzero(read), -1.5, 1.5, color=ORANGE, linewidth=1.2, linestyle=":", label="read")
middle.imshow(gates[:, 0, [0, 1, 3], 0].T, cmap="Blues", vmin=-0.15, vmax=1.3, aspect="auto", interpolation="nearest")
middle.set_yticks(range(3), ["i", "f", "o"])
middle.tick_params(length=0)
middle.spines[:].set_visible(False)
below.step(range(T), c[:, 0, 0], where="mid", color=BLUE, linewidth=2, label="c, remembered")
below.step(range(T), h[:, 0, 0], where="mid", color=ORANGE, linewidth=1.5, label="h, shown")
below.set(xlabel="step", ylim=(-1.1, 1.1), xlim=(-0.5, T - 0.5))
for ax, title in ((above, "inputs"), (middle, "gates: dark is open"), (below, "states")):
    ax.set_title(title, loc="left", fontsize=10)
    if ax is not middle:
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
save("lstm_cell.png")

# %% [markdown]
# ## Back through time
#
# Training needs the opposite direction: how much does a loss at step t depend on the input of an earlier step s? The gradient
# of c[t-1] is the gradient of c[t] times f, and nothing else on this path makes it smaller. If the forget gate is near 1,
# gradients reach far back; if it is 0.5, they halve in each step. So the bias of f decides which dependencies a network can
# learn (Jozefowicz, Zaremba, Sutskever 2015: begin with 1 or more).
#
# One pass computes the gradients of all losses: the batch contains the same sequence T times, and sample t has its loss at step
# t. The right panels show the norm of dx[s]; inputs after a loss have no gradient. The left panel shows the mean over all
# losses. It is above the powers of f, because gradients also flow through h: without W_hh it equals these powers.

# %%
T, H = 40, 48
sequence = rng.standard_normal((T, 1, 8))
where = rng.choice([-1.0, 1.0], H)  # a loss: the sum of the outputs with these signs
dy = np.eye(T)[:, :, None] * where


def gradient_norms(bias, through_h=True):
    """[t, s]: the norm of dx[s] for a loss at step t, if the gate f has this bias."""
    lstm = LSTM(8, H, rng=3)
    state = lstm.state_dict()
    biases = {"bias_ih_l0": np.repeat([0, bias, 0, 0], H), "bias_hh_l0": np.zeros(4 * H)}
    lstm.load_state_dict({**state, **biases, "weight_hh_l0": through_h * state["weight_hh_l0"]})
    x = Tensor(np.repeat(sequence, T, axis=1), requires_grad=True)
    lstm(x)[0].backward(dy)
    return np.linalg.norm(x.grad.numpy(), axis=2).T


def by_age(norms):
    """The mean norm over all losses at k steps back, relative to k = 0."""
    means = np.array([np.diagonal(norms, -k).mean() for k in back])
    return means / means[0]


back, norms_of = np.arange(26), {bias: gradient_norms(bias) for bias in (-1, 1, 3)}
assert not any(np.triu(norms, 1).any() for norms in norms_of.values())
assert norms_of[-1][-1, -11] < 1e-3 * norms_of[3][-1, -11]
assert np.abs(np.log(by_age(gradient_norms(1, through_h=False)) / sigmoid(1) ** back)).max() < 0.5

fig, axes = plt.subplots(1, 3, figsize=(11, 3.7), layout="constrained", width_ratios=(1.35, 1, 1))
for (bias, norms), colour, mark in zip(norms_of.items(), (GREY, ORANGE, BLUE), "xso"):
    left = by_age(norms)
    axes[0].plot(back, left, color=colour, linewidth=2, marker=mark, markevery=3, label=f"bias {bias}")
    axes[0].plot(back, sigmoid(bias) ** back, color=colour, linewidth=1, linestyle=":")
    print(f"bias of f {bias:2d}, f about {sigmoid(bias):.2f}: after 10 steps {left[10]:.0e} of the gradient is left")
axes[0].set(xlabel="steps back from the loss", ylabel="norm of dx, relative", yscale="log", ylim=(1e-6, 2))
axes[0].set_title("how far back (dotted: f to that power)", loc="left", fontsize=10)
axes[0].legend(frameon=False, loc="lower left")
for ax, bias in zip(axes[1:], (-1, 3)):
    norms = np.log10(np.maximum(norms_of[bias], 1e-6))
    norms[np.triu_indices(T, 1)] = np.nan
    picture = ax.imshow(norms, cmap="cividis", vmin=-5, vmax=0, interpolation="nearest")
    ax.set_title(f"bias of f {bias}", loc="left", fontsize=10)
    ax.set(xlabel="input of step s", ylabel="loss at step t", xticks=(0, 20, 39), yticks=(0, 20, 39))
fig.colorbar(picture, ax=axes[1:], shrink=0.8, label="log10 of the norm", extend="min")
save("lstm_through_time.png")

# %% [markdown]
# ## What dropout skips
#
# A step of the second of two layers consists of two products, with W_ih and with W_hh. Which parts of them are computed?
#
# * **bernoulli** drops random outputs of the first layer, different ones for each sample and step: both products are computed
#   completely.
# * **rdp** drops the same units in all samples and steps of a mini-batch. Their columns of W_ih are skipped. W_hh uses all
#   units, because cells are the memory of the layer (Zaremba et al. drop *non-recurrent* connections only).
# * **tdp** skips tiles of W_ih.
# * **recurrent rdp** also skips columns of W_hh. The dropped units still update their cells and are a part of y; only the next
#   step does not read their h. Dropping the cells themselves would erase their memory in every step.
#
# A policy draws a plan for each *site* of a layer; here are plans that keep one in two. The picture shows the transposes of
# both matrices, 32 × 128, and the share of the layer's products that is computed, forward and backward. As in walkthrough 3, a
# plan must not change the mathematics: for the last plan y is compared with that of masked matrices.

# %%
H, N, T = 32, 20, 35
first, second = LSTM(H, H, rng=1), LSTM(H, H, rng=2)
model = Sequential([first, second])
sites = Tree(model).sites
leaving, entering, returning = sites[first, "output_l0"], sites[second, "input_l0"], sites[second, "recurrent_l0"]
rows, tiles, back = RowPlan(H, 2, 0, scale=2.0), TilePlan((4 * H, H), 8, 2, 0, scale=2.0), RowPlan(H, 2, 1, scale=2.0)
ways = {
    "none or bernoulli": {},
    "rdp": {leaving: rows},
    "tdp": {entering: tiles},
    "rdp and recurrent rdp": {leaving: rows, returning: back},
}


def share(plans):
    """FLOPs of the second layer's training step over those without plans."""
    spec, thinned = ActivationSpec((T, N, H), plans.get(leaving), differentiable=True), Context(plans=plans, model=model).plans
    return second.cost(spec, thinned)[0].flops / second.cost(spec._replace(plan=None), Plans())[0].flops


def masks_of(plans):
    """{name of a matrix (4H, H): the factors of its elements}"""
    masks = {"weight_ih_l0": np.ones((4 * H, H)), "weight_hh_l0": np.ones((4 * H, H))}
    for site, plan in plans.items():
        masks["weight_hh_l0" if site is returning else "weight_ih_l0"] *= plan.mask() * plan.scale
    return masks  # the mask of an axis is one of columns


fig, axes = plt.subplots(4, 2, figsize=(10, 6.6), layout="constrained")
for (left, right), (name, plans) in zip(axes, ways.items()):
    masks = masks_of(plans)
    for ax, key, matrix in ((left, "weight_ih_l0", "W_ih"), (right, "weight_hh_l0", "W_hh")):
        palette = matplotlib.colors.ListedColormap((PALE, BLUE if ax is left else ORANGE))
        ax.imshow(masks[key].T > 0, cmap=palette, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        ax.vlines(np.arange(1, 4) * H - 0.5, -0.5, H - 0.5, color="white", linewidth=2)
        ax.set_xticks(np.arange(4) * H + H / 2, "ifgo" if name == list(ways)[-1] else [""] * 4)
        ax.set(yticks=[], ylabel=f"input ({H})" if ax is left else f"h ({H})")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_title(f"{matrix}, {name}", loc="left", fontsize=10)
    right.set_title(f"{share(plans):.0%} of the FLOPs of both", loc="right", fontsize=10)
save("lstm_dropout.png")

x, masked = Tensor(rng.standard_normal((T, N, H))), LSTM(H, H)
masked.load_state_dict({name: masks.get(name, 1) * array for name, array in second.state_dict().items()})
y = model(x, plans).numpy()
difference = np.abs(y - Sequential([first, masked])(x).numpy()).max()
print(f"largest difference from masked matrices {difference:.1e}, from whole ones {np.abs(y - model(x).numpy()).max():.2f}")
assert difference < 1e-5

# %% [markdown]
# Training draws the periods at random, independently for outputs, inputs and recurrent inputs. The mean over many steps:


# %%
def mean_share(p, tile=False, hidden=False):
    """Mean share of the second layer's FLOPs when policies of rate p draw the plans."""
    shares = []
    for _ in range(300):
        plans = {entering: TileDropout(p, tile=8).plan(entering, rng)} if tile else {leaving: RowDropout(p).plan(leaving, rng)}
        if hidden:
            plans[returning] = RowDropout(p).plan(returning, rng)
        shares.append(share(plans))
    return np.mean(shares)


print("rate     tdp     rdp   rdp and recurrent rdp")
for p in (0.3, 0.5, 0.7):
    print(f" {p}  {mean_share(p, tile=True):6.1%}  {mean_share(p):6.1%}  {mean_share(p, hidden=True):6.1%}")

# %% [markdown]
# ## A model that writes
#
# `LanguageModel` is an embedding, LSTM layers and a linear layer that predicts the next symbol. Its text is a list of words or,
# as here, of characters. It learns from 18,000 characters of Python's manual and is evaluated on other paragraphs. A perplexity
# of n means that a prediction is as uncertain as a choice among n equally probable characters.
#
# `fit` cuts the text into 20 pieces and reads them side by side, 35 characters at a time. States are carried over, gradients
# are not (truncated back-propagation through time).

# %%
paragraphs = [re.sub(r"\s+", " ", part) for topic in topics.values() for part in topic.split("\n\n")]
prose = dict.fromkeys(part for part in paragraphs if len(part) > 150 and part[0].isupper())  # each once
text = re.sub(r" +", " ", re.sub(r"[^a-z .,]", "", " ".join(prose).lower()))
train, valid = list(text[:18_000]), list(text[18_000:22_000])
print(text[:200], "…")

EPOCHS = 10
options = {"steps": 35, "batch_size": 20, "optimizer": "adam", "learning_rate": 0.02, "epochs": EPOCHS, "random_state": 0}
ways = {"none": {}, "rdp": {"dropout": "rdp", "dropout_rate": 0.25}, "half of the gate gradients": {"gate_sparsity": 0.5}}
models = {name: LanguageModel((64,), **options, **way).fit(train, validation=valid) for name, way in ways.items()}
print(f"{'perplexity':27s} training  validation  share of FLOPs")
flops = {}
for name, model in models.items():
    last, flops[name] = model.history_[-1], np.mean([record["flops_share"] for record in model.history_])
    print(f"{name:27s} {last['perplexity']:8.2f}  {last['validation_perplexity']:10.2f}  {flops[name]:14.1%}")
assert flops["rdp"] < flops["none"] == 1

# %% [markdown]
# Without dropout the model soon overfits: perplexity on the training text (dotted) decreases, but hardly on other paragraphs
# (solid). With `rdp` the two stay closer together, and longer training helps. Half of the gate gradients give nearly the same
# result as all of them. Below is the text that the first two models generate after "the ".

# %%
fig, ax = plt.subplots(figsize=(8, 4), layout="constrained")
for (name, model), colour, mark in zip(models.items(), (GREY, BLUE, ORANGE), "xos"):
    for key, line in (("validation_perplexity", "-"), ("perplexity", ":")):
        values, label = [record[key] for record in model.history_], name if line == "-" else None
        ax.plot(range(1, EPOCHS + 1), values, line, color=colour, linewidth=1.8, marker=mark, markersize=5, label=label)
ax.set(xlabel="epoch", ylabel="perplexity by character", yscale="log", xticks=range(2, EPOCHS + 1, 2))
ax.set_yticks([3, 4, 6, 8, 12, 16], ["3", "4", "6", "8", "12", "16"])
ax.minorticks_off()
ax.set_title("Other paragraphs (solid) and the text itself (dotted)", loc="left", fontsize=11)
ax.legend(frameon=False)
save("lstm_text.png")
gap = {name: np.log(m.history_[-1]["validation_perplexity"] / m.history_[-1]["perplexity"]) for name, m in models.items()}
assert gap["rdp"] < 0.8 * gap["none"]
for name in ("none", "rdp"):
    print(f"{name}: the {''.join(models[name].generate(list('the '), 200, temperature=0.5, random_state=1))}")

# %% [markdown]
# Most words are in the manual, and some are invented. More text and more units give better results. A network this small is no
# benchmark: `python -m bench lstm` times large ones, and `python -m bench papers-lstm` trains them on words.
#
# ## Which gates are kept
#
# The last model skipped half of its gate gradients. The backward pass computes dz, the gradients of the 4H gates before sigmoid
# and tanh; dx, dh and both dW are products with dz. With `gate_sparsity=0.5` a step keeps the 2H columns of dz with the largest
# L1 norm over the mini-batch, and all four products have half the size. The norms are estimated before the backward pass
# through time begins, without the recurrent part of the gradient. At intervals the sparse gradient is compared with the dense
# one: `gates_cosine`.
#
# To see which columns are kept, here is a training loop of 60 steps, with a policy that records its choices.


# %%
class Recorded(GateSparsity):
    """Records the masks of the columns that it chooses."""

    def choice(self, place, probed):
        choice = super().choice(place, probed)
        choose = choice.choose

        def choose_and_record(*arguments):
            plan = choose(*arguments)
            masks.append(getattr(plan, "plan", plan).mask())
            return plan

        choice.choose = choose_and_record
        return choice


masks, H, N, T, STEPS = [], 64, 20, 35, 60
symbols = Vocabulary.of(train).encode(train)
pieces = symbols[: len(symbols) // N * N].reshape(N, -1).T  # (time, piece)
model = Sequential([Embedding(symbols.max() + 1, H, rng=0), LSTM(H, H, rng=1), Linear(H, symbols.max() + 1, rng=2)])
adam, gates, state = Adam(model.parameters(), learning_rate=0.01), Recorded(0.5, schedule=1.0, probe=1), {}
(site,) = model.droppable("gates")
losses, cosines = [], []
for count in range(STEPS):
    start = count * T % (len(pieces) - T - 1)
    ids, following = pieces[start : start + T], pieces[start + 1 : start + T + 1]
    context = Context(plans={site: gates.plan(site, rng)}, model=model, state=state)
    logits = model(Tensor.wrap(np.ascontiguousarray(ids), device("cpu")), context)
    loss = ops.softmax_cross_entropy(logits.reshape(T * N, -1), labels=following.reshape(-1))
    adam.zero_grad()
    loss.backward()
    adam.step()
    losses.append(loss.item())
    cosines.append(gates.report()["gates_cosine"])
print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}, cosine with the dense gradient {np.mean(cosines):.3f} in the mean")
masks = np.array(masks).reshape(STEPS, 4, H)
assert (masks.sum(axis=(1, 2)) == 2 * H).all() and losses[-1] < losses[0]

by_gate = masks.mean(axis=2)  # (step, gate)
colours = dict(zip("ifgo", (BLUE, GREY, GREEN, ORANGE)))
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=(1.7, 1))
shown = np.concatenate([mask[:, np.argsort(-mask.mean(axis=0), kind="stable")] for mask in masks.transpose(1, 0, 2)], axis=1)
left.imshow(shown, cmap=matplotlib.colors.ListedColormap((PALE, BLUE)), aspect="auto", interpolation="nearest")
left.vlines(np.arange(1, 4) * H - 0.5, -0.5, STEPS - 0.5, color="white", linewidth=3)
left.set_xticks(np.arange(4) * H + H / 2, "ifgo")
left.tick_params(axis="x", length=0)
left.set(ylabel="step", xlabel="gate columns (4 × 64), in each gate the most often kept first")
left.set_title("kept columns of dz", loc="left", fontsize=10)
left.spines[:].set_visible(False)
for (gate, colour), shares, dash in zip(colours.items(), by_gate.T, ("-", "--", "-.", ":")):
    right.plot(shares, dash, color=colour, linewidth=1.8, label=gate)
right.set(xlabel="step", ylabel="share of its columns that is kept", ylim=(0, 1.03))
right.legend(frameon=False, ncols=4)
right.set_title("by gate", loc="left", fontsize=10)
save("lstm_gates.png")
assert by_gate[-10:, 1].mean() > by_gate[:10, 1].mean()
print("kept on average:", {gate: round(float(share), 2) for gate, share in zip("ifgo", by_gate.mean(axis=0))})
sparse = [record["gates_cosine"] for record in models["half of the gate gradients"].history_ if "gates_cosine" in record]
print(f"gates_cosine of the fit: {min(sparse):.3f} to {max(sparse):.3f} in {len(sparse)} of {EPOCHS} epochs; the end is dense")
assert min(sparse) > 0.8 and len(sparse) < EPOCHS

# %% [markdown]
# At first all columns of g are kept, most of o and none of f: f is multiplied by c[t-1], and the cells are still small. During
# training the cells grow, and so does the share of f. Many steps keep the same columns, so some weights hardly change in sparse
# steps. Therefore the last steps of a fit are dense (`gate_schedule=0.8`), to close the gap in accuracy.
