"""Predicted times by ranks: the formulas, against sums over messages and by hand; and the command."""

import pytest

from numbanet.cli import main
from numbanet.parallel.model import Link, Step, counts

LINK = Link(2e-6, 10e9)


@pytest.mark.parametrize("ranks", [2, 3, 8, 100])
def test_a_ring_sends_its_messages(ranks):
    """P - 1 messages of n / P bytes for the sums, and as many for their results."""
    size = 1e8
    messages = 2 * [LINK.latency + size / ranks / LINK.bandwidth for _ in range(ranks - 1)]
    assert LINK.ring(size, ranks) == pytest.approx(sum(messages))


@pytest.mark.parametrize("ranks, depth", [(2, 1), (4, 2), (5, 3), (1024, 10)])
def test_a_tree_sends_its_messages(ranks, depth):
    assert LINK.tree(4e6, ranks) == pytest.approx(2 * depth * (2e-6 + 4e6 / 10e9))


def test_one_rank_sends_nothing():
    assert LINK.ring(1e9, 1) == LINK.tree(1e9, 1) == 0
    assert Step(0.01, 1e9).predicted(1, LINK) == 0.01 and Step(0.01, 1e9).efficiency(1, LINK) == 1


def test_the_faster_way_is_chosen():
    """A tree for small arrays on many ranks, a ring for large ones."""
    assert LINK.best(1e3, 1024) == LINK.tree(1e3, 1024) < LINK.ring(1e3, 1024)
    assert LINK.best(1e9, 1024) == LINK.ring(1e9, 1024) < LINK.tree(1e9, 1024)
    step = Step(0.01, 1e7)
    assert step.predicted(4, LINK) == pytest.approx(0.01 + LINK.ring(1e7, 4))
    assert step.efficiency(4, LINK) == pytest.approx(0.01 / step.predicted(4, LINK))


def test_counts_end_with_the_largest():
    assert list(counts(1)) == [1] and list(counts(12)) == [1, 2, 4, 8, 12] and list(counts(8)) == [1, 2, 4, 8]


@pytest.mark.slow
def test_the_command_prints_and_draws(capsys, tmp_path):
    drawn = tmp_path / "scale.svg"
    arguments = "scale --model 20-64-64-5 --ranks 8 --batch-size 16 --compute 10 --compute-dense 20 --bandwidth 1 --latency 5"
    assert main([*arguments.split(), "--plot", str(drawn)]) == 0
    out = capsys.readouterr().out
    dense = 4 * (21 * 64 + 65 * 64 + 65 * 5)
    link = Link(5e-6, 1e9)
    assert f"dense 20 ms, {dense / 1e3:.3g}kB sent" in out and "<svg" in drawn.read_text()
    rows = [line for line in out.splitlines() if line.startswith("│ 8 ")]
    assert f"{1e3 * Step(0.02, dense).predicted(8, link):.3g} (" in rows[0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--model 784", "must be widths such as"),
        ("--model 784-a-10", "must be widths such as"),
        ("--bandwidth 0", "--bandwidth must be at least"),
        ("--ranks 0", "--ranks must be at least 1"),
        ("--latency nan", "--latency must be at least 0, not nan"),
        ("--bandwidth inf --latency inf", "error: --latency must be a finite number, not inf"),
        ("--compute inf", "error: --compute must be a finite number, not inf"),
        ("--compute nan", "--compute must be at least 1e-09, not nan"),
        ("--plot no.txt", "must end in .png"),
        ("--rate 50 --model 4-4-2", "numbanet: error: --rate must be a number"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    try:
        status = main(["scale", *arguments.split()])
    except SystemExit as error:
        status = error.code
    said = capsys.readouterr().err
    assert status == 2 and message in said and said.count("\n") == 1
