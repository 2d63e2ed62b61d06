"""Training step of the multilayer perceptron 784-H-H-10: batch 128 (at H = 2048 also 20 and 1024), SGD with momentum 0.9.

`none` is compared with PyTorch without dropout; bernoulli, rdp, tdp, batchwise and window with PyTorch and nn.Dropout(p). Both
sides have the same model, optimiser and batches, selected by index from the data set. scikit-learn's MLPClassifier, which has
no dropout, is timed as well. Without --against torch, numbanet's `none` is the peer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from ..machinery.harness import Case, Implementation, Options
from . import BATCH, TF32_TOLERANCE, TOLERANCE, mlp_model

SUITE = "mlp"
RECORDED = ("--against torch --json bench/results/cpu-mlp.json --plot mlp.png",)
WIDTHS, RATES, DROPOUTS = (1024, 2048, 4096), (0.3, 0.5, 0.7), ("bernoulli", "rdp", "tdp", "batchwise", "window")
OTHER_BATCHES, THEIR_WIDTH, THEIR_RATE = (20, 1024), 2048, 0.5
FEWER_STEPS, WIDE = 10, 4096  # n steps of a turn for networks of this width or more


def _numbanets(options: Options, hidden: int, batch: int, dropout: str, rate: float, peer: str | None) -> list[Implementation]:
    """numbanet's implementation; on CUDA both with replayed CUDA graphs and with single launches."""
    both = options.device == "cuda" and dropout in ("none", "rdp")
    return [
        mlp_model.numbanet_implementation(options, hidden, batch, dropout, rate, peer, replayed)
        for replayed in ((True, False) if both else (True,))
    ]


def _torches(options: Options, hidden: int, batch: int, rate: float | None) -> list[Implementation]:
    """PyTorch; on CUDA with TF32 off and on, and for the largest case compiled to CUDA graphs, which takes long."""
    name = "torch" if rate is None else "torch nn.Dropout"
    parameters = {"device": options.device, "hidden": hidden, "rate": rate, "batch": batch}
    torches = [Implementation(name, mlp_model.torch_task, parameters, flops=mlp_model.mean_flops(hidden, batch, "none", 0.0))]
    if options.device == "cuda":
        torches.append(
            Implementation(f"{name}, TF32", mlp_model.torch_task, {**parameters, "tf32": True}, name, tolerance=TF32_TOLERANCE)
        )
    if options.device == "cuda" and hidden == max(WIDTHS) and rate == max(RATES):
        torches.append(Implementation(f"{name}, compiled", mlp_model.torch_task, {**parameters, "compiled": True}, name))
    return torches


def cases(options: Options) -> Iterator[Case]:
    """Each width without dropout, and with each policy at each rate; one width and rate with other batch sizes."""
    if options.quick:
        yield from _cases(options, 256, BATCH, (0.5,))
        return
    for hidden in WIDTHS:
        yield from _cases(options, hidden, BATCH, RATES)
    for batch in OTHER_BATCHES:
        yield from _cases(options, THEIR_WIDTH, batch, (THEIR_RATE,))


def _cases(options: Options, hidden: int, batch: int, rates: Sequence[float]) -> Iterator[Case]:
    torch, heavy = options.against == "torch", hidden >= WIDE or batch > BATCH
    least = 2 if options.quick else FEWER_STEPS if heavy else mlp_model.LEAST_STEPS
    error = functools.partial(mlp_model.update_error, hidden, batch)
    size = f"784-{hidden}-{hidden}-10{'' if batch == BATCH else f', batch {batch}'}"
    dense = _numbanets(options, hidden, batch, "none", 0.0, "torch" if torch else None)
    theirs = _torches(options, hidden, batch, None) if torch else []
    if options.device == "cpu":
        theirs.append(
            Implementation(
                "scikit-learn",
                mlp_model.sklearn_task,
                {"hidden": hidden, "batch": batch},
                "torch" if torch else "none",
                flops=dense[0].flops,
            )
        )
    yield Case(SUITE, f"{size} without dropout", (*dense, *theirs), error, TOLERANCE, least)
    for rate in rates:
        peer = "torch nn.Dropout" if torch else "none"
        ours = [one for dropout in DROPOUTS for one in _numbanets(options, hidden, batch, dropout, rate, peer)]
        yield Case(
            SUITE,
            f"{size} p={rate}",
            (*ours, *(_torches(options, hidden, batch, rate) if torch else dense)),
            error,
            TOLERANCE,
            least,
        )
