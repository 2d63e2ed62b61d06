"""Planted faults: a table of functions `name(right)`, each of which makes a kernel with a fault, or, if `right`, its twin
without the fault.

A function returns (kernel, shape of the launch, *arguments), or launches kernels itself and returns None. A comment `# fault`
marks the lines that an error may name.
"""

import inspect
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

F, D, I, L, B = np.float32, np.float64, np.int32, np.int64, np.uint8


class Planted(NamedTuple):
    """A fault: its kind, the function that makes it, and a pattern for the words of the error."""

    kind: str
    make: object
    says: str

    @property
    def name(self):
        return f"{self.kind}: {self.make.__name__}"

    def run(self, right):
        """Launch the kernel, or its twin."""
        made = self.make(right)
        if made is not None:
            kernel, shape, *arguments = made
            kernel[shape](*arguments)

    def lines(self):
        """The marked lines of the function, as errors name them; if it has none, those of the helpers in its file."""
        path = Path(inspect.getsourcefile(self.make))
        text = path.read_text().splitlines()
        of_faults = [_span(fault.make) for fault in FAULTS if inspect.getsourcefile(fault.make) == str(path)]
        helpers = set(range(len(text))).difference(*of_faults)
        for lines in (_span(self.make), helpers):
            if found := {f"{path.name}:{k + 1}" for k in lines if text[k].endswith("# fault")}:
                break
        return found


def _span(function):
    """The indices of the lines of a function."""
    lines, first = inspect.getsourcelines(function)
    return range(first - 1, first - 1 + len(lines))


FAULTS: list[Planted] = []


def planted(kind, says):
    """Add a function to the table."""

    def add(make):
        FAULTS.append(Planted(kind, make, says))
        return make

    return add


def named_lines(message):
    """The lines of Python that an error names, the first one first."""
    return re.findall(r"\w+\.py:\d+", message)


def ones(*shape, dtype=F):
    return np.ones(shape, dtype)


def zeros(*shape, dtype=F):
    return np.zeros(shape, dtype)


def upto(n, dtype=I):
    return np.arange(n, dtype=dtype)
