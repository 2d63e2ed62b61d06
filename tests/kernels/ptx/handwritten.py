"""Kernels of hand-written PTX, run on the PTX machine."""

import textwrap

from numbanet_kernels import ptx
from numbanet_kernels.ptx.parse import parse


def kernel(body, arrays=1, shared=0, axes=1):
    """A kernel of hand-written PTX; its arrays' addresses are in %rd0, %rd1, …"""
    parameters = [f".param .u64 p{k}_{j}" for k in range(arrays) for j in range(5 + 2 * axes)]
    loads = "\n".join(f"ld.param.u64 %rd{k}, [p{k}_4];" for k in range(arrays))
    return parse(f"""
        .version 8.0
        .target sm_80
        .address_size 64
        {f".shared .align 16 .b8 room[{shared}];" if shared else ""}
        .visible .entry test({", ".join(parameters)})
        {{
            .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<40>; .reg .f32 %f<40>; .reg .b64 %rd<40>;
            {loads}
            mov.u32 %r0, %tid.x;
            {textwrap.dedent(body)}
            ret;
        }}
    """)


def run(body, *arrays, threads=32, blocks=1, shared=0):
    """Run hand-written PTX on arrays of as many axes each; returns the counters."""
    return ptx.run(kernel(body, len(arrays), shared, arrays[0].ndim), (blocks,), (threads,), arrays, name="test")


def each(body, result, *sources):
    """result[i] = what the body leaves in %r1 (or %f1) from the sources' i-th elements in %r11, %r12, … (or %f11, …)."""

    def register(k, array):
        return f"%f{k}" if array.dtype.kind == "f" else f"%r{k}"

    arrays = (result, *sources)
    lines = ["mul.wide.u32 %rd30, %r0, 4;"]
    for k, source in enumerate(sources, 1):
        lines += [f"add.s64 %rd31, %rd{k}, %rd30;", f"ld.global.b32 {register(10 + k, source)}, [%rd31];"]
    lines += [textwrap.dedent(body), "add.s64 %rd31, %rd0, %rd30;", f"st.global.b32 [%rd31], {register(1, result)};"]
    run("\n".join(lines), *arrays, threads=result.size)
    return result
