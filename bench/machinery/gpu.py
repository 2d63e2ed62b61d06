"""All measurements that need a GPU, by one command: `python -m bench gpu`, or `make gpu`, takes less than eight minutes.

It runs the tests on the GPU, compute-sanitizer on small cases if it is installed, and the suites of kernels and training steps
against PyTorch. Each step runs in a separate process with a time limit. If a step fails or takes longer, that is recorded and
the next step runs. bench/results/<GPU>.json contains the output of each step and the results of the suites.
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
LAST = 2000  # characters of a step's output that are recorded


class Step(NamedTuple):
    """A command and its time limit."""

    name: str
    command: list[str]
    seconds: float


def steps(path: Path) -> list[Step]:
    """The steps that can run on this machine; the last one writes the results of the suites to `path`."""
    pytest = ["-m", "pytest", "-q", "-k", "cuda and not emulated"]
    checks = [
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
        checks += [
            Step(f"{tool} of compute-sanitizer", [sanitizer, "--tool", tool, "--error-exitcode", "1", *small], 40)
            for tool in ("memcheck", "racecheck")
        ]
    against = ["--against", "torch"] if importlib.util.find_spec("torch") else []
    figures = [sys.executable, "-m", "bench", *SUITES, "--device", "cuda", *against, "--json", str(path)]
    return [*checks, Step("figures", figures, 230)]


def file_of(cards: list[str]) -> Path:
    """The file for the results of the first of these GPUs, such as bench/results/nvidia-h200.json.

    Raises
    ------
    RuntimeError
        If there is no GPU.
    """
    if not cards:
        raise RuntimeError("no GPU: nvidia-smi lists none")
    return ROOT / "bench" / "results" / f"{re.sub(r'[^a-z0-9]+', '-', cards[0].partition(',')[0].lower()).strip('-')}.json"


def run(say: Callable[[str], None], path: Path | None = None) -> int:
    """Run all steps and record them; return 1 if one of them failed, else 0."""
    path = file_of(machine()["gpus"]) if path is None else path
    peer = "torch" if importlib.util.find_spec("torch") else None
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        outcomes = [_run_step(step, say) for step in steps(figures)]
        rows = load(figures)["rows"] if figures.exists() else []
    path.unlink(missing_ok=True)  # the results of an earlier command
    Results(path, device="cuda", against=peer, quick=False, steps=outcomes).add(rows)
    say(f"wrote {path}")
    return int(any(step["outcome"] != "passed" for step in outcomes))


def _run_step(step: Step, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a step; return its outcome, its seconds and the end of its output."""
    say(f"{step.name}: {' '.join(step.command)}")
    start = time.perf_counter()
    with subprocess.Popen(
        step.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=step.seconds)
            outcome = "passed" if process.returncode == 0 else f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its child processes as well
            output, _ = process.communicate()
            outcome = f"not done after {step.seconds:g} s"
    say(f"{output[-LAST:]}\n{step.name}: {outcome}")
    return {"step": step.name, "outcome": outcome, "seconds": round(time.perf_counter() - start, 1), "output": output[-LAST:]}
