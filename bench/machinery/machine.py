"""Facts that are recorded with each measurement: processor, GPUs, versions, threads, commit, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from numbanet_kernels.host.blas import library, numpys

ROOT = Path(__file__).resolve().parents[2]


def threads() -> int:
    """n threads of each side of a comparison: one for each core that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Processor, cores, threads, versions and GPUs."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "numbanet": _version("numbanet"),
        "numpy": np.__version__,
        "blas": _blas(),
        "numba": _version("numba"),
        "numba_cuda": _version("numba-cuda"),
        "torch": _version("torch"),
        "gpus": _gpus(),
    }


def checkout(root: Path = ROOT) -> bool:
    """Whether the folder is a checkout of numbanet, with results and tests. The folder of an installed package is none, even if
    it lies in some other git repository."""
    return all((root / name).is_file() for name in ("setup.py", "numbanet/__init__.py", "bench/machinery/worker.py"))


def commit(root: Path = ROOT) -> str | None:
    """The commit of the working tree, with "+" if it has changes; None outside a checkout."""
    if not checkout(root):
        return None
    head = _output("git", "-C", str(root), "rev-parse", "HEAD")
    # benchmarks write results and tables: these are not changes of the measured code
    changed = _output(
        "git", "-C", str(root), "status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.md", ":!bench/results"
    )
    return head and head + ("+" if changed else "")


def now() -> str:
    """Date and time in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def processor() -> str:
    """CPU, n threads and GPUs as one string."""
    return ", ".join([_cpu(), f"{threads()} threads", *_gpus()])


def _cpu() -> str:
    try:
        return cpu_of(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        return platform.processor() or platform.machine()


def cpu_of(text: str) -> str:
    """The name of the processor that /proc/cpuinfo describes. A name without a number, such as virtual machines give, stands
    for processors of several generations; then family and model are named, too.
    """
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    name = found.get("model name") or platform.processor() or platform.machine()
    if any(map(str.isdigit, name)) or not {"cpu family", "model"} <= set(found):
        return name
    return f"{name} (family {found['cpu family']}, model {found['model']})"


def _blas() -> str:
    """The library of matrix products with its version: MKL if it is chosen, else NumPy's BLAS, with the processor whose kernels
    this has chosen, which OPENBLAS_CORETYPE may prescribe.
    """
    if library() == "mkl":
        return f"MKL {_version('mkl')}"
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    kernels = [name for pool in numpys() if (name := pool.info().get("architecture"))]
    return " ".join([blas["name"], blas["version"], *(f"for {name}" for name in kernels[:1])])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> list[str]:
    """Name and driver of each GPU."""
    listing = _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return [
        f"{name}, driver {driver}"
        for name, driver in (line.split(", ") for line in (listing or "").splitlines() if line.count(", ") == 1)
    ]
