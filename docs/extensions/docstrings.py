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
    """The lines with indented ones as blocks of their own, unless they continue an item of a list."""
    found, item = [], False
    for i, line in enumerate(lines):
        before = lines[i - 1] if i else ""
        if line.strip() and not line.startswith(" "):
            item = bool(re.match(r"(\\\*|-|\d+\.) ", line))
            if item:
                line = line.removeprefix("\\")
            if item != bool(re.match(r"(\\\*|-|\d+\.| ) ", before)) and before.strip():
                found.append("")
        if line.startswith(" ") and not item:
            if before.strip() and not before.startswith(" "):
                found.append("")
            line = "| " + line.strip() if line.strip() else line
        elif before.startswith(" ") and line.strip() and not item and found and found[-1].startswith("| "):
            found.append("")
        found.append(line)
    return found
