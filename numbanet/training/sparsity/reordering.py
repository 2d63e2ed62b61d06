"""Reordering: permutes the neurons of hidden layers every n epochs, for policies that drop adjacent or periodic neurons
together (`Dropout.shuffle`).

The rows of a layer's weight, its bias and the parameters of the layers after it, such as a batch norm, are permuted; so are the
columns of the next layer's weight, and the optimiser's state of all of these. The network then computes the same function, up
to the order of sums, but other neurons are adjacent. `joints` finds the layers between which that is possible.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ...dropout import Dropout
from ...user_warnings import warn
from ..hooks import Hook
from ..optim import Optimizer
from .base import Thinning
from .joints import Joint, joints


class Reordering(Hook):
    """Permutes neurons after every `policy.shuffle` epochs.

    Parameters
    ----------
    policy : Dropout
        The policy, with `shuffle` set.
    shape : tuple of int
        Shape of a batch of inputs.

    Raises
    ------
    ValueError
        When training starts: if the neurons of no layer can be permuted, or if the estimator has a `sparsity`, because that
        stores indices of neurons.
    """

    watches = changes = False

    def __init__(self, policy: Dropout, shape: tuple[int, ...]) -> None:
        self.policy, self.shape = policy, shape

    def fit_start(self, run):
        name = f"{self.policy.name}: shuffle={self.policy.shuffle}"
        if any(isinstance(hook, Thinning) for hook in run.hooks):
            raise ValueError(f"{name}: neurons stay where they are if sparsity is trained; leave out one of the two")
        sources = {joint.source for joint in movable(run.model, self.shape)}
        tree = run.stepper.tree
        layers = {tree.owners[site.path]: site.path.rpartition(".")[0] for site in self.policy.sites(tree)}
        stay = [f"{path} ({type(layer).__name__})" for layer, path in layers.items() if layer not in sources]
        why = (
            "the layer, the one that reads its neurons, and those between must be trained, used once, and treat each neuron by"
            " itself; only neurons of Linear and Conv2d that another Linear or Conv2d reads can move"
        )
        if layers and len(stay) == len(layers):
            raise ValueError(f"{name}: no layer's neurons can be reordered, not those of {', '.join(stay)}: {why}")
        if stay:
            warn(f"{name}: the neurons of {', '.join(stay)} keep their order: {why}")

    def epoch_end(self, run, record):
        if record["epoch"] % self.policy.shuffle:
            return None
        began = time.perf_counter()
        with run.session():
            for joint in movable(run.model, self.shape):
                permute(joint, run.streams.plans.permutation(joint.source.weight.shape[0]), run.optimizer)
        run.stepper.resume(run.stepper.drawn)  # with this call the stepper deletes its copies of weights
        return {"seconds": record["seconds"] + time.perf_counter() - began}


def movable(model, shape: tuple[int, ...]) -> list[Joint]:
    """Return the joints whose units may be permuted: all their parameters are trained, and no `Select` lists their features."""
    return [
        joint
        for joint in joints(model, shape)
        if joint.source is not None
        and joint.select is None
        and all(tensor.requires_grad for layer in (joint.source, *joint.between) for tensor in layer.parameters())
    ]


def permute(joint: Joint, order: Sequence[int] | np.ndarray, optimizer: Optimizer) -> None:
    """Move unit order[i] of a joint to position i, in all tensors with an entry per unit, and in the optimiser's state."""
    units, source = np.asarray(order), joint.source
    assert source is not None, "nothing is known of its units"
    optimizer.permute(source.weight, units, 0)
    if source.bias is not None:
        optimizer.permute(source.bias, units, 0)
    for tensor in (tensor for layer in joint.between for tensor in layer.by_unit()):
        optimizer.permute(tensor, _spread(units, tensor.size // units.size), 0)
    optimizer.permute(joint.reader.weight, _spread(units, joint.pixels), 1)


def _spread(order: np.ndarray, times: int) -> np.ndarray:
    """Return the order of the features, if each unit has `times` adjacent features and the order of the units is `order`."""
    return (order[:, None] * times + np.arange(times)).reshape(-1)
