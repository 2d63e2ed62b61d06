"""Instructions that Numba does not offer, as LLVM code; updates, `copies` and `accumulate` use them.

commit, wait_for_all_but_one    close a group of asynchronous copies (cp.async), and wait for all groups but the newest one
parking, fence                  store sums so that other blocks can add them up, by strong stores and loads
chosen, owner                   select an element of each of several tuples by its index; find the range that contains a number
sigmoids                        returns the logistic function, which is inlined into kernels
"""

from __future__ import annotations

import functools
import math

from llvmlite import ir
from numba import float32, types

from ..runtime.declare import inlined, intrinsic

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)


def constant(value):
    """Return the number `value` as an int32 constant of LLVM."""
    return ir.Constant(I32, value)


def data_of(context, builder, kind, array):
    """Return the address of the first element of an array argument."""
    return context.make_array(kind)(context, builder, array).data


def element(builder, data, index):
    """Return the address of element `index` of the array at `data`."""
    return builder.gep(data, [builder.sext(index, I64)])


def numbers_of(context, builder, kind, array, at, numbers):
    """Return array[at + n] for each n in numbers."""
    data = data_of(context, builder, kind, array)
    return [builder.load(element(builder, data, builder.add(at, n))) for n in numbers]


def loaded(builder, data, indices, wanted, some):
    """Return the elements of an array at `indices`; an element that is not wanted is 0. If `some` is False, nothing is read. If
    it is True, the first element is read and discarded for each unwanted element, so that there is only one branch.
    """
    zero, before = ir.Constant(data.type.pointee, 0), builder.block
    with builder.if_then(some):
        values = [
            builder.load(element(builder, data, builder.select(flag, index, constant(0))))
            for index, flag in zip(indices, wanted, strict=True)
        ]
        values, after = [builder.select(flag, value, zero) for flag, value in zip(wanted, values, strict=True)], builder.block
    results = [builder.phi(zero.type) for _ in values]
    for phi, value in zip(results, values, strict=True):
        phi.add_incoming(zero, before)
        phi.add_incoming(value, after)
    return results


def gates_of(builder, data, masked, indices, wanted):
    """Return a flag for each index, which is True if the element of `where` is wanted and above 0. If not masked, all flags are
    True, and `where` is not read.
    """
    values = loaded(builder, data, indices, wanted, masked)
    return [builder.or_(builder.not_(masked), builder.fcmp_ordered(">", value, ir.Constant(F32, 0.0))) for value in values]


@intrinsic()
def chosen(typing_context, groups, number):
    """Return group[number] for each group. `number` is known only at run time; selp is used instead of a branch."""

    def generate(context, builder, signature, arguments):
        values = []
        for place, kind in enumerate(signature.args[0]):
            several = builder.extract_value(arguments[0], place)
            values.append(builder.extract_value(several, 0))
            for i in range(1, kind.count):
                is_it = builder.icmp_signed("==", arguments[1], constant(i))
                values[-1] = builder.select(is_it, builder.extract_value(several, i), values[-1])
        return context.make_tuple(builder, signature.return_type, values)

    return types.UniTuple(groups[0].dtype, len(groups))(groups, types.int32), generate


@intrinsic()
def owner(typing_context, firsts, number):
    """Return the index of the range that contains `number`, without branches; firsts[k] is the start of range k."""

    def generate(context, builder, signature, arguments):
        firsts, number = arguments
        later = (builder.extract_value(firsts, i) for i in range(1, signature.args[0].count))
        return functools.reduce(builder.add, (builder.zext(builder.icmp_signed(">=", number, first), I32) for first in later))

    return types.int32(firsts, types.int32), generate


def _statement(text):
    """Return an intrinsic for one instruction without operands."""

    @intrinsic(text)
    def run(typing_context):
        def generate(context, builder, signature, arguments):
            builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", side_effect=True), [])
            return context.get_dummy_value()

        return types.void(), generate

    return run


fence = _statement("fence.acq_rel.gpu;")
commit, wait_for_all_but_one = _statement("cp.async.commit_group;"), _statement("cp.async.wait_group 1;")


@functools.cache
def parking(every):
    """Return the intrinsics (park, add): they store a thread's values, `every` floats apart, and add them up in a block."""

    @intrinsic(every)
    def park(typing_context, values, to, at):
        """to[at + i every] = values[i], by st.relaxed.gpu, so that other blocks may read the values after a `fence`."""

        def generate(context, builder, signature, arguments):
            values, to, at = arguments
            address = builder.ptrtoint(element(builder, data_of(context, builder, signature.args[1], to), at), I64)
            kind = ir.FunctionType(ir.VoidType(), [I64, F32])
            for i in range(signature.args[0].count):
                store = ir.InlineAsm(kind, f"st.relaxed.gpu.global.f32 [$0+{4 * i * every}], $1;", "l,f", side_effect=True)
                builder.call(store, [address, builder.extract_value(values, i)])
            return context.get_dummy_value()

        return types.void(values, to, types.int32), generate

    @intrinsic(every)
    def add(typing_context, values, source, at):
        """Return values[i] + source[at + i every] by ld.relaxed.gpu: sums that other blocks parked before a `fence`."""

        def generate(context, builder, signature, arguments):
            values, source, at = arguments
            address = builder.ptrtoint(element(builder, data_of(context, builder, signature.args[1], source), at), I64)
            kind, sums = ir.FunctionType(F32, [I64]), []
            for i in range(signature.args[0].count):
                load = ir.InlineAsm(kind, f"ld.relaxed.gpu.global.f32 $0, [$1+{4 * i * every}];", "=f,l", side_effect=True)
                sums.append(builder.fadd(builder.extract_value(values, i), builder.call(load, [address])))
            return context.make_tuple(builder, signature.return_type, sums)

        return values(values, source, types.int32), generate

    return park, add


def sigmoids():
    """Return a device function for the sigmoid, e^min(x, 0) / (1 + e^-|x|); each factory makes its own (`inlined`)."""

    @inlined
    def sigmoid(x):
        e = math.exp(-math.fabs(x))
        return (float32(1) if x > float32(0) else e) / (float32(1) + e)

    return sigmoid
