"""What PTX says beside its instructions: initial values of constants, attributes of parameters."""

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.runtime import availability, declare, emulation, launch

needs_nvvm = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")
cuda, kernel = declare.cuda, declare.kernel
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


@pytest.mark.parametrize("space", ["const", "global"])
@pytest.mark.parametrize("kind, size", [("u32", 4), ("u8", 1)])
@pytest.mark.parametrize(
    "values, expected", [(" = {7, 1}", [7, 1, 0, 0, 0]), ("", [0] * 5), (" = {7, 1, 3, 4, 5}", [7, 1, 3, 4, 5])]
)
def test_what_an_initial_value_leaves_out_is_zero(space, kind, size, values, expected):
    """PTX ISA, "Initializers": the rest is zero, and so is a variable of these spaces without any."""
    found = np.full(5, -1, np.int32)
    parameters = ", ".join(f".param .u64 {name}" for name in ("a", "b", "c", "d", "y", "e", "f"))
    program = ptx.parse(f"""{HEAD}
        .{space} .align {size} .{kind} table[5]{values};
        .visible .entry test({parameters})
        {{
            .reg .b32 %r<3>; .reg .b64 %rd<4>;
            ld.param.u64 %rd1, [y];
            mov.u32 %r1, %tid.x;
            mov.u64 %rd3, table;
            mad.wide.u32 %rd3, %r1, {size}, %rd3;
            mad.wide.u32 %rd1, %r1, 4, %rd1;
            ld.{space}.{kind} %r2, [%rd3];
            st.global.u32 [%rd1], %r2;
            ret;
        }}""")
    ptx.run(program, (1,), (5,), [found])
    np.testing.assert_array_equal(found, expected)


@needs_nvvm
def test_a_constant_array_that_ends_in_zeros():
    """NVVM leaves the zero bytes at the end of an initial value out, those above the leading bits of a small number as well."""
    table = np.array([5, 3, 0, 2, 0, 0], np.int64)

    @kernel("void(i8[::1])")
    def looked_up(y):
        constant = cuda.const.array_like(table)
        i = cuda.threadIdx.x
        y[i] = constant[i]

    y = np.full(6, -1)
    with emulation.emulated():
        launch.launch(looked_up, 1, 6, y)
    np.testing.assert_array_equal(y, table)


@needs_nvvm
@pytest.mark.parametrize("place", ["constant", "captured"])
def test_a_table_of_any_length(place):
    table = np.array([4, 0, 9, 1, 0], np.int8)

    @kernel("void(i1[::1])")
    def looked_up(y):
        values = cuda.const.array_like(table) if place == "constant" else table
        i = cuda.threadIdx.x
        y[i] = values[i]

    y = np.full(5, -1, np.int8)
    with emulation.emulated():
        launch.launch(looked_up, 1, 5, y)
    np.testing.assert_array_equal(y, table)


# --- loads that are wider than what is used ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "mask, problem", [("0x31", None), ("0x33", "read before it was written"), (None, "read before it was written")]
)
def test_bytes_of_a_load_that_are_not_used(mask, problem):
    """NVVM loads 8 bytes where it needs some of them, and says which."""
    pragma = f'.pragma "used_bytes_mask {mask}";' if mask else ""
    program = ptx.parse(f"""{HEAD}.visible .entry test()
    {{
        .reg .b32 %r<4>;
        .local .align 8 .b8 room[8];
        st.local.u8 [room], 1;
        st.local.u16 [room+4], 2;
        {pragma}
        ld.local.v2.b32 {{%r1, %r2}}, [room];
        ret;
    }}""")
    if problem is None:
        ptx.run(program, (1,), (1,), [])
    else:
        with pytest.raises(ptx.PtxError, match=problem):
            ptx.run(program, (1,), (1,), [])


# --- comments ---------------------------------------------------------------------------------------------------------
def test_comments_begin_outside_of_texts():
    program = ptx.parse(f"""{HEAD}.file 1 "http://a//b /*c.py" // not "this
        .file 2 "/a/d*/ \\"//e.py" /* nor "this
        */ .visible .entry test(.param .u32 n) // .reg
        {{
            .reg .b32 %r<3>;
            .loc 1 7 0
            mov.u32 %r1, 1; // mov "
            /* .loc 1 9 0 */ mov.u32 %r2, 2;
            ret; // "
        }}""")
    assert set(program.python) == {"*c.py:7"}
    assert set(program.files.values()) == {"http://a//b /*c.py", '/a/d*/ "//e.py'}


# --- parameters -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "attribute", [".ptr", ".ptr .align 4", ".ptr .global", ".ptr .global .align 16", ".ptr .shared .align 4"]
)
def test_parameters_that_say_where_they_point_to(attribute):
    program = ptx.parse(f"{HEAD}.visible .entry test(.param .u32 n, .param .u64 {attribute} x)\n{{ ret; }}")
    assert program.parameters == {"n": (0, "u32"), "x": (8, "u64")}


@pytest.mark.parametrize("parameter, problem", [(".reg .b32 x", "this parameter is not understood: .reg .b32 x")])
def test_a_parameter_that_is_not_understood_is_named(parameter, problem):
    with pytest.raises(ptx.PtxError, match=rf"line 4: {problem}"):
        ptx.parse(f"{HEAD}.visible .entry test({parameter})\n{{ ret; }}")


def test_launch_bounds():
    program = ptx.parse(f"{HEAD}.visible .entry test(.param .u32 n)\n.maxntid 8, 4, 1\n.minnctapersm 2\n{{ ret; }}")
    ptx.run(program, (1,), (32,), [0])
    with pytest.raises(ptx.PtxError, match=r"a block of \(11, 3\) has more than the 32 threads of its launch bounds"):
        ptx.run(program, (1,), (11, 3), [0])


@needs_nvvm
def test_a_kernel_that_newer_compilers_wrote():
    """From compute capability 10.0 on, NVVM says which parameters are pointers."""

    @kernel("void(f4[:, ::1], f4, f4[:, ::1])")
    def scaled(x, a, y):
        i, j = cuda.grid(2)
        if i < x.shape[0] and j < x.shape[1]:
            y[i, j] = a * x[i, j]

    text, (x, y) = scaled.ptx((10, 0)), (np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32))
    assert ".ptr .align" in text
    ptx.run(ptx.parse(text, scaled.arguments), (1, 1), (2, 3), (x, 3, y))
    np.testing.assert_array_equal(y, 3 * x)
