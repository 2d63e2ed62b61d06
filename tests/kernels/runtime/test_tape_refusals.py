"""What cannot be recorded on the CPU is refused, and nothing is left out silently."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numbanet_kernels import cpu
from numbanet_kernels.host import threads, thresholds
from numbanet_kernels.host.ufuncs import apply
from numbanet_kernels.runtime import callees, tape
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


def summed(size, extra=lambda y: y):
    """Loops on arrays of a size; `extra` gets one that is new, and its result is read again."""
    y = cpu.affine(cpu.relu(X[:size]), mul=2.0)
    return cpu.add(cpu.exp(extra(y)), X[:size])


SOMETIMES = {
    "into an array": lambda y: np.multiply(y, 2, out=y),
    "into its start": lambda y: np.multiply(y[:1], 2, out=y[:1]) is None or y,
    "into its end": lambda y: np.multiply(y[-1:], 2, out=y[-1:]) is None or y,
    "into one that is deleted": lambda y: np.multiply(y, 2, out=cpu.empty(y.shape)) is None or y,
    "into a new one": lambda y: 2 * y,
    "another loop": cpu.sigmoid,
    "the same loop again": lambda y: cpu.affine(y, mul=2.0),
    "an array that existed": lambda y: X[: len(y)],
}


@pytest.mark.parametrize("extra", SOMETIMES.values(), ids=SOMETIMES)
@pytest.mark.parametrize("size", [7, 3000, 5000])
def test_what_is_done_at_some_sizes_only_is_found_in_one_run(extra, size):
    first = taped(lambda: summed(100))
    again = taped(lambda: summed(size), {first.form})
    again.replay()
    np.testing.assert_array_equal(again.result, summed(size))
    with pytest.raises(NotRecorded, match="did not call the same compiled loops as with other sizes, or did more"):
        taped(lambda: summed(size, extra), {first.form})


def test_any_known_form_will_do():
    forms = {taped(work).form for work in (lambda: summed(100), lambda: summed(100, cpu.sigmoid))}
    assert len(forms) == 2
    for extra in (lambda y: y, cpu.sigmoid):
        assert taped(lambda extra=extra: summed(900, extra), forms).form in forms


def test_the_form_does_not_depend_on_the_number_of_parts():
    """Steps of other sizes may be worth sharing where these are not."""
    with threadpool_limits(2, user_api="blas"), cpu.session(2):
        with thresholds.using(thresholds.Thresholds(1, 1)):
            shared = taped(lambda: summed(100))
        with thresholds.using(thresholds.Thresholds(1 << 30, 1 << 30)):
            alone = taped(lambda: summed(100))
        assert len(shared.words) > len(alone.words) and shared.form == alone.form

        def first_more(part):
            """The parts differ: only one computes an exponential."""
            y = cpu.relu(X)
            return cpu.exp(y) if part.number == 0 else y

        unlike = taped(lambda: [threads.share(first_more), cpu.relu(X)][1:])
    assert unlike.form[:3] == (*taped(lambda: cpu.exp(cpu.relu(X))).form[:2], shared.form[0])


@pytest.mark.parametrize("array", [X, X[5:], X.reshape(50, 100)[3:, 7::2], np.zeros((0, 3)), np.broadcast_to(X[:4], (3, 4))])
def test_addresses_are_those_that_numpy_gives(array):
    assert callees.address_of(array) == array.ctypes.data


def test_a_result_that_existed_is_of_another_form():
    first = taped(lambda: (summed(100), cpu.relu(X)))
    with pytest.raises(NotRecorded, match="as with other sizes"):
        taped(lambda: (X, cpu.relu(X)) if summed(900).size else None, {first.form})


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
