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

# the suites, the cases of each, and a time limit in seconds
SUITES = (
    ("mlp", "4096-10 (without|p=0.7)", 100),
    ("cnn", "lenet5", 80),
    ("gemm", "linear n=(128 o=2048 i=2048|1024)", 40),
    ("gemm_rows", "dp=[14]$", 40),
)
TESTS = tuple(f"tests/{part}" for part in ("kernels", "core", "layers", "training", "estimators", "parallel"))
SANITIZED = (("memcheck", ("test_gemm_rows", "test_update", "test_norm"), 40), ("racecheck", ("test_norm",), 60))
LAST = 2000  # characters of a step's output that are recorded


class Step(NamedTuple):
    """A command and its time limit."""

    name: str
    command: list[str]
    seconds: float


def steps(folder: Path) -> list[Step]:
    """The steps that can run on this machine; those of suites write their results to files in `folder`."""
    chosen = ["-m", "not long and not alone", "-k", "cuda and not emulated"]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", *chosen]
    workers = ["-n", str(min(os.cpu_count() or 1, 12))] if importlib.util.find_spec("xdist") else []
    found = [Step("tests", [sys.executable, *pytest, *workers, *TESTS], 120)]
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer:
        small = [sys.executable, *pytest, "--one-of-each"]
        found += [
            Step(
                f"{tool} of compute-sanitizer",
                [
                    sanitizer,
                    "--tool",
                    tool,
                    "--error-exitcode",
                    "1",
                    *small,
                    *(f"tests/kernels/families/{f}.py" for f in files),
                ],
                seconds,
            )
            for tool, files, seconds in SANITIZED
        ]
    against = ["--against", "torch"] if importlib.util.find_spec("torch") else []
    bench = [sys.executable, "-m", "bench"]
    for suite, only, seconds in SUITES:
        options = ["--device", "cuda", *against, "--only", only, "--json", str(folder / f"{suite}.json")]
        found.append(Step(suite, [*bench, suite, *options], seconds))
    return found


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


def run(say: Callable[[str], None], path: Path | None = None, only: str = "") -> int:
    """Run all steps and record them. With the regular expression `only`, run the steps whose name matches it, and record
    nothing, because the file holds the results of all. Return 1 if a step failed, else 0.
    """
    path = file_of(machine()["gpus"]) if path is None else path
    peer = "torch" if importlib.util.find_spec("torch") else None
    outcomes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = [step for step in steps(Path(folder)) if re.search(only, step.name)]
        if not chosen:
            raise ValueError(
                f"--only {only!r} matches none of the steps {', '.join(step.name for step in steps(Path(folder)))}"
            )
        for step in chosen:
            outcomes.append(_run_step(step, say))
            if only:
                continue
            rows = [row for figures in sorted(Path(folder).glob("*.json")) for row in load(figures)["rows"]]
            path.unlink(missing_ok=True)  # the results of an earlier command, or those up to the step before
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
