"""`Vocabulary` converts words to symbols 0, 1, 2, … and back."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..arguments import is_integer

SOME = 100  # tokens that are looked at to refuse sentences
SENTENCE = 3  # words; a token of fewer may be a phrase
_MOST = np.iinfo(np.int32).max  # symbols are int32


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """The words of a language model, or the integers 0 … n - 1. The symbol of a word is its index.

    Parameters
    ----------
    words : sequence of str, or range
        Distinct words; or range(n), if texts are integers already.
    unknown : str, optional
        The element of `words` that replaces words that are not in the vocabulary; None if texts are integers.

    Raises
    ------
    ValueError
        If a word occurs twice, or `unknown` is not among them.
    """

    words: Sequence[str] | range
    unknown: str | None = None

    def __post_init__(self):
        if isinstance(self.words, range):
            if self.words != range(len(self.words)) or not self.words or self.unknown is not None:
                raise ValueError(f"Vocabulary: integers need range(n) and unknown=None; got {self.words}, {self.unknown!r}")
            return
        object.__setattr__(self, "words", tuple(self.words))
        if len(self._symbols) < len(self.words) or self.unknown not in self._symbols:
            raise ValueError(
                f"Vocabulary: words must differ and include {self.unknown!r}, got {len(self.words)} words, of "
                f"which {len(self._symbols)} differ, {'with' if self.unknown in self._symbols else 'without'} it"
            )

    @classmethod
    def of(cls, tokens: Iterable[Any], size: int | None = None, unknown: str = "<unk>") -> Vocabulary:
        """Make the vocabulary of a text: its words, the most frequent ones first, or the integers up to its largest integer.

        Parameters
        ----------
        tokens : list of str, or integers (T,)
            The text.
        size : int, optional
            If the text consists of words, the largest size of the vocabulary, including `unknown`; of equally frequent words,
            those that occur first are included. If it consists of integers, the number of symbols, which may be larger than the
            text requires. By default all words or integers of the text are included.
        unknown : str, default "<unk>", as in WikiText-2 and Penn Treebank
            The word that replaces words outside the vocabulary. A vocabulary of words always contains it; a vocabulary of
            integers has no such word.

        Raises
        ------
        TypeError
            If tokens are neither words nor integers, or a string.
        ValueError
            If tokens are empty or not one sequence, or if an integer is below 0, not below `size`, or not an int32.
        """
        if size is not None and (not is_integer(size) or not 1 <= size <= _MOST):
            raise ValueError(f"Vocabulary: size must be None or an integer of 1 to {_MOST}, got {size!r}")
        if not isinstance(unknown, str):
            raise TypeError(f"Vocabulary: unknown must be a word, got {unknown!r}")
        text = checked_tokens(tokens)
        if isinstance(text, np.ndarray):
            _refuse_outside(text, _MOST if size is None else size, "number tokens from 0, or give a larger size")
            return cls(range(int(text.max()) + 1 if size is None else int(size)))
        words = [str(word) for word, _ in Counter(text).most_common()]  # keeps the order of equally frequent words
        known = words[:size]
        if unknown not in known:
            known = words[: None if size is None else size - 1] + [unknown]
        return cls(known, unknown)

    @cached_property
    def _symbols(self) -> dict[Any, int]:
        return {word: symbol for symbol, word in enumerate(self.words)}

    def encode(self, tokens: Iterable[Any]) -> np.ndarray:
        """Convert words or integers (T,) to symbols, int32 (T,); words outside the vocabulary become the unknown word.

        Raises
        ------
        TypeError
            If tokens are a string, or if they are words and the vocabulary consists of integers, or the reverse.
        ValueError
            If tokens are empty or not one sequence, or if an integer is outside the vocabulary.
        """
        text, numbered = checked_tokens(tokens), isinstance(self.words, range)
        if isinstance(text, np.ndarray) != numbered:
            raise TypeError(
                f"text: this vocabulary has {'integers' if numbered else 'words'}, but token 0 is "
                f"{text[0].item() if isinstance(text, np.ndarray) else repr(text[0])}"
            )
        if isinstance(text, np.ndarray):
            _refuse_outside(text, len(self), "make the vocabulary from a text that contains all, or with a larger size")
            return text.astype(np.int32, copy=False)
        return np.fromiter(map(self._symbols.get, text, itertools.repeat(self._symbols[self.unknown])), np.int32, len(text))

    def decode(self, ids: Iterable[int]) -> list[Any]:
        """Convert symbols (T,), T >= 0, to the list of their words, or of Python integers if texts are integers.

        Raises
        ------
        TypeError
            If symbols are not integers.
        ValueError
            If a symbol is outside the vocabulary, or if the symbols are not one sequence.
        """
        symbols = checked_tokens(ids, least=0)
        if len(symbols) == 0:
            return []
        if not isinstance(symbols, np.ndarray):
            raise TypeError(f"decode: symbols are integers, got {symbols[0]!r}")
        _refuse_outside(symbols, len(self), "symbols of this vocabulary are needed")
        return list(map(self.words.__getitem__, symbols.tolist()))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, token: object) -> bool:
        return token in (self.words if isinstance(self.words, range) else self._symbols)

    def __repr__(self) -> str:
        if isinstance(self.words, range):
            return f"Vocabulary({self.words})"
        first = ", ".join(map(repr, self.words[:3]))
        return f"Vocabulary({len(self)} words: {first}{', …' if len(self) > 3 else ''}; unknown={self.unknown!r})"


# --- checks of text ---------------------------------------------------------------------------------------------------
def checked_tokens(tokens: Iterable[Any], least: int = 1, why: str = "") -> list[str] | np.ndarray:
    """Return a text of at least `least` tokens as a list of str or integers (T,); raise TypeError or ValueError otherwise.
    `why` says in the error why there must be so many.
    """
    if isinstance(tokens, (str, bytes)):
        raise TypeError(
            f"text: a list of words expected, got one {type(tokens).__name__} of length {len(tokens)}: give "
            "text.split() for words, or list(text) for characters"
        )
    if hasattr(tokens, "__array__"):
        tokens = np.asarray(tokens)
        if tokens.ndim != 1:
            raise ValueError(f"text: one sequence of tokens, of shape (T,), expected, got shape {tokens.shape}")
        tokens = tokens if tokens.dtype.kind in "iu" else tokens.tolist()
    elif isinstance(tokens, (Set, Mapping)):
        raise TypeError(f"text: a list of words or integers expected, got a {type(tokens).__name__}, which is no sequence")
    elif not isinstance(tokens, Iterable):
        raise TypeError(f"text: a list of words or integers expected, got {tokens!r}")
    else:
        tokens = list(tokens)
    some = tokens[:SOME] if isinstance(tokens, list) and tokens and isinstance(tokens[0], str) else []
    if sum(isinstance(token, str) and len(token.split()) >= SENTENCE for token in some) > len(some) / 2:
        raise ValueError(
            f"text: a list of words expected, but its elements are sentences, such as {some[0][:40]!r}: give "
            "' '.join(text).split() for words, or list(' '.join(text)) for characters"
        )
    if len(tokens) < least:
        raise ValueError(f"text: at least {least} token{'s' * (least > 1)} needed, got {len(tokens) or 'an empty text'}{why}")
    if isinstance(tokens, np.ndarray):
        return tokens
    kinds = set(map(type, tokens))
    if all(issubclass(kind, str) for kind in kinds):
        return tokens
    if all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        try:
            return np.array(tokens, np.int64)
        except OverflowError as error:
            raise ValueError(f"text: an integer is outside the range of symbols, 0 to {_MOST - 1}") from error
    raise _mixed(tokens)


def _mixed(tokens: list[Any]) -> Exception:
    """Return the TypeError for the first token that is no word and no integer, or is not of the kind of the first token."""
    wanted = str if isinstance(tokens[0], str) else (int, np.integer)
    at = next(i for i, token in enumerate(tokens) if not isinstance(token, wanted) or isinstance(token, bool))
    many = isinstance(tokens[at], (Sequence, np.ndarray)) and not isinstance(tokens[at], (str, bytes))
    return (ValueError if many else TypeError)(
        f"text: one list of words, or one of integers, expected, but token {at} is {type(tokens[at]).__name__}: "
        f"{str(tokens[at])[:40]}" + (". Join the sentences into one list" if many else "")
    )


def _refuse_outside(symbols: np.ndarray, size: int, way_out: str) -> None:
    """Raise a ValueError that names the first symbol outside 0 … size - 1, if there is one."""
    if symbols.min() < 0 or symbols.max() >= size:
        at = int(np.flatnonzero((symbols < 0) | (symbols >= size))[0])
        raise ValueError(f"text: token {at} is {symbols[at]}, outside 0 to {size - 1}: {way_out}")
