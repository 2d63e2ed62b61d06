"""Training step of a language model with a vocabulary of 8800 and two LSTM layers of 1500, against PyTorch; also its passes.

Embedding(8800, 1500), LSTM(1500, 1500, 2), Linear(1500, 8800): batch 20, 35 time steps, SGD with gradient clipping; states
are carried over to the next batch. `none` is compared with PyTorch without dropout; rdp, tdp, batchwise, window, and rdp
and window that also drop recurrent inputs, with PyTorch's dropout at the same rate. Sparse gate gradients, of half of the
columns, change the backward pass only. So the suite also times the two passes separately, for the model and for its LSTM.
Steps of a small model, of two layers of 128 and 1000 words, show what short products and calls cost (`--only 2x128`).
Without --against torch, numbanet's `none` is the peer.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from numbanet_kernels.families import lstm as lstm_family

from .. import kernels, steps
from ..kernels import Kernel
from ..machinery.harness import Case, Implementation, Options, relative_error
from ..machinery.worker import Task
from . import TF32_TOLERANCE, lstm_reference
from .lstm_model import (
    GATES,
    LAYERS,
    LEARNING_RATE,
    Size,
    batches,
    network,
    numbanet_pass,
    numbanet_task,
    policy,
    signals,
    sparse_gates,
    torch_pass,
    torch_task,
)

SUITE = "lstm"
RECORDED = (
    "--against torch --json bench/results/lstm.json --plot lstm.png",
    "--only 2x128 --against torch --json bench/results/lstm-small.json",
    "--only '2x1500.*step p=0.5' --against torch --json bench/results/lstm-windows.json",
    "--only '2x1500.*step p=0.7' --against torch --json bench/results/lstm-windows-70.json",
)
SMALL = Size(128, 1000, 20, 35, 5.0, 2)  # a step takes a few ms, so that calls of Python show
FULL = Size(1500, 8800, 20, 35, 5.0, 1)  # gradient norms of the first steps are below 5, as most are in training
QUICK = Size(64, 96, 4, 5, 0.02, 3)  # gradient norms are above 0.02, so that they are clipped
WINDOWS = "window + recurrent window"  # in a layer they are one
RATES, DROPOUTS = (0.3, 0.5, 0.7), ("rdp", "tdp", "batchwise", "rdp + recurrent rdp", "window", WINDOWS)
PAIRS, LEAST = 7, 3  # n turns, and n steps of a turn under random plans
TOLERANCE, OF_GRADIENT = 1e-2, 1e-4  # of `steps.update_error`: float32 rounds the small changes of weights to 3 digits
SIZES = ((FULL.batch, FULL.hidden, 2 * FULL.hidden),)  # of examples, whose H is half of O
SHAPED = False  # H is half of O
DRAWN = 200  # n random plans whose FLOPs are averaged


# --- errors -----------------------------------------------------------------------------------------------------------
def weights_of(size: Size) -> list[np.ndarray]:
    """The initial weights of all implementations."""
    return [p.numpy() for p in network(size).parameters()]


def update_error(size: Size, outputs: Mapping[str, Any]) -> float:
    """The error of the weights after the first n steps (see `steps.update_error`)."""
    drawn = outputs["drawn"]
    references = reference_steps(size, drawn) if any(drawn) else _dense_steps(size)
    return steps.update_error(weights_of(size), outputs["weights"], references)


def reference_steps(size: Size, drawn: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
    """Weights after a step for each of `drawn`, in float64."""
    return lstm_reference.steps(weights_of(size), batches(size), drawn, LAYERS, LEARNING_RATE, size.clip)


@functools.lru_cache(maxsize=1)
def _dense_steps(size: Size) -> list[np.ndarray]:
    return reference_steps(size, [{}] * size.checked)


def gradient_error(size: Size, alone: bool, outputs: Mapping[str, Any]) -> float:
    """The largest error of a gradient of a pass."""
    drawn = outputs["drawn"]
    references = reference_gradients(size, alone, drawn) if drawn else _dense_gradients(size, alone)
    return max(relative_error(value, reference) for value, reference in zip(outputs["gradients"], references, strict=True))


def reference_gradients(size: Size, alone: bool, drawn: Mapping[str, Any]) -> list[np.ndarray]:
    """Gradients of a pass through the model (`alone`: through its LSTM only) in float64."""
    weights = [np.float64(w) for w in weights_of(size)]
    states = lstm_reference.empty_states(LAYERS, size.batch, size.hidden)
    if not alone:
        words, targets, _ = next(batches(size))
        return lstm_reference.gradients(weights, words, targets, states, drawn)
    x, dy = map(np.float64, signals(size))
    _, back = lstm_reference.cells(x, weights[1:-2], states, drawn)
    dx, of_weights = back(dy)
    return [dx, *of_weights]


@functools.lru_cache(maxsize=1)
def _dense_gradients(size: Size, alone: bool) -> list[np.ndarray]:
    return reference_gradients(size, alone, {})


# --- work -------------------------------------------------------------------------------------------------------------
@functools.cache
def mean_flops(size: Size, dropout: str = "none", rate: float = 0.0, gates: bool = False, alone: bool = False) -> Any:
    """FLOPs of the products of a step, (forward, backward), the mean over random plans."""
    from numbanet.layers import ActivationSpec, Context

    model, chosen, rng = _model(size), policy(dropout, rate, sparse_gates([]) if gates else None), np.random.default_rng(6)
    of, spec = model, ActivationSpec((size.steps, size.batch))
    if alone:
        of, spec = model.layers[1], ActivationSpec((*spec.shape, size.hidden), None, True)
    costs = []
    for _ in range(DRAWN if rate else 1):
        drawn = chosen.plans(model, rng)
        plans = {site: drawn[site.path] for site in chosen.sites(model) if site.path in drawn}
        cost, _ = of.cost(spec, Context(plans=plans, model=model).plans)
        costs.append((cost.forward, cost.backward))
    return np.mean(costs, axis=0)


_model = functools.lru_cache(maxsize=1)(network)


# --- cases ------------------------------------------------------------------------------------------------------------
def cases(options: Options) -> Iterator[Case]:
    """Training steps without dropout and at each rate, also of a small model; then passes; then kernels."""
    size = QUICK if options.quick else FULL
    yield from _steps(options, size)
    if not options.quick:
        yield from _steps(options, SMALL)
    for alone, back in itertools.product((False, True), repeat=2):
        yield from _passes(options, size, alone, back)
    sizes = {"n": 4, "h": 16, "t": 3} if options.quick else {"n": size.batch, "h": size.hidden, "t": 5}
    yield from kernels.cases(SUITE, [(name, sizes) for name in KERNELS], options)


def _name(size: Size, what: str) -> str:
    return f"{LAYERS}x{size.hidden}, {size.words} words, {what}"


def _torches(
    options: Options, build: Callable[..., Task], parameters: dict[str, Any], flops: float, name: str = "torch"
) -> list[Implementation]:
    """Implementations in PyTorch if it is the peer; on CUDA with TF32 off and on."""
    if options.against != "torch":
        return []
    torches = [Implementation(name, build, parameters, flops=flops)]
    if options.device == "cuda" and build is torch_task:
        torches.append(Implementation(f"{name}, TF32", build, {**parameters, "tf32": True}, name, tolerance=TF32_TOLERANCE))
    return torches


def _steps(options: Options, size: Size) -> Iterator[Case]:
    common, dense = {"device": options.device, "size": size}, mean_flops(size).sum()
    torch, error = options.against == "torch", functools.partial(update_error, size)
    none = Implementation("none", numbanet_task, common, "torch" if torch else None, 1.0 if torch else None, dense)
    flops = mean_flops(size, gates=True).sum()
    half = Implementation(
        f"gate columns {GATES:.0%}",
        numbanet_task,
        {**common, "gates": True},
        "torch" if torch else "none",
        dense / flops,
        flops,
    )
    yield Case(
        SUITE, _name(size, "step"), (none, half, *_torches(options, torch_task, common, dense)), error, TOLERANCE, pairs=PAIRS
    )
    for rate in RATES[1:2] if options.quick else RATES:
        name, ours = "torch with dropout", []
        for dropout in DROPOUTS:
            flops = mean_flops(size, dropout, rate).sum()
            ours.append(
                Implementation(
                    dropout,
                    numbanet_task,
                    {**common, "dropout": dropout, "rate": rate},
                    name if torch else "none",
                    dense / flops,
                    flops,
                )
            )
        theirs = _torches(options, torch_task, {**common, "rate": rate}, dense, name) or [none]
        yield Case(
            SUITE, _name(size, f"step p={rate}"), (*ours, *theirs), error, TOLERANCE, 1 if options.quick else LEAST, PAIRS
        )


def _passes(options: Options, size: Size, alone: bool, back: bool) -> Iterator[Case]:
    """A pass against PyTorch's pass; the backward pass with sparse gate gradients also against numbanet's dense one."""
    common = {"device": options.device, "size": size, "alone": alone, "back": back}
    dense, sparse = (mean_flops(size, gates=gates, alone=alone)[int(back)] for gates in (False, True))
    theirs = _torches(options, torch_pass, common, dense)
    name = _name(size, f"{'the LSTM alone, ' * alone}{'backward' if back else 'forward'}")
    error = functools.partial(gradient_error, size, alone)
    none = Implementation("none", numbanet_pass, common, "torch" if theirs else None, 1.0 if theirs else None, dense)
    half = Implementation(
        f"gate columns {GATES:.0%}", numbanet_pass, {**common, "gates": True}, "torch", dense / sparse, sparse
    )
    if theirs or not back:
        yield Case(SUITE, name, (none, *([half] if back else []), *theirs), error, OF_GRADIENT, pairs=PAIRS)
    if back and (alone or not theirs):
        dense_pass = Implementation("none", numbanet_pass, common, flops=dense)
        sparse_pass = Implementation(half.name, numbanet_pass, half.parameters, "none", half.ceiling, sparse)
        yield Case(SUITE, f"{name}, against numbanet's", (sparse_pass, dense_pass), error, OF_GRADIENT, pairs=PAIRS)


# --- kernels: they overwrite the gates, so each repetition works on a copy -------------------------------------------
Arrays = tuple[np.ndarray, ...]


def _inputs(rng: np.random.Generator, n: int, h: int, t: int) -> Arrays:
    shapes = (t, n, 4 * h), (4 * h, h), (n, h), (n, h)
    z, w, h0, c0 = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return z, w / np.float32(np.sqrt(h)), h0, c0


def _grad_inputs(rng: np.random.Generator, n: int, h: int, t: int) -> Arrays:
    shapes = (t, n, h), (t, n, 4 * h), (t + 1, n, h), (4 * h, h)
    dy, gates, c, w = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return dy, np.tanh(gates), c, w / np.float32(np.sqrt(h))


def _half(thinned: str, h: int) -> np.ndarray | None:
    """Every second unit, for all steps, or every second gate column."""
    if not thinned:
        return None
    return np.arange(0, h, 2, dtype=np.int32)[None] if thinned == "units" else np.arange(0, 4 * h, 2, dtype=np.int32)


def _run(dev: Any, z: Any, w: Any, h0: Any, c0: Any, n: int, h: int, t: int, thinned: str) -> Callable[[], Any]:
    units = None if not thinned else dev.upload(_half(thinned, h))
    return lambda: dev.lstm(dev.copy(z), w, h0, c0, units)


def _grad_run(dev: Any, dy: Any, gates: Any, c: Any, w: Any, n: int, h: int, t: int, thinned: str) -> Callable[[], Any]:
    options = {thinned: dev.upload(_half(thinned, h))} if thinned else {}
    return lambda: dev.lstm_grad(dy, dev.copy(gates), c, w, **options)


def _reference(*arrays: np.ndarray, n: int, h: int, t: int, thinned: str) -> Arrays:
    return lstm_family.lstm_reference(*arrays, units=_half(thinned, h))[1:]


def _grad_reference(*arrays: np.ndarray, n: int, h: int, t: int, thinned: str) -> Arrays:
    return lstm_family.lstm_grad_reference(*arrays, **({thinned: _half(thinned, h)} if thinned else {}))


def _kernel(op: str, thinned: str) -> Kernel:
    inputs, run, reference = {"lstm": (_inputs, _run, _reference), "lstm_grad": (_grad_inputs, _grad_run, _grad_reference)}[op]
    return Kernel(
        inputs,
        functools.partial(run, thinned=thinned),
        None,
        functools.partial(reference, thinned=thinned),
        flops=lambda n, h, t: 2.0 * t * n * 4 * h * h / (1 + bool(thinned)),
        op=op,
    )


KERNELS = {
    f"{op}{', half of the ' * bool(thinned)}{thinned}": _kernel(op, thinned)
    for op, thinned in (("lstm", ""), ("lstm", "units"), ("lstm_grad", ""), ("lstm_grad", "columns"))
}
