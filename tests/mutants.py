"""Mutants: single wrong lines, each of which the tests of its part must notice; `mutants.txt` lists them.

A mutant takes four lines there: a file, the arguments of pytest that select its tests, the text to replace after "-", and
what replaces it after "+". For each, the tracked files are copied to a folder, changed there, and tested.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 900  # at most, for the tests of a mutant


class Mutant(NamedTuple):
    """`new` stands for `old` in `file`; pytest is given `tests`."""

    file: str
    tests: str
    old: str
    new: str

    def applied(self, root: Path) -> str:
        """The text of the file with the mutation; ValueError if the old text is not there exactly once."""
        text = (root / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} is there {text.count(self.old)} times; name a text that is there once")
        return text.replace(self.old, self.new)


def listed() -> list[Mutant]:
    """The mutants of the list; ValueError if a line is not as it should be."""
    lines = [line for line in Path(__file__).with_suffix(".txt").read_text().splitlines() if line and line[0] != "#"]
    found = []
    for at in range(0, len(lines), 4):
        file, tests, *texts = lines[at : at + 4]
        if [text[:2] for text in texts] != ["- ", "+ "]:
            raise ValueError(f"mutants.txt: {file} is not followed by tests, a line with - and one with +")
        found.append(Mutant(file, tests, *(text[2:] for text in texts)))
    return found


def tested(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of a folder, up to the first that fails, with compiled code of its own."""
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(folder / "caches"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # a file is changed twice in a second
    command = [sys.executable, "-m", "pytest", "-x", "-m", "not long", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)


def outcome(mutant: Mutant, root: Path = ROOT) -> tuple[str, str]:
    """("killed", the test that fails, and passes without the mutation), ("survived", ""), or what else happened."""
    text = mutant.applied(root)
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in filter(lambda path: (root / path).is_file(), filter(None, tracked)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, folder / path)
        (folder / mutant.file).write_text(text)
        try:
            done = tested(folder, shlex.split(mutant.tests))
            if done.returncode == 0:
                return "survived", ""
            failed = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.M)
            if done.returncode != 1 or not failed:
                return "not tested", (done.stdout + done.stderr)[-1000:]
            shutil.copy2(root / mutant.file, folder / mutant.file)
            passes = tested(folder, failed[:1]).returncode == 0
            return "killed" if passes else "fails without the mutation, too", failed[0]
        except subprocess.TimeoutExpired:
            return "timed out", ""


def main(words: list[str]) -> int:
    """Test the mutants of files whose paths contain one of the words, or all; the exit status is 1 if one is not killed."""
    chosen = [mutant for mutant in listed() if not words or any(word in mutant.file for word in words)]
    for mutant in chosen:
        mutant.applied(ROOT)  # refused before any is tested
    left = 0
    for mutant in chosen:
        found, said = outcome(mutant)
        left += found != "killed"
        print(f"{found}: {mutant.file}: {mutant.old}  ->  {mutant.new}  {said}", flush=True)
    return int(left > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
