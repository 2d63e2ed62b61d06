"""Dropout policies. A site is a part of a model that dropout may drop. For each step and each site, a policy draws a plan,
which says which part of a product is computed."""

from __future__ import annotations

import difflib
import numbers

from . import registry
from .auto import automatic
from .base import Dropout, Style
from .gates import GateSparsity
from .registry import *  # noqa: F403
from .registry import POLICIES
from .schedule import ConstantSchedule, EarlyDropout, LateDropout, Rate, SkewNormalSchedule
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


def policy(dropout: str | Dropout | None, rate: Rate = 0.5) -> Dropout:
    """Return the policy with the name `dropout` and the given rate. None means "none". A policy object is returned unchanged.
    Raise ValueError if the name is unknown, and TypeError for a class.
    """
    dropout = "none" if dropout is None else dropout
    if isinstance(dropout, Dropout):
        return dropout
    if isinstance(dropout, type) and issubclass(dropout, Dropout):
        raise TypeError(f"dropout: {dropout.__name__} is a class; give an object of it, such as {dropout.__name__}(0.5)")
    if isinstance(dropout, str) and dropout == "auto":
        raise ValueError(
            f"dropout 'auto' is chosen by Net and NetRegressor, from their data; choose {', '.join(map(repr, POLICIES))}"
        )
    if not isinstance(dropout, str) or dropout not in POLICIES:
        kinds = ", ".join(map(repr, [*POLICIES, "auto"]))
        raise ValueError(
            f"there is no dropout {dropout!r}{_hint(dropout)} one of {kinds}, or a policy object such as RowDropout(0.5)"
        )
    return POLICIES[dropout](rate)


def _hint(dropout: object) -> str:
    """Return what was meant, if that can be guessed, and the word that asks for a choice."""
    if isinstance(dropout, str):
        similar = difflib.get_close_matches(dropout.lower(), [*POLICIES, "auto"], 1)
        return f"; did you mean {similar[0]!r}? Choose" if similar else "; choose"
    if callable(dropout) or isinstance(dropout, numbers.Real):
        return f", but it is a rate: dropout='window', dropout_rate={dropout!r}; choose"
    return "; choose"
