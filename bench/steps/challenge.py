"""The Sparse DNN Graph Challenge, 1024 neurons x 120 layers, 60,000 images: several algorithms, against SciPy and GraphBLAS.

The peer multiplies sparse activations by sparse weights, as the Challenge's reference implementation does: activations are
(images, neurons) in CSR, the bias is added to stored entries only, and entries that are not positive are removed, so that
images whose activations are all 0 cost nothing. python-graphblas (SuiteSparse) does the same, if it is installed. Generated
networks of 1024 and 4096 neurons, with the same images enlarged, show how the time grows with the size. A repetition begins
with sparse images and layers in memory, and ends with the categories.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numbanet.challenge import WAYS, ChallengeData, RadixNet, load_challenge
from numbanet.challenge.inference import Prepared
from numbanet.challenge.radixnet import CEILING
from numbanet.challenge.run import generated
from numbanet.device import device as named

from ..machinery.harness import Case, Implementation, Options, run_cases
from ..machinery.results import Results
from ..machinery.worker import Task

SUITE = "challenge"
RECORDED = ("--json bench/results/challenge.json --plot challenge.png",)
LANES = 64


class Size(NamedTuple):
    """Neurons per layer, layers and images. `source` is "official", "generated" or "random" (random images)."""

    neurons: int
    layers: int
    inputs: int
    source: str


OFFICIAL, QUICK = Size(1024, 120, 60_000, "official"), Size(64, 12, 500, "random")
GROWTH = Size(1024, 120, 60_000, "generated"), Size(4096, 120, 60_000, "generated")
PAIRS, LONG = 5, 3


@functools.lru_cache(maxsize=1)
def data_of(size: Size) -> ChallengeData:
    """The images and layers of a size."""
    if size.source == "official":
        return load_challenge(size.neurons, size.layers)
    if size.source == "generated":
        return generated(size.neurons, size.layers, size.inputs)
    images = np.random.default_rng(4).random((size.inputs, size.neurons))
    images = images < 0.4 * np.linspace(0, 1, size.inputs)[:, None]
    starts = np.concatenate([[0], np.cumsum(images.sum(axis=1))]).astype(np.int32)
    columns = np.nonzero(images)[1].astype(np.int32)
    return ChallengeData(starts, columns, np.ones(len(columns), np.float32), RadixNet(size.neurons, size.layers), None)


# --- implementations --------------------------------------------------------------------------------------------------
def numbanet_task(size: Size, way: str, device: str) -> Task:
    """Task: one of numbanet's algorithms, by name."""
    dev = named(device)
    prepared = Prepared(data_of(size), way, dev, -(-size.inputs // LANES) * LANES)

    def outputs() -> Mapping[str, Any]:
        result = prepared.run()
        return {
            "categories": result.categories,
            "live": result.live,
            "seconds": prepared.run().by_layer,
            "multiplications": result.multiplications,
        }

    return Task(prepared.run, outputs, dev.synchronize)


def _matrices(size: Size) -> tuple[Any, list[tuple[Any, float]]]:
    """Images (N, neurons), and for each layer its weights (inputs, outputs) and bias, as SciPy's CSR."""
    from scipy.sparse import csr_matrix

    data, layers = data_of(size), []
    for indices, values, bias in data.network:
        rows = np.arange(0, indices.size + 1, indices.shape[1])
        layers.append((csr_matrix((values.ravel(), indices.ravel(), rows), (size.neurons,) * 2).T.tocsr(), bias[0]))
    return csr_matrix((data.values, data.columns, data.starts), (len(data.starts) - 1, size.neurons)), layers


def _task(run: Callable[[], np.ndarray]) -> Task:
    return Task(run, lambda: {"categories": run()})


def scipy_task(size: Size) -> Task:
    """Task: SciPy's products of CSR matrices."""
    images, layers = _matrices(size)

    def run() -> np.ndarray:
        y = images
        for weights, bias in layers:
            y = y @ weights
            np.clip(y.data + bias, 0, CEILING, out=y.data)
            y.eliminate_zeros()
        return np.flatnonzero(np.diff(y.indptr))

    return _task(run)


def graphblas_task(size: Size) -> Task:
    """Task: SuiteSparse:GraphBLAS, on the same number of threads as numbanet."""
    import graphblas as gb

    from ..machinery.machine import threads

    gb.ss.config["nthreads"] = threads()
    images, layers = _matrices(size)
    images = gb.io.from_scipy_sparse(images)
    layers = [(gb.io.from_scipy_sparse(weights), float(bias)) for weights, bias in layers]

    def run() -> np.ndarray:
        y = images
        for weights, bias in layers:
            product = y.mxm(weights, gb.semiring.plus_times).new()
            shifted = product.apply(gb.binary.plus, right=bias).new()
            y = shifted.select(">", 0).new().apply(gb.binary.min, right=CEILING).new()
        return np.sort(y.reduce_rowwise(gb.monoid.any).new().to_coo()[0])

    return _task(run)


# --- errors -----------------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def truth(size: Size) -> np.ndarray:
    """The Challenge's categories or, if the size has none, those computed in float64."""
    data = data_of(size)
    if data.truth is not None:
        return data.truth
    y = np.zeros((size.neurons, size.inputs))
    y[data.columns, np.repeat(np.arange(size.inputs), np.diff(data.starts))] = data.values
    for indices, values, bias in data.network:
        y = np.clip(np.einsum("ok,okn->on", np.float64(values), y[indices]) + np.float64(bias)[:, None], 0, CEILING)
    return np.flatnonzero(y.any(axis=0))


def error(size: Size, outputs: Mapping[str, Any]) -> float:
    """n wrong or missing categories, divided by n categories."""
    expected = truth(size)
    return len(np.setxor1d(outputs["categories"], expected)) / max(len(expected), 1)


def growth_error(outputs: Mapping[str, Any]) -> float:
    """Error of a large generated network, which has no known categories: 0 if the number of images whose activations are not
    all 0 never grows, and some but not all images remain. The official network checks the same kernels exactly."""
    live = outputs["live"]
    return float(not (np.diff(live) <= 0).all() or not 0 < len(outputs["categories"]) < live[0])


# --- cases ------------------------------------------------------------------------------------------------------------
def _name(size: Size) -> str:
    return f"{size.neurons} x {size.layers}, {size.inputs} images, {size.source}"


def cases(options: Options) -> Iterator[Case]:
    """All algorithms and the peers on the official network; then one algorithm on two generated networks."""
    size = QUICK if options.quick else OFFICIAL
    if options.wants(_name(size)):
        yield _official(options, size)
    for size in () if options.quick else GROWTH:
        if not options.wants(_name(size)):
            continue
        one = Implementation(
            "compact",
            numbanet_task,
            {"size": size, "way": "compact", "device": options.device},
            flops=2.0 * prepared_multiplications(size),
        )
        yield Case(SUITE, _name(size), (one,), growth_error, 0.0, pairs=PAIRS)


def _official(options: Options, size: Size) -> Case:
    """All algorithms and the peers."""
    flops = 2.0 * prepared_multiplications(size)
    everything = 2.0 * size.inputs * sum(layer.indices.size for layer in data_of(size).network)
    work = {"compact": flops, "buffer": everything, "plain": everything}
    ours = [
        Implementation(
            way,
            numbanet_task,
            {"size": size, "way": way, "device": options.device},
            "SciPy" if way == "compact" else "compact",
            flops=work.get(way),
        )
        for way in WAYS
    ]
    ours.append(Implementation("SciPy", scipy_task, {"size": size}))
    if importlib.util.find_spec("graphblas"):
        ours.insert(1, Implementation("compact, GraphBLAS", numbanet_task, ours[0].parameters, "GraphBLAS", flops=flops))
        ours.append(Implementation("GraphBLAS", graphblas_task, {"size": size}))
    return Case(SUITE, _name(size), tuple(ours), functools.partial(error, size), 0.0, pairs=LONG)


@functools.lru_cache(maxsize=4)
def prepared_multiplications(size: Size) -> int:
    """n multiplications by images whose activations are not all 0."""
    return int(by_layer(size, "compact", "cpu")["multiplications"].sum())


def by_layer(size: Size, way: str, device: str) -> Mapping[str, Any]:
    """Outputs of one run in this process, with values for each layer."""
    return numbanet_task(size, way, device).outputs()


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time all cases; record also the exponent of the growth of time with multiplications, and the time of each layer."""
    rows = run_cases(SUITE, cases(options), options, results, say)
    timed = {row["case"]: row for row in rows if row["implementation"] == "compact" and row["median_ms"]}
    one, other = (timed.get(_name(size)) for size in GROWTH)
    if one and other:
        slope = math.log(other["median_ms"] / one["median_ms"]) / math.log(other["flops"] / one["flops"])
        results.add(
            [
                {
                    "suite": f"{SUITE}-slope",
                    "case": f"from {GROWTH[0].neurons} to {GROWTH[1].neurons} neurons",
                    "implementation": "compact",
                    "slope": slope,
                }
            ]
        )
        say(
            f"challenge: from {GROWTH[0].neurons} to {GROWTH[1].neurons} neurons time grows with multiplications to the power "
            f"of {slope:.2f}"
        )
    size = QUICK if options.quick else OFFICIAL
    for way in ("compact", "filter", "buffer", "saturated") if options.wants(_name(size)) else ():
        layers = by_layer(size, way, options.device)
        results.add(
            [
                {
                    "suite": f"{SUITE}-layers",
                    "case": _name(size),
                    "implementation": way,
                    "inputs": size.inputs,
                    **{name: np.asarray(layers[name]).tolist() for name in ("live", "seconds", "multiplications")},
                }
            ]
        )
    return rows


def plot(results: Results, path: Path) -> None:
    """Plot the share of images that are not all 0, and the time of each algorithm, by layer."""
    from ..machinery.plots import plot_layers

    plot_layers([row for row in results.rows if row["suite"] == "challenge-layers"], path)
