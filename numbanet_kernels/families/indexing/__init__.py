"""Indexing, transposition and concatenation: operations that move elements."""

from .cpu import (
    broadcast_to_cpu,
    compact_cpu,
    concatenate_cpu,
    expand_cpu,
    getitem_cpu,
    putitem_cpu,
    repeat_indices_cpu,
    take_rows_cpu,
    transpose_cpu,
)
from .cuda import (
    broadcast_to_cuda,
    compact_cuda,
    concatenate_cuda,
    expand_cuda,
    getitem_cuda,
    putitem_cuda,
    repeat_indices_cuda,
    take_rows_cuda,
    transpose_cuda,
)
from .family import expand_reference, repeat_indices_reference, take_rows_reference
