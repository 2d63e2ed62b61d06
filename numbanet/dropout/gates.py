"""Sparse gate gradients: the backward pass of an LSTM computes only part of the gradients of its gates.

    threshold   elements of the gate gradients with a magnitude up to a threshold become 0. This shows the loss of accuracy, but
                saves no time.
    columns     an LSTM with H units has 4H gate columns. Those with the largest L1 norms over the mini-batch are kept, the same
                ones for the whole sequence (an `IndexPlan`), and dx, dh, dW_ih and dW_hh are products of the kept columns.

The norms are those of gradients without the part that flows back through time (`lstm_scores`), because the columns must be
known before the backward pass through time starts. If some steps of the training are dense, the accuracy is restored.

Source: the abstract on structured sparse gate gradients in LSTMs: sparse gate gradients have little effect on training,
structured ones make the backward pass faster, and mixed training reaches the accuracy of dense training.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arguments import check_count
from ..parallel.scores import joint_mean, joint_scores
from ..plans import GateChoice, GatePlan
from ..plans.on_device import chosen_axis
from .base import Dropout
from .schedule import is_rate

MODES = ("columns", "threshold")
SAMPLES = 1 << 16  # elements from which a quantile is estimated


def _of_the_first(count: float, epoch: int) -> float:
    """Return the share of the steps of an epoch that belong to the first `count` epochs; `count` is a real number."""
    return float(np.clip(count - epoch, 0, 1))


class GateSparsity(Dropout):
    """A policy that determines which steps have sparse gate gradients, and how sparse they are.

    Parameters
    ----------
    sparsity : float, default=0.5
        Share of the columns, or of the elements, that is not computed, in [0, 1).
    mode : {"columns", "threshold"}, default="columns"
        "columns" does not compute whole columns, which saves time; "threshold" sets small elements to 0, which does not.
    schedule : float or callable, default=0.8
        Share of the steps of a fit that are sparse, in [0, 1]: the first ones, so that the last steps are dense. Or a function
        that maps the epoch, counted from 0, to the share of its steps that are sparse; these steps are drawn at random.
    probe : int, default=100
        Every probe-th sparse step is compared with the dense gradient, which costs a second backward pass through time; in mode
        "threshold" the threshold is recomputed then.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    name, kind, rate, agrees = "gates", "gates", 0.0, True  # no units are dropped

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
        self._epoch, self._sparse = 0, False  # whether the current step is sparse
        self._drawn = self._before = 0  # number of sparse steps, and the number without the last step
        self._thresholds: dict[Any, float] = {}
        self._seen: list[tuple[float, float]] = []

    def over(self, epochs: int) -> GateSparsity:
        """Return the policy for a fit of `epochs` epochs, in which `schedule` is a function of the epoch: a share of the steps
        of the fit becomes the share of each epoch's steps.
        """
        share = self.schedule
        return self if callable(share) else self.changed(schedule=functools.partial(_of_the_first, share * epochs))

    def share(self, epoch: int) -> float:
        """Return the share of sparse steps in `epoch`, which is counted from 0; raise ValueError if `schedule` is a function
        and returns no share.
        """
        share = self.schedule(epoch) if callable(self.schedule) else self.schedule
        if isinstance(share, bool) or not isinstance(share, (int, float, np.floating)) or not 0 <= share <= 1:
            raise ValueError(f"gate_schedule must give a share of the steps, from 0 to 1, for epoch {epoch}, not {share!r}")
        return float(share)

    def at(self, epoch):
        """Return a copy of the policy for `epoch`."""
        return self.changed(_epoch=epoch, _drawn=0, _thresholds={})

    def at_mean_rate(self, epochs):
        return self

    def rates(self, model):
        """Return an empty list, because no units are dropped."""
        return []

    def check(self, layers):
        """Accept every model."""

    def cautions(self, model):
        return []

    def plan(self, site, rng):
        if site.number == 0:  # the first site decides for the whole step
            share = self.share(self._epoch) if self.sparsity else 0.0
            self._sparse = share == 1 or (share > 0 and rng.random() < share)
            self._before, self._drawn = self._drawn, self._drawn + self._sparse
        return SparseGates(self, site.path, self._drawn % self.probe == 1 or self.probe == 1) if self._sparse else None

    def progress(self, model):
        return {"drawn": self._before, "thresholds": dict(self._thresholds), "seen": list(self._seen)}

    def go_on(self, model, progress):
        self._drawn = self._before = progress["drawn"]  # the last step is drawn again
        self._thresholds.update(progress["thresholds"])
        self._seen[:] = progress["seen"]

    @property
    def computed(self) -> float:
        """The FLOPs of a sparse backward pass divided by those of a dense one."""
        return 1 - self.sparsity if self.mode == "columns" else 1.0

    def choice(self, layer: Any, probed: bool) -> GateChoice:
        """Return the object that chooses the kept part of the gate gradients of one LSTM layer in one step; if `probed`, it
        compares the result with the dense gradient.
        """
        return _Choice(self, layer, probed or (self.mode == "threshold" and layer not in self._thresholds))

    def report(self):
        """Return a dict with two entries, means over the layers and steps that were probed since the last call: "gates_kept" is
        the share of the gate gradients that was kept, "gates_cosine" the cosine between the sparse and the dense gradient. The
        dict is empty if no step was probed.
        """
        if not self._seen:
            return {}
        share, cosine = np.mean(self._seen, axis=0)
        self._seen.clear()
        return {"gates_kept": float(share), "gates_cosine": float(cosine)}

    def __repr__(self) -> str:
        return f"GateSparsity({self.sparsity}, {self.mode!r}, schedule={self.schedule!r}, probe={self.probe})"


@dataclasses.dataclass(frozen=True, eq=False)
class SparseGates(GatePlan):
    """The plan with which an LSTM layer makes a sparse backward pass; its policy decides what is kept."""

    policy: GateSparsity
    path: str
    probed: bool

    cacheable = False

    @property
    def kind(self):
        """None if numbers on the host decide, as thresholds do: such steps are not recorded."""
        return None if self.probed or self.policy.mode == "threshold" else (SparseGates, self.policy.sparsity)

    @property
    def density(self) -> float:
        return self.policy.computed

    def of(self, cells):
        return self.policy.choice((self.path, cells), self.probed)


class _Choice(GateChoice):
    """Chooses what one backward pass of one LSTM layer keeps; if `probed`, it compares the result with the dense gradient."""

    def __init__(self, policy: GateSparsity, layer: Any, probed: bool) -> None:
        self.policy, self.layer, self.probed, self.dense = policy, layer, probed, None

    def choose(self, dev, dy, gates, c, lengths, dense):
        policy = self.policy
        if self.probed:
            self.dense = np.array(dev.download(dense())).reshape(-1, gates.shape[2])
        if policy.mode == "columns":
            width = gates.shape[2]
            count = round((1 - policy.sparsity) * width)
            scores = dev.reshape(joint_scores(dev, dev.lstm_scores(dy, gates, c, lengths)), (1, width))
            return chosen_axis(dev.top_k(scores, count), width, count, dev)
        if self.probed:
            some = np.abs(self.dense.reshape(-1)[:: max(self.dense.size // SAMPLES, 1)])
            policy._thresholds[self.layer] = joint_mean(float(np.quantile(some, policy.sparsity)))
        return policy._thresholds[self.layer]

    def done(self, dev, dz, columns):
        if not self.probed:
            return
        sparse = np.asarray(dev.download(dz), np.float64).reshape(len(self.dense), -1)
        there = self.dense if columns is None else self.dense[:, dev.download(columns.indices)]
        lengths = np.linalg.norm(sparse) * np.linalg.norm(self.dense)
        share = float(np.mean(sparse != 0)) * sparse.shape[1] / max(self.dense.shape[1], 1)
        self.policy._seen.append((share, float((sparse * there).sum() / lengths) if lengths else 1.0))
