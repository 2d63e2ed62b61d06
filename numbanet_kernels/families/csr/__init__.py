"""Products with the stored entries of a sparse weight."""

from .cpu import csr_cpu, csr_dw_cpu, csr_dx_cpu, csr_transposed_cpu
from .cuda import csr_cuda, csr_dw_cuda, csr_dx_cuda, csr_transposed_cuda
from .family import csr_dw_reference, csr_dx_reference, csr_reference
