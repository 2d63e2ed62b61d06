"""Identity: what must be the same when a fit goes on, so that it is still the same fit."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...device import Device
from ...dropout import Dropout, GateSparsity, Together
from ...training.data import Data
from ...training.large.rows import Rows
from ...training.large.streamed import Streamed
from ..serialization import made
from ..settings import FitSettings

MOST = 1 << 28  # bytes of samples that are read; of more, evenly spaced samples are read
FREE = ("epochs", "callbacks", "device", "n_jobs", "verbose")  # parameters that may change


def digest(data: Data, others: Iterable[Data], dev: Device) -> str:
    """Return the SHA-256 of the samples, targets and weights of a fit, and of its validation data."""
    found = hashlib.sha256()
    for part in (data, *others):
        if isinstance(part, Streamed):
            found.update(part.digest.encode())
            continue
        size = math.prod(part.X.shape) * np.dtype(part.X.dtype).itemsize
        every = -(-size // MOST) or 1
        found.update(f"{tuple(part.X.shape)} {part.X.dtype} {every}".encode())
        some = part.X.chunks(every) if isinstance(part.X, Rows) else [dev.download(part.X)[::every]]
        for array in itertools.chain(some, (part.y, part.weights, part.rows)):
            if array is not None:
                found.update(f"{array.shape} {array.dtype}".encode())
                found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def check_parameters(saved: dict[str, Any], now: dict[str, Any], where: str) -> None:
    """Raise ValueError if a parameter differs that must not change. Both arguments map names to JSON."""
    for name, value in saved.items():
        if name not in FREE and (name not in now or now[name] != value):
            other = repr(made(now[name])) if name in now else "a function, or an object of a user's class"
            raise ValueError(
                f"resume: the checkpoint in {where} was made with {name}={made(value)!r}, and the estimator has {other}: set "
                f"it back; only {', '.join(FREE)} may change"
            )


def check_epochs(
    net: Any, settings: FitSettings, saved: dict[str, Any], samples: int | None, arguments: dict[str, Any]
) -> None:
    """Raise ValueError if the number of epochs has changed, and what was trained depends on that number."""
    before, now = saved["epochs"], settings.epochs
    if before == now:
        return
    trained = len(net.history_)
    if now < trained:
        raise ValueError(f"resume: epochs={now}, but {trained} epochs are trained already; give at least {trained}")
    given = arguments.get("dropout"), arguments.get("dropout_rate"), *([] if samples is None else [samples])
    other = copy.copy(net).set_params(epochs=before)._settings(*given)
    first = None
    if net.sparsity is not None:
        first = f"sparsity={net.sparsity!r}"
    elif isinstance(net.learning_rate_schedule, str):
        first = f"learning_rate_schedule={net.learning_rate_schedule!r}"
    elif _shares(settings, trained) != _shares(other, trained):
        first = "the share of steps with sparse gate gradients (gate_schedule)"
    elif _rates(settings, trained) != _rates(other, trained) or settings.at_mean_rate.rate != other.at_mean_rate.rate:
        first = "the dropout rate"
    if first:
        raise ValueError(
            f"resume: {first} depends on the number of epochs, so a fit of {before} epochs cannot become one of {now}: leave "
            f"epochs={before}, or give rates and schedules as functions of the epoch"
        )


def _rates(settings: FitSettings, epochs: int) -> list[Any]:
    """Return the rates of each epoch up to the current one."""
    parts = (part for epoch in range(epochs + 1) for part in _parts(settings.policy.at(epoch)))
    return [(part.name, part.rate) for part in parts if not isinstance(part, GateSparsity)]


def _shares(settings: FitSettings, epochs: int) -> list[float]:
    """Return the shares of the steps of each epoch up to the current one whose gate gradients are sparse."""
    pairs = ((epoch, part) for epoch in range(epochs + 1) for part in _parts(settings.policy.at(epoch)))
    return [part.share(epoch) for epoch, part in pairs if isinstance(part, GateSparsity)]


def _parts(policy: Dropout) -> tuple[Dropout, ...]:
    return policy.policies if isinstance(policy, Together) else (policy,)
