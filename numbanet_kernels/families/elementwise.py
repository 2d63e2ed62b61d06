"""Elementwise maps of arrays of equal shapes: y[i] = f(x[i]), y[i] = f(a[i], b[i]), and the gradients dx[i] = dy[i] f'(x[i]).

unary     exp, log, sqrt, tanh, abs, sign; relu = max(x, 0); affine = x*mul + add; power = x^exponent;
          sigmoid = e^min(x, 0) / (1 + e^-|x|), which neither overflows nor cancels;
          gelu = x Phi(x) with Phi(x) = erfc(-x/sqrt 2)/2
binary    add, sub, mul, div, maximum, minimum, pow = a^b; greater, greater_equal, equal = 1 if a > b, a >= b, a = b, else 0
backward  relu_grad = scale*dy if y > 0, else 0; tanh_grad = dy (1 - y^2); sigmoid_grad = dy y (1 - y);
          gelu_grad = dy (Phi(x) + x phi(x)) with phi the density of the standard normal

NaN propagates, but comparisons with NaN give 0, and 1^NaN = 1. `out` may be one of the arguments. Arrays are C-contiguous.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numba import float32, int64, void
from numba.extending import intrinsic

from ..host import threads
from ..host.gelu import NORMAL_DENSITY, ROOT_HALF, gelus
from ..host.simd import WIDTH, data_of, for_lanes, load, store
from ..host.ufuncs import apply
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.launch import launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat, output

EXP, LOG, SQRT, TANH, SIGMOID, RELU, ABS, SIGN, GELU = range(9)
ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, GREATER, GREATER_EQUAL, EQUAL, POW, TANH_GRAD, SIGMOID_GRAD, GELU_GRAD = range(13)
RELU_GRAD, RELU_MAP, GELU_MAP, SIGMOID_MAP = range(13, 17)  # maps that exist only on the CPU


def named(name, formula, function):
    """Give a generated function a name and a one-line docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = formula
    return function


# --- reference --------------------------------------------------------------------------------------------------------
_float64 = functools.partial(functools.partial, dtype=np.float64)  # a ufunc that computes in float64
exp_reference, log_reference, sqrt_reference = _float64(np.exp), _float64(np.log), _float64(np.sqrt)
tanh_reference, abs_reference, sign_reference = _float64(np.tanh), _float64(np.absolute), _float64(np.sign)
add_reference, sub_reference, mul_reference = _float64(np.add), _float64(np.subtract), _float64(np.multiply)
div_reference, pow_reference = _float64(np.divide), _float64(np.power)
maximum_reference, minimum_reference = _float64(np.maximum), _float64(np.minimum)
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid_reference(x):
    x = np.asarray(x, np.float64)
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def relu_reference(x):
    return np.maximum(np.asarray(x, np.float64), 0)


def gelu_reference(x):
    x = np.asarray(x, np.float64)
    return 0.5 * x * _erfc(-x * ROOT_HALF)


def affine_reference(x, mul=1.0, add=0.0):
    return np.asarray(x, np.float64) * mul + add


def power_reference(x, exponent):
    return np.asarray(x, np.float64) ** exponent


def greater_reference(a, b):
    return (np.asarray(a) > np.asarray(b)).astype(np.float64)


def greater_equal_reference(a, b):
    return (np.asarray(a) >= np.asarray(b)).astype(np.float64)


def equal_reference(a, b):
    return (np.asarray(a) == np.asarray(b)).astype(np.float64)


def relu_grad_reference(dy, y, scale=1.0):
    return np.where(np.asarray(y) > 0, np.asarray(dy, np.float64) * scale, 0)


def tanh_grad_reference(dy, y):
    return np.asarray(dy, np.float64) * (1 - np.asarray(y, np.float64) ** 2)


def sigmoid_grad_reference(dy, y):
    y = np.asarray(y, np.float64)
    return np.asarray(dy, np.float64) * y * (1 - y)


def gelu_grad_reference(dy, x):
    x = np.asarray(x, np.float64)
    return np.asarray(dy, np.float64) * (0.5 * _erfc(-x * ROOT_HALF) + x * NORMAL_DENSITY * np.exp(-0.5 * x * x))


# --- CPU --------------------------------------------------------------------------------------------------------------
LEAST_COLUMNS = 64  # smallest number of columns per thread


@intrinsic
def _sigmoid_at(typing_context, x, out, at, count):
    """out[at + i] = sigmoid(x[at + i]) for i below count and WIDTH"""

    def generate(context, builder, signature, arguments):
        x, out, at, count = data_of(context, builder, signature, arguments)
        for_lanes(builder, count, lambda some: store(builder, load(builder, x, at, some).sigmoid(), out, at, some))
        return context.get_dummy_value()

    return void(x, out, int64, int64), generate


@host_kernel("void(b1, f4[:, ::1], f4[:, ::1], f4, f4[:, ::1], i8, i8)")
def _relus(gradient, dense_a, dense_b, scale, dense_out, start, stop):
    """Compute the columns start … stop - 1 of relu(a), which does not read b, or of its gradient, where a is dy. It is a loop
    apart from `_maps`, because most networks need only this one, and wait for its compilation.
    """
    zero = float32(0)
    for n in range(dense_out.shape[0]):
        a, b, out = dense_a[n, start:stop], dense_b[n, start:stop], dense_out[n, start:stop]
        if gradient:
            for i in range(out.size):
                v = scale * a[i]  # multiplied before the selection, so that no branch depends on the sign, which is random
                out[i] = v if b[i] > zero else zero
        else:
            for i in range(out.size):
                out[i] = zero if a[i] <= zero else a[i]  # with this order of the comparison, NaN stays NaN


@host_kernel("void(i4, f4[:, ::1], f4[:, ::1], f4[:, ::1], i8, i8)")
def _maps(formula, dense_a, dense_b, dense_out, start, stop):
    """Compute the columns start … stop - 1 of a map that NumPy lacks or computes more slowly: a gradient, where a is dy, or
    sigmoid, which does not read b. Loops run over slices of rows, so that LLVM vectorises them.
    """
    one = float32(1)
    for n in range(dense_out.shape[0]):
        a, b, out = dense_a[n, start:stop], dense_b[n, start:stop], dense_out[n, start:stop]
        if formula == TANH_GRAD:
            for i in range(out.size):
                out[i] = a[i] * (one - b[i] * b[i])
        elif formula == SIGMOID_GRAD:
            for i in range(out.size):
                out[i] = a[i] * b[i] * (one - b[i])
        else:
            for i in range(0, out.size, WIDTH):
                _sigmoid_at(a, out, i, out.size - i)


def _share_maps(formula, a, b, scale, out):
    """Divide the columns among the threads, like the operations that write and read these arrays, so that data stays in each
    core's cache. Narrow arrays, and arrays with one axis, are divided by elements.
    """
    columns = out.shape[-1] if out.ndim > 1 and out.shape[-1] >= LEAST_COLUMNS * threads.count() else out.size
    a, b, y = (x.reshape(out.size // columns if columns else 0, columns) for x in (a, b, out))

    def work(part):
        span = part.of(columns)
        if formula in (GELU_MAP, GELU_GRAD):
            gelus(formula == GELU_GRAD, a, b, y, span.start, span.stop)
        elif formula in (RELU_MAP, RELU_GRAD):
            _relus(formula == RELU_GRAD, a, b, scale, y, span.start, span.stop)
        else:
            _maps(formula, a, b, y, span.start, span.stop)

    threads.share(work, out.size)
    return out


def affine_cpu(x, mul=1.0, add=0.0, out=None):
    """y = x*mul + add"""
    out = output("affine (cpu)", empty_cpu, out, x=x)
    if mul == 1.0:
        return apply(np.add, x, add, out=out)
    apply(np.multiply, x, mul, out=out)
    return out if add == 0.0 else apply(np.add, out, add, out=out)


def power_cpu(x, exponent, out=None):
    """y = x^exponent"""
    out = output("power (cpu)", empty_cpu, out, x=x)
    return apply(np.square, x, out=out) if exponent == 2 else apply(np.power, x, exponent, out=out)


def relu_grad_cpu(dy, y, scale=1.0, out=None):
    """dx = scale*dy if y > 0, else 0"""
    return _share_maps(RELU_GRAD, dy, y, scale, output("relu_grad (cpu)", empty_cpu, out, dy=dy, y=y))


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("elementwise")
def _unary_kernels():
    """Return one kernel for each formula, in the order of the constants; `formula` is a compile-time constant."""

    def declared(formula):
        @kernel("void(f4[::1], f4[::1])")
        def unary(x, y):
            i = cuda.grid(1)
            if i < y.size:
                v = x[i]
                if formula == EXP:
                    y[i] = math.exp(v)
                elif formula == LOG:
                    y[i] = math.log(v)
                elif formula == SQRT:
                    y[i] = math.sqrt(v)
                elif formula == TANH:
                    y[i] = math.tanh(v)
                elif formula == SIGMOID:
                    e = math.exp(-math.fabs(v))
                    y[i] = (float32(1) if v > float32(0) else e) / (float32(1) + e)
                elif formula == RELU:
                    y[i] = float32(0) if v <= float32(0) else v  # with this order of the comparison, NaN stays NaN
                elif formula == GELU:
                    y[i] = float32(0.5) * v * math.erfc(-v * float32(ROOT_HALF))
                elif formula == ABS:
                    y[i] = math.fabs(v)
                elif formula == SIGN:
                    y[i] = v if v != v else float32(v > float32(0)) - float32(v < float32(0))

        return unary

    return tuple(declared(formula) for formula in range(GELU + 1))


@kernels("elementwise")
def _binary_kernels():
    """Return one kernel for each formula, in the order of the constants; in the last three, which are gradients, a is dy."""

    def declared(formula):
        @kernel("void(f4[::1], f4[::1], f4[::1])")
        def binary(a, b, y):
            i = cuda.grid(1)
            if i < y.size:
                u, v = a[i], b[i]
                if formula == ADD:
                    y[i] = u + v
                elif formula == SUB:
                    y[i] = u - v
                elif formula == MUL:
                    y[i] = u * v
                elif formula == DIV:
                    y[i] = u / v
                elif formula == MAXIMUM:
                    y[i] = u if u > v or u != u else v
                elif formula == MINIMUM:
                    y[i] = u if u < v or u != u else v
                elif formula == GREATER:
                    y[i] = float32(u > v)
                elif formula == GREATER_EQUAL:
                    y[i] = float32(u >= v)
                elif formula == EQUAL:
                    y[i] = float32(u == v)
                elif formula == POW:
                    y[i] = math.pow(u, v)
                elif formula == TANH_GRAD:
                    y[i] = u * (float32(1) - v * v)
                elif formula == SIGMOID_GRAD:
                    y[i] = u * v * (float32(1) - v)
                else:
                    share = float32(0.5) * math.erfc(-v * float32(ROOT_HALF))
                    y[i] = u * (share + v * float32(NORMAL_DENSITY) * math.exp(float32(-0.5) * v * v))

        return binary

    return tuple(declared(formula) for formula in range(GELU_GRAD + 1))


@kernels("elementwise")
def _scaled_kernels():
    @kernel("void(f4[::1], f4, f4, f4[::1])")
    def affine(x, mul, add, y):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = x[i] * mul + add

    @kernel("void(f4[::1], f4, f4[::1])")
    def power(x, exponent, y):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = x[i] * x[i] if exponent == float32(2) else math.pow(x[i], exponent)  # squares are common, and pow is slow

    @kernel("void(f4[::1], f4[::1], f4, f4[::1])")
    def relu_grad(dy, y, scale, dx):
        i = cuda.grid(1)
        if i < dx.size:
            dx[i] = scale * dy[i] if y[i] > float32(0) else float32(0)

    return affine, power, relu_grad


def affine_cuda(x, mul=1.0, add=0.0, out=None):
    out = output("affine (cuda)", empty_cuda, out, x=x)
    launch(_scaled_kernels()[0], blocks_for(out.size), THREADS, flat(x), mul, add, flat(out))
    return out


def power_cuda(x, exponent, out=None):
    out = output("power (cuda)", empty_cuda, out, x=x)
    launch(_scaled_kernels()[1], blocks_for(out.size), THREADS, flat(x), exponent, flat(out))
    return out


def relu_grad_cuda(dy, y, scale=1.0, out=None):
    out = output("relu_grad (cuda)", empty_cuda, out, dy=dy, y=y)
    launch(_scaled_kernels()[2], blocks_for(out.size), THREADS, flat(dy), flat(y), scale, flat(out))
    return out


# --- one line per operation -------------------------------------------------------------------------------------------
def _unary(op, formula, ufunc, which):
    """Return the functions (op_cpu, op_cuda) of the operation `op`."""
    ufunc = functools.partial(apply, ufunc) if isinstance(ufunc, np.ufunc) else ufunc

    def unary_cpu(x, out=None):
        return ufunc(x, out=output(f"{op} (cpu)", empty_cpu, out, x=x))

    def unary_cuda(x, out=None):
        out = output(f"{op} (cuda)", empty_cuda, out, x=x)
        launch(_unary_kernels()[which], blocks_for(out.size), THREADS, flat(x), flat(out))
        return out

    return named(f"{op}_cpu", formula, unary_cpu), named(f"{op}_cuda", formula, unary_cuda)


def _binary(op, formula, ufunc, which, names=("a", "b")):
    """Return the functions (op_cpu, op_cuda) of the operation `op`."""
    ufunc = functools.partial(apply, ufunc) if isinstance(ufunc, np.ufunc) else ufunc

    def binary_cpu(a, b, out=None):
        return ufunc(a, b, out=output(f"{op} (cpu)", empty_cpu, out, **dict(zip(names, (a, b)))))

    def binary_cuda(a, b, out=None):
        out = output(f"{op} (cuda)", empty_cuda, out, **dict(zip(names, (a, b))))
        launch(_binary_kernels()[which], blocks_for(out.size), THREADS, flat(a), flat(b), flat(out))
        return out

    return named(f"{op}_cpu", formula, binary_cpu), named(f"{op}_cuda", formula, binary_cuda)


def _map(formula):
    return lambda x, out: _share_maps(formula, x, x, 1.0, out)


def _mapped(formula):
    return lambda dy, at, out: _share_maps(formula, dy, at, 1.0, out)


exp_cpu, exp_cuda = _unary("exp", "y = exp(x)", np.exp, EXP)
log_cpu, log_cuda = _unary("log", "y = log(x), the natural logarithm", np.log, LOG)
sqrt_cpu, sqrt_cuda = _unary("sqrt", "y = sqrt(x)", np.sqrt, SQRT)
tanh_cpu, tanh_cuda = _unary("tanh", "y = tanh(x)", np.tanh, TANH)
sigmoid_cpu, sigmoid_cuda = _unary("sigmoid", "y = e^min(x, 0) / (1 + e^-|x|)", _map(SIGMOID_MAP), SIGMOID)
relu_cpu, relu_cuda = _unary("relu", "y = max(x, 0)", _map(RELU_MAP), RELU)
gelu_cpu, gelu_cuda = _unary("gelu", "y = x Phi(x)", _map(GELU_MAP), GELU)
abs_cpu, abs_cuda = _unary("abs", "y = |x|", np.absolute, ABS)
sign_cpu, sign_cuda = _unary("sign", "y = -1, 0 or 1 for x < 0, = 0 or > 0", np.sign, SIGN)
add_cpu, add_cuda = _binary("add", "y = a + b", np.add, ADD)
sub_cpu, sub_cuda = _binary("sub", "y = a - b", np.subtract, SUB)
mul_cpu, mul_cuda = _binary("mul", "y = a b", np.multiply, MUL)
div_cpu, div_cuda = _binary("div", "y = a / b", np.divide, DIV)
pow_cpu, pow_cuda = _binary("pow", "y = a^b", np.power, POW)
maximum_cpu, maximum_cuda = _binary("maximum", "y = max(a, b)", np.maximum, MAXIMUM)
minimum_cpu, minimum_cuda = _binary("minimum", "y = min(a, b)", np.minimum, MINIMUM)
greater_cpu, greater_cuda = _binary("greater", "y = 1 if a > b, else 0", np.greater, GREATER)
greater_equal_cpu, greater_equal_cuda = _binary("greater_equal", "y = 1 if a >= b, else 0", np.greater_equal, GREATER_EQUAL)
equal_cpu, equal_cuda = _binary("equal", "y = 1 if a = b, else 0", np.equal, EQUAL)
tanh_grad_cpu, tanh_grad_cuda = _binary("tanh_grad", "dx = dy (1 - y^2)", _mapped(TANH_GRAD), TANH_GRAD, ("dy", "y"))
sigmoid_grad_cpu, sigmoid_grad_cuda = _binary(
    "sigmoid_grad", "dx = dy y (1 - y)", _mapped(SIGMOID_GRAD), SIGMOID_GRAD, ("dy", "y")
)
gelu_grad_cpu, gelu_grad_cuda = _binary("gelu_grad", "dx = dy (Phi(x) + x phi(x))", _mapped(GELU_GRAD), GELU_GRAD, ("dy", "x"))


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    unary = ("exp", "tanh", "sigmoid", "relu", "gelu", "abs", "sign")
    binary = "add sub mul maximum minimum greater greater_equal equal relu_grad tanh_grad sigmoid_grad gelu_grad".split()
    return {
        **{op: lambda op=op: getattr(dev, op)(a(N, O)) for op in unary},
        **{op: lambda op=op: getattr(dev, op)(a(N, O), a(N, O)) for op in binary},
        "log": lambda: dev.log(a(N, O, above=0.1)),
        "sqrt": lambda: dev.sqrt(a(N, O, above=0.1)),
        "div": lambda: dev.div(a(N, O), a(N, O, above=0.5)),
        "pow": lambda: dev.pow(a(N, O, above=0.1), a(N, O)),
        "affine": lambda: dev.affine(a(N, O), mul=2.5, add=-1.0),
        "power": lambda: dev.power(a(N, O, above=0.1), 1.5),
    }
