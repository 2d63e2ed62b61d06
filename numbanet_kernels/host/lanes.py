"""Vectors of floats in CPU loops, as LLVM code: what an `intrinsic` is written with.

A `Lanes` has Python's operators. Reading and writing take how many elements there are: the others read as 0 and are left alone.
Products and sums may become one multiply-add.
"""
from __future__ import annotations

import math

from llvmlite import binding, ir
from numba import types


def _width():
    """How many floats a register of this machine has."""
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot say
        features = {}
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


WIDTH = _width()
FLOATS, BITS = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(ir.IntType(32), WIDTH)
NUMBER, REAL = ir.IntType(64), ir.FloatType()
ROUND = 12582912.0  # 1.5 * 2^23: x + ROUND has x to the nearest integer as its last bits
LOG_2_HIGH = 0.693359375  # of few bits, so that its product with an integer is exact
TERMS = [1 / math.factorial(n) for n in range(7)]


class Lanes:
    """A vector in a register."""

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    def of(self, other):
        """Another vector, a float in a register or a number, as a vector."""
        if isinstance(other, Lanes):
            return other
        if isinstance(other, (int, float)):
            return Lanes(self.builder, FLOATS([REAL(float(other))] * WIDTH))
        return spread(self.builder, other)

    def _with(self, operation, other, flipped=False):
        pair = self, self.of(other)
        a, b = pair[::-1] if flipped else pair
        return Lanes(self.builder, getattr(self.builder, operation)(a.value, b.value, flags=("contract",)))

    def __add__(self, other):
        return self._with("fadd", other)

    def __sub__(self, other):
        return self._with("fsub", other)

    def __rsub__(self, other):
        return self._with("fsub", other, True)

    def __mul__(self, other):
        return self._with("fmul", other)

    def __rtruediv__(self, other):
        return self._with("fdiv", other, True)

    __radd__, __rmul__ = __add__, __mul__

    def where(self, relation, other, then):
        """`then` where this is so related to the other, else this; NaN is related to nothing."""
        other, then = self.of(other), self.of(then)
        chosen = self.builder.fcmp_ordered(relation, self.value, other.value)
        return Lanes(self.builder, self.builder.select(chosen, then.value, self.value))

    def where_not(self, flag, then):
        """`then` in all lanes where a flag is not set, else this."""
        return Lanes(self.builder, self.builder.select(flag, self.value, self.of(then).value))

    def size(self):
        """|x|"""
        bits = self.builder.and_(self.builder.bitcast(self.value, BITS), BITS([0x7FFFFFFF] * WIDTH))
        return Lanes(self.builder, self.builder.bitcast(bits, FLOATS))

    def exp(self):
        """e^x within 3e-7 of itself, of an x from -87 to 88, and what it is there beyond; NaN passes.

        e^x = 2^k p(r) with r = x - k log 2 and p the first terms of its series.
        """
        x = self.where("<", -87.0, -87.0).where(">", 88.0, 88.0)
        shifted = x * (1 / math.log(2)) + ROUND
        k = shifted - ROUND
        r = x - k * LOG_2_HIGH - k * (math.log(2) - LOG_2_HIGH)
        p = self.of(TERMS[-1])
        for term in TERMS[-2::-1]:
            p = p * r + term
        bits = self.builder.shl(self.builder.bitcast(shifted.value, BITS), BITS([23] * WIDTH))
        power = self.builder.bitcast(self.builder.add(bits, BITS([127 << 23] * WIDTH)), FLOATS)
        return p * Lanes(self.builder, power)

    def sigmoid(self):
        return 1.0 / (1.0 + (0.0 - self).exp())

    def tanh(self):
        """2 sigmoid(2 x) - 1, within 2e-7"""
        return 1.0 - 2.0 / (1.0 + (2.0 * self).exp())


def spread(builder, value):
    """A float in a register, in all lanes."""
    alone = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), value, ir.IntType(32)(0))
    return Lanes(builder, builder.shuffle_vector(alone, ir.Constant(FLOATS, ir.Undefined), BITS([0] * WIDTH)))


def multiply_add(builder, a, b, c):
    """a b + c of registers, rounded once where the machine can."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def below(builder, count):
    """The lanes before the count-th: what `load` and `store` take as `some`."""
    numbers = ir.VectorType(NUMBER, WIDTH)
    alone = builder.insert_element(ir.Constant(numbers, ir.Undefined), count, ir.IntType(32)(0))
    counts = builder.shuffle_vector(alone, ir.Constant(numbers, ir.Undefined), BITS([0] * WIDTH))
    return builder.icmp_signed("<", numbers(list(range(WIDTH))), counts)


def data_of(context, builder, signature, arguments):
    """What an intrinsic is given: where its arrays begin, and all else as it is."""
    return [context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, arguments)]


def _call(builder, name, result, arguments):
    """Call what LLVM has by this name."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), arguments)


def vector_at(builder, data, at, kind=FLOATS):
    """The address of the vector that begins at data[at]."""
    return builder.bitcast(builder.gep(data, [at]), kind.as_pointer())


def load(builder, data, at, some):
    """data[at:at + WIDTH] at some lanes, 0 at the others."""
    arguments = [vector_at(builder, data, at), ir.IntType(32)(4), some, FLOATS([REAL(0.0)] * WIDTH)]
    return Lanes(builder, _call(builder, f"llvm.masked.load.v{WIDTH}f32.p0", FLOATS, arguments))


def store(builder, lanes, data, at, some):
    """data[at:at + WIDTH] = lanes at some of them."""
    arguments = [lanes.value, vector_at(builder, data, at), ir.IntType(32)(4), some]
    _call(builder, f"llvm.masked.store.v{WIDTH}f32.p0", ir.VoidType(), arguments)


def fetch(builder, place):
    """Have the cache line at a place on its way; it may lie outside of all arrays."""
    byte = builder.bitcast(place, ir.IntType(8).as_pointer())
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), [byte, *map(ir.IntType(32), (0, 3, 1))])
