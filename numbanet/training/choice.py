"""Choices: plans that a policy chooses during the passes of a recorded step.

While passes are recorded, plans that the policy chose in an earlier step replace its choice. Each replay chooses plans of the
same kinds at these points, and writes their lists to the fixed buffers: by recorded operations if the policy can do so
(`Dropout.choose_into`), else by a call of the interpreter (`Device.aside`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Iterator
from typing import Any

from ..autograd import no_grad
from ..device import Device
from ..layers import Layer
from ..plans import DevicePlan, Plan, Plans, Site
from ..plans.buffers import ListBuffers
from ..plans.on_device import upload_plan
from ..tensor import Tensor


class Choices:
    """The choices of the recorded steps of a model; `lists` has the buffers from which they read plans."""

    def __init__(self, dev: Device, lists: ListBuffers) -> None:
        self.dev, self.lists, self.plans = dev, lists, Plans(dev)

    def begin(self, plans: Plans) -> None:
        """Start a step with these plans."""
        self.plans = plans

    @contextlib.contextmanager
    def standing_in(self, plans: Plans, like: dict[str, Plan | None]) -> Iterator[dict[str, DevicePlan]]:
        """A context for recording passes, in which the plans `like` replace the choice of the policy; `with … as here` gives,
        by path, the plans whose lists replays choose on the device.
        """
        there = ((path, plan) for path, plan in like.items() if plan is not None)
        here = {path: upload_plan(plan, self.dev, self.lists.of(path, plan)) for path, plan in there}

        def stand_in(site: Site, flow: Any, layer: Layer, shape: tuple[int, ...] | None) -> DevicePlan | None:
            plan, given, flow = like[site.path], here.get(site.path), flow._replace(x=Tensor.wrap(flow.x.data, self.dev))
            if plans.choose_into is None:
                self.dev.aside(functools.partial(self._choose, site, flow, layer, shape, plan and plan.kind))
            elif given is not None:
                with no_grad():
                    plans.choose_into(site, flow, layer, given)
            return given

        with plans.standing_in(stand_in):
            yield {} if plans.choose_into is None else here

    def _choose(self, site: Site, flow: Any, layer: Layer, shape: tuple[int, ...] | None, kind: Hashable) -> None:
        """Choose a plan for the current step, of the recorded kind, and copy its lists to their buffer."""
        with no_grad():
            plan = self.plans.choice(site, flow, layer, shape)
        if (plan and plan.kind) != kind:
            raise RuntimeError(f"{plan} was chosen for {site.path} where plans of the kind {kind} were recorded")
        if plan is not None:
            self.lists.put_one(site.path, kind, upload_plan(plan, self.dev).buffer)
