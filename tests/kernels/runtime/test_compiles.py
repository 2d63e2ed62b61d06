"""A first call that compiles for long says so on a terminal, once."""

import gc
import io
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from numbanet_kernels.runtime import declare

ROOT = Path(__file__).parents[3]
SAID = "numbanet: compiling once; later runs read the compiled loops from the cache"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def loops(n):
    """New loops, which no cache has."""

    def made(i):
        def loop(x):
            x[0] = i + 0.5

        return declare.host_kernel("void(f4[::1])")(loop)

    return [made(i) for i in range(n)]


@pytest.fixture
def cold(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(declare, "_COMPILES", declare._Compiles())


def called(some, terminal, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        for loop in some:
            loop(np.zeros(1, np.float32))
    return terminal.getvalue()


def test_it_is_said_once_after_a_while_and_only_on_a_terminal(cold, monkeypatch):
    assert called(loops(2), Terminal(), monkeypatch) == ""  # few small loops take less than a second
    monkeypatch.setattr(declare._Compiles, "PATIENCE", 0.0)
    assert called(loops(1), io.StringIO(), monkeypatch) == ""
    assert called(loops(3), Terminal(), monkeypatch) == f"{SAID}\n"
    assert called(loops(2), Terminal(), monkeypatch) == ""


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_collection_is_as_before_after_compiling_and_after_an_error(cold, collecting):
    def wrong(x):
        x[0] = "text"

    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        loops(1)[0](np.zeros(1, np.float32))
        assert gc.isenabled() == collecting
        with pytest.raises(numba.core.errors.NumbaError):
            declare.host_kernel("void(f4[::1])")(wrong)(np.zeros(1, np.float32))
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if before else gc.disable)()


def test_what_others_have_frozen_stays_frozen(cold):
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        loops(1)[0](np.zeros(1, np.float32))
        assert 0.9 * before < gc.get_freeze_count() <= before
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("makes_arrays", [None, True])
def test_an_assignment_of_arrays_needs_references(cold, makes_arrays):
    def copy(x, y):
        y[:] = x

    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    loop = declare.host_kernel("void(f4[::1], f4[::1])", makes_arrays=makes_arrays)(copy)
    if makes_arrays:
        loop(x, y)
        assert y.tolist() == x.tolist()
    else:
        with pytest.raises(numba.core.errors.NumbaError, match="NRT required"):
            loop(x, y)


FIRST = """
import numpy as np, numbanet
numbanet.Conv2d(3, 8, 3, rng=0)(numbanet.Tensor(np.ones((2, 3, 16, 16))))
"""


@pytest.mark.slow
def test_the_first_convolution_says_that_it_compiles_and_the_second_process_nothing(tmp_path):
    pty = pytest.importorskip("pty", reason="a terminal is needed")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in (f"{SAID}\r\n", ""):
        ours, theirs = pty.openpty()
        process = subprocess.Popen([sys.executable, "-c", FIRST], stderr=theirs, cwd=ROOT, env=environment)
        assert process.wait(300) == 0
        os.set_blocking(ours, False)
        os.close(theirs)
        try:
            said = os.read(ours, 10_000).decode()
        except OSError:  # nothing was written
            said = ""
        os.close(ours)
        assert said == expected
