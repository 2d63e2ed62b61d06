"""Tests of tensors run on the CPU, on the emulated device where NVVM is installed, and on CUDA where a card answers."""

import functools
import gc
import os
import signal
import subprocess

import numpy as np
import pytest
import threadpoolctl

os.environ["NUMBANET_COSTS"] = os.path.join(os.path.dirname(__file__), "no-such-file")  # whatever this machine has measured

from numbanet.device import NAMES, device, problem
from numbanet_kernels.host import threads, thresholds

from .rotation import MANY, SLOW, chosen


def pytest_addoption(parser):
    parser.addoption("--one-of-each", action="store_true", help="one case of each test function")
    parser.addoption(
        "--rotate",
        metavar="N[:TEXT]",
        help=f"one in N cases of a function that has many, and at least {MANY}; if it is slow, one in 2 N, and at least "
        f"{SLOW}: others for each TEXT, by default the commit",
    )


def pytest_configure(config):
    """Complete --rotate N with the commit, so that it is in the summary, and all workers choose alike."""
    n, _, text = (config.option.rotate or "").partition(":")
    if n and not text:
        command = ["git", "rev-parse", "--short", "HEAD"]
        try:
            commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:  # there is no git
            commit = ""
        config.option.rotate = f"{n}:{commit or 'all'}"


def pytest_itemcollected(item):
    """Refuse tests that are to run alone in a file where `make test` does not look for them."""
    if item.get_closest_marker("alone") and "mark.alone" not in _text(item.path):
        raise pytest.UsageError(f"{item.nodeid}: write pytest.mark.alone in its own file, where make test finds it")


@functools.cache
def _text(path):
    return path.read_text(encoding="utf-8")


def pytest_collection_finish(session):
    """Leave all that exists now, such as the tests, out of later full collections of garbage: each took .3 s longer."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter, config):
    if config.option.rotate:
        terminalreporter.write_line(f"cases chosen by --rotate {config.option.rotate}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """With --one-of-each, of what the marks leave, one case of each test function; with --rotate, a share of many cases. Names
    with an address are refused, because they differ between workers.
    """
    if found := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"tests are named by addresses, such as {found[0]}: give them other ids")
    n, _, text = (config.option.rotate or "1:").partition(":")
    share, least = (len(items), 1) if config.option.one_of_each else (int(n), MANY)
    slow = frozenset(item.nodeid for item in items if item.get_closest_marker("slow"))
    left = chosen([item.nodeid for item in items], share, text, least, slow)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in left])
    items[:] = [item for item in items if item.nodeid in left]


@pytest.fixture(autouse=True)
def small_networks_skip_too():
    """Tests use small networks, of which by default the whole weight would be updated."""
    with thresholds.using(thresholds.Thresholds(lazy_elements=0)):
        yield


@pytest.fixture(autouse=True)
def threads_share_work(request, monkeypatch):
    """Also if other tests need the cores, except in tests of that, which are marked as `busy`."""
    if request.node.get_closest_marker("busy") is None:
        monkeypatch.setattr(threads._Crew, "_judge", lambda crew, began, lost: None)


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
