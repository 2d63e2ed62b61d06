"""Whole fits of 784-4096-4096-10 in short epochs of 12 steps, rdp at p = 0.7: the cost of an epoch beside its steps.

A repetition creates the layers and trains to the last step. The peer is PyTorch with nn.Dropout; without --against it is
numbanet with the same number of steps in one epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..machinery.harness import Case, Implementation, Options, Schedule, run_cases
from ..machinery.results import Results
from ..machinery.worker import Task, torch_on
from . import BATCH, CLASSES, FEATURES, MOMENTUM, mlp_model

SUITE = "mlp-epochs"
RECORDED = ("--against torch --json bench/results/mlp-epochs.json", "--json bench/results/mlp-epochs-own.json")
HIDDEN, RATE, STEPS, EPOCHS = 4096, 0.7, 12, 10
FEW = Schedule(pairs=15, turn=0.05, warm_up=1)  # a turn is a whole fit


def numbanet_task(device: str, hidden: int, steps: int, epochs: int) -> Task:
    """Task: fits of a `Net`. It checks that the final weights are equal up to rounding with and without a callback: a callback
    may read weights after each epoch, so with one `fit` applies all delayed updates there."""
    from numbanet import Net

    X, y = (part[: steps * BATCH] for part in mlp_model.samples())

    def fit(epochs=epochs, **options):
        return Net(
            (hidden, hidden),
            dropout="rdp",
            dropout_rate=RATE,
            epochs=epochs,
            batch_size=BATCH,
            device=device,
            learning_rate=mlp_model.RATE,
            momentum=MOMENTUM,
            random_state=0,
            **options,
        ).fit(X, y)

    def outputs():
        some = min(epochs, 3)  # after more steps with random labels rounding errors would grow too large
        fits = (fit(some, callbacks=callbacks).model_.parameters() for callbacks in (None, [lambda net, record: None]))
        pairs = zip(*fits, strict=True)
        return {"error": max(float(np.linalg.norm(a.numpy() - b.numpy()) / np.linalg.norm(b.numpy())) for a, b in pairs)}

    return Task(fit, outputs)


def torch_task(device: str, hidden: int, steps: int, epochs: int) -> Task:
    """Task: the same in PyTorch, with its default initial weights, batches by index, and the loss copied to the host per
    epoch."""
    import torch

    X, y = (torch.from_numpy(part[: steps * BATCH]) for part in mlp_model.samples())
    X, y = X.to(device), y.long().to(device)

    def fit():
        model = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, hidden),
            torch.nn.ReLU(),
            torch.nn.Dropout(RATE),
            torch.nn.Linear(hidden, hidden),
            torch.nn.ReLU(),
            torch.nn.Dropout(RATE),
            torch.nn.Linear(hidden, CLASSES),
        ).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=mlp_model.RATE, momentum=MOMENTUM)
        for _ in range(epochs):
            total = 0.0
            for rows in torch.randperm(len(X), device=X.device).split(BATCH):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(X[rows]), y[rows])
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(rows)
            float(total)

    return Task(fit, lambda: {"error": 0.0}, **torch_on(torch, device))


def _error(outputs: Mapping[str, Any]) -> float:
    return outputs["error"]


def cases(options: Options) -> Iterator[Case]:
    """Short epochs against PyTorch, or against one long epoch."""
    hidden, steps, epochs = (64, 2, 2) if options.quick else (HIDDEN, STEPS, EPOCHS)
    common = {"device": options.device, "hidden": hidden}
    short, long = ({**common, "steps": steps * n, "epochs": epochs // n} for n in (1, epochs))
    name = f"784-{hidden}-{hidden}-10 p={RATE}, {epochs} epochs of {steps} steps"
    peer = (
        Implementation("torch nn.Dropout", torch_task, short)
        if options.against == "torch"
        else Implementation("rdp, one epoch", numbanet_task, long)
    )
    ours = Implementation("rdp", numbanet_task, short, peer.name)
    yield Case(SUITE, f"{name}, {'whole fit' if options.against else 'against one epoch'}", (ours, peer), _error)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time the fits; return the rows."""
    return run_cases(SUITE, cases(options), options, results, say, FEW)
