"""Folder: the files of the checkpoints of one fit.

A checkpoint is one file, checkpoint-000012.safetensors. It is written under another name, forced to the disk, and renamed, so
that a file with this name is whole at any time, whatever ends the process or the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from numbanet_kernels.runtime.interrupt import deferred

NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
PARTIAL = ".partial-"


class Folder:
    """The checkpoints in a folder.

    Parameters
    ----------
    path : str or path
        The folder; `make` makes it if it does not exist.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)

    def numbers(self) -> list[int]:
        """Return the numbers of the checkpoints, the newest first."""
        names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        return sorted((int(found[1]) for name in names if (found := NAME.fullmatch(name))), reverse=True)

    def file(self, number: int) -> Path:
        """Return the path of a checkpoint."""
        return self.path / f"checkpoint-{number:06d}.safetensors"

    def check(self, asker: str) -> None:
        """Raise NotADirectoryError if the path is a file; the message begins with `asker`."""
        if self.path.exists() and not self.path.is_dir():
            what, way = "a file", "a folder"
            if NAME.fullmatch(self.path.name):
                what, way = "one checkpoint", f"its folder, {str(self.path.parent)!r}"
            raise NotADirectoryError(f"{asker}: {str(self.path)!r} is {what}; give {way}")

    def make(self) -> None:
        """Make the folder, and delete what an earlier process was writing when it was killed.

        Raises
        ------
        NotADirectoryError, PermissionError
            If the path is a file, or cannot be written to.
        """
        self.check("checkpoint")
        self.path.mkdir(parents=True, exist_ok=True)
        if not os.access(self.path, os.W_OK):
            raise PermissionError(f"checkpoint: the folder {str(self.path)!r} cannot be written to")
        for partial in self.path.glob(f"{PARTIAL}*"):
            partial.unlink(missing_ok=True)

    def set_aside(self, number: int) -> None:
        """Rename a damaged checkpoint, so that it does not count; another rank may have done so."""
        with contextlib.suppress(FileNotFoundError):
            self.file(number).replace(self.path / f"damaged-{number:06d}.safetensors")

    @deferred  # so that no signal handler leaves half a file in the folder
    def write(self, number: int, content: bytes, keep: int) -> None:
        """Write a checkpoint, then delete all but the newest `keep`."""
        partial = self.path / f"{PARTIAL}{os.getpid()}"
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.file(number))
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        self._sync()
        for old in self.numbers()[keep:]:
            self.file(old).unlink(missing_ok=True)

    def _sync(self) -> None:
        """Force the names in the folder to the disk, where the operating system can do so."""
        with contextlib.suppress(OSError):
            handle = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
