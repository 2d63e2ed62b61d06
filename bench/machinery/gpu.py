"""Everything that a card can tell, in one go: `python -m bench gpu`, or `make gpu`, in less than eight minutes.

Tests on the card, compute-sanitizer on small cases where it is installed, each kernel and the training step against PyTorch's.
Each step is a process of its own with a limit in seconds; one that fails or is not done in time is recorded, and the next one
runs all the same. bench/results/<card>.json has what each step said, and the figures.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .machine import ROOT, machine
from .results import Results, load

SUITES = ("gemm", "gemm_rows", "gemm_tiles", "update", "mlp")
LAST = 2000  # characters of what a step said


class Step(NamedTuple):
    """A command, and how long it may take."""

    name: str
    command: list[str]
    seconds: float


def steps(path: Path) -> list[Step]:
    """What there is to run here; figures go to a file."""
    pytest = ["-m", "pytest", "-q", "-k", "cuda and not emulated"]
    found = [
        Step(
            "tests",
            [
                sys.executable,
                *pytest,
                "tests/kernels",
                "tests/core/test_ops.py",
                "tests/core/test_planned.py",
                "tests/estimators/test_cuda_net.py",
                "tests/training/test_replay.py",
            ],
            150,
        )
    ]
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer:
        small = [sys.executable, *pytest, "tests/kernels/families/test_gemm_rows.py", "tests/kernels/families/test_update.py"]
        found += [
            Step(f"{tool} of compute-sanitizer", [sanitizer, "--tool", tool, "--error-exitcode", "1", *small], 40)
            for tool in ("memcheck", "racecheck")
        ]
    against = ["--against", "torch"] if importlib.util.find_spec("torch") else []
    figures = [sys.executable, "-m", "bench", *SUITES, "--device", "cuda", *against, "--json", str(path)]
    return [*found, Step("figures", figures, 230)]


def file_of(cards: list[str]) -> Path:
    """Where the results of this card go, such as bench/results/nvidia-h200.json.

    Raises
    ------
    RuntimeError
        If there is no card.
    """
    if not cards:
        raise RuntimeError("no graphics card answers: nvidia-smi names none")
    return ROOT / "bench" / "results" / f"{re.sub(r'[^a-z0-9]+', '-', cards[0].partition(',')[0].lower()).strip('-')}.json"


def run(say: Callable[[str], None], path: Path | None = None) -> int:
    """Run all steps; 1 if one of them failed, else 0."""
    path = file_of(machine()["gpus"]) if path is None else path
    peer = "torch" if importlib.util.find_spec("torch") else None
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        told = [_told(step, say) for step in steps(figures)]
        rows = load(figures)["rows"] if figures.exists() else []
    path.unlink(missing_ok=True)  # of an earlier command
    Results(path, device="cuda", against=peer, quick=False, steps=told).add(rows)
    say(f"wrote {path}")
    return int(any(step["outcome"] != "passed" for step in told))


def _told(step: Step, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a step: its outcome, seconds, and the end of what it said."""
    say(f"{step.name}: {' '.join(step.command)}")
    start = time.perf_counter()
    with subprocess.Popen(
        step.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=step.seconds)
            outcome = "passed" if process.returncode == 0 else f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own children as well
            said, _ = process.communicate()
            outcome = f"not done after {step.seconds:g} s"
    say(f"{said[-LAST:]}\n{step.name}: {outcome}")
    return {"step": step.name, "outcome": outcome, "seconds": round(time.perf_counter() - start, 1), "said": said[-LAST:]}
