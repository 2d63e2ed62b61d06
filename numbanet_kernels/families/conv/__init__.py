"""Convolution of images, and sampling of the im2col matrix of a convolution (`sensitivity`)."""

from .cpu import conv2d_cpu, conv2d_grad_cpu, conv2d_max_pool_cpu, conv2d_max_pool_grad_cpu
from .cuda import conv2d_cuda, conv2d_grad_cuda, conv2d_materialised, conv2d_max_pool_cuda, conv2d_max_pool_grad_cuda
from .family import (
    check,
    check_pool_grad,
    conv2d_grad_reference,
    conv2d_max_pool_grad_reference,
    conv2d_max_pool_reference,
    conv2d_reference,
)
from .sensitivity import count_large_cpu, count_large_cuda, count_large_reference
