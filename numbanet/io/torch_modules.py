"""Modules of PyTorch that compute what PyTorch's own modules do not: sequences with lengths, and selections of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Lengths = Any  # (N,) int64 tensor; None if all sequences have all steps


class Chain(nn.Sequential):
    """Applies modules one after the other, and passes the lengths of sequences from an embedding to the modules after it.

    `sample_shape` is the shape of an image, (C, H, W), if samples may be flat, or of one channel without its axis; else None.
    """

    sample_shape: tuple[int, ...] | None = None

    def takes(self, sample_shape: Sequence[int] | None) -> Chain:
        """Set the shape of an image; return the chain."""
        self.sample_shape = None if sample_shape is None else tuple(sample_shape)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = self.sample_shape
        if shape is not None and (x.ndim == 2 or (x.ndim == 3 and shape[0] == 1)):
            x = x.reshape(len(x), *shape)
        return self.run(x, None)[0]

    def run(self, x: torch.Tensor, lengths: Lengths) -> tuple[torch.Tensor, Lengths]:
        """Return the output, and the lengths of its sequences."""
        for module in self:
            x, lengths = module.run(x, lengths) if hasattr(module, "run") else (module(x), lengths)  # type: ignore[operator]
        return x, lengths


class Embedding(nn.Embedding):
    """An embedding whose padding symbol ends sequences."""

    def run(self, x: torch.Tensor, lengths: Lengths) -> tuple[torch.Tensor, Lengths]:
        """Return the vectors, and the lengths of the rows of x (N, T) without the padding at their ends; at least 1."""
        if self.padding_idx is not None and x.ndim == 2:
            steps = torch.arange(1, x.shape[1] + 1, device=x.device)
            lengths = (steps * (x != self.padding_idx)).amax(dim=1).clamp(min=1)
        return self(x), lengths


class _Stack:
    """The part that `LSTM` and `GRU` share: in a `Chain` they return y only, which is 0 after the end of a sequence."""

    batch_first: bool

    def run(self, x: torch.Tensor, lengths: Lengths) -> tuple[torch.Tensor, Lengths]:
        if lengths is None:
            return self(x)[0], None  # type: ignore[operator]
        steps = x.shape[self.batch_first]
        packed = pack_padded_sequence(x, lengths.cpu(), self.batch_first, enforce_sorted=False)
        return pad_packed_sequence(self(packed)[0], self.batch_first, total_length=steps)[0], lengths  # type: ignore[operator]


class LSTM(_Stack, nn.LSTM):
    """`torch.nn.LSTM` in a `Chain`."""


class GRU(_Stack, nn.GRU):
    """`torch.nn.GRU` in a `Chain`."""


class LastStep(nn.Module):
    """y = x[:, last step of the sequence]; if `bidirectional`, the second half of the features is that of the first step."""

    def __init__(self, bidirectional: bool) -> None:
        super().__init__()
        self.bidirectional = bidirectional

    def run(self, x: torch.Tensor, lengths: Lengths) -> tuple[torch.Tensor, Lengths]:
        """Return the outputs, which are no sequences."""
        last = x[:, -1] if lengths is None else x[torch.arange(len(x), device=x.device), lengths - 1]
        half = x.shape[2] // 2
        return (torch.cat([last[:, :half], x[:, 0, half:]], dim=1) if self.bidirectional else last), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x, None)[0]


class Gather(nn.Module):
    """y[n, k] = x[n, index[k]] - mean[index[k]] of n = `features` features: `Select`, which has no mean, and `Shuffle`."""

    index: torch.Tensor
    mean: torch.Tensor | None

    def __init__(self, features: int, index: np.ndarray, mean: np.ndarray | None = None) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("index", torch.tensor(index, dtype=torch.int64), persistent=False)
        self.register_buffer("mean", None if mean is None else torch.tensor(mean), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x if self.mean is None else x - self.mean)[:, self.index]


class Normalize(nn.Module):
    """y[n, c, …] = (x[n, c, …] - mean[c]) / std[c]"""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: np.ndarray, std: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (1, -1, *(1,) * (x.ndim - 2))
        return (x - self.mean.reshape(shape)) / self.std.reshape(shape)


class Units(nn.Module):
    """y = scale x + mean: the outputs of a regressor in the units of its targets."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, mean: np.ndarray, scale: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(np.float32(mean)))
        self.register_buffer("scale", torch.tensor(np.float32(scale)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x + self.mean


class Language(Chain):
    """A language model: (words (T, N), states) -> (logits (T, N, V), states). States are a list with an entry for each LSTM or
    GRU; None if all are zero."""

    def forward(self, x: torch.Tensor, states: list[Any] | None = None) -> tuple[torch.Tensor, list[Any]]:  # type: ignore[override]
        ends: list[Any] = []
        for module in self:
            if isinstance(module, (nn.LSTM, nn.GRU)):
                x, end = module(x, None if states is None else states[len(ends)])
                ends.append(end)
            else:
                x = module(x)
        return x, ends
