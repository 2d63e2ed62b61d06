"""Tests of tensors run on the CPU, on the emulated device where NVVM is installed, and on CUDA where a card answers."""

import os
import signal
import zlib

import numpy as np
import pytest
import threadpoolctl

os.environ["NUMBANET_COSTS"] = os.path.join(os.path.dirname(__file__), "no-such-file")  # whatever this machine has measured

from numbanet.device import NAMES, device, problem
from numbanet_kernels.host import thresholds


def pytest_addoption(parser):
    parser.addoption("--one-of-each", action="store_true", help="one case of each test function")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """With --one-of-each, of what the marks leave, one case of each test function: another one of most, by its name."""
    if not config.getoption("--one-of-each"):
        return
    cases = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = {name: found[zlib.crc32(name.encode()) % len(found)] for name, found in cases.items()}
    config.hook.pytest_deselected(items=[item for item in items if item is not chosen[item.nodeid.partition("[")[0]]])
    items[:] = chosen.values()


@pytest.fixture(autouse=True)
def small_networks_skip_too():
    """Tests use small networks, of which by default the whole weight would be updated."""
    with thresholds.using(thresholds.Thresholds(lazy_elements=0)):
        yield


@pytest.fixture(params=[name for name in NAMES if problem(name) is None])
def dev(request):
    """Each device that answers here."""
    return device(request.param)


@pytest.fixture
def two_threads():
    """For tests that mean the work of the CPU to be shared: `make test` gives its workers one thread each."""
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        yield


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, which background jobs of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def rng():
    return np.random.default_rng(7)
