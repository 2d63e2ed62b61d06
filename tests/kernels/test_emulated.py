"""Every CUDA kernel, as it is compiled, on several blocks with ragged edges: the emulated device against the CPU."""

import numpy as np
import pytest

from numbanet_kernels import cpu, emulated as dev, examples
from numbanet_kernels.families import conv, gemm, gemm_rows, gemm_tiles
from numbanet_kernels.layouts.windows import Window
from numbanet_kernels.runtime import arrays, availability, declare, emulation, launch

pytestmark = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=str(availability.nvvm_problem()))

N, I, O = 133, 70, 150  # several blocks of every size along each axis of a result, none of them full


def arrays_in(value):
    """All arrays in a nest of tuples and lists."""
    if isinstance(value, (tuple, list)):
        return [array for part in value for array in arrays_in(part)]
    return [np.array(value, np.float64)] if hasattr(value, "shape") else []


def run(name, device):
    """The arrays that an example gives on a device, or changes there."""
    call = examples.example(name, (N, I, O)).on(device)
    found = call.run(device)
    return arrays_in(call.arguments if found is None else found)


NAMES = list(examples.families())
OLDER = [name for name in NAMES if name.startswith("gemm")]  # other kernels at 7.5
OPERANDS = [np.random.default_rng(3).standard_normal(shape, np.float32) for shape in ((N, I), (O, I))]
ROWS, TILES = np.arange(O) % 3 == 1, np.random.default_rng(0).random((19, 9)) < 0.4
SIMPLE = {  # what no operation launches: to look at, or to compare with. What it is, and NumPy's
    "gemm_naive": (lambda x, w: gemm.gemm_version("naive", 16, x, w, tb=True), lambda x, w: x @ w.T),
    "gemm_tiled": (lambda x, w: gemm.gemm_version("tiled", 16, x, w, tb=True), lambda x, w: x @ w.T),
    "gemm_rows_masked": (
        lambda x, w: gemm_rows.gemm_rows_masked(x, w, arrays.to_device(ROWS)),
        lambda x, w: x @ (w * ROWS[:, None]).T,
    ),
    "gemm_tiles_masked": (
        lambda x, w: gemm_tiles.gemm_tiles_masked(x, w, arrays.to_device(TILES.astype(np.int32)), 8),
        lambda x, w: x @ (w * np.kron(TILES, np.ones((8, 8)))[:O, :I]).T,
    ),
    "im2col": (
        lambda x, w: conv.conv2d_materialised(x.reshape((N, 7, 10, 1)), w.reshape((O, 1, 7, 10)), Window((7, 10))),
        lambda x, w: (x @ w.T).reshape(N, 1, 1, O),
    ),
}


CASES = [*NAMES, *(f"{name}, older" for name in OLDER)]


def key_of(kernel):
    """Family, kernel and variant. Products have a variant for each size of tiles and way to read: their own tests go through
    these."""
    return str((kernel.family, kernel.__name__, kernel.variant if "gemm" not in kernel.family else ""))


def emulated(name):
    """What a case gives on the emulated device."""
    with pytest.MonkeyPatch.context() as patch:
        if name in SIMPLE:
            with emulation.emulated():
                return np.array(SIMPLE[name][0](*map(arrays.to_device, OPERANDS)))
        if name.endswith(", older"):
            patch.setattr(emulation, "EMULATED", (7, 5))
        return run(name.removesuffix(", older"), dev)


def launched(name):
    """{kernel: the most blocks that a case launches it with}. No kernel is compiled or run: what is launched does not depend on
    results."""
    blocks = {}

    def emulate(kernel, grid, block, args):
        blocks[key_of(kernel)] = max(blocks.get(key_of(kernel), 0), int(np.prod(grid)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "emulate", emulate)
        emulated(name)
    return blocks


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_equals_the_cpu(name):
    for ours, theirs in zip(emulated(name), run(name.removesuffix(", older"), cpu), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SIMPLE)
def test_simple_versions_equal_numpy(name):
    np.testing.assert_allclose(emulated(name), SIMPLE[name][1](*OPERANDS), rtol=1e-4, atol=1e-4)


def test_no_kernel_is_left_out():
    """A kernel that is new, or was only ever launched with one block, is named here."""
    several = {kernel for name in (*CASES, *SIMPLE) for kernel, most in launched(name).items() if most > 1}
    assert {key_of(kernel) for kernel in declare.all_kernels()} - several == set()


NO_KERNEL = {
    "csr_transposed",
    "empty_slabs",
    "lazy_pays",
    "samples_together",
    "scores_packed",
    "sgd_powers",
    "tile_blocks",
    "tile_inputs",
    "tile_outputs",
    "tile_room",
}


def test_every_operation_of_a_family_has_an_example():
    operations = {name for name, function in vars(cpu).items() if ".families." in getattr(function, "__module__", "")}
    assert {name.partition(",")[0] for name in NAMES} == operations - NO_KERNEL | {"full"}
