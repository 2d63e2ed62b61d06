"""Products with kept tiles of a weight."""

from .cpu import (
    gemm_tiles_cpu,
    gemm_tiles_dw_cpu,
    gemm_tiles_dx_cpu,
    tile_blocks_cpu,
    tile_inputs_cpu,
    tile_outputs_cpu,
    tile_room_cpu,
)
from .cuda import (
    gemm_tiles_cuda,
    gemm_tiles_dw_cuda,
    gemm_tiles_dx_cuda,
    gemm_tiles_masked,
    tile_blocks_cuda,
    tile_inputs_cuda,
    tile_outputs_cuda,
    tile_room_cuda,
)
from .family import gemm_tiles_dw_reference, gemm_tiles_dx_reference, gemm_tiles_reference, tile_mask_reference
