"""The kept outputs of each sample, as kernels read them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

WORD = 32  # number of bits of a word


class SampleLists(NamedTuple):
    """Which outputs each sample keeps: a bit for each group of samples and each output. The kept values are stored one sample
    after another, and those of a sample in the order of its outputs; starts[n] is the offset of the values of sample n.
    """

    bits: Any  # (groups, words) int32: group g keeps output o if bit o % 32 of bits[g, o // 32] is set
    starts: Any  # (N + 1,) int32
    group: int  # number of consecutive samples in a group
    width: int  # number of outputs


def sample_lists(mask: np.ndarray, samples: int, group: int) -> SampleLists:
    """Return the `SampleLists` of a mask (groups, outputs) for `samples` samples, on the host."""
    groups, width = mask.shape
    padded = np.zeros((groups, -(-width // WORD) * WORD), bool)
    padded[:, :width] = mask
    bits = np.packbits(padded.reshape(groups, -(-width // WORD), WORD), axis=2, bitorder="little")
    counts = mask.sum(1)[np.arange(samples) // group]
    return SampleLists(
        np.ascontiguousarray(bits).view("<i4").astype(np.int32).reshape(groups, -(-width // WORD)),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        group,
        width,
    )


def key_words(key: int) -> np.ndarray:
    """Return an int32 array (2,) with the lower and the upper word of `key`, the key of random bits, 0 … 2**64 - 1."""
    return np.array([key], np.uint64).view(np.int32)
