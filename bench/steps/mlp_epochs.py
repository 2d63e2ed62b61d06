"""Whole fits of 784-4096-4096-10 in short epochs of 12 steps, rdp at p = 0.7: what an epoch costs beside its steps.

Against PyTorch with nn.Dropout, from new layers to the last step; without --against, against as many steps in one epoch.
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
    """Fits of a `Net`. What is checked: that nobody looks at the weights between epochs changes them by rounding alone."""
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
        some = min(epochs, 3)  # of more steps with random labels, rounding decides what is learned
        fits = (fit(some, callbacks=found).model_.parameters() for found in (None, [lambda net, record: None]))
        pairs = zip(*fits, strict=True)
        return {"error": max(float(np.linalg.norm(a.numpy() - b.numpy()) / np.linalg.norm(b.numpy())) for a, b in pairs)}

    return Task(fit, outputs)


def torch_task(device: str, hidden: int, steps: int, epochs: int) -> Task:
    """The same in PyTorch: layers as PyTorch makes them, batches by index, the loss looked at once an epoch."""
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
    """Short epochs against PyTorch, or against one epoch."""
    hidden, steps, epochs = (64, 2, 2) if options.quick else (HIDDEN, STEPS, EPOCHS)
    common = {"device": options.device, "hidden": hidden}
    short, long = ({**common, "steps": steps * n, "epochs": epochs // n} for n in (1, epochs))
    name = f"784-{hidden}-{hidden}-10 p={RATE}, {epochs} epochs of {steps} steps"
    peer = (
        Implementation("torch nn.Dropout", torch_task, short)
        if options.against == "torch"
        else Implementation("rdp, one epoch", numbanet_task, long)
    )
    own = Implementation("rdp", numbanet_task, short, peer.name)
    yield Case(SUITE, f"{name}, {'whole fit' if options.against else 'against one epoch'}", (own, peer), _error)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time the fits; returns the rows."""
    return run_cases(SUITE, cases(options), options, results, say, FEW)
