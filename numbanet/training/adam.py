"""Adam and AdamW.

Adam   g += decay w;  m = b1 m + (1 - b1) g;  s = b2 s + (1 - b2) g²;  w -= lr m' / (sqrt(s') + eps), m', s' corrected for
       their start at 0
AdamW  w -= lr decay w, in place of g += decay w; then as Adam
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbanet_kernels.layouts.packed import AdamUpdate

from ..device import Device
from ..tensor import Tensor
from .optim import Optimizer, check_number


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, algorithm 1), as PyTorch defines it.

    Never lazy: its step without a gradient is not linear (a square root, eps, and corrections that change every step), so
    missed steps cannot be done as one without another result. t is counted for each parameter by itself: a step in which it
    has no gradient leaves it, its means and its t as they are.

    Parameters
    ----------
    parameters : iterable of Tensor
    learning_rate : float, default=0.001
    betas : tuple of float, default=(0.9, 0.999)
        How slowly the means of g and g² move, each in [0, 1).
    eps : float, default=1e-8
        Keeps the division finite.
    weight_decay : float, default=0.0
        L2 penalty: weight_decay * w is added to the gradient.
    clip_norm : float, optional
        As for `SGD`.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    states = 2
    decoupled = False  # whether the decay is taken off the weights, in place of being added to the gradient

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(parameters, learning_rate, weight_decay, clip_norm)
        self.betas = tuple(check_number("betas", b, 0, 1) for b in betas)
        self.eps = check_number("eps", eps, 0)
        self.places: list[int] = []  # by parameter, which of the numbers below are its own: by the steps that it has taken
        self.numbers: dict[tuple[Device, int], Any] = {}  # what kernels read: recorded steps find those of each step there

    def prepare(self, wanted=None):
        super().prepare(wanted)
        self.renumber()

    def renumber(self):
        together = {count: place for place, count in enumerate(sorted(set(self.counts)))}  # nearly always all have the same
        self.places = [together[count] for count in self.counts]
        devices = {p.device for p in self.parameters}
        for dev in devices:
            for count, place in together.items():
                self.numbers[dev, place] = dev.adam_numbers(
                    self.learning_rate,
                    *self.betas,
                    self.eps,
                    count + 1,
                    self.weight_decay,
                    self.decoupled,
                    out=self.numbers.get((dev, place)),
                )
        return tuple(self.places) if len(devices) == 1 and self.clip_norm is None else None

    def recorded_by(self):
        if len({p.device for p in self.parameters}) != 1 or self.clip_norm is not None:
            return None
        return tuple(self.places), [*self.numbers.values(), *(array for state in self.state for array in state)]

    def update(self, dev, due):
        places, together = dict(zip(self.parameters, self.places, strict=True)), {}
        for d in due:
            together.setdefault(places[d.parameter], []).append(AdamUpdate(*d.arrays, d.g, d.packing))
        for place, updates in together.items():
            dev.adam(updates, self.numbers[dev, place])

    def restore(self, saved):
        super().restore(saved)
        self.numbers = {}

    def __getstate__(self):
        return {**super().__getstate__(), "numbers": {}, "places": []}


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), as PyTorch defines it.

    In each step a weight first loses a share of itself, learning_rate * weight_decay, whatever its gradient has been. As a part
    of the gradient, as in `Adam`, the decay would be divided by the root of s', so that weights with large gradients would
    decay least.

    Parameters
    ----------
    parameters : iterable of Tensor
    learning_rate : float, default=0.001
    betas : tuple of float, default=(0.9, 0.999)
    eps : float, default=1e-8
        These as for `Adam`.
    weight_decay : float, default=0.01
        Share that a weight loses in a step, divided by the learning rate; 0.01 as in PyTorch.
    clip_norm : float, optional
        As for `SGD`.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    decoupled = True

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(parameters, learning_rate, betas, eps, weight_decay, clip_norm=clip_norm)
