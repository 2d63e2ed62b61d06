"""Convolution by Winograd's filtering: where it is chosen, its errors, and that results do not depend on how work is cut.
Its cases are compared with the reference, and between closed pages, in `test_conv`.
"""

import numpy as np
import pytest
import threadpoolctl

from numbanet_kernels.families import conv
from numbanet_kernels.families.conv import cpu
from numbanet_kernels.families.conv.winograd import cpu_winograd, cpu_winograd_loops, cpu_winograd_transforms as transforms
from numbanet_kernels.host import thresholds
from numbanet_kernels.layouts.windows import Window
from numbanet_kernels.runtime.pool import Arena, pages
from numbanet_kernels.runtime.tape import Tape
from tests.kernels.families.conv.cases import ABREAST, OPTIONS, WINOGRAD, check, operands

SAME = Window((3, 3), (1, 1), (1, 1))


def both(case, option="everything"):
    """[y, dx, dw, db] of a case."""
    x, w, bias, dy, where, _ = operands(np.random.default_rng(3), case)
    scale = OPTIONS[option].get("scale", 1.0)
    y = conv.conv2d_cpu(x, w, *case[2:], bias=bias, relu=True, scale=scale)
    return [y, *conv.conv2d_grad_cpu(dy, x, w, *case[2:], where=where, scale=scale)]


def equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("m", [2, 4])
def test_the_matrices_filter_exactly(rng, m):
    d, g, dy = rng.standard_normal((m + 2, m + 2)), rng.standard_normal((3, 3)), rng.standard_normal((m, m))
    bt, weight, at = (np.array(matrices[m]) for matrices in (transforms.BT, transforms.G, transforms.AT))
    windows = np.lib.stride_tricks.sliding_window_view(d, (3, 3))
    u, v = weight @ g @ weight.T, bt @ d @ bt.T
    np.testing.assert_allclose(at @ (u * v) @ at.T, np.einsum("ijrs,rs->ij", windows, g), atol=1e-13)
    dg = weight.T @ ((at.T @ dy @ at) * v) @ weight
    np.testing.assert_allclose(dg, np.einsum("ijrs,ij->rs", windows, dy), atol=1e-12)


@pytest.mark.parametrize(
    "height, width, m", [(1, 1, 2), (2, 2, 2), (3, 3, 4), (4, 4, 4), (5, 5, 2), (6, 6, 2), (7, 7, 4), (8, 8, 4), (2, 8, 2)]
)
def test_tiles_are_those_with_fewer_multiplications(height, width, m):
    assert cpu_winograd.tile_of(height, width) == m


@pytest.mark.parametrize(
    "images, outs, window, plan, expected",
    [
        ((64, 8, 8, 64), 64, SAME, cpu.Plan(), True),
        ((64, 2, 2, 512), 512, SAME, cpu.Plan(), True),
        ((64, 8, 8, 64), 64, Window((3, 3)), cpu.Plan(), True),
        ((64, 8, 8, 64), 64, SAME._replace(stride=(2, 1)), cpu.Plan(), False),
        ((64, 8, 8, 64), 64, SAME._replace(dilation=(1, 2)), cpu.Plan(), False),
        ((64, 8, 8, 64), 64, SAME._replace(kernel=(3, 5)), cpu.Plan(), False),
        ((64, 8, 8, 64), 64, SAME._replace(padding=(3, 1)), cpu.Plan(), False),
        ((64, 8, 8, 64), 64, SAME, cpu.Plan(groups=2), False),
        ((64, 8, 8, 64), 64, SAME, cpu.Plan(rows=np.arange(10, dtype=np.int32)), False),
        ((64, 1, 1, 256), 256, SAME, cpu.Plan(), False),
        ((64, 32, 32, 3), 64, SAME, cpu.Plan(), False),
        ((1, 8, 8, 64), 64, SAME, cpu.Plan(), False),
        ((0, 8, 8, 64), 64, SAME, cpu.Plan(), False),
    ],
)
def test_it_is_chosen_for_enough_channels_and_tiles(images, outs, window, plan, expected):
    assert cpu.choose(window, (*images, outs), plan).winograd == expected


@pytest.mark.parametrize("case", WINOGRAD, ids=str)
def test_cases_are_computed_so_unless_a_plan_leaves_something_out(monkeypatch, case):
    seen = []
    for name in ("forward", "gradient"):
        loop = getattr(cpu_winograd_loops, name)
        monkeypatch.setattr(cpu_winograd_loops, name, lambda *given, name=name, loop=loop: seen.append(name) or loop(*given))
    for plan, expected in (("all", {"forward", "gradient"}), ("rows", set()), ("blocks", set())):
        seen.clear()
        check(case, plan, "plain", conv.conv2d_cpu, conv.conv2d_grad_cpu, np.array, np.asarray)
        assert set(seen) == expected, plan


# floats of v that are near, whether the weight is transformed panel by panel, tiles of a slice
CUTS = [(1, False, 1), (1 << 15, False, 8), (1 << 30, False, 1 << 40), (1, True, 8)]


def cut(monkeypatch, near, far, length):
    """Cut tiles like this."""
    made = cpu_winograd.tiling
    monkeypatch.setattr(cpu_winograd, "NEAR", near)
    monkeypatch.setattr(cpu_winograd, "LENGTH", length)
    monkeypatch.setattr(cpu_winograd, "tiling", lambda *given: made(*given)._replace(far=far))


@pytest.mark.parametrize("case", WINOGRAD, ids=str)
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_results_are_the_same_for_any_number_of_threads(monkeypatch, case, cuts):
    cut(monkeypatch, *cuts)
    found = []
    for threads in (1, 2, 3):
        with thresholds.using(thresholds.Thresholds(1, 1)), threadpoolctl.threadpool_limits(threads, user_api="blas"):
            found.append(both(case))
    for others in found[1:]:
        equal(others, found[0])


@pytest.mark.parametrize("case", WINOGRAD, ids=str)
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_results_are_right_however_tiles_are_cut(monkeypatch, case, cuts):
    """y and dx are the same to the last bit, and dw up to rounding."""
    expected = both(case)
    cut(monkeypatch, *cuts)
    equal(both(case)[:2], expected[:2])
    check(case, "all", "everything", conv.conv2d_cpu, conv.conv2d_grad_cpu, np.array, np.asarray)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", WINOGRAD, ids=str)
def test_a_recording_computes_the_same(case, threads):
    x, w, bias, dy, where, _ = operands(np.random.default_rng(3), case)
    window = case[2]

    def work():
        return [conv.conv2d_cpu(x, w, window, bias=bias, relu=True), *conv.conv2d_grad_cpu(dy, x, w, window, where=where)]

    with thresholds.using(thresholds.Thresholds(1, 1)), threadpoolctl.threadpool_limits(threads, user_api="blas"):
        work()
        tape = Tape(work, Arena(1 << 30, pages))
        for array in (x, w, bias, dy):
            array *= 1.5
        tape.replay()
        equal(tape.result, work())


@pytest.mark.parametrize("images, m, y_error, dw_error", [((16, 8, 8, 512), 4, 4e-6, 3e-6), ((64, 2, 2, 512), 2, 1e-6, 1e-6)])
def test_errors_of_512_channels_are_those_that_the_module_states(rng, images, m, y_error, dw_error):
    """Relative to the largest element of a result."""
    x, w = rng.standard_normal(images).astype(np.float32), rng.standard_normal((512, 512, 3, 3)).astype(np.float32)
    dy = rng.standard_normal((*images[:3], 512)).astype(np.float32)
    assert cpu_winograd.tile_of(*images[1:3]) == m and cpu.choose(SAME, (*images, 512), cpu.Plan()).winograd
    found = [conv.conv2d_cpu(x, w, SAME), *conv.conv2d_grad_cpu(dy, x, w, SAME)]
    expected = [conv.conv2d_reference(x, w, SAME), *conv.conv2d_grad_reference(dy, x, w, SAME)]
    for ours, theirs, most in zip(found, expected, (y_error, y_error, dw_error, 1e-7), strict=True):
        assert np.abs(ours - theirs).max() <= most * np.abs(theirs).max()


def test_what_is_not_finite_stays_within_its_tile(rng):
    x, w = rng.standard_normal((40, 8, 8, 48)).astype(np.float32), rng.standard_normal((48, 48, 3, 3)).astype(np.float32)
    x[1, 1, 1, 2], x[3, 6, 6, 40] = np.nan, np.inf
    y = conv.conv2d_cpu(x, w, SAME, relu=True)
    assert np.isnan(y[1, :3, :3]).all() and np.isnan(y[3, 5:, 5:]).any()
    y[1, :4, :4] = y[3, 4:, 4:] = 0
    assert np.isfinite(y).all()


def test_other_cases_are_not_computed_so():
    assert not any(cpu.choose(window, (*images, outs), cpu.Plan()).winograd for images, outs, window, _ in ABREAST)
