"""Training step of lenet5 and alexnet on 1x28x28 at batch 128, and of vgg19 on 3x32x32 at batch 64: SGD with momentum 0.9.

`none`, rsdp and bsdp at p = 0.6, and rdp and window on channels at p = 0.5, are compared with PyTorch's dense step: same
layers, optimiser and batches. In convolutions of 3 x 3, `rsdp tiles` drops tiles of positions and `bsdp channels` blocks of
channels. Without --against torch numbanet's `none` is the peer. The ceiling is the ratio of the FLOPs of the products.
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
DROPOUTS = {"rsdp": 0.6, "rsdp tiles": 0.6, "bsdp": 0.6, "bsdp channels": 0.6, "rdp": 0.5, "window": 0.5}
SETTINGS: dict[str, dict[str, Any]] = {"rsdp tiles": {"tile": "auto"}, "bsdp channels": {"channels": True}}  # beside the rate
LEAST = {"lenet5": 20, "alexnet": 3, "vgg19": 2}  # n steps of a turn, because the cost of a step under random plans is random
# n steps that are compared with the reference. Deep networks: one, because max pooling may choose another of two nearly equal
# values in float32 than in float64. The difference then grows from step to step, in PyTorch and in numbanet
CHECKED = {"lenet5": 3, "alexnet": 1, "vgg19": 1}
TOLERANCES = {"lenet5": TOLERANCE, "alexnet": TOLERANCE, "vgg19": 3 * TOLERANCE}  # such a choice changes all earlier layers
PASS = 8  # n batches of the data set
SEEN = 64  # n samples that calibrate sensitivity
DRAWN = 200  # n patterns of rdp whose FLOPs are averaged


# --- what both sides share --------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def samples(shape: Shape, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """X (n, C, H, W) of 8 batches, y (n,): random labels, and images in [0, 1) with bright and dark regions."""
    rng = np.random.default_rng(1)
    X = rng.random((PASS * batch, *shape), np.float32)
    X *= np.kron(rng.random((len(X), 1, 4, 4), np.float32), np.ones((-(-shape[1] // 4), -(-shape[2] // 4)), np.float32))[
        :, :, : shape[1], : shape[2]
    ]
    return X, rng.integers(CLASSES, size=len(X)).astype(np.int32)


def network(name: str, shape: Shape, dev: Any = "cpu", keep: float = 1.0) -> Any:
    """The layers of a network with fixed random weights. Biases are not zero, so that a wrong bias changes the result.

    If dropout keeps the share `keep` of the inputs, the weights of convolutions are scaled by 1 / sqrt(keep). Without that the
    activations of deep networks would consist almost only of biases, nearly equal at all positions, and rounding would decide
    which of them max pooling selects.
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


def policy_of(dropout: str, rate: float) -> Any:
    """The policy that `dropout` describes: its first word is the policy's name, all words are a key of SETTINGS."""
    from numbanet.dropout.registry import POLICIES

    return POLICIES[dropout.split()[0]](rate, **SETTINGS.get(dropout, {}))


def kinds(name: str) -> dict[str, float]:
    """The rates of the kinds of dropout that are measured with a network: settings are for convolutions of 3 x 3."""
    return {dropout: rate for dropout, rate in DROPOUTS.items() if dropout not in SETTINGS or name != "lenet5"}


# --- numbanet and PyTorch ---------------------------------------------------------------------------------------------
def numbanet_task(device: str, name: str, shape: Shape, batch: int, dropout: str, rate: float) -> Task:
    """Task: training steps by numbanet's Stepper."""
    from numbanet import Tensor, device as named
    from numbanet.training.sgd import SGD
    from numbanet.training.stepper import Stepper
    from numbanet.training.streams import Streams
    from numbanet.training.task import Classification

    dev, (X, y), chosen = named(device), samples(shape, batch), policy_of(dropout, rate)
    keep = 1 - rate if chosen.data_dependent else 1.0

    def make():
        model = network(name, shape, dev, keep)
        calibrated = chosen.calibrated(model, Tensor(X[:SEEN], dev)) if chosen.data_dependent else chosen
        optimizer = SGD(model.parameters(), RATE, MOMENTUM)
        return Stepper(model, optimizer, calibrated, Classification(), Streams.from_seed(3), dev, batch)

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
    """Task: dense, eager training steps in PyTorch."""
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
    layers = nn.Sequential(*(make[type(layer).__name__](layer) for layer in model.layers))
    layers.load_state_dict({key: torch.from_numpy(value) for key, value in model.state_dict().items()})
    return layers


# --- reference -------------------------------------------------------------------------------------------------------- Each
# function returns y of a layer under its plans in float64, and a function dy -> (dx, gradients of its weights). Images have
# channels last.
def _convolution(layer, x, weights, plans):
    from numbanet.plans import AxisPlan, BlockPlan
    from numbanet_kernels.families.conv import conv2d_grad_reference, conv2d_reference
    from numbanet_kernels.layouts.windows import Blocks

    (w, b), inner, outer = weights, plans["input"], plans["output"]
    options = {
        "scale": 1.0 if inner is None else inner.scale,
        "rows": inner.indices() if isinstance(inner, AxisPlan) else None,
        "blocks": Blocks(inner.chosen, inner.height, inner.width) if isinstance(inner, BlockPlan) else None,
    }
    bias_factor = options["scale"] if isinstance(inner, AxisPlan) else 1.0
    filter_factors = 1.0 if outer is None else outer.mask() * outer.scale

    def back(dy):
        dx, dw, db = conv2d_grad_reference(dy * filter_factors, x, w, layer.window, **options)
        return dx, [dw, bias_factor * db]

    return conv2d_reference(x, w, layer.window, bias=bias_factor * b, **options) * filter_factors, back


def _linear(layer, x, weights, plans):
    (w, b), plan = weights, plans["output"]
    neuron_factors = 1.0 if plan is None else plan.mask() * plan.scale

    def back(dy):
        dz = dy * neuron_factors
        return dz @ w, [dz.T @ x, dz.sum(0)]

    return (x @ w.T + b) * neuron_factors, back


def _relu(layer, x, weights, plans):
    return np.maximum(x, 0), lambda dy: (dy * (x > 0), [])


def _max_pool(layer, x, weights, plans):
    from numbanet_kernels.families.pooling import max_pool_grad_reference, max_pool_reference

    y, argmax = max_pool_reference(x, layer.window)
    return y, lambda dy: (max_pool_grad_reference(dy, argmax, layer.window, x.shape), [])


def _flatten(layer, x, weights, plans):
    channels_first = x.transpose(0, 3, 1, 2)
    return channels_first.reshape(len(x), -1), lambda dy: (dy.reshape(channels_first.shape).transpose(0, 2, 3, 1), [])


REFERENCES = {"Conv2d": _convolution, "Linear": _linear, "ReLU": _relu, "MaxPool2d": _max_pool, "Flatten": _flatten}


def reference_steps(
    name: str, shape: Shape, batch: int, planned: Sequence[Sequence[Mapping[str, Any]]], keep: float = 1.0
) -> list[np.ndarray]:
    """Weights after a step for each element of `planned`, by dense products with masks in float64; plans by step, layer,
    site."""
    layers = network(name, shape, keep=keep).layers
    weights = [[np.float64(p.numpy()) for p in layer.parameters()] for layer in layers]
    velocity = [[np.zeros_like(w) for w in of_layer] for of_layer in weights]
    X, y = samples(shape, batch)
    feed = steps.batches(len(X), batch)
    for plans in planned:
        rows = next(feed)
        for ws, vs, gs in zip(weights, velocity, _gradients(layers, weights, X[rows], y[rows], plans), strict=True):
            for w, v, g in zip(ws, vs, gs, strict=True):
                v *= MOMENTUM
                v += g
                w -= RATE * v
    return [w for of_layer in weights for w in of_layer]


def _gradients(
    layers: Sequence[Any], weights: list[list[np.ndarray]], x: np.ndarray, y: np.ndarray, plans: Sequence[Mapping[str, Any]]
) -> list[list[np.ndarray]]:
    """Gradients of the mean cross-entropy by backpropagation, by layer."""
    h, backs, gradients = np.float64(x).transpose(0, 2, 3, 1), [], []
    for layer, of_layer, site_plans in zip(layers, weights, plans, strict=True):
        h, back = REFERENCES[type(layer).__name__](layer, h, of_layer, site_plans)
        backs.append(back)
    dy = np.exp(h - h.max(axis=1, keepdims=True))
    dy /= dy.sum(axis=1, keepdims=True)
    dy[np.arange(len(y)), y] -= 1
    dy /= len(y)
    for back in reversed(backs):
        dy, of_layer = back(dy)
        gradients.insert(0, of_layer)
    return gradients


def update_error(name: str, shape: Shape, batch: int, outputs: Mapping[str, Any]) -> float:
    """The error of the weights after the first n steps (see `steps.update_error`). Outputs without plans are of dense steps."""
    keep = outputs.get("keep", 1.0)
    model = network(name, shape, keep=keep)
    dense = [[{"input": None, "output": None}] * len(model.layers)] * CHECKED[name]
    references = reference_steps(name, shape, batch, outputs.get("plans", dense), keep)
    return steps.update_error([p.numpy() for p in model.parameters()], outputs["weights"], references)


# --- work and cases ---------------------------------------------------------------------------------------------------
@functools.cache
def mean_flops(name: str, shape: Shape, batch: int, dropout: str, rate: float) -> float:
    """FLOPs of the matrix products of a step. For rsdp and bsdp the plan keeps the share 1 - rate of each im2col matrix; for
    rdp it is the mean over random patterns."""
    from numbanet.layers import ActivationSpec, Context
    from numbanet.plans import IndexPlan

    model, chosen, rng = network(name, shape), policy_of(dropout, rate), np.random.default_rng(6)
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
    """Each network, dense and with each kind of dropout."""
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
        for dropout, rate in kinds(name).items():
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
