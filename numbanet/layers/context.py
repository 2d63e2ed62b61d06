"""`Context`: the settings of one pass through a model. The layers of the model read them."""

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
    """The settings of one pass through a model; read-only for layers.

    Parameters
    ----------
    dev : str or Device, default="cpu"
        The device of the pass.
    plans : Plans or mapping of Site, str or Layer to Plan, optional
        The plan of each site, or of its path, as by `Dropout.plans`; if a layer has one site, the layer may be the key. If a
        site has no plan, everything is computed.
    training : bool, default=False
        If True, layers behave as in training: for example, `BatchNorm1d` uses the statistics of the batch.
    model : Layer, optional
        The model whose sites the mapping names; required if it names sites.
    state : dict, optional
        Initial states of recurrent layers, by layer and number of samples; a pass overwrites them with the final states. By
        default, layers start from zeros.
    packed : mapping of Tensor to array, optional
        For each weight, the blocks that the previous update packed for this pass (`Optimizer.step`).
    few : bool, default=False
        If True, `Linear` uses a product for few samples. Its result for a sample is the same for any number of samples.
    ranks : Ranks, optional
        The processes that train the model together, if there are several: statistics of a batch are those of all ranks.

    Raises
    ------
    TypeError
        If a value of the mapping is not a plan, or a key no site, path or layer.
    ValueError
        If the mapping names a site that the model does not have.
    """

    device: Device
    training: bool
    plans: Plans
    state: dict[Any, Any] | None
    packed: Mapping[Tensor, Any]
    few: bool
    ranks: Any

    def __init__(
        self,
        dev: str | Device = "cpu",
        plans: Plans | Mapping[Any, Plan] | None = None,
        training: bool = False,
        model: Any = None,
        state: dict[Any, Any] | None = None,
        packed: Mapping[Tensor, Any] | None = None,
        few: bool = False,
        ranks: Any = None,
    ) -> None:
        dev = device(dev)
        given = plans if isinstance(plans, Plans) else _assigned(dev, plans or {}, model)
        for name, value in (
            ("device", dev),
            ("training", training),
            ("plans", given),
            ("state", state),
            ("packed", {} if packed is None else packed),
            ("few", few),
            ("ranks", ranks),
        ):
            object.__setattr__(self, name, value)

    def on(self, dev: Device) -> Context:
        """Return the context for a part of the pass that another device computes."""
        if dev is self.device:
            return self
        return Context(dev, self.plans.on(dev), self.training, None, self.state, self.packed, self.few, self.ranks)


def _assigned(dev: Device, given: Mapping[Any, Plan], model: Any) -> Plans:
    """Return the `Plans` of a mapping whose keys are sites, their paths in the model, or layers."""
    if not given and model is None:
        return Plans(dev)
    sites: dict[tuple[Any, str], Site] = {} if model is None else Tree(model).sites
    assigned = {}
    for key, plan in given.items():
        if not isinstance(plan, Plan):
            raise TypeError(f"{key!r}: {plan!r} is not a Plan; make a subclass of numbanet.Plan or AxisPlan")
        if isinstance(key, (Site, str)):
            path = key if isinstance(key, str) else key.path
            if not any(key in (site, site.path) for site in sites.values()):
                raise ValueError(f"Context: no layer has the site {path}; pass its model, Context(..., model=model)")
            assigned[path] = plan
            continue
        if not hasattr(key, "sites"):
            raise TypeError(f"Context: plans are given by sites, their paths, or layers, not by {key!r}")
        if not any(layer is key for layer, _ in sites):
            for site in key.sites():
                sites[key, site.path] = site._replace(path=f"{len(sites)}.{site.path}")
        if first := next((site for (layer, _), site in sites.items() if layer is key), None):
            assigned[first.path] = plan
    return Plans(dev, sites, assigned)


# --- inside a layer's __call__ ----------------------------------------------------------------------------------------
class Around(NamedTuple):
    """The current pass. If a layer's `__call__` calls another layer with a tensor, that layer takes its context from here."""

    context: Context
    tags: Tags
    # (layer, shape of its input) of each call; None if calls are not listed
    calls: list[tuple[Any, tuple[int, ...]]] | None = None


around = Scoped("around", None)


def entering(layer: Any, x: Tensor, context: Context | Mapping[Any, Plan] | None) -> tuple[Flow, Context]:
    """Return a flow and a context for a layer that is called with the tensor x. If `context` is None, it is the context of the
    layer that makes the call.

    Raises
    ------
    TypeError
        If x is not a tensor.
    """
    if not isinstance(x, Tensor):
        way = "Tensor(x)" if getattr(layer, "symbols", None) is None else 'Tensor.wrap(x, device("cpu")), as x holds integers'
        raise TypeError(f"{type(layer).__name__}: x must be a Tensor, got {type(x).__name__}; write {way}")
    if context is not None:
        return Flow(x), context if isinstance(context, Context) else Context(x.device, context, model=layer)
    outer = around.get()
    if outer is None or outer.context.device is not x.device:
        return Flow(x), Context(x.device)
    if outer.calls is not None:
        outer.calls.append((layer, tuple(x.shape)))
    return Flow(x, tags=outer.tags), outer.context
