"""The operations of the CUDA device: a flat table, the same names and signatures on every device."""
# ruff: noqa: F401  the names are the table
from .elementwise import (
    abs_cuda as abs,
)
from .elementwise import (
    add_cuda as add,
)
from .elementwise import (
    affine_cuda as affine,
)
from .elementwise import (
    div_cuda as div,
)
from .elementwise import (
    exp_cuda as exp,
)
from .elementwise import (
    gelu_cuda as gelu,
)
from .elementwise import (
    gelu_grad_cuda as gelu_grad,
)
from .elementwise import (
    greater_cuda as greater,
)
from .elementwise import (
    log_cuda as log,
)
from .elementwise import (
    maximum_cuda as maximum,
)
from .elementwise import (
    minimum_cuda as minimum,
)
from .elementwise import (
    mul_cuda as mul,
)
from .elementwise import (
    power_cuda as power,
)
from .elementwise import (
    relu_cuda as relu,
)
from .elementwise import (
    relu_grad_cuda as relu_grad,
)
from .elementwise import (
    sigmoid_cuda as sigmoid,
)
from .elementwise import (
    sigmoid_grad_cuda as sigmoid_grad,
)
from .elementwise import (
    sign_cuda as sign,
)
from .elementwise import (
    sqrt_cuda as sqrt,
)
from .elementwise import (
    sub_cuda as sub,
)
from .elementwise import (
    tanh_cuda as tanh,
)
from .elementwise import (
    tanh_grad_cuda as tanh_grad,
)
from .gemm import (
    gemm_cuda as gemm,
)
from .gemm_rows import (
    gemm_rows_cuda as gemm_rows,
)
from .gemm_rows import (
    gemm_rows_dx_cuda as gemm_rows_dx,
)
from .gemm_rows import (
    index_list_cuda as index_list,
)
from .gemm_tiles import (
    gemm_tiles_cuda as gemm_tiles,
)
from .gemm_tiles import (
    gemm_tiles_dw_cuda as gemm_tiles_dw,
)
from .gemm_tiles import (
    gemm_tiles_dx_cuda as gemm_tiles_dx,
)
from .loss import (
    absolute_error_cuda as absolute_error,
)
from .loss import (
    sigmoid_cross_entropy_cuda as sigmoid_cross_entropy,
)
from .loss import (
    softmax_cross_entropy_cuda as softmax_cross_entropy,
)
from .loss import (
    squared_error_cuda as squared_error,
)
from .memory import (
    broadcast_to_cuda as broadcast_to,
)
from .memory import (
    compact_cuda as compact,
)
from .memory import (
    concatenate_cuda as concatenate,
)
from .memory import (
    copy_cuda as copy,
)
from .memory import (
    cuda_array_interface_cuda as cuda_array_interface,
)
from .memory import (
    dlpack_device_cuda as dlpack_device,
)
from .memory import (
    download_cuda as download,
)
from .memory import (
    empty_cuda as empty,
)
from .memory import (
    expand_cuda as expand,
)
from .memory import (
    from_foreign_cuda as from_foreign,
)
from .memory import (
    full_cuda as full,
)
from .memory import (
    getitem_cuda as getitem,
)
from .memory import (
    putitem_cuda as putitem,
)
from .memory import (
    reshape_cuda as reshape,
)
from .memory import (
    synchronize_cuda as synchronize,
)
from .memory import (
    take_rows_cuda as take_rows,
)
from .memory import (
    to_dlpack_cuda as to_dlpack,
)
from .memory import (
    transpose_cuda as transpose,
)
from .memory import (
    upload_cuda as upload,
)
from .random import (
    dropout_cuda as dropout,
)
from .random import (
    normal_cuda as normal,
)
from .random import (
    random_bits_cuda as random_bits,
)
from .random import (
    uniform_cuda as uniform,
)
from .reduce import (
    argmax_cuda as argmax,
)
from .reduce import (
    max_cuda as max,
)
from .reduce import (
    sum_cuda as sum,
)
from .reduce import (
    sum_rows_cuda as sum_rows,
)
from .softmax import (
    log_softmax_cuda as log_softmax,
)
from .softmax import (
    log_softmax_grad_cuda as log_softmax_grad,
)
from .softmax import (
    softmax_cuda as softmax,
)
from .softmax import (
    softmax_grad_cuda as softmax_grad,
)
from .update import (
    adam_cuda as adam,
)
from .update import (
    sgd_cuda as sgd,
)
from .update import (
    unpack_gradient_cuda as unpack_gradient,
)
