"""Sparse layers with the same number of weights in each row; activations are in slabs of LANES samples (`family`)."""

from .cpu import ell_cpu, empty_slabs_cpu, in_slabs_cpu, samples_together_cpu
from .cuda import ell_cuda, empty_slabs_cuda, in_slabs_cuda, samples_together_cuda
from .family import ell_reference, in_slabs_reference
