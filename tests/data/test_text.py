"""Text: words and ends of lines as published, and what is no text, or not the original, is refused by name."""

import gzip
import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from numbanet.datasets.wikitext2 import WIKITEXT2_DIGESTS, load_texts
from numbanet.datasets.words import parse_words

from numbanet.datasets import load_ptb, load_wikitext2

DATA = os.environ.get("NUMBANET_DATA")

LINES = {"train": " \n = Šenjō = \n the cat <unk> the cat . \n", "valid": "the cat\n", "test": " = cat = \n a"}
WORDS = (
    ["<eos>", "=", "Šenjō", "=", "<eos>", "the", "cat", "<unk>", "the", "cat", ".", "<eos>"],
    ["the", "cat", "<eos>"],
    ["=", "cat", "=", "<eos>", "a", "<eos>"],
)
DIGESTS = {split: hashlib.sha256(text.encode()).hexdigest() for split, text in LINES.items()}

NAMES = {  # file names that serve
    "wikitext2, original": "wiki.{}.tokens",
    "wikitext2, compressed": "wiki.{}.tokens.gz",
    "wikitext2, of PyTorch": "{}.txt",
    "ptb": "ptb.{}.txt",
    "ptb, compressed": "ptb.{}.txt.gz",
}


def pack(name, content):
    return gzip.compress(content) if name.endswith(".gz") else content


def write(folder, pattern, **changed):
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in LINES.items():
        name = pattern.format(split)
        (folder / name).write_bytes(changed.get(split, pack(name, text.encode())))


def load(pattern, folder):
    return load_ptb(folder) if "ptb" in pattern else load_texts([folder], (), DIGESTS, download=False)


# --- words ------------------------------------------------------------------------------------------------------------
@given(
    st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1)), min_size=1).filter(
        any
    ),
    st.sampled_from([" ", "\t", "  "]),
    st.sampled_from(["\n", "\r\n", " \n"]),
)
@pytest.mark.slow
def test_any_words_are_found(lines, between, end):
    content = "".join(between.join(line) + end for line in lines).encode()
    assert parse_words(content, "x", {}) == [word for line in lines for word in [*line, "<eos>"]]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_words_or_refused(content):
    try:
        words = parse_words(content, "file-name", {})
    except ValueError as error:
        assert str(error).startswith("file-name: ")
    else:
        assert words[-1] == "<eos>" and set(words) > {"<eos>"} and all(type(word) is str and word for word in words)


@pytest.mark.parametrize("pattern", NAMES.values(), ids=NAMES)
def test_small_texts_load_and_equal_words_are_one_object(tmp_path, pattern):
    write(tmp_path, pattern)
    texts = load(pattern, tmp_path)
    assert texts == WORDS
    words = sum(texts, [])
    assert len(set(map(id, words))) == len(set(words)) == 8


# --- what is refused --------------------------------------------------------------------------------------------------
DAMAGED = [  # what is wrong, the content, what the message says
    ("empty", b"", "0 bytes without one"),
    ("blank", b" \n\n \n", "5 bytes without one"),
    ("white space", "\u00a0\n\u2003".encode(), "6 bytes without one"),
    ("binary", b"the cat\n\x00\x01", "text in UTF-8 expected, found 10 bytes, of which the first 0 is at 8"),
    ("UTF-16", "the cat".encode("utf-16"), "text in UTF-8 expected"),
    ("Latin-1", "the cat\nČapek's café\n".replace("Č", "C").encode("latin-1"), "found line 2: 'utf-8' codec.*0xe9"),
    ("gzip without its ending", gzip.compress(b"the cat\n" * 9), "text in UTF-8 expected"),
]


@pytest.mark.parametrize("name", ["ptb.valid.txt", "ptb.valid.txt.gz"])
@pytest.mark.parametrize("what, content, message", DAMAGED, ids=[case[0] for case in DAMAGED])
def test_what_is_no_text_is_refused_by_name(tmp_path, name, what, content, message):
    write(tmp_path, name.replace("valid", "{}"), valid=pack(name, content))
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / name))}: .*{message}"):
        load_ptb(tmp_path)


TRUNCATED = [
    ("wiki.{}.tokens", lambda content: content[:-1], "SHA-256 .* expected, found .*truncated, corrupt or not"),
    ("wiki.{}.tokens", lambda content: content.replace(b"\n", b"\r\n"), "SHA-256 .* expected"),
    ("{}.txt", lambda content: b"", r"SHA-256 .* expected, found .*\(0 bytes\)"),
    ("wiki.{}.tokens.gz", lambda content: content[:-3], "a complete gzip file expected"),
    ("wiki.{}.tokens.gz", lambda content: gzip.compress(b"the cat"), r"SHA-256 .* expected, found .*\(7 bytes\)"),
    ("wiki.{}.tokens.gz", lambda content: LINES["test"].encode(), "a complete gzip file expected"),
    ("ptb.{}.txt.gz", lambda content: content[:-3], "a complete gzip file expected"),
]


@pytest.mark.parametrize("pattern, change, message", TRUNCATED)
def test_what_is_not_the_original_is_refused_by_name(tmp_path, pattern, change, message):
    name = pattern.format("test")
    write(tmp_path, pattern, test=change(pack(name, LINES["test"].encode())))
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / name))}: .*{message}"):
        load(pattern, tmp_path)


def test_only_the_original_text_is_wikitext2(tmp_path):
    write(tmp_path, "wiki.{}.tokens")
    with pytest.raises(ValueError, match=f"wiki.train.tokens: SHA-256 {WIKITEXT2_DIGESTS['train']} expected"):
        load_wikitext2(tmp_path)


@pytest.mark.parametrize(
    "load, pattern, names",
    [
        (
            lambda folder: load_wikitext2(folder, download=False),
            "wiki.{}.tokens",
            ["wiki.test.tokens.gz", "wiki.test.tokens", "test.txt"],
        ),
        (load_ptb, "ptb.{}.txt", ["ptb.test.txt.gz", "ptb.test.txt", "licence"]),
    ],
    ids=["wikitext2", "ptb"],
)
def test_a_missing_file_is_named_with_its_folder_and_the_way_out(tmp_path, monkeypatch, load, pattern, names):
    monkeypatch.setattr("numbanet.datasets.wikitext2.WIKITEXT2_DIGESTS", DIGESTS)
    write(tmp_path, pattern)
    (tmp_path / pattern.format("test")).unlink()
    with pytest.raises(FileNotFoundError) as refused:
        load(tmp_path)
    assert all(text in str(refused.value) for text in [*names, str(tmp_path), "NUMBANET_DATA"])


# --- where files are looked for, and downloads ------------------------------------------------------------------------
@pytest.mark.parametrize("name, pattern", [("wikitext2", "wiki.{}.tokens"), ("ptb", "ptb.{}.txt")])
def test_by_default_shared_data_come_before_the_cache(tmp_path, monkeypatch, name, pattern):
    monkeypatch.setattr("numbanet.datasets.wikitext2.WIKITEXT2_DIGESTS", DIGESTS)
    monkeypatch.setattr("numbanet.datasets.files.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("NUMBANET_DATA", str(tmp_path / "shared"))
    default = load_ptb if name == "ptb" else lambda: load_wikitext2(download=False)
    write(tmp_path / "cache" / name, pattern)
    assert default() == WORDS
    write(tmp_path / "shared" / name, pattern, valid=b"")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "shared" / name / pattern.format("valid")))):
        default()


def test_what_is_missing_is_downloaded_and_found_again(tmp_path, capsys):
    """The first mirror has nothing, the second another text, the third the right one."""
    write(tmp_path / "wrong", "{}.txt", train=b"a", valid=b"b")
    write(tmp_path / "good", "{}.txt")
    mirrors = [(tmp_path / name).as_uri() + "/" for name in ("none", "wrong", "good")]
    write(tmp_path / "cache", "wiki.{}.tokens.gz")
    (tmp_path / "cache/wiki.train.tokens.gz").unlink()
    for sources in (mirrors, []):
        assert load_texts([tmp_path / "cache"], sources, DIGESTS, download=bool(sources)) == WORDS
    assert capsys.readouterr().err.count("downloading") == 3
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [
        "train.txt",
        "wiki.test.tokens.gz",
        "wiki.valid.tokens.gz",
    ]


def test_a_download_that_fails_names_the_files_and_every_url(tmp_path):
    write(tmp_path / "wrong", "{}.txt", train=b"a")
    mirrors = [(tmp_path / name).as_uri() + "/" for name in ("none", "wrong")]
    with pytest.raises(FileNotFoundError) as refused:
        load_texts([tmp_path / "cache"], mirrors, DIGESTS, download=True)
    assert all(text in str(refused.value) for text in ["wiki.train.tokens.gz", *(f"{url}train.txt" for url in mirrors)])
    assert list((tmp_path / "cache").iterdir()) == []


# --- the data themselves ----------------------------------------------------------------------------------------------
@pytest.mark.skipif(DATA is None or not Path(DATA, "wikitext2").is_dir(), reason="there is no $NUMBANET_DATA/wikitext2")
def test_real_data():
    texts = load_wikitext2(download=False)
    assert list(map(len, texts)) == [2_088_628, 217_646, 245_569]  # as published
    train, valid, test = map(set, texts)
    assert len(train) == 33_278 and valid | test < train
    assert [text.count("<eos>") for text in texts] == [36_718, 3_760, 4_358]
    assert " ".join(texts[0][:12]) == "<eos> = Valkyria Chronicles III = <eos> <eos> Senjō no Valkyria 3"
    assert len({id(word) for text in texts for word in text}) == len(train)
