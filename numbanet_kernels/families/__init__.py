"""The families of kernels, one a file: formula, float64 reference, CPU, CUDA."""
