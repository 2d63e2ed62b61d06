"""What README and CONTRIBUTING show: programs run, on small data; what is quoted stands in the sources; commands parse."""

import importlib
import io
import re
import shlex
import tokenize
from pathlib import Path

import numpy as np
import pytest

from numbanet import cli, datasets

ROOT = Path(__file__).parents[2]


def blocks(name):
    """The Python of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.S)


def programs(name):
    """The blocks that import what they use; the others are quotations."""
    return [block for block in blocks(name) if re.search(r"^(from|import) ", block, re.M)]


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


@pytest.mark.filterwarnings("ignore::UserWarning")  # so few random images teach nothing
@pytest.mark.slow
def test_the_programs_of_the_readme_run(small):
    names = {}
    for block in programs("README.md"):
        exec(compile(block, "README.md", "exec"), names)
    assert len(programs("README.md")) >= 8 and Path("digits.safetensors").exists() and Path("best.safetensors").exists()


@pytest.mark.slow
def test_the_file_of_ones_own_in_contributing_runs(capsys):
    (program,) = programs("CONTRIBUTING.md")
    exec(compile(program, "CONTRIBUTING.md", "exec"), {})
    accuracy, share = re.search(r"test accuracy ([\d.]+), (\d+)%", capsys.readouterr().out).groups()
    assert float(accuracy) > 0.9 and 40 < int(share) < 70


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


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_what_is_quoted_stands_in_the_sources(page):
    sources = [
        code(path.read_text(encoding="utf-8"))
        for folder in ("numbanet", "numbanet_kernels", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    quoted = [part for block in blocks(page) if block not in programs(page) for part in block.split("…\n")]
    assert quoted
    for part in quoted:
        assert any(code(part) in source for source in sources), part


def test_a_quotation_that_is_wrong_is_found():
    assert code("f(x,  y)  # why\n") == code("f( x, y)\n") != code("f(x, z)\n")


def test_the_commands_of_the_readme_are_known():
    lines = re.findall(r"^numbanet (.+?)(?:  +#.*)?$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    assert len(lines) >= 7
    for line in lines:
        cli._parser().parse_args(shlex.split(line))
