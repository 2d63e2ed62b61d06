"""Predictor: forward passes without gradients. Passes of few samples are recorded and replayed."""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np

from numbanet_kernels.runtime.interrupt import deferred

from .. import profile
from ..autograd import no_grad
from ..device import device
from ..dropout import Dropout
from ..layers import DENSE, Context, Flow, Layer, LayerNorm, Linear, Normalize, Select, Sequential, Shuffle, Symbols, Tree
from ..plans import Plans
from ..tensor import Tensor
from .data import on_host, rows_of, view_of
from .large.rows import Rows

LEAST_ROWS = 32
PREDICT_ROWS = 4096  # largest number of samples of a forward pass, which bounds its memory
# layers that compute each sample separately; layers that treat each neuron by itself do so as well
BY_SAMPLE = Linear, LayerNorm, Normalize, Select, Sequential, Shuffle


class Predictor:
    """Computes the output of a model for samples, without gradients.

    The prediction for a sample should not depend on how many other samples are predicted together with it, but BLAS uses other
    kernels for very few rows. On the CPU, if all layers allow it, up to LEAST_ROWS samples are multiplied by `Device.gemm_few`:
    its result for a sample is the same to the last bit for any number of samples. Otherwise a batch of fewer samples is padded
    to LEAST_ROWS.

    A pass of at most `ROWS` samples is recorded when the same shape comes for the second time, and is then replayed; the
    results are equal to the last bit. Python threads may share a predictor: one of them replays, the others compute op by op.

    Parameters
    ----------
    model : Layer
        The model.
    session_options : dict
        As for a `Stepper`.
    policy : Dropout, optional
        A policy that selects what is computed (`Dropout.inference_policy`). If it is given, nothing is recorded.
    """

    ROWS = 128  # largest number of samples of a recorded pass; with more, Python takes a negligible part of the time
    PASSES = 128  # largest number of recorded passes: of 64 shapes, with and without a link
    MOST = 1 << 24  # bytes that all recorded passes together may take, and bytes of a buffer of inputs

    def __init__(self, model: Layer, session_options: dict[str, Any], policy: Dropout | None = None) -> None:
        self.model, self.session_options, self.policy = model, session_options, policy
        self.dev = dev = next(model.parameters()).device
        self.tree = Tree(model)
        self._choose = policy and policy.choosing(self.tree, np.random.default_rng(0))
        layers = self.tree.layers.values()
        self._by_sample = (
            dev.name == "cpu" and not policy and all(layer.acts_as(*BY_SAMPLE) or layer.passes_units for layer in layers)
        )
        # a user's layer may write to its inputs, or keep them, so it gets a copy
        self._views = all(type(layer).__module__.startswith("numbanet.layers.") for layer in layers)
        self._records = not policy and not profile.ENABLED and dev.records() and bool(getattr(model, "records", False))
        self._inputs: dict[tuple[int, ...], Any] = {}  # maps the shape of a sample to the buffer that recorded passes read
        self._passes: dict[tuple, _Pass | None] = {}  # maps (shape, number of threads) to a pass; None if it cannot be recorded
        self._met: set[tuple] = set()  # the keys of passes that were computed once, but are not yet recorded
        self._graphs: list[Any] = []
        self._free = threading.Lock()  # held while the buffers are in use

    def fits(self, model: Layer, session_options: dict[str, Any], policy: Dropout | None) -> bool:
        """Return True if this predictor can be used for these arguments: they are those of the constructor, nothing in the
        model has changed except values of its arrays, and there is no policy. (A policy may depend on these values.)
        """
        same = self.model is model and self.session_options == session_options and policy is None is self.policy
        return same and self.tree.current

    def __call__(self, X: Any, rows: np.ndarray | None = None, link: str | None = None) -> np.ndarray:
        """Return the output, an array on the host, for the samples `rows` of X (n, …), by default for all samples. X is that of
        `Data`. Samples are computed in chunks of PREDICT_ROWS. If the name of an operation is given as `link`, "softmax" or
        "sigmoid", it is applied to the output, on the CPU.
        """
        some = rows is None and len(X) <= self.ROWS and not on_host(X) and not isinstance(X, Rows)
        if some and self._records and self._free.acquire(blocking=False):
            try:
                found = self._replayed(X, link)
            finally:
                self._free.release()
            if found is not None:
                return found
        pieces, whole, rows = [], rows is None, np.arange(len(X)) if rows is None else rows
        most = min(PREDICT_ROWS, max(getattr(X, "most", None) or PREDICT_ROWS, LEAST_ROWS))
        with no_grad(), self.dev.session(**self.session_options):
            for start in range(0, len(rows), most):
                pieces.append(self._computed(X, rows[start : start + most].astype(np.int32), whole))
                deferred.poll()
        return _linked(link, np.concatenate(pieces))

    def _computed(self, X: Any, rows: np.ndarray, adjacent: bool) -> np.ndarray:
        """Return the output for the samples `rows`; if they are `adjacent` in X, they are not copied for our own layers."""
        filled = self._filled(rows)
        symbols = np.asarray(X[filled], np.int32) if on_host(X) else None
        if symbols is not None:
            x = self.dev.upload(symbols)
        else:
            x = view_of(X, rows, self.dev) if adjacent and self._views and filled is rows else rows_of(X, filled, self.dev)
        return self.dev.download(self._output(x, symbols))[: len(rows)]

    def _filled(self, rows: np.ndarray) -> np.ndarray:
        """Return `rows`, padded to LEAST_ROWS if fewer samples could change the result of a sample."""
        return rows if self._by_sample or len(rows) >= LEAST_ROWS else np.pad(rows, (0, LEAST_ROWS - len(rows)), mode="edge")

    def _output(self, x: Any, symbols: np.ndarray | None = None) -> Any:
        flow = Flow(Tensor.wrap(x, self.dev), DENSE if symbols is None else Symbols(symbols))
        plans = Plans(self.dev, self.tree.sites, choose=self._choose) if self._choose else None
        few = self._by_sample and len(x) <= LEAST_ROWS
        return self.model.forward(flow, Context(self.dev, plans, few=few)).dense().data

    # --- recorded passes ----------------------------------------------------------------------------------------------
    def _replayed(self, X: Any, link: str | None) -> np.ndarray | None:
        """Return the output for all rows of X, with the link, from a recorded pass; None if none of this shape is recorded."""
        here = link if self.dev.name == "cpu" else None  # what is recorded
        key = X.shape, self.dev.workers(), here
        if key not in self._passes:
            if key not in self._met:
                if len(self._met) < self.PASSES:
                    self._met.add(key)
                return None
            self._passes[key] = self._record(X, here)
        if (found := self._passes[key]) is None:
            return None
        alone = self._by_sample and len(X) <= LEAST_ROWS  # True if no product uses BLAS, which a session would set up
        with contextlib.nullcontext() if alone else self.dev.session(**self.session_options):
            if found.rows is None:
                self.dev.copy(X, out=found.inputs)
            else:
                self.dev.take_rows(X, found.rows, out=found.inputs)
            found.graph.replay()
            output = self.dev.download(self.dev.copy(found.graph.result))[: len(X)]
        return output if here == link else _linked(link, output)

    def _record(self, X: Any, link: str | None) -> _Pass | None:
        """Record and return a pass for inputs of the shape of X; return None if it cannot be recorded."""
        rows, dev = self._filled(np.arange(len(X), dtype=np.int32)), self.dev
        if X.dtype.itemsize * self.ROWS * math.prod(X.shape[1:]) > self.MOST:
            return None
        if (key := X.shape[1:]) not in self._inputs:
            self._inputs[key] = dev.empty((self.ROWS, *X.shape[1:]), X.dtype)
        inputs = dev.part(self._inputs[key], 0, len(rows))

        def work() -> Any:
            output = self._output(inputs)
            return output if link is None else getattr(dev, link)(output)

        try:
            with no_grad(), dev.session(**self.session_options):
                graph = dev.record(work, next(iter(self._graphs), None), self.MOST)
        except Exception as error:  # a driver may raise any error
            warnings.warn(f"predictions are not replayed: {type(error).__name__}: {error}", stacklevel=2)
            graph = None
            self._graphs.clear()
        if graph is None:
            self._records = bool(self._graphs)
            return None
        self._graphs.append(graph)
        return _Pass(graph, inputs, dev.upload(rows) if len(rows) > len(X) else None)


def _linked(link: str | None, output: np.ndarray) -> np.ndarray:
    """Return the result of the operation `link`, if it is given, for an output on the host."""
    return output if link is None else getattr(device("cpu"), link)(output)


class _Pass(NamedTuple):
    """A recorded pass."""

    graph: Any
    inputs: Any  # the buffer that the pass reads
    rows: Any  # maps a row of the buffer to the row of X if there are more rows than samples; else None
