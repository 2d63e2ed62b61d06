"""`check_grad` checks the gradient of a function. J is the Jacobian of the function; for random u and v it tests

    <v, J u> = <Jᵀ v, u>

where central differences compute J u, and the vjps of the function compute Jᵀ v. Two random projections check every entry of
every vjp at once, at any size. The Python package autograd has the same test.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence

import numpy as np

from .autograd import no_grad
from .tensor import Tensor


def check_grad(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], step: float = 1e-2, tolerance: float = 2e-2, seed: int = 0
) -> float:
    """Compare the gradient of `function(*inputs)` with central differences along one random direction per input.

    Parameters
    ----------
    function : callable
        Maps tensors to one tensor.
    inputs : sequence of Tensor
        The point at which to check; inputs that require a gradient are checked one after another.
    step : float, default=1e-2
        The largest change of an element of the input. Float32 has 7 digits: with a step of 1e-2, the difference of two outputs
        has about 4 correct digits. Its truncation error is O(step²).
    tolerance : float, default=2e-2
        Largest accepted difference between the two sides of the equation, divided by the largest of three numbers: the
        magnitudes of both sides, and 0.01 |J u| |v|.
    seed : int, default=0
        Seed of the directions.

    Returns
    -------
    float
        The largest relative error.

    Raises
    ------
    AssertionError
        If an error exceeds the tolerance; the message names the input.
    TypeError
        If an input, or what the function returns, is not a tensor.
    ValueError
        If no input requires a gradient.
    """
    rng, worst = np.random.default_rng(seed), 0.0
    if isinstance(inputs, Tensor) or not all(isinstance(x, Tensor) for x in inputs):
        raise TypeError("check_grad: inputs must be a list of tensors; for one tensor x write [x]")
    checked = [i for i, x in enumerate(inputs) if x.requires_grad]
    if not checked:
        raise ValueError("check_grad: none of the inputs requires a gradient")
    for x in inputs:
        x.zero_grad()
    y = _value(function, inputs)
    v = rng.standard_normal(y.shape)
    y.backward(v)
    for i in checked:
        x = inputs[i]
        u = rng.standard_normal(x.shape)
        gradient = np.zeros(x.shape) if x.grad is None else np.asarray(x.grad.numpy(), np.float64)
        difference = _along(function, inputs, i, u, step)
        found, expected = float(np.sum(gradient * u)), float(np.sum(v * difference))
        scale = max(abs(found), abs(expected), 1e-2 * float(np.linalg.norm(v) * np.linalg.norm(difference)), 1e-6)
        error = abs(found - expected) / scale
        worst = max(worst, error)
        if not error <= tolerance:
            raise AssertionError(
                f"check_grad: input {i} of shape {x.shape}: the gradient gives {found:.6g}, differences give "
                f"{expected:.6g} (relative error {error:.2g} > {tolerance:g})"
            )
    return worst


def _value(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Return `function(*inputs)`; raise TypeError unless it is a tensor."""
    y = function(*inputs)
    if not isinstance(y, Tensor):
        raise TypeError(f"check_grad: function must return a Tensor, got {reprlib.repr(y)}")
    return y


def _along(function: Callable[..., Tensor], inputs: Sequence[Tensor], i: int, u: np.ndarray, step: float) -> np.ndarray:
    """Return (f(x + h u) - f(x - h u)) / 2h, where x is input i of the function f, and h is chosen so that `step` is the
    largest change of an element of x.
    """
    h = step / max(float(np.max(np.abs(u), initial=0.0)), 1e-30)
    sides = []
    with no_grad():
        for sign in (1, -1):
            moved = Tensor(np.asarray(inputs[i].numpy(), np.float64) + sign * h * u, inputs[i].device)
            sides.append(np.asarray(function(*inputs[:i], moved, *inputs[i + 1 :]).numpy(), np.float64))
    return (sides[0] - sides[1]) / (2 * h)
