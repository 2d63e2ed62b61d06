"""A network trained on CUDA, or emulated, gives the weights of the CPU: same plans, same steps."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from numbanet import SGD, Linear, Net, NetRegressor, ReLU, RowDropout, Sequential, TileDropout
from numbanet.device import device, problem
from numbanet.training.data import Batches, Data
from numbanet.training.stepper import Stepper
from numbanet.training.streams import Streams
from numbanet.training.task import Classification
from numbanet_kernels.runtime import arrays, availability, emulation, pool
from numbanet_kernels.runtime.context import Scoped

OTHERS = [name for name in ("cuda", "emulated") if problem(name) is None]


@pytest.fixture(params=OTHERS)
def other(request):
    """The name of each device but the CPU that answers here."""
    return request.param


def in_turn(dropouts):
    """Each way to drop with two optimisers, each optimiser with several ways to drop; what is left of their pairs is long."""
    return pytest.mark.parametrize(
        "optimizer, dropout",
        [
            pytest.param(optimizer, dropout, marks=pytest.mark.long if (i + j) % 3 == 2 else ())
            for i, optimizer in enumerate(["sgd", "adam", "adamw"])
            for j, dropout in enumerate(dropouts)
        ],
        ids=str,
    )


@in_turn(["none", "bernoulli", "rdp", TileDropout(0.5, tile=4)])
@pytest.mark.slow
def test_net_on_cuda_equals_net_on_the_cpu(rng, other, dropout, optimizer):
    x, y = rng.standard_normal((14, 6)), np.arange(14) % 3
    nets = [
        Net((9, 7), dropout=dropout, optimizer=optimizer, epochs=1, batch_size=8, random_state=0, device=name).fit(x, y)
        for name in ("cpu", other)
    ]
    for ours, theirs in zip(*(net.model_.parameters() for net in nets)):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*(net.predict_proba(x[:5]) for net in nets), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", ["rdp", "tdp"])
@pytest.mark.slow
def test_a_step_asks_the_driver_for_no_memory_after_the_first_ones(rng, monkeypatch, other, dropout):
    """Of two patterns in turn, once both have been met; emulated, arrays lie in a pool here, which asks for each of them."""
    pools = [pool.device_pool, pool.small_device_pool]
    if other == "emulated":
        pools = [pool.Pool(lambda size: arrays.device_array(size, np.uint8), 256, 1 << 26, arrays.ALIGNMENT)]
        monkeypatch.setattr(pool, "_lender", Scoped("lender", pools[0]))
    chosen = TileDropout(0.5, tile=4, mixes=1) if dropout == "tdp" else RowDropout(0.5)
    monkeypatch.setattr(chosen, "draw", lambda layer, rng: (2, next(biases) // 2 % 2, 2.0))
    biases, dev = itertools.count(), device(other)
    model = Sequential(
        [Linear(5, 8, rng=0, device=dev), ReLU(), Linear(8, 8, rng=1, device=dev), ReLU(), Linear(8, 3, rng=2, device=dev)]
    )
    by = Stepper(model, SGD(model.parameters(), 0.01, 0.9), chosen, Classification(), Streams.from_seed(0), dev, 3)
    data = Data(dev.upload(rng.random((20, 5), np.float32)), rng.integers(3, size=20).astype(np.int32))

    def steps(count):
        for _ in range(count):
            rows = rng.integers(20, size=3).astype(np.int32)
            by.step(data.X, next(Batches(data, rows, 3, dev)), last=False)

    def asked():
        return sum(source.allocations for source in pools)

    steps(8)
    before = asked()
    assert before
    steps(2)
    assert asked() == before


def test_regressor_on_cuda(rng, other):
    x = rng.standard_normal((16, 4))
    nets = [NetRegressor((6,), epochs=1, batch_size=8, random_state=0, device=name).fit(x, x[:, 0]) for name in ("cpu", other)]
    np.testing.assert_allclose(*(net.predict(x) for net in nets), rtol=1e-4, atol=1e-5)


def test_layers_and_nets_move_between_devices(rng, other):
    x, y = rng.standard_normal((14, 6)), np.arange(14) % 3
    layers = [Linear(6, 5, rng=0), ReLU(), Linear(5, 3, rng=1)]
    nets = [Net(layers, epochs=1, batch_size=8, random_state=0, device=name).fit(x, y) for name in ("cpu", other)]
    nets[1].set_params(device="cpu")
    for net in nets:
        net.partial_fit(x, y)
    for ours, theirs in zip(*(net.model_.parameters() for net in nets)):
        assert ours.device is theirs.device
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif("emulated" not in OTHERS, reason="needs NVVM")
@in_turn(["none", "rdp", TileDropout(0.5, dp_max=2, tile=8)])
def test_a_step_is_at_most_fourteen_launches(rng, dropout, optimizer):
    """Two hidden layers: batch, three layers, loss, its sum, answers; three gradients of weights, two of activations; an
    update. Tiles meet their features shuffled."""
    x, y, launches = rng.standard_normal((40, 24)), np.arange(40) % 3, []
    for samples in (20, 40):
        emulation.counters.clear()
        Net((24, 24), epochs=1, batch_size=20, random_state=0, device="emulated", dropout=dropout, optimizer=optimizer).fit(
            x[:samples], y[:samples]
        )
        launches.append(sum(found.launches for found in emulation.counters.values()))
    assert launches[1] - launches[0] == (14 if isinstance(dropout, TileDropout) else 13)


@pytest.mark.skipif("emulated" not in OTHERS, reason="needs NVVM")
@pytest.mark.parametrize("dropout", ["rdp", TileDropout(0.5, tile=8)], ids=str)
@pytest.mark.slow
def test_imprecise_products_train_nearly_the_same(rng, dropout):
    x, y = rng.standard_normal((20, 24)), np.arange(20) % 3
    nets = [
        Net((24, 24), epochs=2, batch_size=20, random_state=0, device="emulated", dropout=dropout, precision=name).fit(x, y)
        for name in ("float32", "tf32")
    ]
    for ours, theirs in zip(*(net.model_.parameters() for net in nets)):
        assert not np.array_equal(ours.numpy(), theirs.numpy())
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=2e-2, atol=2e-3)


@pytest.mark.skipif("emulated" not in OTHERS, reason="needs NVVM")
@pytest.mark.alone
def test_a_step_is_emulated_soon_enough(rng):
    """A step of 64-64-10 with 32 samples in less than 5 s, its kernels compiled before."""
    x, y = rng.standard_normal((96, 64)), np.arange(96) % 10
    net = Net((64,), epochs=1, batch_size=32, random_state=0, device="emulated", dropout="rdp").fit(x[:32], y[:32])
    seconds = net.partial_fit(x, y).history_[-1]["seconds"]
    assert seconds / 3 < 5


COMPILED = """
import numpy as np
from numbanet_kernels.blocks import gemm_block
from numbanet_kernels.runtime import arrays

x, out = arrays.to_device(np.ones(64 * 64, np.float32)), arrays.device_array((64, 64))
gemm_block.launch_block(x, x, (64, 64, 64), (64, 1), (1, 64), out, tile=64, passes=0)
assert (out.copy_to_host() == 64).all()
stats = gemm_block._block(64, True, True, 0, False, 4).dispatcher.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


@pytest.mark.skipif("cuda" not in OTHERS or availability.capability() < (8, 0), reason="needs a card of compute capability 8.0")
def test_a_later_process_loads_compiled_kernels(tmp_path):
    """Those with code of their own, too: nothing that changes from process to process is in what names them."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert said == ["0 1\n", "1 0\n"]
