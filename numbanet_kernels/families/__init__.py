"""The families of kernels: formula, float64 reference, CPU, CUDA, examples.

A small family is one file. A larger one is a room: a folder with `family` (formula, reference, checks, examples), `cpu` and
`cuda` (the operations), and the loops and kernels that these call. What others may use of a room, its `__init__` names.
"""
