"""Updates of parameters by SGD and Adam. A gradient may be dense or packed (`packed`), and SGD may be lazy (`lazy_sgd`): it
then defers the steps of blocks of a weight that are not read. Gradients may be clipped before (`clip`).
"""

from .clip import (
    clip_norm_cpu,
    clip_norm_cuda,
    clip_norm_reference,
    packed_squares_cpu,
    packed_squares_cuda,
    packed_squares_reference,
)
from .cpu import adam_cpu, sgd_cpu
from .cuda import adam_cuda, sgd_cuda
from .family import adam_reference, sgd_lazy_reference, sgd_reference
from .lazy_sgd import (
    lazy_pays_cpu,
    lazy_pays_cuda,
    sgd_powers_cpu,
    sgd_powers_cuda,
    sgd_powers_reference,
    sgd_settle_cpu,
    sgd_settle_cuda,
    sgd_settle_reference,
)
from .packed import unpack_gradient_cpu, unpack_gradient_cuda, unpack_gradient_reference
