"""Functions that make layers of given widths, with initial weights for their dropout, and that convert samples to the form that
training takes.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arguments import is_integer
from ..device import Device
from ..dropout import Dropout
from ..layers import ACTIVATIONS, INITS, Embedding, Layer, Linear, Normalize, Recurrent, Sequential, Shuffle
from ..tensor import Tensor
from ..training.data import Data, on_host, rows_of

CALIBRATION = 32  # number of samples from which a data-dependent policy computes its thresholds
# number of samples in the estimate of a feature's mean; its standard error is then 1/64 of the standard deviation
MEAN_SAMPLES = 4096
# Share of the variance of initial weights that the last layer has with output_init="small". After sigmoids, whose slopes are
# at most 1/4, it is more: gradients of the first of eight such layers were otherwise so small that nothing was learned
SMALL, SMALL_AFTER = 1e-4, {"sigmoid": 1e-2}
COMMON_NOISE = 0.2  # the relative increase of the noise that `centre` allows


def check_build(activation: Any, init: Any, output_init: Any) -> None:
    """Raise ValueError if a parameter of `build` is invalid."""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        here = "; scikit-learn's 'logistic' is 'sigmoid' here" if activation == "logistic" else ""
        raise ValueError(f"there is no activation {activation!r}; choose one of {', '.join(map(repr, ACTIVATIONS))}{here}")
    if not isinstance(init, str) or init not in INITS:
        raise ValueError(f"there is no init {init!r}; choose one of {', '.join(map(repr, INITS))}")
    if output_init is not None and not (isinstance(output_init, str) and output_init == "small"):
        raise ValueError(f"output_init must be None or 'small', got {output_init!r}")


def build(
    X: np.ndarray,
    weights: np.ndarray | None,
    widths: Sequence[int],
    activation: str,
    init: str,
    output_init: str | None,
    output_bias: np.ndarray | None,
    dropout: Dropout,
    rng: np.random.Generator,
    dev: Device,
) -> Sequential:
    """Return `Linear` layers with an activation between them; `widths` are the numbers of features, of hidden neurons and of
    outputs.

    If init is "he", biases are 0; layers before ReLU and GELU have He's initial weights, and all other layers, such as the last
    one, have Glorot's. Otherwise biases are uniformly distributed. If output_init is "small", the last layer's weights have
    only a small share of that variance, and its biases are 0. Its biases are `output_bias`, if that is given. If dropout drops
    inputs of a layer's neurons, the layer's initial weights have less variance. Before a layer with tile dropout, features are
    shuffled, and most of their mean is subtracted.
    """
    layers: list[Layer] = []
    variance_factors = dropout.variance_factors(len(widths) - 2)
    for i, (n_in, n_out) in enumerate(zip(widths, widths[1:])):
        hidden = i < len(widths) - 2
        own = init if init != "he" or (hidden and activation in ("relu", "gelu")) else "glorot"
        small = output_init == "small" and not hidden
        biases, share = "zeros" if init == "he" or small else "uniform", SMALL_AFTER.get(activation, SMALL) if small else 1.0
        factor = share * variance_factors[i]
        linear = Linear(n_in, n_out, init=own, bias_init=biases, variance_factor=factor, rng=rng, device=dev)
        layers.append(linear)
        if hidden:
            layers.append(ACTIVATIONS[activation]())
        elif output_bias is not None and linear.bias is not None:
            linear.bias.assign(output_bias)
    if dropout.mixes_features and variance_factors[0] < 1:
        layers.insert(0, Shuffle(rng.permutation(widths[0]), centre(X, weights)))
    return Sequential(layers)


def widths_of(layers: object) -> tuple[int, ...]:
    """Return the parameter `layers` as the widths of the hidden layers; raise ValueError, or TypeError, if they are invalid."""
    widths = (layers,) if isinstance(layers, numbers.Integral) else layers
    if isinstance(widths, (list, tuple)) and any(isinstance(layer, Layer) for layer in widths):
        Sequential(widths)  # raises the error, because not all are layers
    if (
        isinstance(widths, (str, bytes))
        or not isinstance(widths, (Sequence, np.ndarray))
        or not all(is_integer(n) and n > 0 for n in widths)
    ):
        way = "give its attribute layers" if isinstance(layers, Sequential) else "such as (256, 256), or a list of layers"
        raise ValueError(f"layers must be the widths of the hidden layers, {way}; got {layers!r}")
    return tuple(int(n) for n in widths)


def check_samples_first(model: Sequential) -> None:
    """Raise ValueError if the first layers read samples as time steps, (T, N, …): an estimator gives them (N, T, …)."""
    for layer in model.layers:
        if isinstance(layer, Recurrent) and not layer.batch_first:
            raise ValueError(f"layers: {layer!r} takes time steps first, and here samples come first: give it batch_first=True")
        if not isinstance(layer, (Embedding, Normalize, Recurrent)):
            return  # what another layer does to the axes is not known


def as_rows(X: Any, shape: Sequence[int] | None) -> Any:
    """Return images X (N, C, H, W), or (N, H, W) of one channel, as rows, where `shape` is (C, H, W); return other X."""
    lengths = tuple(shape) if isinstance(shape, (Sequence, np.ndarray)) else ()
    images = len(lengths) == 3 and getattr(X, "shape", ())[1:] in (lengths, lengths[lengths[0] == 1 :])
    return X.reshape(len(X), -1) if images else X


def as_images(X: np.ndarray, shape: Sequence[int] | None) -> np.ndarray:
    """Return flat samples X as images (N, C, H, W), where `shape` is (C, H, W); return X if it is not flat or shape is None."""
    if shape is None or X.ndim not in (2, 3):
        return X
    lengths = tuple(shape) if isinstance(shape, (Sequence, np.ndarray)) else ()
    positive = all(isinstance(n, numbers.Integral) and n > 0 for n in lengths)
    if len(lengths) != 3 or not positive or X.shape[1:] != (math.prod(lengths),):
        gray = f"(1, {', '.join(map(str, X.shape[1:]))}) for X {X.shape}, images of one channel"
        wanted = gray if X.ndim == 3 else f"(C, H, W) with {X.shape[1]} values, as X has"
        raise ValueError(f"image_shape must be {wanted}, got {shape!r}")
    return X.reshape(len(X), *lengths)


def check_image_shape(shape: Any, sample: tuple[int, ...]) -> None:
    """Raise ValueError unless the parameter `image_shape` is None or a shape of images that samples of the shape `sample` can
    have.
    """
    as_images(np.empty((0, *sample), np.float32), shape)


def some(data: Data, dev: Device, policy: Dropout) -> Tensor | None:
    """Return evenly spaced samples of the data on the device if the policy is data-dependent; else None."""
    if not policy.data_dependent or on_host(data.X):
        return None
    rows = data.at(np.linspace(0, len(data) - 1, min(CALIBRATION, len(data))).astype(np.int32)).astype(np.int32)
    return Tensor.wrap(rows_of(data.X, rows, dev), dev)


def centre(X, weights):
    """Return the number that `Shuffle` subtracts from each feature: most of the mean of the feature, which is estimated from
    samples spread over X.

    Leaving out a tile of x adds noise with the mean square |x - centre|², which is the variance v of x if the centre is the
    mean. If the mean is large enough, the centre is chosen so that the noise is slightly larger, v (1 + COMMON_NOISE): networks
    then train as fast and predict better.
    """
    every = -(-len(X) // MEAN_SAMPLES)
    some = X[::every]
    counted = np.ones(len(some)) if weights is None else np.asarray(weights[::every], np.float64)
    share = counted / counted.sum() if counted.any() else np.full(len(some), 1 / len(some))
    mean = np.einsum("n,ni->i", share, some, dtype=np.float64)  # no copy of X, which may exceed memory
    common = mean @ mean
    variance = np.einsum("n,ni,ni->", share, some, some, dtype=np.float64) - common
    left = min(math.sqrt(COMMON_NOISE * max(variance, 0.0) / common), 1.0) if common else 1.0
    return np.float32((1 - left) * mean)


def merged(X, y, weights):
    """Return the distinct samples in a fixed order, with weights that count how often each occurs.

    It is used if all samples fit into one batch, no layer has statistics of a batch, and `early_stopping` is off, which holds
    samples out: gradient descent then depends only on which samples occur and how often. As their order is fixed, the result
    is equal to the last bit for every order in which the user passes the samples.
    """
    weights = np.ones(len(y), np.float32) if weights is None else weights
    # np.unique cannot sort the rows of an object array, so its classes are first numbered
    known = y if y.dtype != object else np.unique(y, return_inverse=True)[1].reshape(y.shape)
    codes = np.unique(known, axis=0, return_inverse=True)[1].reshape(-1, 1)
    samples = np.hstack([X.reshape(len(X), -1), codes])
    _, rows, inverse = np.unique(samples, axis=0, return_index=True, return_inverse=True)
    return X[rows], y[rows], np.bincount(inverse.reshape(-1), weights).astype(np.float32)


def are_layers(layers: Any) -> bool:
    """Return True if the parameter `layers` is a sequence of `Layer` objects."""
    return isinstance(layers, Sequence) and len(layers) > 0 and all(isinstance(layer, Layer) for layer in layers)
