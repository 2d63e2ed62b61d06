"""Products with kept rows and columns of a weight."""

from .cpu import gemm_rows_cpu, gemm_rows_dx_cpu
from .cuda import gemm_rows_cuda, gemm_rows_dx_cuda, gemm_rows_masked
from .family import gemm_rows_dx_reference, gemm_rows_reference
