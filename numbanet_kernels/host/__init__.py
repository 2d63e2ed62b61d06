"""CPU code that several kernel families share: threads, BLAS, SIMD vectors, transposition, and thresholds for threads."""
