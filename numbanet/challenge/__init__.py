"""The Sparse DNN Graph Challenge: its files, networks of its structure, and inference in several ways."""

from .files import ChallengeData, load_challenge
from .inference import WAYS
from .radixnet import EllLayer, RadixNet, mixed_radix
from .result import ChallengeResult
from .run import challenge

__all__ = ["WAYS", "ChallengeData", "ChallengeResult", "EllLayer", "RadixNet", "challenge", "load_challenge", "mixed_radix"]
