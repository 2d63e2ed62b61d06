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
            .reg .pred %p<9>; .reg .b16 %rs<40>; .reg .b32 %r<40>; .reg .f32 %f<40>;
            .reg .b64 %rd<40>; .reg .f64 %fd<40>;
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
    """result[i] = what the body leaves in %r1 (or %f1) from the sources' i-th elements in %r11, %r12, … (or %f11, …). Numbers
    of 8 bytes are in %rd1 (or %fd1), %rd11, …, those of 2 bytes in %rs1, %rs11, ….
    """

    def register(k, array):
        floats = array.dtype.kind == "f"
        return {2: "%rs", 4: "%f" if floats else "%r", 8: "%fd" if floats else "%rd"}[array.dtype.itemsize] + str(k)

    def bits(array):
        return f"b{8 * array.dtype.itemsize}"

    arrays, blocks = (result, *sources), -(-result.size // 1024)
    lines = [
        "mov.u32 %r2, %ctaid.x;",
        "mad.lo.u32 %r0, %r2, 1024, %r0;",
        f"setp.ge.u32 %p8, %r0, {result.size};",
        "@%p8 bra DONE;",
    ]
    for k, source in enumerate(sources, 1):
        lines += [
            f"mad.wide.u32 %rd31, %r0, {source.itemsize}, %rd{k};",
            f"ld.global.{bits(source)} {register(10 + k, source)}, [%rd31];",
        ]
    lines += [textwrap.dedent(body), f"mad.wide.u32 %rd31, %r0, {result.itemsize}, %rd0;"]
    lines += [f"st.global.{bits(result)} [%rd31], {register(1, result)};", "DONE:"]
    run("\n".join(lines), *arrays, threads=min(result.size, 1024), blocks=blocks)
    return result
