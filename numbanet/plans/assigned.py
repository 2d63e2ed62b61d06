"""Sites, the places of a model that may be thinned out; Plans: what of them one pass computes, here and on its device.

A policy draws a plan for each site before a pass, or chooses it in the pass from what comes to a layer. Layers ask `Plans.at`,
which is the only look-up, check and choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..device import Device, device
from .base import Plan
from .on_device import DevicePlan, on_device, upload_plan


class Site(NamedTuple):
    """A place of a model that may be thinned out."""

    path: str  # the layer's in the tree, and which of its places: "2.output"; a layer by itself says "output"
    kind: str  # what is thinned out: "output", the layer's neurons, or the weight that gives them; "patches", the
    # input matrix of a convolution; "tiles", parts of the weight; "recurrent", what comes back
    # through time; "gates", what the backward pass computes of the gates' gradients
    shape: tuple[int, ...]  # of the weight there
    takes: tuple[type[Plan], ...] | None = None  # which plans the layer knows there; None: any
    chosen: bool = False  # whether the layer lets a policy choose in the pass (`Dropout.choose`)
    per_batch: bool = False  # whether plans are made for the samples of one batch, not for the weight
    number: int = 0  # which of the model's sites of its kind, from 0: policies with a rate for each go by it

    def check(self, plan: Plan, layer: Any, shape: tuple[int, ...] | None = None) -> None:
        """TypeError unless the layer knows such a plan there, ValueError unless it is made for the weight, or for a shape."""
        if self.takes is not None and not isinstance(plan, self.takes):
            known = [kind.__name__ for kind in self.takes]
            raise TypeError(
                f"{layer!r}: it does not know the plan {plan!r} at {self.path}; it takes "
                f"{' or '.join(filter(None, (', '.join(known[:-1]), known[-1]))) if known else 'none there'}"
            )
        if shape is None and self.per_batch:
            return
        expected = self.shape if shape is None else shape
        if plan.covers != expected[: len(plan.covers)]:
            raise ValueError(f"{layer!r}: {plan} is not made for {self.path}, of shape {expected}")


class Plans:
    """The plans of one pass, by site.

    Parameters
    ----------
    dev : str or Device, default="cpu"
        Where the pass runs.
    sites : mapping of (layer, str) to Site, optional
        By layer and the name of its place, the sites of the model.
    assigned : mapping of str to Plan, optional
        By the path of the site, what is kept there; all is kept elsewhere.
    choose : callable, optional
        (site, flow, layer) -> Plan or None: asked in the pass for each site of a layer that lets a policy choose, where none is
        assigned.
    """

    def __init__(
        self,
        dev: str | Device = "cpu",
        sites: Mapping[tuple[Any, str], Site] | None = None,
        assigned: Mapping[str, Plan] | None = None,
        choose: Callable[[Site, Any, Any], Plan | None] | None = None,
    ) -> None:
        self.device, self.sites, self.choose = device(dev), {} if sites is None else sites, choose
        self.stand_in: Callable[..., DevicePlan | None] | None = None  # gives what is chosen while passes are recorded
        self.decides: Any = None  # what decides on the kinds of the plans that are chosen
        self.chosen: dict[str, Plan | None] = {}  # in the pass
        self.assigned = {path: plan for path, plan in (assigned or {}).items() if not plan.trivial}
        self._on_device: dict[str, DevicePlan] = {}

    def of(self, layer: Any, name: str = "output") -> Plan | None:
        """What is kept at a layer's site, as far as it is known; None: everything."""
        if not self.assigned or (site := self.sites.get((layer, name))) is None:
            return None
        plan = self.assigned.get(site.path)
        if plan is not None and site.path not in self._on_device:
            site.check(plan, layer)
        return plan

    def at(self, layer: Any, name: str = "output", flow: Any = None, shape: tuple[int, ...] | None = None) -> DevicePlan | None:
        """The plan of a layer's site on the device; None: everything is kept.

        Parameters
        ----------
        layer : Layer
        name : str, default="output"
            Which of its places.
        flow : Flow, optional
            What comes to the layer: where nothing was drawn, a policy may choose by it.
        shape : tuple of int, optional
            What a plan must be made for, if it is not the shape of the site.

        Raises
        ------
        TypeError
            If the layer does not know such a plan there.
        ValueError
            If it is made for another shape.
        """
        if not self.assigned and self.choose is None:
            return None
        site = self.sites.get((layer, name))
        if site is None:
            return None
        here = self._on_device.get(site.path)
        if here is not None and shape is None:
            return here
        plan = self.assigned.get(site.path)
        if plan is None:
            if self.choose is None or not site.chosen or flow is None:
                return None
            if self.stand_in is not None:
                return self.stand_in(site, flow, layer, shape)
            if (plan := self.choice(site, flow, layer, shape)) is None:
                return None
            here = upload_plan(plan, self.device)  # such a plan hardly comes twice
        site.check(plan, layer, shape)
        self._on_device[site.path] = here = on_device(plan, self.device) if here is None else here
        return here

    def choice(self, site: Site, flow: Any, layer: Any, shape: tuple[int, ...] | None = None) -> Plan | None:
        """What a policy chooses for a site, which is assigned from here on; None: everything is kept."""
        assert self.choose is not None
        plan = self.choose(site, flow, layer)
        self.chosen[site.path] = plan = None if plan is None or plan.trivial else plan
        if plan is not None:
            site.check(plan, layer, shape)
            self.assigned[site.path] = plan
        return plan

    def place(self, path: str, here: DevicePlan) -> None:
        """What a site's plan is on the device from here on, such as in fixed buffers of a recorded pass."""
        self._on_device[path] = here

    def on_device(self, path: str) -> DevicePlan:
        """An assigned plan on the device."""
        if path not in self._on_device:
            self._on_device[path] = on_device(self.assigned[path], self.device)
        return self._on_device[path]

    def region(self, layer: Any, weight: Any, name: str = "output") -> dict[Any, DevicePlan]:
        """{weight: what of it the pass reads}, by the plan at a layer's site; {} where it is all."""
        plan = self.of(layer, name) if self.assigned else None
        here = None if plan is None or plan.region(weight.shape) is None else self.at(layer, name)
        return {} if here is None else {weight: here}
