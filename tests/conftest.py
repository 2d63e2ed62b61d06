"""Tests of tensors run on the CPU, and on CUDA where a card answers or the simulator is on (NUMBA_ENABLE_CUDASIM=1)."""
import numpy as np
import pytest

from numbanet.device import NAMES, device, problem


@pytest.fixture(params=[name for name in NAMES if problem(name) is None])
def dev(request):
    """Each device that answers here."""
    return device(request.param)


@pytest.fixture
def rng():
    return np.random.default_rng(7)
