"""Errors and counters name lines inside device functions, however these are declared and compiled."""

import gc
import inspect

import numpy as np
import pytest

import numbanet
from numbanet_kernels import card
from numbanet_kernels.runtime import declare

pytestmark = pytest.mark.skipif(card.problem() is not None, reason=str(card.problem()))
cuda = declare.cuda
F = np.float32
FILE = "test_lines.py"


def put(x, i, v):
    a = v * 2
    b = a + 1
    x[i] = b


def outer(x, i, v):
    inner(x, i, v)


def last(x, n):
    if n <= 0:
        return x[n + 40]
    return n + last(x, n - 1)


def line(function, text):
    """The line of a function's source that has a text, as errors name it."""
    source, first = inspect.getsourcelines(function)
    return f"{FILE}:{first + next(k for k, part in enumerate(source) if text in part)}"


def said(kernel, shape, *arguments):
    with pytest.raises(RuntimeError) as found:
        kernel[shape](*arguments)
    return str(found.value)


if card.problem() is None:
    inner = cuda.jit(device=True)(put)


@pytest.mark.parametrize("how", ["plain", "never inlined", "always inlined", "declared", "as the kernel"])
def test_the_line_of_a_device_function(how):
    options = {"never inlined": {"inline": "never"}, "always inlined": {"inline": "always"}}.get(how, {})
    with numbanet.emulated():
        if how == "declared":
            own = cuda.jit("void(f4[::1], i8, f8)", device=True)(put)
        else:
            own = cuda.jit(device=True, **options)(put)

        @cuda.jit(lineinfo=how == "as the kernel")
        def kernel(x):
            i = cuda.grid(1)
            own(x, i, 1.0)

        text = said(kernel, (1, 33), np.zeros(32, F))
    assert text.startswith(f"kernel, {line(put, 'x[i]')}, called in {line(kernel.py_func, 'own(x')} (PTX line "), text
    assert "at x[32], value 3.0" in text


def test_a_device_function_of_a_device_function():
    own = cuda.jit(device=True)(outer)

    @cuda.jit
    def kernel(x):
        own(x, cuda.grid(1), 1.0)

    with numbanet.emulated():
        text = said(kernel, (1, 33), np.zeros(32, F))
    lines = line(put, "x[i]"), line(outer, "inner("), line(kernel.py_func, "own(x")
    assert text.startswith(f"kernel, {', called in '.join(lines)} (PTX line "), text


@pytest.mark.parametrize("debug", [False, True])
def test_no_function_is_called_in_the_line_of_a_decorator(debug):
    with numbanet.emulated():
        own = cuda.jit(device=True)(put)

        @cuda.jit(debug=debug, opt=not debug)
        def kernel(x):
            own(x, cuda.grid(1), 1.0)

        text = said(kernel, (1, 33), np.zeros(32, F))
    assert f"called in {line(kernel.py_func, 'own(x')}" in text and line(kernel.py_func, "@cuda.jit") not in text


def test_device_functions_are_what_they_were_before():
    """Also for the kernels that are compiled after an error."""
    with numbanet.emulated():
        own = cuda.jit(device=True)(put)
        declared = cuda.jit("void(f4[::1], i8, f8)", device=True)(put)

        def body(x):
            i = cuda.grid(1)
            own(x, i, 1.0)
            declared(x, i, 1.0)

        cuda.jit(body)[1, 32](np.zeros(32, F))
        before = [(dict(f.overloads), dict(f.targetoptions)) for f in (own, declared)]
        gc.collect()  # kernels of other tests that nobody holds any more would have definitions until the next collection
        defined = len(own.targetctx._defns)
        said(cuda.jit(body), (1, 33), np.zeros(32, F))
        assert [(f.overloads, f.targetoptions) for f in (own, declared)] == before
        assert len(own.targetctx._defns) == defined
        again, x = cuda.jit(body), np.zeros(32, F)
        again[1, 32](x)
        assert (x == 3).all() and ".loc" not in next(iter(again.inspect_asm().values()))


@pytest.fixture
def recursive(monkeypatch):
    function = cuda.jit(device=True)(last)
    monkeypatch.setitem(globals(), "last", function)

    @cuda.jit
    def kernel(x, n):
        x[cuda.grid(1)] = function(x, n[0])

    return kernel


def test_a_recursive_function(recursive):
    """The message names it as its source does, and equal calls once."""
    with numbanet.emulated():
        text = said(recursive, (1, 2), np.zeros(32, np.int64), np.array([5]))
    own, call = line(last.py_func, "return x["), line(last.py_func, "return n")
    assert text.startswith(f"kernel, {own} (PTX line "), text
    assert f"called in {call}, 5 times, called in {line(recursive.py_func, 'function(x')}: global out of bounds" in text
    assert len(text) < 300 and "_ZN" not in text


def test_too_many_calls(recursive):
    with numbanet.emulated():
        text = said(recursive, (1, 2), np.zeros(32, np.int64), np.array([1000]))
    assert text.startswith(f"kernel, {line(last.py_func, 'return n')} (PTX line ") and "call.uni last)" in text
    assert "last calls itself more than 256 times" in text and len(text) < 300


def test_counters_have_the_lines_of_device_functions():
    @cuda.jit
    def kernel(x):
        inner(x, cuda.grid(1), 1.0)

    with numbanet.emulated(counters=True) as found:
        kernel[1, 32](np.zeros(32, F))
    (counted,) = found.counters
    stores = [one.place for one in counted.lines if one.sectors]
    assert stores == [line(put, "x[i]")]


def test_a_function_of_numba_has_the_line_of_its_call():
    from numba.cuda import random

    @cuda.jit
    def kernel(states, x):
        i = cuda.grid(1)
        x[i] = random.xoroshiro128p_uniform_float32(states, i)

    with numbanet.emulated():
        states = random.create_xoroshiro128p_states(32, seed=1)
        text = said(kernel, (1, 33), states, np.zeros(64, F))
    assert text.startswith(f"kernel, {line(kernel.py_func, 'x[i]')} (PTX line "), text
