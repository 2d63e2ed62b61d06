"""The language model of the suite `lstm` in numbanet and in PyTorch: training steps, and passes without an update, as tasks."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import steps
from ..machinery.worker import Task, numbanet_on, torch_on

LAYERS, LEARNING_RATE = 2, 1.0
GATES = 0.5  # share of the columns of gate gradients that are skipped
PASS = 40  # n training steps per epoch


class Size(NamedTuple):
    """Sizes of a model and its batches."""

    hidden: int
    words: int
    batch: int
    steps: int
    clip: float
    checked: int  # n training steps that are compared with the reference, which takes seconds for each


# --- what both sides share --------------------------------------------------------------------------------------------
def text(size: Size) -> np.ndarray:
    """Words drawn from a uniform distribution."""
    return np.random.default_rng(1).integers(size.words, size=size.batch * size.steps * PASS + 1).astype(np.int32)


def batches(size: Size) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Inputs (T, N), the next words (T N,), and whether the batch begins a new epoch."""
    words = text(size)
    x, y = (part.reshape(size.batch, -1).T for part in (words[:-1], words[1:]))
    while True:
        for start in range(0, len(x), size.steps):
            now = slice(start, start + size.steps)
            yield np.ascontiguousarray(x[now]), y[now].reshape(-1), start == 0


def network(size: Size, dev: Any = "cpu") -> Any:
    """The layers with fixed random weights; the embedding is initialised as in `LanguageModel`."""
    from numbanet import LSTM, Embedding, Linear, Sequential, Tensor

    table = Embedding(size.words, size.hidden, device=dev)
    table.weight = Tensor(np.random.default_rng(0).uniform(-0.1, 0.1, table.weight.shape), dev, requires_grad=True)
    return Sequential(
        [
            table,
            LSTM(size.hidden, size.hidden, LAYERS, rng=1, device=dev),
            Linear(size.hidden, size.words, init="glorot", rng=2, device=dev),
        ]
    )


def signals(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """x and the gradient of y, both (T, N, H), for passes through the LSTM only."""
    rng = np.random.default_rng(2)
    return tuple(rng.standard_normal((size.steps, size.batch, size.hidden), np.float32) for _ in range(2))


class Backward(Task):
    """A task whose `run` computes the forward pass and returns the backward pass; only the backward pass is timed."""

    def seconds(self, repetitions: int) -> tuple[float, float | None]:
        wall = 0.0
        for _ in range(repetitions):
            back = self.run()
            self.synchronize()
            start = time.perf_counter()
            back()
            self.synchronize()
            wall += time.perf_counter() - start
        return wall, None


# --- numbanet ---------------------------------------------------------------------------------------------------------
def policy(dropout: str, rate: float, gates: Any = None) -> Any:
    """The policy of this suite's name `dropout`, together with sparse gate gradients (`sparse_gates`) if given."""
    from numbanet import BatchwiseDropout, RowDropout, TileDropout, WindowDropout
    from numbanet.dropout import Together, policy as named, recurrent

    make = {
        "none": lambda: named("none"),
        "rdp": lambda: RowDropout(rate),
        "tdp": lambda: TileDropout(rate, answer=True),
        "batchwise": lambda: BatchwiseDropout(rate),
        "rdp + recurrent rdp": lambda: Together(RowDropout(rate), recurrent(RowDropout(rate))),
        "window": lambda: WindowDropout(rate),
        "window + recurrent window": lambda: Together(WindowDropout(rate), recurrent(WindowDropout(rate), as_outputs=True)),
    }
    return make[dropout]() if gates is None else Together(make[dropout](), gates)


def sparse_gates(log: list[dict[str, np.ndarray]]) -> Any:
    """GateSparsity that is active in every step. Each pass through a layer appends the indices of its kept columns to the
    log."""
    from numbanet.dropout import GateSparsity

    class Logged(GateSparsity):
        def choice(self, place: Any, probed: bool) -> Any:
            choice = super().choice(place, probed)
            done = choice.done

            def logged(dev: Any, dz: Any, columns: Any) -> None:
                log.append({f"columns_l{place[1]}": columns.plan.indices()})
                done(dev, dz, columns)

            choice.done = logged
            return choice

    return Logged(GATES, schedule=1.0, probe=10**9)


def _by_step(log: list[dict[str, np.ndarray]], count: int) -> list[dict[str, np.ndarray]]:
    """One dictionary for each of n steps, which merges those of its layers."""
    return [
        {name: columns for entry in log[step * LAYERS : (step + 1) * LAYERS] for name, columns in entry.items()}
        for step in range(count)
    ]


def numbanet_task(device: str, size: Size, dropout: str = "none", rate: float = 0.0, gates: bool = False) -> Task:
    """Task: training steps by numbanet's Stepper."""
    from numbanet import device as named
    from numbanet.training.data import Data
    from numbanet.training.sgd import SGD
    from numbanet.training.stepper import Stepper
    from numbanet.training.streams import Streams
    from numbanet.training.task import LanguageModelling

    dev, words, task, log = named(device), text(size), LanguageModelling(size.steps), []

    def make():
        log.clear()
        model = network(size, dev)
        optimizer = SGD(model.parameters(), LEARNING_RATE, clip_norm=size.clip)
        chosen = policy(dropout, rate, sparse_gates(log) if gates else None)
        return Stepper(model, optimizer, chosen, task, Streams.from_seed(3), dev, size.batch)

    def fed():
        while True:
            some = task.batches(Data(words, words), size.batch, None, dev)
            for batch, following in itertools.pairwise(itertools.chain(some, [None])):
                yield batch, following, following is None

    def describe(stepper, drawn):
        names = {"0.output": "embedding", "2.tiles": "answer"}
        by_name = [
            {names.get(path, path.partition(".")[2]): plan for path, plan in plans.assigned.items() if path != "1.gates"}
            for plans in drawn
        ]
        return {"drawn": [{**plans, **columns} for plans, columns in zip(by_name, _by_step(log, len(drawn)), strict=True)]}

    return steps.trainer_steps(dev, words, fed, make, describe, size.checked)


def numbanet_pass(device: str, size: Size, alone: bool, back: bool, gates: bool = False) -> Task:
    """Task: a forward pass (`back`: a backward pass) of the model (`alone`: of its LSTM only), without an update."""
    from numbanet import Context, Tensor, device as named
    from numbanet.ops import softmax_cross_entropy

    dev, model, log = named(device), network(size, named(device)), []
    chosen, rng = policy("none", 0.0, sparse_gates(log) if gates else None), np.random.default_rng(6)
    plans = {site: plan for site in chosen.sites(model) if (plan := chosen.plan(site, rng)) is not None}
    context = Context(dev, plans, training=True, model=model)
    words, targets, _ = next(batches(size))
    lstm = model.layers[1]
    if alone:
        x, dy = (Tensor(a, dev, requires_grad=True) for a in signals(size))
        leaves = [x, *lstm.parameters()]
    else:
        x, labels, leaves = Tensor.wrap(dev.upload(words), dev), dev.upload(targets), list(model.parameters())

    def run():
        for leaf in leaves:
            leaf.zero_grad()
        with dev.session():
            if alone:
                y, _ = lstm(x, context=context)
                return functools.partial(y.backward, dy)
            logits = model(x, context)
            return softmax_cross_entropy(logits.reshape(-1, size.words), labels=labels).backward

    def outputs():
        log.clear()
        run()()
        return {"gradients": [leaf.grad.numpy() for leaf in leaves], "drawn": _by_step(log, 1)[0]}

    return (Backward if back else Task)(run, outputs, **numbanet_on(dev))


# --- PyTorch ----------------------------------------------------------------------------------------------------------
def torch_model(torch: Any, device: str, size: Size, rate: float, tf32: bool = False) -> Any:
    """The same layers with the same weights in PyTorch."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    nn, values = torch.nn, network(size).state_dict()
    model = nn.ModuleList(
        [
            nn.Embedding(size.words, size.hidden),
            nn.LSTM(size.hidden, size.hidden, LAYERS, dropout=rate),
            nn.Linear(size.hidden, size.words),
        ]
    )
    model.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})
    return model.to(device)


def torch_task(device: str, size: Size, rate: float = 0.0, tf32: bool = False) -> Task:
    """Task: eager training steps in PyTorch, with dropout on the outputs of the embedding and of each LSTM layer."""
    import torch

    drop = functools.partial(torch.nn.functional.dropout, p=rate)

    def make():
        model = torch_model(torch, device, size, rate, tf32)
        return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), {}

    def step(model, optimizer, memory, feed):
        x, targets, fresh = next(feed)
        x, targets = torch.from_numpy(x).to(device), torch.from_numpy(targets).long().to(device)
        y, states = model[1](drop(model[0](x)), None if fresh else memory["states"])
        memory["states"] = tuple(state.detach() for state in states)
        loss = torch.nn.functional.cross_entropy(model[2](drop(y)).view(-1, size.words), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), size.clip)
        optimizer.step()

    def outputs():
        """Draws the masks a second time from the same seed. cuDNN has its own random numbers, so on CUDA the checked steps have
        no dropout between the layers of nn.LSTM."""
        fresh, feed, between = make(), batches(size), rate if device == "cpu" else 0.0
        fresh[0][1].dropout = between
        torch.manual_seed(4)
        for _ in range(size.checked):
            step(*fresh, feed)
        torch.manual_seed(4)
        ones, rates = torch.ones(size.steps, size.batch, size.hidden, device=device), (rate, *[between] * (LAYERS - 1), rate)
        names = ("embedding", *(f"output_l{layer}" for layer in range(LAYERS)))
        drawn = [{name: drop(ones, p=p).cpu().numpy() for name, p in zip(names, rates) if p} for _ in range(size.checked)]
        return {"weights": [p.detach().cpu().numpy() for p in fresh[0].parameters()], "drawn": drawn}

    return Task(functools.partial(step, *make(), batches(size)), outputs, **torch_on(torch, device))


def torch_pass(device: str, size: Size, alone: bool, back: bool) -> Task:
    """Task: the same as `numbanet_pass`, in PyTorch."""
    import torch

    model = torch_model(torch, device, size, 0.0)
    words, targets, _ = next(batches(size))
    x, dy = (torch.from_numpy(a).to(device) for a in signals(size))
    words, targets = torch.from_numpy(words).to(device), torch.from_numpy(targets).long().to(device)
    leaves = [x.requires_grad_(), *model[1].parameters()] if alone else list(model.parameters())

    def run():
        for leaf in leaves:
            leaf.grad = None
        if alone:
            return functools.partial(model[1](x)[0].backward, dy)
        logits = model[2](model[1](model[0](words))[0])
        return torch.nn.functional.cross_entropy(logits.view(-1, size.words), targets).backward

    def outputs():
        run()()
        return {"gradients": [leaf.grad.cpu().numpy() for leaf in leaves], "drawn": {}}

    return (Backward if back else Task)(run, outputs, **torch_on(torch, device))
