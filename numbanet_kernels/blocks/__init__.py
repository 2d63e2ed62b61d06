"""Building blocks of fast CUDA kernels, and matrix products in blocks that several families launch."""
