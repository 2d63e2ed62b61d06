"""Sparse networks: formats of sparse matrices."""
from numbanet_kernels.layouts.sparse import BSR, CSR, ELL

__all__ = ["BSR", "CSR", "ELL"]
