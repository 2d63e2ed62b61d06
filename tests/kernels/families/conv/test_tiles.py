"""Convolutions of tiles of positions, and of listed positions of small images, on the CPU: what they compute is the same
however work is cut, and in recordings that are replayed with other lists. `test_conv` compares cases with the reference, too.
"""

import contextlib
from unittest import mock

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings, strategies as st

from numbanet_kernels.families import conv
from numbanet_kernels.families.conv import cpu, cpu_position, cpu_position_loops
from numbanet_kernels.families.conv.cpu_panel_products import PANEL
from numbanet_kernels.families.conv.family import positions_of
from numbanet_kernels.families.conv.winograd import (
    cpu_winograd_tile_loops,
    cpu_winograd_tiles,
    cpu_winograd_transforms as transforms,
)
from numbanet_kernels.host import thresholds
from numbanet_kernels.layouts import filtering
from numbanet_kernels.layouts.windows import Positions, Window
from numbanet_kernels.runtime.pool import Arena, pages
from numbanet_kernels.runtime.tape import Tape
from tests.kernels.families.conv.cases import OPTIONS, WINOGRAD, check, close, operands, tiled

SAME = Window((3, 3), (1, 1), (1, 1))
SMALL = [WINOGRAD[0], WINOGRAD[4], ((65, 3, 4, 41), 37, Window((2, 3), (1, 2), (1, 2), (2, 1)), 1)]
TILES = {"tiles of 2": [WINOGRAD[i] for i in (0, 1, 3)], "tiles of 4": WINOGRAD[1:]}
EVERY = [(case, plan) for plan, cases in {**TILES, "rows": SMALL}.items() for case in cases]


def both(case, rows, scale=1.75):
    """[y, dx, dw, db] of a case at these rows."""
    x, w, bias, dy, where, _ = operands(np.random.default_rng(3), case)
    y = conv.conv2d_cpu(x, w, *case[2:], bias=bias, relu=True, scale=scale, rows=rows)
    return [y, *conv.conv2d_grad_cpu(dy, x, w, *case[2:], where=where, scale=scale, rows=rows)]


def rows_of(case, plan):
    return operands(np.random.default_rng(3), case, plan)[-1]["rows"]


def padded(rows, case):
    """The lists as recorded steps have them: as long as for all rows, with numbers beyond the last one."""
    (n, height, width, _), _, window, _ = case
    down, across = window.positions(height, width)
    rows = positions_of(rows)

    def longer(kept, total):
        return np.concatenate([kept, np.arange(total, 2 * total - len(kept))]).astype(np.int32)

    if rows.tiles is None:
        return rows._replace(kept=longer(rows.kept, n * down * across))
    count = n * -(-down // rows.side) * -(-across // rows.side)
    return rows._replace(kept=longer(rows.kept, n * down * across), tiles=longer(rows.tiles, count))


def equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_a_thread_without_channels_leaves_the_sums_of_others():
    """It is given channels 0 … -1 if there are more threads than chunks of channels."""
    sums, none = np.ones(3), np.zeros(1, np.float32)
    geometry, nothing = np.array([4, 4, 5, 4, 4, 3, 3, 3, 1, 1, 1, 1, 1, 1]), np.zeros((1, 17), np.int64)
    before = geometry, none, none, none, False, 1.0, 5, nothing, np.zeros(1, np.int32), np.zeros((1, PANEL), np.float32)
    dw = np.zeros((3, 45), np.float32)
    cpu_position_loops.gradient(*before, np.zeros(1, np.int64), none, none, np.zeros(PANEL, np.float32), dw, sums, none, 0, 0)
    assert (sums == 1).all()


@pytest.mark.parametrize("m", [2, 4])
def test_the_gradient_of_the_pixels_is_the_transpose(rng, m):
    d, g, dy = rng.standard_normal((m + 2, m + 2)), rng.standard_normal((3, 3)), rng.standard_normal((m, m))
    b, weight, a = (np.array(matrices[m]) for matrices in (transforms.B, transforms.G, transforms.A))
    back = b @ ((weight @ g @ weight.T) * (a @ dy @ a.T)) @ b.T
    y = np.einsum("ijrs,rs->ij", np.lib.stride_tricks.sliding_window_view(d, (3, 3)), g)
    assert (back * d).sum() == pytest.approx((y * dy).sum())


@pytest.mark.parametrize(
    "images, outs, plan, expected",
    [
        ((64, 8, 8, 64), 64, {"side": 4}, (True, False)),
        ((64, 8, 8, 64), 64, {"side": 2}, (True, False)),
        ((64, 4, 4, 512), 512, {"side": 2}, (True, False)),
        ((64, 8, 8, 3), 64, {"side": 4}, (False, False)),  # too few channels
        ((1, 8, 8, 64), 64, {"side": 4}, (False, False)),  # too few tiles
        ((64, 2, 2, 512), 512, {}, (False, True)),
        ((64, 4, 4, 512), 512, {}, (False, True)),
        ((64, 8, 8, 512), 512, {}, (False, True)),
        ((64, 4, 4, 32), 32, {}, (False, True)),
        ((64, 8, 8, 32), 32, {}, (False, False)),  # too few channels for images of this size
        ((64, 32, 32, 64), 64, {}, (False, False)),  # too large images
        ((16, 2, 2, 512), 512, {}, (False, False)),  # too few images
        ((64, 2, 2, 4), 512, {}, (False, False)),
    ],
)
def test_the_choice(images, outs, plan, expected):
    tiles = np.arange(3, dtype=np.int32) if plan else None
    choice = cpu.choose(SAME, (*images, outs), cpu.Plan(rows=np.arange(10, dtype=np.int32), tiles=tiles, **plan))
    assert choice[:2] == expected


@pytest.mark.parametrize("case, plan", EVERY, ids=str)
def test_cases_are_computed_so(monkeypatch, case, plan):
    seen, module = [], cpu_position_loops if plan == "rows" else cpu_winograd_tile_loops
    for name in ("forward", "backward", "gradient"):
        loop = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, name=name, loop=loop: seen.append(name) or loop(*given))
    check(case, plan, "everything", conv.conv2d_cpu, conv.conv2d_grad_cpu, np.array, np.asarray)
    assert set(seen) == {"forward", "backward", "gradient"}


def cut(monkeypatch, way):
    """Cut work into the smallest pieces, or share it among threads in the other way."""
    if way == "small":
        monkeypatch.setattr(cpu_winograd_tiles, "NEAR", 1)
        monkeypatch.setattr(cpu_winograd_tiles, "LENGTH", 1)
        monkeypatch.setattr(cpu_position, "IMAGES", 1)
        monkeypatch.setattr(cpu_position, "NEAR", 1)
    elif way == "other":
        monkeypatch.setattr(cpu_winograd_tiles, "_far", lambda weight, pixels: True)
        monkeypatch.setattr(cpu_winograd_tiles, "LENGTH", 1 << 40)
        monkeypatch.setattr(cpu_position, "IMAGES", 1 << 20)


@pytest.mark.parametrize("case, plan", EVERY, ids=str)
@pytest.mark.parametrize("way", ["usual", "small", "other"])
def test_results_are_the_same_for_any_number_of_threads(monkeypatch, case, plan, way):
    cut(monkeypatch, way)
    rows, found = rows_of(case, plan), []
    for threads in (1, 2, 3):
        with thresholds.using(thresholds.Thresholds(1, 1)), threadpoolctl.threadpool_limits(threads, user_api="blas"):
            found.append(both(case, rows))
    for others in found[1:]:
        equal(others, found[0])


@pytest.mark.parametrize("case, plan", EVERY, ids=str)
@pytest.mark.parametrize("way", ["small", "other"])
def test_results_are_right_however_work_is_cut(monkeypatch, case, plan, way):
    """y and dx are the same to the last bit, and dw up to rounding."""
    rows = rows_of(case, plan)
    expected = both(case, rows)
    cut(monkeypatch, way)
    equal(both(case, rows)[:2], expected[:2])
    for option in OPTIONS:
        check(case, plan, option, conv.conv2d_cpu, conv.conv2d_grad_cpu, np.array, np.asarray)


@pytest.mark.parametrize("way", ["usual", "small", "other"])
@pytest.mark.parametrize("case, plan", EVERY, ids=str)
def test_a_recording_is_replayed_with_other_lists(monkeypatch, case, plan, way):
    """Also with lists of all rows and of none."""
    cut(monkeypatch, way)
    x, w, bias, dy, where, _ = operands(np.random.default_rng(3), case)
    window, rows = case[2], padded(rows_of(case, plan), case)
    positions = window.positions(*case[0][1:3])

    def work():
        return [
            conv.conv2d_cpu(x, w, window, bias=bias, relu=True, rows=rows),
            *conv.conv2d_grad_cpu(dy, x, w, window, where=where, rows=rows),
        ]

    with thresholds.using(thresholds.Thresholds(1, 1)), threadpoolctl.threadpool_limits(2, user_api="blas"):
        tape = Tape(work, Arena(1 << 30, pages))
        for share in (0.7, 0.0, 1.0, 0.1):
            drawn = tiled(np.random.default_rng(5), len(x), positions, rows.side, share)
            other = padded(drawn if rows.tiles is not None else drawn.kept, case)
            rows.kept[:] = other.kept
            if rows.tiles is not None:
                rows.tiles[:] = other.tiles
            tape.replay()
            options = {"rows": drawn.kept if rows.tiles is None else drawn}
            expected = [conv.conv2d_cpu(x, w, window, bias=bias, relu=True, **options)]
            equal(tape.result, [*expected, *conv.conv2d_grad_cpu(dy, x, w, window, where=where, **options)])


@st.composite
def convolutions(draw):
    """A convolution of tiles by a window of 3 x 3, or one of single positions by any window: how much is kept."""
    tiles, number = draw(st.booleans()), lambda least, most: draw(st.integers(least, most))
    images, channels, outs = number(1, 70), number(1, 70), number(1, 70)
    height, width, padding = number(1, 9), number(1, 9), (number(0, 2), number(0, 2))
    window = SAME._replace(padding=padding)
    if not tiles:
        height, width = number(1, 4), number(1, 4)
        kernel, steps = (number(1, 3), number(1, 3)), ((number(1, 2), number(1, 2)), (number(1, 2), number(1, 2)))
        window = Window(kernel, steps[0], padding, steps[1])
    positions = window.positions(height, width)
    side = draw(st.sampled_from((2, 4))) if tiles else None
    return (images, height, width, channels), outs, window, positions, side, draw(st.floats(0, 1))


@contextlib.contextmanager
def without_conditions():
    """Also what would take longer so is computed so."""
    positions = mock.patch.multiple(cpu_position, WIDE=(0, 0), LEAST=0, FAR=1 << 60)
    with mock.patch.multiple(filtering, WIDE=0, SAVED=-(1 << 60)), positions:
        yield


@given(convolutions(), st.integers(0, 1 << 30), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_whatever_is_kept_is_computed_as_by_the_reference(given, seed, threads):
    shape, outs, window, positions, side, share = given
    if min(positions) < 1:
        return
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(shape, np.float32), rng.standard_normal((outs, shape[3], *window.kernel), np.float32)
    dy, where = (rng.standard_normal((shape[0], *positions, outs), np.float32) for _ in range(2))
    rows = tiled(rng, shape[0], positions, side or 1, share)
    rows = rows if side else Positions(rows.kept)
    options, limits = {"scale": 1.5, "rows": rows}, threadpoolctl.threadpool_limits(threads, user_api="blas")
    with thresholds.using(thresholds.Thresholds(1, 1)), limits, without_conditions():
        found = [conv.conv2d_cpu(x, w, window, relu=True, **options)]
        found += conv.conv2d_grad_cpu(dy, x, w, window, where=where, **options)
    expected = [conv.conv2d_reference(x, w, window, relu=True, **options)]
    expected += conv.conv2d_grad_reference(dy, x, w, window, where=where, **options)
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("case, plan", [EVERY[2], EVERY[0], EVERY[-1]], ids=str)
def test_what_is_dropped_is_not_read(case, plan):
    """Gradients of dropped positions may be anything."""
    x, w, _, dy, _, thinned = operands(np.random.default_rng(3), case, plan)
    kept = np.zeros(dy.shape[:3], bool)
    kept.reshape(-1)[positions_of(thinned["rows"]).kept] = True
    dy[~kept] = np.nan
    assert all(np.isfinite(array).all() for array in conv.conv2d_grad_cpu(dy, x, w, case[2], **thinned))


@pytest.mark.parametrize(
    "rows, message",
    [
        (Positions(np.arange(4, dtype=np.int32), tiles=np.arange(73, dtype=np.int32), side=4), "73 tiles of side 4"),
        (Positions(np.arange(4, dtype=np.int32), tiles=np.arange(2, dtype=np.int32), side=0), "side 0"),
        (Positions(None, tiles=np.arange(2, dtype=np.int32), side=4), "have no rows"),
        (Positions(np.arange(4, dtype=np.int32), tiles=np.array([1, 0], np.int32), side=4), "must increase"),
        (Positions(np.arange(4, dtype=np.int32), tiles=np.array([0, 54], np.int32), side=4), "from 0 to 53"),
    ],
)
def test_lists_that_do_not_fit_are_refused(rows, message):
    x, w, *_ = operands(np.random.default_rng(3), WINOGRAD[1])
    with pytest.raises(ValueError, match=f"conv2d.*{message}"):
        conv.conv2d_cpu(x, w, WINOGRAD[1][2], rows=rows)
