"""Idx: the file format of MNIST and similar data sets, an array of bytes after a header that gives its shape.

magic number   uint32, big-endian: 0x00 0x00, type code 0x08 (uint8), number of dimensions
sizes          one uint32, big-endian, for each dimension
values         uint8, row-major, to the end of the file
"""

from __future__ import annotations

import math
import struct

import numpy as np

_UINT8_MAGIC = 0x0800


def parse_idx(content: bytes, ndim: int, source: object) -> np.ndarray:
    """Parse the bytes of an idx file: a read-only uint8 array of `ndim` dimensions.

    Parameters
    ----------
    content : bytes
        The whole file, decompressed.
    ndim : int
        The number of dimensions that the file must have: 3 for grey images, 1 for labels. It tells a file of labels from a file
        of images.
    source : path or str
        The file, for error messages.

    Raises
    ------
    ValueError
        If the magic number is not that of uint8 in `ndim` dimensions, or if the length does not match the shape in the header.
    """
    header = 4 * (1 + ndim)
    if len(content) >= 4:
        (magic,) = struct.unpack_from(">I", content)
        if magic != _UINT8_MAGIC + ndim:
            raise ValueError(
                f"{source}: magic number {_UINT8_MAGIC + ndim} expected (idx, uint8, {ndim} dimensions), "
                f"found {magic}{_describe(magic)}"
            )
    if len(content) < header:
        raise ValueError(f"{source}: truncated: an idx header of {header} bytes expected, found {len(content)} bytes")
    shape = struct.unpack_from(f">{ndim}I", content, 4)
    expected = header + math.prod(shape)
    if len(content) != expected:
        problem = "truncated" if len(content) < expected else "too long"
        raise ValueError(
            f"{source}: {problem}: {expected} bytes expected from its header (shape {shape}), found {len(content)}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _describe(magic: int) -> str:
    """For the error message: the kind of file with this magic number, because labels and images are often exchanged; "" for
    others.
    """
    return {_UINT8_MAGIC + 1: ", a file of labels", _UINT8_MAGIC + 3: ", a file of images"}.get(magic, "")
