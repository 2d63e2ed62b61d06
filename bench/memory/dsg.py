"""Memory of training steps of 784-2048-2048-10 under dsg: the peak, as in `mlp-memory`, and the stored activations.

`counted` are the bytes that the forward pass stores for the backward pass: all arrays in the autograd graph of a step, each
once, without parameters and projections. The paper reports 1.7, 3.2 and 4.2 times fewer bytes at rates of .5, .8 and .9.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np

from numbanet.dropout import Dropout, DynamicSparseGraph, NoDropout

from ..machinery.harness import Options
from ..machinery.results import Results
from ..steps import mlp_model
from . import numbanet_peak, plot, rows_of  # noqa: F401  plot is a part of the suite

SUITE = "dsg-memory"
RECORDED = ("--json bench/results/dsg-memory.json",)
HIDDEN, BATCH, RATES, STEPS, SHARES = 2048, 1024, (0.5, 0.8, 0.9), 20, ("batch", "tile", "sample")


def stored(policy: Dropout, hidden: int, batch: int) -> int:
    """Bytes of the activations and masks that a forward pass stores for the backward pass, without the batch."""
    from numbanet import Tensor
    from numbanet.layers import Context, Tree
    from numbanet.plans import Plans

    model, x = mlp_model.network(hidden), Tensor(mlp_model.samples()[0][:batch])
    y = model(x, Context("cpu", Plans("cpu", Tree(model).sites, choose=policy.choosing(model, None)), training=True))
    known = [x.data, *(parameter.data for parameter in model.parameters())]
    return sum(array.nbytes for array in _arrays(y) if not any(np.shares_memory(array, other) for other in known))


def _arrays(root: Any) -> list[np.ndarray]:
    """The arrays in an autograd graph: of its tensors, in the closures of its vjps, and of plans on a device."""
    arrays: dict[int, np.ndarray] = {}
    seen, due = set(), [root]
    while due:
        thing = due.pop()
        if thing is None or id(thing) in seen or isinstance(thing, (str, bytes, int, float, type)):
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            arrays.setdefault(thing.__array_interface__["data"][0], thing)
        elif isinstance(thing, FunctionType):
            due += [cell.cell_contents for cell in thing.__closure__ or ()] + list(thing.__defaults__ or ())
        elif isinstance(thing, functools.partial):
            due += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, (tuple, list)):
            due += thing
        elif type(thing).__name__ == "Tensor":
            due += [thing.data, thing.node]
        elif type(thing).__name__ == "Node":
            due += [thing.inputs, thing.vjps]
        elif "DevicePlan" in {kind.__name__ for kind in type(thing).__mro__}:
            due.append(thing.__dict__.get("lists"))
    return list(arrays.values())


def policies() -> Iterator[tuple[str, Dropout]]:
    """(name, policy): no dropout, and each form of dsg at each rate."""
    yield "none", NoDropout()
    for share in SHARES:
        for rate in RATES:
            yield f"{share} rate {rate}", DynamicSparseGraph(rate, share=share)


def run(options: Options, results: Results, say: Any) -> list[dict[str, Any]]:
    """Measure all policies; return the rows."""
    options.only_on_cpu(f"{SUITE} reads the memory of a process")
    hidden, batch, steps = (128, 64, 3) if options.quick else (HIDDEN, BATCH, STEPS)
    case = f"784-{hidden}-{hidden}-10, batch {batch}"
    if not options.wants(case):
        return []
    common = {"hidden": hidden, "rate": 0.5, "batch": batch, "steps": steps}
    implementations = [
        (name, numbanet_peak, {**common, "dropout": policy}, None if name == "none" else "none", stored(policy, hidden, batch))
        for name, policy in policies()
    ]
    say(f"{SUITE}: {case}")
    rows = rows_of(SUITE, case, implementations)
    results.add(rows)
    return rows
