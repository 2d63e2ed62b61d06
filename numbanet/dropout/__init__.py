"""Dropout policies. A site is a part of a model that dropout may drop. For each step and each site, a policy draws a plan,
which says which part of a product is computed."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from . import registry
from .auto import automatic
from .base import Dropout, Style
from .gates import GateSparsity
from .registry import *  # noqa: F403
from .registry import POLICIES
from .schedule import ConstantSchedule, EarlyDropout, LateDropout, Rate, SkewNormalSchedule, checked_rates, is_rate
from .sensitive import SensitiveDropout
from .together import Together, recurrent

__all__ = [
    "POLICIES",
    "ConstantSchedule",
    "Dropout",
    "EarlyDropout",
    "GateSparsity",
    "LateDropout",
    "Rate",
    "SensitiveDropout",
    "SkewNormalSchedule",
    "Style",
    "Together",
    "automatic",
    "policy",
    "recurrent",
]
__all__ += registry.__all__


def policy(
    dropout: str | Dropout | None, rate: Rate = 0.5, parameter: str = "dropout", kinds: Collection[str] | None = None
) -> Dropout:
    """Return the policy with the name `dropout` and the given rate. None means "none". A policy object is returned unchanged.
    Raise ValueError if the name is unknown, and TypeError for a class. Messages call it `parameter`, and offer `kinds`.
    """
    dropout = "none" if dropout is None else dropout
    if isinstance(dropout, Dropout):
        return dropout
    if isinstance(dropout, type) and issubclass(dropout, Dropout):
        raise TypeError(f"{parameter}: {dropout.__name__} is a class; give an object of it, such as {dropout.__name__}(0.5)")
    if isinstance(dropout, str) and (dropout, parameter) == ("auto", "dropout"):
        names = ", ".join(map(repr, kinds or POLICIES))
        raise ValueError(f"dropout 'auto' is chosen by Net and NetRegressor, from their data; choose {names}")
    if not isinstance(dropout, str) or dropout not in POLICIES:
        known = [*POLICIES, "auto"] if kinds is None else kinds
        raise ValueError(
            f"there is no {parameter} {dropout!r}{_hint(dropout, parameter, known)} one of {', '.join(map(repr, known))}, or a "
            "policy object such as RowDropout(0.5)"
        )
    return POLICIES[dropout](checked_rates(f"{parameter}_rate", rate))


def _hint(dropout: object, parameter: str, known: Collection[str]) -> str:
    """Return what was meant, if that can be guessed, and the word that asks for a choice."""
    if isinstance(dropout, str):
        similar = difflib.get_close_matches(dropout.lower(), known, 1)
        return f"; did you mean {similar[0]!r}? Choose" if similar else "; choose"
    if is_rate(dropout) or (callable(dropout) and not isinstance(dropout, type)):
        return f", but it is a rate: {parameter}='window', {parameter}_rate={dropout!r}; choose"
    return "; choose"
