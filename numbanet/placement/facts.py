"""Facts that decide whether a profile may be used again: the machine and the versions of what computes."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
from pathlib import Path
from typing import Any

PACKAGES = ("numbanet", "numpy", "numba", "numba-cuda", "mkl", "torch")
DIES = {"A100": 826.0, "V100": 815.0, "H100": 814.0, "H200": 814.0}  # mm2 of GPUs, from NVIDIA's architecture white papers


def machine() -> str:
    """Return the processor and its number of cores for this process, and the names of the GPUs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ", ".join([_processor(), f"{cores} cores", *gpus()])


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute, and a digest of the sources of the kernels."""
    found = {"python": platform.python_version(), "kernels": _kernels()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def now() -> str:
    """Return date and time in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def nvml() -> Any:
    """Return the module of NVML (`pip install nvidia-ml-py`), initialised; None if there is none, or no driver."""
    try:
        import pynvml  # optional

        pynvml.nvmlInit()
    except Exception:  # an ImportError, or an error of the driver's library
        return None
    return pynvml


@functools.cache
def gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that NVML lists."""
    library = nvml()
    if library is None:
        return ()
    handles = map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
    names = map(library.nvmlDeviceGetName, handles)
    return tuple(name.decode() if isinstance(name, bytes) else name for name in names)


def die() -> float | None:
    """Return the area of the first GPU's die in mm2; None if it is unknown."""
    return next((area for name, area in DIES.items() if gpus() and re.search(rf"\b{name}\b", gpus()[0])), None)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@functools.cache
def _kernels() -> str:
    """Return a digest of the sources of the kernels."""
    spec, digest = importlib.util.find_spec("numbanet_kernels"), hashlib.sha256()
    for folder in spec.submodule_search_locations if spec and spec.submodule_search_locations else ():
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
