"""The command `numbanet check`: its status and its words, for files without a fault, with faults, and without kernels."""

import textwrap

import pytest

from numbanet import cli
from numbanet.cli import check
from numbanet_kernels import card
from numbanet_kernels.ptx import machine
from numbanet_kernels.runtime.declare import cuda

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


@pytest.mark.skipif(getattr(cuda, "implementation", "") == "Built-in", reason="Numba's own cuda calls no cuda.bindings")
def test_a_leak_without_a_launch(tmp_path, capsys):
    status, said = run(tmp_path, capsys, "from cuda.bindings import driver\ndriver.cuMemAlloc(64)")
    assert status == 1 and "leak: an allocation of 64 bytes, made at my_kernels.py:2, never freed" in said
    assert "0 launches, no error found, memory of 1 line never freed" in said


ENDLESS = """
    import numpy as np
    from numba import cuda

    @cuda.jit
    def counts(f):
        n = 0
        while cuda.atomic.add(f, 0, 0) == 0:
            n += 1
            f[1] = n

    counts[1, 1](np.zeros(2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("own, seconds", [(None, "1"), ("7", "2")])
def test_a_kernel_that_writes_for_ever_ends_sooner_than_elsewhere(tmp_path, capsys, monkeypatch, own, seconds):
    """But for the number of seconds that the user gives."""
    monkeypatch.setattr(machine, "LIMIT", 2.0)
    monkeypatch.setattr(check, "SECONDS", 1)
    if own:
        monkeypatch.setenv("NUMBANET_EMULATED_SECONDS", own)
    else:
        monkeypatch.delenv("NUMBANET_EMULATED_SECONDS", raising=False)
    status, said = run(tmp_path, capsys, ENDLESS)
    assert status == 1 and f"the kernel does not end, and is here after {seconds} s" in said and machine.LIMIT == 2


def test_a_file_without_launches_and_no_file(tmp_path, capsys):
    assert run(tmp_path, capsys, "x = 1") == (
        2,
        f"numbanet: error: {tmp_path}/my_kernels.py launched no kernel, so nothing "
        "was checked: call the kernels where the file is run\n",
    )
    assert cli.main(["check", str(tmp_path / "none.py")]) == 2


def test_a_notebook_is_refused(tmp_path, capsys):
    path = tmp_path / "mine.ipynb"
    path.write_text('{"cells": []}')
    assert cli.main(["check", str(path)]) == 2
    assert f"is a notebook, not a Python file: convert it by `jupyter nbconvert --to script {path}`" in capsys.readouterr().err


# --- counters ---------------------------------------------------------------------------------------------------------
RIGHT = KERNEL.replace("LIMIT", "x.size - 1")


@pytest.mark.parametrize("before, after", [(["--counters"], []), ([], ["--counters"]), ([], ["a", "--counters", "--b"])])
def test_counters_before_or_after_the_file(tmp_path, capsys, before, after):
    path = tmp_path / "my_kernels.py"
    path.write_text(textwrap.dedent(RIGHT))
    assert cli.main(["check", *before, str(path), *after]) == 0
    said = capsys.readouterr().out
    own = [argument for argument in after if argument != "--counters"]
    assert f"end of {own}" in said and "shift(x: array(float64, 1d, C), y: array(float64, 1d, C))" in said
    assert "2 launches, 4 blocks of 32 threads" in said and "A100: " in said and "instr.: instructions of warps" in said
    assert said.index("instr.:") < said.index("2 launches, no error found")


def test_what_follows_two_dashes_is_the_files(tmp_path, capsys):
    status, said = run(tmp_path, capsys, RIGHT, "x", "--", "--counters", "--html", "no/lines.html")
    assert status == 0 and "end of ['x', '--counters', '--html', 'no/lines.html']" in said and "shift(" not in said


def test_a_page_is_written_where_the_shell_is(tmp_path, capsys, monkeypatch):
    """Whatever folder the file goes to; the table is printed only if it is asked for, too."""
    monkeypatch.chdir(tmp_path)
    moved = RIGHT.replace("for _ in", "import os; os.chdir('/')\n        for _ in")
    status, said = run(tmp_path, capsys, moved, "--html", "lines.html", "--card=h200")
    assert status == 0 and f"listing: {tmp_path / 'lines.html'}" in said and "shift(" not in said
    text = (tmp_path / "lines.html").read_text(encoding="utf-8")
    assert "Occupancy</b> (H200, a model)" in text and "y[i] = x[i + 1]" in text
    status, said = run(tmp_path, capsys, RIGHT, "--html", "lines.html", "--counters")
    assert "listing:" in said and "shift(" in said


def test_a_file_with_errors_is_counted_until_then(tmp_path, capsys):
    status, said = run(tmp_path, capsys, KERNEL.replace("LIMIT", "x.size"), "--counters")
    assert status == 1 and "2 launches, 4 blocks of 32 threads; 2 ended with an error" in said


@pytest.mark.parametrize(
    "options, words",
    [
        (["--card", "K80"], "there is no data sheet of 'K80'"),
        (["--html", "no/lines.html"], "there is no folder"),
        (["--html", "."], "it is a folder"),
    ],
)
def test_bad_options_are_refused_before_the_file_runs(tmp_path, capsys, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    for status, said in (
        run(tmp_path, capsys, RIGHT, *options),
        (cli.main(["kernels", "--counters", "add", *options]), capsys.readouterr().err),
    ):
        assert status == 2 and words in said and "end of" not in said


def test_options_of_counters_without_a_value(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, capsys, RIGHT, "--html")
    assert "numbanet check: error: argument --html: expected one argument" in capsys.readouterr().err


def test_after_two_dashes_options_are_the_files_too(tmp_path, capsys):
    for given in (("--", "--counters", "a"), ("--", "--", "a")):
        status, said = run(tmp_path, capsys, KERNEL.replace("LIMIT", "x.size - 1"), *given)
        assert status == 0 and f"end of {list(given[1:])}" in said and "sectors" not in said


def test_two_dashes_before_the_file_leave_it_all_that_follows(tmp_path, capsys):
    path = tmp_path / "my_kernels.py"
    path.write_text(textwrap.dedent(RIGHT))
    for before, own in (([], ["--counters", "a"]), ([], ["--card", "K80"]), (["--counters"], ["a", "--", "--html"])):
        assert cli.main(["check", *before, "--", str(path), *own]) == 0
        said = capsys.readouterr().out
        assert f"end of {own}" in said and ("sectors" in said) == bool(before)


def test_warnings_of_the_file_are_shown_as_python_shows_them(tmp_path, capsys):
    text = "import warnings\nwarnings.warn('random_state=3 is mine', FutureWarning)" + textwrap.dedent(RIGHT)
    with pytest.warns(FutureWarning, match="^random_state=3 is mine$") as seen:
        status, said = run(tmp_path, capsys, text)
    assert status == 0 and "is mine" not in said
    assert [(warning.filename, warning.lineno) for warning in seen] == [(str(tmp_path / "my_kernels.py"), 2)]


def test_a_folder_may_have_any_name(tmp_path, capsys):
    folder = tmp_path / 'josé "b"'
    folder.mkdir()
    status, said = run(folder, capsys, KERNEL.replace("LIMIT", "x.size"), "--counters")
    assert status == 1 and "my_kernels.py:10" in said and "y[i] = x[i + 1]" in said


def test_a_file_that_ends_with_a_text(tmp_path, capsys):
    status, said = run(tmp_path, capsys, KERNEL.replace("LIMIT", "x.size - 1") + "\n        sys.exit('enough')")
    assert status == 1 and "enough" in said
