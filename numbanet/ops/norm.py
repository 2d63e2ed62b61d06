"""Batch and layer normalisation; dy is the gradient of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..autograd import op
from ..device import Device
from ..plans.on_device import DeviceAxis
from .linear import memoize, vector_gradient


def _selected(name: str, dev: Device, x: Any, channels: DeviceAxis | None, vectors: tuple[Any, ...]) -> list[Any]:
    """Return the entries of each of `vectors` (C,) at the K kept channels; raise ValueError unless x has the shape (N, K)."""
    n, count = vectors[0].shape[0], vectors[0].shape[0] if channels is None else channels.plan.count
    if not (
        len(x.shape) == 2
        and x.shape[1] == count
        and all(v.shape == (n,) for v in vectors)
        and (channels is None or channels.plan.n == n)
    ):
        raise ValueError(
            f"{name}: x {tuple(x.shape)} does not match {n} channels"
            f"{'' if channels is None else f' of which {channels.plan} are kept'}"
        )
    if channels is None:
        return list(vectors)
    return [dev.reshape(dev.compact(dev.reshape(v, (1, n)), channels.indices), (count,)) for v in vectors]


@op
def batch_norm(
    dev: Device,
    x,
    gamma,
    beta,
    *,
    eps: float = 1e-5,
    channels: DeviceAxis | None = None,
    seen: Callable[[Any, Any], None] = lambda mean, variance: None,
):
    """y[n, c] = gamma[c] (x[n, c] - mean[c]) / sqrt(variance[c] + eps) + beta[c], with the mean and the variance over n.

    x (N, C), gamma and beta (C,) -> y (N, C). If `channels` is given, x and y (N, K) hold only these K channels. `seen` is a
    function that the op calls as seen(mean, variance) with the statistics of the batch; the variance is the sum of squares
    divided by N (Ioffe & Szegedy 2015, algorithm 1).
    """
    gamma, beta = _selected("batch_norm", dev, x, channels, (gamma, beta))
    y, mean, variance = dev.batch_norm(x, gamma, beta, eps)
    seen(mean, variance)
    gradients = memoize(lambda dy: dev.batch_norm_grad(dy, x, gamma, mean, variance, eps))

    def of_vector(which: int) -> Callable[[Any], Any]:
        return lambda dy: gradients(dy)[which] if channels is None else vector_gradient(gradients(dy)[which], channels)

    return y, (lambda dy: gradients(dy)[0], of_vector(1), of_vector(2))


@op
def batch_norm_apply(
    dev: Device, x, gamma, beta, *, mean: Any, variance: Any, eps: float = 1e-5, channels: DeviceAxis | None = None
):
    """y[n, c] = gamma[c] (x[n, c] - mean[c]) / sqrt(variance[c] + eps) + beta[c] with a given mean and variance, both (C,)."""
    gamma, beta, mean, variance = _selected("batch_norm_apply", dev, x, channels, (gamma, beta, mean, variance))
    y = dev.batch_norm_apply(x, gamma, beta, mean, variance, eps)
    nothing, ones = (dev.full(gamma.shape, value) for value in (0.0, 1.0))

    def dgamma(dy):
        sums = dev.sum_rows(dev.mul(dy, dev.batch_norm_apply(x, ones, nothing, mean, variance, eps)))
        return sums if channels is None else vector_gradient(sums, channels)

    def dbeta(dy):
        return dev.sum_rows(dy) if channels is None else vector_gradient(dev.sum_rows(dy), channels)

    return y, (lambda dy: dev.batch_norm_apply(dy, gamma, nothing, nothing, variance, eps), dgamma, dbeta)


@op
def layer_norm(dev: Device, x, gamma=None, beta=None, *, shape: Sequence[int], eps: float = 1e-5):
    """y = gamma (x - mean) / sqrt(variance + eps) + beta, with the mean and the variance over the last len(shape) axes.

    x and y (…, *shape); gamma and beta (*shape), or None, which stands for gamma = 1 and beta = 0 (Ba, Kiros & Hinton 2016,
    "Layer normalization", eq. 3).

    Raises
    ------
    ValueError
        If x does not end with these axes, or gamma or beta has another shape.
    """
    shape, before = tuple(shape), tuple(x.shape)
    if not (shape and before[-len(shape) :] == shape and all(v is None or tuple(v.shape) == shape for v in (gamma, beta))):
        vectors = "".join(f", {name} {tuple(v.shape)}" for name, v in (("gamma", gamma), ("beta", beta)) if v is not None)
        raise ValueError(f"layer_norm: x {before}{vectors} do not end with the axes {shape}")
    width = math.prod(shape)
    rows = dev.reshape(x, (math.prod(before[: -len(shape)]), width))
    g, b = (dev.full((width,), value) if v is None else dev.reshape(v, (width,)) for v, value in ((gamma, 1.0), (beta, 0.0)))
    y, mean, inverse = dev.layer_norm(rows, g, b, eps)
    gradients = memoize(lambda dy: dev.layer_norm_grad(dev.reshape(dy, rows.shape), rows, g, mean, inverse))
    return dev.reshape(y, before), (
        lambda dy: dev.reshape(gradients(dy)[0], before),
        lambda dy: dev.reshape(gradients(dy)[1], shape),
        lambda dy: dev.reshape(gradients(dy)[2], shape),
    )
