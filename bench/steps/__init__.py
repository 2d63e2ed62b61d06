"""Training steps as tasks, in numbanet and in PyTorch. The data set is on the device; a batch is selected by row numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..machinery.worker import Task, numbanet_on, torch_on

FEATURES, CLASSES, BATCH = 784, 10, 128
RATE, MOMENTUM = 0.01, 0.9
TOLERANCE = 1e-2  # of `update_error`: above differences at ReLU's kink, far below those of a wrong mask or scale
TF32_TOLERANCE = 3e-2  # TF32 has 10 bits of mantissa
CHECKED = 3  # n steps that are compared: momentum and weights that are not updated in every step need more than one


def orders(count: int, seed: int = 2) -> Iterator[np.ndarray]:
    """Row numbers of each epoch, in a new random order."""
    rng = np.random.default_rng(seed)
    while True:
        yield rng.permutation(count).astype(np.int32)


def batches(count: int, batch: int) -> Iterator[np.ndarray]:
    """Row numbers of each batch; the last, smaller batch of an epoch is left out."""
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
    """Task: steps of a Stepper on the samples X, y in random order (see `trainer_steps`)."""
    from numbanet.training.data import Batches, Data

    data = Data(dev.upload(X), y)

    def fed():
        """The smaller batch at the end of an epoch is left out."""
        for order in orders(len(X)):
            whole = order[: len(order) // batch * batch]
            for number, some in enumerate(Batches(data, whole, batch, dev), 1):
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
    """Task: steps of a Stepper. Its outputs are the weights after the first n steps, and describe(stepper, plans of these
    steps).

    fed() yields (batch, next batch or None, whether the batch is the last one of its epoch).
    """
    stepper, feed = make(), fed()

    def step(by=stepper, feed=feed, last=False):
        some, following, ends = next(feed)
        by.step(X, some, following, last=last or ends)

    def outputs():
        fresh, drawn = make(), []
        feed, draw = fed(), fresh.draw

        def record(following=False):
            drawn.append(draw(following))
            return drawn[-1]

        fresh.draw = record
        for number in range(checked):
            step(fresh, feed, last=number + 1 == checked)
            for plan in drawn[number].assigned.values():
                plan.mask()  # a plan that the device has chosen is read before the next step overwrites it
        weights = [np.array(dev.download(p.data)) for p in fresh.optimizer.parameters]
        return {**describe(fresh, drawn), "weights": weights}

    return Task(step, outputs, **numbanet_on(dev))


def torch_batches(torch: Any, device: str, X: np.ndarray, y: np.ndarray, batch: int) -> Callable[[], Iterator[tuple]]:
    """() -> iterator over (inputs, labels) of batches. Row numbers and labels are copied to the device once per epoch."""
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
    """Task: eager steps of (model, optimiser) = make(). Its outputs are the weights after the first n steps."""
    fed = torch_batches(torch, device, X, y, batch)
    (model, optimizer), feed = make(), fed()

    def step(model=model, optimizer=optimizer, feed=feed):
        x, labels = next(feed)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    def outputs():
        fresh, feed = make(), fed()
        for _ in range(checked):
            step(*fresh, feed)
        return {"weights": [p.detach().cpu().numpy() for p in fresh[0].parameters()]}

    return Task(step, outputs, **torch_on(torch, device))


def update_error(starts: list[np.ndarray], values: list[np.ndarray], references: list[np.ndarray]) -> float:
    """Largest relative error, in the 2-norm, of the change of a parameter.

    The error is not elementwise: if a pre-activation is just above 0 in float32 and just below 0 in float64, or vice versa,
    both results are right, but the contribution of one sample to the gradient of one neuron differs completely. It is about a
    thousandth of the norm.
    """
    error = 0.0
    for start, value, reference in zip(starts, values, references, strict=True):
        change = np.linalg.norm(reference - start)
        error = max(error, float(np.linalg.norm(value - reference) / max(change, 1e-30)))
    return error
