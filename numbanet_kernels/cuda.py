"""The operations of the CUDA device: a flat table, the same names and signatures on every device."""
# ruff: noqa: F401  the names are the table
from .elementwise import (
    abs_cuda as abs,
    add_cuda as add,
    affine_cuda as affine,
    div_cuda as div,
    exp_cuda as exp,
    gelu_cuda as gelu,
    gelu_grad_cuda as gelu_grad,
    greater_cuda as greater,
    log_cuda as log,
    maximum_cuda as maximum,
    minimum_cuda as minimum,
    mul_cuda as mul,
    power_cuda as power,
    relu_cuda as relu,
    relu_grad_cuda as relu_grad,
    sigmoid_cuda as sigmoid,
    sigmoid_grad_cuda as sigmoid_grad,
    sign_cuda as sign,
    sqrt_cuda as sqrt,
    sub_cuda as sub,
    tanh_cuda as tanh,
    tanh_grad_cuda as tanh_grad,
)
from .gemm import (
    gemm_cuda as gemm,
    gemm_dw_cuda as gemm_dw,
)
from .gemm_rows import (
    gemm_rows_cuda as gemm_rows,
    gemm_rows_dx_cuda as gemm_rows_dx,
)
from .gemm_tiles import (
    gemm_tiles_cuda as gemm_tiles,
    gemm_tiles_dw_cuda as gemm_tiles_dw,
    gemm_tiles_dx_cuda as gemm_tiles_dx,
    tile_blocks_cuda as tile_blocks,
    tile_inputs_cuda as tile_inputs,
    tile_order_cuda as tile_order,
    tile_outputs_cuda as tile_outputs,
    tile_room_cuda as tile_room,
)
from .graph import record_cuda as record, records_cuda as records
from .indexing import (
    broadcast_to_cuda as broadcast_to,
    compact_cuda as compact,
    concatenate_cuda as concatenate,
    expand_cuda as expand,
    getitem_cuda as getitem,
    putitem_cuda as putitem,
    take_rows_cuda as take_rows,
    transpose_cuda as transpose,
)
from .loss import (
    absolute_error_cuda as absolute_error,
    sigmoid_cross_entropy_cuda as sigmoid_cross_entropy,
    softmax_cross_entropy_cuda as softmax_cross_entropy,
    squared_error_cuda as squared_error,
)
from .memory import (
    copy_cuda as copy,
    cuda_array_interface_cuda as cuda_array_interface,
    dlpack_device_cuda as dlpack_device,
    download_cuda as download,
    empty_cuda as empty,
    from_foreign_cuda as from_foreign,
    full_cuda as full,
    part_cuda as part,
    reshape_cuda as reshape,
    session_cuda as session,
    synchronize_cuda as synchronize,
    to_dlpack_cuda as to_dlpack,
    upload_cuda as upload,
)
from .packed import unpack_gradient_cuda as unpack_gradient
from .random import (
    dropout_cuda as dropout,
    normal_cuda as normal,
    random_bits_cuda as random_bits,
    uniform_cuda as uniform,
)
from .reduce import (
    argmax_cuda as argmax,
    max_cuda as max,
    sum_cuda as sum,
    sum_rows_cuda as sum_rows,
)
from .softmax import (
    log_softmax_cuda as log_softmax,
    log_softmax_grad_cuda as log_softmax_grad,
    softmax_cuda as softmax,
    softmax_grad_cuda as softmax_grad,
)
from .update import (
    adam_cuda as adam,
    late_pays_cuda as late_pays,
    sgd_cuda as sgd,
    sgd_powers_cuda as sgd_powers,
    sgd_settle_cuda as sgd_settle,
)
