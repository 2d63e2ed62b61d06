"""Functions that a card's driver brings: printf, assertions, memory of the device's heap, and barriers of the whole grid."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arithmetic import BITS
from .barriers import whole_grid
from .instructions import Step
from .program import Instruction, Program, PtxError
from .spaces import WINDOW, WINDOWS
from .wave import Wave

Numbers = list[np.ndarray]  # the arguments of a call, each with an element for every running thread
LONGEST = 4096  # bytes of a string: more are not looked at
_FORMAT = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d*)(?P<precision>\.\d+)?(?P<size>hh|h|ll|l|z|t|j)?(?P<kind>[diouxXcsfFeEgGaAp%])"
)


def step(program: Program, i: Instruction, name: str, given: Sequence[str], taken: Sequence[str]) -> Step | None:
    """Return the `Step` of a call of a function of the driver; None for others. `given` and `taken` are the .param variables of
    its arguments and results.
    """
    found = FUNCTIONS.get(name)
    if found is None:
        return None
    for variable in (*given, *taken):
        if variable not in program.passed:
            raise PtxError(f"what is passed to or from {name} is not what it declares")

    def run(wave: Wave) -> None:
        numbers = [_taken_from(program, wave, i, variable) for variable in given]
        result = found(wave, i, numbers)
        for variable in taken:  # Numba calls functions of C without a result as if they had one
            _give(program, wave, variable, 0 if result is None else result)

    if name == "cudaCGSynchronize":
        return Step(kind="barrier", complete=whole_grid, run=run, of="grid")
    return Step(run)


def _taken_from(program: Program, wave: Wave, i: Instruction, variable: str) -> np.ndarray:
    size, offset, *_ = program.passed[variable]
    ((store, _, at),) = wave.param.find(np.full(wave.lanes.size, offset), size, wave.lanes)
    with wave.told(i, "param", wave.lanes):
        return store.read(at, size)


def _give(program: Program, wave: Wave, variable: str, value: Any) -> None:
    size, offset, *_ = program.passed[variable]
    ((store, _, at),) = wave.param.find(np.full(wave.lanes.size, offset), size, wave.lanes)
    store.write(at, np.asarray(value).astype(BITS[size]), size)


# --- strings ----------------------------------------------------------------------------------------------------------
def _bytes(wave: Wave, i: Instruction, address: np.ndarray, width: int, lanes: np.ndarray) -> np.ndarray:
    """Return the numbers of `width` bytes at generic addresses. These reads are not counted, and not checked for races."""
    values = np.zeros(address.size, BITS[width])
    for space in ("shared", "local", "const", "global"):
        start = WINDOWS.get(space, 0)
        some = np.flatnonzero((address >= start) & (address < start + WINDOW))
        if not some.size:
            continue
        owners = {"shared": wave.blocks[lanes], "local": lanes, "const": lanes * 0}.get(space)
        memory = getattr(wave.launch, {"global": "memory"}.get(space, space), None) or getattr(wave, space)
        with wave.told(i, space, lanes[some]):
            found = memory.find(address[some] - start, width, *([] if owners is None else [owners[some]]))
            for store, chosen, offset in found:
                values[some[chosen]] = store.read(offset, width)
    return values


def _string(wave: Wave, i: Instruction, address: int, lane: int) -> str:
    """Return the text at an address, up to its 0."""
    found = bytearray()
    for k in range(LONGEST):
        byte = int(_bytes(wave, i, np.array([address + k]), 1, np.array([lane]))[0])
        if byte == 0:
            break
        found.append(byte)
    return found.decode("utf-8", "replace")


def _strings(wave: Wave, i: Instruction, addresses: np.ndarray) -> list[str]:
    known: dict[tuple[int, int], str] = {}
    for address, lane in zip(addresses.astype(np.int64), wave.lanes, strict=True):
        key = int(address), int(lane) if WINDOWS["shared"] <= address < WINDOWS["const"] else 0
        if key not in known:
            known[key] = _string(wave, i, int(address), int(lane))
    return [
        known[int(a), int(lane) if WINDOWS["shared"] <= a < WINDOWS["const"] else 0]
        for a, lane in zip(addresses.astype(np.int64), wave.lanes, strict=True)
    ]


# --- printf -----------------------------------------------------------------------------------------------------------
def _print(wave: Wave, i: Instruction, numbers: Numbers) -> np.ndarray:
    """int vprintf(format, arguments): write a line for each running thread to standard output, in the order of the threads."""
    formats = np.array(_strings(wave, i, numbers[0]), object)
    lines, counts = np.full(formats.size, "", object), np.zeros(formats.size, np.int64)
    for text in dict.fromkeys(formats):
        some = np.flatnonzero(formats == text)
        with wave.where(np.isin(np.arange(wave.count), wave.lanes[some])):
            lines[some], counts[some] = _formatted(wave, i, text, numbers[1][some].astype(np.int64))
    sys.stdout.write("".join(lines))
    return counts


def _formatted(wave: Wave, i: Instruction, text: str, arguments: np.ndarray) -> tuple[list[str], int]:
    """Return what printf writes for each running thread, and the number of arguments in the format `text`."""
    pieces: list[Any] = []  # text, or (format of Python, values)
    start = offset = count = 0
    for found in _FORMAT.finditer(text):
        pieces.append(text[start : found.start()])
        start = found.end()
        if found["kind"] == "%":
            pieces.append("%")
            continue
        count += 1
        width = 8 if found["kind"] in "sfFeEgGaAp" or found["size"] in ("l", "ll", "z", "t", "j") else 4
        offset = -(-offset // width) * width
        bits = _bytes(wave, i, arguments + offset, width, wave.lanes)
        offset += width
        pieces.append(_values(wave, i, found, bits))
    pieces.append(text[start:])
    return ["".join(p if isinstance(p, str) else p[k] for p in pieces) for k in range(arguments.size)], count


def _values(wave: Wave, i: Instruction, found: re.Match, bits: np.ndarray) -> list[str]:
    """Return the text of one argument of printf for each running thread."""
    kind, size = found["kind"], bits.dtype.itemsize
    style = f"%{found['flags']}{found['width']}{found['precision'] or ''}"
    if kind == "s":
        return [(style + "s") % value for value in _strings(wave, i, bits)]
    if kind == "p":
        return [(style + "s") % f"{int(value):#x}" for value in bits]
    if kind in "aA":
        return [float(value).hex() for value in bits.view(f"f{size}")]
    if kind in "fFeEgG":
        return [(style + kind) % float(value) for value in bits.view(f"f{size}")]
    if kind == "c":
        return [(style + "c") % chr(int(value) & 255) for value in bits]
    numbers = bits.view(f"i{size}") if kind in "di" else bits
    short = {"h": 2, "hh": 1}.get(found["size"])
    numbers = numbers if short is None else numbers.astype(f"{numbers.dtype.kind}{short}")
    return [(style + kind.replace("u", "d").replace("i", "d")) % int(value) for value in numbers]


# --- others -----------------------------------------------------------------------------------------------------------
def _assert(wave: Wave, i: Instruction, numbers: Numbers) -> None:
    """__assertfail(message, file, line, function, bytes of a character)"""
    lane = wave.lanes[:1]
    with wave.where(np.isin(np.arange(wave.count), lane)):
        message, file, function = (_strings(wave, i, numbers[k][:1])[0] for k in (0, 1, 3))
    raise wave.error(i, f"assertion failed: {message} ({file}:{int(numbers[2][0])}, {function})", int(lane[0]))


def _allocate(wave: Wave, i: Instruction, numbers: Numbers) -> np.ndarray:
    """malloc(bytes): memory of the device's heap for each running thread"""
    found = np.zeros(numbers[0].size, np.int64)
    for k, size in enumerate(numbers[0].tolist()):
        try:
            found[k] = wave.launch.memory.allocate(size).start if size else 0
        except MemoryError:
            continue  # as on a card, malloc returns 0
        if found[k]:
            wave.launch.allocated(wave, i, int(wave.lanes[k]), int(found[k]))
    return found


def _free(wave: Wave, i: Instruction, numbers: Numbers) -> None:
    """free(address)"""
    for k, address in enumerate(numbers[0].astype(np.int64)):
        if address and not wave.launch.memory.free(int(address)):
            raise wave.error(i, f"free of {int(address):#x}, which malloc has not returned or which is free", wave.lanes[k])


FUNCTIONS: dict[str, Callable[[Wave, Instruction, Numbers], Any]] = {
    "vprintf": _print,
    "__assertfail": _assert,
    "malloc": _allocate,
    "free": _free,
    "cudaCGGetIntrinsicHandle": lambda wave, i, numbers: numbers[0],
    "cudaCGSynchronize": lambda wave, i, numbers: 0,
}
