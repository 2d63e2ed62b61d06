"""Counters by line of Python: those of simple kernels are known by hand, and the sums over lines are those of the kernel."""

import collections
import threading

import numpy as np
import pytest
from numba import float32

import numbanet
from numbanet import cli
from numbanet.emulation import SHEETS
from numbanet_kernels import card as emulated_card, ptx
from numbanet_kernels.ptx import spaces
from numbanet_kernels.runtime import availability
from tests.emulation import kernels
from tests.emulation.kernels import WARPS, F, at, cuda

pytestmark = pytest.mark.skipif(emulated_card.problem() is not None, reason=str(emulated_card.problem()))


def counted(function, *arrays, grid=4, block=256, **options):
    """The counters of one launch."""
    with numbanet.emulated(counters=True) as card:
        cuda.jit(**options)(function)[grid, block](*arrays)
    (kernel,) = card.counters
    return kernel


def x(n=1024, dtype=F):
    return np.arange(n, dtype=dtype)


# --- known by hand ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "function, dtype, load, least, store",  # sectors of a warp
    [
        (kernels.copied, F, 4, 4, 4),
        (kernels.copied, np.float64, 8, 8, 8),
        (kernels.copied, np.uint8, 1, 1, 1),
        (kernels.strided, F, 32, 4, 4),
        (kernels.shifted, F, 5, 4, 4),
        (kernels.broadcast, F, 1, 1, 4),
    ],
)
def test_sectors_of_a_load_and_of_a_store(function, dtype, load, least, store):
    kernel = counted(function, x(32 * 1024, dtype), np.zeros(1024, dtype))
    loaded, stored = at(kernel, function, "load"), at(kernel, function, "store")
    assert (loaded.sectors, loaded.least) == (load * WARPS, least * WARPS)
    assert (stored.sectors, stored.least) == (store * WARPS, store * WARPS)
    total = kernel.total
    assert (total.sectors, total.least) == ((load + store) * WARPS, (least + store) * WARPS)
    assert total.transactions == total.conflicts == total.divergent == total.flops == 0


@pytest.mark.parametrize("pitch, ways", [(32, 32), (33, 1), (34, 2), (36, 4), (40, 8), (48, 16)])
def test_bank_conflicts_of_a_column(pitch, ways):
    made = kernels.column(pitch)
    kernel = counted(made, x().reshape(32, 32), np.zeros(32, F), grid=1, block=32)
    column, rows = at(kernel, made, "column"), at(kernel, made, "rows")
    assert (column.transactions, column.conflicts) == (ways, ways - 1)
    assert (rows.transactions, rows.conflicts, rows.sectors) == (32, 0, 128)


@pytest.mark.parametrize(
    "function, divergent, lanes, warps, sectors, least",  # a warp that diverges touches every sector for half of its words
    [(kernels.by_threads, WARPS, 16, WARPS, 8, 4), (kernels.by_warps, 0, 32, WARPS // 2, 8, 8)],
)
def test_branches_that_diverge_and_threads_that_work(function, divergent, lanes, warps, sectors, least):
    kernel = counted(function, x(), np.zeros(1024, F))
    branch, body = at(kernel, function, "branch"), at(kernel, function, "body")
    assert (branch.branches, branch.divergent) == (WARPS, divergent) and kernel.total.divergent == divergent
    assert branch.lanes == 32 * branch.issued
    counters, program = kernel.counters, kernel.counters.program
    inside = [
        python.partition(",")[0] == body.place
        and instruction.opcode not in ("ret", "exit")  # at which the threads are together again
        for python, instruction in zip(program.python, program.instructions, strict=True)
    ]
    assert counters.lanes[inside].sum() == lanes * counters.issued[inside].sum() > 0
    assert (body.sectors, body.least, body.flops) == (sectors * warps, least * warps, lanes * warps)


@pytest.mark.parametrize("dtype", [F, np.float64])
def test_flops(dtype):
    kernel = counted(kernels.polynomial, x(dtype=dtype), np.zeros(1024, dtype))
    square, fma = (at(kernel, kernels.polynomial, name) for name in ("square", "fma"))
    assert square.flops == 1024 and fma.flops == 2 * 1024
    assert kernel.total.flops == 3 * 1024 and kernel.total.double_flops == (0 if dtype == F else 3 * 1024)


def test_flops_of_tensor_cores_in_those_of_tf32():
    """One of float16 takes half the time."""
    lines = [
        f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 {{%f0,%f1,%f2,%f3}}, {a}, {b}, {{%f0,%f1,%f2,%f3}};"
        for k, kind, a, b in ((8, "tf32", "{%r1,%r2,%r3,%r4}", "{%r5,%r6}"), (16, "f16", "{%r1,%r2,%r3,%r4}", "{%r5,%r6}"))
    ]
    from tests.kernels.ptx.handwritten import run

    whole = 2 * 16 * 8 * 8
    for line, flops, mma in zip(lines, (whole, 2 * whole), (whole, whole), strict=True):
        total = run(line, np.zeros(1, F)).total()
        assert (total.flops, total.mma_flops) == (flops, mma)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_flops_of_pairs_are_those_of_both_numbers(kind):
    from tests.kernels.ptx.handwritten import run

    for line, flops in (
        (f"add.{kind} %r1, %r2, %r3;", 2),
        (f"fma.rn.{kind} %r1, %r2, %r3, %r4;", 4),
        (f"neg.{kind} %r1, %r2;", 0),
    ):
        found = run(line, np.zeros(1, F), threads=64)
        assert found.total().flops == found.summary()["flops"] == 64 * flops
        assert found.summary()["issued fma" if "fma" in line else "issued float"] == 2


@pytest.mark.parametrize("width", [4, 16])
def test_addresses_that_are_far_apart_cost_as_much_as_others(rng, width):
    """More than 2 ** 43 bytes, which are too many for the cache's key."""
    lanes = np.arange(64)
    near = rng.integers(0, 400, lanes.size) * width + 256
    page = rng.integers(0, 5, lanes.size)
    for count in (spaces.sectors, spaces.transactions):
        expected = count(near + page * 4096, width, lanes)
        for far in (1 << 42, 1 << 43, 1 << 47, 1 << 58):
            assert count(near + page * far, width, lanes) == expected


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_sectors_and_banks_of_random_accesses(rng, width):
    """Against a count of each access by itself: half a warp is served at a time if each thread asks for 8 bytes."""
    words = max(width // 4, 1)
    for reach in (4, 40, 400):
        lanes = np.flatnonzero(rng.random(96) < 0.8)
        address = rng.integers(0, reach, lanes.size) * width + 256
        asked = collections.defaultdict(set)
        touched, wanted = set(), set()
        for lane, byte in zip(lanes.tolist(), address.tolist(), strict=True):
            asked[lane * words // 32].update(byte // 4 + k for k in range(words))
            touched.add((lane // 32, byte // 32))
            wanted.add((lane // 32, byte))
        cycles = sum(max(collections.Counter(word % 32 for word in some).values()) for some in asked.values())
        assert spaces.transactions(address, width, lanes) == (cycles, len(asked))
        bytes_of = collections.Counter(warp for warp, _ in wanted)
        least = sum(-(-count * width // 32) for count in bytes_of.values())
        assert spaces.sectors(address, width, lanes) == (len(touched), least)


# --- sums -------------------------------------------------------------------------------------------------------------
@cuda.jit(device=True, inline="never")
def power(v, n):
    return v if n == 0 else v * power(v, n - 1)


def recursive(x, y):
    i = cuda.grid(1)
    y[i] = power(x[i], i % 4)


def summed(x, y):
    tile = cuda.shared.array(0, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i]
    cuda.syncthreads()
    if t % 32 < 24 - cuda.blockIdx.x:
        cuda.atomic.add(y, t % 5, tile[t ^ 1] ** float32(2.5))


def spread(x, y):
    local = cuda.local.array(8, float32)
    i = cuda.grid(1)
    for k in range(8):
        local[(i + k) % 8] = x[(7 * i + k) % x.size]
    y[i] = local[i % 8]


@pytest.mark.parametrize("function", [recursive, summed, spread, kernels.alternating, kernels.column(34)])
def test_the_sums_over_lines_are_those_of_the_kernel(function):
    source = x().reshape(32, 32) if function.__name__ == "kernel" else x() / 1024
    with numbanet.emulated(counters=True) as card:
        cuda.jit(function)[4 if source.ndim == 1 else 1, 256 if source.ndim == 1 else 32, 0, 1024](source, np.zeros(1024, F))
    (kernel,) = card.counters
    counters, summary, total = kernel.counters, kernel.counters.summary(), kernel.total
    for name in ("issued", "lanes", "sectors", "least", "transactions", "conflicts", "divergent"):
        assert getattr(total, name) == getattr(counters, name).sum() == sum(getattr(line, name) for line in kernel.lines), name
    assert total.flops == summary["flops"] and total.sectors == summary["sectors"]
    assert total.transactions == summary["shared transactions"] and total.conflicts == summary["bank conflicts"]
    assert all(0 <= line.divergent <= line.branches <= line.issued for line in kernel.lines)
    assert all(line.lanes <= 32 * line.issued and line.least <= line.sectors for line in kernel.lines)
    assert sum(counters.by_line().values()) == total.issued > 0


def test_two_files_of_one_name_are_told_apart(tmp_path):
    """The kernel and the function that it calls are both in a file same.py."""
    for folder, text in (
        ("a", "def helper(v):\n    for _ in range(3):\n        v = v * v + 1\n    return v\n"),
        ("b", "def kernel(x, y):\n    i = cuda.grid(1)\n    y[i] = helper(x[i])\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(text)
    names = {"cuda": cuda}
    for folder in "ab":
        path = tmp_path / folder / "same.py"
        exec(compile(path.read_text(), str(path), "exec"), names)
        if folder == "a":
            names["helper"] = cuda.jit(device=True, inline="never")(names["helper"])
    kernel = counted(names["kernel"], x(), np.zeros(1024, F))
    files = {line.place.rpartition(":")[0] for line in kernel.lines}
    assert files >= {"a/same.py", "b/same.py"}
    paths = kernel.counters.program.files
    assert all(paths[name] == str(tmp_path / name) for name in ("a/same.py", "b/same.py"))


# --- contexts ---------------------------------------------------------------------------------------------------------
def test_launches_of_one_shape_add_and_shapes_are_apart():
    made = cuda.jit(kernels.copied)
    with numbanet.emulated(counters=True) as card:
        for grid, block in ((4, 256), (2, 256), (8, 128), (4, 256)):
            made[grid, block](x(), np.zeros(1024, F))
        made[1, 32](x(dtype=np.float64), np.zeros(1024))
    first, second, third = card.counters
    assert (first.block, first.counters.launches, first.blocks, first.total.sectors) == ((256, 1, 1), 3, 10, 8 * 8 * 10)
    assert (second.block, second.counters.launches, second.total.sectors) == ((128, 1, 1), 1, 8 * 32)
    assert (third.block, third.total.sectors) == ((32, 1, 1), 16) and "float64" in third.types
    assert first.types == "x: array(float32, 1d, C), y: array(float32, 1d, C)" and first.name == "copied"


def test_contexts_count_what_is_launched_while_they_are_open():
    made = cuda.jit(kernels.copied)

    def launch():
        made[4, 256](x(), np.zeros(1024, F))

    with numbanet.emulated():
        launch()
        with numbanet.emulated(counters=True) as outer:
            launch()
            with numbanet.emulated(counters=True) as inner:
                launch()
                assert inner.counters[0].counters.launches == 1
                other = threading.Thread(target=launch)
                other.start()
                other.join()
            launch()
        launch()
    assert [card.counters[0].counters.launches for card in (outer, inner)] == [4, 2]
    assert outer.counters[0].total.sectors == 2 * inner.counters[0].total.sectors == 4 * 8 * WARPS
    with numbanet.emulated() as card, pytest.raises(RuntimeError, match="counters=True"):
        card.counters  # noqa: B018


def test_a_decorated_function_that_calls_itself_is_counted_once():
    made, context = cuda.jit(kernels.copied), numbanet.emulated(counters=True)

    @context
    def run(times):
        made[4, 256](x(), np.zeros(1024, F))
        if times:
            run(times - 1)

    run(2)
    assert context.counters[0].counters.launches == 3
    run(0)
    assert context.counters[0].counters.launches == 1


def test_a_launch_that_fails_is_counted_until_then():
    with numbanet.emulated(counters=True) as card:
        made = cuda.jit(kernels.copied)
        with pytest.raises(Exception, match="out of bounds"):
            made[5, 256](x(), np.zeros(1024, F))
        made[4, 256](x(), np.zeros(1024, F))
    (kernel,) = card.counters
    assert (kernel.counters.launches, kernel.failed) == (2, 1) and "1 ended with an error" in str(card.counters)


def test_what_is_not_counted_costs_nothing(monkeypatch):
    """Neither are accesses looked at, nor is the kernel compiled again for its lines."""

    def refuse(*given):
        raise AssertionError("counted")

    for name in ("sectors", "transactions"):
        monkeypatch.setattr(ptx.counters, name, refuse)
    monkeypatch.setattr(ptx.Counters, "__init__", refuse)
    monkeypatch.setattr(ptx.Program, "python", property(refuse))
    y = np.zeros(1024, F)
    with numbanet.emulated():
        cuda.jit(kernels.alternating)[4, 256](x(), y)
    assert y[2] == 4
    with pytest.raises(AssertionError, match="counted"):
        counted(kernels.alternating, x(), y)


# --- tables -----------------------------------------------------------------------------------------------------------
def test_the_table_has_the_counters_of_each_line_and_what_they_mean(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with numbanet.emulated(counters=True) as card:
        cuda.jit(kernels.strided)[4, 256](x(32 * 1024), np.zeros(1024, F))
    said = str(card.counters)
    assert "strided(x: array(float32, 1d, C), y: array(float32, 1d, C))" in said and "4 blocks of 256 threads" in said
    (row,) = (line for line in said.splitlines() if "v = x[32 * i]" in line)
    assert row.split()[-3:] == ["1,024", "/", "128"]
    assert f"{kernels.place(kernels.strided, 'load')}: 8 times the sectors that the data needs" in said
    assert f"{kernels.place(kernels.strided, 'store')}:" not in said
    assert "shared" not in said.partition("all ")[0].rpartition("line ")[2]  # no column of what the kernel does not do
    assert "A100: 0 FLOPs, 36,864 bytes in sectors" in said and "bound by memory, at least 18.1 ns" in said
    assert "\x1b" not in said and "H200: 0 FLOPs" in str(card.counters.on("h200"))
    with pytest.raises(ValueError, match=f"no data sheet of 'K80': choose from {', '.join(SHEETS)}"):
        card.counters.on("K80")


@pytest.mark.parametrize("dtype", [F, np.float64])
def test_float64_is_remarked_unless_the_arrays_are(dtype):
    def halved(x, y):
        i = cuda.grid(1)
        y[i] = x[i] * 0.3

    with numbanet.emulated(counters=True) as card:
        cuda.jit(halved)[1, 32](x(dtype=dtype), np.zeros(1024, dtype))
    assert ("FLOPs in float64" in str(card.counters)) == (dtype == F)
    assert card.counters[0].total.double_flops == 32


@pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")
def test_kernels_by_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    page = tmp_path / "lines.html"
    assert cli.main(["kernels", "--counters", "add", "--lines", "--html", str(page), "--card", "T4"]) == 0
    said = capsys.readouterr().out
    assert "T4: " in said and "void(" in said and f"listing: {page}" in said and "elementwise.py" in page.read_text()
    for option in (["--lines"], ["--shape", "1,2,3"], ["--html", str(page)], ["--card", "T4"]):
        assert cli.main(["kernels", *option]) == 2
        assert f"{option[0]} needs --counters OPERATION" in capsys.readouterr().err
