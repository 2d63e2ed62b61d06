"""Every kernel compiles for four generations of cards, and ptxas assembles it without spills and without a stack frame.

No GPU is needed: NVVM and ptxas come with the extra `cuda`. A table of registers is printed with `pytest -rP`.
"""

import re

import pytest

from numbanet_kernels import cuda  # noqa: F401  whose operations have the kernels
from numbanet_kernels.runtime import declare, emulation
from tests.kernels.assembly import PROBLEM, assembled

CARDS = [(7, 5), (8, 0), (9, 0), (10, 0)]
KERNELS = list(declare.all_kernels())
DOUBLE_PRECISION = re.compile(r"\.f64|%fd\d")


pytestmark = pytest.mark.skipif(PROBLEM is not None, reason=PROBLEM or "")


@pytest.fixture(scope="module")
def registers():
    table = {}
    yield table
    print("\nregisters a thread".ljust(45), *(f"sm_{a}{b}".rjust(7) for a, b in CARDS))
    for name, counts in table.items():
        print(name.ljust(44), *(str(counts.get(card, "")).rjust(7) for card in CARDS))


def pairs():
    """Each kernel with each card that has its instructions. Half of them are long; the others are the emulated card, for which
    it is compiled anyway, and one of the others, in turn."""
    for place, kernel in enumerate(KERNELS):
        others = [card for card in CARDS if card >= kernel.least and card != emulation.EMULATED]
        for card in (emulation.EMULATED, *others):
            marks = () if card in (emulation.EMULATED, others[place % len(others)]) else pytest.mark.long
            yield pytest.param(place, card, id=f"{kernel.family}-{kernel.__name__}-{place}-sm_{card[0]}{card[1]}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("place, card", list(pairs()))
def test_assembles(place, card, registers):
    kernel = KERNELS[place]
    assert not DOUBLE_PRECISION.search(kernel.ptx(card)), "float64 arithmetic in a kernel: a constant without float32(...)?"
    said = assembled(kernel, card)
    numbers = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert numbers.groups() == ("0", "0", "0"), numbers[0]
    registers.setdefault(f"{kernel.family}.{kernel.__name__} {place}", {})[card] = int(
        re.search(r"Used (\d+) registers", said)[1]
    )
