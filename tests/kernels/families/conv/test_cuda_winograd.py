"""Convolution by Winograd's filtering on CUDA: where it is chosen, against the reference, its errors, and what it does."""

import re

import numpy as np
import pytest

from numbanet_kernels.families import conv
from numbanet_kernels.families.conv import cuda, cuda_im2col, cuda_implicit_gemm as implicit
from numbanet_kernels.families.conv.winograd import cuda_winograd
from numbanet_kernels.layouts.windows import Blocks, Positions, Window
from numbanet_kernels.runtime import availability, emulation
from numbanet_kernels.runtime.memory import upload_cuda
from tests.kernels.assembly import PROBLEM, PTXAS, assembled, version
from tests.kernels.families.conv.cases import FEW, OPTIONS, WIDE, check, close, of, operands
from tests.kernels.families.conv.test_implicit_gemm import counted

NEEDS_NVVM = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=str(availability.nvvm_problem()))
SAME, FORWARD, BACKWARD = Window((3, 3), (1, 1), (1, 1)), {"winograd_filters", "winograd"}, {"winograd_gradient"}


def launches(call):
    """Names of the kernels that a call launches on the emulated device."""
    emulation.counters.clear()
    call()
    return {kernel.__name__ for kernel in emulation.counters}


# --- where it is chosen -----------------------------------------------------------------------------------------------
@NEEDS_NVVM
@pytest.mark.parametrize(
    "images, outs, window, plan, expected",
    [
        ((2, 8, 8, 8), 8, SAME, {}, True),
        ((3, 8, 8, 8), 8, SAME._replace(padding=(2, 0)), {}, True),
        ((2, 8, 8, 8), 8, SAME._replace(padding=(3, 1)), {}, False),
        ((2, 8, 8, 8), 8, SAME._replace(stride=(1, 2)), {}, False),
        ((2, 8, 8, 8), 8, SAME._replace(dilation=(2, 1)), {}, False),
        ((2, 8, 8, 8), 8, SAME._replace(kernel=(5, 3)), {}, False),
        ((2, 8, 8, 7), 8, SAME, {}, False),
        ((2, 8, 8, 8), 7, SAME, {}, False),
        ((1, 8, 8, 8), 8, SAME, {}, False),
        ((64, 1, 1, 64), 64, SAME, {}, False),
        ((64, 3, 3, 64), 64, SAME, {}, False),
        ((64, 5, 5, 64), 64, SAME, {}, True),
        ((0, 8, 8, 8), 8, SAME, {}, False),
        ((1 << 20, 8, 8, 8), 8, SAME, {}, True),
        ((1 << 22, 8, 8, 8), 8, SAME, {}, False),
        ((2, 8, 8, 16), 16, SAME, {"groups": 2}, False),
        ((2, 8, 8, 8), 8, SAME, {"rows": np.arange(9, dtype=np.int32)}, False),
        ((2, 8, 8, 8), 8, SAME, {"rows": Positions(np.arange(9, dtype=np.int32))}, False),
        ((2, 8, 8, 8), 8, SAME, {"blocks": Blocks(np.zeros((2, 1), np.int32), 64, 8)}, False),
    ],
)
def test_it_is_chosen_for_enough_channels_and_tiles(images, outs, window, plan, expected):
    with emulation.emulated():
        assert cuda.choose(window, (*images, outs), **plan) == expected


@NEEDS_NVVM
def test_cards_without_asynchronous_copies_compute_directly(monkeypatch):
    monkeypatch.setattr(emulation, "EMULATED", (7, 5))
    with emulation.emulated():
        assert not cuda.choose(SAME, (2, 8, 8, 8, 8))


@NEEDS_NVVM
def test_other_cases_are_not_computed_so():
    with emulation.emulated():
        assert not any(cuda.choose(window, (*images, outs), groups) for images, outs, window, groups in FEW)


# --- against the reference --------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    "case, option",
    [
        pytest.param(case, option, marks=() if (c + 1 - o) % len(OPTIONS) == 0 else pytest.mark.long)
        for c, case in enumerate(WIDE)
        for o, option in enumerate(OPTIONS)
    ],
    ids=str,
)
def test_equals_the_reference(from_8_0, suffix, put, get, case, option):
    """Every access is checked, and races are found, by the PTX machine."""
    images, outs, window, groups = case
    assert cuda.choose(window, (*images, outs), groups)
    check(case, "all", option, *of(suffix), put, get)


@NEEDS_NVVM
@pytest.mark.parametrize("plan", ["rows", "blocks"])
def test_what_a_plan_leaves_out_is_left_to_the_direct_kernels(plan):
    x, w, _, dy, _, thinned = operands(np.random.default_rng(3), WIDE[0], plan)
    with emulation.emulated():
        assert not launches(lambda: check(WIDE[0], plan, "plain", *of("cuda"), np.array, np.asarray)) & (FORWARD | BACKWARD)
        assert launches(lambda: check(WIDE[0], "all", "plain", *of("cuda"), np.array, np.asarray)) >= FORWARD | BACKWARD


@pytest.mark.slow
def test_parts_of_dw_are_added_up(from_8_0, monkeypatch, put, get):
    """However many there are; the last one has fewer tiles. And the same bits each time."""
    case = WIDE[2]
    x, w, _, dy, _, _ = operands(np.random.default_rng(3), case)
    expected = conv.conv2d_grad_reference(dy, x, w, case[2])[1]
    for least in (1, 40, 1 << 20):
        monkeypatch.setattr(cuda_winograd, "LEAST_ROWS", least)
        found = [get(conv.conv2d_grad_cuda(put(dy), put(x), put(w), case[2])[1]) for _ in range(2)]
        close(found[0], expected)
        np.testing.assert_array_equal(*found)


def test_the_same_comes_out_each_time(from_8_0, put, get):
    x, w, bias, dy, where, _ = operands(np.random.default_rng(3), WIDE[1])

    def both():
        y = conv.conv2d_cuda(put(x), put(w), WIDE[1][2], bias=put(bias))
        return [get(y), *map(get, conv.conv2d_grad_cuda(put(dy), put(x), put(w), WIDE[1][2], where=put(where)))]

    for first, other in zip(both(), both(), strict=True):
        np.testing.assert_array_equal(first, other)


@pytest.mark.slow
def test_errors_of_512_channels_are_those_that_the_matrices_state(from_8_0, put, get, rng):
    """At most 1e-6 of the largest element: of y from 512 channels, of dx to 32 channels from 512 filters, and of dw."""
    x, w = rng.standard_normal((2, 8, 8, 512)).astype(np.float32), rng.standard_normal((32, 512, 3, 3)).astype(np.float32)
    y = get(conv.conv2d_cuda(put(x), put(w), SAME))
    found, expected = [y], [conv.conv2d_reference(x, w, SAME)]
    images, weight = x[..., :32].copy(), w.transpose(1, 0, 2, 3).copy()
    found += map(get, conv.conv2d_grad_cuda(put(x), put(images), put(weight), SAME)[:2])
    expected += conv.conv2d_grad_reference(x, images, weight, SAME)[:2]
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs).max() <= 1e-6 * np.abs(theirs).max()


def test_what_is_not_finite_stays_within_its_tile(from_8_0, put, get, rng):
    """NaN under the ReLU too, and pixels outside the image are 0 whatever lies beside it."""
    x, w = rng.standard_normal((3, 8, 8, 8)).astype(np.float32), rng.standard_normal((8, 8, 3, 3)).astype(np.float32)
    x[0, 7, 7, 7], x[1, 1, 1, 2] = np.inf, np.nan
    y = get(conv.conv2d_cuda(put(x), put(w), SAME, relu=True))
    assert np.isnan(y[1, :3, :3]).all() and not np.isfinite(y[0, 7, 7]).all()
    y[1, :4, :4] = y[0, 6:, 6:] = 0
    assert np.isfinite(y).all()


# --- gates on what is compiled ----------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.skipif(PROBLEM is not None, reason=PROBLEM or "")
@pytest.mark.parametrize("made", [cuda_winograd._forward, cuda_winograd._gradient])
@pytest.mark.parametrize("card", [(8, 0), (9, 0)])
def test_sums_stay_in_registers(made, card):
    """Two blocks have room on a multiprocessor, nothing is spilled; shared memory is read 16 bytes at once."""
    said, _, sass = assembled(made(), card, disassembled=True).partition("SASS\n")
    assert int(re.search(r"Used (\d+) registers", said)[1]) <= 128
    if version(PTXAS) > (13, 0) or card != (8, 0):  # that of CUDA 13.0 spills a few registers for cards of 8.0
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    assert len(re.findall(r"\bFFMA\b", sass)) >= 512 and len(re.findall(r"\bLDS\.128\b", sass)) == 32


# --- what they do -----------------------------------------------------------------------------------------------------
@NEEDS_NVVM
@pytest.mark.slow
def test_it_does_less_than_the_direct_kernels_without_bank_conflicts(rng):
    """With what transforms and transposes the weight; 64 channels and filters, no tile is ragged."""
    with emulation.emulated():  # arrays begin at whole sectors
        x, w, dy = (upload_cuda(rng.standard_normal(s, np.float32)) for s in ((2, 8, 8, 64), (64, 64, 3, 3), (2, 8, 8, 64)))
    slopes = dy.reshape(-1, 64)
    filtered = counted(lambda: conv.conv2d_cuda(x, w, SAME))
    direct = counted(lambda: implicit.launch_forward(x, cuda_im2col.transpose_weight(w), SAME))
    assert filtered["issued"] <= 0.5 * direct["issued"] and filtered["sectors"] <= 1.05 * direct["sectors"]
    back = counted(lambda: conv.conv2d_grad_cuda(dy, x, w, SAME))
    direct = counted(
        lambda: (
            implicit.launch_dx(slopes, cuda_im2col.transpose_weight(w), None, x.shape, SAME),
            cuda_im2col.transpose_gradient(implicit.launch_dw(x, slopes, None, SAME)[0], w.shape),
        )
    )
    assert back["issued"] <= 0.65 * direct["issued"] and back["sectors"] <= 1.05 * direct["sectors"]
    assert filtered["bank conflicts"] == back["bank conflicts"] == 0
    assert filtered["sectors"] == filtered["least sectors"] and back["sectors"] == back["least sectors"]
