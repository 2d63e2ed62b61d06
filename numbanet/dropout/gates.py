"""Sparse gate gradients: what the backward pass of an LSTM leaves out of the gradients of its gates.

    threshold   elements that are not larger than a threshold are 0: what is lost in accuracy, with no time won
    columns     of the 4H gate columns those of the largest L1 norm over the mini-batch are kept, an `IndexPlan` for the whole
                sequence: dx, dh, dW_ih and dW_hh are products on gathered columns

The norms are those of the gradients as they would be if nothing came back through time (`lstm_scores`): which columns there are
has to be known before the pass through time begins. Mixing sparse and dense steps closes the gap in accuracy.

Source: the abstract on structured sparse gate gradients in LSTMs: sparse gate gradients have little impact on training,
structured ones make the backward pass faster, and mixed training ends as dense training does.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arguments import check_count
from ..plans import GateChoice, GatePlan, IndexPlan
from .base import Dropout
from .schedule import is_rate

MODES = ("columns", "threshold")
SAMPLES = 1 << 16  # elements that tell a quantile


def _of_the_first(count: float, epoch: int) -> float:
    """The share of an epoch's steps that are among those of the first epochs, so many."""
    return float(np.clip(count - epoch, 0, 1))


class GateSparsity(Dropout):
    """Which steps have sparse gate gradients, and how sparse.

    Parameters
    ----------
    sparsity : float, default=0.5
        Share of the columns, or of the elements, that is left out, in [0, 1).
    mode : {"columns", "threshold"}, default="columns"
    schedule : float or callable, default=0.8
        Share of the steps of a fit that are sparse, in [0, 1]: the first ones, so that the end is dense. Or a function that
        gives for an epoch, counted from 0, the share of its steps that are, drawn at random.
    probe : int, default=100
        After so many sparse steps one is compared with the dense gradient, which costs a second backward pass through time; in
        mode "threshold" the threshold is found anew then.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    name, kind, rate = "gates", "gates", 0.0  # no unit is dropped

    def __init__(
        self, sparsity: float = 0.5, mode: str = "columns", schedule: float | Callable[[int], float] = 0.8, probe: int = 100
    ) -> None:
        if not is_rate(sparsity):
            raise ValueError(f"gate_sparsity must be a number in [0, 1), got {sparsity!r}")
        if mode not in MODES:
            raise ValueError(f"gate_mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
        if not (callable(schedule) or is_rate(schedule) or schedule in (1, 1.0)):
            raise ValueError(
                f"gate_schedule must be a share of the steps, from 0 to 1, or a function of the epoch, got {schedule!r}"
            )
        self.sparsity, self.mode, self.schedule, self.probe = sparsity, mode, schedule, check_count("probe", probe)
        self._epoch, self._sparse = 0, False  # whether the step that is drawn is sparse
        self._met: dict[Any, int] = collections.Counter()  # by layer of cells, how many sparse steps it had
        self._thresholds: dict[Any, float] = {}
        self._seen: list[tuple[float, float]] = []

    def over(self, epochs: int) -> GateSparsity:
        """For a fit of so many epochs: the schedule as a function of the epoch."""
        share = self.schedule
        return self if callable(share) else self.changed(schedule=functools.partial(_of_the_first, share * epochs))

    def share(self, epoch: int) -> float:
        """Which share of the steps of an epoch, counted from 0, is sparse; ValueError where a function gives none."""
        found = self.schedule(epoch) if callable(self.schedule) else self.schedule
        if isinstance(found, bool) or not isinstance(found, (int, float, np.floating)) or not 0 <= found <= 1:
            raise ValueError(f"gate_schedule must give a share of the steps, from 0 to 1, for epoch {epoch}; it gave {found!r}")
        return float(found)

    def at(self, epoch):
        """The policy of an epoch: what it does depends on no other one."""
        return self.changed(_epoch=epoch, _met=collections.Counter(), _thresholds={})

    def at_mean_rate(self, epochs):
        return self

    def rates(self, model):
        """None: no unit is dropped."""
        return []

    def check(self, layers):
        """Any model will do."""

    def cautions(self, model):
        return []

    def plan(self, site, rng):
        if site.number == 0:  # a step is sparse or dense as a whole
            share = self.share(self._epoch) if self.sparsity else 0.0
            self._sparse = share == 1 or (share > 0 and rng.random() < share)
        return SparseGates(self, site.path) if self._sparse else None

    @property
    def computed(self) -> float:
        """The share of the products of a sparse backward pass that is computed."""
        return 1 - self.sparsity if self.mode == "columns" else 1.0

    def choice(self, place: Any) -> GateChoice:
        """The choices for one layer of cells in one step."""
        self._met[place] += 1
        return _Choice(self, place, self._met[place] % self.probe == 1 or self.probe == 1)

    def report(self):
        """{"gates_kept", "gates_cosine"}: which share of the gate gradients was kept since the last call, and the cosine
        between the sparse and the dense gradient, in the mean over the layers and steps that were looked at; {} if none was."""
        if not self._seen:
            return {}
        kept, cosine = np.mean(self._seen, axis=0)
        self._seen.clear()
        return {"gates_kept": float(kept), "gates_cosine": float(cosine)}

    def __repr__(self) -> str:
        return f"GateSparsity({self.sparsity}, {self.mode!r}, schedule={self.schedule!r}, probe={self.probe})"


@dataclasses.dataclass(frozen=True, eq=False)
class SparseGates(GatePlan):
    """A sparse backward pass of an LSTM at a site, by a policy."""

    policy: GateSparsity
    path: str

    @property
    def density(self) -> float:
        return self.policy.computed

    def of(self, cells):
        return self.policy.choice((self.path, cells))


class _Choice(GateChoice):
    """What one backward pass through one layer of cells leaves out; `probed`: and compares with the dense gradient."""

    def __init__(self, policy: GateSparsity, place: Any, probed: bool) -> None:
        self.policy, self.place, self.probed, self.dense = policy, place, probed, None

    def choose(self, dev, dy, gates, c, lengths, dense):
        policy = self.policy
        if self.probed:
            self.dense = np.array(dev.download(dense())).reshape(-1, gates.shape[2])
        if policy.mode == "columns":
            scores = np.asarray(dev.download(dev.lstm_scores(dy, gates, c, lengths)))
            count = round((1 - policy.sparsity) * scores.size)
            return IndexPlan(scores.size, np.sort(np.argpartition(-scores, max(count - 1, 0))[:count]))
        if self.probed:
            some = np.abs(self.dense.reshape(-1)[:: max(self.dense.size // SAMPLES, 1)])
            policy._thresholds[self.place] = float(np.quantile(some, policy.sparsity))
        return policy._thresholds[self.place]

    def done(self, dev, dz, columns):
        if not self.probed:
            return
        found = np.asarray(dev.download(dz), np.float64).reshape(len(self.dense), -1)
        there = self.dense if columns is None else self.dense[:, columns.indices()]
        lengths = np.linalg.norm(found) * np.linalg.norm(self.dense)
        kept = float(np.mean(found != 0)) * found.shape[1] / max(self.dense.shape[1], 1)
        self.policy._seen.append((kept, float((found * there).sum() / lengths) if lengths else 1.0))
