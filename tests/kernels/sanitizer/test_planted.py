"""Planted faults of each kind are found, with their lines, and their corrected twins are right."""

import collections
import warnings

import pytest

import numbanet
from numbanet_kernels import card
from numbanet_kernels.ptx import machine

pytestmark = pytest.mark.skipif(card.problem() is not None, reason=str(card.problem()))
if card.problem() is None:
    from .outcomes import FAULTS, findings
    from .planted import named_lines
else:
    FAULTS = []


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(machine, "LIMIT", 0.5)
    monkeypatch.setattr(machine, "MOST_POLLS", 500)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_with_its_line(fault):
    import re

    (said, *_) = findings(fault, right=False) or [""]
    assert re.search(fault.says, said), said
    named = named_lines(said)
    assert named and (named[0] in fault.lines() if fault.kind != "race between streams" else set(named) <= fault.lines()), said
    assert "thread" in said or "by hand" in said or "made at" in said


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_its_twin_is_right(fault):
    assert findings(fault, right=True) == []


def test_there_are_twenty_of_each_kind():
    kinds = collections.Counter(fault.kind for fault in FAULTS)
    assert len(kinds) == 11 and min(kinds.values()) >= 20, kinds
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
