"""Cache files, such as compiled code: each is written completely or not at all."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .interrupt import deferred

VERSIONS = 8  # number of folders that are kept, each for one version of the sources


def cache_folder() -> Path:
    """Return the folder of this user's caches; raise RuntimeError if there is no home folder."""
    from numba.misc.appdirs import AppDirs  # Numba chooses its cache folder in the same way

    return Path(AppDirs("numbanet", appauthor=False).user_cache_dir)


def _folder(name: str) -> Path:
    """Return the folder `name` in NUMBA_CACHE_DIR, else in the cache folder; RuntimeError if there is no home folder."""
    return Path(os.path.abspath(os.environ.get("NUMBA_CACHE_DIR") or cache_folder()), name)


def version(name: str, digest: str) -> Path | None:
    """Make and return a folder for files that belong to the sources with this digest (hexadecimal); None if it is not writable.

    Its path is name/digest, in NUMBA_CACHE_DIR or, if that is not set, in the cache folder. When a new folder is made, all but
    the `VERSIONS` most recently used folders are deleted.
    """
    try:
        return _made(_folder(name), digest)
    except RuntimeError:
        return None


@functools.cache
@deferred  # signals wait, because a time-out in a signal handler may be raised as OSError
def _made(folder: Path, digest: str) -> Path | None:
    path = folder / digest
    try:
        new = not path.is_dir()
        path.mkdir(parents=True, exist_ok=True)
        os.utime(path)  # the modification time says when the folder was last used
    except OSError:
        return None
    if new:
        with contextlib.suppress(OSError):  # another process may have deleted it
            others = [other for other in folder.iterdir() if _is_hexadecimal(other.name)]
            for old in sorted(others, key=lambda other: other.stat().st_mtime_ns, reverse=True)[VERSIONS:]:
                shutil.rmtree(old, ignore_errors=True)
    return path


def _is_hexadecimal(name: str) -> bool:
    return set(name) <= set("0123456789abcdef")


@deferred
def write(path: Path, content: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(number, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@deferred  # signals wait, because a time-out in a signal handler may be raised as OSError
def cached(name: object, decides: object, make: Callable[[], str]) -> str:
    """Return the text make(), which is cached in a file; it is made again if `decides` differs from the value in the file.

    Each name has one file, in NUMBA_CACHE_DIR or else in the cache folder. It begins with a digest of `decides` and of the
    text: a damaged or outdated file is rewritten. If no file can be written, `make` runs each time.
    """
    try:
        path = _folder("texts") / _digest(name)
    except RuntimeError:
        return make()
    with contextlib.suppress(OSError):
        said, _, content = path.read_bytes().partition(b"\n")
        if said == _digest(decides, content).encode():
            return content.decode()
    text = make()
    with contextlib.suppress(OSError):
        write(path, f"{_digest(decides, text.encode())}\n{text}".encode())
    return text


def _digest(what: object, content: bytes = b"") -> str:
    return hashlib.sha256(repr(what).encode() + content).hexdigest()
