"""Building blocks of fast CUDA kernels, and blocked products that several families launch."""
