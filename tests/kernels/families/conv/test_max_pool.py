"""Convolution with max pooling against its float64 reference, on every device."""

import itertools

import numpy as np
import pytest
import threadpoolctl

from numbanet_kernels.families import conv
from numbanet_kernels.families.conv import cpu, cpu_direct
from numbanet_kernels.families.pooling import max_pool_cpu
from numbanet_kernels.host import thresholds
from numbanet_kernels.layouts.windows import Positions, Window
from tests.kernels.families.conv.cases import ABREAST, FEW, OPTIONS, WINOGRAD, compared, fits, operands, uploaded

HALVES = Window((2, 2), (2, 2))
# images, filters, window, groups; window of pooling: pixels left over, overlaps, gaps, padding, one pixel, dilation, wide
POOLED = [
    *zip(
        ABREAST[:7],
        (HALVES, Window((3, 3), (2, 2), (1, 1)), Window((2, 3), (3, 3)), HALVES, Window((2, 3), (2, 1)), HALVES, HALVES),
    ),
    (ABREAST[2], Window((1, 1), (1, 1))),
    (ABREAST[5], Window((3, 2), (1, 1), (1, 0))),
    (ABREAST[8], Window((2, 2), (2, 2), (0, 0), (2, 1))),
    (((35, 18, 17, 1), 3, Window((1, 1)), 1), Window((16, 15), (2, 1), (3, 3))),
    (((35, 18, 17, 1), 3, Window((1, 1)), 1), Window((16, 16), (2, 1))),
    (WINOGRAD[2], HALVES),
]
ALIKE = "all", "rows alike", "no rows", "blocks", "blocks alike", "no blocks"


def check(case, pool, plan, option, forward, backward, put, get):
    """Both passes against the reference."""
    x, w, bias, _, _, thinned = operands(np.random.default_rng(7), case, plan)
    given, window, groups = OPTIONS[option], *case[2:]
    options = {"scale": given.get("scale", 1.0), "relu": given.get("relu", False), **thinned}
    put_options = {**options, **uploaded(thinned, put)}
    bias = bias if given.get("bias") else None
    put_bias = None if bias is None else put(bias)
    y, places = forward(put(x), put(w), window, pool, groups, bias=put_bias, **put_options)
    expected = conv.conv2d_max_pool_reference(x, w, window, pool, groups=groups, bias=bias, **options)
    compared([y], [expected], get)
    alone, none = forward(put(x), put(w), window, pool, groups, bias=put_bias, wants_places=False, **put_options)
    assert none is None and np.array_equal(get(alone), get(y))
    dy, own = np.random.default_rng(8).standard_normal(expected.shape).astype(np.float32), given.get("wants_dx", True)
    found = backward(put(dy), y, places, put(x), put(w), window, pool, groups, wants_dx=own, **put_options)
    options["bias"] = bias
    compared(found, conv.conv2d_max_pool_grad_reference(dy, x, w, window, pool, groups=groups, wants_dx=own, **options), get)
    return y, places, found


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("case, plan", [(FEW[0], "all"), (FEW[0], "rows"), (FEW[1], "rows"), (FEW[0], "blocks")], ids=str)
def test_conv2d_max_pool(suffix, put, get, case, plan, option):
    operations = (getattr(conv, f"conv2d_max_pool{grad}_{suffix}") for grad in ("", "_grad"))
    check(case, Window((2, 2), (2, 1), (1, 0)), plan, option, *operations, put, get)


@pytest.mark.slow
@pytest.mark.parametrize("case, pool", POOLED, ids=str)
def test_images_abreast_are_pooled_in_their_lanes(case, pool):
    """The bits are equal on any number of threads, unless kept rows are gathered because threads cannot share tiles."""
    for (p, plan), (o, option) in itertools.product(enumerate(ALIKE), enumerate(OPTIONS)):
        if (p + o) % 2 or not fits(case, plan):
            continue
        results = []
        for threads in (1, 2, 3):
            with thresholds.using(thresholds.Thresholds(1, 1, 0)), threadpoolctl.threadpool_limits(threads, "blas"):
                operations = conv.conv2d_max_pool_cpu, conv.conv2d_max_pool_grad_cpu
                results.append(check(case, pool, plan, option, *operations, np.array, np.asarray)[0])
        if "rows" not in plan:
            assert all(np.array_equal(results[0], other) for other in results[1:]), (plan, option)


def test_marks_are_kept_only_where_outputs_are_pooled_in_lanes():
    for (case, pool), lanes in zip(POOLED, [True] * 9 + [False, True, False, False], strict=True):
        x, w, *_ = operands(np.random.default_rng(7), case)
        _, places = conv.conv2d_max_pool_cpu(x, w, case[2], pool)
        assert (places.ndim == 3) == lanes, (case, pool)


def test_marks_are_read_by_a_gradient_that_is_not_computed_in_lanes(monkeypatch):
    case, pool = POOLED[0]
    for choice in (cpu.Choice(), None):
        x, w, *_ = operands(np.random.default_rng(7), case)
        y, places = conv.conv2d_max_pool_cpu(x, w, case[2], pool, relu=True)
        if choice is not None:
            monkeypatch.setattr(cpu, "choose", lambda *given, choice=choice: choice)
        dy = np.random.default_rng(8).standard_normal(y.shape).astype(np.float32)
        found = conv.conv2d_max_pool_grad_cpu(dy, y, places, x, w, case[2], pool, relu=True)
        compared(found, conv.conv2d_max_pool_grad_reference(dy, x, w, case[2], pool, relu=True), np.asarray)
        monkeypatch.undo()


@pytest.mark.parametrize("relu", [False, True])
def test_nan_equal_maxima_and_infinity_are_those_of_pooling_afterwards(relu):
    """With a unit filter, so that outputs are pixels; a NaN in one lane does not reach others."""
    rng, pool, unit = np.random.default_rng(3), Window((3, 2), (2, 2), (1, 1)), np.ones((1, 1, 1, 1), np.float32)
    x = rng.integers(-2, 3, (37, 9, 7, 1)).astype(np.float32)
    x[rng.random(x.shape) < 0.1], x[rng.random(x.shape) < 0.1] = np.nan, -np.inf
    y, places = conv.conv2d_max_pool_cpu(x, unit, Window((1, 1)), pool, relu=relu)
    full = conv.conv2d_cpu(x, unit, Window((1, 1)), relu=relu)
    expected, taps = max_pool_cpu(full, pool)
    np.testing.assert_array_equal(y, expected)
    found, opened = cpu_direct.unmarked(places, y.shape), expected > 0 if relu else np.ones(y.shape, bool)
    np.testing.assert_array_equal(found, np.where(opened, taps, 255))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("case", [ABREAST[1], ABREAST[4], FEW[0], FEW[1]], ids=str)
def test_positions_of_groups_are_those_that_their_rows_list(case, threads):
    """To the last bit, whether images go abreast or are gathered; the padding is anything beyond the last position."""
    x, w, bias, *_ = operands(np.random.default_rng(7), case)
    grid, images, rng = case[2].positions(*case[0][1:3]), len(x), np.random.default_rng(9)
    for together in (16, 32, 64, 5):
        mask = rng.random((-(-images // together), grid[0] * grid[1])) < 0.4
        kept = np.full(mask.shape, mask.shape[1], np.int32)
        for own, row in zip(mask, kept, strict=True):
            row[: own.sum()] = np.flatnonzero(own)
        kept += np.int32(3) * (kept == mask.shape[1]) * np.arange(mask.shape[1], dtype=np.int32)
        rows = np.flatnonzero(np.repeat(mask, together, axis=0)[:images]).astype(np.int32)
        found = []
        with thresholds.using(thresholds.Thresholds(1, 1, 0)), threadpoolctl.threadpool_limits(threads, "blas"):
            for given in (rows, Positions(kept, together)):
                y = conv.conv2d_cpu(x, w, *case[2:], bias=bias, relu=True, rows=given)
                dy = np.random.default_rng(8).standard_normal(y.shape).astype(np.float32)
                found.append([y, *conv.conv2d_grad_cpu(dy, x, w, *case[2:], where=y, rows=given)])
        for by_rows, by_group in zip(*found, strict=True):
            np.testing.assert_array_equal(by_rows, by_group)


@pytest.mark.parametrize(
    "kept, message",
    [
        (np.zeros((2, 36), np.int32), "increase"),
        (np.tile(np.arange(36, dtype=np.int32), (3, 1)), "kept"),
        (np.tile(np.arange(35, dtype=np.int32), (2, 1)), "kept"),
        (np.tile(np.arange(-1, 35, dtype=np.int32), (2, 1)), "increase"),
    ],
)
def test_positions_of_groups_that_do_not_fit_are_refused(kept, message):
    x, w = np.zeros((32, 8, 8, 1), np.float32), np.zeros((2, 1, 3, 3), np.float32)
    with pytest.raises(ValueError, match=rf"conv2d \(cpu\).*{message}"):
        conv.conv2d_cpu(x, w, Window((3, 3)), rows=Positions(kept, 16))


def test_what_does_not_fit_is_refused():
    x, w = np.zeros((32, 8, 8, 1), np.float32), np.zeros((2, 1, 3, 3), np.float32)
    y, places = conv.conv2d_max_pool_cpu(x, w, Window((3, 3)), HALVES)
    given = x, w, Window((3, 3)), HALVES
    for wrong in (places[:-1], places[:, :-1], places.astype(np.int32), np.zeros(y.shape, np.int32), None):
        with pytest.raises((TypeError, ValueError), match=r"conv2d_max_pool_grad \(cpu\)"):
            conv.conv2d_max_pool_grad_cpu(y, y, wrong, *given)
    for dy, after in ((y[1:], y), (y, y[:, :1])):
        with pytest.raises(ValueError, match=r"conv2d_max_pool_grad \(cpu\)"):
            conv.conv2d_max_pool_grad_cpu(np.array(dy), np.array(after), places, *given)
    for pool in (Window((7, 7)), Window((2, 2), (0, 1)), Window((2, 2), (1, 1), (2, 0))):
        with pytest.raises(ValueError, match=r"conv2d_max_pool \(cpu\)"):
            conv.conv2d_max_pool_cpu(x, w, Window((3, 3)), pool)
