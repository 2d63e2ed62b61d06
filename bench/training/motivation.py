"""Dropping single weights or inputs of LeNet-5's convolutions, and inputs by magnitude, on MNIST: the motivation of rsdp.

*DNN Training Acceleration via Exploring GPGPU Friendly Sparsity*, section 4, with masks of single values, which save no work:

    weights, inputs          each weight, or each value of an input feature map, is 0 with probability p (4.1, Fig. 4);
                             `scaled`: the other values are multiplied by 1 / (1 - p)
    largest, middle, least   the values of an input are sorted by magnitude; a share p of the largest quarter, of the middle
                             half, or of the smallest quarter is 0 (4.2, Fig. 5)

Prediction drops nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from numbanet import ops
from numbanet.layers import CHANNELS_LAST, Conv2d, Cost, Layer

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from . import IMAGES, SEEDS, Experiment

SUITE = "motivation"
RECORDED = ("--json bench/results/motivation.json --plot motivation.png",)
DATA, EPOCHS, SAMPLES, TARGETS = "mnist", 5, 10000, (0.95,)
RATES = (0.2, 0.4, 0.6, 0.8)
PARTS = {"largest": (0.75, 1.0), "middle": (0.25, 0.75), "least": (0.0, 0.25)}  # quantiles of the magnitudes in a sample


class DroppedWeights(Conv2d):
    """A convolution that drops single weights in training. It draws them from its own random generator."""

    def __init__(self, conv: Conv2d, rate: float, scale: float, rng: np.random.Generator | int | None = None) -> None:
        self.window, self.groups, self.weight, self.bias = conv.window, conv.groups, conv.weight, conv.bias
        self.border, self.padding_mode = conv.border, conv.padding_mode
        self.rate, self.scale, self.rng = rate, scale, np.random.default_rng(rng)

    def forward(self, flow, context, relu=False):
        w = self.weight
        if context.training:
            w = w * np.float32(self.scale * (self.rng.random(w.shape) >= self.rate))
        y = ops.conv2d(flow.applied().images().x, w, self.bias, window=self.window, groups=self.groups, relu=relu)
        return flow.with_(y, CHANNELS_LAST)


class DroppedInputs(Layer):
    """Drops single values of the input in training. `part` restricts it to the values of each sample between two quantiles of
    its magnitudes; equal magnitudes are in random order. The layer has its own random generator."""

    def __init__(
        self,
        rate: float,
        scale: float = 1.0,
        part: tuple[float, float] = (0.0, 1.0),
        rng: np.random.Generator | int | None = None,
    ) -> None:
        self.rate, self.scale, self.part, self.rng = rate, scale, part, np.random.default_rng(rng)

    def forward(self, flow, context):
        if not context.training:
            return flow
        flow = flow.applied()
        return flow._replace(x=flow.x * np.float32(self.scale * ~self.dropped(flow.x.numpy(), self.rng)))

    def dropped(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Bool of x's shape (N, …)"""
        values = np.abs(x.reshape(len(x), -1))
        low, high = (round(q * values.shape[1]) for q in self.part)
        inside = np.zeros(values.shape, bool)
        if high - low == values.shape[1]:
            inside[:] = True
        else:
            shuffled = rng.permuted(np.tile(np.arange(values.shape[1]), (len(x), 1)), axis=1)
            order = np.take_along_axis(shuffled, np.argsort(np.take_along_axis(values, shuffled, 1), 1), 1)
            np.put_along_axis(inside, order[:, low:high], True, 1)
        return (inside & (rng.random(values.shape) < self.rate)).reshape(x.shape)

    def cost(self, form, plans):
        return Cost(), form


def _layers(
    seed: int,
    weights: float | None = None,
    inputs: float | None = None,
    scaled: bool = False,
    part: tuple[float, float] = (0.0, 1.0),
) -> list[Layer]:
    """LeNet-5 that drops weights or inputs of its convolutions at a rate."""
    from numbanet.estimators.zoo import lenet5

    layers: list[Layer] = []
    for number, layer in enumerate(lenet5(IMAGES[DATA], rng=seed)):
        rng = np.random.default_rng([seed, number])
        if isinstance(layer, Conv2d) and inputs is not None:
            layers.append(DroppedInputs(inputs, 1 / (1 - inputs) if scaled else 1.0, part, rng))
        elif isinstance(layer, Conv2d) and weights is not None:
            layer = DroppedWeights(layer, weights, 1 / (1 - weights) if scaled else 1.0, rng)
        layers.append(layer)
    return layers


def variants(rate: float) -> Iterator[tuple[str, Callable[[int], list[Layer]]]]:
    """(name, seed -> layers) of each kind of dropping at a rate."""
    for scaled in (False, True):
        for what in ("weights", "inputs"):
            yield f"{what}{' scaled' * scaled} p={rate}", functools.partial(_layers, **{what: rate}, scaled=scaled)
    for name, part in PARTS.items():
        yield f"{name} p={rate}", functools.partial(_layers, inputs=rate, part=part)


def experiments(options: Options) -> Iterator[Experiment]:
    """LeNet-5 without dropping, then each kind of dropping at each rate."""
    chosen = training.network_settings(options, "lenet5", DATA, EPOCHS, TARGETS, SAMPLES)
    rates = RATES[1:2] if options.quick else RATES
    for name, layers in [("none", _layers), *(variant for rate in rates for variant in variants(rate))]:
        yield Experiment(chosen, name, functools.partial(_parameters, layers), SEEDS)


def _parameters(layers: Callable[[int], list[Layer]]) -> dict[str, Any]:
    return {"dropout": "none", "layers": layers, "image_shape": IMAGES[DATA]}


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs; return the rows."""
    return training.run(options, results, say, SUITE, list(experiments(options)), (), alone=0)


def plot(results: Results, path: Path) -> None:
    """Plot the test error by rate."""
    from ..machinery.plots import plot_rates

    plot_rates(results.rows, path)
