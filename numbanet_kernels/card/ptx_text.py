"""Linking of PTX texts: `linked` makes one text with one kernel of several texts, as the machine reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_LINKAGE = r"(?:\.(?:visible|weak|extern|common)\s+)*"
_HEAD = re.compile(_LINKAGE + r"\.(?P<kind>entry|func)\b(?:\s*\([^)]*\))?\s*(?:\.noreturn\s+)?(?P<name>[\w$%.]+)")
_VARIABLE = re.compile(
    rf"^[ \t]*(?P<how>{_LINKAGE})" r"\.(?:global|const)\s[^;{]*?(?P<name>[\w$%]+)(?:\[\d*\])*\s*(?:=[^;]*)?;", re.M
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


def entries(text: str) -> list[str]:
    """Return the names of the kernels that a PTX text defines."""
    return [name for kind, name, body in _functions(_bare(text)) if kind == "entry" and body is not None]


def linked(texts: Sequence[str], entry: str) -> str:
    """Return one PTX text: the kernel `entry`, and the functions and variables of all texts. Of several definitions of one
    name, the first stays: the others are weak.
    """
    if len(texts) == 1 and entries(texts[0]) == [entry]:
        return texts[0]
    bare, seen, parts = [_bare(text) for text in texts], set(), []
    defined = {found["name"] for text in bare for found in _VARIABLE.finditer(text) if "extern" not in found["how"]}
    for text in bare:
        drop = []
        for kind, name, body in _functions(text):
            if body is None:
                continue
            if (kind == "entry" and name != entry) or name in seen:
                drop.append(body)
            seen.add(name)
        for found in _VARIABLE.finditer(text):
            name = found["name"]
            if (name in defined and "extern" in found["how"]) or name in seen:
                drop.append(found.span())
            else:
                seen.add(name)
        parts.append(_without(text, drop))
    return "\n".join(parts)


def _bare(text: str) -> str:
    return _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def _functions(text: str) -> Iterator[tuple[str, str, tuple[int, int] | None]]:
    """Yield (kind, name, span of the whole definition, or None for a declaration) of each function and kernel."""
    position = 0
    while found := _HEAD.search(text, position):
        semicolon, brace = text.find(";", found.end()), text.find("{", found.end())
        if brace < 0 or 0 <= semicolon < brace:
            yield found["kind"], found["name"], None
            position = found.end()
            continue
        position = _closing(text, brace)
        yield found["kind"], found["name"], (found.start(), position)


def _closing(text: str, brace: int) -> int:
    """Return the place after the brace that closes the one at `brace`."""
    depth = 0
    for found in re.finditer(r"[{}]", text[brace:]):
        depth += 1 if found.group() == "{" else -1
        if not depth:
            return brace + found.end()
    return len(text)


def _without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    for start, stop in sorted(spans, reverse=True):
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:stop]) + text[stop:]
    return text
