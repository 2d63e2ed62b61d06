"""What compiled loops use in place of functions of Python and NumPy that Numba would compile with them.

Numba compiles `np.empty` and `min` again for each kind of loop that calls them, which a first fit waits for. These functions
are generated in place.
"""

from __future__ import annotations

from llvmlite import ir
from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj


@intrinsic
def stack_array(typing_context, rows, columns, dtype):
    """Return a small array (rows, columns) that is not initialised and exists until the loop returns."""
    kind = types.Array(dtype.dtype, 2, "C")

    def generate(context, builder, signature, arguments):
        rows, columns, _ = arguments
        # LLVM must not see that the size is constant, or it takes much longer to optimise the loop
        size = builder.load(cgutils.alloca_once_value(builder, builder.mul(rows, columns)))
        element = context.get_data_type(kind.dtype)
        place = builder.alloca(element, size=size)
        place.align = 64  # bytes of a cache line
        item = ir.Constant(rows.type, context.get_abi_sizeof(element))
        array = arrayobj.make_array(kind)(context, builder)
        arrayobj.populate_array(array, place, [rows, columns], [builder.mul(columns, item), item], item, None)
        return array._getvalue()  # noqa: SLF001  there is no public way

    return kind(int64, int64, dtype), generate


@intrinsic
def least(typing_context, a, b):
    """Return the smaller of two integers."""

    def generate(context, builder, signature, arguments):
        a, b = arguments
        return builder.select(builder.icmp_signed("<", b, a), b, a)

    return int64(int64, int64), generate
