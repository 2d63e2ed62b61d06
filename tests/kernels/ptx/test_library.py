"""Functions that a card's driver brings: printf, assertions, the device's heap, barriers of the whole grid."""

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.runtime import availability, declare, emulation
from tests.kernels.ptx.test_calls import program, run

cuda, kernel = declare.cuda, declare.kernel
needs_nvvm = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")


def launched(made, grid, block, *arguments, **options):
    return ptx.run(emulation.program(made, emulation.EMULATED), grid, block, arguments, name=made.__name__, **options)


# --- printf -----------------------------------------------------------------------------------------------------------
@needs_nvvm
def test_print_as_numba_compiles_it(capsys):
    @kernel("void(i4[::1], f8[::1], u8[::1])")
    def printing(x, y, z):
        i = cuda.grid(1)
        if i % 20 == 3:
            print("element", i, x[i], y[i], z[i], x[i] < 0, cuda.threadIdx)

    x, y, z = np.arange(-3, 37, dtype=np.int32), np.linspace(-1, 1, 40), np.arange(2**64 - 40, 2**64, dtype=np.uint64)
    launched(printing, (2,), (20,), x, y, z)
    lines = [f"element {i} {x[i]} {y[i]:f} {z[i]} {x[i] < 0} (3, 0, 0)" for i in (3, 23)]
    assert capsys.readouterr().out.splitlines() == lines


def printed(capsys, text, arguments):
    """What printf gives for a format and (PTX type, register or number) of each argument, in a single thread."""
    octets = ", ".join(map(str, (*text.encode(), 0)))
    stores, at = [], 0
    for kind, value in arguments:
        size = int(kind[1:]) // 8
        at = -(-at // size) * size
        stores.append(f"st.local.{kind} [room+{at}], {value};")
        at += size
    count = text.count("%") - 2 * text.count("%%")
    run(
        f".global .b8 text[{len(text.encode()) + 1}] = {{{octets}}};\n.global .b8 word[3] = {{104, 105, 0}};\n",
        f"""
        .local .align 8 .b8 room[64];
        mov.u64 %rd2, word;
        cvta.global.u64 %rd2, %rd2;
        {chr(10).join(stores)}
        mov.u64 %rd3, text;
        cvta.global.u64 %rd3, %rd3;
        mov.u64 %rd4, room;
        cvta.local.u64 %rd4, %rd4;
        {{ .param .b64 a; st.param.b64 [a+0], %rd3; .param .b64 b; st.param.b64 [b+0], %rd4; .param .b32 retval0;
        call.uni (retval0), vprintf, (a, b);
        ld.param.b32 %r1, [retval0+0]; }}
        setp.ne.u32 %p1, %r1, {count};
        @%p1 trap;
    """,
        threads=1,
    )
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "text, arguments, expected",
    [
        ("a %d, %u, %x%%\n", [("s32", -5), ("u32", "0xFFFFFFFF"), ("b32", 255)], "a -5, 4294967295, ff%\n"),
        ("%5lld|%-5d|%05i|", [("s64", -(2**40)), ("s32", 7), ("s32", -7)], f"{-(2**40):5d}|7    |-0007|"),
        ("%s and %c, %hhd %hu", [("u64", "%rd2"), ("b32", 65), ("b32", 511), ("b32", 65537)], "hi and A, -1 1"),
        ("%.3f %g %e", [("f64", "0d4000C00000000000"), ("f64", "0d3FB999999999999A"), ("f64", "0d40F86A0000000000")],
         "2.094 0.1 1.000000e+05"),
        ("%X", [("b32", 171)], "AB"),
        ("%d %g %d %lld", [("b32", 1), ("f64", "0d4000000000000000"), ("b32", 3), ("s64", 4)], "1 2 3 4"),  # each aligned
        ("%p %f %f", [("u64", 4096), ("f64", "0d7FF0000000000000"), ("f64", "0d7FF8000000000000")], "0x1000 inf nan"),
        ("nothing", [], "nothing"),
    ],
)  # fmt: skip
def test_formats(capsys, text, arguments, expected):
    assert printed(capsys, text, arguments) == expected


def test_an_assertion_names_its_text_and_place():
    strings = {"said": "x > 0", "file": "here.cu", "name": "check"}
    tables = "".join(
        f".global .align 1 .b8 {key}[{len(s) + 1}] = {{{', '.join(map(str, (*s.encode(), 0)))}}};\n"
        for key, s in strings.items()
    )
    given = "".join(
        f"mov.u64 %rd{k}, {key};\ncvta.global.u64 %rd{k}, %rd{k};\n.param .b64 {key}_p; st.param.b64 [{key}_p+0], %rd{k};\n"
        for k, key in enumerate(strings, 2)
    )
    body = f"""
        setp.lt.u32 %p1, %r0, 40;
        @%p1 bra END;
        {{ {given} .param .b32 line; st.param.b32 [line+0], 17; .param .b64 size; st.param.b64 [size+0], 1;
        call.uni __assertfail, (said_p, file_p, line, name_p, size); }}
        END:
        mov.u32 %r1, 0;
    """
    with pytest.raises(ptx.PtxError, match=r"assertion failed: x > 0 \(here.cu:17, check\) by thread \(40, 0, 0\)"):
        run(tables, body, threads=64)


# --- heap -------------------------------------------------------------------------------------------------------------
MALLOC = """
    { .param .b64 size; st.param.b64 [size+0], 8; .param .b64 retval0;
    call.uni (retval0), malloc, (size);
    ld.param.b64 %rd2, [retval0+0]; }
    st.u32 [%rd2+4], %r0;
    ld.u32 %r1, [%rd2+{at}];
"""
COPY = ".shared .align 4 .b8 room[64];\nshl.b32 %r2, %r0, 2;\ncp.async.ca.shared.global [%r2], [%rd2], 4;\n"
FREE = "{ .param .b64 p; st.param.b64 [p+0], %rd2;\ncall.uni free, (p); }\n"


def test_memory_of_the_heap():
    np.testing.assert_array_equal(run("", MALLOC.replace("{at}", "4") + FREE, threads=5)[0], np.arange(5))
    for code, problem in (
        (MALLOC.replace("{at}", "0"), "read before it was written"),
        (MALLOC.replace("{at}", "8"), "out of bounds"),
        (MALLOC.replace("{at}", "4") + COPY, r"cp.async.*: global read before it was written by thread \(0, 0, 0\)"),
        (MALLOC.replace("{at}", "4") + FREE + FREE, "free of 0x.*, which malloc has not returned or which is free"),
        (MALLOC.replace("{at}", "4") + FREE + "ld.u32 %r1, [%rd2+4];", "out of bounds"),
    ):
        with pytest.raises(ptx.PtxError, match=problem):
            run("", code, threads=3)


# --- barriers of the grid ---------------------------------------------------------------------------------------------
@needs_nvvm
def test_a_barrier_of_the_grid():
    """Each row is the one above, back to front, plus 1; the last threads wait for the first ones, or there is a race."""

    def rows(a, waits):
        column = cuda.grid(1)
        grid = cuda.cg.this_grid()
        other = a.shape[1] - column - 1
        for row in range(1, a.shape[0]):
            if waits:
                grid.sync()
            a[row, column] = a[row - 1, other] + 1

    made = kernel("void(i4[:, ::1], b1)")(rows)
    a = np.zeros((4, 10 * 32), np.int32)
    a[0] = np.arange(320)
    launched(made, (10,), (32,), a, True)
    expected = np.arange(320) + np.zeros((4, 1), int)
    np.testing.assert_array_equal(a, [expected[0], expected[0][::-1] + 1, expected[0] + 2, expected[0][::-1] + 3])
    with pytest.raises(ptx.PtxError, match="global race"):
        launched(made, (10,), (32,), a, False)
    with pytest.raises(ptx.PtxError, match="4096 blocks of 1024 threads do not fit on a card at once"):
        launched(made, (4096,), (1024,), np.zeros((1, 4096 * 1024), np.int32), True)


def test_a_barrier_of_the_grid_that_a_block_never_reaches():
    body = """
        mov.u32 %r2, %ctaid.x;
        setp.eq.u32 %p1, %r2, 1;
        mov.u32 %r1, 0;
        @%p1 bra END;
        { .param .b64 g; st.param.b64 [g+0], 1; .param .b32 f; st.param.b32 [f+0], 0; .param .b32 retval0;
        call.uni (retval0), cudaCGSynchronize, (g, f); }
        exit;
        END:
        exit;
    """
    with pytest.raises(ptx.PtxError, match="a barrier that part of its grid never reaches: others have ended"):
        ptx.run(program("", body), (2,), (32,), [np.zeros(64, np.int32)])
