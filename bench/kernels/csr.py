"""Products with a sparse weight, CSR and tiles of 32, by sparsity, against SciPy, torch.sparse and a dense product.

The forward product y = x w.T of a layer, from x (N, I) to y (N, O), and the products for dx and dw. The peers get the layout
that is fastest for them: SciPy and PyTorch receive the transposed activation as a view, and for dx a weight that was transposed
before timing. SciPy has no product for dw. The dense product is numbanet's `gemm` with a weight that contains zeros. --plot
draws time against sparsity, and the sparsity from which on the sparse product is faster.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numbanet_kernels.layouts.entries import Entries
from numbanet_kernels.layouts.sparse import BSR, CSR

from .. import kernels
from ..machinery.harness import Case, Implementation, Options
from ..machinery.worker import Task, numbanet_on
from . import Kernel

SUITE = "csr"
RECORDED = ("--against torch --json bench/results/csr.json --plot csr.png",)
SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
TILE = 32
SIZES: tuple = ()  # examples are not timed: all operations are in KERNELS


@functools.lru_cache(maxsize=2)
def _weight(form: str, o: int, i: int, sparsity: float) -> CSR | BSR:
    """A random weight of this sparsity with He-normal values."""
    rng = np.random.default_rng(5)
    dense = rng.standard_normal((o, i), np.float32) * np.float32(np.sqrt(2 / ((1 - sparsity) * i)))
    if form == "csr":
        return CSR.from_dense(dense, rng.random((o, i)) >= sparsity)
    return BSR.from_dense(dense, TILE, rng.random((-(-o // TILE), -(-i // TILE))) >= sparsity)


def _transposed(weight: CSR | BSR) -> CSR | BSR:
    """The transposed weight in the same format."""
    entries = weight.entries()
    values = weight.values[entries.order]
    indptr = np.concatenate([[0], entries.col_stops])
    values = values if isinstance(weight, CSR) else values.swapaxes(1, 2)
    return type(weight)(indptr, entries.col_ids, values, weight.shape[::-1])


# --- operations -------------------------------------------------------------------------------------------------------
Arrays = tuple[np.ndarray, ...]


def _inputs(which: str, rng: np.random.Generator, n: int, o: int, i: int, sparsity: float) -> Arrays:
    """x for the forward product, dy for "_dx", dy and x for "_dw"."""
    x, dy = rng.standard_normal((n, i), np.float32), rng.standard_normal((n, o), np.float32)
    return {"": (x,), "_dx": (dy,), "_dw": (dy, x)}[which]


def _reference(form: str, which: str, *arrays: np.ndarray, n: int, o: int, i: int, sparsity: float) -> np.ndarray:
    weight = _weight(form, o, i, sparsity)
    if which != "_dw":
        w = np.float64(weight.dense())
        return np.float64(arrays[0]) @ (w if which else w.T)
    return _stored(form, np.float64(arrays[0]).T @ np.float64(arrays[1]), weight)


def _stored(form: str, dense: np.ndarray, weight: CSR | BSR) -> np.ndarray:
    """The values of a dense matrix at the entries that a weight stores."""
    if form == "csr":
        return CSR.from_dense(dense, weight.dense() != 0).values
    return BSR.from_dense(dense, TILE, _mask(weight)).values


def _mask(weight: BSR) -> np.ndarray:
    """(block rows, block columns) bool: True for tiles that are stored."""
    mask = np.zeros(weight.grid, bool)
    mask[np.repeat(np.arange(weight.grid[0]), np.diff(weight.indptr)), weight.indices] = True
    return mask


def _ours(form: str, which: str, dev: Any, *arrays: Any, n: int, o: int, i: int, sparsity: float) -> Callable[[], Any]:
    weight = _weight(form, o, i, sparsity)
    entries, values = Entries(*map(dev.upload, weight.entries())), dev.upload(np.array(weight.values))
    operation = getattr(dev, f"{form}{which}")
    last = {"": (o,), "_dx": (i,), "_dw": (TILE,)}[which] if form == "bsr" else ()
    arguments = (*arrays, entries, *last) if which == "_dw" else (*arrays, values, entries, *last)
    return lambda: operation(*arguments)


def _torch(form: str, which: str, torch: Any, *arrays: Any, n: int, o: int, i: int, sparsity: float) -> Callable[[], Any]:
    weight = _weight(form, o, i, sparsity)
    w = (_transposed(weight) if which == "_dx" else weight).to_torch().to(arrays[0].device)
    if which != "_dw":
        return lambda: (w @ arrays[0].t()).t()
    return lambda: torch.sparse.sampled_addmm(w, arrays[0].t(), arrays[1], beta=0.0).values()


def _kernel(form: str, which: str) -> Kernel:
    return Kernel(
        functools.partial(_inputs, which),
        functools.partial(_ours, form, which),
        None if (form, which) == ("bsr", "_dw") else functools.partial(_torch, form, which),
        functools.partial(_reference, form, which),
        flops=lambda n, o, i, sparsity: 2.0 * n * _weight(form, o, i, sparsity).nnz,
    )


KERNELS = {f"{form}{which}": _kernel(form, which) for form in ("csr", "bsr") for which in ("", "_dx", "_dw")}


# --- other peers ------------------------------------------------------------------------------------------------------
def scipy_task(op: str, sizes: dict[str, Any]) -> Task:
    """SciPy's product of a sparse and a dense matrix."""
    form, _, which = op.partition("_")
    weight = _weight(form, sizes["o"], sizes["i"], sizes["sparsity"])
    w, (array,) = (_transposed(weight) if which else weight).to_scipy(), kernels.inputs_of(KERNELS[op], sizes)

    def run():
        return (w @ array.T).T

    return Task(run, lambda: {"result": [run()]})


def dense_task(op: str, device: str, sizes: dict[str, Any]) -> Task:
    """numbanet's dense product; its dw has all elements, of which only the stored ones are compared."""
    from numbanet.device import device as named

    (form, _, which), dev = op.partition("_"), named(device)
    weight = _weight(form, sizes["o"], sizes["i"], sizes["sparsity"])
    arrays, w = [dev.upload(a) for a in kernels.inputs_of(KERNELS[op], sizes)], dev.upload(weight.dense())
    run = {
        "": lambda: dev.gemm(arrays[0], w, tb=True),
        "dx": lambda: dev.gemm(arrays[0], w),
        "dw": lambda: dev.gemm(*arrays, ta=True),
    }[which]

    def outputs():
        result = np.array(dev.download(run()))
        return {"result": [_stored(form, result, weight) if which == "dw" else result]}

    return Task(run, outputs, **numbanet_on(dev))


# --- cases ------------------------------------------------------------------------------------------------------------
def cases(options: Options) -> Iterator[Case]:
    """Each operation at each sparsity, against each peer."""
    [(n, i, o)] = options.sizes((33, 64, 96), (128, 2048, 2048))
    shape = {"n": n, "o": o, "i": i}
    chosen = [
        (op, {**shape, "sparsity": sparsity})
        for op in KERNELS
        for sparsity in (SPARSITIES[3:4] if options.quick else SPARSITIES)
    ]
    for case, (op, sizes) in zip(kernels.cases(SUITE, chosen, options), chosen, strict=True):
        ours = case.implementations[0]
        if options.against:
            yield case
        dense = Implementation(
            "dense",
            dense_task,
            {"op": op, "device": options.device, "sizes": sizes},
            flops=2.0 * sizes["n"] * sizes["o"] * sizes["i"],
        )
        yield _against(case, ours, dense)
        if options.device == "cpu" and not op.endswith("_dw"):
            yield _against(case, ours, Implementation("SciPy", scipy_task, {"op": op, "sizes": sizes}, flops=ours.flops))


def _against(case: Case, ours: Implementation, peer: Implementation) -> Case:
    ours = dataclasses.replace(ours, peer=peer.name, ceiling=peer.flops / ours.flops if ours.flops else None)
    return dataclasses.replace(case, name=f"{case.name}, against {peer.name}", implementations=(ours, peer))


# --- chart ------------------------------------------------------------------------------------------------------------
def times(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[float, float]]]:
    """{operation: {implementation: {sparsity: ms}}}; numbanet's times are those measured against the dense product."""
    by_op: dict[str, dict[str, dict[float, float]]] = {"forward": {}, "dx": {}, "dw": {}}
    for row in rows:
        name, _, peer = row["case"].partition(", against ")
        op, sparsity = name.split()[0], float(name.rpartition("=")[2])
        form, _, which = op.partition("_")
        ours = row["implementation"] == "numbanet"
        if row.get("median_ms") is None or (ours and peer != "dense") or (row["implementation"] == "dense" and form == "bsr"):
            continue
        label = {"csr": "CSR", "bsr": f"tiles of {TILE}"}[form]
        line = label if ours else "dense" if row["implementation"] == "dense" else f"{row['implementation']}, {label}"
        by_op[which or "forward"].setdefault(line, {})[sparsity] = row["median_ms"]
    return by_op


def crossing(sparse: dict[float, float], dense: dict[float, float]) -> float | None:
    """The sparsity from which on the sparse product is faster, interpolated linearly between measured sparsities; None if it is
    never faster."""
    sparsities = sorted(sparse.keys() & dense.keys())
    gains = [dense[s] - sparse[s] for s in sparsities]
    if not sparsities or gains[-1] <= 0:
        return None
    last = max((k for k, gain in enumerate(gains) if gain <= 0), default=None)
    if last is None:
        return sparsities[0]
    low, high = sparsities[last : last + 2]
    return low + (high - low) * -gains[last] / (gains[last + 1] - gains[last])


def plot(results: Any, path: Path) -> None:
    """Plot time against sparsity, a panel for each operation."""
    from ..machinery.plots import figure_of

    by_op = times([row for row in results.rows if row["suite"] == SUITE])
    figure = figure_of(15, 5)
    for axes, (op, lines) in zip(figure.subplots(1, len(by_op), squeeze=False)[0], by_op.items(), strict=True):
        for name, points in lines.items():
            style = "k-" if name == "dense" else "--" if "," in name else "-"
            axes.plot(*zip(*sorted(points.items())), style, marker=".", label=name)
        for name in ("CSR", f"tiles of {TILE}"):
            sparsity = crossing(lines.get(name, {}), lines.get("dense", {}))
            if sparsity is not None:
                axes.axvline(sparsity, color="gray", linewidth=0.8, linestyle=":")
                axes.annotate(
                    f"{name}: from {sparsity:.0%} on",
                    (sparsity, 1.0),
                    xycoords=("data", "axes fraction"),
                    rotation=90,
                    fontsize=7,
                    va="top",
                    ha="right",
                )
        axes.set_title(op)
        axes.set_yscale("log")
        axes.set_xlabel("share of the weight that is zero")
        axes.set_ylabel("ms")
        axes.grid(alpha=0.3, which="both")
        if lines:
            axes.legend(fontsize=7)
    figure.savefig(path, dpi=130)
