"""Tests of tensors run on the CPU, on the emulated device where NVVM is installed, and on CUDA where a card answers or the
simulator is on (NUMBA_ENABLE_CUDASIM=1)."""
import os

import numpy as np
import pytest

os.environ["NUMBANET_COSTS"] = os.path.join(os.path.dirname(__file__), "no-such-file")  # whatever this machine has measured

from numbanet.device import NAMES, device, problem
from numbanet_kernels import costs


@pytest.fixture(autouse=True)
def small_networks_skip_too():
    """Tests use small networks, of which by default the whole weight would be updated."""
    with costs.using(costs.Costs(lazy_elements=0)):
        yield


@pytest.fixture(params=[name for name in NAMES if problem(name) is None])
def dev(request):
    """Each device that answers here."""
    return device(request.param)


@pytest.fixture
def rng():
    return np.random.default_rng(7)
