"""Convolutions of wide blocks on the CPU, which read the packed weight where it lies: against the reference, and in recordings
that are replayed with other lists.
"""

import itertools
from unittest import mock

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings, strategies as st

from numbanet_kernels.families import conv
from numbanet_kernels.families.conv import cpu, cpu_block_loops, cpu_blocks
from numbanet_kernels.families.conv.cpu_panel_products import PANEL
from numbanet_kernels.host import thresholds
from numbanet_kernels.layouts.windows import Blocks, Window
from numbanet_kernels.runtime.pool import Arena, pages
from numbanet_kernels.runtime.tape import Tape
from tests.kernels.families.conv.cases import close

SAME = Window((3, 3), (1, 1), (1, 1))
# images, filters, window, rows of a block, columns of a block in panels: long and short lines, blocks that end within an image
# and within a line, strides, dilation, padding beyond the window, taps of several blocks, panels that are not full
CASES = [
    ((6, 8, 9, 2 * PANEL), 2 * PANEL + 3, SAME, 36, 1),
    ((5, 4, 5, PANEL), PANEL, SAME, 40, 1),
    ((7, 7, 6, 4 * PANEL), PANEL + 1, SAME, 32, 2),
    ((4, 11, 15, PANEL), 2 * PANEL - 1, Window((3, 2), (2, 2), (1, 0)), 50, 1),
    ((3, 13, 9, 2 * PANEL), PANEL, Window((2, 3), (1, 1), (2, 3), (3, 2)), 64, 2),
    ((9, 2, 2, PANEL), PANEL, Window((1, 1)), 36, 1),
    ((2, 9, 17, PANEL), PANEL, Window((3, 3), (1, 3), (0, 2), (1, 2)), 33, 1),
]


def blocks(rng, case, share, padded=False):
    """`Blocks` of which each block row keeps this share; if `padded`, with lists as recorded steps have them."""
    (n, *size, channels), _, window, height, panels = case
    rows, columns = (
        -(-n * int(np.prod(window.positions(*size))) // height),
        channels * np.prod(window.kernel) // (panels * PANEL),
    )
    keep = round(share * columns)
    kept = np.sort(rng.random((rows, columns)).argsort(1)[:, :keep], 1)
    if padded:
        kept = np.concatenate([kept, np.full((rows, columns - keep), columns)], 1)
    return Blocks(kept.astype(np.int32), height, panels * PANEL)


def arrays(rng, case):
    (n, *size, channels), outs, window, *_ = case
    shapes = case[0], (outs, channels, *window.kernel), (outs,), *[(n, *window.positions(*size), outs)] * 2
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def both(case, kept, given, wants_dx=True, gated=True):
    """[y, dx, dw, db]"""
    x, w, bias, dy, where = given
    y = conv.conv2d_cpu(x, w, case[2], bias=bias if gated else None, relu=gated, scale=1.75, blocks=kept)
    own = {"where": where if gated else None, "wants_dx": wants_dx}
    return [y, *conv.conv2d_grad_cpu(dy, x, w, case[2], **own, scale=1.75, blocks=kept)]


def reference(case, kept, given, wants_dx=True, gated=True):
    x, w, bias, dy, where = given
    y = conv.conv2d_reference(x, w, case[2], bias=bias if gated else None, relu=gated, scale=1.75, blocks=kept)
    own = {"where": where if gated else None, "wants_dx": wants_dx}
    return [y, *conv.conv2d_grad_reference(dy, x, w, case[2], **own, scale=1.75, blocks=kept)]


def compared(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            close(ours, theirs)


@pytest.fixture(autouse=True)
def narrow(request):
    """Few channels and filters are computed so, too."""
    with mock.patch.object(cpu_blocks, "WIDE", cpu_blocks.WIDE if "choice" in request.node.name else 0):
        yield


def threaded(threads):
    return thresholds.using(thresholds.Thresholds(1, 1)), threadpoolctl.threadpool_limits(threads, user_api="blas")


def under_guards():
    """Nothing is written beside arrays; called in a process of its own (`test_conv`), because `guards` makes all arrays."""
    from tests.kernels import guards

    rng = np.random.default_rng(0)
    for case, threads in itertools.product(CASES, (1, 3)):
        kept, (costs, limits) = blocks(rng, case, 0.5), threaded(threads)
        with costs, limits, mock.patch.object(cpu_blocks, "WIDE", 0):
            assert cpu.choose(case[2], (*case[0], case[1]), cpu.Plan(blocks=kept)).by_block
            both(case, kept._replace(kept=guards.guarded(kept.kept)), [guards.guarded(array) for array in arrays(rng, case)])
            guards.check()


@pytest.mark.parametrize("share", [0, 0.4, 1])
@pytest.mark.parametrize("slices", [1, 8])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_they_equal_the_reference_for_any_number_of_threads(monkeypatch, rng, case, slices, share):
    seen, kept, given = set(), blocks(rng, case, share), arrays(rng, case)
    for name in ("forward", "backward", "gradient"):
        loop = getattr(cpu_block_loops, name)
        monkeypatch.setattr(cpu_block_loops, name, lambda *args, name=name, loop=loop: seen.add(name) or loop(*args))
    monkeypatch.setattr(cpu_blocks, "SLICES", slices)
    found = []
    for threads in (1, 2, 5):
        costs, limits = threaded(threads)
        with costs, limits:
            found.append(both(case, kept, given))
            compared(both(case, kept, given, False, False), reference(case, kept, given, False, False))
    compared(found[0], reference(case, kept, given))
    for others in found[1:]:
        for ours, theirs in zip(others, found[0], strict=True):
            assert ours.tobytes() == theirs.tobytes()
    assert seen == {"forward", "backward", "gradient"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_recording_is_replayed_with_other_lists(rng, case):
    given, kept = arrays(rng, case), blocks(rng, case, 0.5, padded=True)
    costs, limits = threaded(2)
    with costs, limits:
        tape = Tape(lambda: both(case, kept, given), Arena(1 << 30, pages))
        for share in (0.7, 0.0, 1.0):
            seed = int(rng.integers(1 << 30))
            other, padded = (blocks(np.random.default_rng(seed), case, share, longer) for longer in (False, True))
            kept.kept[:] = padded.kept
            tape.replay()
            for ours, theirs in zip(tape.result, both(case, other, given), strict=True):
                assert ours.tobytes() == theirs.tobytes()


@st.composite
def convolutions(draw):
    def number(least, most):
        return draw(st.integers(least, most))

    kernel, step, apart = ((number(1, 3), number(1, 3)) for _ in range(3))
    window, panels = Window(kernel, step, (number(0, 2), number(0, 2)), apart), draw(st.sampled_from((1, 2)))
    shape = number(1, 6), number(1, 12), number(1, 12), PANEL * panels * number(1, 2)
    return shape, number(PANEL, 2 * PANEL + 5), window, number(cpu_blocks.LEAST_ROWS, 90), panels


@given(convolutions(), st.floats(0, 1), st.integers(0, 1 << 30), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_whatever_is_kept_is_computed_as_by_the_reference(case, share, seed, threads):
    if min(case[2].positions(*case[0][1:3])) < 1:
        return
    rng = np.random.default_rng(seed)
    kept, given = blocks(rng, case, share), arrays(rng, case)
    costs, limits = threaded(threads)
    with costs, limits:
        assert cpu.choose(case[2], (*case[0], case[1]), cpu.Plan(blocks=kept)).by_block
        compared(both(case, kept, given), reference(case, kept, given))


def test_columns_that_are_dropped_everywhere_are_not_read(rng):
    case = CASES[0]
    (x, w, *others), kept = arrays(rng, case), blocks(rng, case, 0.5)
    columns = np.arange(18)
    columns = columns[~np.isin(columns, kept.kept[0])][:3]
    kept.kept[:] = np.sort(np.setdiff1d(np.arange(18), columns))[None, : kept.kept.shape[1]]
    turned = w.transpose(2, 3, 1, 0).reshape(18, PANEL, -1).copy()
    turned[columns] = np.nan
    w = np.ascontiguousarray(turned.reshape(3, 3, 2 * PANEL, -1).transpose(3, 2, 0, 1))
    found = both(case, kept, [x, w, *others])
    assert all(np.isfinite(array).all() for array in found)


@pytest.mark.parametrize(
    "channels, outs, height, width, expected",
    [
        (256, 256, 64, PANEL, True),
        (256, 256, 16, PANEL, False),  # few rows of a block
        (256, 20, 64, PANEL, False),  # few filters
        (96, 96, 64, PANEL, True),
        (64, 48, 64, PANEL, False),
        (256, 256, 64, PANEL // 2, False),  # not whole panels
        (256 + PANEL, 256, 64, 2 * PANEL, False),  # blocks of several taps
    ],
)
def test_the_choice(channels, outs, height, width, expected):
    kept = Blocks(np.zeros((1, 1), np.int32), height, width)
    assert cpu.choose(SAME, (4, 8, 8, channels, outs), cpu.Plan(blocks=kept)).by_block == expected
