"""Convolutions on CUDA, with their input matrix gathered on the way and written out, against loops over taps in float64."""

import re

import numpy as np
import pytest

from numbanet_kernels.blocks import index_views
from numbanet_kernels.families import gemm
from numbanet_kernels.families.conv import cuda_im2col as im2col, cuda_implicit_gemm as implicit
from numbanet_kernels.layouts.windows import Blocks, Window
from numbanet_kernels.runtime import availability, emulation
from numbanet_kernels.runtime.memory import upload_cuda
from tests.kernels.assembly import PROBLEM, assembled

NEEDS_NVVM = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=str(availability.nvvm_problem()))
CASES = {  # (images (N, H, W, C), outputs, groups, window)
    "1x1": ((2, 5, 4, 3), 5, 1, Window((1, 1))),
    "1x1, stride 2": ((2, 5, 4, 8), 4, 1, Window((1, 1), (2, 2))),
    "3x3, padding": ((2, 7, 6, 3), 5, 1, Window((3, 3), (1, 1), (1, 1))),
    "stride 2": ((2, 9, 8, 4), 6, 1, Window((3, 3), (2, 2), (1, 1))),
    "stride above the kernel": ((1, 11, 9, 2), 3, 1, Window((2, 2), (3, 4))),
    "dilation": ((2, 11, 9, 3), 4, 1, Window((3, 2), (1, 1), (2, 1), (2, 3))),
    "all at once": ((1, 13, 12, 5), 7, 1, Window((3, 4), (2, 3), (1, 2), (3, 2))),
    "7x7": ((1, 8, 7, 6), 3, 1, Window((7, 7), (1, 1), (3, 3))),
    "one channel": ((3, 9, 9, 1), 6, 1, Window((5, 5))),
    "many rows": ((4, 9, 9, 2), 3, 1, Window((3, 3), (1, 1), (1, 1))),
    "many columns": ((1, 6, 13, 70), 67, 1, Window((1, 1))),
    "aligned": ((1, 9, 8, 8), 68, 1, Window((3, 3), (1, 1), (1, 1))),
    "groups": ((2, 6, 5, 6), 9, 3, Window((3, 3), (2, 1), (1, 1))),
    "a channel a group": ((1, 6, 6, 4), 4, 4, Window((3, 3))),
    "the kernel reaches over the image": ((2, 2, 3, 2), 3, 1, Window((5, 5), (1, 1), (2, 2))),
    "no images": ((0, 5, 5, 2), 3, 1, Window((3, 3))),
}
PLANS = [(case, plan) for case in CASES for plan in ("none", "rows", "blocks")]
PLANS += [("stride 2", plan) for plan in ("no rows", "all rows", "no blocks", "large blocks")]
PLANS += [(case, "large blocks") for case in ("many columns", "many rows", "groups")]


# --- reference --------------------------------------------------------------------------------------------------------
def matrix_of(x, window, groups):
    """A (groups, N P, K): each tap's pixels, one by one."""
    (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w), (dilation_h, dilation_w) = window
    (n, height, width, channels), (grid_h, grid_w) = x.shape, window.positions(*x.shape[1:3])
    a = np.zeros((n, grid_h, grid_w, kernel_h, kernel_w, groups, channels // groups))
    for oh, ow, kh, kw in np.ndindex(grid_h, grid_w, kernel_h, kernel_w):
        h, w = oh * stride_h - padding_h + kh * dilation_h, ow * stride_w - padding_w + kw * dilation_w
        if 0 <= h < height and 0 <= w < width:
            a[:, oh, ow, kh, kw] = x[:, h, w].reshape(n, groups, channels // groups)
    depth = kernel_h * kernel_w * (channels // groups)
    return np.moveaxis(a, 5, 0).reshape(groups, n * grid_h * grid_w, depth)


def reference(x, wt, dy, window, groups, kept_rows, kept_parts, bias, relu, scale, where):
    """(y, dx, dwt, db) of a convolution of which kept_rows (N P,) and kept_parts (N P, K) are computed."""
    a, own = matrix_of(x, window, groups), wt.shape[1] // groups
    y, dz, parts = np.zeros(dy.shape), np.where(where > 0, dy, 0) * kept_rows[:, None], kept_parts * kept_rows[:, None]
    dwt, da = np.zeros(wt.shape), np.zeros(a.shape)
    for g in range(groups):
        outs = slice(g * own, (g + 1) * own)
        y[:, outs] = scale * (a[g] * parts) @ wt[:, outs] + bias[outs]
        dwt[:, outs] = scale * (a[g] * parts).T @ dz[:, outs]
        da[g] = scale * dz[:, outs] @ wt[:, outs].T * parts
    numbers = matrix_of(1.0 + np.arange(x.size).reshape(x.shape), window, groups).astype(int)  # 0 where there is no pixel
    dx = np.bincount(numbers.ravel(), da.ravel(), x.size + 1)[1:].reshape(x.shape)
    return (np.maximum(y, 0) if relu else y) * kept_rows[:, None], dx, dwt, dz.sum(0)


def plan_of(rng, name, total, depth):
    """(the list of rows or None, `Blocks` or None, which rows and which parts of the matrix it keeps)"""
    rows, parts, listed, blocks = np.ones(total), np.ones((total, depth)), None, None
    if name.endswith("rows"):
        rows = np.float64({"rows": rng.random(total) < 0.4, "no rows": np.zeros(total), "all rows": np.ones(total)}[name])
        listed = np.flatnonzero(rows).astype(np.int32)
    elif name.endswith("blocks"):
        height, width = {"blocks": (5, 3), "no blocks": (4, 4), "large blocks": (70, 66)}[name]
        count, columns = -(-total // height), -(-depth // width)
        q = 0 if name == "no blocks" else (columns + 1) // 2
        table = np.array([np.sort(rng.permutation(columns)[:q]) for _ in range(count)], np.int32).reshape(count, q)
        parts = np.zeros((count * height, columns * width))
        for b, found in enumerate(table):
            for j in found:
                parts[b * height : (b + 1) * height, j * width : (j + 1) * width] = 1
        parts, blocks = parts[:total, :depth], Blocks(table, height, width)
    return listed, blocks, rows, parts


def numbers(rng, case):
    """x, wt, bias, dy, where of a case"""
    shape, outs, groups, window = CASES[case]
    depth = np.prod(window.kernel) * shape[3] // groups
    total = shape[0] * np.prod(window.positions(*shape[1:3]))
    *arrays, where = (rng.standard_normal(s) for s in (shape, (depth, outs), (outs,), (total, outs), (total, outs)))
    return *arrays, np.maximum(where, 0)  # what a ReLU leaves


def on_device(put, listed, blocks):
    return (None if listed is None else put(listed)), blocks and blocks._replace(kept=put(blocks.kept))


# --- products ---------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("case, plan", PLANS)
def test_equals_the_loops(on_cuda, put, get, rng, case, plan):
    """Forward with bias and ReLU, dx and dw with a gate, at some scale; and without, where nothing is dropped."""
    shape, _, groups, window = CASES[case]
    x, wt, bias, dy, where = numbers(rng, case)
    listed, blocks, rows, parts = plan_of(rng, plan, len(dy), len(wt))
    kept_rows, kept_blocks = on_device(put, listed, blocks)
    options = {"rows": kept_rows, "blocks": kept_blocks}
    for plain in (True, False) if plan == "none" else (False,):
        scale, gate = (1.0, None) if plain else (0.5, put(where))
        expected = reference(
            x,
            wt,
            dy,
            window,
            groups,
            rows,
            parts,
            0 * bias if plain else bias,
            not plain,
            scale,
            np.ones(dy.shape) if plain else where,
        )
        y = implicit.launch_forward(put(x), put(wt), window, None if plain else put(bias), not plain, scale, **options)
        dx = implicit.launch_dx(put(dy), put(wt), gate, shape, window, scale, **options)
        found = y, dx, *implicit.launch_dw(put(x), put(dy), gate, window, groups, scale, **options)
        for name, ours, theirs in zip(("y", "dx", "dwt", "db"), found, expected, strict=True):
            np.testing.assert_allclose(get(ours), theirs, rtol=1e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("plan", ["none", "rows", "blocks"])
def test_parts_of_dw_are_added_up(on_cuda, put, get, rng, plan):
    """However many there are, those that get no rows too; and the same bits each time."""
    x, wt, bias, dy, where = numbers(rng, "many rows")
    _, _, groups, window = CASES["many rows"]
    listed, blocks, rows, parts = plan_of(rng, plan, len(dy), len(wt))
    kept_rows, kept_blocks = on_device(put, listed, blocks)
    expected = reference(x, wt, dy, window, groups, rows, parts, bias, False, 2.0, where)[2]
    for count in (3, 40):
        found = [
            get(implicit.launch_dw(put(x), put(dy), put(where), window, groups, 2.0, kept_rows, kept_blocks, count)[0])
            for _ in range(2)
        ]
        np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=2e-5)
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("empty", ["channels", "outputs", "pixels"])
def test_nothing_to_multiply(on_cuda, put, get, rng, empty):
    """y is the bias, gradients are 0."""
    shape, outs, window = {
        "channels": ((1, 3, 3, 0), 2, Window((3, 3))),
        "outputs": ((1, 3, 3, 2), 0, Window((3, 3))),
        "pixels": ((1, 0, 3, 2), 2, Window((3, 3), (1, 1), (2, 0))),
    }[empty]
    total, bias = shape[0] * np.prod(window.positions(*shape[1:3])), rng.standard_normal(outs)
    x, wt, dy = put(np.zeros(shape)), put(np.ones((9 * shape[3], outs))), put(np.ones((total, outs)))
    np.testing.assert_array_equal(get(implicit.launch_forward(x, wt, window, put(bias))), np.tile(np.float32(bias), (total, 1)))
    assert not get(implicit.launch_dx(dy, wt, None, shape, window)).any()
    dwt, db = implicit.launch_dw(x, dy, None, window)
    assert dwt.shape == wt.shape and not get(dwt).any()
    np.testing.assert_array_equal(get(db), np.full(outs, total))


def test_out_is_filled_and_nan_is_seen(on_cuda, put, get):
    """A NaN reaches the positions that see it, through the ReLU too, and no other."""
    x, window = np.zeros((1, 5, 5, 1)), Window((3, 3))
    x[0, 0, 0] = np.nan
    out = put(np.full((9, 2), 7.0))
    assert implicit.launch_forward(put(x), put(np.ones((9, 2))), window, relu=True, out=out) is out
    np.testing.assert_array_equal(np.isnan(get(out))[:, 0], np.arange(9) == 0)


# --- the matrix written out -------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_matrix_written_out(on_cuda, put, get, rng, case):
    """im2col is the matrix, and with the product of `gemm` a convolution; col2im is its transpose."""
    shape, outs, groups, window = CASES[case]
    x, wt, *_ = numbers(rng, case)
    matrix = im2col.launch_im2col(put(x), window, groups)
    np.testing.assert_array_equal(get(matrix), np.float32(matrix_of(x, window, groups)))
    if groups == 1:
        expected = implicit.launch_forward(put(x), put(wt), window)
        y = gemm.gemm_cuda(matrix.reshape(matrix.shape[1:]), put(wt))
        np.testing.assert_allclose(get(y), get(expected), rtol=1e-5, atol=2e-5)
    da = rng.standard_normal(matrix.shape)
    dx = get(im2col.launch_col2im(put(da), shape, window, 2.0))
    basis = rng.standard_normal(shape)
    assert np.vdot(dx, basis) == pytest.approx(2 * np.vdot(da, matrix_of(basis, window, groups)), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (6, 3, 5, 5), (33, 5, 3, 3), (40, 70, 1, 1), (3, 0, 2, 2)])
def test_the_weight_is_turned_and_turned_back(on_cuda, put, get, rng, shape):
    w = rng.standard_normal(shape).astype(np.float32)
    wt = im2col.transpose_weight(put(w))
    np.testing.assert_array_equal(get(wt), w.transpose(2, 3, 1, 0).reshape(-1, shape[0]))
    np.testing.assert_array_equal(get(im2col.transpose_gradient(wt, shape)), w)


# --- lists ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows, total", [([], 5), ([0], 1), ([2, 3, 300], 301), ([1, 5, 6], 700)])
def test_places_of_rows(on_cuda, put, get, rows, total):
    expected = np.full(total, -1)
    expected[rows] = np.arange(len(rows))
    np.testing.assert_array_equal(get(index_views.row_inverse(put(np.array(rows, np.int32)), total)), expected)


@pytest.mark.parametrize("count, columns, q", [(1, 1, 1), (7, 5, 2), (300, 9, 4), (520, 3, 0)])
def test_places_of_blocks(on_cuda, put, get, rng, count, columns, q):
    """The last column is narrower."""
    table = np.array([rng.permutation(columns)[:q] for _ in range(count)], np.int32).reshape(count, q)
    blocks, depth = Blocks(put(table), 4, 8), 8 * columns - 3
    places = np.full((count, columns), -1)
    for b, found in enumerate(table):
        places[b, found] = np.arange(q)
    np.testing.assert_array_equal(get(index_views.block_inverse(blocks, depth)), places)
    lists, counts = map(get, index_views.block_columns(blocks, depth))
    for j in range(columns):
        np.testing.assert_array_equal(lists[j, : counts[j]], np.flatnonzero(places[:, j] >= 0))


# --- refusals ---------------------------------------------------------------------------------------------------------
X, WT, DY = (2, 5, 5, 3), (27, 4), (18, 4)
REFUSED = {
    "a weight of other images": ((2, 5, 5, 4), WT, {}, r"implicit forward: images \(2, 5, 5, 4\).*\(27, 4\)"),
    "a weight of another kernel": (X, (12, 4), {}, r"implicit forward: images \(2, 5, 5, 3\).*\(12, 4\)"),
    "groups that do not divide": ((2, 5, 5, 6), (27, 5), {}, r"implicit forward: images"),
    "a bias of other length": (X, WT, {"bias": np.zeros(3)}, r"implicit forward.*bias \(3,\)"),
    "an out of other shape": (X, WT, {"out": np.zeros((18, 3))}, r"implicit forward.*out \(18, 3\)"),
    "two plans": (
        X,
        WT,
        {"rows": np.zeros(1, np.int32), "blocks": Blocks(np.zeros((5, 1), np.int32), 4, 4)},
        "rows and blocks cannot be given together",
    ),
    "blocks of other images": (X, WT, {"blocks": Blocks(np.zeros((4, 1), np.int32), 4, 4)}, r"kept \(4, 1\).*\(5, 1\)"),
    "images too wide": ((1, 3, 1 << 15, 1), (9, 4), {}, "fewer than 32768 along each axis"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(on_cuda, put, case):
    x, wt, options, message = REFUSED[case]
    options = {
        name: value._replace(kept=put(value.kept)) if isinstance(value, Blocks) else put(value)
        for name, value in options.items()
    }
    with pytest.raises(ValueError, match=message):
        implicit.launch_forward(put(np.zeros(x)), put(np.zeros(wt)), Window((3, 3)), **options)


def test_gradients_that_do_not_fit_are_refused(on_cuda, put):
    for rows in (17, 19):
        with pytest.raises(ValueError, match=rf"implicit dx.*dy \({rows}, 4\)"):
            implicit.launch_dx(put(np.zeros((rows, 4))), put(np.zeros(WT)), None, X, Window((3, 3)))
        with pytest.raises(ValueError, match=rf"implicit dw.*dy \({rows}, 4\)"):
            implicit.launch_dw(put(np.zeros(X)), put(np.zeros((rows, 4))), None, Window((3, 3)))


def test_what_32_bits_do_not_count_is_refused():
    """x, y, and what a plan keeps of dA, before any memory is asked for."""
    window = Window((3, 3), (1, 1), (1, 1))
    for shape, outs, rows in (
        ((1 << 13, 32, 32, 256), 4, None),
        ((1 << 13, 32, 32, 4), 256, None),
        ((1 << 10, 32, 32, 256), 4, np.arange(1 << 20, dtype=np.int32)),
    ):
        with pytest.raises(ValueError, match="op: 32 bits do not count .* take fewer images"):
            implicit._Work("op", shape, (9 * shape[3], outs), window, rows, None)


# --- gates on what is compiled ----------------------------------------------------------------------------------------
MADE = [
    (implicit.FORWARD, implicit.NOTHING),
    (implicit.FORWARD, implicit.SIDE),
    (implicit.FORWARD, implicit.INNER),
    (implicit.DX, implicit.NOTHING),
    (implicit.PATCHES, implicit.SIDE),
    (implicit.PATCHES, implicit.COLS),
    (implicit.DW, implicit.NOTHING),
    (implicit.DW, implicit.INNER),
]


@pytest.mark.slow
@pytest.mark.skipif(PROBLEM is not None, reason=PROBLEM or "")
@pytest.mark.parametrize("product, listed", MADE)
def test_sums_stay_in_registers(product, listed):
    """Two blocks have room on a multiprocessor, nothing is spilled; shared memory is read 16 bytes at once."""
    said, _, sass = assembled(implicit.conv_product_kernel(product, listed), (9, 0), disassembled=True).partition("SASS\n")
    assert int(re.search(r"Used (\d+) registers", said)[1]) <= 128
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    assert len(re.findall(r"\bFFMA\b", sass)) >= 256 and len(re.findall(r"\bLDS\.128\b", sass)) >= 32


# --- what they do -----------------------------------------------------------------------------------------------------
def counted(call, *names):
    """What the kernels of these names do on the emulated device, added up; without names, all that are launched."""
    emulation.counters.clear()
    with emulation.emulated():
        call()
    found = [counters.summary() for kernel, counters in emulation.counters.items() if not names or kernel.__name__ in names]
    return {name: sum(summary.get(name, 0) for summary in found) for name in found[0]}


@pytest.fixture
def layer(rng):
    """Operands of 3 x 3 on 16 x 16 pixels with 64 channels and outputs, on the emulated device: no tile is ragged."""
    shape, window = (1, 16, 16, 64), Window((3, 3), (1, 1), (1, 1))
    with emulation.emulated():
        x, wt, dy = (upload_cuda(rng.standard_normal(s).astype(np.float32)) for s in (shape, (576, 64), (256, 64)))
        rows = upload_cuda(np.sort(rng.permutation(256)[:64]).astype(np.int32))
        table = upload_cuda(np.array([[0, 3, 7], [1, 3, 8], [0, 2, 5], [4, 5, 6]], np.int32))
    return {
        "forward": lambda **plan: implicit.launch_forward(x, wt, window, **plan),
        "dx": lambda **plan: implicit.launch_dx(dy, wt, None, shape, window, **plan),
        "dw": lambda **plan: implicit.launch_dw(x, dy, None, window, parts=1, **plan),
        "written out": lambda: gemm.gemm_cuda(im2col.launch_im2col(x, window).reshape(256, 576), wt),
        "rows": {"rows": rows},
        "blocks": {"blocks": Blocks(table, 64, 64)},
    }


@pytest.mark.slow
@NEEDS_NVVM
@pytest.mark.parametrize("plan, share", [("rows", 1 / 4), ("blocks", 1 / 3)])
@pytest.mark.parametrize("product", ["forward", "dx", "dw"])
def test_what_is_dropped_costs_nothing(layer, product, plan, share):
    """Multiplications in proportion to what is kept, memory nearly so (dx writes what is kept of dA), and no thread waits for a
    bank."""
    whole = counted(layer[product], "conv_product")
    kept = counted(lambda: layer[product](**layer[plan]), "conv_product")
    assert whole["bank conflicts"] == kept["bank conflicts"] == 0
    assert kept["flops"] == pytest.approx(share * whole["flops"], rel=0.03)
    assert kept["issued"] <= 1.25 * share * whole["issued"] and kept["sectors"] <= 1.5 * share * whole["sectors"]


@NEEDS_NVVM
def test_the_matrix_goes_past_memory(layer):
    """Gathered on the way, less than 0.6 of the memory is touched that writing the matrix out does."""
    implicitly, written = counted(layer["forward"]), counted(layer["written out"])
    assert implicitly["sectors"] <= 0.6 * written["sectors"] and implicitly["issued"] <= 0.75 * written["issued"]


@NEEDS_NVVM
def test_the_weight_is_turned_side_by_side(rng):
    """Both ways along the last axis, without bank conflicts."""
    with emulation.emulated():
        w = upload_cuda(rng.standard_normal((64, 32, 3, 3)).astype(np.float32))
        wt = im2col.transpose_weight(w)
    for call in (lambda: im2col.transpose_weight(w), lambda: im2col.transpose_gradient(wt, w.shape)):
        found = counted(call)
        assert found["sectors"] == found["least sectors"] == 2 * w.size // 8 and found["bank conflicts"] == 0
