"""Every CUDA kernel, as it is compiled, on several blocks with ragged edges: the emulated device against the CPU."""
import numpy as np
import pytest

from numbanet_kernels import cpu, gemm, gemm_rows, gemm_tiles, launch
from numbanet_kernels.tiles import grid_of, kept_tiles, packed_tiles, row_places

pytestmark = pytest.mark.skipif(launch.nvvm_problem() is not None, reason=str(launch.nvvm_problem()))

N, I, O = 133, 70, 150  # several blocks of every size along each axis of a result, none of them full
PATTERN = 8, 3, 1, 0    # tile, dp, bias, mix


class Put:
    """Operands from one seed, on a device."""

    def __init__(self, dev):
        self.dev, self.rng = dev, np.random.default_rng(3)

    def __call__(self, *shape, above=None):
        values = self.rng.standard_normal(shape, np.float32)
        return self.dev.upload(values if above is None else above + np.abs(values))

    def indices(self, below, *shape):
        return self.dev.upload(self.rng.integers(below, size=shape).astype(np.int32))


def packed(put, shape):
    """(gradient, where it belongs) of the weight of a plan that keeps every third row, and of these every second column."""
    rows, cols = (np.arange(start, n, step) for n, start, step in ((shape[0], 1, 3), (shape[1], 0, 2)))
    places = [np.full(n, -1, np.int32) for n in shape]
    places[0][rows], places[1][cols] = np.arange(rows.size), np.arange(cols.size)
    kept = places[0], np.zeros(shape[0], np.int32), cols.astype(np.int32)[None], places[1][None]
    return put(rows.size, cols.size), tuple(map(put.dev.upload, kept))


def lazily(put, shape, block=(9, 20)):
    """A late weight in blocks: some held, some wanted, some left alone."""
    blocks = tuple(-(-n // b) for n, b in zip(shape, block))
    held, wanted = put.rng.random(blocks) < 0.5, put.rng.random(blocks) < 0.5
    behind = np.where(held, 0, put.rng.integers(1, 4, size=blocks)).astype(np.int32)
    upload = put.dev.upload
    return (upload(behind), upload(np.zeros(blocks, np.int32)), upload(held), upload(wanted),
            put.dev.sgd_powers(8, 0.1, 0.9), block)


def sgd(put, lazy):
    w, v = put(O, I), put(O, I)
    g, kept = packed(put, (O, I))
    put.dev.sgd([(w, v, g, kept, lazily(put, (O, I)) if lazy else None, None)], 0.1, 0.9)
    return w, v


def settle(put):
    w, v = put(O, I), put(O, I)
    put.dev.sgd_settle(w, v, lazily(put, (O, I)))
    return w, v


def adam(put):
    w, m, s = put(O, I), put(O, I), put(O, I, above=0.1)
    put.dev.adam([(w, m, s, *packed(put, (O, I)))], 0.1, 0.9, 0.999, 1e-8, 3)
    return w, m, s


def tiles_dw(put):
    """What the packed gradient holds, row by row, and db."""
    values, db = put.dev.gemm_tiles_dw(put(N, O), put(N, I), *PATTERN)
    grid = grid_of((O, I), 8)
    kept = np.kron(kept_tiles(grid, *PATTERN[1:]), np.ones((8, 8)))[:O, :I].sum(1).astype(int)
    places = row_places(packed_tiles(grid, *PATTERN[1:]), 8, O)
    return np.concatenate([np.array(values)[place, :count] for place, count in zip(places, kept)]), db


UNARY = ("exp", "tanh", "sigmoid", "relu", "gelu", "abs", "sign")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "greater", "relu_grad", "tanh_grad", "sigmoid_grad", "gelu_grad")
CASES = {
    **{name: lambda put, name=name: getattr(put.dev, name)(put(N, I)) for name in UNARY},
    **{name: lambda put, name=name: getattr(put.dev, name)(put(N, I), put(N, I)) for name in BINARY},
    "log": lambda put: put.dev.log(put(N, I, above=0.1)),
    "sqrt": lambda put: put.dev.sqrt(put(N, I, above=0.1)),
    "div": lambda put: put.dev.div(put(N, I), put(N, I, above=0.5)),
    "affine": lambda put: put.dev.affine(put(N, I), mul=2.5, add=-1.0),
    "power": lambda put: put.dev.power(put(N, I, above=0.1), 1.5),
    "full": lambda put: put.dev.full((N, I), 2.5),
    "sum, all": lambda put: put.dev.sum(put(N, I)),
    "sum, rows": lambda put: put.dev.sum(put(N, I), axis=1),
    "sum, columns": lambda put: put.dev.sum(put(N, 300), axis=0),
    "sum, few": lambda put: put.dev.sum(put(9, 300), axis=0),
    "max, all": lambda put: put.dev.max(put(N, I)),
    "max, rows": lambda put: put.dev.max(put(N, I), axis=1),
    "max, columns": lambda put: put.dev.max(put(N, 300), axis=0),
    "max, few": lambda put: put.dev.max(put(9, 300), axis=0),
    "sum_rows": lambda put: put.dev.sum_rows(put(N, O), 0.5),
    "argmax": lambda put: put.dev.argmax(put(N, I)),
    **{name: lambda put, name=name: getattr(put.dev, name)(put(N, I)) for name in ("softmax", "log_softmax")},
    **{f"{name}, wide": lambda put, name=name: getattr(put.dev, name)(put(7, 1100)) for name in ("softmax", "log_softmax")},
    **{f"{name}_grad": lambda put, name=name: getattr(put.dev, f"{name}_grad")(put(N, I), getattr(put.dev, name)(put(N, I)))
       for name in ("softmax", "log_softmax")},
    **{f"{name}_grad, wide": lambda put, name=name:
       getattr(put.dev, f"{name}_grad")(put(7, 1100), getattr(put.dev, name)(put(7, 1100)))
       for name in ("softmax", "log_softmax")},
    "softmax_cross_entropy": lambda put: put.dev.softmax_cross_entropy(put(N, I), put.indices(I, N)),
    "softmax_cross_entropy, wide": lambda put: put.dev.softmax_cross_entropy(put(7, 1100), put.indices(1100, 7)),
    **{name: lambda put, name=name: getattr(put.dev, name)(put(N, I), put(N, I)) for name in (
        "squared_error", "absolute_error", "sigmoid_cross_entropy")},
    "random_bits": lambda put: put.dev.random_bits(5, 6, N * I),
    "uniform": lambda put: put.dev.uniform(5, 6, (N, I)),
    "normal": lambda put: put.dev.normal(5, 6, (N, I)),
    "dropout": lambda put: put.dev.dropout(put(N, I), 0.4, 5, 6),
    "transpose": lambda put: put.dev.transpose(put(N, I), (1, 0)),
    "transpose, three axes": lambda put: put.dev.transpose(put(7, 33, 40), (1, 0, 2)),
    "transpose, four axes": lambda put: put.dev.transpose(put(3, 35, 2, 37), (3, 0, 1, 2)),
    "broadcast_to": lambda put: put.dev.broadcast_to(put(N, 1), (N, I)),
    "getitem": lambda put: put.dev.getitem(put(N, I), (slice(1, None, 2), slice(None, None, -1))),
    "putitem": lambda put: put.dev.putitem(put(300, I), np.arange(300) % 7, (N, I)),
    "concatenate": lambda put: put.dev.concatenate([put(N, 9), put(N, I)], 1),
    "take_rows": lambda put: put.dev.take_rows(put(N, I), put.indices(N, 90)),
    "expand": lambda put: put.dev.expand(put(N, 30), put.dev.upload(np.where(put.rng.random(I) < 0.4, 2, -1).astype(np.int32))),
    "compact": lambda put: put.dev.compact(put(N, I), put.indices(I, 30), put(30)),
    "gemm": lambda put: put.dev.gemm(put(N, I), put(O, I), tb=True, bias=put(O), relu=True),
    "gemm_dw": lambda put: put.dev.gemm_dw(put(N, O), put(N, I)),
    "gemm_rows": lambda put: put.dev.gemm_rows(put(N, 35), put(5 * O, I), slice(1, None, 3), slice(0, None, 2), put(5 * O)),
    "gemm_rows_dx": lambda put: put.dev.gemm_rows_dx(put(N, O // 3), put(O, 5 * I), slice(1, None, 3), slice(0, None, 2)),
    "gemm_tiles": lambda put: put.dev.gemm_tiles(put(N, I), put(O, I), *PATTERN, b=put(O), relu=True),
    "gemm_tiles_dx": lambda put: put.dev.gemm_tiles_dx(put(N, O), put(O, I), *PATTERN),
    "gemm_tiles_dw": tiles_dw,
    "unpack_gradient": lambda put: put.dev.unpack_gradient(*packed(put, (O, I)), (O, I)),
    "sgd": lambda put: sgd(put, lazy=False),
    "sgd, late": lambda put: sgd(put, lazy=True),
    "sgd_settle": settle,
    "adam": adam,
}
OLDER = ("gemm", "gemm_dw", "gemm_rows", "gemm_rows_dx", "gemm_tiles", "gemm_tiles_dx", "gemm_tiles_dw")  # other kernels at 7.5
ROWS, TILES = np.arange(O) % 3 == 1, np.random.default_rng(0).random((19, 9)) < 0.4
SIMPLE = {  # what no operation launches: to look at, or to compare with. What it is, and NumPy's
    "gemm_naive": (lambda x, w: gemm.gemm_version_cuda("naive", 16, x, w, tb=True), lambda x, w: x @ w.T),
    "gemm_tiled": (lambda x, w: gemm.gemm_version_cuda("tiled", 16, x, w, tb=True), lambda x, w: x @ w.T),
    "gemm_rows_masked": (lambda x, w: gemm_rows.gemm_rows_masked_cuda(x, w, launch.to_device(ROWS)),
                         lambda x, w: x @ (w * ROWS[:, None]).T),
    "gemm_tiles_masked": (lambda x, w: gemm_tiles.gemm_tiles_masked_cuda(x, w, launch.to_device(TILES), 8),
                          lambda x, w: x @ (w * np.kron(TILES, np.ones((8, 8)))[:O, :I]).T),
}


def results(found):
    """The arrays that a case gives."""
    return [np.array(array) for array in (found if isinstance(found, tuple) else (found,))]


@pytest.fixture(scope="module")
def emulated():
    """({case: results}, {(family, kernel, variant): the most blocks that it was launched with}). Products have a variant for
    each size of tiles and way to read: their own tests go through these."""
    from numbanet_kernels import emulated as dev

    blocks, original = {}, launch.emulate

    def emulate(kernel, grid, block, args):
        key = kernel.family, kernel.__name__, kernel.variant if "gemm" not in kernel.family else ""
        blocks[key] = max(blocks.get(key, 0), int(np.prod(grid)))
        original(kernel, grid, block, args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "emulate", emulate)
        found = {name: results(case(Put(dev))) for name, case in CASES.items()}
        for name, (simple, _) in SIMPLE.items():
            put = Put(dev)
            with launch.emulated():
                found[name] = results(simple(put(N, I), put(O, I)))
        patch.setattr(launch, "EMULATED", (7, 5))
        found.update({f"{name}, older": results(CASES[name](Put(dev))) for name in OLDER})
    return found, blocks


@pytest.mark.parametrize("name", [*CASES, *(f"{name}, older" for name in OLDER)])
def test_equals_the_cpu(emulated, name):
    expected = results(CASES[name.removesuffix(", older")](Put(cpu)))
    for ours, theirs in zip(emulated[0][name], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SIMPLE)
def test_simple_versions_equal_numpy(emulated, name):
    put = Put(cpu)
    np.testing.assert_allclose(emulated[0][name][0], SIMPLE[name][1](put(N, I), put(O, I)), rtol=1e-4, atol=1e-4)


def test_no_kernel_is_left_out(emulated):
    """A kernel that is new, or was only ever launched with one block, is named here."""
    _, blocks = emulated
    every = {(k.family, k.__name__, k.variant if "gemm" not in k.family else "") for k in launch.all_kernels()}
    assert {key for key in every if blocks.get(key, 0) < 2} == set()
