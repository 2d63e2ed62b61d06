"""`Streaming`: a fit on batches that an iterable yields, for data that are larger than memory."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from numbanet_kernels.runtime.interrupt import deferred

from ..training.large.rows import Rows
from ..training.large.streamed import Part, Streamed
from ..training.validation import BatchStatistics

EXAMPLES = 1 << 26  # bytes: if the samples of the first batches need more, fewer of them are examples
TAKES = "batches must be a list of (X, y) or (X, y, sample_weight), or a function of the epoch that returns such batches"


class Streaming:
    """What an estimator does with batches; the base class of estimators that learn from samples.

    Examples
    --------
    Before training, a DataLoader of PyTorch is read once as a whole, and then begun once more for examples; in training, it is
    read once in each epoch, in its own order:

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
        scale of the targets, and to find bad input before training starts; then the first of them are read again, as examples.
        """
        if batches is None or any(given is not None for given in (X, y, sample_weight)):
            raise ValueError("fit: give either X and y, or batches")
        self._refuse_batches(validation)
        passes = _passes(batches)
        targets: list[np.ndarray] = []
        weights: list[Any] = []
        digests: list[bytes] = []
        first = None
        for part in passes(0):
            X, y, own = self._part(part, reset and first is None)
            first = X if first is None else first
            targets.append(y)
            weights.append(own)
            digests.append(_digest(X, y, own))
            deferred.poll()
        if first is None:
            raise ValueError(f"batches: there is none; {TAKES}")
        if len({own is None for own in weights}) > 1:
            raise ValueError("batches: some have sample_weight and some have none")
        every = None if weights[0] is None else np.concatenate(weights)
        if every is not None and not every.sum() > 0:
            raise ValueError("sample_weight must not be zero for every sample")
        if len(shapes := {y.shape[1:] for y in targets}) > 1:
            raise ValueError(
                f"batches: targets of samples have different shapes, {', '.join(map(str, sorted(shapes)))}: give each "
                "sample the same number; labels for each time step are not supported, so call partial_fit for each batch"
            )
        known = self._target(first, np.concatenate(targets), every, reset)
        if self._by_step:
            raise ValueError("batches: labels for each time step are not supported; call partial_fit for each batch")

        def prepared(epoch: int) -> Iterator[Part]:
            for part in passes(epoch):
                X, y, own = self._part(part, False)
                yield X, *self._check_target(X, y, own, False)

        count = np.cumsum([len(y) for y in targets])
        most = min(BatchStatistics.SAMPLES, max(EXAMPLES // max(first[:1].nbytes, 1), len(targets[0])))
        few = int(np.searchsorted(count, most)) + 1  # batches
        again = [self._part(part, False) for part in itertools.islice(passes(0), few)]
        if not again:
            raise ValueError(f"batches: the second reading gave none; {TAKES}")
        repeats = [_digest(*part) for part in again] == digests[: len(again)] and len(again) == min(few, len(digests))
        alike = [part for part in again if part[0].shape[1:] == again[0][0].shape[1:]]  # sequences of one length
        X, y, own = (parts[0] if len(parts) == 1 or parts[0] is None else np.concatenate(parts) for parts in zip(*alike))
        examples = X, *self._check_target(X, y, own, False)
        digest = hashlib.sha256(b"".join(digests)).hexdigest()
        return Streamed(prepared, examples, known, max(map(len, targets)), digest, repeats)

    def _target(self, X: Any, y: Any, weights: Any, reset: bool, **options: Any) -> tuple[Any, Any]:
        """Return the result of `_check_target`; raise ValueError if every sample has weight 0."""
        y, weights = self._check_target(X, y, weights, reset, **options)
        if weights is not None and not weights.sum() > 0:
            raise ValueError(f"class_weight {getattr(self, 'class_weight', None)!r} leaves every sample with weight 0")
        return y, weights

    def _refuse_batches(self, validation: Any) -> None:
        """Raise ValueError if a parameter of the estimator does not go with batches."""
        if self.parallel is not None:
            raise ValueError("batches: several processes share the rows of arrays; give X and y, which may be memory-mapped")
        if self.early_stopping and validation is None:
            raise ValueError("batches: early_stopping has no samples to hold out; give fit(validation=(X, y))")
        self._refuse_balanced("batches")

    def _refuse_balanced(self, call: str) -> None:
        """Raise ValueError if classes are to be weighed by their numbers of samples, which a call on some cannot know."""
        if isinstance(given := getattr(self, "class_weight", None), str) and given == "balanced":
            raise ValueError(
                f"{call}: class_weight='balanced' counts all samples, which are not known here; give a dict of weights: "
                "dict(zip(classes, compute_class_weight('balanced', classes=classes, y=y))), with the labels y of all samples, "
                "or of many; compute_class_weight is in sklearn.utils.class_weight"
            )

    def _part(self, part: Any, reset: bool) -> Part:
        """Return (X, y, weights) of a batch, checked."""
        if not isinstance(part, (tuple, list)) or len(part) not in (2, 3):
            raise ValueError(f"{TAKES}; got {type(part).__name__}")
        X, y = self._checked(*part[:2], reset=reset)
        if isinstance(X, Rows):  # a step reads all of a batch, however large
            X = X[:]
        own = part[2] if len(part) == 3 else None
        if own is not None and np.shape(own) == (len(y),) and not np.asarray(own).any():
            own = np.zeros(len(y), np.float32)  # scikit-learn refuses it, but other batches have weights
        elif own is not None:
            own = _check_sample_weight(own, y, dtype=np.float32, ensure_non_negative=True)
        return X, y, own


def _digest(X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> bytes:
    """Return the SHA-256 of the first sample of a batch, and of its targets and weights."""
    found = hashlib.sha256()
    for array in (X[:1], y, weights):
        if array is None:
            found.update(b"None")
            continue
        # the memory of an array of objects, such as text, holds addresses
        content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        found.update(f"{array.shape}".encode() + content)
    return found.digest()


def _passes(batches: Any) -> Callable[[int], Iterable[Any]]:
    """Return the function from an epoch to its batches."""
    if callable(batches):
        return batches
    if isinstance(batches, Iterator):
        raise ValueError(f"batches is an iterator, which can be read only once: {TAKES}")
    if not isinstance(batches, Iterable):
        raise ValueError(f"{TAKES}; got {type(batches).__name__}")
    return lambda epoch: batches
