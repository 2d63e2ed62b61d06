"""The program of one rank of `mpi_ranks`, with the arguments KIND RANKS PORT SETTINGS [RANK]."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client
from typing import Any, NamedTuple

import numpy as np

from .. import steps
from ..machinery.worker import Task
from . import mlp_model
from .mpi_ranks import interpreter

SMALL, LARGE, TURNS = 4, 1 << 23, 20  # bytes of the all-reduces from which latency and bandwidth follow, and how many of each


class Rank(NamedTuple):
    """One rank: its number, its task, its `Exchange` if it has one, a function that sums an array over the ranks, and one that
    returns an array of n zeros to sum.
    """

    number: int
    task: Task
    exchange: Any
    sum: Callable[[np.ndarray], Any]
    zeros: Callable[[int], np.ndarray] = lambda n: np.zeros(n, np.float32)


def numbanet_rank(ranks: int, hidden: int, dropout: str, rate: float, batch: int) -> Rank:
    """Steps of a Stepper on the share of this rank of each joint batch of `ranks` times `batch` samples."""
    from numbanet import device
    from numbanet.parallel import Exchange
    from numbanet.parallel.joining import opened
    from numbanet.parallel.parts import _rows
    from numbanet.parallel.ranks import Team
    from numbanet.training.data import Batches, Data
    from numbanet.training.task import Classification

    dev, joint = device("cpu"), batch * ranks
    team = Team(opened("mpi"), False) if ranks > 1 else None
    X, y = mlp_model.samples()
    data, exchanges = Data(dev.upload(X), y), []

    def make() -> Any:
        stepper = mlp_model._trainer(dev, hidden, dropout, rate, joint, True)
        if team is not None:
            stepper.ranks = team
            exchanges.append(Exchange(team, dev))
            stepper.optimizer.reduce_by(exchanges[-1])
        return stepper

    def fed() -> Any:
        for order in steps.orders(len(X)):
            whole = order[: len(order) // joint * joint]
            for number, some in enumerate(Batches(data, whole, joint, dev), 1):
                own = some if team is None else _rows(Classification(), some, dev, team)
                yield own, None, number * joint == len(whole)

    task = steps.trainer_steps(dev, data.X, fed, make, mlp_model.described(batch))
    if team is None:
        return Rank(0, task, None, lambda array: None)

    def zeros(n: int) -> np.ndarray:
        with team.lending():
            return dev.full(n, 0.0)

    return Rank(team.rank, task, exchanges[0], team.sum, zeros)


def torch_rank(number: int, ranks: int, hidden: int, rate: float | None, batch: int, meeting: str) -> Rank:
    """Steps of DistributedDataParallel, which averages the gradients in buckets during the backward pass."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(number)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=ranks)
    fed = steps.torch_batches(torch, "cpu", *mlp_model.samples(), batch * ranks)
    own = slice(number * batch, (number + 1) * batch)

    def make() -> tuple[Any, Any, Any]:
        model, optimizer = mlp_model._torch_model(torch, "cpu", hidden, rate)
        return DistributedDataParallel(model), model, optimizer

    (model, _, optimizer), feed = make(), fed()

    def step(model=model, optimizer=optimizer, feed=feed):
        x, labels = next(feed)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[own]), labels[own]).backward()
        optimizer.step()

    def outputs() -> dict[str, Any]:
        (fresh, inner, fresh_optimizer), fresh_feed = make(), fed()
        factors: list[list] = [[] for _ in range(steps.CHECKED)]
        for drawn in factors:
            hooks = [
                layer.register_forward_hook(
                    lambda layer, x, out, drawn=drawn: drawn.append((1.0, (out != 0).numpy() / (1 - layer.p)))
                )
                for layer in inner
                if isinstance(layer, torch.nn.Dropout)
            ]
            step(fresh, fresh_optimizer, fresh_feed)
            for hook in hooks:
                hook.remove()
        weights = [p.detach().numpy() for p in inner.parameters()]
        return {"weights": weights, "factors": [drawn or [(1.0, 1.0)] * 2 for drawn in factors]}

    return Rank(number, Task(step, outputs), None, lambda array: distributed.all_reduce(torch.from_numpy(array)))


def link_of(rank: Rank, ranks: int) -> tuple[float, float]:
    """(latency, bandwidth) for which a ring all-reduce takes as long as those of a small and of a large array took."""
    times = []
    for size in (SMALL, LARGE):
        array, found = rank.zeros(size // 4), []
        for _ in range(TURNS):
            began = time.perf_counter()
            rank.sum(array)
            found.append(time.perf_counter() - began)
        times.append(float(np.median(found)))
    small, large = times
    sent = 2 * (ranks - 1) / ranks * (LARGE - SMALL)
    return small / max(2 * (ranks - 1), 1), sent / max(large - small, 1e-9)


def serve(rank: Rank, ranks: int, port: int) -> None:
    """Answer requests until the connection is closed."""
    with Client(("127.0.0.1", port)) as connection:
        connection.send(rank.number)
        while True:
            try:
                verb, count = connection.recv()
            except EOFError:
                return
            try:
                if verb == "outputs":
                    answer: Any = rank.task.outputs()
                elif verb == "link":
                    answer = link_of(rank, ranks)
                elif verb == "sent":
                    answer = rank.exchange.sent / rank.exchange.step
                else:
                    if rank.exchange is not None:
                        rank.exchange.begin()
                    wall, _ = rank.task.seconds(count)
                    answer = wall, 0.0 if rank.exchange is None else rank.exchange.seconds
                connection.send((None, answer))
            except Exception as error:  # recorded by the harness
                connection.send((f"{type(error).__name__}: {error}", None))


def main() -> None:
    """Run one rank; rank 0 of PyTorch starts the others."""
    kind, ranks, port, settings = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    number = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    if kind == "numbanet":
        serve(numbanet_rank(ranks, **settings), ranks, port)
        return
    others = (
        [subprocess.Popen([*interpreter(), *sys.argv[1:5], str(other)]) for other in range(1, ranks)] if number == 0 else []
    )
    serve(torch_rank(number, ranks, **settings), ranks, port)
    for other in others:
        other.wait()
