"""Files that outlive a process, such as compiled code: each is written as a whole or not at all."""
from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from .interrupt import deferred


def cache_folder() -> Path:
    """The folder of this user's caches; RuntimeError where there is no home folder."""
    from numba.misc.appdirs import AppDirs  # Numba keeps compiled kernels by the same customs

    return Path(AppDirs("numbanet", appauthor=False).user_cache_dir)


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


@deferred  # a time-out is an OSError, too
def kept(name: object, decides: object, make: Callable[[], str]) -> str:
    """make(), unless a file has what it gave before for the same name and for what else decides on it.

    A name has one file, in NUMBA_CACHE_DIR or else in the cache folder. It begins with a digest of what decides and of the
    text: a file that is damaged, or of something else, is written anew. Where none can be written, `make` does each time.
    """
    try:
        folder = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder()) / "texts"
    except RuntimeError:
        return make()
    path = folder / _digest(name)
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
