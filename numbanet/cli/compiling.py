"""`numbanet devices --compile`: compile the loops of the CPU now, so that no first network waits for them."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

FEW, EPOCHS = 64, 4  # samples of a batch, and epochs: a step that comes for the third time is recorded


def fits() -> dict[str, Callable[[], None]]:
    """Return small fits of each family with each kind of dropout, by what they are. Layers are as wide as it takes to reach the
    loops for wide ones.
    """
    from .. import Conv2d, Flatten, LanguageModel, Linear, MaxPool2d, Net, NetRegressor, ReLU
    from ..dropout import POLICIES

    rng = np.random.default_rng(0)
    shapes = (768,), (1, 32, 32), (1, 28, 28), (3, 16, 16)
    rows, images, narrow, colours = (rng.random((2 * FEW, *shape), np.float32) for shape in shapes)
    wide = [Conv2d(3, 64, 3, padding=1, rng=0), ReLU(), Conv2d(64, 64, 3, padding=1, rng=1), ReLU(), MaxPool2d(2), Flatten()]
    classes, words = np.arange(2 * FEW) % 4, [str(i % 7) for i in range(600)]
    options: dict[str, Any] = {"epochs": EPOCHS, "batch_size": FEW, "random_state": 0, "device": "cpu"}
    found: dict[str, Callable[[], None]] = {}
    for kind, policy in POLICIES.items():
        own = {"dropout": kind, **options}
        if policy.kind != "patches":
            nets = [Net((512, 256), optimizer=optimizer, **own) for optimizer in ("sgd", "adam")]
            found[f"perceptrons, {kind}"] = functools.partial(_fit, [(net, rows, classes) for net in nets])
        if kind not in ("tdp", "dsg"):
            small, large = Net("lenet5", **own), Net([*wide, Linear(64 * 64, 4, rng=2)], **own)
            work = [(small, images, classes), (small, narrow, classes), (large, colours, classes)]
            found[f"convolutions, {kind}"] = functools.partial(_fit, work)
    found["regression"] = functools.partial(_fit, [(NetRegressor((64,), **options), rows, rows[:, 0])])
    for kind in ("none", "bernoulli", "batchwise"):
        model = LanguageModel((32,), dropout=kind, epochs=2, batch_size=8, steps=10, random_state=0, device="cpu")
        found[f"text, {kind}"] = functools.partial(_read, model, words)
    return found


def _fit(work: list[tuple[Any, np.ndarray, np.ndarray]]) -> None:
    for net, X, y in work:
        net.fit(X, y).predict(X)


def _read(model: Any, words: list[str]) -> None:
    model.fit(words).perplexity(words)


def run() -> None:
    """Run the fits, and print how long they took."""
    from rich.progress import track

    began = time.perf_counter()
    for fit in track(fits().values(), "compiling"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit()
    print(f"{time.perf_counter() - began:.0f} s; later processes read the compiled loops from the cache")
