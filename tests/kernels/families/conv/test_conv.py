"""Convolution of images against its float64 reference, on every device.

python -m tests.kernels.families.conv.test_conv 2    all cases on the CPU, arrays between closed pages (`guards`), in turn 2
"""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl

from numbanet_kernels.families import conv
from numbanet_kernels.families.conv import cpu_direct, cpu_direct_loops, cpu_im2col, cpu_im2col_loops, cpu_position
from numbanet_kernels.families.conv.winograd import cpu_winograd, cpu_winograd_tiles
from numbanet_kernels.host import thresholds
from numbanet_kernels.host.simd import WIDTH
from numbanet_kernels.layouts.windows import Blocks, Window
from tests.kernels.families.conv.cases import (
    ABREAST,
    EACH,
    FEW,
    JOINED,
    MANY,
    OPTIONS,
    PLANS,
    WINOGRAD,
    check,
    combined,
    of,
    operands,
    uploaded,
)


# --- against the reference --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "case, plan, option",
    [pytest.param(*given, marks=() if given in EACH else pytest.mark.long) for given in combined(FEW, 0, 1, 2, 3)],
    ids=str,
)
def test_conv2d(suffix, put, get, case, plan, option):
    check(case, plan, option, *of(suffix), put, get)


# every case with every plan and all options: turns 0 and 1 here, 2 and 3 between pages that nobody may touch (`main`)
@pytest.mark.slow
@pytest.mark.parametrize(
    "threads, turns",
    [
        (1, (0,)),
        (2, (1,)),
        pytest.param(1, (1, 2, 3), marks=pytest.mark.long),
        pytest.param(2, (0, 2, 3), marks=pytest.mark.long),
    ],
    ids=str,
)
@pytest.mark.parametrize("case", MANY, ids=str)
def test_conv2d_of_any_shape(case, threads, turns):
    with thresholds.using(thresholds.Thresholds(1, 1, 0)), threadpoolctl.threadpool_limits(threads, user_api="blas"):
        for combination in combined([case], *turns):
            check(*combination, conv.conv2d_cpu, conv.conv2d_grad_cpu, np.array, np.asarray)


@pytest.mark.parametrize("share", [0, 0.4, 1])
@pytest.mark.parametrize("case", JOINED, ids=str)
def test_neighbouring_positions_are_joined_within_blocks_of_lines(monkeypatch, case, share):
    (_, height, width, channels), filters, window, _ = case
    line, (_, across) = window.kernel[1] * channels, window.positions(height, width)
    assert cpu_im2col._joined(window, filters, channels, across, None) > 1

    def lines(rng, total, places, depth, *sizes):
        """Blocks as high as one line of positions, and as wide as one of a patch, or two."""
        wide = line * (1 + depth // line % 2)
        order = rng.random((total // across, -(-depth // wide))).argsort(1)
        return {"blocks": Blocks(np.sort(order[:, : round(share * order.shape[1])], 1).astype(np.int32), across, wide)}

    blocks = lines(np.random.default_rng(0), across, across, line)["blocks"]
    assert cpu_im2col._joined(window, filters, channels, across, blocks) > 1
    monkeypatch.setitem(PLANS, "lines", lines)
    for threads in (1, 2):
        with thresholds.using(thresholds.Thresholds(1, 1, 0)), threadpoolctl.threadpool_limits(threads, user_api="blas"):
            for option in OPTIONS:
                check(case, "lines", option, conv.conv2d_cpu, conv.conv2d_grad_cpu, np.array, np.asarray)


@pytest.mark.parametrize("case", ABREAST, ids=str)
def test_many_images_are_convolved_abreast_unless_those_of_a_tile_differ(monkeypatch, case):
    gathered, loop = [], cpu_im2col_loops.forward
    monkeypatch.setattr(cpu_im2col_loops, "forward", lambda *given: gathered.append(given) or loop(*given))
    for plan, expected in (
        ("all", False),
        ("rows alike", False),
        ("no rows", False),
        ("blocks alike", False),
        ("rows", True),
        ("blocks", True),
    ):
        x, w, _, _, _, thinned = operands(np.random.default_rng(7), case, plan)
        conv.conv2d_cpu(x, w, *case[2:], **thinned)
        assert bool(gathered) == expected, plan
        gathered.clear()


@pytest.mark.parametrize("images, parts", list(itertools.product((32, 48, 128, 4096), (1, 2, 3, 6, 16, 64))))
def test_no_thread_has_much_more_to_do_than_others(images, parts):
    bands, tiles = cpu_direct._bands(images, parts), -(-images // WIDTH)
    assert 1 <= bands <= parts and -(-tiles * bands // parts) * parts <= 1.25 * tiles * bands
    assert bands == 1 or -(-tiles // parts) * parts > 1.25 * tiles


@pytest.mark.parametrize("case", ABREAST, ids=str)
def test_where_tiles_cannot_be_shared_equally_they_are_cut_into_bands(monkeypatch, case):
    for bands in (2, 3, 7):
        monkeypatch.setattr(cpu_direct, "_bands", lambda images, parts, bands=bands: bands)
        for option in OPTIONS:
            check(case, "all", option, conv.conv2d_cpu, conv.conv2d_grad_cpu, np.array, np.asarray)


def test_rows_are_gathered_where_threads_cannot_share_tiles_equally_and_gradients_where_they_are_fewer(monkeypatch):
    """48 images are three tiles of 16 lanes: there is none for most of 13 threads."""
    case, loops, seen = ((48, 9, 8, 3), 6, Window((3, 3)), 1), ("forward", "gradient", "spread_back"), set()
    for name in loops:
        loop = getattr(cpu_direct_loops, name)
        monkeypatch.setattr(cpu_direct_loops, name, lambda *given, name=name, loop=loop: seen.add(name) or loop(*given))
    for threads, plan, expected in (
        (1, "rows alike", {*loops}),
        (1, "all", {*loops}),
        (13, "rows alike", set()),
        (13, "all", {"forward"}),
    ):
        seen.clear()
        with thresholds.using(thresholds.Thresholds(1, 1, 0)), threadpoolctl.threadpool_limits(threads, user_api="blas"):
            check(case, plan, "plain", conv.conv2d_cpu, conv.conv2d_grad_cpu, np.array, np.asarray)
        assert seen == expected, (threads, plan)


def test_what_is_dropped_is_not_multiplied_by_0(rng):
    """Nor is what lists are padded with: 15 of 36 positions are kept."""
    x, w = rng.standard_normal((35, 8, 8, 2)).astype(np.float32), rng.standard_normal((3, 2, 3, 3)).astype(np.float32)
    x[0, 0, 0], x[3:16, 1, 1] = np.inf, np.nan
    rows = np.concatenate([np.arange(21, 36) + 36 * n for n in range(35)]).astype(np.int32)
    dy, window = rng.standard_normal((35, 6, 6, 3)).astype(np.float32), Window((3, 3))
    found = [conv.conv2d_cpu(x, w, window, rows=rows), *conv.conv2d_grad_cpu(dy, x, w, window, rows=rows)]
    assert all(np.isfinite(array).all() for array in found)


@pytest.mark.parametrize("case", [FEW[0], FEW[1], MANY[7], MANY[10]], ids=str)
@pytest.mark.slow
def test_the_reference_is_pytorchs(rng, case):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")
    x, w, bias, dy, *_ = operands(rng, case)
    (_, stride, padding, dilation), groups = case[2:]
    theirs = [torch.from_numpy(np.float64(a)).requires_grad_() for a in (x.transpose(0, 3, 1, 2), w, bias)]
    y = torch.nn.functional.conv2d(*theirs, stride, padding, dilation, groups)
    y.backward(torch.from_numpy(np.float64(dy.transpose(0, 3, 1, 2))))
    np.testing.assert_allclose(conv.conv2d_reference(x, w, *case[2:], bias=bias), y.detach().permute(0, 2, 3, 1), atol=1e-12)
    found = conv.conv2d_grad_reference(dy, x, w, *case[2:])
    for ours, other in zip(found, (theirs[0].grad.permute(0, 2, 3, 1), theirs[1].grad, theirs[2].grad), strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-11)


@pytest.mark.parametrize("plan", PLANS)
def test_the_same_comes_out_each_time(suffix, put, get, rng, plan):
    forward, backward = of(suffix)
    case = FEW[0] if suffix == "cuda" else ((40, 9, 8, 5), 19, Window((3, 3), (1, 1), (1, 1)), 1)
    *arrays, thinned = operands(rng, case, plan)
    (x, w, bias, dy, where), thinned = map(put, arrays), uploaded(thinned, put)
    found = [
        [get(array) for array in (forward(x, w, *case[2:], bias, **thinned), *backward(dy, x, w, *case[2:], where, **thinned))]
        for _ in range(3)
    ]
    for again in found[1:]:
        for first, other in zip(found[0], again, strict=True):
            np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("plan", ["all", "rows"])
def test_tiles_of_any_size_give_the_same(monkeypatch, rng, plan):
    case = ((5, 12, 11, 3), 9, Window((3, 3), (1, 1), (1, 1)), 1)
    for floats, most in ((1, 1 << 20), (1 << 20, 33), (27 * 50, 1024), (1 << 30, 1 << 20)):
        monkeypatch.setattr(cpu_im2col, "TILE_FLOATS", floats)
        monkeypatch.setattr(cpu_im2col, "TILE_ROWS", most)
        check(case, plan, "everything", conv.conv2d_cpu, conv.conv2d_grad_cpu, np.array, np.asarray)


@pytest.mark.parametrize("shape", [(1, 3, 3, 1), (33, 6, 6, 1)])  # gathered, and on the CPU abreast
def test_nan_stays_nan_under_relu(suffix, put, get, shape):
    forward, _ = of(suffix)
    x, w = np.zeros(shape, np.float32), np.ones((2, 1, 1, 1), np.float32)
    x[0, 1, 2], x[0, 0, 0] = np.nan, -1
    y = get(forward(put(x), put(w), Window((1, 1)), relu=True))
    np.testing.assert_array_equal(y, np.repeat(np.maximum(x, 0), 2, 3))


@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (33, 7, 5, 2)])  # gathered, and abreast
def test_x_outside_the_image_is_0_whatever_lies_beside_it(rng, shape):
    """What is infinite in one image, or in one row of pixels, is not multiplied by 0 elsewhere."""
    x, w = np.zeros(shape, np.float32), rng.standard_normal((3, 2, 3, 3)).astype(np.float32)
    x[1, 3, 4] = np.inf
    y = conv.conv2d_cpu(x, w, Window((3, 3), (1, 1), (1, 1)))
    assert np.isfinite(y[np.arange(shape[0]) != 1]).all()
    assert np.isfinite(y[1, :2]).all() and np.isfinite(y[1, :, :3]).all() and not np.isfinite(y[1, 3, 4]).any()


@pytest.mark.skipif(not sys.platform.startswith(("linux", "darwin")), reason="needs mprotect")
@pytest.mark.slow
@pytest.mark.parametrize("turn", [2, pytest.param(3, marks=pytest.mark.long)])
def test_nothing_is_read_or_written_outside_an_array(turn):
    command = [sys.executable, "-m", __name__, str(turn)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[4])
    assert done.returncode == 0 and done.stdout.endswith("nothing was wrong\n"), f"{done.stdout}{done.stderr}"[-3000:]


def test_a_bias_gradient_that_cancels_is_off_by_rounding_alone(suffix, put, get, rng):
    """Whatever its sum is: within half a bit of all that is added up."""
    window = Window((3, 1), (1, 2), (1, 3), (3, 1))
    x, w = rng.standard_normal((25, 11, 7, 1)), rng.standard_normal((1, 1, 3, 1))
    for outs in (1, 3):
        dy = rng.standard_normal((25, *window.positions(11, 7), outs)).astype(np.float32)
        dy -= dy.mean((0, 1, 2))
        _, _, db = of(suffix)[1](put(dy), put(x), put(np.repeat(w, outs, 0)), window)
        error = np.abs(get(db) - dy.sum((0, 1, 2), dtype=np.float64))
        assert (error <= 2**-24 * np.abs(dy).sum((0, 1, 2), dtype=np.float64)).all()


# --- in a process of its own ------------------------------------------------------------------------------------------
def main(turn):
    """One or two threads in turn: in turn 3, each case has the number that it has not in turn 2."""
    from tests.kernels import guards
    from tests.kernels.families.conv import test_blocks_of_channels, test_wide_blocks

    for place, case in enumerate((*FEW, *MANY)):
        threads = 1 + (place + turn) % 2
        with thresholds.using(thresholds.Thresholds(1, 1, 0)), threadpoolctl.threadpool_limits(threads, user_api="blas"):
            for combination in combined([case], turn):
                check(*combination, conv.conv2d_cpu, conv.conv2d_grad_cpu, guards.guarded, np.array)
                guards.check()
    made = cpu_winograd.tiling
    cpu_winograd.tiling = lambda *given: made(*given)._replace(far=True)  # as for weights that are too large for a test
    cpu_winograd_tiles._far, cpu_position.IMAGES, cpu_position.NEAR = lambda weight, pixels: True, 1, 1  # blocks of one image
    for case, plan in itertools.product(WINOGRAD, ("all", "rows", "tiles of 2", "tiles of 4")):
        check(case, plan, "everything", conv.conv2d_cpu, conv.conv2d_grad_cpu, guards.guarded, np.array)
        guards.check()
    test_wide_blocks.under_guards()
    for case in test_blocks_of_channels.CASES:
        for few in (0, 1 << 30):
            with test_blocks_of_channels.cut(few):
                test_blocks_of_channels.compared(case, guards.guarded, np.array)
            guards.check()
    print("nothing was wrong")


if __name__ == "__main__":
    main(int(sys.argv[1]))
