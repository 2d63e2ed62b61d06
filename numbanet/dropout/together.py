"""Together: a policy that combines policies for different kinds of sites of one model."""

from __future__ import annotations

from typing import Any

from ..arguments import check_count
from ..layers import Sequential
from ..plans import UnitWindow, WindowPlan
from .base import Dropout
from .patterns import RowDropout
from .window import WindowDropout


class Together(Dropout):
    """Combines policies for different kinds of sites, for example for the outputs of an LSTM and for its recurrent input.

    Parameters
    ----------
    policies : sequence of Dropout
        The policies. The first one determines the rate of a site that is given by its number (`rate_of`), and the variance of
        initial weights.

    Raises
    ------
    ValueError
        If two policies are for the same kind of sites, or have different numbers of epochs in `shuffle`.
    """

    name = "together"

    def __init__(self, *policies: Dropout) -> None:
        kinds = [policy.kind for policy in policies]
        if not policies or len(set(kinds)) < len(kinds):
            raise ValueError(f"Together: each policy must be for another kind of sites, got {kinds}")
        self.policies = policies
        self.rate, self.kind = policies[0].rate, kinds[0]
        shuffles = {policy.shuffle for policy in policies if policy.shuffle}
        if len(shuffles) > 1:
            raise ValueError(f"Together: neurons are shuffled for all policies at once, not every {sorted(shuffles)} epochs")
        self.shuffle = next(iter(shuffles), None)
        self.data_dependent = any(policy.data_dependent for policy in policies)
        self.alike = all(policy.alike or not policy.data_dependent for policy in policies)
        self.on_device = all(policy.on_device or not policy.data_dependent for policy in policies)

    def of(self, site):
        return next(policy for policy in self.policies if policy.kind == site.kind)

    def _each(self, method, *given):
        """Return a copy in which each policy is replaced by the result of its method `method`."""
        policies = tuple(getattr(policy, method)(*given) for policy in self.policies)
        return self.changed(policies=policies, rate=policies[0].rate)

    def at(self, epoch):
        return self._each("at", epoch)

    def over(self, epochs):
        return self._each("over", epochs)

    def at_mean_rate(self, epochs):
        return self._each("at_mean_rate", epochs)

    def calibrated(self, model, x):
        return self._each("calibrated", model, x)

    def rate_of(self, site):
        return self.policies[0].rate_of(site) if isinstance(site, int) else self.of(site).rate_of(site)

    def fits(self, site):
        return self.of(site).fits(site)

    def sites(self, model):
        return tuple(site for policy in self.policies for site in policy.sites(model))

    def rates(self, model):
        return [rate for policy in self.policies for rate in policy.rates(model)]

    def check(self, layers):
        """Raise ValueError if a policy that needs sites has none; `check_in` counts those of each policy."""
        for policy in self.policies if not layers else ():
            if policy.data_dependent:
                policy.check(layers)

    def check_in(self, model):
        for policy in self.policies:
            policy.check_in(model)

    def caution(self, site):
        return self.of(site).caution(site)

    def cautions(self, model):
        """Return the warnings of the policies, and one if windows of recurrent inputs cannot be those of the outputs."""
        messages = [message for policy in self.policies for message in policy.cautions(model)]
        outputs = next((policy for policy in self.policies if policy.kind == "output"), None)
        given = _rates_given(outputs, model) if isinstance(outputs, WindowDropout) else {}
        for policy in self._following():
            rates = {_path_of_outputs(path): rate for path, rate in _rates_given(policy, model).items()}
            if any(rate and rate != given.get(path) for path, rate in rates.items()):
                messages.append(
                    "window: recurrent inputs keep windows of their own, because outputs have no windows of their rate; "
                    "recurrent_sampling='outputs' needs dropout='window' and equal rates"
                )
        return messages

    def _following(self) -> list[WindowDropout]:
        """Return the policies of recurrent inputs whose windows are those of the outputs."""
        return [policy for policy in self.policies if isinstance(policy, WindowDropout) and policy.as_outputs]

    def variance_factors(self, layers):
        return self.policies[0].variance_factors(layers)

    def plan(self, site, rng):
        return self.of(site).plan(site, rng)

    def plans(self, model, rng):
        drawn = super().plans(model, rng)
        following = self._following()
        rates = {site.path: self.rate_of(site) for site in self.sites(model)} if following else {}
        for site in (site for policy in following for site in policy.sites(model)):
            path, (units, rows) = _path_of_outputs(site.path), site.shape
            outputs = drawn.get(path)
            if (
                site.path in drawn
                and isinstance(outputs, WindowPlan)
                and rates[path] == rates[site.path]
                and outputs.n == units
            ):
                drawn[site.path] = UnitWindow(units, outputs.start, outputs.count, outputs.scale, rows // units)
        return drawn

    def choose_from_flow(self, site, flow, layer, rng):
        return self.of(site).choose_from_flow(site, flow, layer, rng)

    @property
    def chooses_by(self):
        return tuple(policy.chooses_by for policy in self.policies)

    def choose_into(self, site, flow, layer, given):
        self.of(site).choose_into(site, flow, layer, given)

    def prepare(self, model):
        prepare = [policy.prepare(model) for policy in self.policies]

        def all_of_them(finish):
            for each in prepare:
                each(finish)

        return all_of_them

    def inference_policy(self, epoch):
        selecting = tuple(filter(None, (policy.inference_policy(epoch) for policy in self.policies)))
        return Together(*selecting) if selecting else None

    def progress(self, model):
        return [policy.progress(model) for policy in self.policies]

    def go_on(self, model, progress):
        for policy, own in zip(self.policies, progress, strict=True):
            if own is not None:
                policy.go_on(model, own)

    def pop_flops(self):
        return sum(policy.pop_flops() for policy in self.policies)

    def report(self):
        return {name: value for policy in self.policies for name, value in policy.report().items()}


def recurrent(policy: Dropout, steps: int | None = None, as_outputs: bool = False) -> Dropout:
    """Return the same policy for the recurrent input of layers instead of their outputs.

    Parameters
    ----------
    policy : Dropout
        It must drop the same units for a whole batch, as `RowDropout` does.
    steps : int, optional
        If it is given, units are drawn at each time step, for sequences of at most `steps` time steps; by default they are
        drawn once per sequence (Semeniuta et al. 2016, "Recurrent dropout without memory loss": per-step and per-sequence
        sampling). The period is drawn once per sequence, and the bias at each time step, so that at each time step a unit is
        dropped with the probability that the rate gives.
    as_outputs : bool, default=False
        If True, the recurrent input of a layer keeps the window of the layer's outputs; `Together` must then have a
        `WindowDropout` of the same rate for the outputs. The other units are not read in that step, so the gradients of their
        gates are 0, and an `LSTM` does not compute them. By default the two windows are independent, so that most units have a
        gradient in each step.

    Raises
    ------
    ValueError
        If samples drop different units, or units are chosen from data; if steps is given and the policy is not `RowDropout`; if
        steps is not positive; or if `as_outputs` is given and the policy is not `WindowDropout`.
    """
    if policy.kind != "output" or policy.by_sample:
        raise ValueError(f"recurrent_dropout must drop units of a whole batch, such as 'rdp', not {policy.name!r}")
    if policy.data_dependent:
        raise ValueError(
            f"recurrent_dropout must draw units before a step, such as 'rdp', not {policy.name!r}, which chooses them"
        )
    if steps is not None and not isinstance(policy, RowDropout):
        raise ValueError(f"recurrent: different units at each time step are possible with 'rdp' only, not {policy.name!r}")
    if as_outputs and not isinstance(policy, WindowDropout):
        raise ValueError(f"recurrent: the units of the outputs are possible with 'window' only, not {policy.name!r}")
    changes: dict[str, Any] = {} if steps is None else {"steps": check_count("recurrent: steps", steps)}
    if as_outputs:
        changes["as_outputs"] = True
    return policy.changed(kind="recurrent", **changes)


def _rates_given(policy: Dropout, model: Sequential) -> dict[str, Any]:
    """Return the rate, a number or a function of the epoch, that was given for each site, by path."""
    rate, sites = policy.rate, policy.sites(model)
    return {site.path: rate[site.number] if isinstance(rate, tuple) else rate for site in sites}


def _path_of_outputs(path: str) -> str:
    """Return the path of the outputs that are the recurrent inputs of a site with this path."""
    layer, dot, name = path.rpartition(".")
    return layer + dot + name.replace("recurrent_", "output_")
