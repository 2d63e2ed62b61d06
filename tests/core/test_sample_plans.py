"""Plans of single samples: linear layers under them are the masked dense ones, and what does not fit is refused."""

import numpy as np
import pytest

from numbanet import SamplePlan, Tensor, check_grad, ops


def a_plan(rng, samples=7, n=40, group=1, share=0.4):
    mask = rng.random((-(-samples // group), n)) < share
    padded = np.zeros((len(mask), 64), bool)
    padded[:, :n] = mask
    bits = np.packbits(padded, axis=1, bitorder="little").view("<i4")
    plan = SamplePlan(samples, n, group, bits)
    np.testing.assert_array_equal(plan.mask(), mask[np.arange(samples) // group])
    return plan


@pytest.mark.parametrize("group", [1, 3, 16])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_planned_is_masked_dense(dev, rng, inner, outer, relu, group):
    """y, dx, dW and db of values alone are those of the dense product under the masks, in float64."""
    from numbanet.plans import on_device

    into, out = (on_device(a_plan(rng, 20, n, group), dev) if given else None for n, given in ((33, inner), (40, outer)))
    x, w, b, dy = (rng.standard_normal(shape) for shape in ((20, 33), (40, 33), (40,), (20, 40)))
    masks = [1.0 if given is None else given.plan.mask() for given in (into, out)]
    x, dy = x * masks[0], dy * masks[1]
    X, W, B = (Tensor(a, dev, requires_grad=True) for a in (x if into is None else x[masks[0]], w, b))
    y = ops.linear_samples(X, W, B, inner=into, outer=out, relu=relu)
    y.backward(dy if out is None else dy[masks[1]])
    z = x @ w.T + b
    dz = dy * (z > 0 if relu else 1.0)
    expected = (np.maximum(z, 0) if relu else z) * masks[1], dz @ w * masks[0], dz.T @ x, dz.sum(0)
    found = (
        y if out is None else ops.expand_samples(y.detach(), plan=out),
        X.grad if into is None else ops.expand_samples(X.grad, plan=into),
        W.grad,
        B.grad,
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-4)


def test_gradients_by_differences(dev, rng):
    from numbanet.plans import on_device

    plan = on_device(a_plan(rng), dev)
    values, x, g, b = (Tensor(rng.standard_normal(n), dev, requires_grad=True) for n in (plan.plan.count, (7, 40), 40, 40))
    check_grad(lambda x: ops.compact_samples(x, plan=plan), [x])
    check_grad(lambda v: ops.expand_samples(v, plan=plan), [values])
    check_grad(lambda v, g, b: ops.batch_norm_samples(v, g, b, plan=plan), [values, g, b])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda plan, x, w: ops.linear_samples(x, w, outer=plan), "does not match y"),
        (lambda plan, x, w: ops.linear_samples(x, w, inner=plan), "does not hold"),
        (lambda plan, x, w: ops.expand_samples(x, plan=plan), "does not hold"),
        (lambda plan, x, w: SamplePlan(7, 40, 1, np.zeros((7, 1))), "are not those of 7 samples of 40 outputs"),
        (lambda plan, x, w: SamplePlan(2, 5, 1, [[-1], [-1]]), "beyond output 4"),
        (lambda plan, x, w: SamplePlan(2, 32, 1, [[1.7], [1]]), "words of 32 bits"),
        (lambda plan, x, w: SamplePlan(2, 32, 1, [[1 << 40], [1]]), "words of 32 bits"),
        (lambda plan, x, w: SamplePlan(2, 5, 1.5, [[1], [1]]), "group must be an integer"),
        (lambda plan, x, w: SamplePlan(2, 5, True, [[1], [1]]), "group must be an integer"),
    ],
)
def test_what_does_not_fit_is_refused(rng, make, message):
    from numbanet.plans import on_device

    with pytest.raises(ValueError, match=message):
        make(on_device(a_plan(rng), Tensor(0.0).device), Tensor(np.ones((7, 5))), Tensor(np.ones((41, 5))))
