"""Sparse networks: the sparse matrix formats CSR, ELL and BSR, and the Sparse DNN Graph Challenge with its networks."""

from numbanet_kernels.layouts.sparse import BSR, CSR, ELL

from .challenge import ChallengeData, ChallengeResult, EllLayer, RadixNet, challenge, load_challenge, mixed_radix

__all__ = [
    "BSR",
    "CSR",
    "ELL",
    "ChallengeData",
    "ChallengeResult",
    "EllLayer",
    "RadixNet",
    "challenge",
    "load_challenge",
    "mixed_radix",
]
