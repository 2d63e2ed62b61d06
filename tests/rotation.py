"""Which cases of a test function are run: all, if they are few; else a share, which another text changes."""

import zlib
from collections.abc import Sequence

MANY = 8  # cases of a test function that are always run


def chosen(names: Sequence[str], share: int, text: str, least: int = MANY) -> set[str]:
    """One in `share` of the cases of each function, and at least `least`, chosen by their names and by a text."""
    cases: dict[str, list[str]] = {}
    for name in names:
        cases.setdefault(name.partition("[")[0], []).append(name)
    found: set[str] = set()
    for some in cases.values():
        some.sort(key=lambda name: zlib.crc32(f"{text}{name}".encode()))
        found.update(some[: max(least, -(-len(some) // share))])
    return found
