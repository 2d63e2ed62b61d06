"""Registers of kernels: what the assembler says of a PTX text. It needs no card: nvJitLink, which assembles kernels for Numba,
too, comes with numba-cuda, and ptxas with the CUDA Toolkit.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MISSING = "neither nvJitLink nor ptxas is here: pip install 'numba-cuda[cu13]'"
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)(\d)", re.M)


class Assembled(NamedTuple):
    """What the assembler says of a kernel for one compute capability: registers of a thread, and bytes that a thread spills."""

    capability: tuple[int, int]
    registers: int
    spilled: int


@functools.lru_cache(256)
def assembled(text: str, capability: tuple[int, int], most: int = 0) -> Assembled | str:
    """Assemble the kernel of a PTX text. Return a sentence if that cannot be done.

    Parameters
    ----------
    text : str
        The PTX of one kernel.
    capability : tuple of int
        The compute capability of a card. If the text is for newer cards, the kernel is assembled for the oldest of these.
    most : int, default=0
        The most registers that a thread may have; 0 if there is no bound.
    """
    if (found := _TARGET.search(text)) is not None:
        capability = max(capability, (int(found[1]), int(found[2])))
    options = [f"-arch=sm_{capability[0]}{capability[1]}"] + ([f"-maxrregcount={most}"] if most else [])
    try:
        said = _linked(text, options)
        if said is None:
            said = _by_ptxas(text, options)
    except (RuntimeError, OSError) as error:
        return f"the kernel cannot be assembled: {' '.join(str(error).split())[:200]}"
    if said is None:
        return MISSING
    # functions that are called have reports of their own, before or after that of the kernel, which alone uses registers
    used = re.findall(r"Used (\d+) registers", said)
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", said))
    return Assembled(capability, max(map(int, used)), spilled) if used else "the assembler names no registers"


def _linked(text: str, options: Sequence[str]) -> str | None:
    """Return what nvJitLink says of a PTX text; None if it is not here."""
    try:
        from cuda.bindings import nvjitlink
    except ImportError:
        return None
    given, code = [*options, "-Xptxas=-v"], text.encode()
    try:
        linker = nvjitlink.create(len(given), given)
    except Exception as error:  # the library itself may be missing, which its loader says in its own exceptions
        if isinstance(error, nvjitlink.nvJitLinkError):
            raise RuntimeError(error) from None
        return None

    def log(kind: str) -> str:
        content = bytearray(getattr(nvjitlink, f"get_{kind}_log_size")(linker))
        getattr(nvjitlink, f"get_{kind}_log")(linker, content)
        return content.decode(errors="replace").rstrip("\0")

    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, code, len(code), "kernel")
        nvjitlink.complete(linker)
        return log("info")
    except nvjitlink.nvJitLinkError as error:
        raise RuntimeError(log("error") or error) from None
    finally:
        nvjitlink.destroy(linker)


def _by_ptxas(text: str, options: Sequence[str]) -> str | None:
    """Return what ptxas says of a PTX text; None if it is not on the path."""
    tool = shutil.which("ptxas")
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text)
        done = subprocess.run([tool, "-v", *options, source, "-o", binary], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stderr
