"""Results: the JSON file of one command. It is rewritten after every case, so that an interruption loses one case at most.

Rows of an earlier command are replaced; its training runs stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .machine import commit, machine, now
from .runs import chooses


class Results:
    """Rows, the machine that they were measured on, and the file that they are written to.

    Parameters
    ----------
    path : Path or None
        The JSON file; with None nothing is written. Its rows are replaced; its training runs stay, because they took hours.
    facts : dict
        Further entries of the file: device, peer, whether quick.

    Raises
    ------
    ValueError
        If the file exists and does not hold results.
    """

    def __init__(self, path: Path | None, **facts: Any) -> None:
        self.path, self.rows = path, []
        self.runs = load(path).get("runs", []) if path is not None and path.exists() else []
        self.facts = {"date": now(), "commit": commit(), **facts, "machine": machine()}

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Append rows and write the file."""
        self.rows += rows
        self.save()

    def save(self) -> None:
        """Write the file under another name, then rename it, so that a reader never sees an incomplete file."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        record = {**self.facts, "rows": self.rows, **({"runs": self.runs} if self.runs else {})}
        unfinished = self.path.with_name(f"{self.path.name}.part")
        unfinished.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, self.path)

    def resume(self, settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The finished training runs of earlier commands.

        Raises
        ------
        ValueError
            If a run in the file has settings that are not among these.
        """
        if any(run["settings"] not in settings for run in self.runs):
            raise ValueError(f"{self.path} holds training runs with other settings; give another --json file")
        return self.runs


def load(path: Path) -> dict[str, Any]:
    """Read a file of results.

    Raises
    ------
    ValueError
        If the file does not hold results.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("rows"), list) or "machine" not in record:
        raise ValueError(f"{path} is not a file of benchmark results")
    return record


def by_library(records: Sequence[dict[str, Any]], mkl: bool = False) -> list[dict[str, Any]]:
    """The records of CPUs whose products MKL computed, or all others: NumPy's library is the default."""
    return [
        record
        for record in records
        if (record.get("device") != "cuda" and str(record["machine"].get("blas")).startswith("MKL")) == mkl
    ]


def mixed_processors(record: dict[str, Any]) -> list[str]:
    """The processors of a file's training runs, sorted, if one is not that of the last command; else []. Runs that only choose
    a learning rate do not count.
    """
    found = sorted({run["processor"] for run in record.get("runs", ()) if run.get("processor") and not chooses(run)})
    return found if any(not name.startswith(record["machine"]["cpu"] + ",") for name in found) else []
