"""Maximum and average pooling of images."""

from .cpu import avg_pool_cpu, avg_pool_grad_cpu, max_pool_cpu, max_pool_grad_cpu
from .cuda import avg_pool_cuda, avg_pool_grad_cuda, max_pool_cuda, max_pool_grad_cuda
from .family import BYTE, avg_pool_grad_reference, avg_pool_reference, in_bytes, max_pool_grad_reference, max_pool_reference
