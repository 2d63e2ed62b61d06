"""Kernels, arrays in and arrays out: each family has a formula, a float64 reference, a CPU and a CUDA version.

The package stands alone: it knows nothing of tensors, plans or layers. `cpu`, `cuda` and `emulated` are the tables of
operations, same names and same signatures.

    families    the operations: formula, reference, CPU, CUDA
    blocks      what fast CUDA kernels are made of
    layouts     how kept rows and tiles lie in memory
    host        the CPU: threads, matrix products, transposition, thresholds
    runtime     declaring, launching, recording, emulating, memory: the only folder that touches `numba.cuda`
    ptx         the machine that runs compiled kernels
"""
