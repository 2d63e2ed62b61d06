"""Training step of lenet5 and alexnet on 1x28x28 at batch 128, and of vgg19 on 3x32x32 at batch 64: SGD with momentum 0.9.

`none`, rsdp and bsdp at p = 0.6, and rdp on channels at p = 0.5, are compared with PyTorch's dense step: same layers, optimiser
and batches. Without --against torch numbanet's own `none` is the peer. The ceiling is the ratio of the FLOPs of the products.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import steps
from ..machinery.harness import Case, Implementation, Options
from ..machinery.worker import Task
from . import CLASSES, MOMENTUM, RATE, TF32_TOLERANCE, TOLERANCE

SUITE = "cnn"
RECORDED = ("--against torch --json bench/results/cnn.json --plot cnn.png",)
Shape = tuple[int, int, int]
NETWORKS = {"lenet5": ((1, 28, 28), 128), "alexnet": ((1, 28, 28), 128), "vgg19": ((3, 32, 32), 64)}  # images, batch
QUICK = {"lenet5": ((1, 12, 12), 16), "alexnet": ((1, 8, 8), 4)}
DROPOUTS = {"rsdp": 0.6, "bsdp": 0.6, "rdp": 0.5}
LEAST = {"lenet5": 20, "alexnet": 3, "vgg19": 2}  # steps of a turn, because the cost of one under random plans is random
# steps that are compared with the reference: of deep networks one, because what a near tie in pooling changes, if it is decided
# otherwise in float32, grows from step to step, in PyTorch as here
CHECKED = {"lenet5": 3, "alexnet": 1, "vgg19": 1}
TOLERANCES = {"lenet5": TOLERANCE, "alexnet": TOLERANCE, "vgg19": 3 * TOLERANCE}  # a near tie is felt in all below
PASS = 8  # batches of the data set
SEEN = 64  # samples by which sensitivity is calibrated
DRAWN = 200  # patterns of rdp, whose FLOPs are averaged


# --- what both sides share --------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def samples(shape: Shape, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """X (8 batches, C, H, W), y: random labels, and images in [0, 1) whose values are large in some places, small in others."""
    rng = np.random.default_rng(1)
    X = rng.random((PASS * batch, *shape), np.float32)
    X *= np.kron(rng.random((len(X), 1, 4, 4), np.float32), np.ones((-(-shape[1] // 4), -(-shape[2] // 4)), np.float32))[
        :, :, : shape[1], : shape[2]
    ]
    return X, rng.integers(CLASSES, size=len(X)).astype(np.int32)


def network(name: str, shape: Shape, dev: Any = "cpu", keep: float = 1.0) -> Any:
    """The layers of a network with the same weights each time; biases are not zero, so that an error in one is seen.

    Where dropout keeps that share of the inputs, weights of convolutions are 1 / sqrt(keep) times as large: else in deep
    networks little but the biases is left, nearly the same at all positions, and rounding decides which one pooling takes.
    """
    from numbanet.estimators.zoo import MODELS
    from numbanet.layers import Sequential

    model, rng = Sequential(MODELS[name](shape, CLASSES, rng=0, device=dev)), np.random.default_rng(5)
    for parameter in model.parameters():
        if len(parameter.shape) == 1:
            values = rng.uniform(-0.1, 0.1, parameter.shape)
        else:
            values = parameter.numpy() / np.sqrt(keep if len(parameter.shape) == 4 else 1.0)
        parameter.device.copy(parameter.device.upload(values.astype(np.float32)), out=parameter.data)
    return model


# --- numbanet and PyTorch ---------------------------------------------------------------------------------------------
def numbanet_task(device: str, name: str, shape: Shape, batch: int, dropout: str, rate: float) -> Task:
    """Training steps through numbanet's Stepper."""
    from numbanet import Tensor, device as named
    from numbanet.dropout import policy
    from numbanet.training.sgd import SGD
    from numbanet.training.stepper import Stepper
    from numbanet.training.streams import Streams
    from numbanet.training.task import Classification

    dev, (X, y), chosen = named(device), samples(shape, batch), policy(dropout, rate)
    keep = 1 - rate if chosen.data_dependent else 1.0

    def make():
        model = network(name, shape, dev, keep)
        own = chosen.calibrated(model, Tensor(X[:SEEN], dev)) if chosen.data_dependent else chosen
        optimizer = SGD(model.parameters(), RATE, MOMENTUM)
        return Stepper(model, optimizer, own, Classification(), Streams.from_seed(3), dev, batch)

    def describe(stepper, drawn):
        return {
            "keep": keep,
            "plans": [
                [{site: plans.of(layer, site) for site in ("output", "input")} for layer in stepper.model.layers]
                for plans in drawn
            ],
        }

    return steps.numbanet_steps(dev, X, y, batch, make, describe, CHECKED[name])


def torch_task(device: str, name: str, shape: Shape, batch: int, tf32: bool = False) -> Task:
    """Dense training steps in PyTorch, eager."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32

    def make():
        model = torch_model(torch, network(name, shape)).to(device)
        return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)

    return steps.torch_steps(torch, device, *samples(shape, batch), batch, make, CHECKED[name])


def torch_model(torch: Any, model: Any) -> Any:
    """The same layers with the same weights in PyTorch."""
    nn = torch.nn
    make = {
        "Conv2d": lambda layer: nn.Conv2d(layer.in_channels, layer.out_channels, *layer.window),
        "MaxPool2d": lambda layer: nn.MaxPool2d(*layer.window),
        "ReLU": lambda layer: nn.ReLU(),
        "Flatten": lambda layer: nn.Flatten(),
        "Linear": lambda layer: nn.Linear(*layer.weight.shape[::-1]),
    }
    found = nn.Sequential(*(make[type(layer).__name__](layer) for layer in model.layers))
    found.load_state_dict({key: torch.from_numpy(value) for key, value in model.state_dict().items()})
    return found


# --- reference --------------------------------------------------------------------------------------------------------
# Each gives y of a layer in float64, as far as plans keep it, and a function dy -> (dx, gradients of its weights); images have
# channels last.
def _convolution(layer, x, weights, plans):
    from numbanet.plans import AxisPlan, BlockPlan
    from numbanet_kernels.families.conv import conv2d_grad_reference, conv2d_reference
    from numbanet_kernels.layouts.windows import Blocks

    (w, b), inner, own = weights, plans["input"], plans["output"]
    kept = {
        "scale": 1.0 if inner is None else inner.scale,
        "rows": inner.indices() if isinstance(inner, AxisPlan) else None,
        "blocks": Blocks(inner.chosen, inner.height, inner.width) if isinstance(inner, BlockPlan) else None,
    }
    of_bias = kept["scale"] if isinstance(inner, AxisPlan) else 1.0
    of_filters = 1.0 if own is None else own.mask() * own.scale

    def back(dy):
        dx, dw, db = conv2d_grad_reference(dy * of_filters, x, w, layer.window, **kept)
        return dx, [dw, of_bias * db]

    return conv2d_reference(x, w, layer.window, bias=of_bias * b, **kept) * of_filters, back


def _linear(layer, x, weights, plans):
    (w, b), own = weights, plans["output"]
    of_neurons = 1.0 if own is None else own.mask() * own.scale

    def back(dy):
        dz = dy * of_neurons
        return dz @ w, [dz.T @ x, dz.sum(0)]

    return (x @ w.T + b) * of_neurons, back


def _relu(layer, x, weights, plans):
    return np.maximum(x, 0), lambda dy: (dy * (x > 0), [])


def _max_pool(layer, x, weights, plans):
    from numbanet_kernels.families.pooling import max_pool_grad_reference, max_pool_reference

    y, places = max_pool_reference(x, layer.window)
    return y, lambda dy: (max_pool_grad_reference(dy, places, layer.window, x.shape), [])


def _flatten(layer, x, weights, plans):
    turned = x.transpose(0, 3, 1, 2)
    return turned.reshape(len(x), -1), lambda dy: (dy.reshape(turned.shape).transpose(0, 2, 3, 1), [])


REFERENCES = {"Conv2d": _convolution, "Linear": _linear, "ReLU": _relu, "MaxPool2d": _max_pool, "Flatten": _flatten}


def reference_steps(
    name: str, shape: Shape, batch: int, planned: Sequence[Sequence[Mapping[str, Any]]], keep: float = 1.0
) -> list[np.ndarray]:
    """Weights after so many steps, dense and masked, in float64; plans by step, layer and site."""
    layers = network(name, shape, keep=keep).layers
    weights = [[np.float64(p.numpy()) for p in layer.parameters()] for layer in layers]
    velocity = [[np.zeros_like(w) for w in own] for own in weights]
    X, y = samples(shape, batch)
    at = steps.batches(len(X), batch)
    for plans in planned:
        rows = next(at)
        for own, moving, gradients in zip(weights, velocity, _gradients(layers, weights, X[rows], y[rows], plans), strict=True):
            for w, v, g in zip(own, moving, gradients, strict=True):
                v *= MOMENTUM
                v += g
                w -= RATE * v
    return [w for own in weights for w in own]


def _gradients(
    layers: Sequence[Any], weights: list[list[np.ndarray]], x: np.ndarray, y: np.ndarray, plans: Sequence[Mapping[str, Any]]
) -> list[list[np.ndarray]]:
    """Gradients of the mean cross-entropy by backpropagation, by layer."""
    h, backs, gradients = np.float64(x).transpose(0, 2, 3, 1), [], []
    for layer, own, kept in zip(layers, weights, plans, strict=True):
        h, back = REFERENCES[type(layer).__name__](layer, h, own, kept)
        backs.append(back)
    dy = np.exp(h - h.max(axis=1, keepdims=True))
    dy /= dy.sum(axis=1, keepdims=True)
    dy[np.arange(len(y)), y] -= 1
    dy /= len(y)
    for back in reversed(backs):
        dy, own = back(dy)
        gradients.insert(0, own)
    return gradients


def update_error(name: str, shape: Shape, batch: int, outputs: Mapping[str, Any]) -> float:
    """The error of the weights after the first steps (`steps.update_error`); without plans they were dense."""
    keep = outputs.get("keep", 1.0)
    model = network(name, shape, keep=keep)
    dense = [[{"input": None, "output": None}] * len(model.layers)] * CHECKED[name]
    references = reference_steps(name, shape, batch, outputs.get("plans", dense), keep)
    return steps.update_error([p.numpy() for p in model.parameters()], outputs["weights"], references)


# --- work and cases ---------------------------------------------------------------------------------------------------
@functools.cache
def mean_flops(name: str, shape: Shape, batch: int, dropout: str, rate: float) -> float:
    """FLOPs of the products of a step: of rsdp and bsdp with the share 1 - rate of each input matrix, of rdp in the mean over
    some drawn patterns."""
    from numbanet.dropout import policy
    from numbanet.layers import ActivationSpec, Context
    from numbanet.plans import IndexPlan

    model, chosen, rng = network(name, shape), policy(dropout, rate), np.random.default_rng(6)
    sites = chosen.sites(model)

    def plans():
        if chosen.data_dependent:
            return dict.fromkeys(sites, IndexPlan(1000, np.arange(round(1000 * (1 - rate)))))
        return {site: plan for site in sites if (plan := chosen.plan(site, rng)) is not None}

    return float(
        np.mean(
            [
                model.cost(ActivationSpec((batch, *shape)), Context(plans=plans(), model=model).plans)[0].flops
                for _ in range(1 if chosen.data_dependent or dropout == "none" else DRAWN)
            ]
        )
    )


def cases(options: Options) -> Iterator[Case]:
    """Each network with all that it is trained with."""
    for name, (shape, batch) in (QUICK if options.quick else NETWORKS).items():
        common = {"device": options.device, "name": name, "shape": shape, "batch": batch}
        dense = mean_flops(name, shape, batch, "none", 0.0)
        torch = [Implementation("torch", torch_task, common, flops=dense)] if options.against == "torch" else []
        if torch and options.device == "cuda":
            torch.append(Implementation("torch, TF32", torch_task, {**common, "tf32": True}, "torch", tolerance=TF32_TOLERANCE))
        peer = "torch" if torch else "none"
        ours = [
            Implementation(
                "none",
                numbanet_task,
                {**common, "dropout": "none", "rate": 0.0},
                "torch" if torch else None,
                1.0 if torch else None,
                dense,
            )
        ]
        for dropout, rate in DROPOUTS.items():
            flops = mean_flops(name, shape, batch, dropout, rate)
            ours.append(
                Implementation(
                    f"{dropout} p={rate}",
                    numbanet_task,
                    {**common, "dropout": dropout, "rate": rate},
                    peer,
                    dense / flops,
                    flops,
                )
            )
        yield Case(
            SUITE,
            f"{name} on {'x'.join(map(str, shape))}, batch {batch}",
            (*ours, *torch),
            functools.partial(update_error, name, shape, batch),
            TOLERANCES[name],
            2 if options.quick else LEAST[name],
        )
