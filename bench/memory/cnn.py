"""Peak memory of training steps of lenet5, alexnet and vgg19, without data, weights and momentum, against PyTorch.

It is measured as in `mlp-memory` (Linux, CPU). `counted` are the bytes of one copy of the batch, the activations and their
gradients, and the gradients of the weights. They contain no im2col matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..machinery.harness import Options
from ..machinery.results import Results
from ..machinery.worker import Task
from ..steps import cnn
from . import measured, plot, rows_of  # noqa: F401  plot is a part of the suite

SUITE = "cnn-memory"
RECORDED = ("--against torch --json bench/results/cnn-memory.json --plot cnn-memory.png",)
STEPS, SMALL = 6, ("lenet5", *cnn.QUICK["lenet5"])


def numbanet_peak(name: str, shape: cnn.Shape, batch: int, dropout: str, rate: float, steps: int) -> Task:
    """Steps in numbanet."""
    return _measured(lambda *sizes: cnn.numbanet_task("cpu", *sizes, dropout, rate), (name, shape, batch), steps)


def torch_peak(name: str, shape: cnn.Shape, batch: int, steps: int) -> Task:
    """Steps in PyTorch."""
    return _measured(lambda *sizes: cnn.torch_task("cpu", *sizes), (name, shape, batch), steps)


def _measured(make: Callable[..., Task], sizes: tuple, steps: int) -> Task:
    momentum = sum(4 * p.size for p in cnn.network(*sizes[:2]).parameters())
    return measured(make(*SMALL), lambda: make(*sizes), steps, momentum)


def counted(name: str, shape: cnn.Shape, batch: int) -> float:
    """Bytes of the batch, of activations, and of the gradients of activations and weights. ReLU and Flatten add none."""
    from numbanet.layers import ActivationSpec, Flatten, ReLU
    from numbanet.plans import Plans

    model, spec = cnn.network(name, shape), ActivationSpec((batch, *shape))
    values = sum(p.size for p in model.parameters()) + batch * math.prod(shape)
    for layer in model.layers:
        spec = layer.cost(spec, Plans())[1]
        values += 0 if isinstance(layer, (ReLU, Flatten)) else 2 * math.prod(spec.shape)
    return 4.0 * values


def _implementations(options: Options, name: str, shape: cnn.Shape, batch: int) -> Iterator[tuple]:
    """(name, build, parameters, peer, counted bytes)"""
    least, common = (
        counted(name, shape, batch),
        {"name": name, "shape": shape, "batch": batch, "steps": 2 if options.quick else STEPS},
    )
    torch = options.against == "torch"
    if torch:
        yield "torch", torch_peak, common, None, least
    for dropout, rate in {"none": 0.0, **cnn.kinds(name)}.items():
        yield (
            f"{dropout} p={rate}" if rate else dropout,
            numbanet_peak,
            {**common, "dropout": dropout, "rate": rate},
            "torch" if torch else None,
            least,
        )


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure all networks; return the rows."""
    options.only_on_cpu(f"{SUITE} reads the memory of a process")
    for name in SMALL[:1] if options.quick else cnn.NETWORKS:
        shape, batch = (cnn.QUICK if options.quick else cnn.NETWORKS)[name]
        case = f"{name} on {'x'.join(map(str, shape))}, batch {batch}"
        if not options.wants(case):
            continue
        say(f"{SUITE}: {case}")
        results.add(rows_of(SUITE, case, _implementations(options, name, shape, batch)))
    return results.rows
