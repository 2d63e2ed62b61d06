"""The files of the Sparse Deep Neural Network Graph Challenge are read, checked, and cached as one binary file:

    sparse-images-1024.tsv             lines (image, pixel, 1)
    neuron1024-l1-l120.tar             an archive of files n1024-l1.tsv ... with lines (input, neuron, weight); or a folder
                                       neuron1024 of these files
    neuron1024-l120-categories.tsv     the numbers of the images that are not 0 after the last layer

Each file may be compressed (.xz, .gz), except for files of layers in a folder.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import lzma
import os
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from numbanet.datasets.files import cache_folder, find_file, search_folders, write_file
from numbanet_kernels.runtime.interrupt import deferred

from .radixnet import NEURONS, EllLayer, challenge_bias
from .tsv import PIECE, read_entries, read_numbers

FORMAT = "numbanet challenge 1"
IMAGES = 60_000
# number of entries of the official images: without it, a text that is truncated at the end of a line would not be noticed
NONZEROS = {1024: 6_374_505}
ENDINGS = ("", ".xz", ".gz")


class ChallengeData(NamedTuple):
    """The images, the network and the expected result of the Challenge.

    Attributes
    ----------
    starts, columns, values : ndarrays
        Image n has the values (float32) at pixels columns[starts[n]:starts[n + 1]] (int32).
    network : sequence of EllLayer
    truth : ndarray or None
        Indices of the images of which an output is not 0 after the last layer; None if they are unknown.
    """

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    network: Sequence[EllLayer]
    truth: np.ndarray | None


# --- finding files ----------------------------------------------------------------------------------------------------
def _find(folders, neurons, layers):
    """Find the files of images, layers and categories; the layers may be a list of files."""
    names = [
        [f"sparse-images-{neurons}.tsv{ending}" for ending in ENDINGS],
        [f"neuron{neurons}{part}.tar{ending}" for part in (f"-l1-l{layers}", "") for ending in ENDINGS],
        [f"neuron{neurons}-l{layers}-categories.tsv{ending}" for ending in ENDINGS],
    ]
    images, weights, categories = (find_file(folders, some) for some in names)
    for folder in folders if weights is None else ():
        parts = [folder / f"neuron{neurons}" / f"n{neurons}-l{layer}.tsv" for layer in range(1, layers + 1)]
        weights = weights or [path for path in parts if path.is_file()] or None
    for file, some in ((images, names[0]), (weights, names[1])):
        if file is None:
            raise FileNotFoundError(
                f"the Challenge of {neurons} neurons and {layers} layers: {some[0]} (or {', '.join(some[1:])}) was expected in "
                f"{' or '.join(map(str, folders))}. Put it there (graphchallenge.org), set NUMBANET_DATA to a folder with "
                "graphchallenge/ in it, or have the network generated: data='generated'" + _other_size(neurons)
            )
    return images, weights, categories


def _other_size(neurons):
    """Return the end of an error if the official networks have other sizes, else ""."""
    *sizes, last = NEURONS
    official = f"{', '.join(map(str, sizes))} or {last} neurons a layer"
    return "" if neurons in NEURONS else f"; the official networks are of {official}, not of {neurons}"


@contextlib.contextmanager
def _opened(path: Path, tell: Callable[[BinaryIO], Any]) -> Iterator[tuple[BinaryIO, Callable[[], Any]]]:
    """Open a file, and yield (file, tick). It is decompressed while it is read; tick() reports the progress."""
    with path.open("rb") as raw:
        open_as: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix)
        with open_as(raw) if open_as else contextlib.nullcontext(raw) as file:
            yield file, lambda: tell(raw)


# --- reading ----------------------------------------------------------------------------------------------------------
def _images(path, neurons, tell):
    """Read the images, and return (starts, columns, values), as in `ChallengeData`."""
    with _opened(path, tell) as (file, tick):
        entries = read_entries(file, path, (IMAGES, neurons), tick)
    if len(entries.rows) != NONZEROS.get(neurons, len(entries.rows)):
        raise ValueError(f"{path}: {NONZEROS[neurons]} entries expected, got {len(entries.rows)}: truncated, or other images")
    order = np.argsort(entries.rows, kind="stable")
    counts = np.bincount(entries.rows)
    return (np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), entries.columns[order], entries.values[order])


def _layer(file, source, neurons):
    """Read a layer, and return (indices, values), as in `EllLayer`."""
    inputs, outputs, values = read_entries(file, source, (neurons, neurons))
    depth, rest = divmod(len(inputs), neurons)
    counts = np.bincount(outputs, minlength=neurons)
    if rest or (counts != depth).any():
        at = int(np.argmax(counts != counts[0]))
        raise ValueError(
            f"{source}: as many inputs for each of {neurons} neurons expected, got {counts[0]} for neuron 1 and "
            f"{counts[at]} for neuron {at + 1}: truncated, or another network"
        )
    return inputs.reshape(neurons, depth), values.reshape(neurons, depth)


def _members(path, neurons, layers, tell):
    """Yield (number of the layer, file, source for messages) for each requested layer of an archive or a folder."""
    if isinstance(path, list):
        for part in path:
            with _opened(part, tell) as (file, _):
                yield int(part.stem.rpartition("-l")[2]), file, part
        return
    with _opened(path, tell) as (file, tick):
        try:
            with tarfile.open(fileobj=file, mode="r|") as archive:
                for member in archive:
                    tick()
                    match = re.fullmatch(rf"(?:.*/)?n{neurons}-l(\d+)\.tsv", member.name)
                    if match and member.isfile() and 1 <= int(match[1]) <= layers:
                        yield int(match[1]), archive.extractfile(member), f"{path}: {member.name}"
            while file.read(PIECE):  # read to the end: the rest may show that the file is damaged
                tick()
        except (EOFError, OSError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path}: a complete archive expected, got a truncated one: {error}") from error


def _layers(path, neurons, layers, tell):
    """Read all layers, and return indices and values, both (layers, neurons, K)."""
    parts = {}
    for layer, file, source in _members(path, neurons, layers, tell):
        if layer in parts:
            raise ValueError(f"{source}: layer {layer} occurs twice")
        parts[layer] = _layer(file, source, neurons)
        if parts[layer][0].shape != parts[next(iter(parts))][0].shape:
            raise ValueError(
                f"{source}: {parts[next(iter(parts))][0].shape[1]} inputs per neuron expected, as in other layers, "
                f"got {parts[layer][0].shape[1]}"
            )
    missing = [layer for layer in range(1, layers + 1) if layer not in parts]
    if missing:
        where = path[0].parent if isinstance(path, list) else path
        raise ValueError(
            f"{where}: {layers} layers expected, got {len(parts)}; the first one missing is n{neurons}-l{missing[0]}.tsv"
        )
    return tuple(np.stack([parts[layer][part] for layer in range(1, layers + 1)]) for part in range(2))


def _truth(path, tell):
    with _opened(path, tell) as (file, _):
        return read_numbers(file, path, IMAGES)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], Callable[[BinaryIO], Any]]]:
    """Return a context with a progress bar over the bytes of all files, which is shown on a terminal. It yields a function that
    maps the size of a file to the callback that reports the progress of this file.
    """
    from rich import console, progress

    columns = progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TimeRemainingColumn()
    terminal = console.Console(stderr=True)
    with progress.Progress(*columns, console=terminal, transient=True, disable=not sys.stderr.isatty()) as bar:
        task, done = bar.add_task("reading", total=total), [0]

        def of(size: int) -> Callable[[BinaryIO], Any]:
            before = done[0]
            done[0] += size
            return lambda raw: bar.update(task, completed=before + raw.tell())

        yield of


def _read(images, weights, categories, neurons, layers):
    """Read all files, and return a dict of the arrays."""
    sizes = [path.stat().st_size for path in (images, *(weights if isinstance(weights, list) else [weights]))]
    with _progress(sum(sizes)) as of:
        arrays = dict(zip(("starts", "columns", "values"), _images(images, neurons, of(sizes[0]))))
        arrays["indices"], arrays["weights"] = _layers(weights, neurons, layers, of(sum(sizes[1:])))
    arrays["truth"] = np.array([-1]) if categories is None else _truth(categories, lambda raw: None)
    if arrays["truth"][-1:].max(initial=-1) >= (count := len(arrays["starts"]) - 1):
        raise ValueError(f"{categories}: image {arrays['truth'][-1] + 1} is listed, and {images} has {count} images")
    return arrays


# --- the binary file --------------------------------------------------------------------------------------------------
def _packed(sources, arrays):
    """Return the bytes of the cache file: a digest of the rest, then the sources and the arrays in NumPy's format."""
    content = io.BytesIO()
    np.savez(content, sources=np.array(sources), **arrays)
    return hashlib.sha256(content.getbuffer()).hexdigest().encode() + b"\n" + content.getbuffer()


@deferred  # signals wait, because a time-out in a signal handler may be raised as OSError
def _unpacked(path, sources):
    """Return the arrays of the cache file; None if the file is missing, damaged, or was made from other sources."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != digest:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays} if str(arrays["sources"]) == sources else None
    except (OSError, KeyError, ValueError):
        return None


def load_challenge(neurons: int = 1024, layers: int = 120, folder: str | os.PathLike[str] | None = None) -> ChallengeData:
    """Load the Challenge's images, layers and, if known, categories from its files.

    The files are read and checked once, and cached as one binary file in numbanet's folder of the user's cache. Later calls use
    the cached file if its SHA-256 is right and the original files have the same sizes and dates.

    Parameters
    ----------
    neurons, layers : int
        The numbers of neurons per layer and of layers; files for other numbers are ignored.
    folder : path, optional
        Folder of the files. By default `$NUMBANET_DATA/graphchallenge`, else `graphchallenge` in numbanet's folder of the
        user's cache.

    Raises
    ------
    FileNotFoundError
        If a file is missing; the categories are optional.
    ValueError
        If a file is truncated or invalid; the message names file and line.
    """
    images, weights, categories = paths = _find(search_folders("graphchallenge", folder), neurons, layers)
    listed = [file for path in paths if path for file in (path if isinstance(path, list) else [path])]
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in listed]
    sources = repr((FORMAT, neurons, layers, stats))
    name = hashlib.sha256(repr([path for path, *_ in stats]).encode()).hexdigest()[:12]
    cached = cache_folder() / "graphchallenge" / f"neuron{neurons}-l{layers}-{name}.checked"
    arrays = _unpacked(cached, sources)
    if arrays is None:
        arrays = _read(images, weights, categories, neurons, layers)
        with deferred, contextlib.suppress(OSError):  # if the cache cannot be written, the files are read again next time
            write_file(cached, _packed(sources, arrays))
    bias = np.full(neurons, challenge_bias(neurons), np.float32)
    network = [EllLayer(indices, weights, bias) for indices, weights in zip(arrays["indices"], arrays["weights"])]
    truth = None if (arrays["truth"] < 0).any() else arrays["truth"]
    return ChallengeData(arrays["starts"], arrays["columns"], arrays["values"], network, truth)
