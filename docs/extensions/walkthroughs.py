"""The walkthroughs of examples/, whose prose is Markdown, as sphinx-gallery reads them: prose in reStructuredText."""

import re

from . import put

UNDERLINES = {1: "=", 2: "-", 3: "~"}
INTRODUCTION = """\
Walkthroughs
============

Each runs in less than half a minute without a GPU, and can be downloaded as a program or as a notebook. Outputs and
pictures are from the run that made these pages.
"""


def write(examples, folder):
    """Write the walkthroughs and the introduction of the gallery; remove those that are gone.

    Beside the folder lies a link to that of the benchmarks, as in a checkout, because some walkthroughs read recorded files.
    """
    kept = {folder / "GALLERY_HEADER.rst"}
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder.parent / "bench").exists():
        (folder.parent / "bench").symlink_to(examples.parent / "bench")
    put(folder / "GALLERY_HEADER.rst", INTRODUCTION)
    for path in sorted(examples.glob("[0-9][0-9]_*.py")):
        put(folder / path.name, converted(path.read_text(encoding="utf-8")))
        kept.add(folder / path.name)
    for path in folder.glob("*.py"):
        if path not in kept:
            path.unlink()


def converted(text):
    """A program in percent format with Markdown as one that begins with a docstring and has reStructuredText."""
    parts = re.split(r"^# %%(.*)\n", text, flags=re.M)[1:]
    lines = []
    for kind, body in zip(parts[::2], parts[1::2]):
        if kind.strip() != "[markdown]":
            lines += ["# %%" if lines else "", body.strip(), ""]
            continue
        prose = restructured([line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()])
        if lines:
            lines += ["# %%", *(f"# {line}".rstrip() for line in prose), ""]
        else:
            lines += ['r"""', *prose, '"""', ""]
    return "\n".join(lines).strip() + "\n"


def restructured(lines):
    """The lines of a text in Markdown as reStructuredText: headings, code, tables; the rest is the same in both."""
    found, table = [], []
    for line in [*lines, ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            found += [*list_table(table), ""]
            table = []
        if heading := re.match(r"(#+) (.*)", line):
            title = inline(heading[2])
            found += [title, UNDERLINES[len(heading[1])] * len(title)]
        else:
            found.append(inline(line))
    return found[:-1]


def inline(line):
    """A line with code and links in the other notation."""
    parts = re.split(r"(`[^`]+`)", line)
    parts[1::2] = (f"`{code}`" for code in parts[1::2])
    parts[::2] = (re.sub(r"\[([^\]]+)\]\((http[^)]+)\)", r"`\1 <\2>`__", text.replace("|", r"\|")) for text in parts[::2])
    return "".join(parts)


def list_table(lines):
    """A table in Markdown as a directive."""
    rows = [[inline(cell.strip()) for cell in line.strip("| ").split("|")] for line in lines]
    made = [".. list-table::", "   :header-rows: 1", ""]
    for row in (rows[0], *rows[2:]):
        made += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
    return made
