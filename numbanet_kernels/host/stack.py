"""Arrays on the stack of a compiled loop: small buffers that exist until the loop returns."""

from __future__ import annotations

from llvmlite import ir
from numba import float32, int64, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj


@intrinsic
def stack_floats(typing_context, rows, columns):
    """Return a float32 array (rows, columns) that is not initialised and exists until the loop returns.

    `np.empty` would be compiled with each loop, and would count references: that takes a fifth of the loop's time to compile.
    """
    kind = types.Array(float32, 2, "C")

    def generate(context, builder, signature, arguments):
        rows, columns = arguments
        # LLVM must not see that the size is constant, or it takes three times as long to optimise the loop
        size = builder.load(cgutils.alloca_once_value(builder, builder.mul(rows, columns)))
        place = builder.alloca(ir.FloatType(), size=size)
        place.align = 64  # bytes of a cache line
        array, item = arrayobj.make_array(kind)(context, builder), rows.type(4)
        arrayobj.populate_array(array, place, [rows, columns], [builder.mul(columns, item), item], item, None)
        return array._getvalue()  # noqa: SLF001  there is no public way

    return kind(int64, int64), generate
