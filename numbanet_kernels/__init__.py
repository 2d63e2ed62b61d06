"""Kernels, arrays in and arrays out: each family is one file with its formula, a float64 reference, a CPU and a CUDA version.

The package stands alone: it knows nothing of tensors, plans or layers. `cpu` and `cuda` are the two tables of operations,
same names and same signatures; `launch` is the only module that touches `numba.cuda`.
"""
