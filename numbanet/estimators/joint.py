"""Training of an estimator in several processes (`numbanet.parallel`): its hook, and values of all samples together."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from ..parallel import Exchange, card_sums, current, joined
from ..parallel.checks import digest, equalise, refuse, same, samples, told
from ..parallel.ranks import Ranks
from ..training.data import Data
from ..training.hooks import Hook
from ..user_warnings import warn

PLAIN = ("dropout", "dropout_rate", "epochs", "every", "keep")  # arguments that are equal on all ranks
SAMPLES = ("X", "y", "sample_weight", "tokens")  # arguments of which `shard` chooses rows


def version() -> str:
    """Return the version of numbanet."""
    from .. import __version__

    return __version__


def _bound(estimator: Any, call: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> inspect.BoundArguments:
    """Return the arguments of call(estimator, …); raise a TypeError that names one that it does not have, and says what is."""
    signature = inspect.signature(call)
    for name in named.keys() - signature.parameters.keys():
        similar = difflib.get_close_matches(name, signature.parameters, 1)
        way = f"did you mean {similar[0]!r}?" if similar else f"it has {', '.join([*signature.parameters][1:])}"
        if name in estimator.get_params(deep=False):
            way = f"it is a parameter of the estimator: {type(estimator).__name__}(..., {name}=...)"
        raise TypeError(f"{call.__name__} has no argument {name!r}; {way}")
    return signature.bind(estimator, *args, **named)


@contextlib.contextmanager
def together(estimator: Any, call: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]) -> Any:
    """A context for a training call of an estimator on all ranks. It yields the arguments call(estimator, …) of this rank."""

    def agree(ranks: Ranks) -> None:
        bound = list(_bound(estimator, call, args, named).arguments.items())[1:]
        given = {name: value for name, value in bound if value is not None}
        facts: dict[str, Any] = {"numbanet": version(), "numpy": np.__version__, **told(estimator.get_params(deep=False))}
        facts |= {"call": call.__name__, "arguments": sorted(given), "shard": bool(estimator.shard)}
        same(ranks, {**facts, **told({name: given[name] for name in PLAIN if name in given})})
        if estimator.__dict__.get("objective") is not None:
            raise ValueError("parallel: objective measures devices on each rank; leave objective=None, and choose device")
        if getattr(estimator.__dict__.get("sparsity"), "cost_weight", 0):
            raise ValueError("parallel: cost_weight of a GroupLasso measures times, which differ between ranks; choose 0")
        if estimator.shard and estimator.__dict__.get("scoring") is not None:
            raise ValueError("parallel: scoring sees the samples of one rank only; leave scoring=None, or shard=False")

    with joined(estimator.parallel, estimator.shard, agree) as team:
        given = _bound(estimator, call, args, named)
        if team is not None and callable(estimator.shard):
            rows = estimator.shard(team.rank, team.size)
            for name in SAMPLES:
                if given.arguments.get(name) is not None:
                    given.arguments[name] = _safe_indexing(given.arguments[name], rows)
        yield given.args[1:], given.kwargs


class Joint(Hook):
    """Sums the gradients over the ranks, and records what travelled."""

    watches = False

    def __init__(self, data: Data) -> None:
        self.data = data

    def fit_start(self, run):
        stepper = run.stepper
        hooks = [type(hook).__name__ for hook in run.estimator.callbacks or () if isinstance(hook, Hook)]
        facts = {"device": run.dev.name, "hooks": hooks, "sample weights": self.data.weights is not None}
        if len(set(stepper.ranks.gather(digest(run.model)))) > 1:
            warn("parallel: ranks go on with other weights than rank 0; they take those of rank 0")
            equalise(run.model)
        same(stepper.ranks, {**facts, **samples(stepper.ranks, self.data.X, self.data.y)})
        size, stateful = stepper.batch_size, stepper.task.stateful
        refuse(stepper.ranks, run.model, stepper.policy, size, len(self.data), stateful, on_host=run.dev.asides())
        self.exchange = Exchange(stepper.ranks, run.dev, card_sums(stepper.ranks, run.dev))
        run.optimizer.reduce_by(self.exchange)

    def epoch_start(self, run, epoch):
        self.exchange.begin()

    def epoch_end(self, run, record):
        done = self.exchange
        return {
            "exchanged_bytes": done.sent,
            "exchanged_share": done.sent / max(done.dense, 1),
            "exchange_seconds": done.seconds,
        }

    def fit_end(self, run):
        run.optimizer.reduce_by(None)
        run.stepper.ranks.release()

    def checkpoint(self, run):
        return self.exchange.counted()

    def resume(self, run, state):
        self.exchange.begin(*state)


# --- values of the samples of all ranks, if each was given its own ----------------------------------------------------
def sharded() -> bool:
    """Return True if each rank was given samples of its own."""
    return current.get() is not None and current.get().sharded


def count(n: int) -> int:
    """Return the number of samples of all ranks, of which this one was given n."""
    return current.get().count(n) if sharded() else n


def union(labels: np.ndarray) -> np.ndarray:
    """Return the sorted labels of all ranks."""
    return np.unique(np.concatenate(current.get().gather(labels))) if sharded() else labels


def total(numbers: np.ndarray) -> np.ndarray:
    """Return an array, summed over the ranks."""
    return current.get().sum(np.array(numbers, np.float64)) if sharded() else numbers


def mean(y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the weighted mean of the rows of y."""
    if not sharded():
        return np.average(y, axis=0, weights=weights)
    weights = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    sums = total(np.append((weights[:, None] * y).sum(axis=0), weights.sum()))
    return sums[:-1] / sums[-1]


def text_of_all(text: Any) -> Any:
    """Return a text with the tokens of the texts of all ranks, from which the vocabulary is made; its order is arbitrary."""
    if not sharded():
        return text
    if isinstance(text, np.ndarray):
        return np.concatenate(current.get().gather(np.unique(text)))
    counters = current.get().gather(Counter(text))
    return list(sum(counters, Counter()).elements())
