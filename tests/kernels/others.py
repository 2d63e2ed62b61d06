"""Running code of others on the emulated card: limits of time, processes of their own, and the list of outcomes.

`numba_suite` runs NVIDIA's tests with it, and `teaching` tutorials, courses and puzzles. An outcome is a dict: name, outcome,
number of launches, the reason of a failure, and why it is out of scope, if it is.
"""

from __future__ import annotations

import collections
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


class Slow(BaseException):
    """Work took more CPU seconds than its limit. No `except Exception` catches it."""


def _stop(signum, frame):
    raise Slow("the limit of CPU seconds")


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """A context that raises Slow after so many CPU seconds of this process."""
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def launches() -> int:
    """Return the number of launches that were asked for so far in this process."""
    from numbanet_kernels import card

    return card.asked()


def apart(module: str, *arguments: str) -> tuple[int, str]:
    """Run `python -m module` in a process of its own; return its status, and what it wrote to its output and errors."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=CHECKOUT, stdout=said, stderr=said)
        _watch(process)
        said.seek(0)
        return process.returncode, said.read()


def _watch(process: subprocess.Popen) -> None:
    """Wait for the end of a process; end it if it sleeps, without any work, for a minute."""
    idle, before = 0, ""
    while process.poll() is None:
        time.sleep(0.2 if idle < 5 else 1)
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        now = " ".join(fields[11:13])  # CPU time of the user and of the system
        idle = idle + 1 if fields[0] == "S" and now == before else 0
        before = now
        if idle > 60:
            process.kill()


def kind_of(reason: str) -> str:
    """Return the reason of a failure without names and numbers, so that equal ones can be counted."""
    head = re.sub(r"^.*?: line \d+: [^:]*:", "PTX:", reason.splitlines()[0] if reason else "")
    return re.sub(r"0x[0-9a-f]+|\d+|\(.*?\)|'[^']*'", "…", head)[:110]


def counted(found: list[dict]) -> dict[str, int]:
    """Return the number of outcomes of each kind, the most frequent one first."""
    kinds = collections.Counter("out of scope" if "out of scope" in line else line["outcome"] for line in found)
    return dict(kinds.most_common())


def record(out: Path, limit: float, summary: dict, scope: Callable[[dict], dict], **lists: list[dict]) -> None:
    """Write outcomes as JSON, with what a record of the benchmarks has; it holds no times, and so no table is made of it.

    `scope` returns the entry that says why an outcome is out of scope; an empty one if it is not.
    """
    from bench.machinery import machine

    for found in lists.values():
        for line in found:
            line.pop("out of scope", None)
            line.update(scope(line), reason=re.sub(r"(/[\w.+-]+)+/", "", line["reason"])[:400])  # without a machine's folders
        found.sort(key=lambda line: line["name"])
    head = {"date": machine.now(), "commit": machine.commit(), "quick": True, "machine": machine.machine(), "rows": []}
    out.write_text(json.dumps({**head, "limit": limit, **summary, **lists}, indent=1) + "\n", encoding="utf-8")


def print_reasons(failed: list[dict]) -> None:
    """Print the kinds of reasons of failures, the most frequent one first."""
    for kind, n in collections.Counter(kind_of(line["reason"]) for line in failed).most_common(40):
        print(f"{n:5d}  {kind}")
