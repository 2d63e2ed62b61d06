"""Harris' seven reductions: what the machine counts and finds is what is known of them."""

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.runtime import arrays, availability, emulation, launch

pytestmark = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=str(availability.nvvm_problem()))
if availability.nvvm_problem() is None:
    from . import harris
    from .harris import SEVERAL, THREADS

    # the kernels, and how many numbers a thread adds at first
    SEVEN = {
        harris.interleaved_divergent: 1,
        harris.interleaved_strided: 1,
        harris.sequential: 1,
        harris.first_add_during_load: 2,
        harris.unrolled_last_warp: 2,
        harris.completely_unrolled: 2,
        harris.several_elements: 2 * SEVERAL,
    }
else:
    SEVEN = {}
BLOCKS = 32  # of the first three


def counted(kernel, most=2):
    """The summary of the counters of one launch, whose result is checked, and its number of blocks."""
    n = BLOCKS * THREADS
    blocks = n // (THREADS * SEVEN.get(kernel, most))
    x, y = np.random.default_rng(0).integers(-99, 99, n).astype(np.int32), np.zeros(blocks, np.int32)
    emulation.counters.clear()
    with emulation.emulated():
        x, y = arrays.to_device(x), arrays.to_device(y)  # aligned, as arrays of a card are
        launch.launch(kernel, blocks, THREADS, x, y)
    assert y.sum() == x.sum()
    return emulation.counters[kernel].summary(), blocks


@pytest.fixture(scope="module")
def seven():
    """What the machine counts for each of the seven, in their order: (summary, blocks)."""
    return [counted(kernel) for kernel in SEVEN]


def test_1_warps_diverge_at_each_step_and_banks_do_not_conflict(seven):
    """In the first five steps all 4 warps of a block diverge, then two, then one; and the one whose first thread writes."""
    summary, blocks = seven[0]
    assert summary["divergent branches"] == blocks * (5 * 4 + 2 + 1 + 1)
    assert summary["bank conflicts"] == 0


def test_2_strided_indices_conflict(seven):
    """At step s, the words of a warp are 2 s apart: 2 s of them, or as many as there are, share a bank. Two loads and a store
    wait for each other. Only the last warp diverges.
    """
    summary, blocks = seven[1]
    waits = 0
    for step in (1, 2, 4, 8, 16, 32, 64):
        active = THREADS // (2 * step)
        for first in range(0, active, 32):
            words = 2 * step * np.arange(first, min(first + 32, active))
            waits += 3 * (np.bincount(words % 32).max() - 1)
    assert waits > 0 and summary["bank conflicts"] == blocks * waits
    assert summary["divergent branches"] == blocks * (5 + 1)


def test_3_sequential_indices_do_not_conflict(seven):
    summary, blocks = seven[2]
    assert summary["bank conflicts"] == 0
    assert summary["divergent branches"] == blocks * (5 + 1)


def test_4_adding_during_the_load_takes_half_the_blocks(seven):
    (before, blocks), (summary, half) = seven[2:4]
    assert 2 * half == blocks
    assert 2 * summary["issued barrier"] == before["issued barrier"]
    assert summary["sectors"] == summary["least sectors"] == before["sectors"] - half  # as many loads, half the stores
    assert 2 * summary["divergent branches"] == before["divergent branches"]
    assert summary["issued"] < 0.6 * before["issued"]


def test_5_the_last_warp_needs_no_barriers_of_the_block(seven):
    """Of eight barriers a block, for its 4 warps each, two stay, and the warp has 12 of its own; only the end diverges."""
    (before, _), (summary, blocks) = seven[3:5]
    assert before["issued barrier"] == blocks * 4 * 8
    assert summary["issued barrier"] == blocks * (4 * 2 + 12)
    assert summary["divergent branches"] == blocks
    assert summary["issued"] < before["issued"]


@pytest.mark.parametrize("name", ["without_barriers", "with_half_of_them"])
def test_5_without_barriers_of_the_warp_is_a_race(name):
    """Harris relies on the threads of a warp running in step, which they need not since Volta. A barrier between the steps is
    not enough: within a step, each of the 32 threads writes what another one reads.
    """
    with pytest.raises(ptx.PtxError, match=r"harris\.py:\d+.*shared race: .* by thread .*; the other access: .*harris\.py:\d+"):
        counted(getattr(harris, name))


def test_6_without_a_loop_fewer_instructions_are_issued(seven):
    """The compiler has unrolled the loop of the fifth, too, whose length is a constant: the branches stay as many."""
    (before, _), (summary, blocks) = seven[4:6]
    assert summary["issued"] < before["issued"]
    assert summary["issued branch"] <= before["issued branch"]
    assert summary["bank conflicts"] == 0 and summary["divergent branches"] == blocks


def test_7_several_elements_a_thread_share_the_tree(seven):
    (before, blocks), (summary, few) = seven[5:7]
    assert SEVERAL * few == blocks
    assert SEVERAL * summary["issued barrier"] == before["issued barrier"]
    assert summary["issued"] < 0.55 * before["issued"]
    assert summary["sectors"] == summary["least sectors"]


def test_each_issues_fewer_instructions_than_the_one_before(seven):
    issued = [summary["issued"] for summary, _ in seven]
    assert issued == sorted(issued, reverse=True)
