"""Calls of numbanet's ops, layers and optimisers with shapes, dtypes and plans that may not fit, for `test_refusals`.

Arrays lie between pages that nobody may touch (`tests/kernels/guards.py`): what reads or writes outside one ends this process.
Prints how many calls were done and how many were refused; anything else than a refusal by name is an error.
"""

import faulthandler
import sys

import numpy as np

from numbanet import (
    SGD,
    Adam,
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    BernoulliPlan,
    BlockPlan,
    BlockSensitiveDropout,
    Context,
    Conv2d,
    Embedding,
    Flatten,
    IndexPlan,
    Linear,
    MaxPool2d,
    Order,
    ReLU,
    RowPlan,
    RowSensitiveDropout,
    Sequential,
    Shuffle,
    Tanh,
    Tensor,
    TilePlan,
    ops,
)
from numbanet.gradients import Dense, Packed
from numbanet.layers import Tree
from numbanet.plans import on_device
from numbanet_kernels.host import thresholds
from numbanet_kernels.layouts.windows import Bins, Window
from tests.kernels import guards

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
        if not shape:
            axes, most = self.one((1, 320), (2, 320), (2, 320), (2, 320), (2, 320), (3, 32))  # 320 along three take a second
            shape = tuple(min(self.size(), most) for _ in range(axes))
        kind = np.dtype(dtype or self.one(*["f4"] * 12, "f8", "i4", "?"))
        values = self.rng.standard_normal(shape) * 3
        return guards.guarded(np.abs(values).astype(kind) if kind.kind in "iu" else values.astype(kind))

    def tensor(self, *shape):
        tensor = Tensor(self.array(*shape, dtype="f4"), requires_grad=bool(self.rng.random() < 0.8))
        if self.rng.random() < 0.05:
            tensor = Tensor.wrap(self.array(*tensor.shape), tensor.device, tensor.requires_grad)  # whatever dtype
        return tensor

    def plan(self):
        n, dp = self.size(), int(self.rng.integers(1, 5))
        scale = self.one(1.0, 1.5)
        return self.one(
            lambda: RowPlan(n, dp, int(self.rng.integers(dp)), scale),
            lambda: IndexPlan(n, np.flatnonzero(self.rng.random(n) < 0.5), scale),
            lambda: TilePlan((n, self.size()), self.one(1, 2, 8, 32), dp, int(self.rng.integers(dp)), scale, self.one(0, 2)),
            lambda: BernoulliPlan(n, 0.5, 3, 2.0),
            lambda: self.blocks(n, self.size()),
            lambda: None,
            lambda: self.one(3, "rdp", slice(0, 4)),
        )()

    def blocks(self, rows, columns):
        """A plan of blocks of a matrix of this size."""
        height, width = (int(side) for side in self.rng.integers(1, 12, 2))
        order = self.rng.random((-(-rows // height), -(-columns // width))).argsort(1)
        count = int(self.rng.integers(order.shape[1] + 1))
        return BlockPlan((rows, columns), height, width, np.sort(order[:, :count], 1), self.one(1.0, 1.5))

    def images(self):
        return self.tensor(*(min(self.size(), 10) for _ in range(self.one(3, 4, 4, 4, 4))))

    def window(self):
        return self.one(
            lambda: Window(*zip(*self.rng.integers((1, 1, 0, 1), (4, 4, 3, 3), (2, 4)).tolist())),
            lambda: Window(*map(tuple, self.rng.integers(-1, 4, (4, 2)).tolist())),
            lambda: Bins(*self.rng.integers(-1, 7, 2).tolist()),
        )()

    def convolution(self):
        channels, groups = self.one(1, 2, 3, 6), self.one(1, 1, 1, 2)
        return Conv2d(
            channels * groups,
            self.one(1, 2, 5) * groups,
            self.one(1, 2, 3, (1, 3)),
            self.one(1, 1, 2),
            self.one(0, 1, (2, 0)),
            self.one(1, 1, 2),
            groups,
            bool(self.rng.random() < 0.8),
            rng=0,
        )

    def layer(self):
        return self.one(
            lambda: Linear(max(self.size(), 1), max(self.size(), 1), rng=0),
            ReLU,
            Tanh,
            Flatten,
            lambda: BatchNorm1d(max(self.size(), 1)),
            lambda: Embedding(max(self.size(), 1), 3, rng=0),
            lambda: Shuffle(self.rng.permutation(self.size())),
            lambda: BatchNorm2d(max(self.size(), 1)),
            lambda: MaxPool2d(self.one(1, 2, 3), self.one(None, 1, 2)),
            lambda: AdaptiveAvgPool2d(self.one(1, 2)),
            lambda: AvgPool2d(self.one(1, 2, 3)),
            self.convolution,
            self.convolution,
        )()


def an_op(r):
    x, w, b = r.tensor(), r.tensor(), r.one(None, r.tensor(), r.tensor(r.size()))
    relu = bool(r.rng.random() < 0.5)
    return r.one(
        lambda: ops.linear(x, w, b, relu=relu),
        lambda: ops.linear_rows(x, w, b, rows=r.plan(), cols=r.plan(), relu=relu),
        lambda: ops.linear_rows(x, w, b, rows=r.plan(), relu=relu),
        lambda: ops.linear_tiles(x, w, b, plan=r.plan(), relu=relu),
        lambda: ops.linear_tiles(x, w, plan=TilePlan(w.shape[:2], 8, 2, 1), blocks=r.one(None, r.array())),
        lambda: ops.expand(x, plan=r.plan()),
        lambda: ops.dropout(x, plan=r.plan()),
        lambda: ops.matmul(x, w),
        lambda: x @ x.T,
        lambda: ops.shuffle(x, order=Order(r.rng.permutation(r.size()), r.one(None, np.zeros(r.size())))),
        lambda: ops.batch_norm(x, r.tensor(r.size()), r.tensor(r.size()), channels=r.one(None, kept_axis(r))),
        lambda: ops.batch_norm_apply(x, w, w, mean=r.array(r.size()), variance=r.array(r.size())),
        lambda: ops.embedding(x, ids=r.array()),
        lambda: ops.max_pool2d(r.images(), window=r.window()),
        lambda: ops.avg_pool2d(r.images(), window=r.window(), count_include_pad=relu),
        lambda: ops.softmax_cross_entropy(x, labels=r.array(), weights=r.one(None, r.array())),
        lambda: ops.squared_error(x, target=r.array()),
        lambda: x + w,
        lambda: x * w,
        lambda: ops.maximum(x, w),
        lambda: x.sum(axis=r.one(None, 0, 1, 7)),
        lambda: x.max(axis=r.one(0, -1)),
        lambda: x.reshape(r.size(), -1),
        lambda: x.transpose(*r.rng.permutation(r.one(1, 2, 3))),
        lambda: x[r.array(r.size(), dtype="i4")],
        lambda: x.softmax(),
        lambda: ops.broadcast_to(x, shape=(r.size(), r.size())),
        lambda: ops.concatenate([x, w], axis=r.one(0, 1)),
    )()


def a_convolution(r):
    """Mostly of sizes that fit together."""
    layer = r.convolution()
    outs, channels, *kernel = layer.weight.shape
    compact = r.one(None, None, RowPlan(channels, 2, 0)) if layer.groups == 1 else None
    given = layer.in_channels if compact is None else compact.count
    x = r.one(r.images, *[lambda: r.tensor(*map(int, r.rng.integers((0, 3, 3), (4, 9, 9))), given)] * 9)()
    w = r.tensor(outs, r.one(*[channels] * 9, r.size()), *kernel)
    rows = x.shape[0] * int(np.prod(layer.window.positions(*x.shape[1:3]))) if x.ndim == 4 else 3
    fitted = [{}, {"positions": IndexPlan(rows, np.flatnonzero(r.rng.random(rows) < 0.5), 2.0)}]
    if layer.groups == 1:
        fitted += [{"rows": RowPlan(outs, 2, 0, 1.5)}, {"blocks": r.blocks(rows, given * int(np.prod(kernel)))}]
    options = r.one(*fitted * 3, {"rows": r.plan(), "cols": r.plan()}, {"positions": r.plan()}, {"blocks": r.plan()})
    options = {**options, "cols": compact} if compact is not None and "blocks" not in options else options
    return ops.conv2d(
        x,
        w,
        r.one(None, r.tensor(outs), r.tensor(outs), r.tensor(r.size())),
        window=layer.window,
        groups=r.one(*[layer.groups] * 9, r.size()),
        relu=bool(r.rng.random() < 0.5),
        pool=r.one(None, None, Window((2, 2), (2, 2)), r.window()),
        **options,
    )


def kept_axis(r):
    return on_device(RowPlan(r.size(), 2, 0), guards.CPU)


def a_pass(r):
    layers = [r.layer() for _ in range(r.one(1, 2, 3))]
    model = Sequential(layers)
    owned = {}
    for (layer, _), site in Tree(model).sites.items():
        owned.setdefault(layer, []).append(site)
    plans = {r.one(*sites): plan for sites in owned.values() if (plan := r.plan()) is not None}
    policy = r.one(
        None,
        RowSensitiveDropout(0.5, together=r.one(1, 2), tile=r.one(None, 2)),
        BlockSensitiveDropout(0.5, columns=r.one(None, 4), channels=r.one(False, True)),
    )

    def choose(site, flow, layer):
        return policy.choose_from_flow(site, flow, layer, r.rng) if site.kind == "patches" else None

    given = Context("cpu", plans, model=model).plans
    given.choose = policy and choose
    packed = {layers[0].weight: r.array()} if r.rng.random() < 0.1 and isinstance(layers[0], Linear) else None
    return model(r.one(r.tensor, r.tensor, r.images)(), Context("cpu", given, training=True, packed=packed))


def an_update(r):
    """Gradients and parts of weights that somebody has set by hand."""
    weights = [Tensor(r.array(r.size(), r.size(), dtype="f4"), requires_grad=True) for _ in range(2)]
    optimizer = r.one(lambda: SGD(weights, 0.1, 0.9), lambda: Adam(weights, 0.1))()
    for _ in range(3):
        for w in weights:
            packing = on_device(TilePlan((r.size(), r.size()), 8, 2, 1), guards.CPU).packing
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
            call = r.one(an_op, an_op, an_op, a_convolution, a_pass, an_update)
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
