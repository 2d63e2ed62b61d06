"""What the pages show: programs run, on small data; what is quoted stands in the sources; commands parse.

The pages are README, CONTRIBUTING and those of the documentation.
"""

import functools
import importlib
import io
import re
import shlex
import tokenize
from pathlib import Path

import numpy as np
import pytest

from numbanet import cli, datasets
from numbanet_kernels import ptx
from numbanet_kernels.runtime import availability

ROOT = Path(__file__).parents[2]


def blocks(name):
    """The Python of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.S)


def programs(name):
    """The blocks that import what they use; on pages that quote, the others are quotations."""
    return [block for block in blocks(name) if re.search(r"^(from|import) ", block, re.M)]


QUOTING = ["docs/how_it_works.md", "CONTRIBUTING.md"]  # pages that show what stands in the sources
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
PAGES = [name for name in PAGES if blocks(name) and name not in QUOTING]


def images(flat=True, **_):
    """In place of a data set of images: as MNIST, but 320 of them."""
    rng = np.random.default_rng(0)
    x = rng.random((320, 784) if flat else (320, 1, 28, 28), np.float32)
    y = rng.integers(0, 10, 320)
    return x[:256], y[:256], x[256:], y[256:]


def words(**_):
    """In place of a data set of text."""
    text = "the cat sat on the mat and the dog sat on the rug".split()
    return text * 60, text * 4, text * 4


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Data sets are small, and the current folder is another one."""
    for name in ("load_mnist", "load_fashion_mnist"):
        monkeypatch.setattr(datasets, name, images)
    monkeypatch.setattr(datasets, "load_wikitext2", words)
    challenge = importlib.import_module("numbanet.challenge.run")
    monkeypatch.setattr(challenge, "load_challenge", lambda neurons, layers, folder: challenge.generated(neurons, layers))
    monkeypatch.setenv("NUMBANET_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.chdir(tmp_path)


def parts(name):
    """(line, program, what it prints or None) of the programs of a page; what is printed follows in a block of its own."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for found in re.finditer(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.S | re.M):
        yield text[: found.start(1)].count("\n"), found[1], found[2]


def printed(said, expected):
    """Whether a text is the expected one, in which … stands for any text."""
    said, expected = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (said, expected))
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), said, re.S) is not None


@pytest.mark.filterwarnings("ignore::UserWarning")  # so few random images teach nothing
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.slow
def test_the_programs_of_a_page_run_and_print_what_it_says(page, small, capsys, tmp_path):
    """In order, as one file: kernels are compiled from it."""
    if "numbanet_kernels" in (ROOT / page).read_text(encoding="utf-8") and availability.nvvm_problem() is not None:
        pytest.skip(availability.nvvm_problem())
    file, names = tmp_path / f"{Path(page).stem}.py", {"__name__": Path(page).stem}
    source = ""
    for line, program, expected in parts(page):
        source += "\n" * (line - source.count("\n")) + program
        file.write_text(source, encoding="utf-8")
        exec(compile("\n" * line + program, str(file), "exec"), names)
        said = capsys.readouterr().out
        assert printed(said, expected or ""), f"{page}:{line + 1} prints\n{said}"
    saved = {"README.md": "digits", "docs/first_network.md": "digits", "docs/hooks.md": "best"}.get(page)
    assert saved is None or Path(f"{saved}.safetensors").exists()


GUARD = "    if i < y.size:  # the grid may have more threads than y has entries\n        y[i] = x[i]"
SUM = "            x[i] += x[i + step]\n        cuda.syncthreads()\n        step //= 2\n"
WAITING = SUM.replace("        cuda", "            cuda") + "    cuda.syncthreads()\n"
CHANGES = {  # of docs/kernels.md, and what comes of them
    "more blocks": ({"run(neighbours, x, y)": "run(neighbours, x, y, blocks=5)"}, "neighbours: 1.00 times"),
    "no guard": (
        {"run(neighbours, x, y)": "run(neighbours, x, y, blocks=5)", GUARD: "    y[i] = x[i]"},
        "global out of bounds",
    ),
    "stride 4": ({"x[32 * i]": "x[4 * i]"}, "strided: 2.50 times"),
    "stride 8": ({"x[32 * i]": "x[8 * i]"}, "strided: 4.50 times"),
    "34 words": ({"(32, 33)": "(32, 34)"}, "padded: 1.00 times the least sectors, 32 cycles"),
    "48 words": ({"(32, 33)": "(32, 48)"}, "padded: 1.00 times the least sectors, 480 cycles"),
    "two barriers": ({SUM: WAITING}, "a barrier that part of its block never reaches: others wait"),
    "all write": ({f"{SUM}    if i == 0:\n        y[0]": f"{SUM}    y[0]"}, "global race: written by several threads at once"),
    "whole warps": (
        {"    if i % 2 == 0:": "    if i // 32 % 2 == 0:"},
        "alternating: 1.00 times the least sectors, 0 cycles of bank c",
    ),
}


@pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.slow
def test_what_a_student_changes_has_the_outcome_that_the_page_says(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # the programs write a page
    source, (changes, outcome) = "\n\n".join(program for _, program, _ in parts("docs/kernels.md")), CHANGES[name]
    for before, after in changes.items():
        assert before in source
        source = source.replace(before, after)
    file = tmp_path / "lesson.py"
    file.write_text(source, encoding="utf-8")
    try:
        exec(compile(source, str(file), "exec"), {"__name__": "lesson"})
    except ptx.PtxError as error:
        print(error)
    assert outcome in capsys.readouterr().out


def test_the_pages_have_programs_and_outputs():
    found = [part for page in PAGES for part in parts(page)]
    assert len(found) >= 40 and sum(expected is not None for _, _, expected in found) >= 15
    assert {"README.md", "docs/first_network.md", "docs/kernels.md", "docs/coming_from.md"} <= set(PAGES)
    assert printed("a 1 b\n", "a … b\n") and printed("x\na", "…\na") and not printed("a 1 c", "a … b")


@pytest.mark.slow
def test_the_file_of_ones_own_in_contributing_runs(capsys):
    (program,) = programs("CONTRIBUTING.md")
    exec(compile(program, "CONTRIBUTING.md", "exec"), {})
    accuracy, share = re.search(r"test accuracy ([\d.]+), (\d+)%", capsys.readouterr().out).groups()
    assert float(accuracy) > 0.9 and 40 < int(share) < 70


@functools.cache
def code(text):
    """The words of a source without comments and white space; of what is no whole statement as well."""
    try:
        tokens = [
            token.string
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        ]
    except (tokenize.TokenError, IndentationError):
        tokens = text.split()
    return " ".join(filter(None, tokens))


@pytest.mark.slow
@pytest.mark.parametrize("page", QUOTING)
def test_what_is_quoted_stands_in_the_sources(page):
    folders = [ROOT / name for name in ("numbanet", "numbanet_kernels", "tests")]
    sources = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")]
    quoted = [part for block in blocks(page) if block not in programs(page) for part in block.split("…\n")]
    assert quoted
    for part in quoted:
        able = [source for source in sources if all(word in source for word in code(part).split())]  # few, so that few are read
        assert any(code(part) in code(source) for source in able), part


def test_a_quotation_that_is_wrong_is_found():
    assert code("f(x,  y)  # why\n") == code("f( x, y)\n") != code("f(x, z)\n")


COMMAND = r"^(?:mpiexec -n \d )?numbanet (?!bench )(.+?)(?: +#.*)?$"


def test_the_commands_of_the_pages_are_known():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    fences = [pair for page in pages for pair in re.findall(r"^```(.*?)\n(.*?)^```$", page.read_text("utf-8"), re.S | re.M)]
    lines = [line for language, block in fences if not language for line in re.findall(COMMAND, block, re.M)]
    assert len(lines) >= 12
    for line in lines:
        cli._parser().parse_args(shlex.split(line))
