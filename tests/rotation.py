"""Which cases of a test function are run: all, if they are few; else a share, which another text changes."""

import zlib
from collections.abc import Sequence

MANY, SLOW = 8, 3  # cases of a test function that are always run; of one that is marked as slow


def chosen(names: Sequence[str], share: int, text: str, least: int = MANY, slow: frozenset[str] = frozenset()) -> set[str]:
    """One in `share` of the cases of each function, and at least `least`; if some of its cases are in `slow`, one in
    2 * `share`, and at least SLOW. If `share` is 1, all are chosen. They are chosen by their names and by a text.
    """
    cases: dict[str, list[str]] = {}
    for name in names:
        cases.setdefault(name.partition("[")[0], []).append(name)
    found: set[str] = set()
    for some in cases.values():
        some.sort(key=lambda name: zlib.crc32(f"{text}{name}".encode()))
        few, of = (least, share) if slow.isdisjoint(some) else (min(least, SLOW), 2 * share if share > 1 else 1)
        found.update(some[: max(few, -(-len(some) // of))])
    return found
