# %% [markdown]
# # 5. Net: training, the scikit-learn way
#
# `Net` combines layers, a dropout policy, an optimiser and the training loop into a scikit-learn classifier. This
# walkthrough trains it on handwritten digits (1797 images of 8 × 8 pixels, included in scikit-learn) with four kinds of
# dropout, and then uses it in a pipeline and a grid search of scikit-learn.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from numbanet import Net, RowDropout
from numbanet.datasets import load_digits

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#1d4e79", "#d17a22", "#6b7280", "#e5e7eb"
COLOURS = {"none": GREY, "bernoulli": "#8c6d9e", "rdp": BLUE, "tdp": ORANGE}
MARKS = {"none": (":", "x"), "bernoulli": ("--", "^"), "rdp": ("-", "o"), "tdp": ("-.", "s")}  # for prints in grey
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})


def save(name):
    plt.savefig(PICTURES / name, bbox_inches="tight")
    print("wrote", PICTURES / name)


threadpool_limits(1)  # one core: small products gain little from more, and times can be compared
X_train, y_train, X_test, y_test = load_digits()
print("training", X_train.shape, "  test", X_test.shape)

# %% [markdown]
# ## fit, predict, score
#
# The first argument is the widths of the hidden layers. `fit` trains; the names of fitted attributes end in an underscore.

# %%
net = Net((128,), epochs=10, learning_rate=0.02, random_state=0).fit(X_train, y_train)
print(f"accuracy on the test images: {net.score(X_test, y_test):.1%}")
print("predicted", net.predict(X_test[:8]), "  true", y_test[:8])
print("most certain class of the first image:", net.predict_proba(X_test[:1]).max().round(4))
print("the last epoch:", {name: round(value, 5) for name, value in net.history_[-1].items()})

# %% [markdown]
# ## Four kinds of dropout
#
# `dropout` is a name, here `"none"`, `"bernoulli"` (conventional), `"rdp"` (rows) or `"tdp"` (tiles). Each layer draws a new
# pattern in each step, as walkthrough 4 explains. `flops_share` in the history is the FLOPs of an epoch divided by those of a
# dense epoch. The argument `validation` of `fit` adds a score on these samples to the record of each epoch.

# %%
EPOCHS, SEEDS = 10, 3
histories = {}
print(f"{'dropout':10s} {'test':>7s} {'from':>7s} {'to':>7s} {'training loss':>14s} {'seconds':>8s} {'share of FLOPs':>15s}")
for dropout in COLOURS:
    nets = [
        Net((384, 384), dropout=dropout, dropout_rate=0.5, epochs=EPOCHS, learning_rate=0.02, random_state=seed).fit(
            X_train, y_train, validation=(X_test, y_test)
        )
        for seed in range(SEEDS)
    ]
    histories[dropout] = [net.history_ for net in nets]
    last = np.array([[history[-1][key] for key in ("validation_score", "loss")] for history in histories[dropout]])
    seconds = np.mean([sum(record["seconds"] for record in history) for history in histories[dropout]])
    work = np.mean([record["flops_share"] for history in histories[dropout] for record in history])
    print(
        f"{dropout:10s} {last[:, 0].mean():7.1%} {last[:, 0].min():7.1%} {last[:, 0].max():7.1%} {last[:, 1].mean():14.4f} "
        f"{seconds:8.2f} {work:15.1%}"
    )

# %% [markdown]
# Three remarks on the table. First, the training loss is higher with dropout because it is the loss of the thinned networks.
# Second, one of the 360 test images is 0.28 % of the score, so differences of a few images, or below the range of the seeds,
# mean nothing. Third, the time falls with the FLOPs only if layers are wide: at this size the first epoch, in which each kind
# of step is recorded, is a large part of it, and small products gain little.
#
# The picture shows the same runs twice: over epochs, and over the FLOPs done, in units of one dense epoch. Lines are means
# over three seeds, and bands are their ranges. A pattern drops the same neurons for all samples of the batch, so its gradients
# are noisier than those of conventional dropout, and after equally many epochs its error is higher. The right picture compares
# the errors after equally many FLOPs.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained", sharey=True)
for dropout, runs in histories.items():
    error = np.array([[1 - record["validation_score"] for record in history] for history in runs])
    work = np.mean([np.cumsum([record["flops_share"] for record in history]) for history in runs], axis=0)
    dash, mark = MARKS[dropout]
    for ax, x in ((left, np.arange(1, EPOCHS + 1)), (right, work)):
        ax.fill_between(x, error.min(0), error.max(0), color=COLOURS[dropout], alpha=0.18, linewidth=0)
        ax.plot(
            x,
            error.mean(0),
            dash,
            marker=mark,
            markevery=(2, 4),
            markersize=5,
            color=COLOURS[dropout],
            linewidth=1.8,
            label=dropout,
        )
    right.plot(work[-1], error.mean(0)[-1], mark, color=COLOURS[dropout], markersize=9, markeredgecolor="black")
left.set(xlabel="epoch", ylabel="test error", yscale="log", xlim=(0, EPOCHS + 1), xticks=range(0, EPOCHS + 1, 5))
left.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["2 %", "5 %", "10 %", "20 %", "50 %"])
left.minorticks_off()
left.set_title(f"Digits, 64-384-384-10, p = 0.5: test error of {SEEDS} seeds by epoch", loc="left", fontsize=11)
left.legend(frameon=False, ncols=2, handlelength=3.5)
right.set(xlabel="FLOPs done, in dense epochs", xlim=(0, EPOCHS + 1), xticks=range(0, EPOCHS + 1, 5))
right.set_title(f"The same by work: large marks are at {EPOCHS} epochs", loc="left", fontsize=11)
save("net_learning_curves.png")

# %% [markdown]
# ## A policy object
#
# A name stands for a policy object with default parameters. With the object you can set all its parameters, for instance a
# rate for each hidden layer. `fit(dropout=…)` replaces the parameter `dropout` of the Net for one call.

# %%
net = Net((256, 256), epochs=10, learning_rate=0.02, random_state=0)
net.fit(X_train, y_train, dropout=RowDropout(rate=[0.2, 0.6], dp_max=6))
share = np.mean([record["flops_share"] for record in net.history_])
print(f"rates 0.2 and 0.6: {net.score(X_test, y_test):.1%} with {share:.1%} of the FLOPs")

# %% [markdown]
# ## Pipelines and searches
#
# `Net` follows scikit-learn's rules for estimators, so it can be used like any classifier: after a scaler in a pipeline, and
# in a grid search with cross-validation.

# %%
pipeline = make_pipeline(StandardScaler(), Net((64,), dropout="rdp", epochs=8, batch_size=64, random_state=0))
print(f"scaled pixels: {pipeline.fit(X_train, y_train).score(X_test, y_test):.1%}")

search = GridSearchCV(pipeline, {"net__dropout": ["bernoulli", "rdp"], "net__dropout_rate": [0.2, 0.5]}, cv=3)
search.fit(X_train, y_train)
for parameters, score, spread in zip(
    search.cv_results_["params"], search.cv_results_["mean_test_score"], search.cv_results_["std_test_score"]
):
    print(f"{parameters['net__dropout']:10s} p = {parameters['net__dropout_rate']}   {score:.1%} ± {spread:.1%}")
print(f"the best on the test images: {search.score(X_test, y_test):.1%}")

# %% [markdown]
# ## Data that arrives in pieces
#
# `partial_fit` trains for one epoch on the given samples, and continues from the current weights and momentum. The first call
# must name all classes, because some may be missing in the first piece.

# %%
stream = Net((256,), dropout="rdp", dropout_rate=0.3, learning_rate=0.02, batch_size=16, random_state=0)
for number, piece in enumerate(np.array_split(np.arange(len(y_train)), 6), 1):
    stream.partial_fit(X_train[piece], y_train[piece], classes=range(10))
    print(f"after piece {number} ({len(piece)} images): {stream.score(X_test, y_test):.1%}")

# %% [markdown]
# ## Callbacks
#
# A callback is called after each epoch with the net and the epoch's record. If it returns True, training stops. This one
# stops when the training loss is below 0.2.


# %%
def good_enough(net, record):
    return record["loss"] < 0.2


net = Net((128,), dropout="rdp", dropout_rate=0.3, learning_rate=0.05, epochs=100, callbacks=[good_enough], random_state=0)
net.fit(X_train, y_train)
print(f"stopped after {net.n_iter_} of 100 epochs: loss {net.history_[-1]['loss']:.3f}, test {net.score(X_test, y_test):.1%}")

# %% [markdown]
# With `early_stopping=True`, `fit` holds out a part of the training samples, stops when their score no longer improves, and
# keeps the best weights.
#
# The same `random_state` gives the same result: it seeds the initial weights, the order of samples and the dropout plans.

# %%
again = [Net((128,), dropout="rdp", epochs=3, random_state=1).fit(X_train, y_train).predict_proba(X_test) for _ in range(2)]
print("two runs with one seed give equal probabilities:", np.array_equal(*again))
