"""Dropout rates that change with the epoch: a rate may be any function that maps an epoch, counted from 0, to a number in [0,
1).

`Dropout.at(epoch)` is the policy with the rates of one epoch; training calls it at the start of the epoch.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..arguments import check_takes, is_integer, is_real

Part = TypeVar("Part", bound="_PartOfFit")
Schedule = Callable[[int], float]
Rate = float | Schedule | Sequence[float | Schedule]


def is_rate(value: Any) -> bool:
    """Return True if `value` is a number in [0, 1)."""
    return is_real(value) and 0 <= value < 1


def _is_finite(value: Any) -> bool:
    return is_real(value) and math.isfinite(value)


def checked_rates(name: str, rate: Any) -> Any:
    """Return a rate or function of the epoch, or a tuple of them for a sequence.

    Raises
    ------
    ValueError
        If a rate is not a number in [0, 1); the message begins with `name`.
    TypeError
        If a function does not take an epoch, or is a class; the message begins with `name`.
    """
    several = isinstance(rate, np.ndarray) and rate.ndim > 0 or (isinstance(rate, Sequence) and not isinstance(rate, str))
    rates = tuple(rate) if several else (rate,)
    for each in rates:
        if callable(each):
            check_takes(name, each, "one argument, the epoch, counted from 0", 0)
        elif not is_rate(each):
            raise ValueError(
                f"{name} must be a number in [0, 1) or a function that returns one for an epoch, or one of these for each "
                f"layer; got {rate!r}"
            )
    if not rates:
        raise ValueError(f"{name} is an empty sequence: give one rate, or one for each layer")
    rates = tuple(each if callable(each) else float(each) for each in rates)
    return rates if several else rates[0]


def rate_at(rate: float | Schedule, epoch: int) -> float:
    """Return the rate of an epoch for a number or a function of the epoch; raise ValueError if the function returns no rate."""
    if not callable(rate):
        return rate
    value = rate(epoch)
    if not is_rate(value):
        raise ValueError(f"dropout_rate gave {value!r} for epoch {epoch}, counted from 0; it must be a number in [0, 1)")
    return float(value)


def mean(rates: Sequence[float]) -> float:
    """Return the mean of rates. If all rates are equal, it is exactly this rate, without rounding."""
    return rates[0] + math.fsum(rate - rates[0] for rate in rates) / len(rates)


@dataclasses.dataclass(frozen=True)
class ConstantSchedule:
    """The same rate in every epoch, for comparison with other schedules. Training is the same as with the plain number.

    Parameters
    ----------
    rate : float
        Probability to drop, in [0, 1).

    Raises
    ------
    ValueError
        If the rate is not a number in [0, 1).
    """

    rate: float

    def __post_init__(self) -> None:
        if not is_rate(self.rate):
            raise ValueError(f"ConstantSchedule: rate must be a number in [0, 1), got {self.rate!r}")

    def __call__(self, epoch: int) -> float:
        """Return the rate of an epoch."""
        return float(self.rate)


class _PartOfFit:
    """Base class of `EarlyDropout` and `LateDropout`: the rate changes after a share of the epochs. The class attribute
    `change` is the name of the attribute that holds this share.
    """

    rate: float
    epochs: int | None
    change: ClassVar[str]

    def __post_init__(self) -> None:
        kind, share = type(self).__name__, getattr(self, self.change)
        if not is_rate(self.rate):
            raise ValueError(f"{kind}: rate must be a number in [0, 1); got {self.rate!r}")
        if not (is_real(share) and 0 <= share <= 1):
            raise ValueError(f"{kind}: {self.change} must be a share of the epochs, a number in [0, 1]; got {share!r}")
        if self.epochs is not None and not (is_integer(self.epochs) and self.epochs > 0):
            raise ValueError(f"{kind}: epochs must be None or an integer of at least 1; got {self.epochs!r}")

    def over(self: Part, epochs: int) -> Part:
        """Return the schedule for a fit of `epochs` epochs; this schedule itself if its parameter `epochs` is set."""
        return self if self.epochs is not None else dataclasses.replace(self, epochs=epochs)  # type: ignore[type-var]

    def _before(self, epoch: int) -> bool:
        """Return True if an epoch comes before the change of the rate; epochs after the fit are like its last epoch."""
        if self.epochs is None:
            raise ValueError(f"{self!r} is a share of the epochs of a fit: give epochs=, or take schedule.over(epochs)")
        share = getattr(self, self.change)
        count = round(share * self.epochs)
        if 0 < share < 1:  # both parts have an epoch; of a single epoch, the second one
            count = min(max(count, 1), self.epochs - 1)
        return min(epoch, self.epochs - 1) < count


@dataclasses.dataclass(frozen=True)
class EarlyDropout(_PartOfFit):
    """Dropout with a constant rate in the first part of a fit, and no dropout after it: the end of the fit trains the whole
    network.

    Steps with a high rate cost few FLOPs, and noisy gradients suffice at the beginning of training. So the fit does fewer FLOPs
    than with a constant lower rate, in the same number of epochs (Liu et al. 2023, "Dropout Reduces Underfitting", drop early
    for accuracy; here it is for time).

    Parameters
    ----------
    rate : float
        Probability to drop before the change, in [0, 1).
    until : float, default=0.75
        The share of the epochs of a fit that come before the change, in [0, 1].
    epochs : int, optional
        The number of epochs of which `until` is a share; by default the number of epochs of the fit. Each call of `partial_fit`
        is an epoch; the default is then the estimator's parameter `epochs`, or 20.

    Raises
    ------
    ValueError
        If an argument is out of range, or if the schedule is called without `epochs` outside a fit.
    """

    rate: float
    until: float = 0.75
    epochs: int | None = None
    change = "until"

    def __call__(self, epoch: int) -> float:
        """Return the rate of an epoch, counted from 0."""
        return float(self.rate) if self._before(epoch) else 0.0


@dataclasses.dataclass(frozen=True)
class LateDropout(_PartOfFit):
    """No dropout in the first part of a fit, and dropout with a constant rate after it (Liu et al. 2023, "Dropout Reduces
    Underfitting", section 4).

    Parameters
    ----------
    rate : float
        Probability to drop after the change, in [0, 1).
    since : float, default=0.25
        The share of the epochs of a fit that come before the change, in [0, 1].
    epochs : int, optional
        As for `EarlyDropout`.
    """

    rate: float
    since: float = 0.25
    epochs: int | None = None
    change = "since"

    def __call__(self, epoch: int) -> float:
        """Return the rate of an epoch, counted from 0."""
        return 0.0 if self._before(epoch) else float(self.rate)


@dataclasses.dataclass(frozen=True)
class SkewNormalSchedule:
    """Rates that start low, rise, and end low, with a given mean.

    At the start of training and near convergence the noise of dropout should be small; in between the rate can be high. The
    rates follow the density of the skew normal distribution over the training time, from 0 to 1,

        f(y) = 2 / σ φ((y - μ) / σ) Φ(λ (y - μ) / σ)                                    (eq. 4)
        centre = μ + m σ         with   m = sqrt(2 / π) λ / sqrt(1 + λ²)                (eq. 5)
        spread² = (1 - m²) σ²                                                           (eq. 6)

    where φ and Φ are the density and the cumulative distribution function of the standard normal. The rate of an epoch is
    min(c f, ceiling), where f is the density at the middle of the epoch. The factor c makes the mean of the rates over the
    epochs equal to the given rate, up to rounding. If the ceiling limits some rates, the rates of the other epochs are higher
    in proportion. After the last of its epochs, as in `partial_fit`, a schedule keeps its last rate.

    Parameters
    ----------
    rate : float
        Mean of the rates over the epochs, in [0, 1).
    epochs : int
        Number of epochs, which should be that of the fit: otherwise the mean differs. A fit of more epochs warns.
    skew : float, default=-2.0
        λ. If it is below 0, the rate rises slowly and falls fast, as described in the paper; 0 gives the normal distribution.
    centre : float, default=0.5
        Expectation of the distribution, as a share of the training, in [0, 1].
    spread : float, default=0.25
        Standard deviation of the distribution, as a share of the training. With the defaults, for ten epochs or more and a mean
        up to 0.6, the first and the last rate are less than half the mean.
    ceiling : float, optional
        Largest rate, at least `rate` and below 1. The default is (1 + rate) / 2, so that the kept share of every epoch is at
        least half of the average kept share. Then the largest period of a pattern, which determines the cost in accuracy
        (`numbanet.dropout`), at most doubles.

    Attributes
    ----------
    rates : tuple of float
        The rate of each epoch.

    Raises
    ------
    ValueError
        If an argument is out of range, or if the mean cannot be reached with rates up to the ceiling.

    Notes
    -----
    *Approximate Random Dropout for DNN training acceleration in GPGPU*, section 5.3. The paper does not say how the density,
    whose integral is 1, becomes a rate; the factor and the ceiling are choices of this implementation.
    """

    rate: float
    epochs: int
    skew: float = -2.0
    centre: float = 0.5
    spread: float = 0.25
    ceiling: float | None = None
    rates: tuple[float, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        right = {
            "rate": (is_rate(self.rate), "a number in [0, 1)"),
            "epochs": (
                isinstance(self.epochs, numbers.Integral) and self.epochs is not True and self.epochs > 0,
                "an integer of at least 1",
            ),
            "skew": (_is_finite(self.skew), "a finite number"),
            "centre": (_is_finite(self.centre) and 0 <= self.centre <= 1, "a number in [0, 1]"),
            "spread": (_is_finite(self.spread) and self.spread > 0, "a positive number"),
            "ceiling": (
                self.ceiling is None or is_rate(self.ceiling) and is_rate(self.rate) and self.ceiling >= self.rate,
                f"None or a number in [0, 1), and at least the mean rate, {self.rate!r}",
            ),
        }
        for name, (fits, wanted) in right.items():
            if not fits:
                raise ValueError(f"SkewNormalSchedule: {name} must be {wanted}; got {getattr(self, name)!r}")
        ceiling = (1 + self.rate) / 2 if self.ceiling is None else self.ceiling
        object.__setattr__(self, "rates", self._rates(float(self.rate), float(ceiling)))

    def _rates(self, rate: float, ceiling: float) -> tuple[float, ...]:
        density = self._density()
        rates = _scaled(density, rate, ceiling)
        if rates is None:
            raise ValueError(
                f"SkewNormalSchedule: no factor gives the mean {rate} under the ceiling {ceiling}, as the density is 0 in "
                f"{np.count_nonzero(density == 0)} of {self.epochs} epochs; take a larger spread, a skew nearer to 0, a higher "
                "ceiling or a lower rate"
            )
        return tuple(rates.tolist())

    def _density(self) -> np.ndarray:
        """Return f (epochs,), the density at the middle of each epoch: eqs. 4 to 6."""
        from scipy.stats import skewnorm

        m = math.sqrt(2 / math.pi) * self.skew / math.hypot(1, self.skew)
        sigma = self.spread / math.sqrt(1 - m * m)
        return skewnorm.pdf((np.arange(self.epochs) + 0.5) / self.epochs, self.skew, self.centre - m * sigma, sigma)

    def __call__(self, epoch: int) -> float:
        """Return the rate of an epoch, counted from 0."""
        return self.rates[min(epoch, self.epochs - 1)]

    def caution(self, epochs: range) -> str | None:
        """Return the text of a warning if a fit of these epochs, counted from 0, goes on after the last rate; else None."""
        if not epochs.start < self.epochs < epochs.stop:
            return None
        return (
            f"SkewNormalSchedule: epochs={self.epochs}, and the fit has {epochs.stop}, of which the others have the last rate, "
            f"{self.rates[-1]:.2g}, so that the mean is another one than {self.rate:g}: make it with epochs={epochs.stop}"
        )


def _scaled(density: np.ndarray, mean: float, ceiling: float) -> np.ndarray | None:
    """Return min(c density, ceiling) for the factor c with which the mean of the result is `mean`; None if there is no such
    factor.

    If the ceiling limits the k largest of the n values, c = (n mean - k ceiling) / (sum of the other values). k is the smallest
    number with which none of the other values exceeds the ceiling.
    """
    count, falling = len(density), np.sort(density)[::-1]
    others = np.cumsum(falling[::-1])[::-1]
    reached = np.flatnonzero(others)  # the candidates for k
    with np.errstate(over="ignore"):  # an infinite factor does not fit
        factors = (count * mean - reached * ceiling) / others[reached]
    fits = factors * falling[reached] <= ceiling
    if len(reached) == count:
        fits[-1] = True  # k = n - 1 always fits, because mean <= ceiling, but rounding may hide it
    if not fits.any():
        return None
    return np.minimum(factors[np.argmax(fits)] * density, ceiling)
