"""Words: split text with one sentence per line into the list of words that a language model reads."""

from __future__ import annotations

import io
from typing import TypeAlias

Texts: TypeAlias = tuple[list[str], list[str], list[str]]

END = "<eos>"  # the word after each line, as in T. Mikolov's and W. Zaremba's programs
SPLITS = ("train", "valid", "test")


def parse_words(content: bytes, source: object, known: dict[str, str]) -> list[str]:
    """Split UTF-8 text at white space into words, with `<eos>` after each line.

    Equal words are the same object, in all texts that are parsed with the same dict `known`; new words are added to it.

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
