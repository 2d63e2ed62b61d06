"""Matrix products in which each sample keeps different outputs."""

from .cpu import compact_samples_cpu, expand_samples_cpu, gemm_samples_cpu, gemm_samples_dw_cpu, gemm_samples_dx_cpu
from .cuda import compact_samples_cuda, expand_samples_cuda, gemm_samples_cuda, gemm_samples_dw_cuda, gemm_samples_dx_cuda
from .family import (
    compact_samples_reference,
    expand_samples_reference,
    gemm_samples_dw_reference,
    gemm_samples_dx_reference,
    gemm_samples_reference,
    mask_of,
)
