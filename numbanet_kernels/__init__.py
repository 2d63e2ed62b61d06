"""Kernels, functions that take and return arrays. Kernels are grouped in families; each family has a formula, a float64
reference, a CPU version and a CUDA version.

The package is independent of tensors, plans and layers. The modules `cpu`, `cuda` and `emulated` are the tables of operations,
with the same names and signatures.

    families    the operations: formula, reference, CPU, CUDA
    blocks      building blocks of fast CUDA kernels
    layouts     memory layouts of kept rows and tiles
    host        the CPU: threads, matrix products, transposition, thresholds
    runtime     declaring, launching, recording, emulating, memory: with `card`, the only folder that uses `numba.cuda`
    ptx         the machine that runs compiled kernels
    card        the emulated card: plain numba.cuda code on that machine
"""
