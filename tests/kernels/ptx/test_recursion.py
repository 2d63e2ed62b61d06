"""Functions that call themselves, directly or by others: each call has registers, parameters and local variables of its own."""

import math

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.runtime import availability, declare, emulation
from tests.kernels.ptx.test_calls import FORWARD, call, function, run

cuda, kernel = declare.cuda, declare.kernel
needs_nvvm = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")

# fibonacci(x), whose two calls keep x and the first result in registers
FIBONACCI = function(
    "fibonacci",
    f"""
    setp.lt.u32 %p1, %r1, 2;
    @%p1 bra END;
    sub.u32 %r2, %r1, 1;
    {call("fibonacci", "%r2", result="%r3")}
    sub.u32 %r4, %r1, 2;
    {call("fibonacci", "%r4", result="%r5")}
    add.u32 %r1, %r3, %r5;
    END:
""",
)


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def test_each_call_has_its_own_registers():
    """Threads of a warp are at different depths."""
    found, counters = run(FIBONACCI, "rem.u32 %r2, %r0, 9;\n" + call("fibonacci", "%r2"), threads=64)
    np.testing.assert_array_equal(found, [fibonacci(i % 9) for i in range(64)])
    assert counters.summary()["divergent branches"] > 0


def test_two_functions_call_each_other():
    """even(n) = odd(n - 1), odd(n) = even(n - 1), with parameters that are read after the call, too."""
    bodies = {
        name: f"""
            setp.eq.u32 %p1, %r1, 0;
            @%p1 bra ZERO;
            sub.u32 %r2, %r1, 1;
            {call(other, "%r2", result="%r3")}
            ld.param.u32 %r4, [{name}_x];
            shl.b32 %r3, %r3, 1;
            xor.b32 %r1, %r3, %r4;
            bra END;
            ZERO:
            mov.u32 %r1, {last};
            END:
        """
        for name, other, last in (("even", "odd", 1), ("odd", "even", 0))
    }

    def step(n, last):
        return last if n == 0 else 2 * step(n - 1, 1 - last) ^ n

    functions = FORWARD.replace("later", "odd") + function("even", bodies["even"]) + function("odd", bodies["odd"])
    found, _ = run(functions, "rem.u32 %r2, %r0, 12;\n" + call("even", "%r2"), threads=40)
    np.testing.assert_array_equal(found, [step(i % 12, 1) for i in range(40)])


def test_local_variables_of_each_call():
    """Each call stores its number, calls, and adds what it stored: 1 + … + n. A pointer to the caller's variable is valid."""
    total = """
        .func (.param .b32 total_y) total(.param .b32 total_x, .param .b64 total_p)
        {
            .local .align 4 .b8 room[4];
            .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
            ld.param.u32 %r1, [total_x];
            ld.param.u64 %rd1, [total_p];
            mov.u64 %rd2, room;
            st.local.u32 [%rd2], %r1;
            cvta.local.u64 %rd3, %rd2;
            ld.u32 %r4, [%rd1];
            mov.u32 %r2, 0;
            setp.eq.u32 %p1, %r1, 0;
            @%p1 bra END;
            sub.u32 %r3, %r1, 1;
            { .param .b32 a; st.param.b32 [a+0], %r3; .param .b64 b; st.param.b64 [b+0], %rd3; .param .b32 retval0;
            call.uni (retval0), total, (a, b);
            ld.param.b32 %r2, [retval0+0]; }
            END:
            ld.local.u32 %r5, [%rd2];
            add.u32 %r1, %r2, %r5;
            mad.lo.u32 %r1, %r4, 100, %r1;
            st.param.b32 [total_y+0], %r1;
            ret;
        }"""
    body = """
        .local .align 4 .b8 first[4];
        mov.u64 %rd2, first;
        st.local.u32 [%rd2], 0;
        cvta.local.u64 %rd3, %rd2;
        rem.u32 %r2, %r0, 5;
        { .param .b32 a; st.param.b32 [a+0], %r2; .param .b64 b; st.param.b64 [b+0], %rd3; .param .b32 retval0;
        call.uni (retval0), total, (a, b);
        ld.param.b32 %r1, [retval0+0]; }
    """

    def total_of(n, above):
        return (total_of(n - 1, n) if n else 0) + n + 100 * above

    found, _ = run(total, body, threads=20)
    np.testing.assert_array_equal(found, [total_of(i % 5, 0) for i in range(20)])


def test_threads_that_come_later_to_the_same_call():
    """Even threads have called, and wait at a barrier in the last call, when the odd ones come: both save at each call."""
    weighted = function(
        "weighted",
        f"""
        and.b32 %r2, %r1, 3;
        setp.eq.u32 %p1, %r2, 0;
        @%p1 bra END;
        sub.u32 %r2, %r1, 1;
        {call("weighted", "%r2", result="%r3")}
        mad.lo.u32 %r1, %r3, 3, %r1;
        bra BACK;
        END:
        bar.sync 0;
        BACK:
    """,
    )
    late = f"""
        bra START;
        CALL:
        {call("weighted", "%r2")}
        bra LAST;
        START:
        and.b32 %r2, %r0, 1;
        setp.eq.u32 %p1, %r2, 0;
        mad.lo.u32 %r2, %r2, 4, 3;
        @%p1 bra CALL;
        bra CALL;
        LAST:
    """

    def result(n):
        return 3 * result(n - 1) + n if n % 4 else n

    found, _ = run(weighted, late, threads=64)
    np.testing.assert_array_equal(found, [result(4 * (i % 2) + 3) for i in range(64)])


def test_the_depth_is_bounded():
    down = function("down", f"setp.eq.u32 %p1, %r1, 0;\n@%p1 bra END;\nsub.u32 %r1, %r1, 1;\n{call('down', '%r1')}\nEND:")
    found, _ = run(down, f"mov.u32 %r2, 250;\n{call('down', '%r2')}", threads=2)
    np.testing.assert_array_equal(found, [0, 0])
    with pytest.raises(
        ptx.PtxError, match=r"test, (line \d+: call.uni down), called in \1, 256 times, called in .*: down calls itself"
    ):
        run(down, f"mov.u32 %r2, 300;\n{call('down', '%r2')}", threads=2)
    others = [function(name, call(other, "%r1")) for name, other in (("down", "up"), ("up", "down"))]
    with pytest.raises(
        ptx.PtxError, match=r"(, called in line \d+: call.uni (down|up)){4}, after 253 more calls: (down|up) calls itself"
    ):
        run("\n".join(others), call("down", "%r2"), threads=2)


@needs_nvvm
def test_recursion_as_numba_compiles_it():
    @cuda.jit("i8(i8)", device=True)
    def factorial(n):
        return n * factorial(n - 1) if n > 1 else 1

    @cuda.jit("f8(f8, i8)", device=True)
    def power(x, n):
        if n == 0:
            return 1.0
        half = power(x, n // 2)
        return half * half * x if n % 2 else half * half

    @kernel("void(i8[::1], f8[::1])")
    def both(n, y):
        i = cuda.grid(1)
        if i < n.size:
            y[i] = factorial(n[i]) + power(0.5, n[i])

    n, y = np.arange(70) % 15, np.zeros(70)
    ptx.run(emulation.program(both, emulation.EMULATED), (3,), (32,), [n, y])
    np.testing.assert_array_equal(y, [math.factorial(k) + 0.5**k for k in n])


# --- jump tables ------------------------------------------------------------------------------------------------------
def test_a_jump_by_a_table():
    body = """
        rem.u32 %r2, %r0, 3;
        TABLE: .branchtargets ONE, TWO, LAST;
        brx.idx %r2, TABLE;
        ONE:
        mov.u32 %r1, 10;
        bra LAST;
        TWO:
        mov.u32 %r1, 20;
        LAST:
        @!%p1 bra NEXT;
        NEXT:
    """
    found, _ = run("", "mov.u32 %r1, 5;\nsetp.eq.u32 %p1, %r1, 5;\n" + body, threads=9)
    np.testing.assert_array_equal(found, [10, 20, 5] * 3)
    with pytest.raises(ptx.PtxError, match=r"brx.idx .*: 3 is beyond the 3 labels"):
        run("", "setp.eq.u32 %p1, %r0, 0;\nmov.u32 %r1, 0;\n" + body.replace("%r0, 3", "%r0, 4"), threads=9)


def test_returns_and_ends_with_predicates():
    chosen = function("chosen", "setp.gt.u32 %p1, %r1, 4;\nst.param.b32 [chosen_y+0], 7;\n@%p1 ret;\nmov.u32 %r1, 3;")
    found, _ = run(chosen, f"setp.eq.u32 %p2, %r0, 6;\n@%p2 exit;\n{call('chosen', '%r0')}", threads=8)
    np.testing.assert_array_equal(found, [3] * 5 + [7, -1, 7])
