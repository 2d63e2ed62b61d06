"""Dropout: what a policy is; and the two that skip no work."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ..layers import Flow, Sequential, Tree
from ..plans import BernoulliPlan, Plan, Site
from ..tensor import Tensor
from .schedule import Rate, is_rate, mean, rate_at

Policy = TypeVar("Policy", bound="Dropout")


class Style(NamedTuple):
    """How plots draw a policy: grey tells it from the others by dashes and mark. Without a colour it has the next one."""

    colour: str | None = None
    dashes: str | tuple = "-"
    mark: str = "o"


class Dropout(abc.ABC):
    """Base of the policies: a rate for each droppable layer, and `plan`, which subclasses define.

    Parameters
    ----------
    rate : float, callable, or sequence of these, default=0.5
        Probability to drop, in [0, 1), or a function that gives it for an epoch, counted from 0 (`SkewNormalSchedule`); a
        sequence gives one for each droppable layer, in order.

    Raises
    ------
    ValueError
        If a rate is not a number in [0, 1).
    """

    name: ClassVar[str]
    drops: ClassVar[str] = ""  # what is dropped in a step, in the README's words
    computes: ClassVar[str] = "all"  # what of the FLOPs is left at rate p
    style: ClassVar[Style] = Style()
    set_on_copies: ClassVar[tuple[str, ...]] = ("kind", "answer")  # attributes that copies have others of, and no argument sets
    kind: str = "output"  # of the sites that it has plans for (`Site`)
    answer: bool = False  # whether it has plans for what gives the answer as well
    by_sample: ClassVar[bool] = False  # whether each sample of a batch drops others
    data_dependent: bool = False  # whether plans depend on what comes to a layer (`choose`)
    alike: bool = False  # whether plans chosen so are of one kind each time while rates are equal: then passes may be recorded
    shuffle: ClassVar[bool] = False  # whether features should come centred and in random order (`Shuffle`)

    def __init__(self, rate: Rate = 0.5) -> None:
        several = isinstance(rate, (Sequence, np.ndarray)) and not isinstance(rate, str)
        given: Any = rate
        rates = tuple(given) if several else (given,)
        for r in rates:
            if not (callable(r) or is_rate(r)):
                raise ValueError(
                    "dropout_rate must be a number in [0, 1) or a function that gives one for an epoch, or one of "
                    f"these for each hidden layer; got {rate!r}"
                )
        if not len(rates):
            raise ValueError("dropout_rate is an empty sequence: give one rate, or one for each hidden layer")
        rates = tuple(r if callable(r) else float(r) for r in rates)
        self.rate = rates if several else rates[0]

    def at(self, epoch: int) -> Dropout:
        """The policy of an epoch, counted from 0: itself where its rates are numbers, else a copy with those of the epoch.

        The copy is shallow: what a policy learns while it trains belongs in an object that it holds.

        Raises
        ------
        ValueError
            If a function gives no number in [0, 1) for the epoch.
        """
        rates = self.rate if isinstance(self.rate, tuple) else (self.rate,)
        if not any(map(callable, rates)):
            return self
        rates = tuple(rate_at(r, epoch) for r in rates)
        return self._with(rates if isinstance(self.rate, tuple) else rates[0])

    def at_mean_rate(self, epochs: int) -> Dropout:
        """The policy with the means of its rates over so many epochs: initial weights are made for it."""
        if self.at(0) is self:
            return self
        rates: list[Any] = [self.at(epoch).rate for epoch in range(epochs)]
        if not isinstance(self.rate, tuple):
            return self._with(mean(rates))
        return self._with(tuple(map(mean, zip(*rates, strict=True))))

    def _with(self, rate: Any) -> Dropout:
        """A copy with these rates."""
        return self.changed(rate=rate)

    def changed(self: Policy, **attributes: Any) -> Policy:
        """A shallow copy with other attributes."""
        policy = copy.copy(self)
        vars(policy).update(attributes)
        return policy

    def rate_of(self, site: Site | int) -> float:
        """The rate of a site, or of that number; ValueError where it depends on the epoch (`at`)."""
        number = site.number if isinstance(site, Site) else site
        rate = self.rate[number] if isinstance(self.rate, tuple) else self.rate
        if callable(rate):
            raise ValueError(f"{self!r}: its rate depends on the epoch; take the policy of one, policy.at(epoch)")
        return rate

    def check(self, layers: int) -> None:
        """ValueError unless there is one rate for all droppable layers, or one for each, and some that it is for."""
        if self.kind == "patches" and not layers:
            raise ValueError(f"{self.name}: it is for convolutions, and there are none")
        if isinstance(self.rate, tuple) and len(self.rate) != layers:
            raise ValueError(f"dropout_rate has {len(self.rate)} entries for {layers} hidden layers")

    def of(self, site: Site) -> Dropout:
        """The policy that has plans for a site: itself, or a part of it."""
        return self

    def sites(self, model: Sequential | Tree) -> tuple[Site, ...]:
        """The sites of a model that it has plans for."""
        return model.droppable(self.kind, self.answer)

    def rates(self, model: Sequential | Tree) -> list[float]:
        """The rate of each of these sites."""
        return list(map(self.rate_of, self.sites(model)))

    def caution(self, site: Site) -> str | None:
        """What is unwise about dropping parts of a site, in a sentence, or None."""
        return None

    def cautions(self, model: Sequential) -> list[str]:
        """What is unwise about its use in a model, by default the `caution` of each site, layers that are passed over, and
        that there is nothing to drop."""
        tree = Tree(model)
        sites, rates = self.sites(tree), self.rate if isinstance(self.rate, tuple) else (self.rate,)
        if any(rates) and not any(map(self.rate_of, sites)):
            return [
                f"{self.name}: nothing is dropped, as no layer of this network but the last one has anything that it "
                "drops; add a hidden layer, or choose another dropout, such as 'none'"
            ]
        return [*filter(None, map(self.caution, sites)), *(self._passed_over(tree) if sites else ())]

    def _passed_over(self, tree: Tree) -> list[str]:
        """In one sentence, the layers that have weights of their own and no site, if there are some."""
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
                f"{self.name}: nothing is dropped of the weights that {', '.join(names)} hold{'s' * (len(names) == 1)}: what"
                " may be a layer says by sites()"
            ]
            if names
            else []
        )

    def variance_factors(self, layers: int) -> list[float]:
        """For each of the `Linear` layers, the last one too, by what the variance of its initial weights is multiplied.

        Here 1: a policy that thins out sums says by how much (`Linear`, variance_factor).
        """
        return [1.0] * (layers + 1)

    @abc.abstractmethod
    def plan(self, site: Site, rng: np.random.Generator) -> Plan | None:
        """The plan of one site for one step, drawn before it.

        Parameters
        ----------
        site : Site
            Which, with the shape of its weight.
        rng : numpy.random.Generator
            Where the draw comes from: same seed, same plans, on every device.

        Returns
        -------
        Plan or None
            None where everything is computed.
        """

    def choose(self, site: Site, x: Tensor, w: Tensor, rng: np.random.Generator) -> Plan | None:
        """The plan of a site for which none was drawn, from the layer's input, of images with channels last, and its weight, in
        the pass. Called where it is `data_dependent`."""
        return None

    def choose_from_flow(self, site: Site, flow: Flow, layer: Any, rng: np.random.Generator) -> Plan | None:
        """`choose` by what comes to a layer as it flows, compact where it is; by default at its dense form."""
        return self.choose(site, flow.expanded(), layer.weight, rng)

    def choosing(self, model: Sequential | Tree, rng: np.random.Generator) -> Callable[..., Plan | None] | None:
        """(site, flow, layer) -> Plan or None for `Plans`; None where it draws all plans before the pass."""
        if not self.data_dependent:
            return None
        own = set(self.sites(model))
        return lambda site, flow, layer: self.choose_from_flow(site, flow, layer, rng) if site in own else None

    def inference_policy(self, epoch: int) -> Dropout | None:
        """The policy that selects in predictions after so many epochs and one; None, as by default: all is computed."""
        return None

    def pop_flops(self) -> float:
        """FLOPs of what it chose by, since the last call."""
        return 0.0

    def calibrated(self, model: Sequential, x: Tensor) -> Dropout:
        """The policy for this model, with what it has to know of the data: x are some training samples on the model's device.
        Called before each epoch, where it is `data_dependent`."""
        return self

    def report(self) -> dict[str, list[float]]:
        """What it did since the last call, for the record of an epoch."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items() if k[0] != '_')})"


class NoDropout(Dropout):
    """No dropout: nothing is dropped, whatever the rate."""

    name, drops, style = "none", "nothing", Style("#6b6b6b", ":", "x")

    def rate_of(self, site):
        return 0.0

    def cautions(self, model):
        return []  # `fit` says so where a rate was given

    def plan(self, site, rng):
        return None


class BernoulliDropout(Dropout):
    """Conventional (inverted) dropout: activations of each sample are zeroed independently, the others scaled by 1 / (1 - p).

    The baseline that the patterns are compared with (Srivastava et al. 2014). No work is skipped.
    """

    name, drops = "bernoulli", "activations, independently for each sample (conventional)"
    style, by_sample = Style("#b07aa1", "--", "^"), True

    def variance_factors(self, layers):
        return [1.0, *(1 - self.rate_of(layer) for layer in range(layers))]  # what is dropped of a layer, the next one misses

    def plan(self, site, rng):
        rate = self.rate_of(site)
        key = int(rng.integers(2**63))
        return BernoulliPlan(site.shape[0], rate, key, 1 / (1 - rate)) if rate else None
