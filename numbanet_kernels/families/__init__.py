"""The families of kernels: formula, float64 reference, CPU, CUDA, examples.

A small family is one file. A larger one is a folder with `family` (formula, reference, checks, examples), `cpu` and `cuda` (the
operations), and the loops and kernels that these call. The folder's `__init__` exports its public names.
"""
