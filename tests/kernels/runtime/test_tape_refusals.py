"""What cannot be recorded on the CPU is refused, and nothing is left out silently."""

import numpy as np
import pytest

from numbanet_kernels import cpu
from numbanet_kernels.host.ufuncs import apply
from numbanet_kernels.runtime import tape
from numbanet_kernels.runtime.declare import host_kernel
from numbanet_kernels.runtime.launch import NotRecorded
from numbanet_kernels.tables import collected
from tests.kernels.runtime.recording import taped


@pytest.mark.parametrize("op", sorted(collected("cpu").keys() - tape.OPERATIONS))
def test_all_other_operations_refuse(op):
    with pytest.raises(NotRecorded, match=f"^{op} cannot be recorded"):
        taped(getattr(cpu, op))


X = np.linspace(1, 2, 5000, dtype=np.float32)
NUMPY = {
    "into an array": lambda: np.multiply(X, 2, out=cpu.empty(X.shape)),
    "into part of one": lambda: np.multiply(X[:9], 2, out=cpu.empty(X.shape)[:9]),
    "from one to another": lambda: np.copyto(cpu.empty(X.shape), cpu.empty(X.shape)),
    "of its own memory": lambda: cpu.relu(2 * X),
    "that is a result": lambda: 2 * X,
    "whose number is used": lambda: cpu.affine_like(float(cpu.relu(X).view(np.uint8).sum())),
}


@pytest.mark.parametrize("work", NUMPY.values(), ids=NUMPY)
def test_numpy_is_found(monkeypatch, work):
    @host_kernel("void(f4, f4[::1])")
    def fill(value, out):
        out[:] = value

    monkeypatch.setattr(cpu, "affine_like", lambda value: fill(value, cpu.empty(3)), raising=False)
    work()
    with pytest.raises(NotRecorded, match="the function did more than call compiled loops"):
        taped(work)
    assert cpu.record(work) is None


def test_another_loop_each_time_is_found():
    done = []

    def work():
        done.append(0)
        return (cpu.relu if len(done) % 2 else cpu.sigmoid)(X), (cpu.exp if len(done) % 2 else cpu.log)(X)

    with pytest.raises(NotRecorded, match="did not do the same each time"):
        taped(work)


def test_another_loop_of_the_same_arguments_is_found():
    loops = [host_kernel("void(f4[::1])")(loop) for loop in (lambda x: None, lambda x: None)]
    for loop in loops:
        loop(X)
    with pytest.raises(NotRecorded, match="did not do the same each time"):
        taped(lambda: loops.pop()(X))


def test_arrays_that_a_loop_does_not_take_are_refused():
    @host_kernel("void(f4[:, ::1])")
    def loop(x):
        x[0, 0] = 1

    for x in (np.zeros((3, 3)), np.zeros((3, 6), np.float32)[:, ::2], np.zeros(3, np.float32)):
        with pytest.raises(NotRecorded, match="loop takes a float32 array of 2 axes"):
            taped(lambda x=x: loop(x))


def test_functions_whose_loops_are_not_known_are_refused():
    for ufunc in (np.greater, np.frompyfunc(lambda x: x, 1, 1)):
        with pytest.raises(NotRecorded, match="of NumPy cannot be recorded"):
            taped(lambda ufunc=ufunc: apply(ufunc, *[X] * ufunc.nin, out=cpu.empty(X.shape)))
