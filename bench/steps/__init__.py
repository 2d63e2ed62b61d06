"""Training steps as tasks: batches of one data set on the device, taken by row number, in numbanet and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..machinery.worker import Task, numbanet_on, torch_on

FEATURES, CLASSES, BATCH = 784, 10, 128
RATE, MOMENTUM = 0.01, 0.9
TOLERANCE = 1e-2  # of `update_error`: above what ReLU's kink explains, far below any wrong mask or scale
TF32_TOLERANCE = 3e-2  # it keeps 10 bits of the mantissa
CHECKED = 3  # steps, so that momentum counts, and weights that are not updated in every step


def orders(count: int, seed: int = 2) -> Iterator[np.ndarray]:
    """Row numbers of pass after pass, each shuffled anew."""
    rng = np.random.default_rng(seed)
    while True:
        yield rng.permutation(count).astype(np.int32)


def batches(count: int, batch: int) -> Iterator[np.ndarray]:
    """Row numbers of batch after batch; the last, short batch of a pass is left out."""
    for order in orders(count):
        for start in range(0, len(order) - batch + 1, batch):
            yield order[start : start + batch]


def numbanet_steps(
    dev: Any,
    X: np.ndarray,
    y: np.ndarray,
    batch: int,
    make: Callable[[], Any],
    describe: Callable[[Any, list[Any]], dict[str, Any]],
    checked: int = CHECKED,
) -> Task:
    """Steps of a Stepper on the samples X, y in random order (`trainer_steps`)."""
    from numbanet.training.data import Data, in_order

    data = Data(dev.upload(X), y)

    def fed():
        """The short batch at the end of a pass is left out."""
        for order in orders(len(X)):
            whole = order[: len(order) // batch * batch]
            for number, some in enumerate(in_order(data, whole, batch, dev), 1):
                yield some, None, number * batch == len(whole)

    return trainer_steps(dev, data.X, fed, make, describe, checked)


def trainer_steps(
    dev: Any,
    X: Any,
    fed: Callable[[], Iterator[tuple[Any, Any, bool]]],
    make: Callable[[], Any],
    describe: Callable[[Any, list[Any]], dict[str, Any]],
    checked: int = CHECKED,
) -> Task:
    """Steps of a Stepper; its outputs are the weights after the first steps, and what describe(stepper, those steps) says.

    fed() gives batch after batch: each with the one after it, or None, and whether it is the last one of its pass.
    """
    stepper, taken = make(), fed()

    def step(by=stepper, at=taken, last=False):
        some, following, ends = next(at)
        by.step(X, some, following, last=last or ends)

    def outputs():
        fresh, drawn = make(), []
        at, draw = fed(), fresh.draw

        def record(following=False):
            drawn.append(draw(following))
            return drawn[-1]

        fresh.draw = record
        for number in range(checked):
            step(fresh, at, last=number + 1 == checked)
        weights = [np.array(dev.download(p.data)) for p in fresh.optimizer.parameters]
        return {**describe(fresh, drawn), "weights": weights}

    return Task(step, outputs, **numbanet_on(dev))


def torch_batches(torch: Any, device: str, X: np.ndarray, y: np.ndarray, batch: int) -> Callable[[], Iterator[tuple]]:
    """() -> (inputs, labels) of batch after batch; rows and labels are on the device for a whole pass."""
    X, y = torch.from_numpy(X).to(device), torch.from_numpy(y).long().to(device)

    def fed():
        for order in orders(len(X)):
            order = torch.from_numpy(order).long().to(device)
            labels = y[order]
            for start in range(0, len(order) - batch + 1, batch):
                yield X[order[start : start + batch]], labels[start : start + batch]

    return fed


def torch_steps(
    torch: Any,
    device: str,
    X: np.ndarray,
    y: np.ndarray,
    batch: int,
    make: Callable[[], tuple[Any, Any]],
    checked: int = CHECKED,
) -> Task:
    """Eager steps of a model and its optimiser, which `make` gives; outputs are the weights after the first steps."""
    fed = torch_batches(torch, device, X, y, batch)
    (model, optimizer), taken = make(), fed()

    def step(model=model, optimizer=optimizer, at=taken):
        x, labels = next(at)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    def outputs():
        fresh, at = make(), fed()
        for _ in range(checked):
            step(*fresh, at)
        return {"weights": [p.detach().cpu().numpy() for p in fresh[0].parameters()]}

    return Task(step, outputs, **torch_on(torch, device))


def update_error(starts: list[np.ndarray], values: list[np.ndarray], references: list[np.ndarray]) -> float:
    """Largest error of the change of a parameter, relative to that change, in the 2-norm.

    Not entry by entry: where float32 and float64 see a pre-activation on two sides of ReLU's kink, one sample's part of one
    neuron's gradient differs altogether. That is one part in thousands of the norm, and each is right.
    """
    error = 0.0
    for start, value, reference in zip(starts, values, references, strict=True):
        change = np.linalg.norm(reference - start)
        error = max(error, float(np.linalg.norm(value - reference) / max(change, 1e-30)))
    return error
