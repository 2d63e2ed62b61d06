"""Find a data file, or download it, and check its SHA-256 before a byte of it is used."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

_TIMEOUT = 30  # seconds without a byte before the next mirror is tried


# --- where data files are ---------------------------------------------------------------------------------------------
def cache_folder() -> Path:
    """The folder for downloads: numbanet in the user's cache folder, by the custom of each operating system."""
    if sys.platform == "win32":
        variable, usual = "LOCALAPPDATA", Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        variable, usual = "XDG_CACHE_HOME", Path.home() / "Library" / "Caches"
    else:
        variable, usual = "XDG_CACHE_HOME", Path.home() / ".cache"
    return Path(os.environ.get(variable) or usual) / "numbanet"


def search_folders(name: str, folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders in which the data set `name` is looked for, in this order; a download goes to the last one.

    A `folder` that the user names is the only one. NUMBANET_DATA is read, never written: it may be shared.
    """
    if folder is not None:
        return [Path(folder).expanduser()]
    shared = os.environ.get("NUMBANET_DATA")
    return ([Path(shared).expanduser() / name] if shared else []) + [cache_folder() / name]


def find_file(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first file of one of `names` in the first of `folders` that has any."""
    return next((path for path in (folder / name for folder in folders for name in names) if path.is_file()), None)


# --- find, download, check --------------------------------------------------------------------------------------------
def read_data_file(
    name: str, folders: Sequence[Path], mirrors: Sequence[str], digests: Mapping[str, str], download: bool = True
) -> tuple[bytes, Path]:
    """The content of `name`, decompressed, and the path it was read from: `name`.gz or `name` in one of `folders`.

    Parameters
    ----------
    name : str
        File name without `.gz`.
    folders : sequence of Path
        Searched in order; the first file found is the one used. A download goes to the last one, as `name`.gz.
    mirrors : sequence of str
        URLs ending in "/", tried in order.
    digests : mapping of file name to SHA-256
        One for `name`.gz, and one for `name` if that serves as well, in hexadecimal.
    download : bool
        Whether a missing file may be downloaded.

    Raises
    ------
    FileNotFoundError
        If the file is in none of the folders and is not, or cannot be, downloaded.
    ValueError
        If a file found has another SHA-256, or cannot be decompressed.
    """
    files = [file for file in (f"{name}.gz", name) if file in digests]
    path = find_file(folders, files)
    if path is None:
        searched = " or ".join(str(folder) for folder in folders)
        if not download:
            raise FileNotFoundError(
                f"{' or '.join(files)} is missing: it was expected in {searched}. Put it there, "
                f"or allow the download, or set NUMBANET_DATA to a folder with {folders[-1].name}/ in it"
            )
        try:
            path = download_file(f"{name}.gz", folders[-1], mirrors, digests[f"{name}.gz"])
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{' or '.join(files)} is not in {searched}, and {error}") from error
    content = path.read_bytes()
    check_digest(content, digests[path.name], path)
    return (decompress(content, path) if path.suffix == ".gz" else content), path


def read_file(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in `.gz`."""
    content = path.read_bytes()
    return decompress(content, path) if path.suffix == ".gz" else content


def check_digest(content: bytes, sha256: str, source: object) -> None:
    """A ValueError naming `source` if its content has another SHA-256."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(
            f"{source}: SHA-256 {sha256} expected, found {found} ({len(content)} bytes): "
            "truncated, corrupt or not the original. Delete it, and it is downloaded again; "
            "or replace it with the original"
        )


def decompress(content: bytes, source: object) -> bytes:
    """gzip bytes -> the bytes inside; a ValueError naming `source` if they are truncated or corrupt."""
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(
            f"{source}: a complete gzip file expected, found {len(content)} bytes that do not decompress: {error}"
        ) from error


def download_file(file: str, folder: Path, mirrors: Sequence[str], sha256: str) -> Path:
    """Download `file` into `folder` from the first mirror that has it, whole and with the right SHA-256.

    It gets its final name only after the check, by a rename within `folder`: whatever interrupts the download
    (an error, Ctrl-C, a second process doing the same), no partial file is ever found under that name.

    Raises
    ------
    FileNotFoundError
        If no mirror delivers; it names every URL tried, and why each failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    # A temporary folder rather than a temporary file: it cleans up after Ctrl-C too, and the file in it
    # has the user's ordinary permissions, where mkstemp would make it unreadable to others.
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as partial:
        for url in (mirror + file for mirror in mirrors):
            print(f"numbanet: downloading {url} to {folder}", file=sys.stderr)
            try:
                _save(url, Path(partial, file), sha256)
            except (OSError, ValueError) as error:
                failures.append(f"\n  {url}: {type(error).__name__}: {error}")
                continue
            os.replace(Path(partial, file), folder / file)
            return folder / file
    raise FileNotFoundError(
        f"{file} could not be downloaded to {folder}. Tried:{''.join(failures)}\n"
        f"Without a network: put all files of the data set into {folder}, or set NUMBANET_DATA to a "
        f"folder with {folder.name}/ in it"
    )


def write_file(path: Path, content: bytes) -> None:
    """Write a file and the folder it is in: whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".write-", dir=path.parent) as partial:
        Path(partial, path.name).write_bytes(content)
        os.replace(Path(partial, path.name), path)


def _save(url: str, path: Path, sha256: str) -> None:
    """Write what `url` delivers to `path`; an OSError if it breaks off, a ValueError if its SHA-256 is another one."""
    import http.client  # these two load email and ssl: only a download should pay for them
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, path.open("wb") as target:
            shutil.copyfileobj(response, target)
    except http.client.HTTPException as error:
        raise ConnectionError(f"broke off: {error!r}") from error
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"SHA-256 {sha256} expected, received {found} ({len(content)} bytes)")
