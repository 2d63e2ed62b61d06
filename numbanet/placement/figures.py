"""`Figure`: a number, and whether it was measured, was estimated, or is unavailable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from ..arguments import is_real

MEASURED, ESTIMATED, UNAVAILABLE = TAGS = "measured", "estimated", "unavailable"


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a profile. A figure that is unavailable has no value: it is never taken as 0.

    Parameters
    ----------
    value : float or None
        A finite number of at least 0; None if and only if the figure is unavailable.
    tag : "measured", "estimated" or "unavailable", default="measured"
        Where the value comes from.

    Raises
    ------
    ValueError
        If the tag is unknown, or the value does not match it.
    """

    value: float | None
    tag: str = MEASURED

    def __post_init__(self) -> None:
        if self.tag not in TAGS:
            raise ValueError(f"Figure: the tag must be one of {', '.join(TAGS)}, got {self.tag!r}")
        if (self.value is None) != (self.tag == UNAVAILABLE):
            raise ValueError(f"Figure: the value of a figure that is {self.tag} cannot be {self.value!r}")
        if self.value is not None and not (is_real(self.value) and math.isfinite(self.value) and self.value >= 0):
            raise ValueError(f"Figure: a value must be a finite number of at least 0, got {self.value!r}")

    @property
    def known(self) -> bool:
        """True if the figure has a value."""
        return self.value is not None

    @property
    def number(self) -> float:
        """The value; inf if it is unavailable, so that nothing without a figure is chosen."""
        return math.inf if self.value is None else float(self.value)

    def times(self, factor: float) -> Figure:
        """Return the figure multiplied by a known number."""
        return Figure(None if self.value is None else self.value * factor, self.tag)

    def shown(self, form: str = ".3g") -> str:
        """Return the value as text: with "~" if it is estimated, "-" if it is unavailable."""
        return "-" if self.value is None else f"{'~' * (self.tag == ESTIMATED)}{self.value:{form}}"


NONE = Figure(None, UNAVAILABLE)
ZERO = Figure(0.0, MEASURED)  # what is known not to happen, such as a transfer from a device to itself


def total(figures: Iterable[Figure]) -> Figure:
    """Return the sum of figures. It is unavailable if one of them is, and otherwise estimated if one of them is."""
    value, tag = 0.0, MEASURED
    for figure in figures:
        if figure.value is None:
            return NONE
        value, tag = value + figure.value, weaker(tag, figure.tag)
    return Figure(value, tag)


def product(a: Figure, b: Figure, factor: float = 1.0) -> Figure:
    """Return factor * a * b."""
    if a.value is None or b.value is None:
        return NONE
    return Figure(factor * a.value * b.value, weaker(a.tag, b.tag))


def ratio(a: float, *below: Figure) -> Figure:
    """Return the number a divided by the product of the figures `below`; unavailable if a is 0 or one of them is not known."""
    product, tag = 1.0, MEASURED
    for figure in below:
        if not figure.value or not a:
            return NONE
        product, tag = product * figure.value, weaker(tag, figure.tag)
    return Figure(a / product, tag)


def weaker(a: str, b: str) -> str:
    """Return the weaker of two tags."""
    return max(a, b, key=TAGS.index)
