"""Data sheets: occupancy as CUDA's calculator has it, the least time, and registers as two assemblers count them."""

import re
import struct

import numpy as np
import pytest

import numbanet
from numbanet.emulation import SHEETS, remarks, sheet
from numbanet_kernels import card as emulated_card
from numbanet_kernels.card import assembly
from numbanet_kernels.card.model import blocks_that_fit
from numbanet_kernels.ptx import Line
from numbanet_kernels.runtime import availability
from tests.emulation import kernels

needs_compiler = pytest.mark.skipif(emulated_card.problem() is not None, reason=str(emulated_card.problem()))
KIB = 1024


@pytest.mark.parametrize(
    "card, threads, shared, registers, blocks, limit",
    [
        ("A100", 256, 0, 32, 8, "threads"),
        ("A100", 256, 0, 40, 6, "registers"),
        ("A100", 64, 0, 40, 24, "registers"),  # 1280 for a warp: 51 warps, in four equal parts 48
        ("A100", 1024, 0, 64, 1, "registers"),
        ("A100", 128, 0, 255, 2, "registers"),
        ("A100", 32, 0, 16, 32, "blocks"),
        ("A100", 33, 0, 16, 32, "threads"),  # of two whole warps
        ("A100", 64, 48 * KIB, 16, 3, "shared memory"),
        ("A100", 64, 163 * KIB, 16, 1, "shared memory"),
        ("A100", 64, 164 * KIB, 16, 0, "shared memory"),
        ("A100", 256, 0, 0, 8, "threads"),  # registers are not known
        ("T4", 256, 32 * KIB, 32, 2, "shared memory"),
        ("T4", 256, 0, 32, 4, "threads"),
        ("RTX 3090", 512, 0, 32, 3, "threads"),
        ("RTX 4090", 32, 0, 32, 24, "blocks"),
        ("H100", 256, 100 * KIB, 32, 2, "shared memory"),
        ("H200", 1024, 0, 32, 2, "threads"),
    ],
)
def test_blocks_on_a_multiprocessor(card, threads, shared, registers, blocks, limit):
    found = SHEETS[card].occupancy(threads, shared, registers)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * -(-threads // 32) and found.share == found.warps / (SHEETS[card].threads // 32)


def test_the_emulated_card_is_one_of_them():
    for threads, shared in ((256, 0), (64, 20000), (1024, 163 * KIB)):
        assert blocks_that_fit(threads, shared) == SHEETS["A100"].occupancy(threads, shared).blocks


def test_the_least_time_is_that_of_bytes_or_of_arithmetic():
    nothing = Line("", *([0] * 11))
    a100 = sheet("a100")
    for counted, memory, arithmetic, by in (
        (nothing._replace(sectors=1000, flops=2000.0), 32000 / 2.039e12, 2000 / 19.5e12, "memory"),
        (nothing._replace(sectors=1, flops=2000.0), 32 / 2.039e12, 2000 / 19.5e12, "arithmetic"),
        (
            nothing._replace(sectors=1, flops=2000.0, double_flops=500.0),
            32 / 2.039e12,
            1500 / 19.5e12 + 500 / 9.7e12,
            "arithmetic",
        ),
        (nothing._replace(sectors=9, flops=2000.0, mma_flops=2000.0), 288 / 2.039e12, 2000 / 156e12, "memory"),
    ):
        bound = a100.bound(counted)
        np.testing.assert_allclose((bound.memory, bound.arithmetic), (memory, arithmetic), rtol=1e-12)
        assert bound.by == by and bound.seconds == max(memory, arithmetic)
        # at the ridge both take as long
        np.testing.assert_allclose(counted.flops / arithmetic / bound.ridge, a100.bandwidth, rtol=1e-12)
    assert a100.bound(nothing).seconds == 0 and a100.bound(nothing).ridge == pytest.approx(19.5 / 2.039)


@pytest.mark.parametrize("card", SHEETS)
def test_data_sheets_are_plausible(card):
    found = SHEETS[card]
    assert found.bandwidth < found.flops / 5 and found.double < found.flops <= found.mma and found.threads % found.blocks == 0
    # cores do one multiply-add in a cycle, at 1 to 3 GHz; there are 64 or 128 of them
    clocks = [found.flops / 2 / found.multiprocessors / cores for cores in (64, 128)]
    assert any(1e9 < clock < 3e9 for clock in clocks)


# --- registers --------------------------------------------------------------------------------------------------------
def registers_of(binary, kernel):
    """The registers of a kernel in an ELF file for cards: the upper byte of what its section says of itself."""
    start, size, count = (struct.unpack_from(kind, binary, at)[0] for kind, at in (("<Q", 40), ("<H", 58), ("<H", 60)))
    sections = [struct.unpack_from("<IIQQQQIIQQ", binary, start + k * size) for k in range(count)]
    names = sections[struct.unpack_from("<H", binary, 62)[0]][4]
    (code,) = (part for part in sections if binary[names + part[0] :].startswith(f".text.{kernel}\0".encode()))
    return code[7] >> 24


@pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")
@pytest.mark.parametrize("card", [(8, 0), (9, 0)])
@pytest.mark.parametrize("family", ["gemm", "reduce", "loss"])
def test_registers_are_those_of_the_machine_code(family, card):
    """And nearly those of ptxas, which assembles before it links."""
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink")
    from numbanet_kernels import cuda  # noqa: F401  whose operations have the kernels
    from numbanet_kernels.runtime import declare
    from tests.kernels.assembly import PROBLEM, assembled

    kernel = next(kernel for kernel in declare.all_kernels() if kernel.family == family)
    text = kernel.ptx(card)
    linker = nvjitlink.create(1, [f"-arch=sm_{card[0]}{card[1]}"])
    nvjitlink.add_data(linker, nvjitlink.InputType.PTX, text.encode(), len(text), "kernel")
    nvjitlink.complete(linker)
    binary = bytearray(nvjitlink.get_linked_cubin_size(linker))
    nvjitlink.get_linked_cubin(linker, binary)
    found = assembly.assembled(text, card)
    assert (found.capability, found.spilled) == (card, 0)
    if card == (8, 0):  # the files for newer cards have this elsewhere
        assert found.registers == registers_of(bytes(binary), re.search(r"\.entry ([\w$]+)", text)[1])
    if PROBLEM is None:
        assert abs(found.registers - int(re.search(r"Used (\d+) registers", assembled(kernel, card))[1])) <= 8


@pytest.fixture
def text():
    with numbanet.emulated(counters=True) as card:
        kernels.cuda.jit(kernels.polynomial)[1, 32](np.ones(1024, np.float32), np.zeros(1024, np.float32))
    return card.counters[0].counters.program.text


@needs_compiler
def test_a_bound_of_registers_and_an_older_card(text):
    assembly.assembled.cache_clear()
    found = assembly.assembled(text, (7, 5))
    if found == assembly.MISSING:
        pytest.skip(found)
    assert found.capability == (8, 0) and 8 <= found.registers <= 64  # the text is for cards from 8.0 on
    assert assembly.assembled(text, (8, 0), 16).registers <= 16
    assert "cannot be assembled" in assembly.assembled("nonsense", (8, 0))


@needs_compiler
def test_either_assembler_will_do_and_none_is_said(text, monkeypatch, tmp_path):
    from tests.kernels.assembly import PTXAS

    monkeypatch.setattr(assembly, "_linked", lambda *given: None)
    for path in filter(None, (PTXAS and PTXAS.rpartition("/")[0], str(tmp_path))):
        assembly.assembled.cache_clear()
        monkeypatch.setenv("PATH", path)
        found = assembly.assembled(text, (8, 0))
        assert found == assembly.MISSING if path == str(tmp_path) else found.registers >= 8
    with numbanet.emulated(counters=True) as card:
        kernels.cuda.jit(kernels.polynomial)[1, 32](np.ones(1024, np.float32), np.zeros(1024, np.float32))
    said = remarks.resources(card.counters[0].figures(SHEETS["A100"]), SHEETS["A100"])
    assert "local memory" not in said
    assert "registers unavailable (neither nvJitLink nor ptxas is here: pip install" in said and "50%" in said
    assembly.assembled.cache_clear()
