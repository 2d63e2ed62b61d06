"""Texts that are kept on disk: found again as long as what decides is the same, and never wrong."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from numbanet_kernels.families import elementwise
from numbanet_kernels.runtime import declare, files


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "texts"


class Made:
    """Texts, and how many were made."""

    count = 0

    def __call__(self):
        self.count += 1
        return f"text {self.count}\nof 2 lines, ünïcode\r\n"


def test_a_text_is_made_once(folder):
    made = Made()
    assert files.cached("a", 1, made) == files.cached("a", 1, made) == "text 1\nof 2 lines, ünïcode\r\n"
    assert files.cached("b", 1, made).startswith("text 2") and files.cached("a", 1, made).startswith("text 1")
    assert len(list(folder.iterdir())) == 2


def test_what_else_decides_has_the_file_anew(folder):
    made = Made()
    for decides, count in (((1, "x"), 1), ((1, "y"), 2), ((1, "y"), 2), ((1, "x"), 3)):
        assert files.cached("a", decides, made).startswith(f"text {count}\n")
    assert len(list(folder.iterdir())) == 1  # old ones do not pile up


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:70],
        lambda content: content.replace(b"text", b"tixt"),
        lambda content: b"\xff" + content,
        lambda content: content[:64] + content[65:],
    ],
    ids=["empty", "cut", "head only", "changed", "no text", "no end of the head"],
)
def test_a_damaged_file_is_written_anew(folder, damage):
    made = Made()
    files.cached("a", 1, made)
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert [files.cached("a", 1, made)[:6] for _ in range(2)] == ["text 2"] * 2


def test_where_nothing_can_be_written_it_is_made_each_time(folder, monkeypatch):
    made = Made()
    folder.parent.write_text("a file where the folder should be")
    assert [files.cached("a", 1, made)[:6] for _ in range(2)] == ["text 1", "text 2"]

    def homeless():
        raise RuntimeError("could not determine home directory")

    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(files, "cache_folder", homeless)
    assert files.cached("a", 1, made).startswith("text 3")


def test_a_disk_that_is_full_leaves_nothing_half_done(folder, monkeypatch):
    made = Made()

    def full(*paths):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    assert [files.cached("a", 1, made)[:6] for _ in range(2)] == ["text 1", "text 2"] and not list(folder.iterdir())


def test_an_error_is_not_kept(folder):
    with pytest.raises(ZeroDivisionError):
        files.cached("a", 1, lambda: 1 / 0)
    assert files.cached("a", 1, Made()).startswith("text 1")


BUSY = """
import sys
from numbanet_kernels.runtime import files

def made(i):
    return f"{i} by {sys.argv[1]} " * 50_000

for turn in range(300):
    i = turn % 3
    text = files.cached("a", i, lambda: made(i))
    words = text.split()
    assert text in (f"{i} by {who} " * 50_000 for who in "12"), text[:100]
"""


@pytest.mark.slow
def test_two_processes_at_once_read_and_write_whole_texts(folder):
    """Which decide differently on the same file, so that each writes what the other one reads."""
    workers = [subprocess.Popen([sys.executable, "-c", BUSY, who]) for who in "12"]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert len(list(folder.iterdir())) == 1


# --- PTX --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def compiled(monkeypatch):
    """What is compiled, in place of Numba: (function, compute capability, options)."""
    calls = []

    def compile_ptx(function, signature, cc, **options):
        calls.append((function.__name__, cc, options))
        return f"{function.__name__} {signature} {cc} {options}", None

    monkeypatch.setattr(declare, "cuda", SimpleNamespace(compile_ptx=compile_ptx))
    monkeypatch.setattr(declare, "_compilers", lambda: "these")
    return calls


def test_ptx_is_compiled_once_for_a_card(compiled):
    first, second = elementwise._unary_kernels()[:2]
    texts = [kernel.ptx(card) for kernel in (first, second) for card in ((8, 0), (9, 0))]
    assert len(compiled) == 4 and texts == [kernel.ptx(card) for kernel in (first, second) for card in ((8, 0), (9, 0))]
    assert len(compiled) == 4


@pytest.mark.parametrize("change", ["sources", "compilers", "options", "signature"])
def test_ptx_is_compiled_anew_when_something_has_changed(compiled, monkeypatch, tmp_path, change):
    kernel = elementwise._unary_kernels()[0]
    kernel.ptx((8, 0))
    if change == "sources":
        copy = shutil.copytree(declare.PACKAGE, tmp_path / "numbanet_kernels", ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.setattr(declare, "PACKAGE", copy)
        kernel.ptx((8, 0))
        assert len(compiled) == 1  # a copy is the same
        declare.digest.cache_clear()
        with (copy / "layouts" / "tiles.py").open("a") as file:
            file.write("# changed\n")
    elif change == "compilers":
        monkeypatch.setattr(declare, "_compilers", lambda: "others")
    else:
        monkeypatch.setattr(kernel, change, {"fastmath": True} if change == "options" else "void(f8[::1], f8[::1])")
    kernel.ptx((8, 0))
    kernel.ptx((8, 0))
    assert len(compiled) == 2


def test_kernels_from_elsewhere_are_not_kept(compiled, folder):
    """Nobody knows what else decides on them."""

    @declare.kernels("own")
    def own():
        @declare.kernel("void(i4)")
        def kernel(n):
            pass

        return kernel

    declare._FACTORIES.remove(own)
    for kernel in (own(), declare.kernel("void(i4)")(lambda n: None)):
        kernel.ptx((8, 0))
        kernel.ptx((8, 0))
    assert len(compiled) == 4 and not folder.exists()


def test_every_kernel_has_a_name_of_its_own_that_is_the_same_in_each_process():
    names = [kernel.made_by for kernel in declare.all_kernels()]
    assert len(set(map(repr, names))) == len(names) > 20 and " at 0x" not in repr(names)


def test_compilers_are_told_apart_by_their_versions_and_files():
    pytest.importorskip("numba.cuda")
    assert repr(declare._compilers()) and sys.version in declare._compilers()
