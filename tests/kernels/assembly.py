"""Kernels assembled for a card, where ptxas is: what it says of them, and their instructions, both kept on disk as PTX is."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from numbanet_kernels.runtime import availability, files


def find_ptxas():
    """ptxas of the wheels, which knows the PTX version of their NVVM; else the one on the path; else None."""
    try:
        import nvidia
    except ImportError:
        return shutil.which("ptxas")
    found = [path for root in nvidia.__path__ for path in sorted(pathlib.Path(root).glob("*/bin/ptxas"))]
    return str(found[-1]) if found else shutil.which("ptxas")


def version(tool):
    """(major, minor) of the CUDA that a tool belongs to."""
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"release (\d+)\.(\d+)", said).groups()))


PTXAS = find_ptxas()
PROBLEM = availability.nvvm_problem() or (None if PTXAS else "ptxas is missing: pip install nvidia-cuda-nvcc")


def assembled(kernel, card, disassembled=False):
    """What ptxas says of a kernel that it assembled for a card, and if asked for, after a line of its own, SASS."""
    ptx, tools = kernel.ptx(card), [PTXAS, *([PTXAS.replace("ptxas", "nvdisasm")] if disassembled else [])]

    def made():
        with tempfile.TemporaryDirectory() as folder:
            source, binary = pathlib.Path(folder, "kernel.ptx"), pathlib.Path(folder, "kernel.cubin")
            source.write_text(ptx)
            said = run(PTXAS, "-v", f"-arch=sm_{card[0]}{card[1]}", source, "-o", binary).stderr
            return said + "".join(f"SASS\n{run(tool, '-c', binary).stdout}" for tool in tools[1:])

    decides = ptx, [(tool, os.stat(tool).st_size, os.stat(tool).st_mtime_ns) for tool in tools]
    return files.cached(("assembled", kernel.made_by, card, disassembled), decides, made)


def run(*command):
    """The finished process; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done
