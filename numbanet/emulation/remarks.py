"""What the counters mean: sentences on kernels and on lines, which the table and the page share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numbanet_kernels.card.sheets import WARP, Sheet

if TYPE_CHECKING:
    from numbanet_kernels.card.counted import Figures, KernelCounts
    from numbanet_kernels.ptx import Line

# remarked from there on: times the least; times one cycle; share of the branches
SECTORS, CONFLICTS, DIVERGENT = 1.5, 1.5, 0.25
IDLE, HOT = 0.5, 0.1  # share of the lanes of a warp that work, in lines with this share of the instructions


def remarks(kernel: KernelCounts) -> dict[str, list[str]]:
    """Return what stands out in the counters of a kernel's lines, by their place."""
    total, doubles = kernel.total, "float64" in kernel.types  # who passes float64 wants it
    found = {line.place: _of_line(line, total, doubles) for line in kernel.lines}
    return {place: said for place, said in found.items() if said}


def _of_line(line: Line, total: Line, doubles: bool) -> list[str]:
    said = []
    if line.sectors >= SECTORS * line.least > 0:
        said.append(
            f"{line.sectors / line.least:.3g} times the sectors that the data needs: "
            "let neighbouring threads access neighbouring elements"
        )
    free = line.transactions - line.conflicts
    if free and line.transactions >= CONFLICTS * free:
        said.append(
            f"bank conflicts, {line.transactions / free:.3g} cycles in place of one: the threads of a warp access different "
            "words of one bank; if a warp reads one column, a row that is one element longer moves it to all banks"
        )
    if line.branches and line.divergent >= DIVERGENT * line.branches:
        said.append(
            f"{line.divergent:,} of {line.branches:,} branches diverge: threads of a warp go both ways, one after the other"
        )
    elif line.lanes <= IDLE * WARP * line.issued and line.issued >= HOT * total.issued:
        said.append(f"{lanes(line):.3g} of {WARP} threads of a warp work here")
    if line.double_flops and not doubles:
        said.append(
            f"{line.double_flops:,.0f} FLOPs in float64: float32(...) around constants, and arrays of float32, avoid them"
        )
    return said


def lanes(line: Line) -> float:
    """Return the mean number of threads of a warp that run an instruction of a line."""
    return line.lanes / line.issued if line.issued else 0.0


def launched(kernel: KernelCounts) -> str:
    """Return how a kernel was launched."""
    launches, blocks = kernel.counters.launches, kernel.blocks
    shape = " x ".join(map(str, kernel.block[: 3 if kernel.block[2] > 1 else 2 if kernel.block[1] > 1 else 1]))
    said = f"{counted(launches, 'launch', 'launches')}, {counted(blocks, 'block')} of {shape} threads"
    return said + (f"; {kernel.failed} ended with an error" if kernel.failed else "")


def resources(figures: Figures, sheet: Sheet) -> str:
    """Return what a block needs of a multiprocessor, and how many fit."""
    known, held = figures.assembled, figures.occupancy
    if isinstance(known, str):
        registers = f"registers unavailable ({known})"
    else:
        registers = f"{known.registers} registers a thread"
        if known.spilled:
            registers += f", {known.spilled:,} bytes spilled"
        if known.capability != sheet.capability:
            registers += f" (assembled for compute capability {known.capability[0]}.{known.capability[1]})"
    shared = f"{figures.shared:,} bytes of shared memory a block" if figures.shared else "no shared memory"
    if figures.local:
        registers += f", {figures.local:,} bytes of local memory a thread"
    fit = f"{counted(held.blocks, 'block')}, {held.warps} of {held.most} warps on a multiprocessor"
    return f"{registers}, {shared}: {fit}, occupancy {held.share:.0%} (limited by {held.limit})"


def roofline(figures: Figures, total: Line) -> str:
    """Return where a kernel lies under the roofline of a card."""
    bound, moved = figures.bound, 32 * total.sectors
    did = f"{total.flops:,.0f} FLOPs"
    if not moved:
        return f"{did}, no bytes of global memory: bound by arithmetic, at least {seconds_text(bound.seconds)}"
    return (
        f"{did}, {moved:,} bytes in sectors: {total.flops / moved:.3g} FLOPs per byte (ridge {bound.ridge:.3g}): "
        f"bound by {bound.by}, at least {seconds_text(bound.seconds)}"
    )


def seconds_text(seconds: float) -> str:
    """Return a time with its unit."""
    for unit, size in (("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e9 * seconds:.3g} ns"


def counted(n: int, what: str, plural: str = "") -> str:
    """Return a number with the name of what it counts, as "1 block" or "1,024 blocks"."""
    return f"{n:,} {what if n == 1 else plural or what + 's'}"
