"""What kernel writers meet: functions their kernels use, what is refused, and errors that name the line of Python."""

import fractions
import inspect
import math
import re
import time

import numpy as np
import pytest

from numbanet import cli
from numbanet_kernels import ptx
from numbanet_kernels.ptx import arithmetic
from numbanet_kernels.runtime import arrays, availability, declare, emulation, launch

needs_nvvm = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=str(availability.nvvm_problem()))
cuda, kernel = declare.cuda, declare.kernel
F = np.float32


def run(made, *arguments, grid=(1,), block=(32,), **options):
    return ptx.run(emulation.program(made, emulation.EMULATED), grid, block, arguments, name=made.__name__, **options)


def place(made, mark):
    """ "file.py:12" of the line of a kernel that has a mark."""
    lines, first = inspect.getsourcelines(made.function)
    return f"test_declare.py:{first + next(i for i, line in enumerate(lines) if f'# {mark}' in line)}"


# --- float64 ----------------------------------------------------------------------------------------------------------
@needs_nvvm
@pytest.mark.parametrize("name, low, high", [("exp", -700, 700), ("log", 1e-300, 1e300), ("tanh", -20, 20), ("sqrt", 0, 1e9)])
def test_float64_functions_equal_numpy(name, low, high):
    function = getattr(math, name)

    @kernel("void(f8[::1], f8[::1])")
    def mapped(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = function(x[i])

    x = np.concatenate([np.linspace(low, high, 40), np.linspace(max(low, 0.1), 3, 24)])
    y = np.zeros_like(x)
    run(mapped, x, y, grid=(2,))
    np.testing.assert_allclose(y, getattr(np, name)(x), rtol=4e-16)


def test_float64_fma_rounds_once(rng):
    """Where terms cancel, where they are far apart, and at both ends of the range."""
    a, b, c = (rng.standard_normal(4000) * 2.0 ** rng.integers(-520, 500, 4000) for _ in range(3))
    near = slice(0, 2000)
    a[near], b[near] = (rng.standard_normal(2000) * 2.0 ** rng.integers(-30, 30, 2000) for _ in range(2))
    c[near] = -(a * b)[near] * (1 + rng.integers(-2, 3, 2000) * 2.0**-52)
    c[1500:2000] *= 2.0 ** rng.integers(-120, 120, 500)
    exact = [fractions.Fraction(p) * fractions.Fraction(q) + fractions.Fraction(r) for p, q, r in zip(a, b, c)]
    np.testing.assert_array_equal(arithmetic.fma(a, b, c, dtype=np.dtype("f8")), list(map(float, exact)))
    inf, nan = math.inf, math.nan
    a, b, c = (
        np.array(v)
        for v in (
            [inf, 0, nan, 1e200, -0.0, 1e200, 1e-300],
            [2, inf, 1, 1e200, 5, -1e200, 1e-300],
            [1, 1, 1, 0, -0.0, 1, 5e-324],
        )
    )
    with np.errstate(all="ignore"):
        found = arithmetic.fma(a, b, c, dtype=np.dtype("f8"))
    np.testing.assert_array_equal(found, [inf, nan, nan, inf, -0.0, -inf, 5e-324])


# --- other functions --------------------------------------------------------------------------------------------------
@needs_nvvm
@pytest.mark.parametrize("bits", [32, 64])
def test_ffs(bits):
    @kernel(f"void(i{bits // 8}[::1], i{bits // 8}[::1])")
    def first(x, y):
        i = cuda.threadIdx.x
        y[i] = cuda.ffs(x[i])

    x = np.array([0, -1, 1 << bits - 2, -1 << bits - 1, *range(1, 29)], f"i{bits // 8}")
    y = np.zeros_like(x)
    run(first, x, y)
    np.testing.assert_array_equal(y, [(int(v) & -int(v)).bit_length() for v in x])


@pytest.mark.parametrize(
    "kind, shift, expected",
    [
        ("u4", False, lambda v: v.bit_length() - 1),
        ("u4", True, lambda v: 32 - v.bit_length() if v else -1),
        ("i4", False, lambda v: (~v if v < 0 else v).bit_length() - 1),
        ("u8", False, lambda v: v.bit_length() - 1),
    ],
)
def test_bfind(kind, shift, expected):
    x = np.array([0, 1, 2, 3, 1 << 20, -1, -8], np.int64).astype(kind)
    found = arithmetic.highest(x, shift)
    np.testing.assert_array_equal(found.view(np.int32), [expected(int(v)) for v in x])


@needs_nvvm
def test_barriers_that_count():
    @kernel("void(i4[::1], i4[:, ::1])")
    def counted(x, y):
        i, b = cuda.threadIdx.x, cuda.blockIdx.x
        y[b, i] = cuda.syncthreads_count(1 if x[i] > b else 0) * 100
        y[b, i] += cuda.syncthreads_and(1 if x[i] >= b else 0) * 10
        y[b, i] += cuda.syncthreads_or(1 if x[i] < b else 0)

    x, y = np.arange(70, dtype=np.int32), np.zeros((3, 70), np.int32)
    run(counted, x, y, grid=(3,), block=(70,))
    np.testing.assert_array_equal(y, np.array([[6910], [6801], [6701]]) + np.zeros((3, 70)))


# --- what is refused, by its name and the line of Python --------------------------------------------------------------
@needs_nvvm
def test_arithmetic_of_float16_is_refused():
    @kernel("void(f2[::1])")
    def halves(x):
        x[0] = x[0] + x[1]  # here

    with pytest.raises(ptx.PtxError, match=rf"{place(halves, 'here')}.*arithmetic of float16 is not in this machine"):
        run(halves, np.zeros(2, np.float16), block=(1,))


def test_functions_that_are_compiled_apart_know_their_lines():
    """Numba inlines most; what it does not is a .func of its own, here one that no line of Python belongs to."""
    program = ptx.parse("""
        .visible .func (.param .b32 result) doubled(.param .b32 x)
        {
            .reg .b32 %r<3>;
            ld.param.u32 %r1, [x];
            add.u32 %r1, %r1, %r1;
            st.param.b32 [result+0], %r1;
            ret;
        }
        .file 1 "/home/someone/kernels.py"
        .visible .entry test(.param .u32 n)
        {
            .reg .b32 %r<3>;
            .loc 1 31 5
            ld.param.u32 %r1, [n];
            { .param .b32 param0;
            .loc 1 12 9, function_name $L__info_string0, inlined_at 1 32 7
            st.param.b32 [param0+0], %r1;
            .param .b32 retval0;
            call.uni (retval0), doubled, (param0);
            ld.param.b32 %r2, [retval0+0];
            }
            .loc 1 33 5
            trap;
            ret;
        }
        .section .debug_str { $L__info_string0: .b8 95 }
    """)
    called = "kernels.py:12, called in kernels.py:32"
    assert program.python == ["kernels.py:31", *[called] * 3, *["kernels.py:33"] * 2, *[called] * 4]
    with pytest.raises(ptx.PtxError, match=r"kernels.py:33 \(PTX line \d+: .*\): trap"):
        ptx.run(program, (1,), (1,), [3])


@needs_nvvm
def test_special_registers_and_one_that_is_not_there():
    @kernel("void(i4[::1])")
    def masked(x):
        x[cuda.threadIdx.x] = cuda.lanemask_lt()  # here

    x = np.zeros(32, np.int32)
    run(masked, x, block=(32,))
    np.testing.assert_array_equal(x.view(np.uint32), (1 << np.arange(32)) - 1)
    program = ptx.parse(".visible .entry test(.param .u64 n)\n{\n.reg .b32 %r<2>;\nmov.u32 %r1, %pm0;\nret;\n}")
    with pytest.raises(ptx.PtxError, match="line 4: mov.u32 %r1, %pm0: there is no special register %pm0"):
        ptx.run(program, (1,), (1,), [0])


@needs_nvvm
def test_an_endless_loop_ends(monkeypatch):
    monkeypatch.setattr("numbanet_kernels.ptx.machine.LIMIT", 0.2)

    @kernel("void(i4[::1])")
    def endless(x):
        i = 0
        while i < x.size:
            x[i] += 1  # here

    began = time.thread_time()
    with pytest.raises(ptx.PtxError, match=r"endless, test_declare.py:\d+ \(PTX line \d+: .*\): the kernel does not end"):
        run(endless, np.zeros(3, np.int32), block=(1,))
    assert time.thread_time() - began < 20


# --- memory -----------------------------------------------------------------------------------------------------------
@needs_nvvm
def test_what_runs_over_the_end_of_a_shared_array_lands_in_no_other():
    @kernel("void(f4[::1], f4[::1], i4)")
    def shifted(x, y, by):
        first, second = cuda.shared.array(32, "f4"), cuda.shared.array(32, "f4")
        i = cuda.threadIdx.x
        first[i] = x[i]
        second[i] = x[i]
        cuda.syncthreads()
        y[i] = first[(i + by) % 33] + second[i]  # here

    x, y = np.ones(32, F), np.zeros(32, F)
    with pytest.raises(ptx.PtxError, match=rf"{place(shifted, 'here')} .*ld.shared.f32 .*: shared out of bounds: byte 128 of"):
        run(shifted, x, y, 1)
    run(shifted, x, y, 0)
    assert (y == 2).all()


@needs_nvvm
@pytest.mark.parametrize("emulated", [False, True])
def test_what_runs_over_the_end_of_a_view_lands_in_no_other(emulated):
    @kernel("void(f4[::1], f4[::1], i4)")
    def moved(x, y, by):
        i = cuda.threadIdx.x
        y[i] = x[i + by]

    with emulation.emulated():
        both = arrays.to_device(np.arange(64, dtype=F)) if emulated else np.arange(64, dtype=F)
        x, y = both[:32], both[32:]
        go = (lambda by: launch.launch(moved, 1, 32, x, y, by)) if emulated else lambda by: run(moved, x, y, by)
        with pytest.raises(ptx.PtxError, match="global out of bounds: byte 128 of the nearest array, which has 128 bytes"):
            go(1)
        go(0)
        np.testing.assert_array_equal(y, np.arange(32))


@needs_nvvm
def test_what_is_read_only_is_not_written():
    x = np.ones(4, F)
    x.flags.writeable = False
    with pytest.raises(ptx.PtxError, match=r"st.global.*: global written, and the array is read-only by thread \(0, 0, 0\)"):
        run(scaled, x, 2, block=(4,))
    assert (x == 1).all()


@needs_nvvm
@pytest.mark.parametrize("shown", [slice(None), slice(24)], ids=["all", "part"])
def test_what_is_shown_read_only_may_be_written_by_who_owns_it(shown):
    @kernel("void(f4[::1], f4[::1])")
    def doubled(y, x):
        i = cuda.threadIdx.x
        if i < x.size:
            y[i] = 2 * x[i]

    y = np.ones(32, F)
    x = y[shown]
    x.flags.writeable = False
    run(doubled, y, x, block=(32,))
    assert (x == 2).all() and y.sum() == 32 + x.size


@needs_nvvm
def test_arrays_that_share_memory_still_do():
    @kernel("void(f4[::1], f4[::1])")
    def added(x, part):
        i = cuda.threadIdx.x
        part[i] += x[i + 32]

    x = np.arange(64, dtype=F)
    run(added, x, x[16:32], block=(16,))
    np.testing.assert_array_equal(x[16:32], np.arange(16, 32) + np.arange(32, 48))
    with pytest.raises(ptx.PtxError, match="race"):
        run(added, x, x[40:56], block=(16,))


@needs_nvvm
@pytest.mark.parametrize("start", [0, 1, 5])
def test_sectors_are_those_of_arrays_as_a_card_has_them(start):
    """1000 floats are 125 sectors, wherever they lie on the host; a view of what lies on a device keeps its place there."""

    @kernel("void(f4[::1], f4[::1], f4[::1])")
    def added(x, y, z):
        i = cuda.grid(1)
        if i < z.size:
            z[i] = x[i] + y[i]

    x, y, z = (np.zeros(1008, F)[start : start + 1000] for _ in range(3))
    assert run(added, x, y, z, grid=(8,), block=(128,)).summary()["sectors"] == 3 * 125
    with emulation.emulated():
        x, y, z = (arrays.to_device(np.zeros(1008, F))[start : start + 1000] for _ in range(3))
    assert run(added, x, y, z, grid=(8,), block=(128,), placed=True).summary()["sectors"] == 3 * (125 if start == 0 else 157)


# --- what a launch is given -------------------------------------------------------------------------------------------
@kernel("void(f4[::1], i4)")
def scaled(x, n):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= n


BAD = {
    "dtype": (dict(x=np.zeros(4)), "scaled: argument x is an array of float64, shape .4,., not an array of float32 with 1"),
    "axes": (dict(x=np.zeros((2, 2), F)), r"scaled: argument x is an array of float32, shape .2, 2., not an array of float32"),
    "list": (dict(x=[1.0, 2.0]), "scaled: argument x is a list, neither a NumPy array"),
    "number for an array": (dict(x=1.0), "scaled: argument x is a float, not an array of float32"),
    "array for a number": (dict(n=np.zeros(3, np.int32)), "scaled: argument n is an array of int32, shape .3,., not one int32"),
    "fraction": (dict(n=0.5), "scaled: argument n is a float, not one int32"),
    "in pieces": (dict(x=np.zeros(8, F)[::2]), "scaled: argument x is not contiguous"),
    "too few": (dict(n=None), r"scaled takes 2 arguments \(x, n\), not 1"),
    "grid below 0": (dict(grid=(-1,)), "scaled: a grid is up to three lengths from 1 on, not .-1,."),
    "grid of fractions": (dict(grid=(0.5,)), "scaled: a grid is up to three lengths from 1 on"),
    "block of 0": (dict(block=(0,)), "scaled: a block is up to three lengths from 1 on, not .0,."),
    "four lengths": (dict(block=(1, 1, 1, 1)), "scaled: a block is up to three lengths"),
}


@needs_nvvm
@pytest.mark.parametrize("given, problem", BAD.values(), ids=BAD)
@pytest.mark.parametrize("launched", [False, True])
def test_what_does_not_fit_is_named(given, problem, launched):
    given = {"x": np.ones(4, F), "n": 2, "grid": (1,), "block": (4,), **given}
    arguments = [given[name] for name in ("x", "n") if given[name] is not None]
    with pytest.raises(ptx.PtxError, match=problem), emulation.emulated():
        if launched:
            launch.launch(scaled, given["grid"], given["block"], *arguments)
        else:
            run(scaled, *arguments, grid=given["grid"], block=given["block"])


# --- lines ------------------------------------------------------------------------------------------------------------
@needs_nvvm
def test_counters_know_the_line_of_python():
    @kernel("void(f4[::1], f4[::1])")
    def powers(x, y):
        i = cuda.threadIdx.x
        total = F(0)
        for _ in range(x.size):
            total = total * x[i] + x[0] / x[i]  # hot
        y[i] = total

    lines = run(powers, np.ones(32, F), np.zeros(32, F)).by_line()
    assert place(powers, "hot") in list(lines)[:2] and all(re.fullmatch(r"(test_declare.py:\d+)?", line) for line in lines)


OWN = """
import numpy as np
from numbanet_kernels.runtime.arrays import to_device
from numbanet_kernels.runtime.declare import cuda, kernel
from numbanet_kernels.runtime.launch import launch

@kernel("void(f4[::1], f4[::1])")
def copied(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i]  # hot

def show(n=1000):
    x = to_device(np.ones(n, np.float32))
    launch(copied, 8, 128, x, to_device(np.zeros(n, np.float32)))
"""


@needs_nvvm
def test_the_command_line_counts_kernels_of_a_file(tmp_path, capsys):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    assert cli.main(["kernels", "--counters", f"{path}:show"]) == 0
    out = capsys.readouterr().out
    assert "copied" in out and "8k" in out and re.search(r"copied: \d+% of the instructions come from own.py:\d+", out)
    for name in ("nothing", "copied"):
        assert cli.main(["kernels", "--counters", f"{path}:{name}"]) == 2
        assert f"own.py has no function '{name}'" in capsys.readouterr().err
    assert cli.main(["kernels", "--counters", "no_such.py:show"]) == 2 and "no_such.py" in capsys.readouterr().err


@needs_nvvm
@pytest.mark.slow
def test_counters_are_of_the_shape_that_is_asked_for(capsys):
    for shape, flops in (("128,256,192", "24.6k"), ("64,256,64", "4.1k")):  # N x O sums
        assert cli.main(["kernels", "--counters", "add", "--shape", shape]) == 0
        out = capsys.readouterr().out
        assert f"N, I, O = {shape.replace(',', ', ')}" in out and re.search(rf"binary +\S+ +0% +{flops}", out)
    assert cli.main(["kernels", "--counters", "embedding"]) == 0 and "embedding" in capsys.readouterr().out  # a family
    for wrong in ("0,1,2", "1,2", "a,b,c"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["kernels", "--counters", "add", "--shape", wrong])
        assert "argument --shape: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "signature, problem",
    [
        ("void(q4[::1])", r"cannot be read \(name 'q4' is not defined\): write one such as"),
        ("i4(f4[::1])", "says that it returns int32, and kernels return nothing: write one such as"),
        ("void(f4[::1], i4)", "has 2 types, and the function has 1 parameters, x"),
    ],
)
def test_a_wrong_signature_is_named(signature, problem):
    made = kernel(signature)(lambda x: None)
    for use in (lambda: made.arguments, lambda: made.dispatcher, lambda: made.ptx((8, 0))):
        with pytest.raises(TypeError, match=f"@kernel: the signature of <lambda>, {re.escape(repr(signature))}, {problem}"):
            use()
