"""Updates against their float64 references and against PyTorch's optimisers, dense and packed."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numbanet_kernels import cpu
from numbanet_kernels.families import gemm_tiles, update
from numbanet_kernels.host import thresholds
from numbanet_kernels.layouts.packed import AdamUpdate, LazyBlocks, Packing, SGDUpdate, adam_numbers
from numbanet_kernels.layouts.tiles import Pattern


def packing(rng, shape, classes):
    """A random packing: some rows without gradient, each row in one of some classes with lists of different lengths."""
    r, c = shape
    row_pos = np.full(r, -1, np.int32)
    kept = np.flatnonzero(rng.random(r) < 0.6)
    row_pos[kept] = rng.permutation(kept.size)
    row_class = rng.integers(classes, size=r).astype(np.int32)
    lists = [np.flatnonzero(rng.random(c) < 0.5) for _ in range(classes)]
    width = max(len(x) for x in lists) + 1
    cols, col_pos = np.full((classes, width), -1, np.int32), np.full((classes, c), -1, np.int32)
    for z, columns in enumerate(lists):
        cols[z, : columns.size], col_pos[z, columns] = columns, np.arange(columns.size)
    return Packing(row_pos, row_class, cols, col_pos), (kept.size, width)


CASES = [((5, 9), None), ((5, 9), 1), ((12, 7), 3), ((1, 1), None), ((1, 40), None), ((0, 3), None)]


@pytest.fixture(params=CASES, ids=str)
def problem(request, rng):
    shape, classes = request.param
    kept, packed_shape = (None, shape) if classes is None else packing(rng, shape, classes)
    w, s1, g = rng.standard_normal(shape), rng.standard_normal(shape), rng.standard_normal(packed_shape)
    return w, s1, np.abs(s1) + 0.1, g, kept


@pytest.mark.parametrize("momentum, nesterov, decay", [(0.0, False, 0.0), (0.9, False, 0.0), (0.9, True, 0.01)])
def test_sgd_equals_reference(suffix, put, get, problem, momentum, nesterov, decay):
    w, v, _, g, kept = problem
    arrays = put(w.copy()), put(v.copy())
    one = SGDUpdate(*arrays, put(g), kept and Packing(*map(put, kept)))
    getattr(update, f"sgd_{suffix}")([one], 0.1, momentum, nesterov, decay)
    for found, expected in zip(arrays, update.sgd_reference(w, v, g, 0.1, momentum, nesterov, decay, kept)):
        np.testing.assert_allclose(get(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [3, 40])  # elements one by one, and in vectors
def test_states_without_gradients_become_0_and_not_subnormal(width):
    """Arithmetic with subnormal numbers is slow on a CPU, and a product with 0.9 does not make the smallest of them smaller."""
    tiny, zero = np.finfo(np.float32).tiny, np.zeros((2, width), np.float32)
    w, v, m, s = (np.full_like(zero, value) for value in (1.0, 1.05 * tiny, 1.05 * tiny, 1.0005 * tiny))
    lazy = LazyBlocks(*np.ones((2, 1, 1), np.int32), *np.zeros((2, 1, 1), bool), cpu.sgd_powers(3, 0.1, 0.9), (2, width))
    settled = v.copy()
    update.sgd_cpu([SGDUpdate(w, v, zero)], 0.1, 0.9)
    update.sgd_settle_cpu(w, settled, lazy)
    update.adam_cpu([AdamUpdate(w, m, s, zero)], np.float32(adam_numbers(0.1, 0.9, 0.999, 1e-8, 7)))
    assert not any(state.any() for state in (v, settled, m, s))
    v[0, 0] = m[0, 0] = np.nan
    v[1] = -2 * tiny
    update.sgd_cpu([SGDUpdate(w, v, zero)], 0.1, 0.9)
    update.adam_cpu([AdamUpdate(w, m, s, zero)], np.float32(adam_numbers(0.1, 0.9, 0.999, 1e-8, 7)))
    assert np.isnan([v[0, 0], m[0, 0]]).all()
    np.testing.assert_array_equal(v[1], np.float32(0.9) * np.float32(-2 * tiny))


def test_a_rate_in_memory_of_the_device(on_cuda, put, get, rng):
    arrays, rate = [put(rng.standard_normal((3, 5))) for _ in range(3)], put(np.array([0.1]))
    for lr in (0.1, 0.3):
        expected = update.sgd_reference(*map(get, arrays), lr, 0.9)
        rate.copy_to_device(np.array([lr], np.float32))
        update.sgd_cuda([SGDUpdate(*arrays)], rate, 0.9)
        for found, wanted in zip(arrays, expected):
            np.testing.assert_allclose(get(found), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step, decay, decoupled", [(1, 0.0, False), (7, 0.01, False), (1, 0.2, True), (7, 0.2, True)])
def test_adam_equals_reference(suffix, put, get, problem, step, decay, decoupled):
    w, m, s, g, kept = problem
    arrays = put(w.copy()), put(m.copy()), put(s.copy())
    numbers = (0.1, 0.9, 0.999, 1e-8, step, decay, decoupled)
    getattr(update, f"adam_{suffix}")(
        [AdamUpdate(*arrays, put(g), kept and Packing(*map(put, kept)))], put(np.float32(adam_numbers(*numbers)))
    )
    for found, expected in zip(arrays, update.adam_reference(w, m, s, g, *numbers, kept)):
        np.testing.assert_allclose(get(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("betas", [(0.9, 1 - 1e-5), (0.9, 1 - 1e-8), (1 - 1e-8, 0.999)])
def test_adam_with_betas_near_1_in_float32(suffix, put, get, rng, betas):
    given = rng.standard_normal((3, 4)), np.zeros((3, 4)), np.zeros((3, 4)), rng.standard_normal((3, 4))
    *arrays, g = (put(array.copy()) for array in given)
    numbers = (0.1, *betas, 1e-8, 1)
    getattr(update, f"adam_{suffix}")([AdamUpdate(*arrays, g)], put(np.float32(adam_numbers(*numbers))))
    for found, expected in zip(arrays, update.adam_reference(*given, *numbers)):
        np.testing.assert_allclose(get(found), expected, rtol=1e-6)


def test_several_weights_at_once(suffix, put, get, rng):
    """Dense, packed, lazy and empty ones, more than one launch takes: each as if alone."""
    numbers, problems, updates = NUMBERS["nesterov, decay"], [], []
    for i, shape in enumerate([(3, 4), (40, 70), (1, 9), (0, 3), (12, 7), (2000, 2), (5, 5), (1, 1), (4, 6)]):
        kept, packed_shape = packing(rng, shape, 2) if i % 2 else (None, shape)
        if i == 8:  # packed, and nothing is kept
            kept = Packing(*(np.int32(a) for a in (np.arange(4), np.zeros(4), np.zeros((1, 0)), np.full((1, 6), -1))))
            packed_shape = (4, 0)
        lazy, host = lazy_blocks(rng, put, shape, (1, 1), numbers) if i == 4 else (None, None)
        w, v, g = (rng.standard_normal(s) for s in (shape, shape, packed_shape))
        g = g if host is None else g * host[2]  # what is not current has no gradient
        problems.append((w, v, g, kept, host))
        updates.append(SGDUpdate(put(w.copy()), put(v.copy()), put(g), kept and Packing(*map(put, kept)), lazy))
    getattr(update, f"sgd_{suffix}")(updates, *numbers)
    for (w, v, g, kept, lazy), found in zip(problems, updates, strict=True):
        expected = (
            update.sgd_reference(w, v, g, *numbers, kept)
            if lazy is None
            else update.sgd_lazy_reference(w, v, g, *numbers, kept, lazy)[:2]
        )
        for array, values in zip(found, expected):
            np.testing.assert_allclose(get(array), values, rtol=1e-5, atol=1e-6)


def test_unpack_gradient(suffix, put, get, rng):
    kept, packed_shape = packing(rng, (12, 7), 3)
    g = rng.standard_normal(packed_shape)
    dense = get(getattr(update, f"unpack_gradient_{suffix}")(put(g), Packing(*map(put, kept)), (12, 7)))
    row_pos, row_class, _, col_pos = kept
    expected = [
        [g[row_pos[r], col_pos[row_class[r], c]] if row_pos[r] >= 0 and col_pos[row_class[r], c] >= 0 else 0 for c in range(7)]
        for r in range(12)
    ]
    np.testing.assert_allclose(dense, expected, rtol=1e-6)


@pytest.mark.parametrize("classes", [1, 3])
def test_packed_squares_leave_out_padding(suffix, put, get, rng, classes):
    kept, packed_shape = packing(rng, (12, 7), classes)
    g = rng.standard_normal(packed_shape).astype(np.float32)
    row_pos, row_class, cols, _ = kept
    expected, there = update.packed_squares_reference(g, kept), np.zeros(packed_shape, bool)
    there[row_pos[row_pos >= 0]] = cols[row_class[row_pos >= 0]] >= 0
    out = put(np.zeros(()))
    found = getattr(update, f"packed_squares_{suffix}")(put(np.where(there, g, np.nan)), Packing(*map(put, kept)), out=out)
    assert found is out
    np.testing.assert_allclose(get(found), expected, rtol=1e-5)


LARGE = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    "squares, limit, factor",
    [
        ((9.0, 16.0), 2.0, 0.4),
        ((9.0, 16.0), 5.0, 1.0),  # the norm is not above the limit
        ((9.0, 16.0), LARGE, 1.0),
        ((0.0, 0.0), 1e-30, 1.0),
        ((LARGE, LARGE), 1.0, 2**-0.5 / LARGE**0.5),  # their sum is not a float32
        ((np.inf, 1.0), 1.0, 0.0),
        ((np.nan, 1.0), 1.0, 1.0),
        ((), 1.0, 1.0),
    ],
)
def test_gradients_are_scaled_down_to_the_limit(suffix, put, get, rng, squares, limit, factor):
    """NaN leaves everything as it is, and infinity becomes NaN, which `fit` notices."""
    host = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (5,), (0, 3), (70, 90))]
    host[1][:3] = np.nan, np.inf, 0
    arrays = [put(x.copy()) for x in host]
    getattr(update, f"clip_norm_{suffix}")(arrays, put(np.float32(squares)), put(np.float32([limit])))
    with np.errstate(invalid="ignore"):
        for found, x in zip(map(get, arrays), host, strict=True):
            np.testing.assert_allclose(found, x * np.float32(factor), rtol=4e-7)
            assert factor != 1 or found.tobytes() == x.tobytes()


def test_clipping_does_not_depend_on_the_number_of_threads(rng):
    """Nor on whether work is shared at all."""
    kept, packed_shape = packing(rng, (300, 500), 3)
    host = [rng.standard_normal(shape).astype(np.float32) for shape in ((211, 307), packed_shape, (307,))]
    results = set()
    for size, least in ((1, 1), (2, 1), (4, 1), (2, 1 << 30)):
        with thresholds.using(thresholds.Thresholds(least, least)), threadpool_limits(4, user_api="blas"), cpu.session(size):
            arrays, sums = [x.copy() for x in host], np.zeros(3, np.float32)
            for i, x in enumerate(arrays):
                out = sums[i : i + 1].reshape(())
                cpu.packed_squares(x, kept, out=out) if i == 1 else cpu.squares(x, out=out)
            cpu.clip_norm(arrays, sums, np.float32([1.5]))
            results.add((sums.tobytes(), *(x.tobytes() for x in arrays)))
    assert len(results) == 1


def test_what_cannot_be_clipped_is_named(suffix, put):
    clip = getattr(update, f"clip_norm_{suffix}")
    for squares, limit, message in ((np.ones(1), np.ones(2), "limit"), (np.ones((1, 1)), np.ones(1), "squares")):
        with pytest.raises(ValueError, match=rf"clip_norm \({suffix}\).*{message}"):
            clip([put(np.ones(3))], put(squares), put(limit))
    with pytest.raises(TypeError, match=rf"clip_norm \({suffix}\): x must be a contiguous float32 array"):
        clip([put(np.ones(3, np.int32))], put(np.ones(1)), put(np.ones(1)))


def test_shapes_that_do_not_match_are_named(suffix, put):
    with pytest.raises(ValueError, match=rf"sgd \({suffix}\).*\(2, 3\).*\(3, 2\)"):
        arrays = (put(np.zeros(shape)) for shape in ((2, 3), (2, 3), (3, 2)))
        getattr(update, f"sgd_{suffix}")([SGDUpdate(*arrays)], 0.1)


NUMBERS = {"plain": (0.1, 0.0, False, 0.0), "momentum": (0.1, 0.9, False, 0.0), "nesterov, decay": (0.1, 0.9, True, 0.01)}


def lazy_blocks(rng, put, blocks, block, numbers):
    """`lazy` with some blocks current and others up to four steps late, on the device and on the host."""
    current, wanted = rng.random(blocks) < 0.4, rng.random(blocks) < 0.4
    lag = np.where(current, 0, rng.integers(5, size=blocks)).astype(np.int32)
    host = lag, np.zeros_like(lag), current, wanted, update.sgd_powers_reference(8, *numbers)
    return LazyBlocks(*map(put, host), block), LazyBlocks(*host, block)


@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("shape, block", [((5, 9), (1, 9)), ((9, 7), (4, 3)), ((1, 1), (4, 4)), ((0, 3), (1, 3))])
def test_lazy_blocks_take_no_step_or_all_they_missed(suffix, put, get, rng, shape, block, numbers):
    lazy, host = lazy_blocks(rng, put, tuple(-(-n // size) for n, size in zip(shape, block)), block, numbers)
    kept, packed_shape = packing(rng, shape, 2)
    w, v, g = rng.standard_normal(shape), rng.standard_normal(shape), rng.standard_normal(packed_shape)
    arrays = put(w.copy()), put(v.copy())
    getattr(update, f"sgd_{suffix}")([SGDUpdate(*arrays, put(g), Packing(*map(put, kept)), lazy)], *numbers)
    for found, expected in zip((*arrays, lazy[1]), update.sgd_lazy_reference(w, v, g, *numbers, kept, host), strict=True):
        np.testing.assert_allclose(get(found), expected, rtol=1e-5, atol=1e-6)


WINDOWS = {
    "inside": (20, 40),
    "around the end": (120, 50),
    "one of two runs": (0, 23),
    "everything": (0, 150),
    "nothing": (7, 0),
}


@pytest.mark.parametrize("cols", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("height, width", [(1, 16), (4, 64), (200, 150)])
def test_windows_on_any_number_of_threads(rng, cols, height, width):
    """Windows begin and end within blocks, and adjacent blocks are updated in one run; no thread has the whole window."""
    shape, numbers = (200, 150), NUMBERS["nesterov, decay"]
    inner, outer = (np.sort((start + np.arange(count)) % n) for n, (start, count) in zip(shape, ((170, 90), cols), strict=True))
    read = np.zeros((2, *shape), bool)
    read[0][np.ix_(inner, outer)] = read[1][30:110, 60:100] = True
    starts = range(0, 200, height), range(0, 150, width)
    current, wanted = (np.logical_or.reduceat(np.logical_or.reduceat(part, starts[0]), starts[1], axis=1) for part in read)
    lag = np.where(current, 0, rng.integers(3, size=(current.shape[0], 1))).astype(np.int32)
    lazy = LazyBlocks(lag, lag.copy(), current, wanted, cpu.sgd_powers(8, *numbers), (height, width))
    places = [np.full(n, -1, np.int32) for n in shape]
    for place, kept in zip(places, (inner, outer), strict=True):
        place[kept] = np.arange(kept.size)
    kept = Packing(places[0], np.zeros(200, np.int32), outer.astype(np.int32)[None], places[1][None])
    w, v, g = (rng.standard_normal(size).astype(np.float32) for size in (shape, shape, (inner.size, outer.size)))
    expected, results = update.sgd_lazy_reference(w, v, g, *numbers, kept, lazy), set()
    for size in (1, 2, 3):
        with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(3, user_api="blas"), cpu.session(size):
            arrays = w.copy(), v.copy()
            cpu.sgd([SGDUpdate(*arrays, g, kept, lazy)], *numbers)
        for found, right in zip((*arrays, lazy.after), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
        results.add(b"".join(x.tobytes() for x in arrays))
    assert len(results) == 1


@pytest.mark.parametrize("shape, dp", [((70, 50), 3), ((9, 11), 2), ((64, 64), 4)])
def test_an_update_packs_the_tiles_that_the_next_step_reads(rng, shape, dp):
    tile, numbers = 8, NUMBERS["nesterov, decay"]
    pattern = Pattern(shape, tile, dp, 1, 2)
    blocks = tuple(-(-n // tile) for n in shape)
    lazy, _ = lazy_blocks(rng, np.asarray, blocks, (tile, tile), numbers)
    wanted = np.ascontiguousarray(gemm_tiles.tile_mask_reference(pattern)[::tile, ::tile])
    w, v, g = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    into = packed, places = gemm_tiles.tile_room_cpu(pattern)
    packed[...] = 0
    lazy = lazy._replace(wanted=wanted, powers=lazy.powers.astype(np.float32))
    update.sgd_cpu([SGDUpdate(w, v, g, None, lazy, into)], *numbers)
    expected = np.zeros_like(packed)
    for row, place in zip(w, places, strict=True):
        r = np.flatnonzero(places == place)[0] // tile
        for j, c in enumerate(np.flatnonzero(wanted[r])):
            piece = row[c * tile : (c + 1) * tile]
            expected[place, j * tile : j * tile + piece.size] = piece
    np.testing.assert_array_equal(packed, expected)


@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_settling_makes_up_for_every_missed_step(suffix, put, get, rng, numbers):
    lazy, (lag, *_) = lazy_blocks(rng, put, (3, 3), (4, 3), numbers)
    w, v = rng.standard_normal((9, 7)), rng.standard_normal((9, 7))
    arrays = put(w.copy()), put(v.copy())
    getattr(update, f"sgd_settle_{suffix}")(*arrays, lazy)
    expected = [w.copy(), v.copy()]
    for u, b in np.ndindex(3, 3):
        own = slice(u * 4, u * 4 + 4), slice(b * 3, b * 3 + 3)
        for _ in range(lag[u, b]):
            zero = np.zeros_like(expected[0][own])
            expected[0][own], expected[1][own] = update.sgd_reference(expected[0][own], expected[1][own], zero, *numbers)
    for found, values in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(get(found), values, rtol=1e-5, atol=1e-6)


def test_blocks_that_do_not_cover_the_weight_are_named(suffix, put, rng):
    lazy, _ = lazy_blocks(rng, put, (2, 2), (4, 4), NUMBERS["momentum"])
    arrays = [put(np.zeros((9, 7))) for _ in range(3)]
    with pytest.raises(ValueError, match=rf"sgd \({suffix}\).*blocks \(2, 2\) of \(4, 4\)"):
        getattr(update, f"sgd_{suffix}")([SGDUpdate(*arrays, None, lazy)], 0.1)
