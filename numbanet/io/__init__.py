"""Interchange: networks for PyTorch and onnxruntime, networks from PyTorch, and model cards.

to_torch      an estimator or layers -> torch.nn.Module
from_torch    torch.nn.Module -> Sequential, which `Net` can train further
export        an estimator -> a file that onnxruntime computes
model_card    an estimator -> Markdown: parameters, figures, versions
report        an estimator -> an HTML page: curves, confusion matrix, what was dropped

PyTorch and onnx are imported when they are needed: pip install torch, or numbanet[onnx].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .card import model_card
from .export import export
from .report import report

if TYPE_CHECKING:
    from torch import nn

    from ..layers import Sequential

__all__ = ["export", "from_torch", "model_card", "report", "to_torch"]


def to_torch(model: Any) -> nn.Module:
    """Make a `torch.nn.Module` that computes the outputs of a network in prediction.

    The module is in evaluation mode and on the CPU, and has copies of the weights. Its parameters have the names of
    `model.state_dict()`. There is one exception: a `SparseLinear` becomes a `torch.nn.Linear` whose weight holds zeros. A layer
    that is used twice becomes one module that is used twice, so that its weights stay tied.

    Parameters
    ----------
    model : estimator, Sequential or Layer
        A fitted `Net`, `NetRegressor` or `LanguageModel`, or layers of the library. The module of a classifier computes logits,
        and that of a regressor predictions in the units of y, (N, targets), also of one target; both take samples as `predict`
        does, as tensors. The module of a
        language model maps (words (T, N), states) to (logits (T, N, V), states); words are indices into `vocabulary_`, and
        states may be left out.

    Raises
    ------
    TypeError
        If a layer is not one of the library's; the message has its path.
    ValueError
        If the dropout of an estimator selects what predictions compute (`DynamicSparseGraph`).
    sklearn.exceptions.NotFittedError
        If an estimator is not fitted.
    ImportError
        If PyTorch is missing.
    """
    _imported()
    from .torch_writer import written

    return written(model)


def from_torch(module: nn.Module) -> Sequential:
    """Make the layers of numbanet that compute the outputs of a PyTorch module in evaluation.

    Weights are copied. Modules of dropout and `Identity` are left out, because the estimator's parameter `dropout` chooses what
    training drops: `Net(from_torch(module).layers, dropout="rdp")`. The `padding_idx` of `torch.nn.Embedding`, which only keeps
    a row from being trained, is left out as well: here it would also end sequences.

    Parameters
    ----------
    module : torch.nn.Module
        A module that has a counterpart here, or a `torch.nn.Sequential` of such modules, also nested.

    Raises
    ------
    TypeError
        If a module has no counterpart, such as one with a `forward` of its own; the message has the path of the first one.
    ValueError
        If the counterpart does not support an argument of a module, such as `return_indices`.
    ImportError
        If PyTorch is missing.
    """
    _imported()
    from .torch_reader import read

    return read(module)


def _imported() -> None:
    """Raise ImportError, which says what to do, unless PyTorch can be imported."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ImportError(f"this needs PyTorch: pip install torch ({error})") from error
