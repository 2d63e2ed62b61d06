"""Files: find a data file, or download it, and check its SHA-256 before it is parsed."""

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


# --- the folders of data files ----------------------------------------------------------------------------------------
def cache_folder() -> Path:
    """The folder for downloads: `numbanet` in the user's cache folder, which depends on the operating system."""
    if sys.platform == "win32":
        variable, usual = "LOCALAPPDATA", Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        variable, usual = "XDG_CACHE_HOME", Path.home() / "Library" / "Caches"
    else:
        variable, usual = "XDG_CACHE_HOME", Path.home() / ".cache"
    return Path(os.environ.get(variable) or usual) / "numbanet"


def search_folders(name: str, folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders in which to search for the data set `name`, in order; a download goes to the last one.

    If the user names a `folder`, it is the only one. Else `$NUMBANET_DATA/name`, if set, and the cache. Nothing is written to
    NUMBANET_DATA, because several users may share it.
    """
    if folder is not None:
        return [Path(folder).expanduser()]
    shared = os.environ.get("NUMBANET_DATA")
    return ([Path(shared).expanduser() / name] if shared else []) + [cache_folder() / name]


def find_file(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The path of the first file found: folders in order, and names in order in each; None if there is none."""
    return next((path for path in (folder / name for folder in folders for name in names) if path.is_file()), None)


# --- find, download, check --------------------------------------------------------------------------------------------
def read_data_file(
    name: str, folders: Sequence[Path], mirrors: Sequence[str], digests: Mapping[str, str], download: bool = True
) -> tuple[bytes, Path]:
    """Find or download `name`.gz or `name`, and check its SHA-256; returns (the decompressed content, the path of the file).

    Parameters
    ----------
    name : str
        File name without `.gz`.
    folders : sequence of Path
        They are searched in order, and the first file found is used. A download goes to the last one, as `name`.gz.
    mirrors : sequence of str
        URLs ending in "/", tried in order.
    digests : mapping of file name to SHA-256
        In hexadecimal: one for `name`.gz and, if the decompressed file is accepted too, one for `name`.
    download : bool
        If True, a missing file is downloaded.

    Raises
    ------
    FileNotFoundError
        If no folder has the file, and `download` is False or no mirror delivers it.
    ValueError
        If the file has another SHA-256, or cannot be decompressed.
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
    """Raise a ValueError that names `source` if the SHA-256 of `content` is not `sha256`."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(
            f"{source}: SHA-256 {sha256} expected, found {found} ({len(content)} bytes): "
            "truncated, corrupt or not the original. Delete it to download it again, "
            "or replace it with the original"
        )


def decompress(content: bytes, source: object) -> bytes:
    """Decompress gzip bytes; a ValueError that names `source` if they are truncated or corrupt."""
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(
            f"{source}: a complete gzip file expected, found {len(content)} bytes that do not decompress: {error}"
        ) from error


def download_file(file: str, folder: Path, mirrors: Sequence[str], sha256: str) -> Path:
    """Download `file` to `folder` from the first mirror that delivers it with this SHA-256; returns its path.

    The download goes to a temporary folder, and the file is renamed to its final name after the check. So there is never a
    partial file of that name, even if the download fails, is interrupted by Ctrl-C, or if two processes download it at once.

    Raises
    ------
    FileNotFoundError
        If no mirror delivers the file; the message names every URL that was tried, and why it failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    # A temporary folder, not a temporary file: it is also deleted after Ctrl-C, and the file in it has the
    # user's default permissions, while other users could not read a file of mkstemp.
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
    """Write a file, and make its folder. If an error occurs, no partial file is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".write-", dir=path.parent) as partial:
        Path(partial, path.name).write_bytes(content)
        os.replace(Path(partial, path.name), path)


def _save(url: str, path: Path, sha256: str) -> None:
    """Download `url` to `path`; an OSError if the connection fails, a ValueError if the SHA-256 differs from `sha256`."""
    import http.client  # these two import email and ssl, which take time: only a download needs them
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, path.open("wb") as target:
            shutil.copyfileobj(response, target)
    except http.client.HTTPException as error:
        raise ConnectionError(f"the connection broke: {error!r}") from error
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"SHA-256 {sha256} expected, received {found} ({len(content)} bytes)")
