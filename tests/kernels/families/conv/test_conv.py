"""Convolution of images against its float64 reference, on every device; the products and the sampling that belong to it.

python -m tests.kernels.families.conv.test_conv    all cases on the CPU, arrays between closed pages (`guards`)
"""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl

from numbanet_kernels.families import conv
from numbanet_kernels.families.conv import cpu_direct, cpu_direct_loops, cpu_im2col, cpu_im2col_loops
from numbanet_kernels.host import thresholds
from numbanet_kernels.host.simd import WIDTH
from numbanet_kernels.layouts.windows import Blocks, Window

# images, filters, window, groups; FEW run on every device
FEW = [
    ((2, 5, 4, 3), 5, Window((3, 3), (1, 1), (1, 1)), 1),
    ((1, 7, 6, 4), 6, Window((3, 2), (2, 1), (1, 0), (2, 2)), 2),
    ((3, 4, 3, 5), 3, Window((1, 1)), 1),
    ((0, 4, 4, 3), 2, Window((2, 2)), 1),
]
MANY = [
    ((2, 9, 8, 1), 6, Window((5, 5), (1, 1), (2, 2)), 1),
    ((3, 11, 10, 3), 17, Window((3, 3), (2, 2), (1, 1)), 1),
    ((2, 8, 9, 16), 33, Window((1, 1), (2, 3)), 1),
    ((2, 7, 7, 3), 4, Window((7, 7), (1, 1), (3, 3)), 1),
    ((1, 7, 7, 3), 4, Window((7, 7)), 1),
    ((2, 6, 9, 4), 5, Window((1, 4)), 1),
    ((2, 9, 6, 4), 5, Window((4, 1), (3, 1)), 1),
    ((2, 9, 9, 3), 4, Window((3, 3), (1, 1), (2, 0), (3, 2)), 1),
    ((1, 2, 2, 3), 3, Window((2, 2), (1, 1), (3, 2)), 1),
    ((2, 6, 5, 6), 6, Window((3, 3), (1, 1), (1, 1)), 6),
    ((2, 6, 5, 6), 9, Window((3, 2), (2, 1), (0, 1)), 3),
    ((2, 5, 5, 4), 40, Window((1, 1)), 2),
    ((37, 6, 5, 3), 20, Window((3, 3), (1, 1), (1, 1)), 1),
    ((41, 4, 4, 4), 18, Window((2, 2), (2, 2)), 2),
    ((0, 3, 3, 2), 2, Window((3, 3)), 2),
    ((2, 4, 3, 0), 3, Window((2, 2)), 1),
    ((2, 4, 3, 2), 0, Window((2, 2)), 1),
    ((1, 1, 1, 1), 1, Window((1, 1)), 1),
    ((5, 40, 7, 2), 1, Window((3, 3)), 1),
]
JOINED = [
    ((2, 9, 8, 1), 6, Window((5, 5), (1, 1), (2, 2)), 1),
    ((3, 9, 15, 2), 5, Window((3, 3), (2, 2), (1, 1)), 1),
    ((5, 9, 8, 3), 4, Window((3, 4), (1, 2), (2, 1), (2, 1)), 1),
    ((2, 6, 10, 9), 3, Window((2, 3), (1, 1), (1, 0)), 1),
    ((3, 6, 14, 6), 16, Window((5, 5)), 1),
    ((41, 5, 8, 1), 1, Window((1, 3), (1, 1), (0, 1)), 1),
]
# with 32 images or more, dx by spreading or by a convolution, dw here or by SGEMM, and longer sums than one piece
ABREAST = [
    ((35, 9, 8, 1), 6, Window((5, 5), (1, 1), (2, 2)), 1),
    ((49, 13, 12, 3), 17, Window((3, 3), (2, 2), (1, 1)), 1),
    ((32, 8, 9, 16), 33, Window((1, 1)), 1),
    ((40, 7, 9, 3), 4, Window((7, 7), (1, 1), (3, 3)), 1),
    ((37, 9, 9, 3), 9, Window((3, 3), (1, 1), (2, 0), (3, 2)), 1),
    ((33, 6, 6, 2), 5, Window((2, 2), (1, 1), (3, 2)), 1),
    ((36, 11, 9, 2), 35, Window((3, 4), (1, 1), (1, 2)), 1),
    ((32, 4, 8, 5), 3, Window((1, 1)), 1),
    ((34, 13, 20, 2), 5, Window((2, 3), (1, 2), (1, 0), (2, 1)), 1),
    ((32, 6, 6, 30), 3, Window((3, 3), (1, 1), (1, 1)), 1),
]
MANY += [*JOINED, *ABREAST]


def rows(share):
    return lambda rng, total, places, depth: {"rows": np.flatnonzero(rng.random(total) < share).astype(np.int32)}


def alike(rng, total, places, depth):
    """Each 16 images in a row have rows alike."""
    kept = np.repeat(rng.random((-(-total // max(places, 1) // 16), places)) < 0.4, 16, axis=0)
    return {"rows": np.flatnonzero(kept[: total // max(places, 1)]).astype(np.int32)}


def blocks(share, straddling=False):
    """Blocks as high as an image; or of 7 rows, which ends of images cut, the last column narrower than the others."""

    def made(rng, total, places, depth):
        height, width = places, max(depth // 3, 1)
        if straddling:
            height, width = 7, 4 if depth % 4 else 5
        order = rng.random((-(-total // height), -(-depth // width))).argsort(1)
        return {"blocks": Blocks(np.sort(order[:, : round(share * order.shape[1])], 1).astype(np.int32), height, width)}

    return made


PLANS = {
    "all": lambda *sizes: {},
    "rows": rows(0.4),
    "no rows": rows(0),
    "all rows": rows(1),
    "rows alike": alike,
    "blocks": blocks(0.5),
    "no blocks": blocks(0),
    "all blocks": blocks(1),
    "blocks across images": blocks(0.5, True),
}
OPTIONS = {
    "plain": {},
    "relu": {"relu": True, "wants_dx": False},
    "bias": {"bias": True, "where": True},
    "everything": {"bias": True, "relu": True, "where": True, "scale": 1.75},
}


def fits(case, plan):
    return case[3] == 1 or "blocks" not in plan  # blocks are for convolutions without groups


def combined(cases, *turns):
    """Each case with each plan and as many of the options as there are turns: all of them in turns 0 to 3."""
    options = list(OPTIONS)
    return [
        (case, plan, options[(c + p + turn) % len(options)])
        for turn in turns
        for (c, case), (p, plan) in itertools.product(enumerate(cases), enumerate(PLANS))
        if fits(case, plan)
    ]


# of few cases, each with each plan, and each plan with all options
EACH = list({(plan, option): (case, plan, option) for case, plan, option in reversed(combined(FEW, 0, 1, 2, 3))}.values())


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max(initial=0)))


def operands(rng, case, plan="all"):
    """x, w, bias, dy, where, and what the plan keeps."""
    (n, height, width, channels), filters, window, groups = case
    kernel, positions = window.kernel, window.positions(height, width)
    shapes = (case[0], (filters, channels // groups, *kernel), (filters,), *[(n, *positions, filters)] * 2)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    np.maximum(arrays[-1], 0, out=arrays[-1])  # what a ReLU leaves
    places = int(np.prod(positions))
    return *arrays, PLANS[plan](rng, n * places, places, channels // groups * int(np.prod(kernel)))


def uploaded(thinned, put):
    return {name: Blocks(put(kept.kept), *kept[1:]) if name == "blocks" else put(kept) for name, kept in thinned.items()}


def compared(found, expected, get):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            close(get(ours), theirs)


def check(case, plan, option, forward, backward, put, get):
    """Both passes against the reference."""
    x, w, bias, dy, where, thinned = operands(np.random.default_rng(7), case, plan)
    given, window, groups = OPTIONS[option], *case[2:]
    options = {"scale": given.get("scale", 1.0), **thinned}
    put_options = {**options, **uploaded(thinned, put)}
    bias, where = (array if given.get(name) else None for name, array in (("bias", bias), ("where", where)))
    own = {"relu": given.get("relu", False)}
    y = forward(put(x), put(w), window, groups, bias=None if bias is None else put(bias), **own, **put_options)
    compared([y], [conv.conv2d_reference(x, w, window, groups, bias=bias, **own, **options)], get)
    own = {"wants_dx": given.get("wants_dx", True)}
    found = backward(put(dy), put(x), put(w), window, groups, where=None if where is None else put(where), **own, **put_options)
    compared(found, conv.conv2d_grad_reference(dy, x, w, window, groups, where=where, **own, **options), get)


def of(suffix):
    """The two operations of a device."""
    return getattr(conv, f"conv2d_{suffix}"), getattr(conv, f"conv2d_grad_{suffix}")


# --- against the reference --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "case, plan, option",
    [pytest.param(*given, marks=() if given in EACH else pytest.mark.long) for given in combined(FEW, 0, 1, 2, 3)],
    ids=str,
)
def test_conv2d(suffix, put, get, case, plan, option):
    check(case, plan, option, *of(suffix), put, get)


# every case with every plan and all options, half of them here and the other half between pages that nobody may touch (`main`)
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

    def lines(rng, total, places, depth):
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
    for plan, expected in (("all", False), ("rows alike", False), ("no rows", False), ("rows", True), ("blocks", True)):
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


# --- refusals ---------------------------------------------------------------------------------------------------------
def called(
    suffix, put, shape=(2, 5, 4, 3), w=(4, 3, 3, 3), window=None, groups=1, bias=None, rows=None, kept=None, height=6, width=9
):
    """conv2d with ones of these shapes; here there are 12 rows of 27 columns."""
    options = {
        "rows": None if rows is None else put(np.array(rows, np.int32)),
        "blocks": None if kept is None else Blocks(put(np.array(kept, np.int32).reshape(len(kept), -1)), height, width),
    }
    x, w, bias = (None if shape is None else put(np.ones(shape)) for shape in (shape, w, bias))
    return of(suffix)[0](x, w, window or Window((3, 3)), groups, bias, **options)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"shape": (5, 4, 3)}, r"x \(5, 4, 3\)"),
        ({"w": (4, 2, 3, 3)}, r"x \(2, 5, 4, 3\) does not match w \(4, 2, 3, 3\)"),
        ({"w": (4, 3, 3)}, r"w \(4, 3, 3\)"),
        ({"window": Window((3, 2))}, "does not match w .*Window"),
        ({"groups": 2}, "with 2 groups"),
        ({"groups": 0}, "with 0 groups"),
        ({"groups": -1}, "with -1 groups"),
        ({"w": (4, 1, 3, 3), "groups": 3}, "with 3 groups"),
        ({"bias": (3,)}, r"bias \(3,\)"),
        ({"window": Window((3, 3), (0, 1))}, "sizes from 1"),
        ({"window": Window((3, 3), dilation=(1, 0))}, "sizes from 1"),
        ({"window": Window((3, 3), padding=(0, -1))}, "paddings from 0"),
        ({"shape": (2, 2, 4, 3)}, r"larger than the images \(2, 4\)"),
        ({"window": Window((3, 3), dilation=(1, 2))}, r"larger than the images \(5, 4\)"),
        ({"rows": range(13)}, "13 rows are listed of 12$"),
        ({"rows": [1], "kept": [[0], [0]]}, "12 and blocks as well"),
        ({"kept": [[0], [0], [0]]}, r"blocks \(3, 1\) of \(6, 9\) do not divide a matrix \(12, 27\)"),
        ({"kept": [[0, 1, 2, 3]] * 2}, "do not divide"),
        ({"kept": [[0]] * 2, "height": 0}, "do not divide"),
        ({"kept": [[0]] * 2, "width": 0}, "do not divide"),
        ({"kept": [[0]] * 2, "shape": (2, 5, 4, 6), "w": (4, 3, 3, 3), "groups": 2}, "of several groups"),
    ],
)
def test_what_does_not_fit_is_refused(suffix, put, given, message):
    with pytest.raises(ValueError, match=f"^conv2d .*{message}"):
        called(suffix, put, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"rows": [3, 3]},
        {"rows": [4, 2]},
        {"rows": [-1, 2]},
        {"rows": [5, 12]},
        {"kept": [[0, 0], [0, 1]]},
        {"kept": [[0, 1], [2, 1]]},
        {"kept": [[0, 3], [0, 1]]},
        {"kept": [[-1], [0]]},
    ],
    ids=str,
)
def test_lists_that_are_not_increasing_are_refused(given):
    """On the CPU, which reads lists on its way; those of a device are trusted."""
    with pytest.raises(ValueError, match="conv2d .*kept indices must increase and be from 0 to (11|2)$"):
        called("cpu", lambda host: host if host.dtype == np.int32 else np.float32(host), **given)


@pytest.mark.parametrize(
    "name, shape", [("dy", (2, 3, 2, 5)), ("dy", (2, 2, 3, 4)), ("where", (2, 3, 2, 3)), ("x", (1, 5, 4, 3))]
)
def test_gradients_that_do_not_fit_are_refused(suffix, put, name, shape):
    shapes = {"dy": (2, 3, 2, 4), "x": (2, 5, 4, 3), "w": (4, 3, 3, 3), "where": (2, 3, 2, 4), name: shape}
    with pytest.raises(ValueError, match=r"^conv2d_grad .*must be|^conv2d_grad .*does not match"):
        of(suffix)[1](**{key: put(np.ones(value)) for key, value in shapes.items()}, window=Window((3, 3)))


@pytest.mark.skipif(not sys.platform.startswith(("linux", "darwin")), reason="needs mprotect")
@pytest.mark.slow
def test_nothing_is_read_or_written_outside_an_array():
    done = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[4]
    )
    assert done.returncode == 0 and done.stdout.endswith("nothing was wrong\n"), f"{done.stdout}{done.stderr}"[-3000:]


# --- sampling ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("height, width", [(4, 5), (1, 1), (7, 100), (1000, 3), (5, 27)])
@pytest.mark.parametrize("case", [FEW[0], MANY[1], MANY[7], MANY[8], FEW[3]], ids=str)
def test_count_large(suffix, put, get, rng, case, height, width):
    (shape, _, window, _), samples = case, 6
    x = np.float32(rng.integers(-8, 9, shape)) / 8  # some are exactly at the threshold
    offsets = np.stack([np.sort(rng.integers(height, size=samples)), rng.integers(width, size=samples)], 1).astype(np.int32)
    found = get(getattr(conv, f"count_large_{suffix}")(put(x), window, height, width, put(offsets), 0.5))
    np.testing.assert_array_equal(found, conv.count_large_reference(x, window, height, width, offsets, 0.5))
    assert found.dtype == np.int32


@pytest.mark.parametrize(
    "height, width, offsets, message",
    [
        (0, 3, (4, 2), "regions of 0 x 3 must be at least 1 x 1"),
        (3, -1, (4, 2), "regions of 3 x -1"),
        (3, 3, (4, 3), r"offsets \(4, 3\)"),
        (3, 3, (4,), r"offsets \(4,\)"),
    ],
)
def test_regions_that_do_not_fit_are_refused(suffix, put, height, width, offsets, message):
    with pytest.raises(ValueError, match=f"count_large.*{message}"):
        getattr(conv, f"count_large_{suffix}")(
            put(np.ones((2, 5, 4, 3))), Window((3, 3)), height, width, put(np.zeros(offsets, np.int32)), 0.5
        )


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
def main():
    from tests.kernels import guards

    for threads, turn in ((1, 2), (2, 3)):
        with thresholds.using(thresholds.Thresholds(1, 1, 0)), threadpoolctl.threadpool_limits(threads, user_api="blas"):
            for case in (*FEW, *MANY):
                for combination in combined([case], turn):
                    check(*combination, conv.conv2d_cpu, conv.conv2d_grad_cpu, guards.guarded, np.array)
                    guards.check()
    print("nothing was wrong")


if __name__ == "__main__":
    main()
