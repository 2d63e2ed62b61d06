"""Wrong lines are put into copies, and what the tests make of each is told apart."""

import subprocess

import pytest

from tests.mutants import ROOT, Mutant, listed, outcome

CASES = {
    "killed": Mutant("part.py", "test_part.py", "a + b", "a - b"),
    "survived": Mutant("part.py", "test_part.py", "a - b", "b - a"),
    "fails without the mutation, too": Mutant("part.py", "test_wrong.py", "a + b", "a - b"),
    "not tested": Mutant("part.py", "no_such_test.py", "a + b", "a - b"),
}


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "part.py").write_text("def added(a, b):\n    return a + b\n\n\ndef apart(a, b):\n    return a - b\n")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['long: more of the same']\n")
    (tmp_path / "test_part.py").write_text("from part import added\n\n\ndef test_added():\n    assert added(1, 2) == 3\n")
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert False\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("expected", CASES)
def test_what_becomes_of_a_mutant(checkout, expected):
    before = (checkout / "part.py").read_text()
    found, said = outcome(CASES[expected], checkout)
    assert found == expected and (checkout / "part.py").read_text() == before
    assert said == ("test_part.py::test_added" if expected == "killed" else said)


@pytest.mark.parametrize("old, times", [("return", 2), ("a * b", 0)])
def test_a_text_that_is_not_there_once_is_refused(checkout, old, times):
    with pytest.raises(ValueError, match=rf"^part.py: '.*' is there {times} times; name a text that is there once"):
        Mutant("part.py", "test_part.py", old, "pass").applied(checkout)


def test_what_the_list_replaces_is_there():
    assert all(mutant.file.endswith(".py") and mutant.applied(ROOT) for mutant in listed())
