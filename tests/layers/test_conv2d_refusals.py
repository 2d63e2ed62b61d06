"""Conv2d names bad arguments, images and plans that do not fit."""

import numpy as np
import pytest

from numbanet import BernoulliPlan, BlockPlan, Context, Conv2d, Flow, IndexPlan, Plan, Plans, RowPlan, Tensor, TilePlan
from numbanet.layers import ActivationSpec, ChannelsLast, Tree
from numbanet.plans import on_device


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: Conv2d(0, 4, 3), ValueError, "in_channels must be a positive integer, got 0"),
        (lambda: Conv2d(3, 4.0, 3), ValueError, "out_channels must be a positive integer, got 4.0"),
        (lambda: Conv2d(4, 6, 3, groups=0), ValueError, "groups must be a positive integer"),
        (lambda: Conv2d(4, 6, 3, groups=4), ValueError, "4 groups do not divide 4 and 6 channels"),
        (lambda: Conv2d(4, 6, 3, init="zeros"), ValueError, "'he' or 'glorot'"),
        (lambda: Conv2d(4, 6, 2.5), TypeError, "Conv2d: kernel_size"),
        (lambda: Conv2d(4, 6, (1, 2, 3)), TypeError, "kernel_size"),
        (lambda: Conv2d(4, 6, 3, stride="2"), TypeError, "Conv2d: stride"),
        (lambda: Conv2d(4, 6, 0), ValueError, "kernel_size, stride and dilation must be positive"),
        (lambda: Conv2d(4, 6, 3, stride=(1, 0)), ValueError, "must be positive"),
        (lambda: Conv2d(4, 6, 3, dilation=0), ValueError, "must be positive"),
        (lambda: Conv2d(4, 6, 3, padding=-1), ValueError, "padding from 0 on"),
        (
            lambda: Conv2d(3, 4, 3)(Tensor(np.ones((2, 4, 5, 5)))),
            ValueError,
            r"2d\(3, 4, 3\): x \(2, 4, 5, 5\) is not a batch of images",
        ),
        (
            lambda: Conv2d(3, 4, 3)(Tensor(np.ones((2, 75)))),
            ValueError,
            r"3\): x \(2, 75\) is not a batch of images \(3, H, W\)",
        ),
        (lambda: Conv2d(3, 4, 3)(Tensor(np.ones((2, 3, 2, 5)))), ValueError, r"larger than the images \(2, 5\)"),
        (
            lambda: Conv2d(3, 4, 3).cost(ActivationSpec((2, 3, 2, 5)), Plans()),
            ValueError,
            r"3\): its window is larger than the im.* \(2, 5\)",
        ),
        (
            lambda: Conv2d(3, 4, 3).cost(ActivationSpec((2, 4, 5, 5)), Plans()),
            ValueError,
            r"takes images \(3, H, W\).*\(4, 5, 5\) a sample",
        ),
        (
            lambda: Conv2d(3, 4, 3).cost(ActivationSpec((2, 75)), Plans()),
            ValueError,
            r"takes images \(3, H, W\).*\(75,\) a sample",
        ),
        (
            lambda: Conv2d(6, 4, 3).forward(
                Flow(Tensor(np.ones((2, 5, 5, 2))), ChannelsLast(on_device(IndexPlan(5, [0, 1]), Tensor([1]).device))),
                Context(),
            ),
            ValueError,
            r"conv2d: IndexPlan.* is of shape \(5,\), not \(6,\)",
        ),
    ],
)
def test_misuse_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


UNKNOWN = type("Unknown", (Plan,), {"mask": lambda self: np.ones(8)})()


@pytest.mark.parametrize(
    "groups, name, plan, error, message",
    [
        (1, "output", RowPlan(9, 2, 0), ValueError, r"RowPlan\(n=9.* is not made for output, of shape \(8, 36\)"),
        (1, "output", BernoulliPlan(4, 0.5, 1), ValueError, "is not made for output, of shape"),
        (1, "output", TilePlan((8, 36), 4, 2, 0), TypeError, "does not know the plan"),
        (1, "output", BlockPlan((18, 36), 9, 12, [[0], [1]]), TypeError, "at output; it takes AxisPlan or BernoulliPlan"),
        (1, "output", UNKNOWN, TypeError, "does not know the plan"),
        (1, "input", UNKNOWN, TypeError, "does not know the plan"),
        (1, "input", BernoulliPlan(18, 0.5, 1), TypeError, "at input; it takes AxisPlan or BlockPlan"),
        (1, "input", RowPlan(17, 2, 0), ValueError, r"RowPlan\(n=17.* is not made for input, of shape \(18, 36\)"),
        (1, "input", BlockPlan((18, 35), 9, 12, [[0], [1]]), ValueError, r"BlockPlan.*18, 35.* is not made for input, of"),
        (1, "input", BlockPlan((9, 36), 9, 12, [[0]]), ValueError, r"BlockPlan.*9, 36.* is not made for input, of"),
        (2, "output", RowPlan(8, 2, 0), TypeError, r"the plan RowPlan\(n=8.* at output; it takes BernoulliPlan"),
        (2, "input", BlockPlan((18, 18), 9, 9, [[0], [1]]), TypeError, "the plan BlockPlan.* at input; it takes AxisPlan"),
        (1, "output", 3, TypeError, "is not a Plan"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(groups, name, plan, error, message):
    """Of 2 images with 9 positions, and 8 filters of 36 weights."""
    layer = Conv2d(4, 8, 3, groups=groups)
    site = Tree(layer).sites[layer, name]
    with pytest.raises(error, match=rf"(?s)(Conv2d\(4, 8, 3|Site\(path='output').*\): .*{message}"):
        layer(Tensor(np.ones((2, 4, 5, 5))), {site: plan})


def test_filters_and_blocks_together_are_refused():
    layer = Conv2d(4, 8, 3)
    output, inner = layer.sites()
    with pytest.raises(ValueError, match="conv2d: channels of 1 groups and blocks cannot be left out"):
        layer(Tensor(np.ones((2, 4, 5, 5))), {output: RowPlan(8, 2, 0), inner: BlockPlan((18, 36), 9, 12, [[0], [1]])})
