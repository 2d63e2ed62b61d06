"""The Challenge's files: read as published, kept as one checked file, and whatever is wrong is named with file and line."""

import gzip
import io
import lzma
import os
import tarfile

import numpy as np
import pytest
from hypothesis import given, strategies as st

from numbanet.challenge import RadixNet, load_challenge
from numbanet.challenge.tsv import read_entries, read_numbers

NEURONS, LAYERS, COUNT = 64, 5, 40
NETWORK = RadixNet(NEURONS, LAYERS)
IMAGES = np.random.default_rng(0).random((COUNT, NEURONS)) < 0.4


def text(entries):
    return "".join("\t".join(map(str, entry)) + "\n" for entry in entries).encode()


def contents():
    """The content of each file by name, as published."""
    places = np.argwhere(IMAGES.T)
    found = {
        f"sparse-images-{NEURONS}.tsv": text((n + 1, pixel + 1, 1) for pixel, n in places),
        f"neuron{NEURONS}-l{LAYERS}-categories.tsv": b"3\n7\n40\n",
    }
    for number, layer in enumerate(NETWORK, 1):
        found[f"n{NEURONS}-l{number}.tsv"] = text(
            (i + 1, o + 1, "6.250000e-02") for o, own in enumerate(layer.indices) for i in own
        )
    return found


CONTENTS = contents()
IMAGE, LAYER, TRUTH = f"sparse-images-{NEURONS}.tsv", f"n{NEURONS}-l3.tsv", f"neuron{NEURONS}-l{LAYERS}-categories.tsv"


def archive(files):
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        for name, content in files:
            info = tarfile.TarInfo(f"neuron{NEURONS}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return found.getvalue()


def write(folder, ending=".xz", changed=None, members=None):
    """The files in a folder, some of them changed."""
    folder.mkdir(parents=True, exist_ok=True)
    pack = {".xz": lzma.compress, ".gz": gzip.compress, "": bytes}[ending]
    all_of_them = {**CONTENTS, **(changed or {})}
    layers = [(name, all_of_them[name]) for name in all_of_them if name.startswith("n6")]
    members = layers[::-1] if members is None else members(layers)
    for name in (IMAGE, TRUTH):
        (folder / (name + (ending if name == IMAGE else ""))).write_bytes(
            pack(all_of_them[name]) if name == IMAGE else all_of_them[name]
        )
    (folder / f"neuron{NEURONS}-l1-l{LAYERS}.tar{ending}").write_bytes(pack(archive(members)))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setattr("numbanet.challenge.files.cache_folder", lambda: folder)
    return folder / "graphchallenge"


def load(folder):
    return load_challenge(NEURONS, LAYERS, folder)


def check(data):
    images = np.zeros((COUNT, NEURONS), bool)
    images[np.repeat(np.arange(COUNT), np.diff(data.starts)), data.columns] = data.values == 1
    assert np.array_equal(images, IMAGES) and data.truth.tolist() == [2, 6, 39] and len(data.network) == LAYERS
    for ours, theirs in zip(data.network, NETWORK):
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("ending", [".xz", ".gz", ""])
def test_files_are_read(tmp_path, ending):
    write(tmp_path, ending)
    check(load(tmp_path))


def test_a_folder_of_layers_serves_and_categories_may_be_missing(tmp_path):
    write(tmp_path)
    (tmp_path / f"neuron{NEURONS}-l1-l{LAYERS}.tar.xz").unlink()
    (tmp_path / f"neuron{NEURONS}").mkdir()
    for name, content in CONTENTS.items():
        if name.startswith("n6"):
            (tmp_path / f"neuron{NEURONS}" / name).write_bytes(content)
    check(load(tmp_path))
    (tmp_path / TRUTH).unlink()
    assert load(tmp_path).truth is None
    (tmp_path / f"neuron{NEURONS}" / LAYER).unlink()
    with pytest.raises(ValueError, match=f"5 layers expected, got 4.*{LAYER}"):
        load(tmp_path)


# --- the checked file -------------------------------------------------------------------------------------------------
def test_what_was_read_is_kept_and_what_is_damaged_is_made_anew(tmp_path, cache, monkeypatch):
    write(tmp_path)
    load(tmp_path)
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    reads = []

    def counted(*arguments, original=read_entries):
        reads.append(arguments[1])
        return original(*arguments)

    monkeypatch.setattr("numbanet.challenge.files.read_entries", counted)
    check(load(tmp_path))
    assert not reads
    changed = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in (0, 9000)]
    for damaged in (whole[:-1], b"", whole[:64], *changed):
        kept.write_bytes(damaged)
        check(load(tmp_path))
        assert len(reads) == 1 + LAYERS and kept.read_bytes() == whole
        reads.clear()
    os.utime(tmp_path / TRUTH, (1, 1))  # another file
    check(load(tmp_path))
    assert reads and len(list(cache.iterdir())) == 1


def test_nothing_is_kept_of_what_is_wrong_and_a_cache_is_not_needed(tmp_path, cache, monkeypatch):
    write(tmp_path, changed={LAYER: CONTENTS[LAYER][:-3]})
    with pytest.raises(ValueError, match="tsv"):
        load(tmp_path)
    assert not cache.exists()
    (tmp_path / "a file").write_bytes(b"")
    monkeypatch.setattr("numbanet.challenge.files.cache_folder", lambda: tmp_path / "a file")
    write(tmp_path)
    check(load(tmp_path))


# --- what is wrong ----------------------------------------------------------------------------------------------------
def line(content, number, new):
    """The content with another line of this number, from 1 on."""
    lines = content.splitlines(keepends=True)
    lines[number - 1 : number] = [new.encode()]
    return b"".join(lines)


ONE = CONTENTS[LAYER].splitlines()[99].decode().split("\t")  # line 100
WRONG = [  # what is wrong, its file, its content, what the message says
    ("truncated in a line", LAYER, CONTENTS[LAYER][:-5], "truncated: the last line"),
    ("truncated at a line", LAYER, b"".join(CONTENTS[LAYER].splitlines(keepends=True)[:-1]), "as many inputs for each of 64"),
    ("empty", LAYER, b"", "got an empty file"),
    ("no number", LAYER, line(CONTENTS[LAYER], 100, "a\t4\t0.1\n"), "line 100: a row from 1 to 64 expected, got b'a'"),
    ("negative", LAYER, line(CONTENTS[LAYER], 100, "-1\t4\t0.1\n"), "line 100: a row from 1 to 64"),
    ("0", LAYER, line(CONTENTS[LAYER], 100, f"{ONE[0]}\t0\t0.1\n"), "line 100: a column from 1 to 64 expected, got b'0'"),
    ("too large", LAYER, line(CONTENTS[LAYER], 100, f"65\t{ONE[1]}\t0.1\n"), "line 100: a row from 1 to 64"),
    ("far too large", LAYER, line(CONTENTS[LAYER], 100, f"{2**64 + 5}\t{ONE[1]}\t0.1\n"), "line 100: a row from 1 to 64"),
    ("two fields", LAYER, line(CONTENTS[LAYER], 100, "3\t4\n"), "line 100: three fields"),
    ("four fields", LAYER, line(CONTENTS[LAYER], 100, "3\t4\t1\t2\n"), "line 100: three fields"),
    ("spaces", LAYER, line(CONTENTS[LAYER], 100, "3 4 1\n"), "line 100: three fields.*got b'3 4 1'"),
    ("two fields, then four", LAYER, line(line(CONTENTS[LAYER], 100, "3\t4\n"), 101, "3\t4\t1\t2\n"), "line 100: three"),
    ("blank", LAYER, line(CONTENTS[LAYER], 100, "\n"), "line 100: three fields"),
    ("NaN", LAYER, line(CONTENTS[LAYER], 100, f"{ONE[0]}\t{ONE[1]}\tnan\n"), "line 100: a finite value expected, got b'nan'"),
    ("infinite", LAYER, line(CONTENTS[LAYER], 100, f"{ONE[0]}\t{ONE[1]}\t1e39\n"), "line 100: a finite value expected"),
    ("text for a value", LAYER, line(CONTENTS[LAYER], 100, f"{ONE[0]}\t{ONE[1]}\tone\n"), "line 100: a finite value.*b'one'"),
    *(
        (
            f"a value like {text!r}",
            LAYER,
            line(CONTENTS[LAYER], 100, f"{ONE[0]}\t{ONE[1]}\t{text}\n"),
            "line 100: a finite value",
        )
        for text in ("1_0", " 1", "1 ", "1\0", "1\0" + "0", ".", "")
    ),
    ("all like 1_0", IMAGE, b"1\t1\t1_0\n2\t1\t1_0\n", "line 1: a finite value expected, got b'1_0'"),
    ("long", LAYER, line(CONTENTS[LAYER], 100, f"{ONE[0]}\t{ONE[1]}\t0.{'1' * 99}\n"), "line 100: a value expected, got 101"),
    (
        "twice",
        LAYER,
        line(CONTENTS[LAYER], 100, "\t".join(ONE) + "\n" + "\t".join(ONE) + "\n"),
        f"line 101: the entry {ONE[0]}, {ONE[1]} occurs twice",
    ),
    ("unsorted", LAYER, line(CONTENTS[LAYER], 100, "1\t1\t0.0625\n"), "line 100: the entry 1, 1 is out of order"),
    ("one input less", LAYER, line(CONTENTS[LAYER], 100, ""), "as many inputs for each of 64 neurons"),
    ("images unsorted", IMAGE, b"1\t2\t1\n1\t1\t1\n", "line 2: the entry 1, 1 is out of order"),
    ("images out of range", IMAGE, b"1\t65\t1\n", "line 1: a column from 1 to 64 expected, got b'65'"),
    ("categories unsorted", TRUTH, b"3\n2\n", "line 2: numbers must increase"),
    ("categories no numbers", TRUTH, b"3\nx\n", "line 2: a number from 1 to 60000 expected, got b'x'"),
]


@pytest.mark.parametrize("what, name, content, message", WRONG, ids=[case[0] for case in WRONG])
def test_what_is_wrong_is_named_with_its_line(tmp_path, cache, what, name, content, message):
    write(tmp_path, changed={name: content})
    with pytest.raises(ValueError, match=message) as refused:
        load(tmp_path)
    assert name in str(refused.value) and str(tmp_path) in str(refused.value) and not cache.exists()


ARCHIVES = [
    ("a layer too few", lambda layers: layers[:-1], "5 layers expected, got 4; the first one missing is n64-l5.tsv"),
    ("none", lambda layers: [], "5 layers expected, got 0"),
    ("a layer twice", lambda layers: [*layers, layers[2]], "n64-l3.tsv: layer 3 occurs twice"),
]


@pytest.mark.parametrize("what, members, message", ARCHIVES, ids=[case[0] for case in ARCHIVES])
def test_a_wrong_number_of_layers_is_refused(tmp_path, what, members, message):
    write(tmp_path, members=members)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("name", [f"{IMAGE}", f"neuron{NEURONS}-l1-l{LAYERS}.tar"])
@pytest.mark.parametrize("ending", [".xz", ".gz"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-20],
        lambda content: content[:200] + b"????" + content[204:],
        lambda content: b"text",
    ],
    ids=["half", "without its end", "changed", "another"],
)
def test_a_damaged_file_is_named(tmp_path, cache, name, ending, damage):
    write(tmp_path, ending)
    path = tmp_path / (name + ending)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=path.name):
        load(tmp_path)
    assert not cache.exists()


def test_an_archive_that_is_cut_off_is_named(tmp_path, cache):
    write(tmp_path, "")
    path = tmp_path / f"neuron{NEURONS}-l1-l{LAYERS}.tar"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])
    with pytest.raises(ValueError, match=path.name):
        load(tmp_path)


def test_categories_of_images_that_do_not_exist_are_refused(tmp_path, cache):
    write(tmp_path, changed={TRUTH: b"3\n50000\n"})
    with pytest.raises(ValueError, match=r"categories.tsv: image 50000 is listed, and .* has \d+ images"):
        load(tmp_path)


def test_a_missing_file_is_named_with_the_way_out(tmp_path):
    for name, message in ((f"{IMAGE}.xz", IMAGE), (f"neuron{NEURONS}-l1-l{LAYERS}.tar.xz", "neuron64-l1-l5.tar")):
        write(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"{message} .*expected in {tmp_path}.*data='generated'"):
            load(tmp_path)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, unique=True),
    st.lists(st.floats(-1e9, 1e9, width=32), min_size=1),
    st.integers(3, 40),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_entries_are_read_in_pieces_of_any_size(places, values, size, end):
    places = sorted(places, key=lambda place: place[::-1])
    values = [values[n % len(values)] for n in range(len(places))]
    content = "".join(f"{row}\t{column}\t{value!r}{end}" for (row, column), value in zip(places, values)).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numbanet.challenge.tsv.PIECE", max(size, max(map(len, content.splitlines(True)))))
        rows, columns, found = read_entries(io.BytesIO(content), "x", (9, 7))
    assert list(zip(rows + 1, columns + 1)) == places and np.array_equal(found, np.float32(values))


@given(st.lists(st.integers(1, 99), unique=True), st.integers(3, 40), st.sampled_from(["\n", "\r\n"]))
def test_any_numbers_are_read_in_pieces_of_any_size(numbers, size, end):
    content = "".join(f"{number}{end}" for number in sorted(numbers)).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numbanet.challenge.tsv.PIECE", max(size, 4))
        assert (read_numbers(io.BytesIO(content), "x", 99) + 1).tolist() == sorted(numbers)


@pytest.mark.parametrize("content, line", [(b"1\r\n\r\n", 2), (b"\r\n", 1), (b"1\r\r\n", 1), (b"1\r\n2\rx\n", 2)])
def test_other_returns_than_of_line_ends_are_refused(content, line):
    with pytest.raises(ValueError, match=f"x, line {line}: a number from 1 to 9 expected"):
        read_numbers(io.BytesIO(content), "x", 9)
