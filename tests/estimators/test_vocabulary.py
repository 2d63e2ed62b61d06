"""Vocabularies: the most frequent words, in a fixed order; there and back; what is no text is refused with a way out."""

import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from numbanet.estimators.vocabulary import Vocabulary, checked_tokens

TEXT = "b a <eos> a b c <eos> d".split()  # b a <eos>: twice, c d: once
WORDS, NUMBERS = Vocabulary.of(TEXT), Vocabulary.of([3, 0, 3])


# --- which words are kept ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text, size, unknown, kept",
    [
        (TEXT, None, "<unk>", ["b", "a", "<eos>", "c", "d", "<unk>"]),
        (TEXT, 99, "<unk>", ["b", "a", "<eos>", "c", "d", "<unk>"]),
        (TEXT, 6, "<unk>", ["b", "a", "<eos>", "c", "d", "<unk>"]),
        (TEXT, 5, "<unk>", ["b", "a", "<eos>", "c", "<unk>"]),
        (TEXT, 2, "<unk>", ["b", "<unk>"]),
        (TEXT, 1, "<unk>", ["<unk>"]),
        (TEXT, 3, "a", ["b", "a", "<eos>"]),
        (TEXT, 2, "d", ["b", "d"]),
        (TEXT, None, "d", ["b", "a", "<eos>", "c", "d"]),
        (["<unk>", "a", "a"], 2, "<unk>", ["a", "<unk>"]),
        (iter("hello"), 3, "?", ["l", "h", "?"]),
        (("a", "a", "b"), np.int64(2), "?", ["a", "?"]),
    ],
)
def test_the_most_frequent_words_are_kept(text, size, unknown, kept):
    vocabulary = Vocabulary.of(text, size, unknown)
    assert (list(vocabulary.words), vocabulary.unknown, len(vocabulary)) == (kept, unknown, len(kept))
    assert all(word in vocabulary for word in kept) and "other" not in vocabulary


@given(st.lists(st.sampled_from("abcdefg"), min_size=1), st.integers(1, 9) | st.none())
def test_words_there_and_back(text, size):
    vocabulary = Vocabulary.of(text, size)
    symbols = vocabulary.encode(text)
    assert symbols.dtype == np.int32 and symbols.shape == (len(text),)
    assert vocabulary.decode(symbols) == [word if word in vocabulary else "<unk>" for word in text]
    counts = Counter(text)
    ranked = sorted(counts, key=lambda word: (-counts[word], text.index(word)))
    assert list(vocabulary.words) == ranked[: size and size - 1] + ["<unk>"]


@given(
    st.lists(st.integers(0, 300), min_size=1),
    st.integers(301, 400) | st.none(),
    st.sampled_from(
        [
            list,
            tuple,
            iter,
            np.array,
            np.uint16,
            np.int32,
            np.uint64,
            pd.Series,
            lambda ids: np.array(ids, object),
            lambda ids: list(np.int16(ids)),
        ]
    ),
)
def test_integers_there_and_back(ids, size, form):
    vocabulary = Vocabulary.of(form(ids), size)
    assert len(vocabulary) == (size or max(ids) + 1) and vocabulary.unknown is None
    symbols = vocabulary.encode(form(ids))
    assert symbols.dtype == np.int32 and symbols.tolist() == ids
    assert vocabulary.decode(symbols) == ids and type(vocabulary.decode(symbols)[0]) is int
    assert max(ids) in vocabulary and not any(token in vocabulary for token in (-1, len(vocabulary), "a"))


@pytest.mark.parametrize(
    "form", [list, tuple, iter, np.array, pd.Series, lambda text: np.array(text, object), lambda text: list(map(np.str_, text))]
)
def test_words_may_come_in_any_one_dimensional_form(form):
    vocabulary = Vocabulary.of(form(TEXT))
    assert vocabulary == WORDS and set(map(type, vocabulary.words)) == {str}
    np.testing.assert_array_equal(vocabulary.encode(form(TEXT)), WORDS.encode(TEXT))


@pytest.mark.parametrize("form", [list, tuple, iter, np.array, np.uint8, pd.Series])
def test_symbols_may_come_in_any_one_dimensional_form(form):
    assert WORDS.decode(form([5, 0])) == ["<unk>", "b"]


def test_no_symbols_are_no_words():
    assert WORDS.decode([]) == WORDS.decode(np.array([])) == WORDS.decode(np.zeros(0, int)) == NUMBERS.decode(()) == []


@pytest.mark.parametrize("form", [list, np.array])
def test_text_may_have_to_be_longer(form):
    assert list(checked_tokens(form([1, 2]), least=2)) == [1, 2]
    with pytest.raises(ValueError, match="text: at least 3 tokens needed, got 2"):
        checked_tokens(form([1, 2]), least=3)


# --- as a value -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("one", [WORDS, NUMBERS, Vocabulary.of(TEXT, 3)], ids=repr)
def test_a_vocabulary_is_a_value(one):
    copy = pickle.loads(pickle.dumps(one))
    assert copy == one == Vocabulary(one.words, one.unknown) and hash(copy) == hash(one) and repr(copy) == repr(one)
    np.testing.assert_array_equal(copy.encode(copy.words), range(len(one)))
    assert one not in [Vocabulary.of(TEXT, 4), Vocabulary.of(TEXT, unknown="d"), Vocabulary.of([9])]


@pytest.mark.parametrize(
    "one, text",
    [
        (WORDS, "Vocabulary(6 words: 'b', 'a', '<eos>', …; unknown='<unk>')"),
        (NUMBERS, "Vocabulary(range(0, 4))"),
        (Vocabulary.of(["a"]), "Vocabulary(2 words: 'a', '<unk>'; unknown='<unk>')"),
    ],
)
def test_it_says_what_it_is(one, text):
    assert repr(one) == text


# --- what is refused --------------------------------------------------------------------------------------------------
NO_TEXT = [  # tokens, error, message
    ("a b a", TypeError, r"one str of length 5: give text.split\(\) for words, or list\(text\) for characters"),
    (b"a b", TypeError, r"one bytes of length 3: give text.split\(\)"),
    ([], ValueError, "at least 1 token needed, got an empty text"),
    (iter(()), ValueError, "got an empty text"),
    (np.zeros(0, int), ValueError, "got an empty text"),
    (np.zeros(0), ValueError, "got an empty text"),
    ([["a"], ["b"]], ValueError, r"token 0 is list: \['a'\]. Join the sentences"),
    (["a", ("b",)], ValueError, r"token 1 is tuple: \('b',\). Join"),
    ([[1, 2], [3, 4]], ValueError, "token 0 is list"),
    (np.zeros((2, 3), int), ValueError, r"shape \(T,\), expected, got shape \(2, 3\)"),
    (np.int64(3), ValueError, r"shape \(\)"),
    (np.array([["a", "b"]]), ValueError, r"shape \(1, 2\)"),
    ([np.zeros(2, int)], ValueError, "token 0 is ndarray"),
    (np.array([1.0, 2.0]), TypeError, "token 0 is float: 1.0"),
    ([1, 2.5], TypeError, "token 1 is float: 2.5"),
    (np.array([1, np.nan]), TypeError, "token 0 is float"),
    ([True, False], TypeError, "token 0 is bool"),
    ([1, True], TypeError, "token 1 is bool"),
    (np.array([True]), TypeError, "token 0 is bool"),
    (["a", 1], TypeError, "token 1 is int: 1"),
    ([1, "a"], TypeError, "token 1 is str: a"),
    (["a", None], TypeError, "token 1 is NoneType"),
    ([b"a", b"b"], TypeError, "token 0 is bytes"),
    (np.array([b"a"]), TypeError, "token 0 is bytes"),
    (3, TypeError, "a list of words or integers expected, got 3"),
    (None, TypeError, "got None"),
    ([1 << 70], ValueError, "outside the range of symbols, 0 to 2147483646"),
]


@pytest.mark.parametrize("tokens, error, message", NO_TEXT, ids=[message for _, _, message in NO_TEXT])
@pytest.mark.parametrize("read", [Vocabulary.of, WORDS.encode, NUMBERS.encode], ids=["of", "words", "integers"])
def test_what_is_no_text_is_refused(read, tokens, error, message):
    tokens = [] if hasattr(tokens, "__next__") else tokens  # an iterator would serve one test only
    with pytest.raises(error, match=f"^text: .*{message}"):
        read(tokens)


OUTSIDE = [  # what is done, error, message
    (lambda: Vocabulary.of([0, 5, 3, 7], size=5), ValueError, "token 1 is 5, outside 0 to 4: .*larger size"),
    (lambda: Vocabulary.of(np.array([0, 3, -2, -9])), ValueError, "token 2 is -2, outside .*number tokens from 0"),
    (lambda: Vocabulary.of([-1], size=4), ValueError, "token 0 is -1, outside 0 to 3"),
    (lambda: Vocabulary.of([1, 2**31 - 1]), ValueError, "token 1 is 2147483647, outside 0 to 2147483646"),
    (lambda: Vocabulary.of(np.array([2**64 - 1], np.uint64)), ValueError, "token 0 is 18446744073709551615, outside"),
    (lambda: NUMBERS.encode([0, 4]), ValueError, "token 1 is 4, outside 0 to 3"),
    (lambda: NUMBERS.encode(np.array([0, -1])), ValueError, "token 1 is -1, outside 0 to 3"),
    (lambda: NUMBERS.encode(["b"]), TypeError, "this vocabulary has integers, but token 0 is 'b'"),
    (lambda: WORDS.encode([7, 8]), TypeError, "this vocabulary has words, but token 0 is 7$"),
    (lambda: WORDS.decode([0, 6, 7]), ValueError, "token 1 is 6, outside 0 to 5"),
    (lambda: WORDS.decode(np.array([0, -1])), ValueError, "token 1 is -1, outside 0 to 5"),
    (lambda: NUMBERS.decode([4]), ValueError, "token 0 is 4, outside 0 to 3"),
    (lambda: WORDS.decode(["a"]), TypeError, "symbols are integers, got 'a'"),
    (lambda: WORDS.decode("a"), TypeError, "got one str of length 1"),
    (lambda: WORDS.decode(3), TypeError, "a list of words or integers expected, got 3"),
    (lambda: WORDS.decode(np.array([1.5])), TypeError, "float"),
    (lambda: WORDS.decode([[1]]), ValueError, "token 0 is list"),
    (lambda: WORDS.decode(np.ones((2, 2), int)), ValueError, r"shape \(2, 2\)"),
    *(
        (lambda size=size: Vocabulary.of(TEXT, size), ValueError, "size must be None or an integer of 1 to")
        for size in (0, -1, 2.0, True, "9", 2**31)
    ),
    (lambda: Vocabulary.of(TEXT, unknown=None), TypeError, "unknown must be a word, got None"),
    (lambda: Vocabulary(["a", "a", "?"], "?"), ValueError, "got 3 words, of which 2 differ, with it"),
    (lambda: Vocabulary(["a", "b"], "?"), ValueError, "include '[?]', got 2 words, of which 2 differ, without it"),
    (lambda: Vocabulary(range(1, 4)), ValueError, r"range\(n\) and unknown=None; got range\(1, 4\)"),
    (lambda: Vocabulary(range(0)), ValueError, "got range"),
    (lambda: Vocabulary(range(3), "?"), ValueError, "got range"),
]


@pytest.mark.parametrize("done, error, message", OUTSIDE, ids=[message for _, _, message in OUTSIDE])
def test_what_does_not_fit_is_refused(done, error, message):
    with pytest.raises(error, match=message):
        done()
