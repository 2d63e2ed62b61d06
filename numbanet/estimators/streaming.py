"""`Streaming`: a fit on batches that an iterable yields, for data that are larger than memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from ..training.large.streamed import Part, Streamed

TAKES = "batches must be a list of (X, y) or (X, y, sample_weight), or a function of the epoch that returns such batches"


class Streaming:
    """What an estimator does with batches; the base class of estimators that learn from samples.

    Examples
    --------
    Before training, a DataLoader of PyTorch is read once as a whole, and then begun once more for an example batch; in
    training, it is read once in each epoch, in its own order:

    >>> import torch
    >>> from numbanet import Net
    >>> samples = torch.utils.data.TensorDataset(torch.eye(8).repeat(8, 1), torch.arange(8).repeat(8))
    >>> loader = torch.utils.data.DataLoader(samples, batch_size=16, shuffle=True)
    >>> float(Net((32,), learning_rate=0.1, epochs=20).fit(batches=loader).score(torch.eye(8), torch.arange(8)))
    1.0
    """

    _by_step: bool
    class_weight: Any
    early_stopping: bool
    parallel: Any
    _checked: Callable[..., Any]
    _check_target: Callable[..., Any]

    def _streamed(self, batches: Any, X: Any, y: Any, sample_weight: Any, validation: Any, reset: bool) -> Streamed:
        """Return the data of a fit on batches. They are read once as a whole here, to find the classes, or the mean and the
        scale of the targets, and to find bad input before training starts; then one of them is read again, as an example.
        """
        if batches is None or any(given is not None for given in (X, y, sample_weight)):
            raise ValueError("fit: give either X and y, or batches")
        self._refuse_batches(validation)
        passes = _passes(batches)
        targets: list[np.ndarray] = []
        weights: list[Any] = []
        found, first = hashlib.sha256(), None
        for part in passes(0):
            X, y, own = self._part(part, reset and first is None)
            first = X if first is None else first
            targets.append(y)
            weights.append(own)
            for array in (X[:1], y, own):
                found.update(b"None" if array is None else f"{array.shape}".encode() + np.ascontiguousarray(array).data)
        if first is None:
            raise ValueError(f"batches: there is none; {TAKES}")
        if len({own is None for own in weights}) > 1:
            raise ValueError("batches: some have sample_weight and some have none")
        every = None if weights[0] is None else np.concatenate(weights)
        if every is not None and not every.sum() > 0:
            raise ValueError("sample_weight must not be zero for every sample")
        self._check_target(first, np.concatenate(targets), every, reset)
        if self._by_step:
            raise ValueError("batches: labels for each time step are not supported; call partial_fit for each batch")

        def prepared(epoch: int) -> Iterator[Part]:
            for part in passes(epoch):
                X, y, own = self._part(part, False)
                yield X, *self._check_target(X, y, own, False)

        example = next(iter(prepared(0)))
        return Streamed(prepared, example, sum(map(len, targets)), max(map(len, targets)), found.hexdigest())

    def _refuse_batches(self, validation: Any) -> None:
        """Raise ValueError if a parameter of the estimator does not go with batches."""
        if self.parallel is not None:
            raise ValueError("batches: several processes share the rows of arrays; give X and y, which may be memory-mapped")
        if self.early_stopping and validation is None:
            raise ValueError("batches: early_stopping has no samples to hold out; give fit(validation=(X, y))")
        if getattr(self, "class_weight", None) == "balanced":
            raise ValueError("batches: class_weight='balanced' counts all samples; give a dict of weights")

    def _part(self, part: Any, reset: bool) -> Part:
        """Return (X, y, weights) of a batch, checked."""
        if not isinstance(part, (tuple, list)) or len(part) not in (2, 3):
            raise ValueError(f"{TAKES}; got {type(part).__name__}")
        X, y = self._checked(*part[:2], reset=reset)
        own = part[2] if len(part) == 3 else None
        return X, y, own if own is None else _check_sample_weight(own, y, dtype=np.float32, ensure_non_negative=True)


def _passes(batches: Any) -> Callable[[int], Iterable[Any]]:
    """Return the function from an epoch to its batches."""
    if callable(batches):
        return batches
    if isinstance(batches, Iterator):
        raise ValueError(f"batches is an iterator, which can be read only once: {TAKES}")
    if not isinstance(batches, Iterable):
        raise ValueError(f"{TAKES}; got {type(batches).__name__}")
    return lambda epoch: batches
