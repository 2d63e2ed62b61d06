"""Memory layouts of kept rows, tiles and sparse matrices: arithmetic and named tuples, no kernels."""
