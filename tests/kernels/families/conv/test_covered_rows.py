"""Listed rows on the CPU of which so many are kept that Winograd's filtering of all positions is faster: what is not listed is
0 and has no gradient.
"""

import numpy as np
import pytest
import threadpoolctl

from numbanet_kernels.families import conv
from numbanet_kernels.families.conv import cpu
from numbanet_kernels.host import thresholds
from numbanet_kernels.layouts.windows import Positions, Window
from numbanet_kernels.runtime.pool import Arena, pages
from numbanet_kernels.runtime.tape import Tape
from tests.kernels.families.conv.cases import OPTIONS, WINOGRAD, close, operands

SAME = Window((3, 3), (1, 1), (1, 1))


def groups(rng, case, share, together, expected=1.0):
    """(`Positions` with a list for each group of images, the same rows as an increasing list)"""
    (n, *size, _), _, window, _ = case
    places = int(np.prod(window.positions(*size)))
    mask = rng.random((-(-n // together), places)) < share
    lists = np.full(mask.shape, places, np.int32)
    for own, kept in zip(mask, lists, strict=True):
        kept[: own.sum()] = np.flatnonzero(own)
        kept[own.sum() :] += np.arange(places - own.sum(), dtype=np.int32)
    rows = np.flatnonzero(np.repeat(mask, together, axis=0)[:n]).astype(np.int32)
    return Positions(lists, together, share=expected), rows


def both(case, given, rows, option="everything"):
    """[y, dx, dw, db] of a case at these rows."""
    x, w, bias, dy, where = given
    own, scale = OPTIONS[option], OPTIONS[option].get("scale", 1.0)
    y = conv.conv2d_cpu(x, w, case[2], bias=bias if "bias" in own else None, relu="relu" in own, scale=scale, rows=rows)
    gate = where if "where" in own else None
    return [y, *conv.conv2d_grad_cpu(dy, x, w, case[2], where=gate, scale=scale, rows=rows)]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("together", [1, 16])
@pytest.mark.parametrize("case", WINOGRAD[1:4], ids=str)
def test_they_equal_the_reference_for_any_number_of_threads(rng, case, together, option):
    given = x, w, bias, dy, where = operands(np.random.default_rng(3), case)[:5]
    listed, rows = groups(rng, case, 0.6, together)
    own, found = OPTIONS[option], []
    assert cpu.choose(case[2], (*x.shape, len(w)), cpu.Plan(1, *listed)).winograd
    for threads in (1, 2, 3):
        with thresholds.using(thresholds.Thresholds(1, 1)), threadpoolctl.threadpool_limits(threads, user_api="blas"):
            found.append(both(case, given, listed, option))
            found.append(both(case, given, Positions(rows, share=1.0), option))
    scale, gate = own.get("scale", 1.0), where if "where" in own else None
    options = {"bias": bias if "bias" in own else None, "relu": "relu" in own}
    expected = [conv.conv2d_reference(x, w, case[2], **options, scale=scale, rows=rows)]
    expected += conv.conv2d_grad_reference(dy, x, w, case[2], where=gate, scale=scale, rows=rows)
    for ours, theirs in zip(found[0], expected, strict=True):
        close(ours, theirs)
    for others in found[1:]:
        for ours, theirs in zip(others, found[0], strict=True):
            assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("case", WINOGRAD[1:4], ids=str)
def test_a_recording_is_replayed_with_other_lists(rng, case):
    """Also with lists of all rows and of none."""
    given, (listed, _) = operands(rng, case)[:5], groups(rng, case, 0.5, 3)
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpoolctl.threadpool_limits(2, user_api="blas"):
        tape = Tape(lambda: both(case, given, listed), Arena(1 << 30, pages))
        for share in (0.7, 0.0, 1.0, 0.1):
            other, _ = groups(rng, case, share, 3)
            listed.kept[:] = other.kept
            tape.replay()
            for ours, theirs in zip(tape.result, both(case, given, other), strict=True):
                assert ours.tobytes() == theirs.tobytes()


def test_gradients_of_dropped_positions_may_be_anything(rng):
    case = WINOGRAD[1]
    x, w, _, dy, _, _ = operands(np.random.default_rng(3), case)
    _, rows = groups(rng, case, 0.5, 1)
    kept = np.zeros(dy.shape[:3], bool)
    kept.reshape(-1)[rows] = True
    dy[~kept] = np.nan
    found = conv.conv2d_grad_cpu(dy, x, w, case[2], rows=Positions(rows, share=1.0))
    assert all(np.isfinite(array).all() for array in found)


@pytest.mark.parametrize(
    "images, outs, share, expected",
    [
        ((64, 32, 32, 64), 64, 0.375, True),
        ((64, 32, 32, 64), 64, 0.25, False),
        ((128, 7, 7, 384), 256, 0.625, True),
        ((128, 7, 7, 384), 256, 0.375, False),
        ((64, 4, 4, 512), 512, 0.625, True),
        ((64, 2, 2, 512), 512, 0.5, False),  # most taps are outside the images
        ((64, 8, 8, 3), 64, 1.0, False),  # too few channels
    ],
)
def test_the_choice_is_that_of_the_share_that_plans_keep_on_average(images, outs, share, expected):
    lists = np.tile(np.arange(images[1] * images[2], dtype=np.int32), (images[0], 1))
    rows = np.arange(round(share * lists.size), dtype=np.int32)
    every = np.arange(lists.size, dtype=np.int32)
    for given in (Positions(lists, share=share), Positions(every, share=share), Positions(rows)):
        assert cpu.choose(SAME, (*images, outs), cpu.Plan(1, *given)).winograd == expected
