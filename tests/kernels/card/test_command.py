"""The command `numbanet check`: its status and its words, for files without a fault, with faults, and without kernels."""

import textwrap

import pytest

from numbanet import cli
from numbanet_kernels import card

pytestmark = pytest.mark.skipif(card.problem() is not None, reason=str(card.problem()))

KERNEL = """
    import sys
    import numpy as np
    from numba import cuda

    @cuda.jit
    def shift(x, y):
        i = cuda.grid(1)
        if i < LIMIT:
            y[i] = x[i + 1]

    if __name__ == "__main__":
        for _ in range(2):
            shift[2, 32](np.zeros(50), np.zeros(50))
        print("end of", sys.argv[1:])
"""


def run(tmp_path, capsys, text, *arguments):
    path = tmp_path / "my_kernels.py"
    path.write_text(textwrap.dedent(text))
    status = cli.main(["check", str(path), *arguments])
    said = capsys.readouterr()
    return status, said.out + said.err


def test_a_right_file(tmp_path, capsys):
    status, said = run(tmp_path, capsys, KERNEL.replace("LIMIT", "x.size - 1"), "a", "--b")
    assert status == 0 and "2 launches, no error found" in said and "end of ['a', '--b']" in said


def test_a_wrong_file_runs_to_its_end(tmp_path, capsys):
    status, said = run(tmp_path, capsys, KERNEL.replace("LIMIT", "x.size"))
    assert status == 1 and "2 launches, 2 with errors" in said and "end of []" in said
    assert said.count("my_kernels.py:10") == 1 and "out of bounds" in said and "thread (17, 0, 0), block (1, 0, 0)" in said
    assert "x[50]" in said


def test_a_file_that_raises(tmp_path, capsys):
    status, said = run(tmp_path, capsys, KERNEL.replace("LIMIT", "x.size - 1") + "\n        raise KeyError('mine')")
    assert status == 1 and "KeyError: 'mine'" in said and "ended with an exception" in said


def test_a_file_without_launches_and_no_file(tmp_path, capsys):
    assert run(tmp_path, capsys, "x = 1") == (
        2,
        f"numbanet: error: {tmp_path}/my_kernels.py launched no kernel, so nothing "
        "was checked: call the kernels where the file is run\n",
    )
    assert cli.main(["check", str(tmp_path / "none.py")]) == 2
