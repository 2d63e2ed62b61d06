"""Planted faults of each kind are found, with their lines, and their corrected twins are right."""

import collections

import pytest

from numbanet_kernels import card
from numbanet_kernels.ptx import machine

pytestmark = [
    pytest.mark.skipif(card.problem() is not None, reason=str(card.problem())),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Numba's, of memory that is freed by hand
]
if card.problem() is None:
    from .outcomes import CORRECT, FAULTS, SOON, findings, is_found
else:
    FAULTS = CORRECT = []


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    for name, value in SOON.items():
        monkeypatch.setattr(machine, name, value)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_with_its_line(fault):
    said = findings(fault, right=False)
    assert is_found(fault, said), said
    assert "thread" in said[0] or "made at" in said[0]  # memory that the host has allocated is of no thread


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_its_twin_is_right(fault):
    assert findings(fault, right=True) == []


@pytest.mark.parametrize("case", CORRECT, ids=lambda case: case.make.__name__)
def test_nothing_is_found_in_classic_kernels(case):
    """Each also checks its result."""
    assert findings(case, right=True) == []


def test_there_are_twenty_of_each_kind():
    kinds = collections.Counter(fault.kind for fault in FAULTS)
    assert len(kinds) == 11 and min(kinds.values()) >= 20, kinds
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len(FAULTS) >= 220 and len(FAULTS) + len(CORRECT) >= 250  # correct ones: the twins, and the classic kernels
