"""Sparse networks: the Sparse Deep Neural Network Graph Challenge, and networks of its structure."""
from .challenge import ChallengeResult, challenge
from .challenge_files import ChallengeData, load_challenge
from .radixnet import EllLayer, RadixNet, mixed_radix

__all__ = ["ChallengeData", "ChallengeResult", "EllLayer", "RadixNet", "challenge", "load_challenge", "mixed_radix"]
