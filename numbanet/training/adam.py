"""Adam and AdamW.

Adam   g += decay w;  m = b1 m + (1 - b1) g;  s = b2 s + (1 - b2) g²;  w -= lr m' / (sqrt(s') + eps)
       where m' = m / (1 - b1^t) and s' = s / (1 - b2^t) correct for the start of m and s at 0; t is the number of the step
AdamW  w -= lr decay w replaces g += decay w; the rest is Adam
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from numbanet_kernels.layouts.packed import AdamUpdate, adam_numbers

from ..tensor import Tensor
from .optim import Optimizer, check_number


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, algorithm 1), as PyTorch defines it.

    The updates of Adam are never deferred. A step without a gradient is not linear, because of the square root, eps, and the
    corrections, which change in every step; so several steps cannot be combined into one with the same result. The step number
    t is counted for each parameter separately: if a parameter has no gradient in a step, its values, its means and its t do
    not change.

    Parameters
    ----------
    parameters : iterable of Tensor
        The tensors to train, each with requires_grad=True.
    learning_rate : float, default=0.001
        Step size, lr in the formulas of the module.
    betas : tuple of float, default=(0.9, 0.999)
        Decay rates of the running means of g and g², each in [0, 1).
    eps : float, default=1e-8
        A number that is added to the denominator, so that the denominator is not 0.
    weight_decay : float, default=0.0
        L2 penalty: weight_decay * w is added to the gradient.
    clip_norm : float, optional
        As for `SGD`.

    Raises
    ------
    ValueError
        If a number is out of range, or there are no parameters.
    """

    recordable = foretells = True
    states = 2
    decoupled = False  # True if the decay is subtracted from the weights instead of added to the gradient

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
        if not (isinstance(betas, (tuple, list, np.ndarray)) and len(betas) == 2):
            raise ValueError(f"betas must be two numbers in [0, 1), such as (0.9, 0.999), got {betas!r}")
        self.betas = tuple(check_number("betas", b, 0, 1) for b in betas)
        self.eps = check_number("eps", eps, 0)

    def numbers(self, count):
        return adam_numbers(self.learning_rate, *self.betas, self.eps, count + 1, self.weight_decay, self.decoupled)

    def update(self, dev, due, numbers):
        dev.adam([AdamUpdate(*d.arrays, d.g, d.packing) for d in due], numbers)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), as PyTorch defines it.

    Each step first multiplies a weight by 1 - learning_rate * weight_decay, independently of its gradients. In `Adam` the decay
    is part of the gradient and is divided by the square root of s', so that weights with large gradients decay least.

    Parameters
    ----------
    parameters, learning_rate, betas, eps, clip_norm
        As for `Adam`.
    weight_decay : float, default=0.01
        Each step multiplies the weights by 1 - learning_rate * weight_decay. The default is that of PyTorch.
    """

    recordable = foretells = True
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
