"""Instructions of a whole warp: shuffles, votes, atomics, products of tiles, asynchronous copies."""

import numpy as np
import pytest

from numbanet_kernels import ptx
from tests.kernels.ptx.handwritten import each, run

F = np.float32


# --- warps ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "mode, clamp, expected",
    [
        ("up", 0, lambda lane: lane - 3 if lane >= 3 else lane),
        ("down", 31, lambda lane: lane + 3 if lane < 29 else lane),
        ("bfly", 31, lambda lane: lane ^ 3),
        ("idx", 31, lambda lane: 3),
        ("down", 0x181F, lambda lane: lane + 3 if lane % 8 < 5 else lane),
        ("idx", 0x181F, lambda lane: lane // 8 * 8 + 3),
    ],
)
def test_shuffles(mode, clamp, expected):
    found = np.zeros(64, np.uint32)
    run(
        f"""
        shfl.sync.{mode}.b32 %r1|%p1, %r0, 3, {clamp}, -1;
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        st.global.u32 [%rd2], %r1;
    """,
        found,
        threads=64,
    )
    np.testing.assert_array_equal(found, [expected(i % 32) + i // 32 * 32 for i in range(64)])


def test_votes_matches_and_reductions():
    found = np.zeros(5 * 32, np.uint32)
    stores = "\n".join(f"st.global.u32 [%rd2+{128 * k}], %r{k + 2};" for k in range(5))
    run(
        f"""
        and.b32 %r1, %r0, 3;
        setp.eq.u32 %p1, %r1, 1;
        vote.sync.ballot.b32 %r2, %p1, -1;
        vote.sync.any.pred %p2, %p1, -1;
        selp.u32 %r3, 1, 0, %p2;
        match.any.sync.b32 %r4, %r1, -1;
        redux.sync.add.u32 %r5, %r0, -1;
        redux.sync.max.s32 %r6, %r0, -1;
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        {stores}
    """,
        found,
    )
    ballot, some, match, total, largest = found.reshape(5, 32)
    assert set(ballot) == {0x22222222} and set(some) == {1} and set(total) == {496} and set(largest) == {31}
    np.testing.assert_array_equal(match, [0x11111111 << i % 4 for i in range(32)])


def test_masks_divide_a_warp():
    """Each half with a mask of its own."""
    found = np.zeros(3 * 32, np.uint32)
    run(
        """
        setp.lt.u32 %p1, %r0, 16;
        selp.b32 %r1, 0x0000FFFF, 0xFFFF0000, %p1;
        and.b32 %r2, %r0, 1;
        setp.eq.u32 %p2, %r2, 1;
        vote.sync.ballot.b32 %r3, %p2, %r1;
        redux.sync.add.u32 %r4, %r0, %r1;
        vote.sync.any.pred %p3, %p1, %r1;
        selp.u32 %r5, 1, 0, %p3;
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        st.global.u32 [%rd2], %r3;
        st.global.u32 [%rd2+128], %r4;
        st.global.u32 [%rd2+256], %r5;
    """,
        found,
    )
    ballot, total, some = found.reshape(3, 2, 16)
    assert set(ballot[0]) == {0xAAAA} and set(ballot[1]) == {0xAAAA0000}
    assert set(total[0]) == {120} and set(total[1]) == {376} and set(some[0]) == {1} and set(some[1]) == {0}
    with pytest.raises(ptx.PtxError, match="a lane is not in its own mask by thread .16, 0, 0."):
        run("vote.sync.ballot.b32 %r3, %p2, 0xFFFF;", found)


def test_a_shuffle_from_a_lane_that_is_elsewhere_is_told():
    with pytest.raises(ptx.PtxError, match="shfl.*: a shuffle reads a lane that does not take part by thread .7, 0, 0."):
        run("setp.lt.u32 %p1, %r0, 7;\n@%p1 bra LAST;\nshfl.sync.idx.b32 %r1, %r0, 3, 31, 0xFFFFFF80;\nLAST:", np.zeros(1, F))


def test_a_shuffle_from_a_lane_outside_of_the_own_mask_is_told():
    halves = "setp.lt.u32 %p1, %r0, 16;\nselp.b32 %r1, 0x0000FFFF, 0xFFFF0000, %p1;\n"
    run(halves + "shfl.sync.bfly.b32 %r2, %r0, 8, 31, %r1;", np.zeros(1, F))
    with pytest.raises(ptx.PtxError, match="shfl.*: a shuffle reads a lane that does not take part by thread .8, 0, 0."):
        run(halves + "shfl.sync.down.b32 %r2, %r0, 8, 31, %r1;", np.zeros(1, F))


@pytest.mark.parametrize(
    "operation, expected",
    [("min", -3), ("max", 9), ("max.abs", 9), ("min.abs", 0), ("min.NaN", np.nan), ("max.abs.NaN", np.nan)],
)
def test_reductions_of_floats_leave_nan_out(operation, expected):
    given, found = np.linspace(-3, 9, 33, dtype=F)[[*range(8), *range(9, 33)]], np.zeros(32, F)
    given[5], given[9] = np.nan, 0
    each(f"redux.sync.{operation}.f32 %f1, %f11, -1;", found, given)
    np.testing.assert_array_equal(found, np.full(32, expected, F))


def test_reductions_of_zeros_and_of_nan_alone():
    given = np.array([0.0, -0.0] * 16, F)
    assert np.signbit(each("redux.sync.min.f32 %f1, %f11, -1;", np.ones(32, F), given)).all()
    assert not np.signbit(each("redux.sync.max.f32 %f1, %f11, -1;", np.ones(32, F), given)).any()
    assert np.isnan(each("redux.sync.min.f32 %f1, %f11, -1;", np.ones(32, F), np.full(32, np.nan, F))).all()


def test_atomics_take_turns():
    sums, olds = np.zeros(4, np.uint32), np.zeros(64, np.uint32)
    run(
        """
        and.b32 %r1, %r0, 3;
        mad.wide.u32 %rd2, %r1, 4, %rd0;
        atom.global.add.u32 %r2, [%rd2], 1;
        mad.wide.u32 %rd3, %r0, 4, %rd1;
        st.global.u32 [%rd3], %r2;
    """,
        sums,
        olds,
        threads=64,
    )
    np.testing.assert_array_equal(sums, [16] * 4)
    np.testing.assert_array_equal(olds, np.arange(64) // 4)


# --- matrices ---------------------------------------------------------------------------------------------------------
def fragments(lanes, places):
    """Addresses that put the registers of a warp at (row, column): one list of 32 a register."""
    g, t = lanes // 4, lanes % 4
    return [place(g, t) for place in places]


def multiplied(kind, depth, a, b, c, b_places=None):
    """C + A B by one mma; operands are laid into registers here by the lane map of the PTX manual."""
    lane, half = np.arange(32), depth // 2
    pair = 1 if kind == "tf32" else 2
    rows_cols = [(lambda g, t, r=r, k=k: (g + 8 * r, t * pair + half * k)) for k in range(2) for r in range(2)]
    b_places = b_places or [(lambda g, t, k=k: (t * pair + half * k, g)) for k in range(2)]
    code = {
        "tf32": lambda x: x.astype(F),
        "f16": lambda x: x.astype(np.float16),
        "bf16": lambda x: (x.astype(F).view(np.uint32) >> 16).astype(np.uint16),
    }[kind]  # exact for these numbers

    def packed(matrix, places, axis):
        found = []
        for rows, cols in fragments(lane, places):
            parts = [matrix[rows + j * (axis == 0), cols + j * (axis == 1)] for j in range(pair)]
            found.append(np.ascontiguousarray(code(np.stack(parts, 1))).view(np.uint32).ravel())
        return found

    registers = packed(a, rows_cols, 1) + packed(b, b_places, 0)
    c_places = [(lambda g, t, r=r, j=j: (g + 8 * r, 2 * t + j)) for r in range(2) for j in range(2)]
    registers += [c[rows, cols].astype(F).view(np.uint32) for rows, cols in fragments(lane, c_places)]
    data, result = np.concatenate(registers), np.zeros(4 * 32, F)
    loads = "\n".join(f"ld.global.b32 {'%f' if k >= 6 else '%r'}{10 + k}, [%rd3+{128 * k}];" for k in range(10))
    run(
        f"""
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        mad.wide.u32 %rd3, %r0, 4, %rd1;
        {loads}
        mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32 {{%f1, %f2, %f3, %f4}}, {{%r10, %r11, %r12, %r13}},
            {{%r14, %r15}}, {{%f16, %f17, %f18, %f19}};
        st.global.f32 [%rd2], %f1;
        st.global.f32 [%rd2+128], %f2;
        st.global.f32 [%rd2+256], %f3;
        st.global.f32 [%rd2+384], %f4;
    """,
        result,
        data,
    )
    found = np.zeros((16, 8), F)
    for (rows, cols), values in zip(fragments(lane, c_places), result.reshape(4, 32)):
        found[rows, cols] = values
    return found


@pytest.mark.parametrize("kind, depth", [("tf32", 8), ("f16", 16), ("bf16", 16)])
def test_mma_equals_numpy_and_a_wrong_lane_map_is_seen(rng, kind, depth):
    a, b, c = (rng.integers(-8, 9, shape) / 4 for shape in ((16, depth), (depth, 8), (16, 8)))
    np.testing.assert_array_equal(multiplied(kind, depth, a, b, c), a @ b + c)
    pair, half = (1, 4) if kind == "tf32" else (2, 8)
    wrong = [(lambda g, t, k=k: (t * pair + half * (1 - k), g)) for k in range(2)]
    assert not np.array_equal(multiplied(kind, depth, a, b, c, wrong), a @ b + c)


def multiplied_in(accumulator, kind, a, b, c, more=""):
    """C + A B by one mma whose registers hold pairs of float16 (m16n8k16), or four int8 and one int32 (m16n8k32)."""
    lane, dtype, size = np.arange(32), a.dtype, 4 // a.dtype.itemsize
    g, t = lane // 4, lane % 4
    across = [np.stack([a[g + 8 * r, size * (t + 4 * k) + j] for j in range(size)], 1) for k in range(2) for r in range(2)]
    down = [np.stack([b[size * (t + 4 * k) + j, g] for j in range(size)], 1) for k in range(2)]
    if accumulator == "f16":
        places = [np.stack([(g + 8 * r) * 8 + 2 * t + j for j in range(2)], 1) for r in range(2)]
    else:
        places = [((g + 8 * r) * 8 + 2 * t + j)[:, None] for r in range(2) for j in range(2)]
    parts = [*(part.astype(dtype) for part in across + down), *(c.ravel()[place] for place in places)]
    data = np.concatenate([np.ascontiguousarray(part).view(np.uint32).ravel() for part in parts])
    many, result = len(places), np.zeros(32 * len(places), np.uint32)
    loads = "\n".join(f"ld.global.b32 %r{10 + k}, [%rd3+{128 * k}];" for k in range(6 + many))
    lists = [
        ", ".join(f"%r{k}" for k in range(first, first + count)) for first, count in ((5, many), (10, 4), (14, 2), (16, many))
    ]
    stores = "\n".join(f"st.global.b32 [%rd2+{128 * k}], %r{5 + k};" for k in range(many))
    operands = ", ".join(f"{{{one}}}" for one in lists)
    run(
        f"""
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        mad.wide.u32 %rd3, %r0, 4, %rd1;
        {loads}
        mma.sync.aligned.m16n8k{8 * size}.row.col{more}.{accumulator}.{kind}.{accumulator} {operands};
        {stores}
        """,
        result,
        data,
    )
    found = np.zeros(128, c.dtype)
    for place, bits in zip(places, result.reshape(many, 32)):
        found[place] = bits[:, None].view(c.dtype)
    return found.reshape(16, 8)


def test_mma_in_float16_equals_numpy(rng):
    a, b, c = ((rng.integers(-8, 9, shape) / 4).astype(np.float16) for shape in ((16, 16), (16, 8), (16, 8)))
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_array_equal(multiplied_in("f16", "f16.f16", a, b, c), exact.astype(np.float16))
    a[0], b[:, 0], c[0, 0] = 3 / 16, 1, 2048
    assert multiplied_in("f16", "f16.f16", a, b, c)[0, 0] == 2052  # 2051 is rounded to nearest


@pytest.mark.parametrize("kind, dtypes", [("s8.s8", (np.int8, np.int8)), ("u8.s8", (np.uint8, np.int8))])
def test_mma_of_bytes_equals_numpy(rng, kind, dtypes):
    a, b = (
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
        for dtype, shape in zip(dtypes, ((16, 32), (32, 8)))
    )
    c = rng.integers(-1000, 1000, (16, 8)).astype(np.int32)
    exact = a.astype(np.int32) @ b.astype(np.int32) + c
    np.testing.assert_array_equal(multiplied_in("s32", kind, a, b, c), exact)


@pytest.mark.parametrize("more, expected", [("", -(1 << 31) + 31), (".satfinite", (1 << 31) - 1)])
def test_mma_of_bytes_wraps_around_or_saturates(more, expected):
    a, b, c = np.ones((16, 32), np.int8), np.ones((32, 8), np.int8), np.full((16, 8), (1 << 31) - 1, np.int32)
    assert (multiplied_in("s32", "s8.s8", a, b, c, more) == expected).all()


@pytest.mark.parametrize(
    "form", ["m16n8k32.row.col.f32.f16.f16.f32", "m16n8k16.row.col.f16.bf16.bf16.f16", "m16n8k16.row.col.s32.s8.u4.s32"]
)
def test_forms_of_mma_that_are_not_there(form):
    text = f"mma.sync.aligned.{form} {{%r1}}, {{%r2}}, {{%r3}}, {{%r4}};"
    with pytest.raises(ptx.PtxError, match="this machine does not know this shape or these types of mma"):
        run(text, np.zeros(1, np.uint32))


def test_ldmatrix_gives_each_lane_its_two_numbers():
    source, found = np.arange(64, dtype=np.uint16), np.zeros(64, np.uint32)
    run(
        """
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        ld.global.u32 %r1, [%rd2];
        shl.b32 %r2, %r0, 2;
        mov.u32 %r3, room;
        add.u32 %r2, %r2, %r3;
        st.shared.u32 [%r2], %r1;
        bar.sync 0;
        and.b32 %r4, %r0, 7;
        shl.b32 %r4, %r4, 4;
        add.u32 %r4, %r4, %r3;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];
        ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r6}, [%r4];
        mad.wide.u32 %rd3, %r0, 4, %rd1;
        st.global.u32 [%rd3], %r5;
        st.global.u32 [%rd3+128], %r6;
    """,
        source.view(np.uint32),
        found,
        shared=128,
    )
    matrix = source.reshape(8, 8)
    np.testing.assert_array_equal(found[:32].view(np.uint16).reshape(8, 8), matrix)
    np.testing.assert_array_equal(found[32:].view(np.uint16).reshape(8, 8), matrix.T)


@pytest.mark.parametrize(
    "code",
    [
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [room];",
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3}, {%f1, %f2, %f3, %f4};",
    ],
)
def test_matrices_want_whole_warps(code):
    with pytest.raises(
        ptx.PtxError, match=r"line \d+: (ldmatrix|mma).*: a warp without all of its 32 threads by thread .32, 0, 0."
    ):
        run(
            "setp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 [room], %r0;\nbar.sync 0;\n" + code,
            np.zeros(1, F),
            threads=48,
            shared=64,
        )


COPY = """
    mad.wide.u32 %rd2, %r0, 16, %rd0;
    shl.b32 %r1, %r0, 4;
    mov.u32 %r2, room;
    add.u32 %r1, %r1, %r2;
    cp.async.cg.shared.global [%r1], [%rd2], 16;
    cp.async.commit_group;
    {wait}
    ld.shared.f32 %f1, [%r1+8];
    mad.wide.u32 %rd3, %r0, 4, %rd1;
    st.global.f32 [%rd3], %f1;
"""


def test_asynchronous_copies_arrive_when_they_are_waited_for():
    source, found = np.arange(128, dtype=F), np.zeros(32, F)
    run(COPY.format(wait="cp.async.wait_group 0;"), source, found, shared=512)
    np.testing.assert_array_equal(found, source[2::4])
    with pytest.raises(ptx.PtxError, match=r"ld.shared.f32 .*: shared read before it was written by thread \(0, 0, 0\)"):
        run(COPY.format(wait="cp.async.wait_group 1;"), source, found, shared=512)
