"""ListBuffers: fixed device buffers for the lists of plans, from which recorded steps read them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from ..device import Device
from .assigned import Plans
from .base import Plan
from .on_device import DevicePlan, upload_plan, write_lists


class ListBuffers:
    """Fixed buffers for the lists of plans: all plans of one kind share a buffer at each site.

    Parameters
    ----------
    dev : Device
        The device of the buffers.
    steps : int
        The largest number of calls of `copies` before their copies are made.
    """

    MOST = 1 << 14  # largest number of cached plans
    PAGE = 1 << 20  # bytes of the lists of `steps` steps: larger ones are arrays of their own

    def __init__(self, dev: Device, steps: int) -> None:
        self.dev, self.steps = dev, steps
        self._buffers: dict[tuple[str, Hashable], Any] = {}  # maps (site, kind of the plan) to a buffer
        self._placed: dict[tuple[str, Plan], DevicePlan] = {}
        self._copies: dict[tuple[str, Plan], tuple[Any, Any]] = {}
        self._pages: dict[tuple[str, Hashable], list[tuple[np.ndarray, tuple[Any, Any]]]] = {}

    def put(self, plans: Plans) -> None:
        """Copy the lists of the plans to their buffers."""
        for site, plan in plans.assigned.items():
            self.put_one(site, plan.kind, plans.on_device(site).buffer)

    def put_one(self, site: str, kind: Hashable, lists: Any) -> None:
        """Copy the lists of a plan of this kind to the buffer of a site."""
        self._buffers[site, kind] = self.dev.copy(lists, out=self._buffers.get((site, kind)))

    def place(self, plans: Plans) -> dict[str, DevicePlan]:
        """Let the passes read the lists from the buffers; return a dict of the plans with their original lists, by site."""
        own = {site: plans.on_device(site) for site in plans.assigned}
        for site, plan in plans.assigned.items():
            here = self._placed.get((site, plan))
            if here is None:
                here = own[site].copied_to(self._buffers[site, plan.kind])
                if plan.cacheable and len(self._placed) < self.MOST:
                    self._placed[site, plan] = here
            plans.here[site] = here
        return own

    def of(self, site: str, plan: Plan) -> Any:
        """Return the buffer for plans of this kind at a site. If the buffer is new, it holds the lists of `plan`."""
        if (site, plan.kind) not in self._buffers:
            self.put_one(site, plan.kind, upload_plan(plan, self.dev).buffer)
        return self._buffers[site, plan.kind]

    def copies(self, plans: Plans, step: int) -> list[tuple[Any, Any]]:
        """Return, for each plan, its own lists and their buffer: arguments of `Device.replay`, which copies them. Do not call
        it after `place` for the same `Plans`: their lists are then those in the buffers.

        `step` is the number of calls since earlier copies were made: plans that rarely repeat have their lists in memory of the
        host that later steps use again.
        """
        return [self._copy(plans, step, *given) for given in plans.assigned.items()]

    def sources(self, plans: Plans, step: int) -> list[Any]:
        """Return, for each plan, the `place` of its own lists; the arguments are those of `copies`."""
        return [source for source, _ in self.copies(plans, step)]

    def _copy(self, plans: Plans, step: int, site: str, plan: Plan) -> tuple[Any, Any]:
        if not plan.cacheable:
            return self._rare(plans, step, site, plan)
        pair = self._copies.get((site, plan))
        if pair is None:
            pair = self.dev.place(plans.on_device(site).buffer), self.dev.place(self._buffers[site, plan.kind])
            if len(self._copies) < self.MOST:
                self._copies[site, plan] = pair
        return pair

    def _rare(self, plans: Plans, step: int, site: str, plan: Plan) -> tuple[Any, Any]:
        """Return the lists of a plan that rarely repeats, and their buffer."""
        key = site, plan.kind
        rows = self._pages.get(key)
        if rows is None:
            rows = self._pages[key] = self._rows(self._buffers[key])
        if site in plans.here or not rows:
            return self.dev.place(plans.on_device(site).buffer), self.dev.place(self._buffers[key])
        row, pair = rows[step]
        write_lists(plan.lists(), row)
        return pair

    def _rows(self, buffer: Any) -> list[tuple[np.ndarray, tuple[Any, Any]]]:
        """Return, for each step, memory of the host for lists, and the copy from there to the buffer; [] for large lists."""
        if not 0 < buffer.nbytes * self.steps <= self.PAGE:
            return []
        page, target = np.zeros((self.steps, buffer.size), np.int32), self.dev.place(buffer)
        return [(row, (place, target)) for row, place in zip(*self.dev.places(page), strict=True)]
