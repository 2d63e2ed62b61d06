"""Calls of numbanet's ops, layers and optimisers with shapes, dtypes and plans that may not fit, for `test_refusals`.

Arrays lie between pages that nobody may touch (`kernels/guards.py`): what reads or writes outside one ends this process.
Prints how many calls were done and how many were refused; anything else than a refusal by name is an error.
"""
import faulthandler
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "kernels"))
import guards

from numbanet import (
    SGD,
    Adam,
    BatchNorm1d,
    BernoulliPlan,
    Embedding,
    Flatten,
    IndexPlan,
    Linear,
    Order,
    ReLU,
    RowPlan,
    Sequential,
    Shuffle,
    Step,
    Tanh,
    Tensor,
    TilePlan,
    ops,
)
from numbanet.gradients import Dense, Packed
from numbanet.plans import kept
from numbanet_kernels.host import thresholds

REFUSALS = (TypeError, ValueError, IndexError)
SIZES = (0, 1, 2, 3, 5, 8, 10, 32, 64, 320)


class Random:
    """What calls are made of: mostly of sizes that occur together, so that some fit."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def one(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def size(self):
        return int(self.rng.choice(self.usual if self.rng.random() < 0.8 else SIZES))

    def begin(self):
        """Three sizes that are usual from here on."""
        self.usual = [int(n) for n in self.rng.choice(SIZES, 3)]

    def array(self, *shape, dtype=None):
        shape = shape or tuple(self.size() for _ in range(self.one(1, 2, 2, 2, 2, 3)))
        kind = np.dtype(dtype or self.one(*["f4"] * 12, "f8", "i4", "?"))
        values = self.rng.standard_normal(shape) * 3
        return guards.guarded(np.abs(values).astype(kind) if kind.kind in "iu" else values.astype(kind))

    def tensor(self, *shape):
        tensor = Tensor(self.array(*shape, dtype="f4"), requires_grad=bool(self.rng.random() < 0.8))
        if self.rng.random() < 0.05:
            tensor.data = self.array(*tensor.shape)  # whatever dtype
        return tensor

    def plan(self):
        n, dp = self.size(), int(self.rng.integers(1, 5))
        scale = self.one(1.0, 1.5)
        made = self.one(
            lambda: RowPlan(n, dp, int(self.rng.integers(dp)), scale),
            lambda: IndexPlan(n, np.flatnonzero(self.rng.random(n) < 0.5), scale),
            lambda: TilePlan((n, self.size()), self.one(1, 2, 8, 32), dp, int(self.rng.integers(dp)), scale, self.one(0, 2)),
            lambda: BernoulliPlan(n, 0.5, 3, 2.0), lambda: None, lambda: self.one(3, "rdp", slice(0, 4)))()
        return made

    def layer(self):
        return self.one(lambda: Linear(max(self.size(), 1), max(self.size(), 1), rng=0), ReLU, Tanh, Flatten,
                        lambda: BatchNorm1d(max(self.size(), 1)), lambda: Embedding(max(self.size(), 1), 3, rng=0),
                        lambda: Shuffle(self.rng.permutation(self.size())))()


def an_op(r):
    x, w, b = r.tensor(), r.tensor(), r.one(None, r.tensor(), r.tensor(r.size()))
    relu = bool(r.rng.random() < 0.5)
    return r.one(
        lambda: ops.linear(x, w, b, relu=relu), lambda: ops.linear_rows(x, w, b, rows=r.plan(), cols=r.plan(), relu=relu),
        lambda: ops.linear_rows(x, w, b, rows=r.plan(), relu=relu), lambda: ops.linear_tiles(x, w, b, plan=r.plan(), relu=relu),
        lambda: ops.linear_tiles(x, w, plan=TilePlan(w.shape[:2], 8, 2, 1), blocks=r.one(None, r.array())),
        lambda: ops.expand(x, plan=r.plan()), lambda: ops.dropout(x, plan=r.plan()), lambda: ops.matmul(x, w), lambda: x @ x.T,
        lambda: ops.shuffle(x, order=Order(r.rng.permutation(r.size()), r.one(None, np.zeros(r.size())))),
        lambda: ops.batch_norm(x, r.tensor(r.size()), r.tensor(r.size()), kept=r.one(None, kept_axis(r))),
        lambda: ops.batch_norm_apply(x, w, w, mean=r.array(r.size()), variance=r.array(r.size())),
        lambda: ops.embedding(x, ids=r.array()),
        lambda: ops.softmax_cross_entropy(x, labels=r.array(), weights=r.one(None, r.array())),
        lambda: ops.squared_error(x, target=r.array()), lambda: x + w, lambda: x * w, lambda: ops.maximum(x, w),
        lambda: x.sum(axis=r.one(None, 0, 1, 7)), lambda: x.max(axis=r.one(0, -1)), lambda: x.reshape(r.size(), -1),
        lambda: x.transpose(*r.rng.permutation(r.one(1, 2, 3))), lambda: x[r.array(r.size(), dtype="i4")], lambda: x.softmax(),
        lambda: ops.broadcast_to(x, shape=(r.size(), r.size())), lambda: ops.concatenate([x, w], axis=r.one(0, 1)))()


def kept_axis(r):
    return kept(RowPlan(r.size(), 2, 0), guards.CPU)


def a_pass(r):
    layers = [r.layer() for _ in range(r.one(1, 2, 3))]
    model = Sequential(layers)
    step = Step("cpu", {layer: plan for layer in layers if layer.sites() and (plan := r.plan()) is not None}, training=True)
    if r.rng.random() < 0.1 and isinstance(layers[0], Linear):
        step.ready[layers[0].weight] = r.array()
    return model(r.tensor(), step)


def an_update(r):
    """Gradients and parts of weights that somebody has set by hand."""
    weights = [Tensor(r.array(r.size(), r.size(), dtype="f4"), requires_grad=True) for _ in range(2)]
    optimizer = r.one(lambda: SGD(weights, 0.1, 0.9), lambda: Adam(weights, 0.1))()
    for _ in range(3):
        for w in weights:
            packing = kept(TilePlan((r.size(), r.size()), 8, 2, 1), guards.CPU).packing
            dense = Dense(r.array(*w.shape, dtype="f4"))
            w.gradient = r.one(None, dense, Dense(r.array()), Packed(r.array(), packing, w.shape))
        optimizer.step({w: r.plan() for w in weights if r.rng.random() < 0.7})
    optimizer.settle()


def main(seed, count):
    faulthandler.enable()
    r, done, refused = Random(seed), 0, 0
    with thresholds.using(thresholds.Thresholds(0, 0, 0)), np.errstate(all="ignore"):
        for number in range(count):
            r.begin()
            call = r.one(an_op, an_op, an_op, a_pass, an_update)
            try:
                result = call(r)
                if isinstance(result, Tensor) and result.requires_grad:
                    result.backward(np.ones(result.shape, np.float32))
                done += 1
            except REFUSALS as refusal:
                refused += 1
                if not str(refusal):
                    raise AssertionError(f"call {number}, {call.__name__}: refused without a word") from refusal
            guards.check()
    print(done, refused)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
