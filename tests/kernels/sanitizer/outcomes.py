"""All planted faults and all correct kernels, and what the emulated card finds in them.

    python -m tests.kernels.sanitizer.outcomes [--own] [--out FILE]

FILE is a JSON object: the machine; for each kind, the number of planted faults and of those that were found, with the right
words and the right line; the number of correct kernels (the corrected twins, classic kernels, and, with --own, numbanet's own
ones, as their examples launch them) and of those in which something was found; and a list of all.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
from pathlib import Path

from numbanet_kernels import card
from numbanet_kernels.ptx import machine as ptx_machine

from . import (
    barriers,  # noqa: F401  each of these adds its faults to the table
    block_races,  # noqa: F401
    bounds,  # noqa: F401
    correct,
    correct_orders,  # noqa: F401
    correct_sorts,  # noqa: F401
    correct_sums,  # noqa: F401
    deadlocks,  # noqa: F401
    freed,  # noqa: F401
    grid_races,  # noqa: F401
    leaks,  # noqa: F401
    misaligned,  # noqa: F401
    shared_races,  # noqa: F401
    stream_races,  # noqa: F401
    unset,  # noqa: F401
)
from .planted import FAULTS, Planted, named_lines

CORRECT = [Planted("classic kernel", make, "") for make in correct.CORRECT]
SOON = {"LIMIT": 2, "MOST_POLLS": 500}  # for kernels that do not end, of the module `machine`
OUT = Path(__file__).parents[3] / "bench/results/sanitizer.json"


def findings(case, right):
    """What the emulated card reports of a case, as texts."""
    found = []
    with card.Emulated(uninitialised=True, report=lambda error: found.append(str(error))):
        case.run(right)
    return found


def is_found(fault, said):
    """Whether the first finding has the words of the fault, and names its line."""
    if not said or not re.search(fault.says, said[0]):
        return False
    named = named_lines(said[0])
    return bool(named) and (set(named) if fault.kind == "race between streams" else {named[0]}) <= fault.lines()


# --- the command ------------------------------------------------------------------------------------------------------
def own():
    """What is found in numbanet's own kernels, by the names of the operations whose examples launch them."""
    from numbanet_kernels import emulated, examples
    from numbanet_kernels.ptx import PtxError

    for name in examples.families():
        call = examples.example(name, (133, 70, 150)).on(emulated)
        try:
            call.run(emulated)
            yield f"own kernels: {name}", []
        except PtxError as error:
            yield f"own kernels: {name}", [str(error)]


def main():
    """Run all, and write the list."""
    from bench.machinery import machine

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--own", action="store_true", help="numbanet's own kernels, too, which takes minutes")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    for name, value in SOON.items():
        setattr(ptx_machine, name, value)
    planted, right, cases = collections.defaultdict(collections.Counter), collections.Counter(), []
    for fault in FAULTS:
        said = findings(fault, right=False)
        planted[fault.kind].update(planted=1, found=is_found(fault, said))
        cases.append({"name": fault.name, "finding": re.sub(r"0x[0-9a-f]+", "0x…", said[0]) if said else ""})
    found = [(f"twin of {fault.name}", findings(fault, right=True)) for fault in FAULTS]
    found += [(case.name, findings(case, right=True)) for case in CORRECT]
    found += own() if options.own else []
    for name, said in found:
        right.update(kernels=1, **{"with a finding": bool(said)})
        cases.append({"name": name, "finding": said[0] if said else ""})
    head = {"date": machine.now(), "commit": machine.commit(), "quick": True, "machine": machine.machine(), "rows": []}
    content = {**head, "planted": planted, "correct": right, "cases": cases}
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"planted": planted, "correct": right}, indent=1))


if __name__ == "__main__":
    main()
