# %% [markdown]
# # 1. Tensor: an array that records how it was computed
#
# A training step computes a number, the loss, then its derivative with respect to each of a million weights, and then
# changes the weights a little. A `Tensor` provides the derivatives. It is a float32 array on a device, and it also
# stores the operation that computed it. This is enough to differentiate any result that was computed from tensors.

# %%
import importlib.util
import os
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from numbanet import Tensor, check_grad, from_dlpack, no_grad, op

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#2f6690", "#d17a22", "#6b7280", "#e5e7eb"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


# %% [markdown]
# ## Arithmetic and broadcasting
#
# Arithmetic follows NumPy, including broadcasting: if an axis is missing or has length 1, it is repeated.

# %%
x = Tensor([[1, 2, 3], [4, 5, 6]], requires_grad=True)
row = Tensor([10, 20, 30], requires_grad=True)
y = (x * row + 1).sum()
print(y)

# %% [markdown]
# ## backward
#
# `y.backward()` computes dy/d(tensor) for every tensor with `requires_grad=True`, and stores it in its `.grad`. Here
# y = Σ (x[n, i] row[i] + 1), so
#
# dy/dx[n, i] = row[i]   and   dy/drow[i] = Σ_n x[n, i]
#
# The second formula shows the rule for broadcasting: if a value is repeated in the forward pass, its gradients are
# **summed** in the backward pass.

# %%
y.backward()
print("dy/dx   =", x.grad)
print("dy/drow =", row.grad)

# %% [markdown]
# `backward` adds to `.grad`, because a weight that is used twice needs the sum of both gradients. So a training loop
# calls `zero_grad()` between steps. The graph, in contrast, is freed during `backward`, because its activations are the
# largest part of a training step's memory. A second `backward` through the same graph is an error.

# %%
try:
    y.backward()
except RuntimeError as error:
    print("RuntimeError:", error)

# %% [markdown]
# ## The graph
#
# The graph consists of one small object per result, its `node`. A node holds the name of the op, its inputs, and one
# function per input, which the next section explains. We can print the graph:


# %%
def show(tensor, depth=0):
    name = tensor.node.op if tensor.node else "a leaf"
    print("    " * depth + f"{name} {tensor.shape}")
    for parent in tensor.node.inputs if tensor.node else ():
        show(parent, depth + 1)


show((x * row + 1).sum())

# %% [markdown]
# ## What a vjp is
#
# Let y = f(x) with x in Rⁿ and y in Rᵐ. Its derivative is the Jacobian J[j, i] = ∂y[j]/∂x[i], an m × n matrix. For an
# elementwise function of a million numbers, J would have 10¹² entries, nearly all of them zero. The chain rule does not
# need J itself, only its product with dy, the gradient of the loss with respect to y:
#
# dx[i] = Σ_j dy[j] J[j, i],   the **vector-Jacobian product**, vjp(dy) = dyᵀ J.
#
# Each op implements this product directly. For y = tanh(x), J is diagonal and vjp(dy) = dy (1 - y²), which costs no more
# than the function itself. `backward` sorts the graph and calls one vjp after another, from the loss to the leaves.
#
# The argument of `backward` is this dy. If dy is a unit vector, `.grad` is one row of J:

# %%
x = Tensor([0.0, 0.5, 1.0], requires_grad=True)
jacobian = []
for unit in np.eye(3):
    x.zero_grad()
    x.tanh().backward(unit)
    jacobian.append(x.grad.numpy())
print(np.array(jacobian).round(4))
print("1 - tanh² =", (1 - np.tanh(x.numpy()) ** 2).round(4))

# %% [markdown]
# ## A new op
#
# An op is a function of a device and arrays. It returns the result and a tuple with one vjp per array; `@op` turns it
# into a function of tensors. Our example is softplus, a smooth ReLU:
#
# softplus(x) = log(1 + eˣ) = max(x, 0) + log(1 + e^(-|x|)),   softplus'(x) = 1/(1 + e^(-x)) = sigmoid(x)
#
# The first form overflows for large x, the second never does. `dev` has the operations of the device as methods, so the
# same six lines run on the CPU and on a GPU.


# %%
@op
def softplus(dev, x):
    """y = log(1 + e^x)"""
    small = dev.exp(dev.affine(dev.abs(x), mul=-1.0))
    y = dev.add(dev.relu(x), dev.log(dev.affine(small, add=1.0)))
    return y, (lambda dy: dev.mul(dy, dev.sigmoid(x)),)


# %% [markdown]
# ## Is the derivative right?
#
# `check_grad` compares two numbers that must be equal for any vectors u and v: vᵀ(J u) and (Jᵀ v)ᵀ u. It computes J u by
# the difference (f(x + h u) - f(x - h u)) / 2h, and Jᵀ v by `backward`. With random u and v, every entry of J contributes
# to both numbers, so two evaluations of f check a million derivatives. A wrong vjp does not pass:


# %%
@op
def wrong_softplus(dev, x):
    return dev.log(dev.affine(dev.exp(x), add=1.0)), (lambda dy: dev.mul(dy, dev.tanh(x)),)


rng = np.random.default_rng(0)
x = Tensor(rng.standard_normal((40, 50)), requires_grad=True)
print(f"softplus: relative error {check_grad(softplus, [x]):.1e}")
try:
    check_grad(wrong_softplus, [x])
except AssertionError as error:
    print("wrong_softplus:", error)

# %%
x = Tensor(np.linspace(-4, 4, 201), requires_grad=True)
curves = {}
for name, function in (("softplus", softplus), ("relu", Tensor.relu)):
    x.zero_grad()
    y = function(x)
    y.sum().backward()
    curves[name] = (y.numpy(), x.grad.numpy())
fig, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for ax, i, title in zip(axes, (0, 1), ("y = f(x)", "dy/dx, from backward")):
    ax.plot(x.numpy(), curves["relu"][i], color=GREY, linewidth=1.6, linestyle="--", label="relu")
    ax.plot(x.numpy(), curves["softplus"][i], color=BLUE, linewidth=2.2, label="softplus")
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel("x")
axes[0].legend(frameon=False)
save("tensor_softplus.png")

# %% [markdown]
# ## no_grad
#
# Predictions need no derivative. Inside `no_grad()` no graph is stored, so activations are freed at once.

# %%
with no_grad():
    y = softplus(x)
print("remembers how it was made:", y.node is not None)

# %% [markdown]
# ## NumPy and PyTorch
#
# A CPU tensor holds a NumPy array. `Tensor(array)` and `.numpy()` copy nothing if the array is float32, C-contiguous and
# writable. Other libraries share the memory of a tensor through DLPack, the common protocol for this, also without a
# copy.

# %%
array = np.arange(6, dtype=np.float32).reshape(2, 3)
tensor = Tensor(array)
print("NumPy: one memory:", np.shares_memory(array, tensor.numpy()))
print("NumPy functions take tensors:", np.linalg.norm(tensor).round(4))

if importlib.util.find_spec("torch"):
    import torch

    there = torch.from_dlpack(tensor)
    there[0, 0] = 100
    back = from_dlpack(there)
    print("PyTorch wrote, we read:", tensor.numpy()[0, 0], back.numpy()[0, 0])
else:
    print("PyTorch is not installed: from_dlpack(torch_tensor) and torch.from_dlpack(tensor) would share memory")

# %% [markdown]
# ## Training by hand
#
# The data are two spirals, one for each class, wound around each other: no straight line separates them. A network with
# two hidden layers can:
#
# h₁ = tanh(x W₁ + b₁),   h₂ = tanh(h₁ W₂ + b₂),   z = h₂ w₃ + b₃,   P(class 1 | x) = sigmoid(z)
#
# If labels are t = ±1, the negative log-likelihood of one sample is log(1 + e^(-t z)) = softplus(-t z): our new op is
# the loss of logistic regression. We train by gradient descent with momentum, v ← μ v + dw, w ← w - lr v.


# %%
def spirals(n, rng):
    angle = np.sqrt(rng.uniform(0.02, 1, n)) * 3.2 * np.pi
    label = rng.choice([-1.0, 1.0], n)
    points = label[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) * (angle / (3.2 * np.pi))[:, None]
    return (points + 0.015 * rng.standard_normal((n, 2))).astype(np.float32), label.astype(np.float32)


def weight(n_in, n_out):
    return Tensor(rng.standard_normal((n_in, n_out)) / np.sqrt(n_in), requires_grad=True)


def bias(n, spread=0.0):
    return Tensor(spread * rng.standard_normal(n), requires_grad=True)


rng = np.random.default_rng(1)
X, t = spirals(500, rng)
scaled = 5 * X  # tanh is nearly linear for coordinates below 1, and so would the first layer be
parameters = [weight(2, 40), bias(40, 1.0), weight(40, 40), bias(40), weight(40, 1), bias(1)]
w1, b1, w2, b2, w3, b3 = parameters


def network(x):
    h = (x @ w1 + b1).tanh()
    h = (h @ w2 + b2).tanh()
    return (h @ w3 + b3).reshape(-1)


velocity = [np.zeros(p.shape, np.float32) for p in parameters]
losses = []
for step in range(500):
    loss = softplus(network(Tensor(scaled)) * -t).mean()
    loss.backward()
    for p, v in zip(parameters, velocity):
        v *= 0.9
        v += p.grad.numpy()
        p.numpy()[...] -= 0.1 * v
        p.zero_grad()
    losses.append(loss.item())
    if step % 100 == 0 or step == 499:
        with no_grad():
            right = np.mean((network(Tensor(scaled)).numpy() > 0) == (t > 0))
        print(f"step {step:3d}   loss {losses[-1]:.4f}   right {right:.1%}")

# %% [markdown]
# The accuracy on new points shows whether the network has learned the spirals or only memorised the training points.

# %%
X_new, t_new = spirals(2000, np.random.default_rng(2))
with no_grad():
    print(f"right on new points: {np.mean((network(Tensor(5 * X_new)).numpy() > 0) == (t_new > 0)):.1%}")
    side = np.linspace(-1.12, 1.12, 200)
    plane = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    probability = network(Tensor(5 * plane)).sigmoid().numpy().reshape(200, 200)

fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 4), layout="constrained", width_ratios=(1, 1.15))
left.plot(losses, color=BLUE, linewidth=1.5)
left.set(xlabel="step", ylabel="loss: mean of softplus(−t z)", yscale="log")
left.set_title("Gradient descent with momentum", loc="left", fontsize=11)
shades = matplotlib.colors.LinearSegmentedColormap.from_list("classes", ["#c3d5e3", "#ffffff", "#f3d9bd"])
image = right.pcolormesh(side, side, probability, cmap=shades, vmin=0, vmax=1, shading="auto", rasterized=True)
right.contour(side, side, probability, levels=[0.5], colors=GREY, linewidths=1)
for label, colour in ((-1, BLUE), (1, ORANGE)):
    right.plot(*X[t == label].T, "o", color=colour, markersize=2.6)
right.set(xlabel="x[0]", ylabel="x[1]", aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
right.set_title("Two spirals and the decision boundary", loc="left", fontsize=11)
bar = fig.colorbar(image, ax=right, shrink=0.8, ticks=(0, 0.5, 1), label="P(class 1 | x)")
bar.outline.set_visible(False)
save("tensor_spirals.png")

# %% [markdown]
# The layers, the optimisers and `Net` are built from these parts alone. Dropout, in walkthrough 3, gives each op a
# smaller part of the product to compute.
