"""A `Site` is a part of a model that dropout may drop. `Plans` holds the plan of each site in one pass, and the index arrays of
the plans.

A policy draws a plan for each site before a pass, or chooses it during the pass from the input of a layer. Layers call
`Plans.at`, the only place where plans are looked up, checked and chosen.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ..device import Device, device
from .base import Plan
from .on_device import DevicePlan, on_device, upload_plan
from .windows import WindowPlan, WindowProduct


@functools.cache
def _is_subclass(kind: type[Plan], classes: tuple[type[Plan], ...]) -> bool:
    """issubclass(kind, classes), which takes microseconds for abstract classes; a policy asks it for each site in each step."""
    return issubclass(kind, classes)


class Site(NamedTuple):
    """A part of a model that dropout may drop, such as the output of a layer or the tiles of its weight."""

    path: str  # path of the layer in the tree, then the name of the site: "2.output"; `Layer.sites` returns only "output"
    kind: str  # the tensor that is sparsified: "output", the layer's outputs or tiles of its weight; "patches", the im2col
    # matrix of a convolution; "tiles", the weight; "recurrent", the input h[t-1]; "gates", the gradients of an LSTM's gates
    shape: tuple[int, ...]  # shape of the layer's weight
    takes: tuple[type[Plan], ...] | None = None  # classes of plans that the layer supports here; None: any plan
    chosen: bool = False  # True if a policy may choose the plan during the pass (`Dropout.choose`)
    per_batch: bool = False  # True if plans depend on the number of samples, and not only on the weight
    number: int = 0  # index among the model's sites of its kind; if a policy has a sequence of rates, index of its rate

    def supports(self, kind: type[Plan]) -> bool:
        """Return True if the layer supports plans of a class here."""
        return self.takes is None or _is_subclass(kind, self.takes)

    def check(self, plan: Plan, layer: Any, shape: tuple[int, ...] | None = None) -> None:
        """Raise an error unless the layer supports the plan here, and the plan fits `shape`, by default that of the weight."""
        if self.takes is not None and not self.supports(type(plan)):
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


def checked_plan(plan: Any, layer: Any) -> Plan | None:
    """Return what a policy has made for a layer; raise TypeError unless it is a plan or None."""
    if plan is None or isinstance(plan, Plan):
        return plan
    raise TypeError(f"{layer!r}: {plan!r}, which the dropout policy made for it, is not a Plan: return an IndexPlan, or None")


class Plans:
    """The plan of each site in one pass.

    Parameters
    ----------
    dev : str or Device, default="cpu"
        The device of the pass.
    sites : mapping of (layer, str) to Site, optional
        Maps a layer and the name of a site in it to the site.
    assigned : mapping of str to Plan, optional
        Maps the path of a site to its plan. If a site has no plan, everything is computed there.
    choose : callable, optional
        choose(site, flow, layer) returns a plan or None. It is called during the pass for sites that have no plan and whose
        `chosen` is True.
    feeds : mapping of layer to layer, optional
        Maps a layer to the layer whose outputs are its inputs, in the same order (`Tree.feeds`).
    asked : collection of Site, optional
        The sites for which `choose` is called; by default all.
    """

    def __init__(
        self,
        dev: str | Device = "cpu",
        sites: Mapping[tuple[Any, str], Site] | None = None,
        assigned: Mapping[str, Plan] | None = None,
        choose: Callable[[Site, Any, Any], Plan | None] | None = None,
        feeds: Mapping[Any, Any] | None = None,
        asked: Collection[Site] | None = None,
    ) -> None:
        self.device, self.sites, self.choose = device(dev), {} if sites is None else sites, choose
        self.feeds, self.asked = {} if feeds is None else feeds, asked
        self.choose_into: Callable[..., None] | None = None  # `Dropout.choose_into`, if recorded steps choose without the host
        self.stand_in: Callable[..., DevicePlan | None] | None = None  # called instead of `choice` while a step is recorded
        # a hashable value; if it is equal in two passes, so are the kinds of the plans that `choose` returns
        self.decides: Any = None
        self.chosen: dict[str, Plan | None] = {}  # maps the path of a site to the plan that `choose` returned in this pass
        self.assigned = {path: plan for path, plan in (assigned or {}).items() if not plan.trivial}
        self.here: dict[str, DevicePlan] = {}  # maps the path of a site to the plan on the device that this pass has used
        self._elsewhere: dict[Device, Plans] = {}

    def on(self, dev: Device) -> Plans:
        """Return the same plans for a part of the pass that another device computes."""
        if dev is self.device:
            return self
        if dev not in self._elsewhere:
            self._elsewhere[dev] = copy.copy(self)._moved(dev)  # noqa: SLF001  an instance of this class
        return self._elsewhere[dev]

    def _moved(self, dev: Device) -> Plans:
        self.device, self.here, self._elsewhere = dev, {}, {}
        return self

    def of(self, layer: Any, name: str = "output") -> Plan | None:
        """Return the plan of a site if it is known before the pass; None if everything is computed, or it is chosen later."""
        if not self.assigned or (site := self.sites.get((layer, name))) is None:
            return None
        plan = self.assigned.get(site.path)
        if plan is not None and site.path not in self.here:
            site.check(plan, layer)
        return plan

    def at(self, layer: Any, name: str = "output", flow: Any = None, shape: tuple[int, ...] | None = None) -> DevicePlan | None:
        """Return the plan of a site of a layer, on the device; None if everything is computed.

        Parameters
        ----------
        layer : Layer
            The layer that has the site.
        name : str, default="output"
            The name of the site in the layer.
        flow : Flow, optional
            The input of the layer; a policy may choose a plan from it if no plan was drawn.
        shape : tuple of int, optional
            The shape that the plan must fit; by default the shape of the site.

        Raises
        ------
        TypeError
            If the layer does not support the plan.
        ValueError
            If the plan has another shape.
        """
        if not self.assigned and self.choose is None:
            return None
        site = self.sites.get((layer, name))
        if site is None:
            return None
        here = self.here.get(site.path)
        if here is not None and shape is None:
            return here
        plan = self.assigned.get(site.path)
        if plan is None:
            if self.choose is None or not site.chosen or flow is None or (self.asked is not None and site not in self.asked):
                return None
            if self.stand_in is not None:
                return self.stand_in(site, flow, layer, shape)
            if (plan := self.choice(site, flow, layer, shape)) is None:
                return None
            here = upload_plan(plan, self.device)  # not cached, because a plan that is chosen from data rarely repeats
        site.check(plan, layer, shape)
        self.here[site.path] = here = on_device(plan, self.device) if here is None else here
        return here

    def choice(self, site: Site, flow: Any, layer: Any, shape: tuple[int, ...] | None = None) -> Plan | None:
        """Let the policy choose the plan of a site, assign the plan and return it. None means that everything is computed."""
        assert self.choose is not None
        plan = checked_plan(self.choose(site, flow, layer), layer)
        self.chosen[site.path] = plan = None if plan is None or plan.trivial else plan
        if plan is not None:
            site.check(plan, layer, shape)
            self.assigned[site.path] = plan
        return plan

    def choose_on_device(self, choose_into: Callable[..., None]) -> None:
        """Let recorded steps choose plans by `choose_into` (`Dropout.choose_into`), without the host."""
        self.choose_into = choose_into

    def take(self, here: Mapping[str, DevicePlan]) -> None:
        """Note the plans that a recorded step chooses on the device; `here` has their lists."""
        if not here:
            return
        chosen = {path: given.chosen() for path, given in here.items()}
        self.assigned.update(chosen)
        self.chosen.update(chosen)

    @contextlib.contextmanager
    def standing_in(self, give: Callable[..., DevicePlan | None]) -> Iterator[None]:
        """Return a context for recording a step, in which give(site, flow, layer, shape) replaces the choice of the policy."""
        self.stand_in = give
        try:
            yield
        finally:
            self.stand_in = None

    def on_device(self, path: str) -> DevicePlan:
        """Return the plan that is assigned to the site with this path, on the device."""
        if path not in self.here:
            self.here[path] = on_device(self.assigned[path], self.device)
        return self.here[path]

    def region(self, layer: Any, weight: Any, name: str = "output") -> dict[Any, DevicePlan]:
        """Return a dict that maps `weight` to the part that the pass reads, which follows from the plan at a site of the layer
        and the plan of the layer's inputs. The dict is empty if the pass reads the whole weight.
        """
        if not self.assigned:
            return {}
        plan, inputs = self.of(layer, name), self.inputs(layer)
        if isinstance(inputs, WindowPlan) and len(weight.shape) == 2 and (plan is None or isinstance(plan, WindowPlan)):
            return self.window(weight, plan, inputs)
        here = None if plan is None or plan.region(weight.shape) is None else self.at(layer, name)
        return {} if here is None else {weight: here}

    def inputs(self, layer: Any) -> Plan | None:
        """Return the plan of the outputs that are a layer's inputs; None if it is not known, or everything is computed."""
        source = self.feeds.get(layer)
        return None if source is None else self.of(source, source.output_site)

    def window(self, weight: Any, rows: Plan | None, cols: Plan | None) -> dict[Any, DevicePlan]:
        """Return {weight: the part that a pass reads}, if the inputs and the outputs that it uses are windows, or if `rows` is
        None, which stands for all outputs. Return {} for other plans, or if `cols` is None.
        """
        if not isinstance(cols, WindowPlan) or not (rows is None or isinstance(rows, WindowPlan)):
            return {}
        return {weight: upload_plan(WindowProduct(tuple(weight.shape), rows, cols), self.device)}
