"""Dynamic sparse graphs on the CPU, including selection and projection: forward of 2048-2048, steps of 784-2048-2048-10.

Forward products of a batch of 128 at rates of .5, .8 and .9 are compared with numbanet's dense product. Training steps (rate
.8, SGD with momentum) are compared with PyTorch's dense step or, without --against torch, with numbanet's. `oracle` selects
neurons by their true outputs, `random` selects them at random: their times show how much of the time of dsg is selection.
Weights are projected again every 50 steps.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from numbanet.dropout import DynamicSparseGraph

from ..machinery.harness import Case, Implementation, Options, relative_error
from ..machinery.worker import Task, numbanet_on
from . import TOLERANCE, mlp_model
from .dsg_model import SHARES, WIDTH, Oracle, RandomChoice, layer_inputs

SUITE = "dsg"
RECORDED = ("--against torch --json bench/results/dsg.json",)
BATCH, RATES, STEP_RATE = 128, (0.5, 0.8, 0.9), 0.8
LEAST = 50  # n repetitions of a turn: those from one projection of the weights to the next
STEP_PAIRS, FORWARD_PAIRS = 7, 11


# --- forward ----------------------------------------------------------------------------------------------------------
def forward_task(device: str, width: int, batch: int, policy: DynamicSparseGraph | None) -> Task:
    """Task: ReLU(x wᵀ + b) for the neurons that the policy selects, without gradients."""
    from numbanet import Linear, Sequential, Tensor, device as named, no_grad
    from numbanet.layers import Context, Flow, Tree
    from numbanet.plans import Plans

    dev, (x, w, b) = named(device), layer_inputs(width, batch)
    model = Sequential([Linear(width, width, rng=0, device=dev), Linear(width, 2, rng=0, device=dev)])
    layer, inputs = model.layers[0], Tensor(x, dev)
    for parameter, values in ((layer.weight, w), (layer.bias, b)):
        dev.copy(dev.upload(values), out=parameter.data)
    sites, choose = Tree(model).sites, policy and policy.choosing(model, None)

    def run() -> tuple[Any, Any]:
        with no_grad(), dev.session():
            plans = Plans(dev, sites, choose=choose)
            return layer.forward(Flow(inputs), Context(dev, plans), relu=True), plans

    def outputs() -> dict[str, Any]:
        flow, plans = run()
        mask = np.ones(()) if policy is None else plans.of(layer).mask()
        return {
            "y": flow.dense().numpy(),
            "mask": np.broadcast_to(mask, (batch, width)),
            "kept": 1.0 if policy is None else 1 - policy.rate_of(0),
        }

    return Task(run, outputs, **numbanet_on(dev))


def forward_error(width: int, batch: int, outputs: Mapping[str, Any]) -> float:
    """The error against the dense output times the mask; infinite if the mask does not keep the share 1 - rate."""
    x, w, b = map(np.float64, layer_inputs(width, batch))
    wrong_share = abs(outputs["mask"].mean() - outputs["kept"]) > 1 / width
    return float("inf") if wrong_share else relative_error(outputs["y"], np.maximum(x @ w.T + b, 0) * outputs["mask"])


# --- work -------------------------------------------------------------------------------------------------------------
def step_and_selection_flops(policy: DynamicSparseGraph, model: Any, x: np.ndarray) -> tuple[float, float]:
    """FLOPs of the products of a step, forward and backward, and of the selection of neurons, which includes the projection of
    the weights divided by `refresh`."""
    from numbanet import Tensor, no_grad
    from numbanet.layers import ActivationSpec, Context, Tree
    from numbanet.plans import Plans

    once, spent = copy.copy(policy), []
    once.select_in_prediction = True
    once = once.inference_policy(0)  # it projects the weights in the first pass only
    for _ in range(2):
        plans = Plans("cpu", Tree(model).sites, choose=once.choosing(model, None))
        with no_grad():
            model(Tensor(x), Context("cpu", plans))
        spent.append(once.pop_flops())
    return model.cost(ActivationSpec(x.shape), plans)[0].flops, spent[1] + (spent[0] - spent[1]) / policy.refresh


def step_flops(hidden: int, batch: int, policy: DynamicSparseGraph) -> float:
    """FLOPs of a training step, including selection."""
    return sum(step_and_selection_flops(policy, mlp_model.network(hidden), mlp_model.samples()[0][:batch]))


def forward_flops(width: int, batch: int, policy: DynamicSparseGraph) -> float:
    """FLOPs of a forward pass, including selection."""
    from numbanet import Linear, Sequential

    model = Sequential([Linear(width, width, bias=False, rng=0), Linear(width, 1, rng=0)])
    _, selection = step_and_selection_flops(policy, model, layer_inputs(width, batch)[0])
    return 2.0 * batch * width * width * (1 - policy.rate_of(0)) + selection


# --- cases ------------------------------------------------------------------------------------------------------------
def cases(options: Options) -> Iterator[Case]:
    """Forward passes at each rate, then training steps."""
    width, batch = (256, 32) if options.quick else (WIDTH, BATCH)
    for rate in RATES[1:2] if options.quick else RATES:
        yield _forward(options, width, batch, rate)
    yield _step(options, 256 if options.quick else WIDTH, BATCH)


def _policies(rate: float, options: Options) -> Iterator[tuple[str, DynamicSparseGraph]]:
    """dsg in each form, then the oracle and the random selection."""
    for share in SHARES:
        yield share, DynamicSparseGraph(rate, share=share)
    yield "batch, oracle", Oracle(rate)
    yield "batch, random", RandomChoice(rate)


def _forward(options: Options, width: int, batch: int, rate: float) -> Case:
    dense, common = 2.0 * batch * width * width, {"device": options.device, "width": width, "batch": batch}
    ours = [Implementation("dense", forward_task, {**common, "policy": None}, flops=dense)]
    for name, policy in _policies(rate, options):
        flops = forward_flops(width, batch, policy)
        ours.append(Implementation(name, forward_task, {**common, "policy": policy}, "dense", dense / flops, flops))
    return Case(
        SUITE,
        f"forward {width}-{width}, batch {batch}, rate {rate}",
        tuple(ours),
        functools.partial(forward_error, width, batch),
        least=1 if options.quick else LEAST,
        pairs=FORWARD_PAIRS,
    )


def _step(options: Options, hidden: int, batch: int) -> Case:
    dense, torch = mlp_model.mean_flops(hidden, batch, "none", 0.0), options.against == "torch"
    common, peer = {"device": options.device, "hidden": hidden, "batch": batch}, "torch" if torch else "none"
    ours = [
        Implementation(
            "none",
            mlp_model.numbanet_task,
            {**common, "dropout": "none", "rate": 0.0},
            peer if torch else None,
            1.0 if torch else None,
            dense,
        )
    ]
    if torch:
        ours.append(Implementation("torch", mlp_model.torch_task, {**common, "rate": None}, flops=dense))
    for name, policy in _policies(STEP_RATE, options):
        flops = step_flops(hidden, batch, policy)
        ours.append(
            Implementation(
                name, mlp_model.numbanet_task, {**common, "dropout": policy, "rate": STEP_RATE}, peer, dense / flops, flops
            )
        )
    return Case(
        SUITE,
        f"step 784-{hidden}-{hidden}-10, batch {batch}, rate {STEP_RATE}",
        tuple(ours),
        functools.partial(mlp_model.update_error, hidden, batch),
        TOLERANCE,
        1 if options.quick else LEAST,
        STEP_PAIRS,
    )
