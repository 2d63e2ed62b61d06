"""Kernel: one operation in isolation, on numbanet's device table and as the PyTorch op that a user would call instead.

A family file is a table KERNELS of these and a list of sizes; workers look the operation up by name.
"""
from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .harness import Case, Implementation, Options, relative_error
from .worker import Task, numbanet_on, torch_on

SEED = 20


def _as_it_is(value: np.ndarray, **sizes: Any) -> np.ndarray:
    return value


def _same(**sizes: Any) -> float:
    return 1.0


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One operation; `sizes` are the keyword arguments of a case, the same for all functions here.

    Attributes
    ----------
    inputs : callable
        (rng, **sizes) -> host arrays.
    numbanet : callable
        (dev, *device arrays, **sizes) -> run, where run() gives the result, an array or a tuple of arrays.
    torch : callable
        (torch, *tensors, **sizes) -> run.
    reference : callable
        (*host arrays, **sizes) -> the result in float64.
    dense : callable, default: the result as it is
        (one array of a result, **sizes) -> its dense form, so that compact results can be compared.
    error : callable, optional
        (result, host arrays, **sizes) -> error, where there is nothing to compare with one by one (random numbers).
    flops, bytes : callable
        (**sizes) -> useful work.
    ceiling : callable, default: 1
        (**sizes) -> work of the PyTorch op over useful work.
    """

    inputs: Callable[..., tuple[np.ndarray, ...]]
    numbanet: Callable[..., Callable[[], Any]]
    torch: Callable[..., Callable[[], Any]]
    reference: Callable[..., Any]
    dense: Callable[..., np.ndarray] = _as_it_is
    error: Callable[..., float] | None = None
    flops: Callable[..., float] | None = None
    bytes: Callable[..., float] | None = None
    ceiling: Callable[..., float] = _same


def _kernel(family: str, op: str) -> Kernel:
    return importlib.import_module(f"bench.{family}").KERNELS[op]


def _inputs(kernel: Kernel, sizes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    return kernel.inputs(np.random.default_rng(SEED), **sizes)


def _tuple(result: Any) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def numbanet_task(family: str, op: str, device: str, sizes: dict[str, Any]) -> Task:
    """The operation on a numbanet device."""
    from numbanet.device import device as named

    kernel, dev = _kernel(family, op), named(device)

    def fresh():
        return kernel.numbanet(dev, *(dev.upload(a) for a in _inputs(kernel, sizes)), **sizes)

    return Task(fresh(), lambda: {"result": [np.array(dev.download(a)) for a in _tuple(fresh()())]},
                **numbanet_on(dev))


def torch_task(family: str, op: str, device: str, sizes: dict[str, Any]) -> Task:
    """The operation in PyTorch."""
    import torch

    kernel = _kernel(family, op)

    def fresh():
        return kernel.torch(torch, *(torch.from_numpy(a).to(device) for a in _inputs(kernel, sizes)), **sizes)

    return Task(fresh(), lambda: {"result": [a.detach().cpu().numpy() for a in _tuple(fresh()())]}, **torch_on(torch, device))


def _error(family: str, op: str, sizes: dict[str, Any], outputs: Mapping[str, Any]) -> float:
    """The largest relative error of a result."""
    kernel = _kernel(family, op)
    inputs, result = _inputs(kernel, sizes), outputs["result"]
    if kernel.error is not None:
        return kernel.error(result, inputs, **sizes)
    references = _tuple(kernel.reference(*inputs, **sizes))
    return max(relative_error(kernel.dense(value, **sizes), reference)
               for value, reference in zip(result, references, strict=True))


def cases(family: str, chosen: Iterable[tuple[str, dict[str, Any]]], options: Options) -> Iterator[Case]:
    """One case for each (op, sizes)."""
    for op, sizes in chosen:
        kernel = _kernel(family, op)
        parameters = {"family": family, "op": op, "device": options.device, "sizes": sizes}
        work = {"flops": kernel.flops and kernel.flops(**sizes), "bytes": kernel.bytes and kernel.bytes(**sizes)}
        torch = options.against == "torch"
        ours = Implementation("numbanet", numbanet_task, parameters, "torch" if torch else None,
                              kernel.ceiling(**sizes) if torch else None, **work)
        theirs = (Implementation("torch", torch_task, parameters),) if torch else ()
        name = " ".join((op, *(f"{key}={value}" for key, value in sizes.items())))
        yield Case(family, name, (ours, *theirs), functools.partial(_error, family, op, sizes))
