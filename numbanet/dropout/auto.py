"""The policy "auto": a rule, based on recorded runs, that chooses a policy before training.

The rule, for a network given by its widths:

    fewer than FEATURES features          none: of tables, dropout made networks learn less, but where targets were noisy, which
                                          is not known before training (`bench tables`)
    a hidden layer narrower than WIDTH    none: windows gain little time there, or none (`bench small`)
    fewer than SAMPLES samples            batchwise in the first three quarters of the epochs: on the first 1,000 images of
                                          MNIST and of Fashion-MNIST it ended above no dropout, and windows did not
                                          (`bench time-to-accuracy`)
    otherwise                             window in the first three quarters of the epochs: at the end at least as accurate as
                                          no dropout on their first 5,000 images, and within half a point of it on all images,
                                          in half to three quarters of the time

Other networks, with convolutions or for sequences, train without dropout, because there are no recorded runs of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..arguments import is_real
from .base import Dropout, NoDropout
from .batchwise import BatchwiseDropout
from .schedule import EarlyDropout, Rate, checked_rates
from .window import WindowDropout

FEATURES, WIDTH, SAMPLES = 256, 512, 2500


def automatic(widths: Sequence[int] | None, rate: Rate = 0.5, samples: int | None = None) -> Dropout:
    """Choose a policy: with fewer than 256 features, or a hidden layer narrower than 512, none; otherwise windows in the
    first three quarters of the epochs, or random sets of neurons if there are fewer than 2,500 samples. Networks with other
    layers, or for sequences, train without dropout.

    Parameters
    ----------
    widths : sequence of int or None
        Widths of all layers, from features to outputs; None if they are not known before training.
    rate : float, callable, or sequence of these, default=0.5
        Probability to drop if the rule chooses dropout. A number holds in the first three quarters of the epochs; anything else
        is used as it is.
    samples : int, optional
        Number of samples; by default many.

    Returns
    -------
    Dropout
        Its attribute `reason` says in words what was chosen and why.
    """
    rate = checked_rates("dropout_rate", rate)
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
    chosen = rate if early is None else early
    if samples is not None and samples < SAMPLES:
        few = f"with fewer than {SAMPLES} samples, here {samples}, random sets of neurons learned more than windows"
        return BatchwiseDropout(chosen).changed(reason=f"batchwise{when}: {why}, and {few}")
    return WindowDropout(chosen).changed(reason=f"window{when}: {why}")


def _none(why: str) -> Dropout:
    return NoDropout(0.0).changed(reason=f"none: {why}")
