"""What fast CUDA kernels are made of, and products in blocks that several families launch."""
