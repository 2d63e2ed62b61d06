"""Every kernel test runs on the CPU, and on CUDA where a card or the simulator answers (NUMBA_ENABLE_CUDASIM=1)."""
import numpy as np
import pytest

from numbanet_kernels import launch, memory

SUFFIXES = ["cpu", *(["cuda"] if launch.cuda_problem() is None else [])]


@pytest.fixture(params=SUFFIXES)
def suffix(request):
    """The ending of the names of a device's functions: "cpu" or "cuda"."""
    return request.param


@pytest.fixture
def put(suffix):
    """put(host) -> the same values on the device, float64 as float32."""
    upload = getattr(memory, f"upload_{suffix}")

    def put(host):
        host = np.asarray(host)
        return upload(host, np.float32 if host.dtype == np.float64 else host.dtype)

    return put


@pytest.fixture
def get(suffix):
    """get(device array) -> its values as a NumPy array."""
    return getattr(memory, f"download_{suffix}")


@pytest.fixture
def rng():
    return np.random.default_rng(7)
