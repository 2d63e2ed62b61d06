"""Sparse networks: sparse matrix formats; the Sparse DNN Graph Challenge, and networks of its structure."""

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
