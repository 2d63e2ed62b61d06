"""Gates on compiled kernels, where no card tells: what the inner loop of the product is made of, registers, memory traffic."""

import collections
import itertools
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from numbanet_kernels.blocks import gemm_block
from numbanet_kernels.families import csr, gemm, gemm_rows, gemm_tiles, indexing, random
from numbanet_kernels.families.gemm_tiles import cuda_grouped
from numbanet_kernels.families.update import lazy_sgd
from numbanet_kernels.layouts.entries import Entries
from numbanet_kernels.layouts.sparse import CSR
from numbanet_kernels.layouts.tiles import Pattern
from numbanet_kernels.runtime import arrays, emulation, files, launch, trust
from tests.kernels.assembly import PROBLEM, PTXAS, assembled

CARDS = [(8, 0), (9, 0)]
ALONG = [(True, True), (True, False), (False, True), (False, False)]
pytestmark = pytest.mark.skipif(PROBLEM is not None, reason=PROBLEM or "")


def loop_of(kind, sass):
    """The instructions of the stretch with most of one kind that a branch goes back over."""
    labels, instructions = {}, []
    for line in sass.splitlines():
        if label := re.match(r"\s*(\.L\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)(.*)", line):
            instructions.append((found[1], found[2]))
    loops = []
    for i, (opcode, rest) in enumerate(instructions):
        target = re.search(r"`\((\.L\w+)\)", rest) if opcode.startswith("BRA") else None
        if target and labels.get(target[1], i + 1) <= i:
            loops.append([name for name, _ in instructions[labels[target[1]] : i + 1]])
    return max(loops, key=lambda loop: (sum(name.split(".")[0] == kind for name in loop), -len(loop)))


PRODUCTS = [(True, True, True), (True, True, False), (False, False, False)]  # inner, a_along_k, b_along_k


def on_cards(names, variants):
    """Each variant on both cards, of which one in turn is long: each value of each parameter is met on each card."""
    return pytest.mark.parametrize(
        f"{names}, card",
        [
            pytest.param(*variant, card, marks=pytest.mark.long if (sum(variant) + place) % 2 else ())
            for variant in variants
            for place, card in enumerate(CARDS)
        ],
        ids=lambda x: f"sm_{x[0]}{x[1]}" if isinstance(x, tuple) else None,
    )


def inner_loop(kernel, kind, card, at_once=2):
    """(the instructions of the inner loop, how many of each kind) of a kernel that needs no more registers than so many blocks
    of 256 threads have on a multiprocessor, and no local memory."""
    said, _, sass = assembled(kernel, card, disassembled=True).partition("SASS\n")
    assert int(re.search(r"Used (\d+) registers", said)[1]) <= 255 // at_once + 1
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    loop = loop_of(kind, sass)
    kinds = collections.Counter(name.split(".")[0] for name in loop)
    assert not kinds["LDL"] and not kinds["STL"]
    return loop, kinds


@pytest.mark.slow
@on_cards("a_along_k, b_along_k, summed", [*((*along, False) for along in ALONG), (False, False, True)])
def test_the_inner_loop_multiplies(summed, a_along_k, b_along_k, card):
    """At least 85 % of the instructions are fused multiply-adds, and shared memory is read 16 bytes at once, apart from what is
    summed."""
    loop, kinds = inner_loop(gemm_block._block(128, a_along_k, b_along_k, summed=summed), "FFMA", card)
    assert kinds["FFMA"] == 1024 and kinds["FFMA"] / len(loop) >= 0.85, kinds
    assert sum(name.startswith("LDS.128") for name in loop) == 64 and kinds["LDS"] == 64 + 8 * summed
    assert kinds["LDGSTS"] == 16


@on_cards("inner, a_along_k, b_along_k", PRODUCTS)
def test_the_inner_loop_of_tiles_multiplies(inner, a_along_k, b_along_k, card):
    """Though rows and columns are looked up."""
    loop, kinds = inner_loop(cuda_grouped._grouped(inner, 128, a_along_k, b_along_k), "FFMA", card)
    assert kinds["FFMA"] == 1024 and kinds["FFMA"] / len(loop) >= 0.845, kinds
    assert sum(name.startswith("LDS.128") for name in loop) == 64 and kinds["LDGSTS"] == 16


@pytest.mark.slow
@on_cards("passes, summed, a_along_k, b_along_k", itertools.product([3, 1], [False, True], [False, True], [False, True]))
def test_tensor_cores_multiply(passes, summed, a_along_k, b_along_k, card):
    """32 products of fragments a k-tile and pass, and each number is loaded once by a thread."""
    _, kinds = inner_loop(gemm_block._block(128, a_along_k, b_along_k, passes, summed), "HMMA", card, 1 + (passes == 1))
    assert kinds["HMMA"] == 32 * passes and kinds["LDS"] <= 48 + 8 * summed and kinds["LDGSTS"] == 16


@pytest.mark.slow
@on_cards("passes, inner, a_along_k, b_along_k", [(passes, *product) for passes in (3, 1) for product in PRODUCTS])
def test_tensor_cores_multiply_tiles(passes, inner, a_along_k, b_along_k, card):
    _, kinds = inner_loop(cuda_grouped._grouped(inner, 128, a_along_k, b_along_k, passes), "HMMA", card, 1 + (passes == 1))
    assert kinds["HMMA"] == 32 * passes


@pytest.mark.alone
@pytest.mark.parametrize(
    "kernel",
    [
        gemm_block._block(128, False, False, 0, True),
        gemm_block._block(128, True, True, 3),
        cuda_grouped._grouped(True, 128, True, True),
    ],
    ids=["block", "tensor", "tiles"],
)
def test_the_largest_kernels_are_soon_compiled(kernel, tmp_path, monkeypatch):
    """With ptxas in less than eight times what the smallest one takes: 1.5 s where that takes 0.19 s. At least once in four."""
    monkeypatch.setattr(files, "cached", lambda name, decides, make: make())

    def seconds(kernel):
        start = time.perf_counter()
        (tmp_path / "kernel.ptx").write_text(kernel.ptx((9, 0)))
        subprocess.run([PTXAS, "-arch=sm_90", tmp_path / "kernel.ptx", "-o", tmp_path / "kernel.cubin"], check=True)
        return time.perf_counter() - start

    assert any(seconds(kernel) < 8 * seconds(lazy_sgd._settling()) for _ in range(4))


NAMED = """
import hashlib
from numba.core.serialize import dumps
from numbanet_kernels.blocks import gemm_block
from numbanet_kernels.families.gemm_tiles import cuda_grouped
from numbanet_kernels.families.update import cuda, lazy_sgd

for kernel in (gemm_block._block(128, False, False, 3, True), cuda_grouped._grouped(), cuda._sgd_kernel(), cuda._adam_kernel(),
               lazy_sgd._settling()):
    cells = tuple(cell.cell_contents for cell in kernel.function.__closure__ or ())
    print(kernel.__name__, hashlib.sha256(dumps(cells)).hexdigest())
"""


@pytest.mark.slow
def test_later_processes_find_compiled_kernels():
    """Numba's cache names a kernel by its code and by what its closure holds: intrinsics, too, are the same in each process."""
    said = [
        subprocess.run(
            [sys.executable, "-c", NAMED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    ]
    assert said[0] == said[1] and len(said[0].splitlines()) == 5


def counted(call):
    """The counters of the one kernel that a call runs on the emulated device."""
    emulation.counters.clear()
    with emulation.emulated():
        call()
    (found,) = emulation.counters.values()
    return found.summary()


def put(rng, *shape):
    with emulation.emulated():
        return arrays.to_device(rng.standard_normal(shape).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("ta, tb", ALONG)
def test_no_bank_conflicts_and_few_sectors(rng, tile, ta, tb):
    a, b = put(rng, *((48, 128) if ta else (128, 48))), put(rng, *((128, 48) if tb else (48, 128)))
    with emulation.emulated():
        c = arrays.device_array((128, 128))
    found = counted(
        lambda: gemm_block.launch_block(
            a.reshape(-1), b.reshape(-1), (128, 128, 48), (1, 128) if ta else (48, 1), (1, 48) if tb else (128, 1), c, tile=tile
        )
    )
    np.testing.assert_allclose(c, (a.T if ta else a).astype(float) @ (b.T if tb else b), rtol=1e-5, atol=1e-4)
    assert found["bank conflicts"] == 0 and found["divergent branches"] == 0
    assert found["sectors"] <= 1.1 * found["least sectors"]
    once = 4 * (128 * 48 * 2 * (128 // tile) + 128 * 128)  # each block reads its own rows and columns
    assert found["bytes"] == once
    assert found["flops"] == pytest.approx(2 * 128 * 128 * 48, rel=0.05)


def test_a_tile_without_padding_is_seen(rng):
    a, c = put(rng, 64, 48), put(rng, 64, 64)
    for padding, least, most in ((4, 0, 0), (0, 100, 10000)):
        found = counted(
            lambda: gemm_block.launch_block(a.reshape(-1), a.reshape(-1), (64, 64, 48), (48, 1), (1, 48), c, padding=padding)
        )
        assert least <= found["bank conflicts"] <= most


def test_dropped_rows_and_columns_cost_nothing(rng):
    """FLOPs and instructions of rows in proportion to what is kept; of kept columns a sector brings the neighbours along."""
    x, w = put(rng, 64, 256), put(rng, 256, 256)
    whole = counted(lambda: gemm.gemm_cuda(x, w, tb=True))
    rows = counted(lambda: gemm_rows.gemm_rows_cuda(x, w, slice(1, None, 4), None))
    assert rows["flops"] == pytest.approx(whole["flops"] / 4, rel=0.02)
    assert rows["issued"] == pytest.approx(whole["issued"] / 4, rel=0.02)
    weights = 256 * 256 // 8
    assert whole["sectors"] - rows["sectors"] == pytest.approx(0.75 * whole["sectors"], rel=0.02)
    kept = put(rng, 64, 64)
    both = counted(lambda: gemm_rows.gemm_rows_cuda(kept, w, slice(1, None, 4), slice(2, None, 4)))
    assert both["flops"] == pytest.approx(whole["flops"] / 16, rel=0.05)
    assert both["sectors"] <= rows["sectors"] and both["sectors"] >= weights / 4


def test_dropout_and_transposes_read_and_write_side_by_side(rng):
    x = put(rng, 72, 104)
    of_key = 2 * 64  # its two words, read by each of 64 warps, as a recorded launch takes another key
    for call, touched in (
        (lambda: random.dropout_cuda(x, 0.0, 1, 2), 2 * 72 * 104 // 8 + of_key),
        (lambda: indexing.transpose_cuda(x, (1, 0)), 2 * 72 * 104 // 8),
    ):
        found = counted(call)
        assert found["bank conflicts"] == 0 and found["sectors"] == found["least sectors"] == touched


@pytest.mark.parametrize("ta, tb", ALONG)
@pytest.mark.slow
def test_three_passes_have_the_error_of_float32(rng, ta, tb):
    """No more than twice that of a float32 product; one pass stays within 1e-3; neither waits for banks."""
    a, b = put(rng, *((100, 130) if ta else (130, 100))), put(rng, *((70, 100) if tb else (100, 70)))
    host = (np.array(a.T if ta else a), np.array(b.T if tb else b))
    exact = host[0].astype(float) @ host[1]
    errors, results = {}, {}
    for version in ("tensor", "tf32"):
        found = counted(lambda: results.update({version: gemm.gemm_version(version, None, a, b, ta, tb)}))
        errors[version] = np.abs(results[version] - exact).max() / np.abs(exact).max()
        assert found["bank conflicts"] == 0 and found["issued mma"] > 0
    plain = np.abs(gemm_reference_float32(*host) - exact).max() / np.abs(exact).max()
    assert errors["tensor"] <= 2 * plain and plain < errors["tf32"] <= 1e-3


def gemm_reference_float32(a, b):
    """The product as one float32 sum after the other."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[k]
    return total


@pytest.mark.parametrize("product", ["forward", "dx", "dw"])
@pytest.mark.slow
def test_dropped_tiles_cost_nothing(rng, product):
    """One launch for all classes, without bank conflicts, of dp as many FLOPs and no more sectors than that."""
    x, w, dy = put(rng, 64, 512), put(rng, 512, 512), put(rng, 64, 512)
    whole = counted(
        {
            "forward": lambda: gemm.gemm_cuda(x, w, tb=True),
            "dx": lambda: gemm.gemm_cuda(dy, w),
            "dw": lambda: gemm.gemm_cuda(dy, x, ta=True),
        }[product]
    )
    for dp in (2, 4):
        pattern = Pattern((512, 512), 32, dp, 1)
        kept = counted(
            {
                "forward": lambda: gemm_tiles.gemm_tiles_cuda(x, w, pattern),
                "dx": lambda: gemm_tiles.gemm_tiles_dx_cuda(dy, w, pattern),
                "dw": lambda: gemm_tiles.gemm_tiles_dw_cuda(dy, x, pattern),
            }[product]
        )
        assert kept["launches"] == 1 and kept["bank conflicts"] == 0
        assert kept["flops"] == pytest.approx(whole["flops"] / dp, rel=0.05)
        assert kept["issued fma"] == pytest.approx(whole["issued fma"] / dp, rel=0.01)
        assert kept["sectors"] <= whole["sectors"]


@pytest.mark.parametrize("module", [gemm_block, cuda_grouped])
@pytest.mark.slow
def test_a_fast_kernel_is_checked_once_on_a_card(module):
    """On the emulated device as if it were a card: it agrees; one that does not is not used, and says so."""
    passed = module._agrees.passed
    passed.cache_clear()
    with emulation.emulated():
        assert passed() and passed() and passed.cache_info().misses == 1 and module.available()


@pytest.mark.parametrize(
    "check, why",
    [
        (lambda: 0.5, "its error is 5.0e-01"),
        (lambda: float("nan"), "its error is nan"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_kernel_that_a_card_gets_wrong_is_not_used(check, why):
    verdict = trust.trusted(check)
    with pytest.warns(UserWarning, match=f"the fast kernels are not used on this GPU, because {why}; the simple ones are"):
        assert not verdict()
    assert not verdict()
    with emulation.emulated():
        assert verdict()


def test_a_check_that_is_asked_while_a_step_is_recorded_says_nothing_yet():
    refused = [True]

    def check():
        if refused:
            raise launch.NotRecorded(refused.pop())
        return 0.0

    verdict = trust.trusted(check)
    with pytest.raises(launch.NotRecorded):
        verdict()
    assert verdict()


# --- sparse products --------------------------------------------------------------------------------------------------
def sparse_sectors(rng, op, nnz):
    """Sectors that a product with a (32, 64) weight of so many entries, the same for each row, touches with 64 samples."""
    mask = rng.permuted(np.arange(64) < nnz // 32 * np.ones((32, 1)), axis=1)
    with emulation.emulated():
        at = Entries(*map(arrays.to_device, CSR.from_dense(mask).entries()))
    x, dy, values = put(rng, 64, 64), put(rng, 64, 32), put(rng, nnz)
    with emulation.emulated():
        transposed = {name: csr.csr_transposed_cuda(a) for name, a in (("x", x), ("dy", dy))}
    found = counted(
        {
            "csr": lambda: csr.csr_cuda(x, values, at, transposed=transposed["x"]),
            "csr_dx": lambda: csr.csr_dx_cuda(dy, values, at, transposed=transposed["dy"]),
            "csr_dw": lambda: csr.csr_dw_cuda(dy, x, at, dy_transposed=transposed["dy"], x_transposed=transposed["x"]),
        }[op]
    )
    assert found["bank conflicts"] == 0
    return found["sectors"]


@pytest.mark.parametrize("op, each", [("csr", 2 * (4 + 2)), ("csr_dx", 2 * (4 + 3)), ("csr_dw", 2 * (4 + 4) + 2)])
def test_an_entry_of_a_sparse_product_touches_as_few_sectors_as_it_can(rng, op, each):
    """For each 32 samples 4 of an activation, coalesced, and one of its index and its value, or of the other activation; on the
    way back one of where its value lies. What does not depend on entries is the same, and goes with the difference."""
    few, many = (sparse_sectors(rng, op, nnz) for nnz in (128, 512))
    assert many - few == each * (512 - 128)
