"""Summary: a model as a table, one line per layer."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..plans import Plans
from .base import Layer
from .flow import ActivationSpec
from .tree import Tree


class Line(NamedTuple):
    """One line of the table, which describes one layer."""

    path: str
    inner: bool  # True if the layer is inside a layer that has a line as well
    layer: Layer
    shape: tuple[int | None, ...] | None  # shape of the layer's output for one sample; None if it is unknown
    parameters: int
    flops: float | None  # FLOPs of a training step for one sample; None if they are unknown


def lines(
    model: Layer, spec: ActivationSpec | None, path: str = "", inner: bool = False, plans: Plans | None = None
) -> Iterator[Line]:
    """Yield a `Line` for each layer except `Sequential`, in order; lines of the layers inside a layer follow its line. FLOPs
    are those under `plans`, by default of everything.
    """
    plans = Plans() if plans is None else plans
    for name, layer in model.children():
        here, before = f"{path}.{name}" if path else name, spec
        flops, shape = None, None
        if spec is not None:
            samples = spec.shape[0] or 1
            cost, spec = layer.cost(spec, plans)
            flops, shape = cost.flops / samples, spec.shape[1:]
        if layer.chain:
            yield from lines(layer, before, here, inner, plans)
            continue
        count = sum(p.size for p in layer.parameters())
        yield Line(here, inner, layer, shape, count, flops)
        yield from lines(layer, None, here, True, plans)


def summary(model: Layer, shape: tuple[int | None, ...] | None = None, policy: Any = None) -> str:
    """Return a table of the layers of a model as a string. Its columns are the path, the name, the output shape, the number of
    parameters, the FLOPs of a training step for one sample, and the dropout rate.

    Parameters
    ----------
    model : Layer
        For example a `Sequential`.
    shape : tuple of int, optional
        Shape of a sample; without it the shapes and FLOPs are unknown.
    policy : Dropout, optional
        The policy whose dropout rates are shown.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    tree, spec = Tree(model), None if shape is None else ActivationSpec((1, *shape))
    dropped: dict[Layer, list[str]] = {}
    policy = policy and policy.at(0)
    for site in policy.sites(tree) if policy is not None else ():
        if rate := policy.rate_of(site):
            what = "" if site.kind != "recurrent" else " recurrent"
            dropped.setdefault(tree.owners[site.path], []).append(f"{policy.of(site).name} {rate:.2g}{what}")
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    rows = list(lines(model, spec))
    flops = None if spec is None else math.fsum(row.flops or 0.0 for row in rows if not row.inner)
    for title, foot, number in (
        ("", "", False),
        ("layer", "", False),
        ("output", "", False),
        ("parameters", f"{sum({id(p): p.size for p in model.parameters()}.values()):,}", True),
        ("FLOPs", short(flops), True),
        ("dropped", "", False),
    ):
        table.add_column(title, foot, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row.path,
            f"{'  ' * row.inner}{row.layer!r}",
            shape_text(row.shape),
            f"{row.parameters:,}" if row.parameters else "",
            short(row.flops),
            ", ".join(dict.fromkeys(dropped.get(row.layer, []))),
        )
    file = io.StringIO()
    Console(file=file, width=160).print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())


def shape_text(shape: tuple[int | None, ...] | None) -> str:
    """Return a shape as text, such as "3 × 28 × 28"."""
    return "" if shape is None else " × ".join("?" if n is None else str(n) for n in shape)


def short(flops: float | None) -> str:
    """Return a count with 3 digits and a unit, such as "1.23 M"; "" if the count is None or 0."""
    if not flops:
        return ""
    power = min(int(math.log10(flops)) // 3, 4)
    return f"{flops / 1000**power:.3g} {('', 'k', 'M', 'G', 'T')[power]}".strip()
