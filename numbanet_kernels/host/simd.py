"""SIMD: vectors of floats in compiled loops on the CPU, as functions that generate LLVM code inside an `intrinsic`.

`Lanes` is a vector with Python's operators. Loads and stores may take a mask of lanes: lanes outside the mask are read as 0 and
not written. LLVM may fuse a product and a sum into one multiply-add.
"""

from __future__ import annotations

import math

import numba
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..runtime.declare import host_function
from ..runtime.memory import empty_cpu


def _width():
    """Return the number of floats of a vector register of this machine."""
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM does not know the target
        features = {}
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


WIDTH = _width()  # number of lanes of a vector
FLOATS, BITS = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(ir.IntType(32), WIDTH)
NUMBER, REAL = ir.IntType(64), ir.FloatType()
LINE = 16  # number of floats in a cache line
VECTOR = 8  # number of elements that `copy_vectors` copies at once
ROUND = 12582912.0  # 1.5 * 2^23; the last bits of x + ROUND are x, rounded to an integer
LOG_2_HIGH = 0.693359375  # has few bits, so that its product with an integer is exact
# e^r for |r| <= log(2) / 2, and (tanh(r) - r) / r^3 in powers of r^2 for |r| <= LINEAR: minimax polynomials of these degrees
# for the relative error, each within 4e-9
EXP = 1.0, 1.0, 0.4999999343179113, 0.16666520394944379, 0.041668390844026626, 0.008368745541536271, 0.001381453810523783
TANH = -0.33333283923204693, 0.1333149123722551, -0.0537434942580016, 0.02065057554840763, -0.005717032513849632
LINEAR = 0.625
FLAT = 40.0  # beyond this, e^-x is negligible beside 1


class Lanes:
    """A vector in a register, with Python's operators."""

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    def of(self, other):
        """Convert to a vector: a `Lanes`, a Python number, or a float in a register, which is broadcast."""
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

    def __truediv__(self, other):
        return self._with("fdiv", other)

    __radd__, __rmul__ = __add__, __mul__

    def where(self, relation, other, then):
        """Return, in each lane, `then` if the comparison of x with `other` is true, else x; x is this vector, and `relation` a
        comparison such as "<". A comparison with NaN is false.
        """
        other, then = self.of(other), self.of(then)
        chosen = self.builder.fcmp_ordered(relation, self.value, other.value)
        return Lanes(self.builder, self.builder.select(chosen, then.value, self.value))

    def where_not(self, flag, then):
        """Return, in each lane, the value of this vector if `flag` is set, else `then`."""
        return Lanes(self.builder, self.builder.select(flag, self.value, self.of(then).value))

    def size(self):
        """Return |x|."""
        bits = self.builder.and_(self.builder.bitcast(self.value, BITS), BITS([0x7FFFFFFF] * WIDTH))
        return Lanes(self.builder, self.builder.bitcast(bits, FLOATS))

    def polynomial(self, terms):
        """Return terms[0] + terms[1] x + terms[2] x² + …."""
        p = self.of(terms[-1])
        for term in terms[-2::-1]:
            p = p * self + term
        return p

    def exp(self):
        """Return e^min(x, 88), with a relative error of 1.3e-7 if the result is a normal float; NaN stays NaN.

        e^x = 2^k p(r). 2^k is computed as a product of two powers, because it may be below the smallest normal float.
        """
        p, k = self.where("<", -104.0, -104.0).reduced()  # inputs below -104 are replaced, because e^-104 already rounds to 0
        half = self.builder.ashr(k, BITS([1] * WIDTH))
        return p * self._power(half) * self._power(self.builder.sub(k, half))

    def reduced(self):
        """Return (p(r), k) such that e^x = 2^k p(r), where r = x - k log 2; x is at most 88."""
        x = self.where(">", 88.0, 88.0)
        shifted = x * (1 / math.log(2)) + ROUND
        k = shifted - ROUND
        r = x - k * LOG_2_HIGH - k * (math.log(2) - LOG_2_HIGH)
        whole = self.builder.sub(self.builder.bitcast(shifted.value, BITS), self.builder.bitcast(self.of(ROUND).value, BITS))
        return r.polynomial(EXP), whole

    def _power(self, k):
        """Return 2^k for integers k from -126 to 127."""
        bits = self.builder.shl(self.builder.add(k, BITS([127] * WIDTH)), BITS([23] * WIDTH))
        return Lanes(self.builder, self.builder.bitcast(bits, FLOATS))

    def sigmoid(self):
        """Return 1 / (1 + e^-x), computed as e^min(x, 0) / (1 + e^-|x|), with a relative error of 2e-7."""
        e, positive = (0.0 - self.size()).exp(), self.builder.fcmp_ordered(">", self.value, self.of(0.0).value)
        return self.of(1.0).where_not(positive, e) / (1.0 + e)

    def tanh(self):
        """Return tanh x = (e^2x - 1) / (e^2x + 1), near 0 by a polynomial, with a relative error of 2e-7."""
        p, k = (2.0 * self).where("<", -FLAT, -FLAT).reduced()
        e, square = p * self._power(k), self * self
        near = self.builder.fcmp_ordered("<", self.size().value, self.of(LINEAR).value)
        return (self * square * square.polynomial(TANH) + self).where_not(near, (e - 1.0) / (e + 1.0))


def spread(builder, value):
    """Return a vector with the float `value`, which is in a register, in all lanes."""
    alone = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), value, ir.IntType(32)(0))
    return Lanes(builder, builder.shuffle_vector(alone, ir.Constant(FLOATS, ir.Undefined), BITS([0] * WIDTH)))


def multiply_add(builder, a, b, c):
    """Return a b + c for values in registers, by a fused multiply-add if the machine has it."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def sum_of_lanes(builder, value):
    """Return the sum of the lanes of a vector, always in the same order: the halves are added, then the halves of the sum, …"""
    width = WIDTH
    while width > 1:
        width //= 2
        halves = [
            builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), ir.VectorType(ir.IntType(32), width)(lanes))
            for lanes in (list(range(width)), list(range(width, 2 * width)))
        ]
        value = builder.fadd(*halves)
    return builder.extract_element(value, ir.IntType(32)(0))


def below(builder, count):
    """Return a mask of the lanes 0 … count - 1, for `load` and `store`."""
    numbers = ir.VectorType(NUMBER, WIDTH)
    alone = builder.insert_element(ir.Constant(numbers, ir.Undefined), count, ir.IntType(32)(0))
    counts = builder.shuffle_vector(alone, ir.Constant(numbers, ir.Undefined), BITS([0] * WIDTH))
    return builder.icmp_signed("<", numbers(list(range(WIDTH))), counts)


def for_lanes(builder, count, code):
    """Generate code(some) for the lanes 0 … count - 1, where `some` is their mask. If count >= WIDTH, `some` is None instead,
    because a masked store takes up to four times as long.
    """
    with builder.if_else(builder.icmp_signed(">=", count, NUMBER(WIDTH)), likely=True) as (whole, fewer):
        with whole:
            code(None)
        with fewer:
            code(below(builder, count))


def data_of(context, builder, signature, arguments):
    """Return the arguments of an intrinsic, in which each array is replaced by a pointer to its data."""
    return [
        context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, arguments)
    ]


def _call(builder, name, result, arguments):
    """Call an LLVM intrinsic by name."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), arguments)


def vector_at(builder, data, at, kind=FLOATS):
    """Return the address of the vector that begins at data[at]."""
    return builder.bitcast(builder.gep(data, [at]), kind.as_pointer())


def load(builder, data, at, some=None):
    """Return data[at:at + WIDTH], with 0 in lanes outside the mask `some`; if `some` is None, all lanes are read."""
    if some is None:
        return Lanes(builder, builder.load(vector_at(builder, data, at), align=4))
    arguments = [vector_at(builder, data, at), ir.IntType(32)(4), some, FLOATS([REAL(0.0)] * WIDTH)]
    return Lanes(builder, _call(builder, f"llvm.masked.load.v{WIDTH}f32.p0", FLOATS, arguments))


def store(builder, lanes, data, at, some=None):
    """Store `lanes` to data[at:at + WIDTH], only in the lanes of the mask `some`; if `some` is None, in all lanes."""
    if some is None:
        builder.store(lanes.value, vector_at(builder, data, at), align=4)
        return
    arguments = [lanes.value, vector_at(builder, data, at), ir.IntType(32)(4), some]
    _call(builder, f"llvm.masked.store.v{WIDTH}f32.p0", ir.VoidType(), arguments)


def fetch(builder, address):
    """Prefetch the cache line at an address; the address need not be valid."""
    byte = builder.bitcast(address, ir.IntType(8).as_pointer())
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), [byte, *map(ir.IntType(32), (0, 3, 1))])


# --- copies -----------------------------------------------------------------------------------------------------------
def aligned(*shape):
    """Return an uninitialised array of the given shape that begins at a cache line."""
    size = math.prod(shape)
    room = empty_cpu(size + LINE)
    first = -room.ctypes.data // 4 % LINE
    return room[first : first + size].reshape(shape)


@intrinsic
def copy_floats(typing_context, w, first, room, at, length):
    """room[at:at + length] = w[first:first + length], flat arrays."""

    def generate(context, builder, signature, arguments):
        data, first, room, at, length = data_of(context, builder, signature, arguments)
        cgutils.raw_memcpy(builder, builder.gep(room, [at]), builder.gep(data, [first]), length, 4)
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(w, integer, room, integer, integer), generate


@intrinsic
def copy_vector(typing_context, source, start, target, at):
    """target[at:at + VECTOR] = source[start:start + VECTOR], through one register."""

    def generate(context, builder, signature, arguments):
        def address(kind, array, index):
            data = context.make_array(kind)(context, builder, array).data
            return builder.bitcast(builder.gep(data, [index]), ir.VectorType(number, VECTOR).as_pointer())

        kinds = signature.args
        number = context.get_data_type(kinds[0].dtype)
        size = context.get_abi_sizeof(number)
        builder.store(
            builder.load(address(kinds[0], *arguments[:2]), align=size), address(kinds[2], *arguments[2:]), align=size
        )
        return context.get_dummy_value()

    return numba.void(source, numba.int64, target, numba.int64), generate


@host_function
def copy_vectors(source, start, target, at, count):
    """target[at:at + count] = source[start:start + count]; up to VECTOR - 1 elements after these may be overwritten."""
    copy_vector(source, start, target, at)
    for j in range(VECTOR, count, VECTOR):
        copy_vector(source, start + j, target, at + j)
