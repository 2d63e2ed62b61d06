"""Forward passes without gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbanet_kernels.runtime.interrupt import deferred

from ..autograd import no_grad
from ..device import Device
from ..dropout import Dropout
from ..layers import DENSE, Context, Flow, Layer, Symbols, Tree
from ..plans import Plans
from ..tensor import Tensor
from .data import on_host

LEAST_ROWS = 32
PREDICT_ROWS = 4096  # samples per forward pass: bounds its memory


def forward(
    model: Layer, dev: Device, X: Any, rows: np.ndarray, session_options: dict[str, Any], policy: Dropout | None = None
) -> np.ndarray:
    """The model's output, a host array, for the samples `rows` of X (n, …), which is as in `Data`; it is computed in chunks of
    PREDICT_ROWS samples. session_options are those of a `Stepper`. A policy may select the outputs that are computed
    (`Dropout.inference_policy`).

    A short chunk is padded to LEAST_ROWS samples: BLAS uses other kernels for very few rows, and the prediction for a sample
    should not depend on the number of samples that are predicted with it.
    """
    pieces, tree = [], Tree(model)
    choose = policy and policy.choosing(tree, np.random.default_rng(0))
    with no_grad(), dev.session(**session_options):
        for start in range(0, len(rows), PREDICT_ROWS):
            chosen = rows[start : start + PREDICT_ROWS].astype(np.int32)
            filled = np.pad(chosen, (0, max(LEAST_ROWS - len(chosen), 0)), mode="edge")
            symbols = np.asarray(X[filled], np.int32) if on_host(X) else None
            piece = dev.take_rows(X, dev.upload(filled)) if symbols is None else dev.upload(symbols)
            flow = Flow(Tensor.wrap(piece, dev), DENSE if symbols is None else Symbols(symbols))
            plans = Plans(dev, tree.sites, choose=choose) if choose else None
            pieces.append(model.forward(flow, Context(dev, plans)).dense().numpy()[: len(chosen)])
            deferred.poll()
    return np.concatenate(pieces)
