"""The operations of the CPU: a flat table, the same names and signatures on every device."""
# ruff: noqa: F401  the names are the table
from .elementwise import (
    abs_cpu as abs,
)
from .elementwise import (
    add_cpu as add,
)
from .elementwise import (
    affine_cpu as affine,
)
from .elementwise import (
    div_cpu as div,
)
from .elementwise import (
    exp_cpu as exp,
)
from .elementwise import (
    gelu_cpu as gelu,
)
from .elementwise import (
    gelu_grad_cpu as gelu_grad,
)
from .elementwise import (
    greater_cpu as greater,
)
from .elementwise import (
    log_cpu as log,
)
from .elementwise import (
    maximum_cpu as maximum,
)
from .elementwise import (
    minimum_cpu as minimum,
)
from .elementwise import (
    mul_cpu as mul,
)
from .elementwise import (
    power_cpu as power,
)
from .elementwise import (
    relu_cpu as relu,
)
from .elementwise import (
    relu_grad_cpu as relu_grad,
)
from .elementwise import (
    sigmoid_cpu as sigmoid,
)
from .elementwise import (
    sigmoid_grad_cpu as sigmoid_grad,
)
from .elementwise import (
    sign_cpu as sign,
)
from .elementwise import (
    sqrt_cpu as sqrt,
)
from .elementwise import (
    sub_cpu as sub,
)
from .elementwise import (
    tanh_cpu as tanh,
)
from .elementwise import (
    tanh_grad_cpu as tanh_grad,
)
from .gemm import (
    gemm_cpu as gemm,
)
from .gemm_rows import (
    gemm_rows_cpu as gemm_rows,
)
from .gemm_rows import (
    gemm_rows_dx_cpu as gemm_rows_dx,
)
from .gemm_rows import (
    index_list_cpu as index_list,
)
from .gemm_tiles import (
    gemm_tiles_cpu as gemm_tiles,
)
from .gemm_tiles import (
    gemm_tiles_dw_cpu as gemm_tiles_dw,
)
from .gemm_tiles import (
    gemm_tiles_dx_cpu as gemm_tiles_dx,
)
from .loss import (
    absolute_error_cpu as absolute_error,
)
from .loss import (
    sigmoid_cross_entropy_cpu as sigmoid_cross_entropy,
)
from .loss import (
    softmax_cross_entropy_cpu as softmax_cross_entropy,
)
from .loss import (
    squared_error_cpu as squared_error,
)
from .memory import (
    broadcast_to_cpu as broadcast_to,
)
from .memory import (
    compact_cpu as compact,
)
from .memory import (
    concatenate_cpu as concatenate,
)
from .memory import (
    copy_cpu as copy,
)
from .memory import (
    cuda_array_interface_cpu as cuda_array_interface,
)
from .memory import (
    dlpack_device_cpu as dlpack_device,
)
from .memory import (
    download_cpu as download,
)
from .memory import (
    empty_cpu as empty,
)
from .memory import (
    expand_cpu as expand,
)
from .memory import (
    from_foreign_cpu as from_foreign,
)
from .memory import (
    full_cpu as full,
)
from .memory import (
    getitem_cpu as getitem,
)
from .memory import (
    putitem_cpu as putitem,
)
from .memory import (
    reshape_cpu as reshape,
)
from .memory import (
    synchronize_cpu as synchronize,
)
from .memory import (
    take_rows_cpu as take_rows,
)
from .memory import (
    to_dlpack_cpu as to_dlpack,
)
from .memory import (
    transpose_cpu as transpose,
)
from .memory import (
    upload_cpu as upload,
)
from .random import (
    dropout_cpu as dropout,
)
from .random import (
    normal_cpu as normal,
)
from .random import (
    random_bits_cpu as random_bits,
)
from .random import (
    uniform_cpu as uniform,
)
from .reduce import (
    argmax_cpu as argmax,
)
from .reduce import (
    max_cpu as max,
)
from .reduce import (
    sum_cpu as sum,
)
from .reduce import (
    sum_rows_cpu as sum_rows,
)
from .softmax import (
    log_softmax_cpu as log_softmax,
)
from .softmax import (
    log_softmax_grad_cpu as log_softmax_grad,
)
from .softmax import (
    softmax_cpu as softmax,
)
from .softmax import (
    softmax_grad_cpu as softmax_grad,
)
from .update import (
    adam_cpu as adam,
)
from .update import (
    sgd_cpu as sgd,
)
from .update import (
    unpack_gradient_cpu as unpack_gradient,
)
