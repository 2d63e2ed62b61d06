"""The families of kernels. A family has a formula, a float64 reference, operations on the CPU and on CUDA, and examples.

A small family is one file. A larger one is a folder: the module `family` has the formula, the reference, the checks and the
examples; `cpu` and `cuda` have the operations; other modules have the loops and kernels that the operations call. The
`__init__` of the folder exports its public names.
"""
