"""Whole fits with all threads against fits with one, `n_jobs=None` against `n_jobs=1`: MLPs by width, LeNet-5 and an LSTM.

A ratio below 0.97 would mean that sharing the work between threads costs more than it brings. The check is that the loss falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..machinery.harness import Case, Implementation, Options, Schedule, run_cases
from ..machinery.results import Results
from ..machinery.worker import Task

SUITE = "threads"
RECORDED = ("--json bench/results/threads.json",)
LONG = Schedule(pairs=9, turn=0.3, warm_up=1)
WIDTHS = {16: 400, 64: 400, 256: 200, 512: 100, 1024: 40, 2048: 20, 4096: 8}  # n steps of an epoch by width
FALLEN = 1.0  # the last loss over the first one is below


def mlp_task(device: str, width: int, dropout: str, n_jobs: int | None) -> Task:
    """Task: fits of two hidden layers, Adam, batch 128."""
    from numbanet import Net

    rng = np.random.default_rng(0)
    X = rng.standard_normal((128 * WIDTHS[width], 64), np.float32)
    y = (X @ rng.standard_normal((64, 2), np.float32)).argmax(1)
    options = {"optimizer": "adam", "learning_rate": 1e-4, "batch_size": 128, "dropout": dropout, "device": device}
    return _fits(lambda: Net((width, width), epochs=2, n_jobs=n_jobs, random_state=0, **options).fit(X, y))


def lenet_task(device: str, dropout: str, n_jobs: int | None) -> Task:
    """Task: fits of LeNet-5 to 20 batches of 128 images; a class is a bright row."""
    from numbanet import Net

    rng = np.random.default_rng(0)
    X, y = rng.random((20 * 128, 1, 28, 28), np.float32), rng.integers(10, size=20 * 128)
    X[np.arange(len(X)), 0, 2 * y + 4] += 1
    options = {"batch_size": 128, "learning_rate": 0.05, "dropout": dropout, "dropout_rate": 0.5, "device": device}
    return _fits(lambda: Net("lenet5", image_shape=(1, 28, 28), epochs=2, n_jobs=n_jobs, random_state=0, **options).fit(X, y))


def lstm_task(device: str, width: int, dropout: str, n_jobs: int | None) -> Task:
    """Task: fits of two LSTM layers to 10 steps of 20 segments of 35 words each, of a vocabulary of 500."""
    from numbanet import LanguageModel

    words = list(map(str, np.random.default_rng(0).geometric(0.02, size=10 * 20 * 35 + 1).clip(max=500)))
    options = {"batch_size": 20, "steps": 35, "dropout": dropout, "device": device}
    return _fits(lambda: LanguageModel((width, width), epochs=2, n_jobs=n_jobs, random_state=0, **options).fit(words))


def _fits(fit: Any) -> Task:
    def outputs() -> dict[str, float]:
        history = fit().history_
        return {"fallen": history[-1]["loss"] / history[0]["loss"]}

    return Task(fit, outputs)


def _fallen(outputs: Mapping[str, Any]) -> float:
    return outputs["fallen"]


def cases(options: Options) -> Iterator[Case]:
    """Every network with all threads and with one, with no dropout and with rdp."""
    networks = [(f"64-{width}-{width}-2", mlp_task, {"width": width}) for width in WIDTHS]
    networks += [("lenet5 on 1x28x28", lenet_task, {})]
    networks += [(f"2x{width}, 500 words", lstm_task, {"width": width}) for width in (32, 128, 512)]
    for name, task, sizes in networks[:1] if options.quick else networks:
        for dropout in ("none", "rdp"):
            common = {"device": options.device, "dropout": dropout, **sizes}
            several = Implementation("all threads", task, {**common, "n_jobs": None}, "one thread")
            one = Implementation("one thread", task, {**common, "n_jobs": 1})
            yield Case(SUITE, f"{name}, {dropout}", (several, one), _fallen, FALLEN)


def run(options: Options, results: Results, say: Any) -> list[dict[str, Any]]:
    """Time the fits; return the rows."""
    return run_cases(SUITE, cases(options), options, results, say, LONG)
