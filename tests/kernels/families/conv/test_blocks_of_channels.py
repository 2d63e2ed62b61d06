"""Convolutions of blocks of channels on the CPU by Winograd's filtering: against the reference, the same however work is cut,
and in recordings that are replayed with other lists.
"""

import contextlib
from unittest import mock

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings, strategies as st

from numbanet_kernels.families import conv
from numbanet_kernels.families.conv import cpu
from numbanet_kernels.families.conv.winograd import cpu_winograd_block_loops, cpu_winograd_blocks
from numbanet_kernels.host import thresholds
from numbanet_kernels.host.simd import WIDTH
from numbanet_kernels.layouts import filtering
from numbanet_kernels.layouts.windows import Blocks, Window
from numbanet_kernels.runtime.pool import Arena, pages
from numbanet_kernels.runtime.tape import Tape
from tests.kernels.families.conv.cases import close

SAME = Window((3, 3), (1, 1), (1, 1))
# images, filters, window, images of a group, channels of a block: as many as a panel has, twice as many, half as many
CASES = [
    ((130, 2, 2, 64), 40, SAME, 64, 2 * WIDTH),
    ((9, 9, 8, 96), 70, SAME, 2, WIDTH),
    ((21, 9, 8, 64), 70, Window((3, 3), (1, 1), (2, 0)), 4, 4 * WIDTH),
    ((64, 4, 4, 128), 72, SAME, 32, 2 * WIDTH),
]


def blocks(rng, case, share, padded=False):
    """`Blocks` of which each group keeps this share; if `padded`, with lists as recorded steps have them."""
    (n, height, width, channels), _, window, images, wide = case
    groups, count, taps = -(-n // images), channels // wide, 9
    keep = round(share * count)
    own = np.sort(rng.random((groups, count)).argsort(1)[:, :keep], 1).astype(np.int32)
    kept = (np.arange(taps, dtype=np.int32)[:, None] * count + own[:, None]).reshape(groups, taps * keep)
    if padded:
        own, kept = (
            np.concatenate([part, np.full((groups, most - part.shape[1]), most, np.int32)], 1)
            for part, most in ((own, count), (kept, taps * count))
        )
    return Blocks(kept, images * int(np.prod(window.positions(height, width))), wide, own)


def arrays(rng, case):
    (n, *size, channels), outs, window, *_ = case
    shapes = (case[0], (outs, channels, 3, 3), (outs,), *[(n, *window.positions(*size), outs)] * 2)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def both(case, kept, given):
    """[y, dx, dw, db]"""
    x, w, bias, dy, where = given
    y = conv.conv2d_cpu(x, w, case[2], bias=bias, relu=True, scale=1.75, blocks=kept)
    return [y, *conv.conv2d_grad_cpu(dy, x, w, case[2], where=where, scale=1.75, blocks=kept)]


def reference(case, kept, given):
    x, w, bias, dy, where = given
    y = conv.conv2d_reference(x, w, case[2], bias=bias, relu=True, scale=1.75, blocks=kept)
    return [y, *conv.conv2d_grad_reference(dy, x, w, case[2], where=where, scale=1.75, blocks=kept)]


def equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def compared(case, put, get, share=0.4):
    """Compare a case with the reference; put and get copy arrays."""
    rng = np.random.default_rng(7)
    given, kept = arrays(rng, case), blocks(rng, case, share)
    ours = kept._replace(kept=put(kept.kept), channels=put(kept.channels))
    for found, expected in zip(both(case, ours, list(map(put, given))), reference(case, kept, given), strict=True):
        close(get(found), expected)


@contextlib.contextmanager
def cut(few):
    """Threads share the panels if there are fewer groups than `few`, or slices of groups are added up."""
    always = mock.patch.multiple(filtering, SAVED=-(1 << 60), WIDE=0)
    with mock.patch.multiple(cpu_winograd_blocks, FEW=few), always, thresholds.using(thresholds.Thresholds(1, 1)):
        yield


@pytest.mark.parametrize("share", [0, 0.4, 1])
@pytest.mark.parametrize("few", [0, 1 << 30])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_they_are_computed_so_for_any_number_of_threads(monkeypatch, rng, case, few, share):
    seen, found, kept, given = set(), [], blocks(rng, case, share), arrays(rng, case)
    for name in ("forward", "backward", "gradient"):
        loop = getattr(cpu_winograd_block_loops, name)
        monkeypatch.setattr(cpu_winograd_block_loops, name, lambda *args, name=name, loop=loop: seen.add(name) or loop(*args))
    for threads in (1, 2, 3):
        with cut(few), threadpoolctl.threadpool_limits(threads, user_api="blas"):
            found.append(both(case, kept, given))
    assert seen == {"forward", "backward", "gradient"}
    for others in found[1:]:
        equal(others, found[0])
    for ours, theirs in zip(found[0], reference(case, kept, given), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("few", [0, 1 << 30])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_recording_is_replayed_with_other_lists(rng, case, few):
    given, kept = arrays(rng, case), blocks(rng, case, 0.5, padded=True)
    with cut(few), threadpoolctl.threadpool_limits(2, user_api="blas"):
        tape = Tape(lambda: both(case, kept, given), Arena(1 << 30, pages))
        for share in (0.7, 0.0, 1.0):
            seed = int(rng.integers(1 << 30))
            for own, other in zip((kept.kept, kept.channels), blocks(np.random.default_rng(seed), case, share, True)[::3]):
                own[:] = other
            tape.replay()
            equal(tape.result, both(case, blocks(np.random.default_rng(seed), case, share), given))


@st.composite
def convolutions(draw):
    def number(least, most):
        return draw(st.integers(least, most))

    wide = WIDTH * draw(st.sampled_from((1, 2, 4)))
    shape = number(1, 20), number(1, 9), number(1, 9), wide * number(1, 3)
    return shape, number(1, 70), SAME._replace(padding=(number(0, 2), number(0, 2))), number(1, 21), wide


@given(convolutions(), st.floats(0, 1), st.integers(0, 1 << 30), st.integers(1, 3), st.booleans())
@settings(max_examples=40, deadline=None)
def test_whatever_is_kept_is_computed_as_by_the_reference(case, share, seed, threads, shared):
    if min(case[2].positions(*case[0][1:3])) < 1:
        return
    rng = np.random.default_rng(seed)
    kept, given = blocks(rng, case, share), arrays(rng, case)
    with cut(1 << 30 if shared else 0), threadpoolctl.threadpool_limits(threads, user_api="blas"):
        assert cpu.choose(case[2], (*case[0], case[1]), cpu.Plan(blocks=kept)).winograd
        found = both(case, kept, given)
    for ours, theirs in zip(found, reference(case, kept, given), strict=True):
        close(ours, theirs)


def test_what_is_dropped_is_not_read(rng):
    """Dropped channels may be anything."""
    case = CASES[1]
    (x, *others), kept = arrays(rng, case), blocks(rng, case, 0.5)
    for n in range(len(x)):
        own = np.repeat(np.isin(np.arange(96 // case[4]), kept.channels[n // case[3]]), case[4])
        x[n, :, :, ~own] = np.nan
    assert all(np.isfinite(array).all() for array in both(case, kept, [x, *others]))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"height": 71}, r"blocks \(71, 16\) are not blocks of 72 positions|do not divide"),
        ({"channels": np.zeros((5, 1), np.int32)}, "are not blocks of 72 positions and 96 channels"),
        ({"channels": np.tile(np.array([1, 0, 2], np.int32), (5, 1))}, "must increase"),
        ({"channels": np.tile(np.array([0, 1, 9], np.int32), (5, 1))}, "from 0 to"),
        ({"channels": np.zeros((4, 3), np.int32)}, "channels"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(rng, change, message):
    case = CASES[1][:4] + (16,)
    x, w, *_ = arrays(rng, case)
    with pytest.raises(ValueError, match=f"conv2d.*({message})"):
        conv.conv2d_cpu(x, w, SAME, blocks=blocks(rng, case, 0.5)._replace(**change))
