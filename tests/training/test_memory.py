"""Memory of training: steps that allocate nothing after their first, and data sets larger than memory."""

import copy
import gc
import subprocess
import sys
import textwrap
import tracemalloc
import weakref

import numpy as np
import pytest

from numbanet import SGD, Conv2d, Flatten, Linear, Net, ReLU, Sequential, device
from numbanet.dropout import BernoulliDropout, NoDropout, RowDropout, TileDropout
from numbanet.training.data import Batches, Data
from numbanet.training.stepper import Stepper
from numbanet.training.streams import Streams
from numbanet.training.task import Classification
from numbanet_kernels.runtime import arrays, tape

# of patterns with few periods, all pairs are soon recorded
KINDS = {
    "none": NoDropout(),
    "bernoulli": BernoulliDropout(0.5),
    "rdp": RowDropout(0.5, dp_max=3),
    "tdp": TileDropout(0.5, dp_max=3),
}
SAMPLES, ARRAY = 256, 1 << 17  # bytes: every activation, gradient and packed weight below is larger


def stepper(dropout):
    model = Sequential([Linear(300, 512, rng=0), ReLU(), Linear(512, 512, rng=1), ReLU(), Linear(512, 10, rng=2)])
    return Stepper(
        model,
        SGD(model.parameters(), 0.01, 0.9),
        KINDS[dropout],
        Classification(),
        Streams.from_seed(0),
        device("cpu"),
        SAMPLES,
    )


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dropout", KINDS)
@pytest.mark.slow
def test_a_step_allocates_no_array_after_the_first_ones(dropout):
    """Of what Python and NumPy allocate in 20 steps, less than one activation is alive at any time."""
    by, rng = stepper(dropout), np.random.default_rng(1)
    data = Data(rng.random((1000, 300), np.float32), rng.integers(10, size=1000).astype(np.int32))

    def steps(count):
        for _ in range(count):
            rows = rng.integers(1000, size=SAMPLES).astype(np.int32)
            by.step(data.X, next(Batches(data, rows, SAMPLES, by.dev)), last=False)

    steps(200 if dropout in ("rdp", "tdp") else 40)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        steps(20)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < ARRAY and after - before < ARRAY // 2, f"{peak - before} bytes"


@pytest.mark.parametrize(
    "layers, dropout",
    [((8,), "none"), ([Conv2d(1, 3, 3, rng=0), ReLU(), Flatten(), Linear(12, 3, rng=1)], "rsdp")],
    ids=["mlp", "rsdp"],
)
@pytest.mark.slow
def test_recorded_fits_leave_nothing_behind(layers, dropout):
    """Models, and what recorded their steps, are freed with the estimator."""
    rng, models = np.random.default_rng(0), []
    x, y = rng.standard_normal((41, 16)), np.arange(41) % 3
    x = x.reshape(41, 1, 4, 4) if dropout == "rsdp" else x
    before = {id(found) for found in _writers()}
    for _ in range(2):
        net = Net(copy.deepcopy(layers), dropout=dropout, epochs=4, batch_size=13, random_state=0).fit(x, y)
        models.append(weakref.ref(net.model_))
        del net
    gc.collect()
    writers = [type(found).__name__ for found in _writers() if id(found) not in before]
    assert not writers and all(model() is None for model in models)


def _writers():
    return [found for found in gc.get_objects() if issubclass(type(found), tape._Writer)]


@pytest.mark.slow
def test_a_device_array_gives_its_block_back_when_the_last_view_is_gone():
    """By views of ours and of Numba's, without a driver."""
    driver = pytest.importorskip("numba.cuda.cudadrv.driver")

    class Owner:
        pass

    owner = Owner()
    owner_is_there = weakref.ref(owner)
    array = arrays.array_at(4096 + 256, (3, 4), np.dtype(np.float32), owner)
    array.gpu_data = driver.MemoryPointer(None, driver.binding.CUdeviceptr(4096 + 256), 48, owner=owner)
    del owner
    assert array.shape == (3, 4) and array.strides == (16, 4) and array.is_c_contiguous() and array.nbytes == 48
    assert array.words == (0, 0, 12, 4, 4096 + 256, 3, 4, 16, 4)
    row = array.reshape(4, 3)
    with pytest.raises(ValueError, match="reshape"):
        array.reshape(5, 2)
    part = arrays.part_at(array, 1, 3)
    assert part.words[4:] == (4096 + 256 + 16, 2, 4, 16, 4) and arrays.part_at(array, 3, 3).shape == (0, 4)
    theirs = type(array)._do_getitem(array, slice(2, 3))
    assert int(theirs.gpu_data.device_pointer) == 4096 + 256 + 32 and arrays.part_at(theirs, 0, 1) is None
    del array, row, part
    gc.collect()
    assert owner_is_there()
    del theirs
    gc.collect()
    assert not owner_is_there()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory that leaves out mapped files")
@pytest.mark.slow
def test_a_data_set_larger_than_memory_trains(tmp_path):
    """1 GB of samples, held out ones among them, in a process that may allocate 768 MB."""
    program = f"""
        import resource
        import numpy as np
        from numbanet import Net
        X = np.memmap({str(tmp_path / "X.f4")!r}, np.float32, "w+", shape=(4096, 65536))
        del X  # a file with holes: it takes no room on the disk
        X = np.memmap({str(tmp_path / "X.f4")!r}, np.float32, "r", shape=(4096, 65536))
        resource.setrlimit(resource.RLIMIT_DATA, (768 << 20, 768 << 20))
        net = Net((4,), epochs=1, early_stopping=True).fit(X, np.arange(4096) % 2)
        assert net.n_iter_ == 1 and net.predict(X[:100]).shape == (100,)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=300)
