"""Step: one pass through a model, and what layers have to know of it; Site: a place of a layer that dropout may thin out."""
from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..device import Device, device
from ..plans import Kept, Plan, kept
from ..plans.kept import place_kept

if TYPE_CHECKING:
    from ..tensor import Tensor
    from .base import Flow, Layer


class Site(NamedTuple):
    """A place of a layer that may be thinned out."""

    layer: Layer
    name: str               # which of the layer's sites: "output" of a `Linear`
    kind: str               # what is thinned out: "output", the layer's neurons, or the weight that gives them; "patches", the
                            # input matrix of a convolution; "tiles", parts of the weight; "recurrent", what comes back
    shape: tuple[int, ...]  # of the weight there
    number: int = 0         # which of the model's sites, from 0: policies with a rate for each go by it


class Step:
    """One pass through a model.

    Parameters
    ----------
    dev : str or Device, default="cpu"
        Where it runs.
    plans : mapping, optional
        What is kept, by `Site`; for a layer with one site the layer may stand for it.
    training : bool, default=False
        Whether layers behave as in training (`BatchNorm1d`).
    noise : numpy.random.Generator, optional
        The random stream of what layers draw themselves.
    inputs : ndarray, optional
        The model's input, where it is integers on the host: which rows of an `Embedding` are read.
    look : callable, optional
        (layer, name of the site, flow, w) -> Plan or None: the plan of a site that has none, chosen from what comes to the
        layer (`Dropout.look_at`).
    memory : dict, optional
        Arrays with the states that recurrent layers begin with, by layer and number of samples; they overwrite them with those
        that they end with. Without it they begin with zeros.
    gates : GateSparsity, optional
        What the backward pass of recurrent layers leaves out (`dropout.gates`).

    Attributes
    ----------
    ready : dict
        By weight, what the update before packed for this step on its way.
    placed : dict
        By (layer, name of the site), its plan on the device where it does not lie in arrays of its own (`training.replay`).
    """

    def __init__(self, dev: str | Device = "cpu", plans: Mapping[Any, Plan] | None = None, training: bool = False,
                 noise: np.random.Generator | None = None, inputs: np.ndarray | None = None,
                 look: Callable[..., Plan | None] | None = None, memory: dict[Any, Any] | None = None,
                 gates: Any = None) -> None:
        self.device, self.training, self.noise, self.inputs, self._look = device(dev), training, noise, inputs, look
        self.memory, self.gates = memory, gates
        self.ready: dict[Tensor, Any] = {}
        self.placed: dict[tuple[Layer, str], Kept] = {}
        self._once: dict[Plan, Kept] = {}
        self.plans: dict[tuple[Layer, str], Plan] = {}
        for place, plan in (plans or {}).items():
            for site in [place] if isinstance(place, Site) else place.sites()[:1]:
                if not isinstance(plan, Plan):
                    raise TypeError(f"{site.layer!r}: {plan!r} is not a Plan; make a subclass of numbanet.Plan or AxisPlan")
                if not plan.trivial:
                    self.plans[site.layer, site.name] = plan

    def plan(self, layer: Layer, name: str = "output") -> Plan | None:
        """What is kept at a layer's site; None: everything."""
        return self.plans.get((layer, name))

    def look(self, layer: Layer, flow: Flow, w: Tensor, name: str = "output") -> None:
        """Let the policy choose what is kept at a site from what comes to the layer and its weight, where nothing was drawn."""
        if self._look is not None and (layer, name) not in self.plans:
            plan = self._look(layer, name, flow, w)
            if plan is not None and not plan.trivial:
                self.plans[layer, name] = plan
                self.placed[layer, name] = place_kept(plan, self.device)  # such a plan hardly comes twice

    def inner(self) -> Step:
        """The step as layers see it that do not take the model's input."""
        if self.inputs is None:
            return self
        step = copy.copy(self)
        step.inputs = None
        return step

    def on(self, plan: Plan) -> Kept:
        """A plan on this step's device; one that hardly comes twice is held as long as the step is."""
        if not plan.once:
            return kept(plan, self.device)
        if plan not in self._once:
            self._once[plan] = kept(plan, self.device)
        return self._once[plan]

    def kept(self, layer: Layer, name: str = "output") -> Kept | None:
        """The plan of a layer's site on this step's device; None: everything is kept."""
        plan = self.plan(layer, name)
        return plan and (self.placed.get((layer, name)) or self.on(plan))
