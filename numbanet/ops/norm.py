"""Batch and layer normalisation; dy is the gradient of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autograd import op
from ..device import Device
from ..plans.on_device import DeviceAxis
from .linear import memoize, vector_gradient


def _selected(name: str, dev: Device, x: Any, channels: DeviceAxis | None, vectors: tuple[Any, ...]) -> list[Any]:
    """Return the entries of each of `vectors` (C,) at the K kept channels; raise ValueError unless x has the shape (N, K). The
    first two are gamma and beta, which stand for 1 and 0 if they are None.
    """
    known = next((v.shape[0] for v in vectors if v is not None), (x.shape or (0,))[-1] if channels is None else channels.plan.n)
    vectors = tuple(dev.full((known,), 1.0 - i) if v is None else v for i, v in enumerate(vectors))
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
    gamma=None,
    beta=None,
    *,
    eps: float = 1e-5,
    channels: DeviceAxis | None = None,
    seen: Callable[[Any, Any], None] = lambda mean, variance: None,
    ranks: Any = None,
):
    """y[n, c] = gamma[c] (x[n, c] - mean[c]) / sqrt(variance[c] + eps) + beta[c], with the mean and the variance over n.

    x (N, C), gamma and beta (C,), or None for 1 and 0 -> y (N, C). If `channels` is given, x and y (N, K) hold only these K
    channels. `seen` is a function that the op calls as seen(mean, variance) with the statistics of the batch; the variance is
    the sum of squares divided by N (Ioffe & Szegedy 2015, algorithm 1).

    If `ranks` is given, n counts the rows of all ranks, without those of ranks whose samples have weight 0 (`Ranks.counts`),
    and the variance that `seen` gets is divided by N - 1.
    """
    if ranks is not None:
        chosen = _selected("batch_norm", dev, x, channels, (gamma, beta))
        return _batch_norm_of_all(dev, x, chosen[0], chosen[1], eps, channels, seen, ranks)
    gamma, beta = _selected("batch_norm", dev, x, channels, (gamma, beta))
    y, mean, variance = dev.batch_norm(x, gamma, beta, eps)
    seen(mean, variance)
    gradients = memoize(lambda dy: dev.batch_norm_grad(dy, x, gamma, mean, variance, eps))

    def of_vector(which: int) -> Callable[[Any], Any]:
        return lambda dy: gradients(dy)[which] if channels is None else vector_gradient(gradients(dy)[which], channels)

    return y, (lambda dy: gradients(dy)[0], of_vector(1), of_vector(2))


def _batch_norm_of_all(dev: Device, x, gamma, beta, eps: float, channels: DeviceAxis | None, seen: Callable, ranks: Any):
    """Return (y, vjps) of `batch_norm` with the statistics of the rows of all ranks: sums over the ranks in both passes.

    dx = gamma r (dy - (sum dy + z sum dy z) / N)        where r = 1 / sqrt(variance + eps) and z = (x - mean) r
    """
    _, mean, variance = dev.batch_norm(x, gamma, beta, eps)
    unbiased, rows = dev.empty(mean.shape), float(x.shape[0] if ranks.counts else 0)
    count: list[float] = []

    def join() -> None:
        own, spread = (np.asarray(dev.download(array), np.float64) for array in (mean, variance))
        sums = ranks.sum(np.append(rows * own, rows))
        n, centre = sums[-1], sums[:-1] / sums[-1]
        joint = ranks.sum(rows * (spread + (own - centre) ** 2)) / n
        count[:] = [n]
        _put(dev, (mean, centre), (variance, joint), (unbiased, joint * n / max(n - 1, 1)))

    dev.aside(join)
    seen(mean, unbiased)
    nothing = dev.full(gamma.shape, 0.0)

    def slopes(dy):
        _, dgamma, dbeta = dev.batch_norm_grad(dy, x, gamma, mean, variance, eps)
        factor, shift = dev.empty(gamma.shape), dev.empty(gamma.shape)

        def join_slopes() -> None:
            own = [np.asarray(dev.download(array), np.float64) for array in (dgamma, dbeta)]
            of_all = ranks.sum(np.stack(own)) / count[0]
            g, v = (np.asarray(dev.download(array), np.float64) for array in (gamma, variance))
            _put(dev, *((array, g * sums / np.sqrt(v + eps)) for array, sums in zip((factor, shift), of_all)))

        dev.aside(join_slopes)
        dx = dev.batch_norm_apply(dy, gamma, nothing, nothing, variance, eps)
        if ranks.counts:  # the statistics depend on x
            dx = dev.sub(dx, dev.batch_norm_apply(x, factor, shift, mean, variance, eps))
        return dx, dgamma, dbeta

    gradients = memoize(slopes)

    def of_vector(which: int) -> Callable[[Any], Any]:
        return lambda dy: gradients(dy)[which] if channels is None else vector_gradient(gradients(dy)[which], channels)

    y = dev.batch_norm_apply(x, gamma, beta, mean, variance, eps)
    return y, (lambda dy: gradients(dy)[0], of_vector(1), of_vector(2))


def _put(dev: Device, *pairs: tuple[Any, np.ndarray]) -> None:
    """Copy the second array of each pair, of the host, to the first."""
    for array, values in pairs:
        dev.copy(dev.upload(values.astype(np.float32)), out=array)


@op
def batch_norm_apply(
    dev: Device, x, gamma=None, beta=None, *, mean: Any, variance: Any, eps: float = 1e-5, channels: DeviceAxis | None = None
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
