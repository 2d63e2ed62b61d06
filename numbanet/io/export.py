"""An estimator -> an ONNX file, which onnxruntime and other runtimes compute without numbanet."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from numbanet_kernels.runtime.interrupt import deferred

from ..arguments import GRAPHS, check_target
from ..layers import ActivationSpec, Layer
from ..plans import Plans
from .card import check_fitted, facts
from .classes import check_no_link, check_no_selection
from .onnx_graph import Graph
from .onnx_writer import Value, write


def export(net: Any, path: str | os.PathLike) -> None:
    """Write the predictions of a fitted estimator as an ONNX file (opset 17, float32), atomically.

    The batch size is free, and so is the length of sequences. Weights have the names of `net.model_.state_dict()`. The file's
    metadata has the classes or the vocabulary, the parameters and the versions, as JSON. The file has been checked by
    `onnx.checker`, which infers the shapes of all values.

    Inputs and outputs by kind of estimator:

        Net             X (N, …), where … is `input_shape_`; float32, or int64 for an embedding -> probabilities
        NetRegressor    X (N, …) -> predictions (N, outputs), in the units of y
        LanguageModel   words (T, N) int64; h0, c0, h1, … (layers, N, H), the states -> logits (T, N, V); h0_out, c0_out, …

    Parameters
    ----------
    net : estimator
        A fitted `Net`, `NetRegressor` or `LanguageModel`.
    path : str or path
        The file; it is replaced.

    Raises
    ------
    TypeError
        If a layer is not one of the library's, or the loss has an inverse link, which is a function.
    ValueError
        If the file name does not end in .onnx, or if dropout selects what predictions compute (`DynamicSparseGraph`).
    FileNotFoundError, IsADirectoryError, PermissionError
        If the file cannot be written.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.
    ImportError
        If onnx is missing.
    """
    if not isinstance(net, BaseEstimator):
        raise TypeError(f"export takes a fitted estimator, not {type(net).__name__}")
    check_fitted("export", net)
    check_no_selection("export", net)
    target = check_target(path, GRAPHS)
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(f"export needs onnx: pip install 'numbanet[onnx]' ({error})") from error
    from numbanet.datasets.files import write_file

    graph = Graph()
    (_language if hasattr(net, "vocabulary_") else _samples)(graph, net)
    metadata = {name: json.dumps(value) for name, value in facts(net).items()}
    content = graph.model(metadata).SerializeToString()
    with deferred:
        write_file(target, content)


def _samples(graph: Graph, net: Any) -> None:
    """X -> probabilities or predictions."""
    check_no_link("export", net)
    symbols, shape = net.model_.symbols is not None, tuple(net.input_shape_)
    free = (symbols or len(shape) == 2) and _takes(net.model_, (1, shape[0] + 1, *shape[1:]))  # the length of a sequence
    axes: list[int | str] = ["samples", *(("steps", *shape[1:]) if free else shape)]
    graph.inputs["X"] = np.int64 if symbols else np.float32, axes
    value = write(graph, net.model_, Value("X", (1, *shape)))
    outputs: list[int | str] = ["samples", *("steps",) * (value.rank - 2), int(value.shape[-1] or 0)]
    if hasattr(net, "target_scale_"):
        scale, mean = (graph.constant(np.float32(part)) for part in (net.target_scale_, net.target_mean_))
        graph.rename(graph.add("Add", graph.add("Mul", value.name, scale), mean), "predictions")
        graph.outputs["predictions"] = np.float32, outputs
        return
    several = getattr(net, "_several", False)
    graph.rename(graph.add("Sigmoid", value.name) if several else graph.add("Softmax", value.name, axis=-1), "probabilities")
    graph.outputs["probabilities"] = np.float32, outputs


def _takes(model: Layer, shape: tuple[int, ...]) -> bool:
    """Return True if a model takes a batch of this shape."""
    try:
        model.cost(ActivationSpec(shape), Plans())
    except ValueError:
        return False
    return True


def _language(graph: Graph, model: Any) -> None:
    """Words and states -> logits and states."""
    graph.inputs["words"] = np.int64, ["steps", "samples"]
    graph.outputs["logits"] = np.float32, ["steps", "samples", len(model.vocabulary_)]
    value = write(graph, model.model_, Value("words", (1, 1), states=0))
    graph.rename(value.name, "logits")
