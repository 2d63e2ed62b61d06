"""The context of the emulated card: what it changes, it puts back; and how else it is entered."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import numbanet
from numbanet_kernels import card
from numbanet_kernels.runtime import declare

pytestmark = pytest.mark.skipif(card.problem() is not None, reason=str(card.problem()))
cuda = declare.cuda
F = np.float32


def attributes():
    """What the modules and objects of numba.cuda hold that the context exchanges."""
    from numba.cuda import codegen, dispatcher
    from numba.cuda.cudadrv import devicearray, devices, driver, nvrtc

    owners = (codegen.CUDACodeLibrary, dispatcher, dispatcher._Kernel, dispatcher.CUDADispatcher, devicearray, devices)
    owners += (devices._runtime, driver, driver.driver, driver.Driver, driver.Stream, nvrtc)
    return [{name: id(value) for name, value in vars(owner).items() if not name.startswith("__")} for owner in owners]


def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


def test_what_is_exchanged_is_put_back():
    with numbanet.emulated():  # Numba chooses its memory manager, and makes its logger, when they are first used
        cuda.jit(double)[1, 32](np.ones(10, F))
    before = attributes()
    with numbanet.emulated():
        assert attributes() != before
        values = np.ones(10, F)
        cuda.jit(double)[1, 32](values)
    assert attributes() == before and (values == 2).all()


def test_it_is_put_back_after_an_exception_and_contexts_nest():
    before = cuda.is_available()
    with pytest.raises(KeyError), numbanet.emulated():
        with numbanet.emulated():
            pass
        assert cuda.is_available()
        raise KeyError
    assert cuda.is_available() == before


def test_as_a_decorator():
    @numbanet.emulated
    def run(values):
        cuda.jit(double)[1, 32](values)
        return values

    @numbanet.emulated(uninitialised=True)
    def available():
        return cuda.is_available()

    assert (run(np.ones(10, F)) == 2).all() and (run(np.ones(10, F)) == 2).all() and available()


def test_all_threads_are_emulated():
    values = [np.ones(10, F) for _ in range(4)]
    with numbanet.emulated():
        kernel = cuda.jit(double)
        threads = [threading.Thread(target=lambda v=v: kernel[1, 32](v)) for v in values]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all((v == 2).all() for v in values)


def test_arrays_that_outlive_the_context_disturb_nobody(capfd):
    with numbanet.emulated():
        array, stream, event = cuda.to_device(np.ones(4)), cuda.stream(), cuda.event()
    del array, stream, event
    with numbanet.emulated():
        cuda.to_device(np.ones(4))
    assert capfd.readouterr().err == ""


def test_a_kernel_runs_in_two_contexts():
    kernel = cuda.jit(double)
    for _ in range(2):
        values = np.ones(10, F)
        with numbanet.emulated():
            kernel[1, 32](values)
        assert (values == 2).all()


def test_automatic_devices_stay_on_the_cpu():
    with numbanet.emulated():
        assert numbanet.device("auto").name == "cpu"


@pytest.mark.parametrize("asked", ["1", ""])
def test_by_an_environment_variable(asked):
    code = """
        import numbanet
        from numba import cuda
        print(cuda.is_available())
    """
    environment = {**os.environ, "NUMBANET_EMULATED": asked}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    assert asked != "1" or done.stdout.strip() == "True"


@pytest.mark.slow
def test_the_cuda_of_numba_itself(tmp_path, pytestconfig):
    """Without numba-cuda, plain code runs, too, and faults are found, where its compiler finds NVVM; but for guvectorize and
    reduce, whose device functions do not compile there.
    """
    code = """
        import pathlib, sys
        sys.meta_path[:] = [finder for finder in sys.meta_path if "NumbaCuda" not in type(finder).__name__]
        import pytest
        from numba import cuda
        assert cuda.implementation == "Built-in"
        names = ["plain_code", "faults", "command", "lines"]
        paths = [f"tests/kernels/card/test_{name}.py" for name in names]
        less = "not (guvectorize or reduce or freed or for_ever)"  # how long a kernel may run, no compiler decides
        sys.exit(pytest.main(["-q", "-k", less, "-p", "no:cacheprovider", *sys.argv[1:], *paths]))
    """
    environment, rotate = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, pytestconfig.option.rotate
    command = [sys.executable, "-c", textwrap.dedent(code), *(["--rotate", rotate] if rotate else [])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0 and done.stdout.count(".") > 50, done.stdout[-3000:]


def test_memory_of_a_card_is_given_back_to_the_card(monkeypatch):
    """Garbage may be collected inside: Numba then notes the function of the driver that it finds, and calls it later."""
    from numba.cuda.cudadrv import driver

    freed = []
    monkeypatch.setitem(vars(driver.driver), "cuMemFree", lambda pointer: freed.append(int(pointer)))
    with numbanet.emulated():
        free = driver.driver.cuMemFree
        with pytest.raises(driver.CudaAPIError, match="not the start of an allocation"):
            free(77 << 20)
    free(78 << 20)
    assert freed == [78 << 20]


@pytest.mark.slow
def test_a_context_leaves_nothing_behind():
    """Drivers are freed, and arrays of an earlier context are not taken for those of a later one."""
    import gc

    from numbanet_kernels.card.driver import Driver

    def drivers():
        gc.collect()
        return sum(type(thing) is Driver for thing in gc.get_objects())

    addresses, before = [], drivers()
    for _ in range(3):
        with numbanet.emulated():
            there = cuda.to_device(np.ones(4))
            addresses.append(there.__cuda_array_interface__["data"][0])
            del there
    assert len(set(addresses)) == 3
    assert drivers() <= before + 1
