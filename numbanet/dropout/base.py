"""Dropout: what a policy is; and the two that skip no work."""
from __future__ import annotations

import abc
import numbers
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..layers import Site
from ..plans import BernoulliPlan, Plan
from ..tensor import Tensor

Rate = float | Sequence[float]


class Dropout(abc.ABC):
    """Base of the policies: a rate for each droppable layer, and `plan`, which subclasses define.

    Parameters
    ----------
    rate : float or sequence of float, default=0.5
        Probability to drop, in [0, 1); a sequence gives one for each droppable layer, in order.

    Raises
    ------
    ValueError
        If a rate is not a number in [0, 1).
    """

    name: ClassVar[str]
    looks: ClassVar[bool] = False    # whether plans depend on what comes to a layer (`look`): then passes are not recorded
    shuffle: ClassVar[bool] = False  # whether features should come centred and in random order (`Shuffle`)

    def __init__(self, rate: Rate = 0.5) -> None:
        several = isinstance(rate, (Sequence, np.ndarray)) and not isinstance(rate, str)
        rates = tuple(rate) if several else (rate,)
        for r in rates:
            if isinstance(r, bool) or not isinstance(r, numbers.Real) or not 0 <= r < 1:
                raise ValueError(f"dropout_rate must be a number in [0, 1), or one for each hidden layer; got {rate!r}")
        if not len(rates):
            raise ValueError("dropout_rate is an empty sequence: give one rate, or one for each hidden layer")
        self.rate = tuple(map(float, rates)) if several else float(rate)

    def rate_of(self, site: Site | int) -> float:
        """The rate of a site, or of that number."""
        number = site.number if isinstance(site, Site) else site
        return self.rate[number] if isinstance(self.rate, tuple) else self.rate

    def check(self, layers: int) -> None:
        """ValueError unless there is one rate for all droppable layers, or one for each."""
        if isinstance(self.rate, tuple) and len(self.rate) != layers:
            raise ValueError(f"dropout_rate has {len(self.rate)} entries for {layers} hidden layers")

    def concern(self, site: Site) -> str | None:
        """What is unwise about dropping parts of a site, in a sentence, or None."""
        return None

    def keeps(self, layers: int) -> list[float]:
        """For each of the `Linear` layers, the last one too, by what the variance of its initial weights is multiplied.

        Here 1: a policy that thins out sums says by how much (`Linear`, keep).
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

    def look(self, site: Site, x: Tensor, w: Tensor) -> Plan | None:
        """The plan of a site for which none was drawn, from the layer's input and weight, in the step. Called where `looks`."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items() if k[0] != '_')})"


class NoDropout(Dropout):
    """No dropout: nothing is dropped."""

    name = "none"

    def plan(self, site, rng):
        return None


class BernoulliDropout(Dropout):
    """Conventional (inverted) dropout: activations of each sample are zeroed independently, the others scaled by 1 / (1 - p).

    The baseline that the patterns are compared with (Srivastava et al. 2014). No work is skipped.
    """

    name = "bernoulli"

    def keeps(self, layers):
        return [1.0, *(1 - self.rate_of(layer) for layer in range(layers))]  # what is dropped of a layer, the next one misses

    def plan(self, site, rng):
        rate = self.rate_of(site)
        key = int(rng.integers(2**63))
        return BernoulliPlan(site.shape[0], rate, key, 1 / (1 - rate)) if rate else None
