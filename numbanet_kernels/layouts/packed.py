"""Layouts of packed gradients and lazy blocks, and the arguments of an update."""

from __future__ import annotations

from typing import Any, NamedTuple


class Packing(NamedTuple):
    """The layout of a packed gradient of an (R, C) weight: int32 arrays, defined in `families.update.packed`."""

    row_pos: Any  # (R,)
    row_class: Any  # (R,)
    cols: Any  # (L, K)
    col_pos: Any  # (L, C)


class LazyBlocks(NamedTuple):
    """The steps that blocks of a weight have skipped, defined in `families.update.lazy_sgd`."""

    lag: Any  # (U, B) int32
    after: Any  # (U, B) int32
    current: Any  # (U, B) bool
    wanted: Any  # (U, B) bool
    powers: Any  # (K, 4) float32
    block: tuple[int, int]


class Into(NamedTuple):
    """Where an update also writes a packed copy of the wanted blocks of a weight (`families.update.family`)."""

    packed: Any  # float32 array of the packed blocks
    rows: Any  # (R,) int64: for each row of the weight, its row in `packed`


class SGDUpdate(NamedTuple):
    """A weight, its velocity and its gradient."""

    w: Any
    v: Any
    g: Any
    packing: Packing | None = None  # the layout of g; None if g is dense
    lazy: LazyBlocks | None = None  # None if all blocks are up to date
    into: Into | None = None


def adam_numbers(
    lr: float, beta1: float, beta2: float, eps: float, step: int, decay: float = 0.0, decoupled: bool = False
) -> tuple[float, ...]:
    """Return the numbers that `adam` reads in step t: lr, b1, b2, eps, 1 / (1 - b1^t), 1 / (1 - b2^t), the factor of w that is
    added to g, the factor by which w is multiplied, and 1 - b1 and 1 - b2, which float32 numbers b1 and b2 near 1 do not give.
    """
    of_g, left = (0.0, 1 - lr * decay) if decoupled else (decay, 1.0)
    return lr, beta1, beta2, eps, 1 / (1 - beta1**step), 1 / (1 - beta2**step), of_g, left, 1 - beta1, 1 - beta2


class AdamUpdate(NamedTuple):
    """A weight, its two moments and its gradient."""

    w: Any
    m: Any
    s: Any
    g: Any
    packing: Packing | None = None
