"""Every kernel compiles for four generations of cards, and ptxas assembles it without spills and without a stack frame.

No GPU is needed: NVVM and ptxas come with the extra `cuda`. A table of registers is printed with `pytest -rP`.
"""
import importlib
import pathlib
import pkgutil
import re
import shutil
import subprocess

import pytest

import numbanet_kernels
from numbanet_kernels import launch

for module in pkgutil.iter_modules(numbanet_kernels.__path__):
    importlib.import_module(f"numbanet_kernels.{module.name}")

CARDS = [(7, 5), (8, 0), (9, 0), (10, 0)]
KERNELS = list(launch.all_kernels())
DOUBLE_PRECISION = re.compile(r"\.f64|%fd\d")


def find_ptxas():
    """ptxas of the wheels, which knows the PTX version of their NVVM; else the one on the path; else None."""
    try:
        import nvidia
    except ImportError:
        return shutil.which("ptxas")
    found = [path for root in nvidia.__path__ for path in sorted(pathlib.Path(root).glob("*/bin/ptxas"))]
    return str(found[-1]) if found else shutil.which("ptxas")


PTXAS = find_ptxas()
PROBLEM = launch.nvvm_problem() or (None if PTXAS else "ptxas is missing: pip install nvidia-cuda-nvcc")
pytestmark = pytest.mark.skipif(PROBLEM is not None, reason=PROBLEM or "")


@pytest.fixture(scope="module")
def registers():
    table = {}
    yield table
    print("\nregisters a thread".ljust(45), *(f"sm_{a}{b}".rjust(7) for a, b in CARDS))
    for name, counts in table.items():
        print(name.ljust(44), *(str(counts.get(card, "")).rjust(7) for card in CARDS))


@pytest.mark.parametrize("place, card", [(place, card) for place, kernel in enumerate(KERNELS) for card in CARDS
                                         if card >= kernel.least],
                         ids=lambda x: f"sm_{x[0]}{x[1]}" if isinstance(x, tuple) else
                         f"{KERNELS[x].family}-{KERNELS[x].__name__}-{x}")
def test_assembles(place, card, registers, tmp_path):
    kernel = KERNELS[place]
    ptx = kernel.ptx(card)
    assert not DOUBLE_PRECISION.search(ptx), "float64 arithmetic in a kernel: a constant without float32(...)?"
    source = tmp_path / "kernel.ptx"
    source.write_text(ptx)
    done = subprocess.run([PTXAS, "-v", f"-arch=sm_{card[0]}{card[1]}", source, "-o", tmp_path / "kernel.cubin"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    numbers = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert numbers.groups() == ("0", "0", "0"), numbers[0]
    registers.setdefault(f"{kernel.family}.{kernel.__name__} {place}", {})[card] = int(
        re.search(r"Used (\d+) registers", done.stderr)[1])
