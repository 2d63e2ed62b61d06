"""The policy "auto": a rule, based on recorded runs, that chooses a policy before training.

The rule, for a network given by its widths:

    fewer than FEATURES features          none: of tables, dropout made networks learn less, but where targets were noisy, which
                                          is not known before training (`bench tables`)
    a hidden layer narrower than WIDTH    none: windows gain little time there, or none (`bench small`)
    otherwise                             window in the first three quarters of the epochs: at the end at least as accurate as
                                          no dropout, in half to two thirds of the time, on MNIST's and Fashion-MNIST's
                                          first 5,000 images and on all of Fashion-MNIST (`bench time-to-accuracy`)

Other networks, with convolutions or for sequences, train without dropout, because there are no recorded runs of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..arguments import is_real
from .base import Dropout, NoDropout
from .schedule import EarlyDropout, Rate
from .window import WindowDropout

FEATURES, WIDTH = 256, 512


def automatic(widths: Sequence[int] | None, rate: Rate = 0.5) -> Dropout:
    """Choose a policy: with fewer than 256 features, or a hidden layer narrower than 512, none; otherwise windows in the first
    three quarters of the epochs. Networks with other layers, or for sequences, train without dropout.

    Parameters
    ----------
    widths : sequence of int or None
        Widths of all layers, from features to outputs; None if they are not known before training.
    rate : float, callable, or sequence of these, default=0.5
        Probability to drop if the rule chooses dropout. A number holds in the first three quarters of the epochs; anything else
        is used as it is.

    Returns
    -------
    Dropout
        Its attribute `reason` says in words what was chosen and why.
    """
    if widths is None:
        return _none("there is no rule for layers that are not given by their widths, and for partial_fit")
    features, *hidden, _ = widths
    if features < FEATURES:
        return _none(f"{features} features are fewer than {FEATURES}, as in tables, where it gains only if targets are noisy")
    if not hidden or min(hidden) < WIDTH:
        return _none(f"a hidden layer is narrower than {WIDTH}, where dropping saves little time")
    early = EarlyDropout(rate) if is_real(rate) else None
    when = "" if early is None else f" in the first {early.until:.0%} of the epochs"
    why = f"hidden layers have at least {WIDTH} neurons, so that dropping saves time"
    return WindowDropout(rate if early is None else early).changed(reason=f"window{when}: {why}")


def _none(why: str) -> Dropout:
    return NoDropout(0.0).changed(reason=f"none: {why}")
