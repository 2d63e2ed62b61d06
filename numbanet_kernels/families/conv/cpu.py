"""Convolutions on the CPU: `choose` decides whether results are computed by Winograd's filtering (`cpu_winograd`; of kept
tiles, `cpu_winograd_tiles`, or of kept channels, `cpu_winograd_blocks`) or, at listed positions, for all images of a position
at once (`cpu_position`). If not, it decides which are computed directly (`cpu_direct`); the others are computed from gathered
patches (`cpu_im2col`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...host import threads
from ...layouts.windows import Blocks, Window
from ...runtime.declare import tape
from . import cpu_direct, cpu_im2col, cpu_position, cpu_winograd, cpu_winograd_blocks, cpu_winograd_tiles
from .cpu_direct import Positions, Sight
from .family import check, positions_of


class Plan(NamedTuple):
    """The kept part of the im2col matrix; `family` defines rows and blocks."""

    groups: int = 1
    rows: Any = None  # increasing int32 list, None for all
    together: int = 1  # number of consecutive images that keep the same positions
    tiles: Any = None  # increasing int32 list of the tiles to which the rows belong, if they are whole tiles
    side: int = 1  # of tiles
    blocks: Blocks | None = None


class Choice(NamedTuple):
    """How results are computed: all by Winograd's filtering, or some directly, with one image per lane of a vector.

    winograd : True if all results are computed by Winograd's filtering
    by_position : True if all results are computed for all images of a position at once
    sight : geometry of the pixels that positions read; None if nothing is computed directly
    lists : the positions that tiles of images compute; None if the images of a tile keep different positions, or if
        threads cannot share the tiles equally
    y, dw : True if computed directly
    dx : "convolved", as a convolution of dz, "spread", each gradient added to the pixels that its position reads, or ""
    """

    winograd: bool = False
    by_position: bool = False
    sight: Sight | None = None
    lists: Positions | None = None
    y: bool = False
    dx: str = ""
    dw: bool = False


def choose(window: Window, shape: tuple[int, ...], plan: Plan) -> Choice:
    """The fastest choice for images and outputs (N, H, W, C, O)."""
    *images, outs = shape
    if plan.groups > 1 or plan.blocks is not None:
        return Choice(plan.groups == 1 and cpu_winograd_blocks.suits(window, images, outs, plan.blocks))
    whole = plan.rows is None or plan.tiles is not None
    if whole and cpu_winograd.suits(window, images, outs, None if plan.tiles is None else plan.side):
        return Choice(winograd=True)
    if plan.rows is not None and cpu_position.suits(window, images, outs):
        return Choice(by_position=True)
    if not cpu_direct.suits(window, images, outs):
        return Choice()
    count, *_, channels = images
    sight = cpu_direct.sight(window, *images[1:])
    parts = threads.parts(flops=sight.flops(count, outs))
    lists = cpu_direct.positions(sight, plan.rows, count, parts, plan.together)
    tiled = lists is not None and parts <= cpu_direct.tiles_of(count)  # every thread has a tile
    few = sight.depth * outs <= cpu_direct.WEIGHTS and outs <= cpu_direct.OUTPUTS
    sooner = few or (plan.rows is None and outs <= cpu_direct.WIDER * channels)
    dx = ""
    if sooner and plan.rows is None and cpu_direct.convolves_back(window, images, outs):
        dx = "convolved"
    elif sooner and tiled:
        dx = "spread"
    return Choice(False, False, sight, lists, lists is not None, dx, tiled and few)


def _increasing(op, lists, below):
    """ValueError unless the numbers of each row increase and are in 0 … below - 1."""
    if lists.size and (
        lists[..., :1].min() < 0
        or lists[..., -1:].max() >= below
        or (lists.shape[-1] > 1 and (lists[..., 1:] <= lists[..., :-1]).any())
    ):
        raise ValueError(f"{op}: kept indices must increase and be from 0 to {below - 1}")


def _planned(op, x, w, positions, groups, listed, blocks):
    """The plan; ValueError unless its indices increase. During a recording they are not checked: replays read other indices,
    which were checked when their plans were made.
    """
    plan = Plan(groups, *listed, blocks)
    if tape.get() is not None:
        return plan
    if plan.rows is not None:
        _increasing(op, plan.rows, x.shape[0] * math.prod(positions))
    if plan.tiles is not None:
        _increasing(op, plan.tiles, x.shape[0] * math.prod(-(-n // plan.side) for n in positions))
    if plan.blocks is not None:
        _increasing(op, plan.blocks.kept, -(-math.prod(w.shape[1:]) // plan.blocks.width))
        if plan.blocks.channels is not None:
            _increasing(op, plan.blocks.channels, w.shape[1] // plan.blocks.width)
    return plan


def conv2d_cpu(x, w, window, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None):
    """y[r, o] = act(scale sum_k A[r, k] w[o, k] + bias[o]), where A is the im2col matrix of x."""
    op, listed = "conv2d (cpu)", positions_of(rows)
    positions = check(op, x, w, window, groups, bias, rows=listed, blocks=blocks)
    plan = _planned(op, x, w, positions, groups, listed, blocks)
    with threads.session():
        choice = choose(window, (*x.shape, len(w)), plan)
        if choice.winograd and plan.tiles is not None:
            return cpu_winograd_tiles.convolved(x, w, window, positions, plan.tiles, plan.side, bias, relu, scale)
        if choice.winograd and plan.blocks is not None:
            return cpu_winograd_blocks.convolved(x, w, window, positions, plan.blocks, bias, relu, scale)
        if choice.winograd:
            return cpu_winograd.convolved(x, w, window, positions, bias, relu, scale)
        if choice.by_position:
            return cpu_position.convolved(x, w, window, positions, plan.rows, bias, relu, scale)
        if choice.y:
            return cpu_direct.convolved(choice, x, w, positions, bias, relu, scale)
        return cpu_im2col.convolved(x, w, window, plan, positions, bias, relu, scale)


def conv2d_grad_cpu(dy, x, w, window, groups=1, where=None, scale=1.0, rows=None, blocks=None, wants_dx=True):
    """(dx or None, dw, db) of conv2d"""
    op, listed = "conv2d_grad (cpu)", positions_of(rows)
    positions = check(op, x, w, window, groups, None, dy, where, listed, blocks)
    plan = _planned(op, x, w, positions, groups, listed, blocks)
    with threads.session():
        choice = choose(window, (*x.shape, len(w)), plan)
        if choice.winograd and plan.tiles is not None:
            return cpu_winograd_tiles.gradients(dy, where, x, w, window, plan.tiles, plan.side, scale, wants_dx)
        if choice.winograd and plan.blocks is not None:
            return cpu_winograd_blocks.gradients(dy, where, x, w, window, plan.blocks, scale, wants_dx)
        if choice.winograd:
            return cpu_winograd.gradients(dy, where, x, w, window, scale, wants_dx)
        if choice.by_position:
            return cpu_position.gradients(dy, where, x, w, window, plan.rows, scale, wants_dx)
        choice = choice if wants_dx else choice._replace(dx="")
        dx, others = cpu_direct.gradients(choice, dy, where, x, w, window, scale)
        if others is None:
            gathered, *others = cpu_im2col.gradients(dy, where, x, w, window, plan, positions, scale, wants_dx and dx is None)
            dx = gathered if dx is None else dx
    return dx, *others
