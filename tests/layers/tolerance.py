"""How far values may be from PyTorch's."""

import numpy as np


def close(ours, theirs, tolerance=1e-5):
    """To 1e-5 of the largest value."""
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=tolerance, atol=tolerance * max(1, np.abs(theirs).max(initial=0)))
