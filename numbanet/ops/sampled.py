"""Operations on activations (N, O) of which each sample keeps different entries (`SamplePlan`). Such an activation is stored as
an array (K,) of the K values that are kept, one sample after the other, and a bit mask. A dense form exists only during a
product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..autograd import op
from ..device import Device
from ..plans.on_device import DeviceSamples
from .linear import memoize


def _dense(dev: Device, x: Any, samples: DeviceSamples | None) -> Any:
    return x if samples is None else dev.expand_samples(x, samples.lists)


def _check(name: str, shape: tuple[int, ...], x: Any, samples: DeviceSamples | None) -> None:
    """Raise ValueError unless x is a dense activation of shape `shape`, if `samples` is None, or the kept values of one."""
    if tuple(x.shape) != (shape if samples is None else (samples.plan.count,)) or (
        samples is not None and samples.plan.shape != shape
    ):
        raise ValueError(
            f"{name}: x {tuple(x.shape)} does not hold {'' if samples is None else f'what {samples} keeps of '}{shape}"
        )


@op
def expand_samples(dev: Device, x, *, plan: DeviceSamples):
    """y[n, o] = the kept value of (n, o) in x (K,); 0 if the entry is dropped. y (N, O) is the dense form of x."""
    _check("expand_samples", plan.plan.shape, x, plan)
    return _dense(dev, x, plan), (lambda dy: dev.compact_samples(dy, plan.lists, plan.plan.count),)


@op
def compact_samples(dev: Device, x, *, plan: DeviceSamples):
    """y (K,) = the values of x (N, O) that the plan keeps, one sample after the other."""
    _check("compact_samples", plan.plan.shape, x, None)
    return dev.compact_samples(x, plan.lists, plan.plan.count), (lambda dy: dev.expand_samples(dy, plan.lists),)


@op
def linear_samples(
    dev: Device, x, w, b=None, *, inner: DeviceSamples | None = None, outer: DeviceSamples | None = None, relu: bool = False
):
    """y[n, o] = act(sum_i x[n, i] w[o, i] + b[o]), where act is ReLU if `relu`, else the identity.

    x (N, I), w (O, I), b (O,) or None -> y (N, O). If `inner` is given, x (K_x,) holds only the values that `inner` keeps; if
    `outer` is given, only the values y (K_y,) that `outer` keeps are computed.

    Raises
    ------
    ValueError
        If shapes or plans do not match.
    """
    samples = x.shape[0] if inner is None else inner.plan.samples
    _check("linear_samples", (samples, w.shape[1]), x, inner)
    if outer is not None and outer.plan.shape != (samples, w.shape[0]):
        raise ValueError(f"linear_samples: {outer} does not match y {(samples, w.shape[0])}")
    whole = _dense(dev, x, inner)
    y = (
        dev.gemm(whole, w, tb=True, bias=b, relu=relu)
        if outer is None
        else dev.gemm_samples(whole, w, outer.lists, outer.plan.count, b, relu)
    )
    del whole
    dz = memoize(lambda dy: dev.relu_grad(dy, y) if relu else dy)

    def dx(dy):
        wide = dev.gemm(dz(dy), w) if outer is None else dev.gemm_samples_dx(dz(dy), w, outer.lists)
        return wide if inner is None else dev.compact_samples(wide, inner.lists, inner.plan.count)

    @memoize
    def both(dy):
        whole = _dense(dev, x, inner)
        return dev.gemm_dw(dz(dy), whole) if outer is None else dev.gemm_samples_dw(dz(dy), whole, outer.lists)

    return y, (dx, lambda dy: both(dy)[0], lambda dy: both(dy)[1])


@op
def batch_norm_samples(
    dev: Device,
    x,
    gamma=None,
    beta=None,
    *,
    plan: DeviceSamples,
    eps: float = 1e-5,
    seen: Callable[[Any, Any], None] = lambda mean, variance: None,
):
    """Batch normalisation of an activation (N, C) that is stored as its kept values x (K,); dropped values count as 0. The
    result keeps the same entries (double-mask selection). `seen` is called as by `batch_norm`.
    """
    gamma, beta = (dev.full((plan.plan.n,), 1.0 - i) if v is None else v for i, v in enumerate((gamma, beta)))
    _check("batch_norm_samples", (plan.plan.samples, gamma.shape[0]), x, plan)
    y, mean, variance = dev.batch_norm(_dense(dev, x, plan), gamma, beta, eps)
    seen(mean, variance)
    y = dev.compact_samples(y, plan.lists, plan.plan.count)
    gradients = memoize(lambda dy: dev.batch_norm_grad(_dense(dev, dy, plan), _dense(dev, x, plan), gamma, mean, variance, eps))
    return y, (
        lambda dy: dev.compact_samples(gradients(dy)[0], plan.lists, plan.plan.count),
        lambda dy: gradients(dy)[1],
        lambda dy: gradients(dy)[2],
    )
