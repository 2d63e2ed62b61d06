"""Context: what a layer may know of the pass that it is in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from numbanet_kernels.runtime.context import Scoped

from ..device import Device, device
from ..plans import Plan, Plans, Site
from ..tensor import Tensor
from .flow import Flow, Tags
from .tree import Tree


@dataclasses.dataclass(frozen=True, init=False, slots=True, eq=False)
class Context:
    """One pass through a model, as its layers see it; nothing that a layer may set.

    Parameters
    ----------
    dev : str or Device, default="cpu"
        Where it runs.
    plans : Plans or mapping of Site or Layer to Plan, optional
        What is kept; for a layer with one site the layer may stand for it. By default all is.
    training : bool, default=False
        Whether layers behave as in training (`BatchNorm1d`).
    model : Layer, optional
        Whose sites a mapping names; needed where it has sites.
    state : dict, optional
        Arrays that recurrent layers begin with, by layer and number of samples; they overwrite them with those that they end
        with. Without it they begin with zeros.
    packed : mapping of Tensor to array, optional
        By weight, what the update before packed for this pass on its way (`Optimizer.step`).

    Raises
    ------
    TypeError
        If something in the mapping is no plan.
    ValueError
        If it names sites, and no model has them.
    """

    device: Device
    training: bool
    plans: Plans
    state: dict[Any, Any] | None
    packed: Mapping[Tensor, Any]

    def __init__(
        self,
        dev: str | Device = "cpu",
        plans: Plans | Mapping[Any, Plan] | None = None,
        training: bool = False,
        model: Any = None,
        state: dict[Any, Any] | None = None,
        packed: Mapping[Tensor, Any] | None = None,
    ) -> None:
        dev = device(dev)
        given = plans if isinstance(plans, Plans) else _assigned(dev, plans or {}, model)
        for name, value in (
            ("device", dev),
            ("training", training),
            ("plans", given),
            ("state", state),
            ("packed", {} if packed is None else packed),
        ):
            object.__setattr__(self, name, value)


def _assigned(dev: Device, given: Mapping[Any, Plan], model: Any) -> Plans:
    """The plans of a mapping by site or layer."""
    if not given and model is None:
        return Plans(dev)
    sites: dict[tuple[Any, str], Site] = {} if model is None else Tree(model).sites
    assigned = {}
    for place, plan in given.items():
        if not isinstance(plan, Plan):
            raise TypeError(f"{place!r}: {plan!r} is not a Plan; make a subclass of numbanet.Plan or AxisPlan")
        if isinstance(place, Site):
            if place not in sites.values():
                raise ValueError(f"Context: no layer has the site {place.path}; say whose it is, Context(..., model=model)")
            assigned[place.path] = plan
            continue
        if not any(layer is place for layer, _ in sites):
            for site in place.sites():
                sites[place, site.path] = site._replace(path=f"{len(sites)}.{site.path}")
        if first := next((site for (layer, _), site in sites.items() if layer is place), None):
            assigned[first.path] = plan
    return Plans(dev, sites, assigned)


# --- inside a layer's own __call__ ------------------------------------------------------------------------------------
class Around(NamedTuple):
    """The pass that a layer which is called with a tensor stands in: of the layer whose `__call__` calls it."""

    context: Context
    tags: Tags
    calls: list[tuple[Any, tuple[int, ...]]] | None = None  # (layer, shape of its input): noted where somebody asks


around = Scoped("around", None)


def entering(layer: Any, x: Tensor, context: Context | Mapping[Any, Plan] | None) -> tuple[Flow, Context]:
    """A flow and a context for a layer that is called with a tensor; where no context is said, that of the layer that calls it.

    Raises
    ------
    TypeError
        If x is no tensor.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{type(layer).__name__}: x must be a Tensor, got {type(x).__name__}; write Tensor(x)")
    if context is not None:
        return Flow(x), context if isinstance(context, Context) else Context(x.device, context, model=layer)
    outer = around.get()
    if outer is None or outer.context.device is not x.device:
        return Flow(x), Context(x.device)
    if outer.calls is not None:
        outer.calls.append((layer, tuple(x.shape)))
    return Flow(x, tags=outer.tags), outer.context
