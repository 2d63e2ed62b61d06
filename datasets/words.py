"""Text, one sentence a line -> the list of its words, as models of language read it."""

from __future__ import annotations

import io
from typing import TypeAlias

Texts: TypeAlias = tuple[list[str], list[str], list[str]]

END = "<eos>"  # ends each line, as in T. Mikolov's and W. Zaremba's programs
SPLITS = ("train", "valid", "test")


def parse_words(content: bytes, source: object, known: dict[str, str]) -> list[str]:
    """UTF-8 text -> its words, which white space separates, and `<eos>` for the end of each line.

    Equal words are one object, also in all texts that are parsed with the same `known`, which this adds to.

    Raises
    ------
    ValueError
        If `content` has no word, or is not text.
    """
    if b"\0" in content:
        raise ValueError(
            f"{source}: text in UTF-8 expected, found {len(content)} bytes, of which the first 0 is at {content.index(0)}"
        )
    words: list[str] = []
    number = 0
    for number, line in enumerate(io.BytesIO(content), 1):
        try:
            found = line.decode("utf-8").split()
        except UnicodeDecodeError as error:
            raise ValueError(f"{source}: text in UTF-8 expected, found line {number}: {error}") from error
        words += map(known.setdefault, found, found)
        words.append(END)
    if len(words) == number:
        raise ValueError(f"{source}: words expected, found {len(content)} bytes without one")
    return words
