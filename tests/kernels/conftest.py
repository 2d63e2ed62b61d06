"""Every kernel test runs on the CPU, on the CPU with its work shared by three threads however small it is, on the emulated
device where NVVM is installed, and on CUDA where a card answers."""

import numpy as np
import pytest
import threadpoolctl

from numbanet_kernels.families import gemm
from numbanet_kernels.host import thresholds
from numbanet_kernels.runtime import availability, emulation, memory

DEVICES = [
    "cpu",
    "cpu shared",
    *(["cuda"] if availability.cuda_problem() is None else []),
    *(["emulated"] if availability.nvvm_problem() is None else []),
]


def pytest_generate_tests(metafunc):
    """Every test that asks for a suffix runs on all devices, in a module whose kernels are others on an older card (`OLDER`) on
    that one as well; one that asks for `on_cuda` or `from_8_0`, on those alone that have what it tests."""
    if "suffix" not in metafunc.fixturenames:
        return
    names = [*DEVICES, *(["emulated 7.5"] if "emulated" in DEVICES and getattr(metafunc.module, "OLDER", False) else [])]
    if "on_cuda" in metafunc.fixturenames:
        names = [name for name in names if not name.startswith("cpu")]
    if "from_8_0" in metafunc.fixturenames:
        names = [name for name in names if name == "emulated" or (name == "cuda" and availability.capability() >= (8, 0))]
    metafunc.parametrize("suffix", names, indirect=True)


@pytest.fixture
def suffix(request, monkeypatch):
    """The ending of the names of a device's functions: "cpu" or "cuda"."""
    if request.param.startswith("emulated"):
        if request.param.endswith("7.5"):
            monkeypatch.setattr(emulation, "EMULATED", (7, 5))
        with emulation.emulated():
            yield "cuda"
        return
    if request.param != "cpu shared":
        yield request.param
        return
    for name in ("LEAST_ROWS", "LEAST_DEPTH"):
        monkeypatch.setattr(gemm, name, 1)
    with thresholds.using(thresholds.Thresholds(1, 1, 0)), threadpoolctl.threadpool_limits(3, user_api="blas"):
        yield "cpu"


@pytest.fixture
def on_cuda(suffix):
    """For what has no version for the CPU."""


@pytest.fixture
def from_8_0(suffix):
    """For kernels that need compute capability 8.0."""


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
