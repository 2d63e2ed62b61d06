"""The operations of the CPU: a flat table, the same names and signatures on every device."""
# ruff: noqa: F401  the names are the table
from .elementwise import (
    abs_cpu as abs,
    add_cpu as add,
    affine_cpu as affine,
    div_cpu as div,
    exp_cpu as exp,
    gelu_cpu as gelu,
    gelu_grad_cpu as gelu_grad,
    greater_cpu as greater,
    log_cpu as log,
    maximum_cpu as maximum,
    minimum_cpu as minimum,
    mul_cpu as mul,
    power_cpu as power,
    relu_cpu as relu,
    relu_grad_cpu as relu_grad,
    sigmoid_cpu as sigmoid,
    sigmoid_grad_cpu as sigmoid_grad,
    sign_cpu as sign,
    sqrt_cpu as sqrt,
    sub_cpu as sub,
    tanh_cpu as tanh,
    tanh_grad_cpu as tanh_grad,
)
from .gemm import (
    gemm_cpu as gemm,
    gemm_dw_cpu as gemm_dw,
)
from .gemm_rows import (
    gemm_rows_cpu as gemm_rows,
    gemm_rows_dx_cpu as gemm_rows_dx,
)
from .gemm_tiles import (
    gemm_tiles_cpu as gemm_tiles,
    gemm_tiles_dw_cpu as gemm_tiles_dw,
    gemm_tiles_dx_cpu as gemm_tiles_dx,
    tile_blocks_cpu as tile_blocks,
    tile_inputs_cpu as tile_inputs,
    tile_order_cpu as tile_order,
    tile_outputs_cpu as tile_outputs,
    tile_room_cpu as tile_room,
)
from .graph import record_cpu as record, records_cpu as records
from .indexing import (
    broadcast_to_cpu as broadcast_to,
    compact_cpu as compact,
    concatenate_cpu as concatenate,
    expand_cpu as expand,
    getitem_cpu as getitem,
    putitem_cpu as putitem,
    take_rows_cpu as take_rows,
    transpose_cpu as transpose,
)
from .loss import (
    absolute_error_cpu as absolute_error,
    sigmoid_cross_entropy_cpu as sigmoid_cross_entropy,
    softmax_cross_entropy_cpu as softmax_cross_entropy,
    squared_error_cpu as squared_error,
)
from .memory import (
    copy_cpu as copy,
    cuda_array_interface_cpu as cuda_array_interface,
    dlpack_device_cpu as dlpack_device,
    download_cpu as download,
    empty_cpu as empty,
    from_foreign_cpu as from_foreign,
    full_cpu as full,
    part_cpu as part,
    reshape_cpu as reshape,
    session_cpu as session,
    synchronize_cpu as synchronize,
    to_dlpack_cpu as to_dlpack,
    upload_cpu as upload,
)
from .packed import unpack_gradient_cpu as unpack_gradient
from .random import (
    dropout_cpu as dropout,
    normal_cpu as normal,
    random_bits_cpu as random_bits,
    uniform_cpu as uniform,
)
from .reduce import (
    argmax_cpu as argmax,
    max_cpu as max,
    sum_cpu as sum,
    sum_rows_cpu as sum_rows,
)
from .softmax import (
    log_softmax_cpu as log_softmax,
    log_softmax_grad_cpu as log_softmax_grad,
    softmax_cpu as softmax,
    softmax_grad_cpu as softmax_grad,
)
from .update import (
    adam_cpu as adam,
    late_pays_cpu as late_pays,
    sgd_cpu as sgd,
    sgd_powers_cpu as sgd_powers,
    sgd_settle_cpu as sgd_settle,
)
