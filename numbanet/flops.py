"""`StepFlops` counts the FLOPs of training steps from the kinds of their plans, and keeps the results."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from .layers import ActivationSpec, Sequential
from .plans import Plan, Plans, PositionPlan


class StepFlops:
    """The FLOPs of steps of a model, by the kinds and densities of their plans."""

    MOST = 4096  # kinds of steps whose FLOPs are kept

    def __init__(self, model: Sequential) -> None:
        self.model = model
        self._counted: dict[tuple, tuple[float, list[tuple[str, float]]]] = {}  # maps a kind to the result of `_count`

    def forget(self) -> None:
        """Forget all results, because layers have changed."""
        self._counted.clear()

    def of(self, shape: tuple[int, ...], plans: Plans) -> float:
        """Return the FLOPs of a step with inputs of shape `shape`.

        Positions of convolutions have another density in each step. FLOPs are linear in each of these densities, so these are
        no part of the kind.
        """
        listed: dict[str, PositionPlan] = {}
        key: list[Any] = [shape]
        for path, plan in plans.assigned.items():
            if isinstance(plan, PositionPlan):
                listed[path] = plan
            key += path, type(plan), plan.kind, path in listed or plan.density
        found = self._counted.get(tuple(key))
        if found is None:
            if len(self._counted) == self.MOST:
                self._counted.clear()
            found = self._counted[tuple(key)] = self._count(shape, plans, listed)
        whole, by_path = found
        return whole - sum([part * (1 - listed[path].density) for path, part in by_path]) if by_path else whole

    def _count(
        self, shape: tuple[int, ...], plans: Plans, listed: dict[str, PositionPlan]
    ) -> tuple[float, list[tuple[str, float]]]:
        """Return the FLOPs of a step with all positions, and, for each path in `listed`, those that need its positions."""
        rest = {path: plan for path, plan in plans.assigned.items() if path not in listed}

        def flops(some: dict[str, Plan]) -> float:
            other = copy.copy(plans)
            other.assigned = {**rest, **some}
            return self.model.cost(ActivationSpec(shape), other)[0].flops

        whole, nothing = flops({}), np.zeros(0, np.int32)
        return whole, [(path, whole - flops({path: PositionPlan(plan.n, nothing)})) for path, plan in listed.items()]
