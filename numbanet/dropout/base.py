"""`Dropout`, the base class of policies, and the two policies that skip no work."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ..arguments import check_count
from ..layers import Flow, Sequential, Tree
from ..plans import BernoulliPlan, Plan, Site
from ..plans.assigned import checked_plan
from ..tensor import Tensor
from .schedule import Rate, checked_rates, mean, rate_at

Policy = TypeVar("Policy", bound="Dropout")
CHOOSE = ("choose", "choose_from_flow", "choosing")  # the methods of which one chooses the plans of a data-dependent policy
POLICIES: dict[str, type[Dropout]] = {}  # the policies that have a name, by it; `registry` enters them


class Style(NamedTuple):
    """How plots draw a policy; dashes and marks distinguish policies without colour. By default matplotlib chooses colours."""

    colour: str | None = None
    dashes: str | tuple = "-"
    mark: str = "o"


class Dropout(abc.ABC):
    """Base class of the policies. A policy has a rate for each droppable layer. Subclasses define `plan`.

    Parameters
    ----------
    rate : float, callable, or sequence of these, default=0.5
        Probability to drop, in [0, 1), or a function that maps an epoch, counted from 0, to this probability
        (`SkewNormalSchedule`). A sequence holds one rate or function for each droppable layer, in order.

    Raises
    ------
    ValueError
        If a rate is not a number in [0, 1).
    TypeError
        If a rate is a function that does not take an epoch, or a class.
    """

    name: ClassVar[str]
    drops: ClassVar[str] = ""  # what a step drops, in words, for the table of kinds
    computes: ClassVar[str] = "all"  # the share of the FLOPs that is computed at rate p, as a formula, for the table of kinds
    style: ClassVar[Style] = Style()
    # attributes that the constructor does not set, only `changed`
    set_on_copies: ClassVar[tuple[str, ...]] = ("kind", "answer", "reason")
    kind: str = "output"  # the kind of the sites for which the policy makes plans (`Site`)
    # the class of its plans: sites that do not support it are left out, with a warning. None: every layer must support them.
    # A class that makes plans by a method of its own does not inherit it
    makes: ClassVar[type[Plan] | None] = None
    reason: str | None = None  # why dropout="auto" chose this policy
    answer: bool = False  # True if it also makes plans for the last layer
    by_sample: ClassVar[bool] = False  # True if samples of a batch drop different units
    data_dependent: bool = False  # True if plans depend on a layer's input (`choose`)
    alike: bool = False  # True if at one rate the chosen plans of a site are of one kind; then steps may be recorded
    agrees: bool = False  # True if ranks of one training may choose: the gradients have the same form on all of them
    on_device: bool = False  # True if `choose_into` and `prepare` are defined, so that recorded steps choose without the host
    mixes_features: ClassVar[bool] = False  # True if features should be centred and permuted (`Shuffle`)
    shuffle: int | None = None  # number of epochs after which neurons are reordered (`Reordering`); None: never

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if getattr(cls, "name", None) in (None, *(base.__name__ for base in cls.__mro__[1:])):  # nobody has named it
            cls.name = cls.__name__
        if "makes" not in vars(cls) and {"plan", "choose", "choose_from_flow"} & vars(cls).keys():
            cls.makes = None

    def __init__(self, rate: Rate = 0.5) -> None:
        if type(self).plan is Dropout.plan:
            raise TypeError(
                f"{type(self).__name__} is no kind of dropout, as it has no method plan, and no layer: choose a kind by its "
                "name, Net(layers, dropout='bernoulli', dropout_rate=0.5), or make an object of its class, such as RowDropout"
            )
        kind = type(self)
        if kind.data_dependent and all(getattr(kind, name) is getattr(Dropout, name) for name in CHOOSE):
            raise TypeError(f"{kind.__name__} is data_dependent, and has no method choose: define choose(site, x, w, rng)")
        self.rate = checked_rates(f"{kind.__name__}: rate", rate)

    def _reordered(self, shuffle: int | None) -> int | None:
        """Return the parameter `shuffle`; raise ValueError unless it is None or a positive integer."""
        return None if shuffle is None else check_count(f"{self.name}: shuffle", shuffle)

    def at(self, epoch: int) -> Dropout:
        """Return the policy for `epoch`, which is counted from 0: this policy if its rates are numbers, else a copy with the
        rates of the epoch.

        The copy is shallow. So if a policy collects state during training, it must keep the state in an object that is an
        attribute: all copies share this object.

        Raises
        ------
        ValueError
            If a function does not return a number in [0, 1) for the epoch.
        """
        return self._changed_rates(callable, lambda rate: rate_at(rate, epoch))

    def over(self, epochs: int) -> Dropout:
        """Return the policy for a fit of `epochs` epochs: a schedule that is defined by a share of the fit, such as
        `EarlyDropout`, is told the number of epochs.
        """
        return self._changed_rates(lambda rate: hasattr(rate, "over"), lambda rate: rate.over(epochs))

    def at_mean_rate(self, epochs: int) -> Dropout:
        """Return the policy with each rate averaged over `epochs` epochs; the initial weights depend on these rates."""
        if self.at(0) is self:
            return self
        rates: list[Any] = [self.at(epoch).rate for epoch in range(epochs)]
        if not isinstance(self.rate, tuple):
            return self._with(mean(rates))
        return self._with(tuple(map(mean, zip(*rates, strict=True))))

    def _changed_rates(self, concerned: Callable[[Any], bool], change: Callable[[Any], Any]) -> Dropout:
        """Return a copy in which change(rate) replaces each rate for which concerned(rate) is true."""
        several = isinstance(self.rate, tuple)
        rates = self.rate if several else (self.rate,)
        if not any(map(concerned, rates)):
            return self
        changed = tuple(change(rate) if concerned(rate) else rate for rate in rates)
        return self._with(changed if several else changed[0])

    def _with(self, rate: Any) -> Dropout:
        """Return a copy with other rates."""
        return self.changed(rate=rate)

    def changed(self: Policy, **attributes: Any) -> Policy:
        """Return a shallow copy with the given attributes."""
        policy = copy.copy(self)
        vars(policy).update(attributes)
        return policy

    def rate_of(self, site: Site | int) -> float:
        """Return the rate of a site, which is 0 if it does not support the policy's plans (`fits`), or that of a number; raise
        ValueError if the rate depends on the epoch (`at`).
        """
        if isinstance(site, Site) and not self.fits(site):
            return 0.0
        rate = self.rate
        if isinstance(rate, tuple):
            rate = rate[site.number if isinstance(site, Site) else site]
        if callable(rate):
            raise ValueError(f"{self!r}: its rate depends on the epoch; use the policy of an epoch, policy.at(epoch)")
        return rate

    def fits(self, site: Site) -> bool:
        """Return True if the site supports the plans of this policy."""
        return self.makes is None or site.supports(self.makes)

    def check(self, layers: int) -> None:
        """Raise ValueError if `rate` is a sequence without exactly one rate for each of the `layers` droppable layers, or if
        the policy is for convolutions and the network has none.
        """
        if self.kind == "patches" and not layers:
            raise ValueError(f"{self.name} is for convolutions, and the network has none")
        if isinstance(self.rate, tuple) and len(self.rate) != layers:
            raise ValueError(f"dropout_rate has {len(self.rate)} entries for {layers} hidden layers")

    def check_in(self, model: Sequential | Tree) -> None:
        """Raise the errors of `check` for the sites of a model; if it has none, because it became sparse, raise none."""
        if sites := len(self.sites(model)):
            self.check(sites)

    def of(self, site: Site) -> Dropout:
        """Return the policy that makes the plans for a site: this policy, or a part of it if it combines several policies."""
        return self

    def sites(self, model: Sequential | Tree) -> tuple[Site, ...]:
        """Return the sites of a model for which this policy makes plans."""
        return model.droppable(self.kind, self.answer)

    def fitting(self, tree: Tree) -> tuple[Site, ...]:
        """Return those of `sites` that support the policy's plans; they are found once in an epoch."""
        return tree.cached(self, lambda: tuple(filter(self.fits, self.sites(tree))))

    def rates(self, model: Sequential | Tree) -> list[float]:
        """Return the rate of each site in `sites(model)`."""
        return list(map(self.rate_of, self.sites(model)))

    def caution(self, site: Site) -> str | None:
        """Return the text of a warning if dropping parts of a site is likely to hurt; else None."""
        return None

    def cautions(self, model: Sequential) -> list[str]:
        """Return warnings about the use of the policy in a model. By default these are the `caution` of each site, warnings
        that name layers with weights but without a site, and layers whose sites do not support the policy's plans, and a
        warning if there is no site at all.
        """
        tree = Tree(model)
        sites, rates = self.sites(tree), self.rate if isinstance(self.rate, tuple) else (self.rate,)
        left_out = self._left_out(tree)
        if any(rates) and not any(map(self.rate_of, sites)):
            return left_out or [
                f"{self.name}: nothing is dropped, because only the last layer of this network has anything that it "
                "drops; add a hidden layer, or choose another dropout, such as 'none'"
            ]
        cautions = filter(None, map(self.caution, filter(self.fits, sites)))
        return [*cautions, *left_out, *(self._passed_over(tree) if sites else ())]

    def _left_out(self, tree: Tree) -> list[str]:
        """Return warnings that name the layers whose sites do not support this policy's plans, or let no policy choose them,
        and the kinds that work there; [] if there are none.
        """
        layers: dict[str, dict[str, None]] = {}  # by the kinds that work there, the layers, in order
        for site in self.sites(tree):
            part = self.of(site)
            if not part.rate_of(site.number) or (self.fits(site) and not part.never_chosen(site)):
                continue
            layer = tree.owners[site.path]
            work = [
                repr(name)
                for name, policy in POLICIES.items()
                if name != part.name  # of which only plans for all time steps may work
                and policy.makes is not None
                and any(
                    each.kind == policy.kind and each.supports(policy.makes) and (each.chosen or not policy.data_dependent)
                    for each in ([site._replace(kind="output")] if site.kind == "recurrent" else layer.sites())
                )
            ]
            layers.setdefault(", ".join(work), {})[f"{site.path.rpartition('.')[0]} ({layer!r})"] = None
        return [
            f"{self.name}: nothing is dropped in {', '.join(names)}; kinds that work there: {work or 'none'}"
            for work, names in layers.items()
        ]

    def never_chosen(self, site: Site) -> bool:
        """Return True if this policy chooses the plans of a site from inputs, and its layer lets no policy choose."""
        return self.data_dependent and not site.chosen and self.plan(site, np.random.default_rng(0)) is None

    def _passed_over(self, tree: Tree) -> list[str]:
        """Return a list with a warning that names the layers with weights but without a site; [] if there are none."""
        some = {layer for layer, _ in tree.sites}
        names = [
            f"{path} ({type(layer).__name__})"
            for path, layer in tree.layers.items()
            if layer not in some
            and any(
                tensor.ndim > 1 and "." not in name and name not in layer.units and tensor.requires_grad
                for name, tensor, _ in layer.named()
            )
        ]
        return (
            [
                f"{self.name}: all weights of {', '.join(names)} are computed, which is right unless such a layer's `sites()` "
                "declares what may be dropped"
            ]
            if names
            else []
        )

    def variance_factors(self, layers: int) -> list[float]:
        """Return the factors of the variance of initial weights: a list of `layers` + 1 numbers, one for each `Linear` layer.
        `layers` is the number of hidden ones.

        By default, all factors are 1. A policy that drops inputs of neurons overrides this (see `variance_factor` of `Linear`).
        """
        return [1.0] * (layers + 1)

    def plan(self, site: Site, rng: np.random.Generator) -> Plan | None:
        """Draw the plan of a site for one step, before the step.

        Parameters
        ----------
        site : Site
            The site, with the shape of its weight.
        rng : numpy.random.Generator
            Source of random numbers: the same seed gives the same plans on every device.

        Returns
        -------
        Plan or None
            None if everything is computed.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no plan")

    def plans(self, model: Sequential | Tree, rng: np.random.Generator) -> dict[str, Plan]:
        """Return a dict that maps the path of a site to its plan for a step, except where everything is computed."""
        sites = self.fitting(model) if isinstance(model, Tree) else filter(self.fits, self.sites(model))
        drawn = {site.path: plan for site in sites if (plan := self.plan(site, rng)) is not None}
        for path, plan in drawn.items():
            if not isinstance(plan, Plan):
                checked_plan(plan, (model if isinstance(model, Tree) else Tree(model)).owners[path])
        return drawn

    def choose(self, site: Site, x: Tensor, w: Tensor, rng: np.random.Generator) -> Plan | None:
        """Choose the plan of a site during the pass, from the input x of the layer (images have channels last) and its weight
        w. This is called if the policy is `data_dependent` and `plan` returned None for the site.
        """
        return None

    def choose_from_flow(self, site: Site, flow: Flow, layer: Any, rng: np.random.Generator) -> Plan | None:
        """Choose a plan from a layer and its input, which may be compact; by default by `choose` from the dense input."""
        return self.choose(site, flow.expanded(), layer.weight, rng)

    def choosing(self, model: Sequential | Tree, rng: np.random.Generator) -> Callable[..., Plan | None] | None:
        """Return the function choose(site, flow, layer) that `Plans` calls during a pass, which returns a plan or None. If all
        plans are drawn before the pass, return None instead of a function.
        """
        if not self.data_dependent:
            return None
        sites = set(filter(self.fits, self.sites(model)))
        return lambda site, flow, layer: self.choose_from_flow(site, flow, layer, rng) if site in sites else None

    def choose_into(self, site: Site, flow: Flow, layer: Any, given: Any) -> None:
        """Choose a plan as `choose_from_flow` does, without the host, and write its lists to those of `given`, a `DevicePlan`
        whose plan is of the same kind.
        """
        raise NotImplementedError(f"{self!r} chooses on the host")

    @property
    def chooses_by(self) -> Hashable:
        """All that decides which operations `choose_into` issues and which arrays they read, apart from the rates."""
        return None

    def prepare(self, model: Sequential | Tree) -> Callable[[Callable[[], None]], None]:
        """Return a function, called before each step, for what only some steps need before a choice. Its argument is a
        function that computes earlier steps, which must be called before weights are read.
        """
        return lambda finish: None

    def inference_policy(self, epoch: int) -> Dropout | None:
        """Return the policy to apply at inference after this epoch; None, the default, if inference is dense."""
        return None

    def pop_flops(self) -> float:
        """Return the number of FLOPs that were spent on choosing plans since the last call."""
        return 0.0

    def calibrated(self, model: Sequential, x: Tensor) -> Dropout:
        """Return the policy prepared for a model and its data; x holds some training samples, a tensor on the device of the
        model. If the policy is `data_dependent`, this is called before each epoch.
        """
        return self

    def progress(self, model: Tree) -> Any:
        """Return, for a checkpoint within an epoch, what the policy of the epoch has gathered since the epoch began; None if
        there is nothing. It consists of numbers, strings, arrays of NumPy, and containers of these.
        """
        return None

    def go_on(self, model: Tree, progress: Any) -> None:  # noqa: B027  most policies gather nothing
        """Restore what `progress` returned."""

    def report(self) -> dict[str, list[float]]:
        """Return a dict of figures about the steps since the last call; its entries are added to the record of an epoch."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items() if k[0] != '_')})"


class NoDropout(Dropout):
    """No dropout.

        all O neurons;  y = act(x wᵀ + b);  dx = g w;  dW = gᵀ x;  s = 1

    The rate is ignored, and no plan is drawn: a class of your own that draws plans is one of `Dropout`.
    """

    name, drops, style = "none", "nothing", Style("#6b6b6b", ":", "x")

    def rate_of(self, site):
        return 0.0

    def cautions(self, model):
        return []  # empty, so that `fit` can warn if a rate was given

    def plan(self, site, rng):
        return None

    def plans(self, model, rng):
        return {}


class BernoulliDropout(Dropout):
    """Conventional (inverted) dropout: activations of each sample are zeroed independently, the others scaled by 1 / (1 - p).

        m[n, o] = 1 with probability 1 - p, else 0;  y = s m ∘ act(x wᵀ + b);  dx = g w;  dW = gᵀ x;  s = 1 / (1 - p)

    p is the rate. This policy skips no work, and is the baseline for all policies that do (Srivastava et al. 2014).
    """

    name, drops = "bernoulli", "activations, independently for each sample (conventional)"
    style, by_sample, makes = Style("#b07aa1", "--", "^"), True, BernoulliPlan

    def variance_factors(self, layers):
        return [1.0, *(1 - self.rate_of(layer) for layer in range(layers))]  # the next layer loses inputs

    def plan(self, site, rng):
        rate = self.rate_of(site)
        key = int(rng.integers(2**63))
        return BernoulliPlan(site.shape[0], rate, key, 1 / (1 - rate)) if rate else None
