"""ListBuffers: fixed device buffers for the lists of plans, from which recorded steps read them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ..device import Device
from .assigned import Plans
from .base import Plan
from .on_device import DevicePlan, upload_plan


class ListBuffers:
    """Fixed buffers for the lists of plans: all plans of one kind share a buffer at each site."""

    MOST = 1 << 14  # largest number of cached plans

    def __init__(self, dev: Device) -> None:
        self.dev = dev
        self._buffers: dict[tuple[str, Hashable], Any] = {}  # maps (site, kind of the plan) to a buffer
        self._placed: dict[tuple[str, Plan], DevicePlan] = {}
        self._copies: dict[tuple[str, Plan], tuple[Any, Any]] = {}

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

    def copies(self, plans: Plans) -> list[tuple[Any, Any]]:
        """Return, for each plan, its own lists and their buffer: arguments of `Device.replay`, which copies them. Do not call
        it after `place` for the same `Plans`: their lists are then those in the buffers.
        """
        return [self._copy(plans, *given) for given in plans.assigned.items()]

    def _copy(self, plans: Plans, site: str, plan: Plan) -> tuple[Any, Any]:
        pair = self._copies.get((site, plan))
        if pair is None:
            pair = plans.on_device(site).buffer, self._buffers[site, plan.kind]
            if plan.cacheable and len(self._copies) < self.MOST:
                pair = self._copies[site, plan] = self.dev.place(pair[0]), self.dev.place(pair[1])
        return pair
