"""Docstrings are written to be read in a terminal. Here they become reStructuredText: bars, stars and trailing underscores of
formulas and names are no marks, and indented formulas are blocks."""

import re

UNDERLINE = re.compile(r"-{3,}")
EMPHASIS = re.compile(r"(`[^`]*`|(?<!\w)\*\*?(?=[^\s*])[^*]*(?<=[^\s*])\*\*?(?!\w))")


def clean(app, what, name, obj, options, lines):
    """Edit the lines of a docstring in place (event autodoc-process-docstring of Sphinx, before numpydoc)."""
    first = next((i - 1 for i, line in enumerate(lines) if UNDERLINE.fullmatch(line.strip())), len(lines))
    examples = next((i for i, line in enumerate(lines) if line.strip() == "Examples"), len(lines))
    lines[:] = [*blocks([escaped(line) for line in lines[:first]]), *map(escaped, lines[first:examples]), *lines[examples:]]


def skipped(app, what, name, obj, skip, options):
    """Whether to leave out a member of a class: what scikit-learn makes for metadata routing."""
    return skip or bool(re.fullmatch(r"get_metadata_routing|set_\w+_request", name))


def escaped(line):
    """A line in which only pairs of stars around words are marks."""
    line = re.sub(r":\w+:`([^`<]+?)(?: <[^`]*>)?`", r"`\1`", line)  # roles of scikit-learn, which lead to its own pages
    head = re.match(r"\*{0,2}\w+ : ", line)  # a parameter: numpydoc escapes its name
    start = head.end() if head else 0
    parts = EMPHASIS.split(line[start:])
    parts[::2] = (re.sub(r"([|*]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2])
    return line[:start] + "".join(parts)


def blocks(lines):
    """The lines with lists, definitions ("name   what it is", the next lines under the latter) and formulas as such."""
    found, kind = [], ""
    for line in lines:
        before, indented = kind, line.startswith(" ")
        if not line.strip():
            kind = "definition" if before == "definition" else ""
        elif indented:
            kind = before if before in ("item", "definition") else "formula"
        elif re.match(r"(\\\*|-|\d+\.) ", line):
            kind, line = "item", line.removeprefix("\\")
        elif term := re.match(r"(\S.{0,28}?)  +(\S.*)", line):
            found += ["", term[1]]
            kind, line = "definition", f"    {term[2]}"
        else:
            kind = "text"
        if kind == "formula":
            line = f"| {line.strip()}"
        elif kind == "definition" and indented:
            line = f"    {line.strip()}"
        if kind != before and kind in ("formula", "item", "text") and before in ("formula", "item", "text", "definition"):
            found.append("")
        found.append(line)
    return found
