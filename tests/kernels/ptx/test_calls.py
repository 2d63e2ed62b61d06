"""Calls of functions that stand beside the kernel in its PTX: what libdevice does not inline, and hand-written ones."""

import math

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.runtime import availability, declare, emulation

needs_nvvm = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")
cuda, kernel = declare.cuda, declare.kernel
REGISTERS = ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .f64 %fd<4>; .reg .b64 %rd<9>;"


def program(functions, body, before=True):
    """A kernel with an array of int32 in %rd0 and its thread's number in %r0, which stores %r1; beside it functions."""
    entry = f"""
        .visible .entry test({", ".join(f".param .u64 p{j}" for j in range(7))})
        {{
            {REGISTERS}
            ld.param.u64 %rd0, [p4];
            mov.u32 %r0, %tid.x;
            {body}
            mad.wide.u32 %rd1, %r0, 4, %rd0;
            st.global.u32 [%rd1], %r1;
            ret;
        }}"""
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    return ptx.parse(head + (functions + entry if before else entry + functions))


def run(functions, body, threads=64, before=True):
    found = np.full(threads, -1, np.int32)
    counters = ptx.run(program(functions, body, before), (1,), (threads,), [found])
    return found, counters


def function(name, body, parameters="x", results="y"):
    """A function of 32-bit numbers: what they are called there, and what it does with %r1, %r2, … from them; it gives %r1."""
    given = ", ".join(f".param .b32 {name}_{p}" for p in parameters)
    taken = f"(.param .b32 {name}_{results})" if results else ""
    loads = "\n".join(f"ld.param.u32 %r{k}, [{name}_{p}];" for k, p in enumerate(parameters, 1))
    store = f"st.param.b32 [{name}_{results}+0], %r1;" if results else ""
    return f".func {taken} {name}({given})\n{{\n{REGISTERS}\n{loads}\n{body}\n{store}\nret;\n}}\n"


def call(name, *arguments, result="%r1"):
    """As NVVM writes it."""
    lines = [f".param .b32 param{k};\nst.param.b32 [param{k}+0], {a};" for k, a in enumerate(arguments)]
    given = ", ".join(f"param{k}" for k in range(len(arguments)))
    return "\n".join(
        [
            "{",
            *lines,
            ".param .b32 retval0;",
            f"call.uni (retval0),\n{name},\n(\n{given}\n);",
            f"ld.param.b32 {result}, [retval0+0];",
            "}",
        ]
    )


SQUARE = function("square", "mul.lo.u32 %r1, %r1, %r1;")


# --- libdevice --------------------------------------------------------------------------------------------------------
def everywhere(n=60):
    """Float64 numbers of all sizes and both signs, and what is special."""
    sizes = np.concatenate(
        [np.geomspace(5e-324, 1.7e308, n), np.geomspace(1e-3, 1e6, n), np.arange(1, 40) * np.pi / 4, 2.0 ** np.arange(28, 36)]
    )
    return np.concatenate([sizes, -sizes, [0.0, -0.0, np.inf, -np.inf, np.nan]])


def exactly(name, *arguments):
    """math's function of each, where that raises what C gives."""

    def one(*values):
        try:
            return getattr(math, name)(*values)
        except OverflowError:
            return -math.inf if name == "pow" and values[0] < 0 and values[1] % 2 == 1 else math.inf
        except ValueError:
            pole = (name == "pow" and values[0] == 0) or (name == "lgamma" and values[0] <= 0)
            return math.copysign(math.inf, values[0] if name == "pow" and values[1] % 2 == 1 else 1) if pole else math.nan

    return np.array([one(*map(float, values)) for values in zip(*arguments)])


def mapped(name, kind, count):
    """A kernel: y[i] = f(x[i]), or f(x[i], z[i])."""
    function = getattr(math, name)

    @kernel(f"void({kind}[::1], {kind}[::1])")
    def one(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = function(x[i])

    @kernel(f"void({kind}[::1], {kind}[::1], {kind}[::1])")
    def two(x, z, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = function(x[i], z[i])

    return (one, two)[count - 1]


def computed(name, *arguments):
    """f of the arguments, by libdevice on the machine."""
    made, found = mapped(name, arguments[0].dtype.str[1:], len(arguments)), np.zeros_like(arguments[0])
    ptx.run(emulation.program(made, emulation.EMULATED), (-(-found.size // 64),), (64,), (*arguments, found))
    return found


@needs_nvvm
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_float64_functions_of_angles_everywhere(name):
    """From 2**31 on by all the bits of 2 / pi that it takes, which is a call."""
    x = everywhere()
    np.testing.assert_allclose(computed(name, x), exactly(name, x), rtol=5e-16, atol=0)


@needs_nvvm
def test_the_cosine_that_needs_all_bits():
    """Of the float64 numbers this one is nearest to an odd multiple of pi / 2 (Muller, Elementary Functions, table 11.1)."""
    x = np.full(1, 6381956970095103 * 2.0**797)
    np.testing.assert_allclose(computed("cos", x), -4.687165924254627611e-19, rtol=2.3e-16)


@needs_nvvm
def test_float64_powers_everywhere():
    x, z = (
        a.ravel()
        for a in np.meshgrid(
            everywhere(7),
            np.concatenate(
                [everywhere(3)[:10], -np.arange(12) / 2, [0.0, 3.0, 301.0, -7.0, 1e15 + 1, np.inf, -np.inf, np.nan]]
            ),
        )
    )
    np.testing.assert_allclose(computed("pow", x, z), exactly("pow", x, z), rtol=5e-16, atol=0)


@needs_nvvm
def test_float64_lgamma_everywhere():
    """Near its zeros it is as near as terms that cancel let it be; math's is worse, SciPy's overflows below 1e-308."""
    from scipy import special

    x = np.concatenate([everywhere(), np.linspace(-12.01, 4.01, 300)])
    expected = np.where((np.abs(x) < 1e-300) | np.isinf(x), exactly("lgamma", x), special.gammaln(x))
    np.testing.assert_allclose(computed("lgamma", x), expected, rtol=1e-15, atol=5e-16)


@needs_nvvm
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_float32_functions_of_angles_everywhere(name):
    with np.errstate(all="ignore"):
        x = everywhere().astype(np.float32)
    np.testing.assert_allclose(computed(name, x), exactly(name, x), rtol=5e-7, atol=1e-45)


@needs_nvvm
def test_what_a_library_does_is_counted_for_the_line_that_calls_it():
    made = mapped("pow", "f8", 2)
    x = np.full(32, 1.5)
    found = ptx.run(emulation.program(made, emulation.EMULATED), (1,), (32,), (x, x, x.copy()))
    assert next(iter(found.by_line())).startswith("test_calls.py:") and found.summary()["issued branch"] >= 3


# --- hand-written -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_call(before):
    found, counters = run(SQUARE, call("square", "%r0"), before=before)
    np.testing.assert_array_equal(found, np.arange(64) ** 2)
    assert counters.summary()["issued branch"] == 6 and counters.summary()["issued param store"] == 4


def test_functions_call_functions_from_several_places():
    """x -> (x**2 + 1)**2 + x**2, each function with registers and labels of its own, named as those of the others."""
    functions = SQUARE + function(
        "next", f"add.u32 %r2, %r1, 1;\nsetp.eq.u32 %p1, %r1, 4;\n@%p1 bra L;\nL:\n{call('square', '%r2')}"
    )
    body = f"L:\n{call('square', '%r0', result='%r2')}\n{call('next', '%r2', result='%r3')}\nadd.u32 %r1, %r2, %r3;"
    found, _ = run(functions, body)
    np.testing.assert_array_equal(found, (np.arange(64) ** 2 + 1) ** 2 + np.arange(64) ** 2)


def test_part_of_a_warp_calls_and_meets_the_others_again():
    """Odd threads call, and in the function some loop longer than others; then all are active together."""
    halves = function(
        "halves",
        "mov.u32 %r3, 0;\nL:\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra DONE;\nshr.u32 %r1, %r1, 1;\n"
        "add.u32 %r3, %r3, 1;\nbra L;\nDONE:\nmov.u32 %r1, %r3;",
    )
    body = f"""
        mov.u32 %r1, 0;
        and.b32 %r4, %r0, 1;
        setp.eq.u32 %p1, %r4, 0;
        @%p1 bra JOIN;
        {call("halves", "%r0")}
        JOIN:
        activemask.b32 %r5;
        popc.b32 %r5, %r5;
        mad.lo.u32 %r1, %r5, 100, %r1;
    """
    for before in (True, False):
        found, _ = run(halves, body, before=before)
        np.testing.assert_array_equal(found, [3200 + (i.bit_length() if i % 2 else 0) for i in range(64)])


def test_a_function_returns_early_and_ends_threads():
    """Below 8 it gives 1, from 56 on the thread ends there, whatever the kernel would do next."""
    checked = function(
        "checked",
        """
        setp.ge.u32 %p1, %r1, 8;
        @%p1 bra ON;
        st.param.b32 [checked_y+0], 1;
        ret;
        ON:
        setp.lt.u32 %p1, %r1, 56;
        @%p1 bra LAST;
        exit;
        LAST:
        mov.u32 %r1, 2;
    """,
    )
    found, _ = run(checked, call("checked", "%r0") + "\nbar.sync 0;")
    np.testing.assert_array_equal(found, [1] * 8 + [2] * 48 + [-1] * 8)


def test_results_of_several_parts_and_local_arrays():
    """A pair {int32, float64} with a gap that nobody sets, and a pointer to an array of the caller's."""
    pair = f"""
        .func (.param .align 8 .b8 pair_y[16]) pair(.param .b32 pair_x, .param .b64 pair_p)
        {{
            .local .align 8 .b8 room[16];
            {REGISTERS}
            ld.param.u32 %r1, [pair_x];
            ld.param.u64 %rd1, [pair_p];
            st.local.u32 [room+4], %r1;
            ld.local.u32 %r2, [room+4];
            st.u32 [%rd1+4], %r2;
            cvt.rn.f64.u32 %fd1, %r1;
            add.f64 %fd1, %fd1, 0d3FE0000000000000;
            st.param.b32 [pair_y+0], %r2;
            st.param.f64 [pair_y+8], %fd1;
            ret;
        }}"""
    body = """
        mov.u64 %rd2, room;
        cvta.local.u64 %rd3, %rd2;
        { .param .b32 a; st.param.b32 [a+0], %r0; .param .b64 b; st.param.b64 [b+0], %rd3;
        .param .align 8 .b8 pair_y[16];
        call (pair_y), pair, (a, b);
        ld.param.b32 %r2, [pair_y+0];
        ld.param.f64 %fd1, [pair_y+8]; }
        mul.f64 %fd1, %fd1, 0d4000000000000000;
        cvt.rzi.u32.f64 %r3, %fd1;
        ld.local.u32 %r4, [room+4];
        mad.lo.u32 %r1, %r4, 1000, %r3;
        sub.u32 %r1, %r1, %r2;
    """
    found, _ = run(pair, ".local .align 8 .b8 room[8];" + body)
    np.testing.assert_array_equal(found, [1000 * i + 2 * i + 1 - i for i in range(64)])


def test_a_barrier_in_a_function_is_one_for_the_block():
    """Each thread reads what its neighbour of the other warp wrote, before and after a call that waits."""
    shared = ".shared .align 4 .b8 room[256];\n"
    waits = ".func waits()\n{\nbar.sync 0;\nret;\n}\n"
    body = """
        mov.u32 %r2, room;
        mad.lo.u32 %r3, %r0, 4, %r2;
        st.shared.u32 [%r3], %r0;
        {call}
        xor.b32 %r4, %r0, 32;
        mad.lo.u32 %r3, %r4, 4, %r2;
        ld.shared.u32 %r1, [%r3];
    """
    np.testing.assert_array_equal(run(shared + waits, body.replace("{call}", "call.uni waits;"))[0], np.arange(64) ^ 32)
    with pytest.raises(ptx.PtxError, match="read before it was written|race"):
        run(shared + waits, body.replace("{call}", ""))


def test_a_function_that_nobody_calls_may_do_anything():
    unknown = function("other", "wgmma.fence.sync.aligned;")
    assert len(program(unknown, call("square", "%r0")).instructions) == len(program("", call("square", "%r0")).instructions)
    np.testing.assert_array_equal(run(unknown + SQUARE, call("square", "%r0"))[0], np.arange(64) ** 2)


# --- what is refused --------------------------------------------------------------------------------------------------
FORWARD = ".func (.param .b32 retval) later(.param .b32 x);\n"


@pytest.mark.parametrize(
    "functions, body, problem",
    [
        (function("down", call("down", "%r1")), call("down", "%r0"), "down calls itself more than 256 times"),
        (
            FORWARD + function("down", call("later", "%r1")) + function("later", call("down", "%r1")),
            call("down", "%r0"),
            "later calls itself more than 256 times",
        ),
        (FORWARD, call("later", "%r0"), "the code of later is not in this PTX"),
        ("", call("%nothing", "%r0"), "the code of %nothing is not in this PTX"),
        (SQUARE, call("square", "%r0", "%r0"), "what is passed to or from square is not what it declares"),
        (SQUARE, "call square;", "what is passed to or from square is not what it declares"),
    ],
)
def test_what_is_refused_is_named(functions, body, problem):
    with pytest.raises(ptx.PtxError, match=rf"line \d+: call.*{problem}"):
        run(functions, body)


def test_a_fault_in_a_function_names_the_calls():
    reads = function("reads", "mul.wide.u32 %rd1, %r1, 4;\nld.global.u32 %r1, [%rd1];")
    outer = function("outer", call("reads", "%r1"))
    with pytest.raises(
        ptx.PtxError,
        match=r"line \d+: ld.global.u32 .*, called in line \d+: call.uni reads, called in "
        r"line \d+: call.uni outer: global out of bounds: .* by thread \(0, 0, 0\)",
    ):
        run(reads + outer, call("outer", "%r0"))


def test_a_function_without_a_result_that_is_called_as_if_it_had_one():
    """Numba does so for functions of C; a card's linker lets it pass."""
    nothing = function("nothing", "", results="")
    np.testing.assert_array_equal(run(nothing, call("nothing", "%r0"))[0], np.zeros(64))


def test_a_result_that_is_not_set_is_told():
    empty = ".func (.param .b32 empty_y) empty()\n{\nret;\n}\n"
    with pytest.raises(ptx.PtxError, match="ld.param.b32 .*: param read before it was written"):
        run(empty, "{ .param .b32 retval0;\ncall (retval0), empty;\nld.param.b32 %r1, [retval0+0]; }")


# --- calls through pointers -------------------------------------------------------------------------------------------
def test_calls_through_pointers():
    """Threads of a warp call different functions, whose addresses are in registers; one that is named nowhere else."""
    functions = SQUARE + function("next", "add.u32 %r1, %r1, 1;")
    body = f"""
        mov.u64 %rd2, square;
        mov.u64 %rd3, next;
        and.b32 %r2, %r0, 1;
        setp.eq.u32 %p1, %r2, 0;
        selp.b64 %rd4, %rd2, %rd3, %p1;
        {call("%rd4", "%r0").replace(");", "), prototype;")}
    """
    found, _ = run(functions, body)
    np.testing.assert_array_equal(found, [i + 1 if i % 2 else i**2 for i in range(64)])
    with pytest.raises(ptx.PtxError, match=r"call.* %rd4.*: 0x7 is not the address of a function by thread \(1, 0, 0\)"):
        run(functions, body.replace("mov.u64 %rd3, next", "mov.u64 %rd3, 7"))
