"""Convolutions on the CPU: `choose` decides whether results are computed by Winograd's filtering (`cpu_winograd`; of kept
tiles, `cpu_winograd_tiles`, or of kept channels, `cpu_winograd_blocks`) or, at listed positions, for the images of a block at
once (`cpu_position`), or from wide blocks (`cpu_blocks`). If not, it decides which are computed directly (`cpu_direct`); the
others are computed from gathered patches (`cpu_im2col`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...host import threads
from ...host.simd import WIDTH
from ...layouts import filtering
from ...layouts.windows import Blocks, Window, tile_of
from ...runtime.declare import tape
from ...runtime.expect import INT32, expect
from ..elementwise import relu_grad_cpu
from ..pooling import max_pool_cpu, max_pool_grad_cpu
from . import cpu_blocks, cpu_direct, cpu_im2col, cpu_position
from .cpu_direct import Positions, Sight
from .family import check, check_pool, check_pool_grad, positions_of
from .winograd import cpu_winograd, cpu_winograd_blocks, cpu_winograd_tiles


class Plan(NamedTuple):
    """The kept part of the im2col matrix; `family` defines rows and blocks."""

    groups: int = 1
    rows: Any = None  # increasing int32 list, or a list of positions for each group of images (`Positions`); None for all
    together: int = 1  # number of consecutive images that keep the same positions
    tiles: Any = None  # increasing int32 list of the tiles to which the rows belong, if they are whole tiles
    side: int = 1  # of tiles
    share: float | None = None  # of rows that such lists keep on average; None if as many as this list
    blocks: Blocks | None = None


class Choice(NamedTuple):
    """How results are computed: by Winograd's filtering, by position, from wide blocks, or directly, with one image per lane of
    a vector. What is not computed in any of these ways is computed by `cpu_im2col`. A group is of WIDTH images.

    winograd : True if all results are computed by Winograd's filtering. If rows are listed that are not whole tiles, all
        positions are computed, and those that are not listed are set to 0: that is faster if many are listed
    by_position : True if all results are computed for the images of a block that keep a position at once
    by_block : True if all results are computed from wide blocks
    sight : geometry of the pixels that positions read; None if direct computation was ruled out before the lists were made
    lists : the positions that groups compute; None if the images of a group keep different positions, or if threads cannot
        share the groups equally
    blocks : the kept blocks, which the images of a group share
    y, dw : True if computed directly
    dx : "convolved", as a convolution of dz, "spread", each gradient added to the pixels that its position reads, or ""
    """

    winograd: bool = False
    by_position: bool = False
    by_block: bool = False
    sight: Sight | None = None
    lists: Positions | None = None
    blocks: Blocks | None = None
    y: bool = False
    dx: str = ""
    dw: bool = False


# time of a multiplication of Winograd's filtering divided by that of one at listed positions, by position or directly, measured
# on an Intel Xeon from 64 channels on; transforms take little of it
LISTED = 0.72


def _covers(window: Window, images: list[int], outs: int, plan: Plan) -> bool:
    """True if computing all positions by Winograd's filtering takes less time than computing the listed ones otherwise."""
    (count, *size, _), positions = images, window.positions(*images[1:3])
    m, places = tile_of(*positions), math.prod(positions)
    listed = plan.rows.size / (count * places) if plan.rows.ndim == 1 else 1.0
    share = listed if plan.share is None else plan.share
    taps = cpu_position.inside(window, *size) if cpu_position.suits(window, images, outs) else places * math.prod(window.kernel)
    return math.prod(-(-n // m) for n in positions) * (m + 2) ** 2 <= LISTED * share * taps


def choose(window: Window, shape: tuple[int, ...], plan: Plan) -> Choice:
    """The fastest choice for images and outputs (N, H, W, C, O)."""
    *images, outs = shape
    if plan.groups > 1:
        return Choice()
    whole = plan.rows is None and plan.blocks is None
    if plan.blocks is not None and cpu_winograd_blocks.suits(window, images, outs, plan.blocks):
        return Choice(winograd=True)
    side = None if plan.tiles is None else plan.side
    if (whole or side is not None) and filtering.suits(window, images, outs, side):
        return Choice(winograd=True)
    listed = plan.rows is not None and side is None
    if listed and filtering.suits(window, images, outs) and _covers(window, images, outs, plan):
        return Choice(winograd=True)
    if plan.rows is not None and cpu_position.suits(window, images, outs):
        return Choice(by_position=True)
    if plan.blocks is not None and cpu_blocks.suits(window, images, outs, plan.blocks):
        return Choice(by_block=True)
    if not cpu_direct.suits(window, images, outs):
        return Choice()
    count, *_, channels = images
    sight = cpu_direct.sight(window, *images[1:])
    if plan.blocks is not None and not cpu_direct.agree(plan.blocks, sight.count, count):
        return Choice()
    parts = threads.parts(flops=sight.flops(count, outs))
    lists = cpu_direct.positions(sight, plan.rows, count, parts, plan.together)
    tiled = lists is not None and parts <= cpu_direct.tiles_of(count)  # every thread has a tile
    few = sight.depth * outs <= cpu_direct.WEIGHTS and outs <= cpu_direct.OUTPUTS
    sooner = few or (whole and outs <= cpu_direct.WIDER * channels)
    dx = ""
    if sooner and whole and cpu_direct.convolves_back(window, images, outs):
        dx = "convolved"
    elif sooner and tiled:
        dx = "spread"
    return Choice(sight=sight, lists=lists, blocks=plan.blocks, y=lists is not None, dx=dx, dw=tiled and few)


def _checked(op, x, w, window, groups, bias, dy, where, rows, blocks):
    """Check the arguments; return (the numbers of output positions, the plan)."""
    listed = positions_of(rows)
    grouped = getattr(listed.kept, "ndim", 1) == 2  # a list for each group of images
    positions = check(op, x, w, window, groups, bias, dy, where, listed._replace(kept=None) if grouped else listed, blocks)
    if grouped:
        expect(op, kept=(listed.kept, (-(-len(x) // listed.together), math.prod(positions)), INT32))
        if blocks is not None:
            raise ValueError(f"{op}: rows are listed, and blocks as well")
    return positions, _planned(op, x, w, positions, Plan(groups, *listed, blocks))


def _by_rows(plan, images):
    """The plan with a list of rows instead of a list for each group of images."""
    if plan.rows is None or plan.rows.ndim == 1:
        return plan
    return plan._replace(rows=cpu_direct.rows_of(plan.rows, plan.together, images))


def _increasing(op, lists, below):
    """ValueError unless the numbers of each row increase and are in 0 … below - 1."""
    if lists.size and (
        lists[..., :1].min() < 0
        or lists[..., -1:].max() >= below
        or (lists.shape[-1] > 1 and (lists[..., 1:] <= lists[..., :-1]).any())
    ):
        raise ValueError(f"{op}: kept indices must increase and be from 0 to {below - 1}")


def _planned(op, x, w, positions, plan):
    """The plan; ValueError unless its indices increase. During a recording they are not checked: replays read other indices,
    which were checked when their plans were made.
    """
    if tape.get() is not None:
        return plan
    if plan.rows is not None:
        listed = (
            plan.rows if plan.rows.ndim == 1 else np.minimum(plan.rows, math.prod(positions) + np.arange(plan.rows.shape[1]))
        )
        _increasing(op, listed, (x.shape[0] if plan.rows.ndim == 1 else 2) * math.prod(positions))
    if plan.tiles is not None:
        _increasing(op, plan.tiles, x.shape[0] * math.prod(-(-n // plan.side) for n in positions))
    if plan.blocks is not None:
        _increasing(op, plan.blocks.kept, -(-math.prod(w.shape[1:]) // plan.blocks.width))
        _alike(op, plan.blocks, len(x), math.prod(positions))
        if plan.blocks.channels is not None:
            _increasing(op, plan.blocks.channels, w.shape[1] // plan.blocks.width)
    return plan


def _alike(op, blocks, images, places):
    """ValueError unless each group of `together` consecutive images keeps the same blocks."""
    kept, high, together = blocks.kept, blocks.height, blocks.together
    if together == 1:
        return
    own = -(-places // high)  # block rows of an image
    grouped = len(kept) == images * own
    first = kept[np.arange(len(kept)) // (own * together) * (own * together) + np.arange(len(kept)) % own] if grouped else kept
    if places % high or not grouped or not np.array_equal(first, kept):
        raise ValueError(f"{op}: blocks of {high} rows are not alike for {together} images of {places} rows")


def conv2d_cpu(x, w, window, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None):
    """y[r, o] = act(scale sum_k A[r, k] w[o, k] + bias[o]), where A is the im2col matrix of x."""
    positions, plan = _checked("conv2d (cpu)", x, w, window, groups, bias, None, None, rows, blocks)
    with threads.session():
        choice = choose(window, (*x.shape, len(w)), plan)
        if choice.winograd and plan.tiles is not None:
            return cpu_winograd_tiles.convolved(x, w, window, positions, plan.tiles, plan.side, bias, relu, scale)
        if choice.winograd and plan.blocks is not None:
            return cpu_winograd_blocks.convolved(x, w, window, positions, plan.blocks, bias, relu, scale)
        if choice.winograd:
            return cpu_winograd.convolved(x, w, window, positions, bias, relu, scale, _by_rows(plan, len(x)).rows)
        if choice.by_position:
            return cpu_position.convolved(x, w, window, positions, _by_rows(plan, len(x)).rows, bias, relu, scale)
        if choice.by_block:
            return cpu_blocks.convolved(x, w, window, plan, positions, bias, relu, scale)
        if choice.y:
            return cpu_direct.convolved(choice, x, w, positions, bias, relu, scale)
        return cpu_im2col.convolved(x, w, window, _by_rows(plan, len(x)), positions, bias, relu, scale)


def conv2d_grad_cpu(dy, x, w, window, groups=1, where=None, scale=1.0, rows=None, blocks=None, wants_dx=True):
    """(dx or None, dw, db) of conv2d"""
    positions, plan = _checked("conv2d_grad (cpu)", x, w, window, groups, None, dy, where, rows, blocks)
    with threads.session():
        choice = choose(window, (*x.shape, len(w)), plan)
        if choice.winograd and plan.tiles is not None:
            return cpu_winograd_tiles.gradients(dy, where, x, w, window, plan.tiles, plan.side, scale, wants_dx)
        if choice.winograd and plan.blocks is not None:
            return cpu_winograd_blocks.gradients(dy, where, x, w, window, plan.blocks, scale, wants_dx)
        if choice.winograd:
            return cpu_winograd.gradients(dy, where, x, w, window, scale, wants_dx, _by_rows(plan, len(x)).rows)
        if choice.by_position:
            return cpu_position.gradients(dy, where, x, w, window, _by_rows(plan, len(x)).rows, scale, wants_dx)
        if choice.by_block:
            return cpu_blocks.gradients(dy, where, x, w, window, plan, positions, scale, wants_dx)
        choice = choice if wants_dx else choice._replace(dx="")
        dx, others = cpu_direct.gradients(choice, dy, where, x, w, window, scale)
        if others is None:
            plan, wanted = _by_rows(plan, len(x)), wants_dx and dx is None
            gathered, *others = cpu_im2col.gradients(dy, where, x, w, window, plan, positions, scale, wanted)
            dx = gathered if dx is None else dx
    return dx, *others


# --- with max pooling -------------------------------------------------------------------------------------------------
def conv2d_max_pool_cpu(
    x, w, window, pool, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None, wants_places=True
):
    """(y, places) = max_pool(conv2d(x, w, …), pool), without storing what is pooled if images go abreast. `places` are for
    conv2d_max_pool_grad, in a form that only it knows; None unless `wants_places`.
    """
    op = "conv2d_max_pool (cpu)"
    positions, plan = _checked(op, x, w, window, groups, bias, None, None, rows, blocks)
    check_pool(op, pool, (len(x), *positions, len(w)))
    with threads.session():
        choice = choose(window, (*x.shape, len(w)), plan)
        if choice.y and cpu_direct.pools(choice.sight, pool, positions, len(w)):
            pooling = cpu_direct.pooling(pool, positions, len(x), len(w), wants_places)
            y = cpu_direct.convolved(choice, x, w, positions, bias, relu, scale, pooling)
            return y, pooling.marks if wants_places else None
        y, places = max_pool_cpu(conv2d_cpu(x, w, window, groups, bias, relu, scale, rows, blocks), pool)
        return y, places if wants_places else None


def conv2d_max_pool_grad_cpu(
    dy, y, places, x, w, window, pool, groups=1, relu=False, scale=1.0, rows=None, blocks=None, wants_dx=True
):
    """(dx or None, dw, db) of conv2d_max_pool"""
    op = "conv2d_max_pool_grad (cpu)"
    positions, plan = _checked(op, x, w, window, groups, None, None, None, rows, blocks)
    shape, marked = (len(x), *positions, len(w)), getattr(places, "ndim", 4) == 3
    marks = cpu_direct.tiles_of(len(x)), math.prod(check_pool(op, pool, shape)[1:]), WIDTH
    check_pool_grad(op, pool, shape, dy, y, places, marks if marked else None)
    with threads.session():
        choice = choose(window, (*x.shape, len(w)), plan)
        if marked and choice.dw and (choice.dx or not wants_dx):
            pooling = cpu_direct.pooling(pool, positions, len(x), len(w), False)._replace(marks=places)
            choice = choice if wants_dx else choice._replace(dx="")
            dx, others = cpu_direct.gradients(choice, dy, None, x, w, window, scale, pooling)
            return dx, *others
        gated = relu_grad_cpu(dy, y) if relu and not marked else dy
        dz = max_pool_grad_cpu(gated, cpu_direct.unmarked(places, dy.shape) if marked else places, pool, shape)
        return conv2d_grad_cpu(dz, x, w, window, groups, None, scale, rows, blocks, wants_dx)
