"""The device `cuda` itself, with Numba's arrays and launches as on a GPU, on the emulated card."""

import gc
import types

import numpy as np
import pytest

import numbanet
from numbanet import LSTM, BatchNorm2d, Conv2d, Flatten, LastStep, Linear, MaxPool2d, Net, ReLU, Tensor, device, ops
from numbanet_kernels import card
from numbanet_kernels.blocks import gemm_block
from numbanet_kernels.runtime import availability, declare, driver, graph, launch, pool

pytestmark = [
    pytest.mark.skipif(card.problem() is not None, reason=str(card.problem())),
    pytest.mark.skipif(availability.cuda_problem() is None, reason="there is a GPU"),
    pytest.mark.slow,
]


class Launches:
    """In place of a graph of the driver."""

    def __init__(self, calls):
        self.calls = calls

    def launch(self, stream):
        for call in self.calls:
            driver.start(*call)


@pytest.fixture(scope="module")
def there():
    with numbanet.emulated(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(availability, "cuda_problem", lambda: None)
        patch.setattr(launch, "driverless", types.SimpleNamespace(posed=False))  # it may start kernels, too
        patch.setattr(graph, "_completed", lambda calls: (Launches(calls), None))
        for memory, chunk in ((pool.device_pool, "chunk"), (pool.small_device_pool, "chunk"), (pool.Arena, "CHUNK")):
            patch.setattr(memory, chunk, 1 << 14)  # for each chunk, races are looked for in all of it
        patch.setattr(gemm_block, "_agrees", lambda: True)  # self-tests and times of products that take long here
        patch.setattr(gemm_block, "three_passes", lambda: np.inf)
        yield
        gc.collect()
        for memory in (pool.device_pool, pool.small_device_pool):
            memory.chunks.clear()  # memory of this card


def compare(x, y, layers, **options):
    """Fit on both devices: steps that are computed, recorded and queued, of the last batch too; the weights and predictions."""
    ours, theirs = (Net(layers() if callable(layers) else layers, **options, device=name).fit(x, y) for name in ("cuda", "cpu"))
    for a, b in zip(ours.model_.parameters(), theirs.model_.parameters(), strict=True):
        assert not isinstance(a.data, np.ndarray) and a.data.is_c_contiguous()
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dropout", ["none", "bernoulli", "rdp", "tdp", "window", "batchwise"])
def test_a_network_trains_as_on_the_cpu(there, rng, dropout):
    x, y = rng.standard_normal((20, 6)).astype(np.float32), np.arange(20) % 3
    compare(x, y, (8, 8), dropout=dropout, batch_size=8, epochs=4, random_state=0)


def test_adam_clipping_and_weights_train_as_on_the_cpu(there, rng):
    x, y = rng.standard_normal((12, 5)).astype(np.float32), np.arange(12) % 2
    compare(x, y, (6,), optimizer="adam", clip_norm=0.1, class_weight="balanced", batch_size=4, epochs=3, random_state=0)


def test_images_train_as_on_the_cpu(there, rng):
    x, y = rng.standard_normal((8, 1, 6, 6)).astype(np.float32), np.arange(8) % 2

    def layers():
        return [Conv2d(1, 4, 3, padding=1, rng=0), BatchNorm2d(4), ReLU(), MaxPool2d(2), Flatten(), Linear(36, 2, rng=1)]

    compare(x, y, layers, batch_size=4, epochs=3, random_state=0, dropout="none")


def test_sequences_train_as_on_the_cpu(there, rng):
    x, y = rng.standard_normal((8, 4, 3)).astype(np.float32), np.arange(8) % 2
    compare(
        x,
        y,
        lambda: [LSTM(3, 8, batch_first=True, rng=0), LastStep(), Linear(8, 2, rng=1)],
        batch_size=4,
        epochs=3,
        random_state=0,
        dropout="rdp",
    )


class Foreign:
    """An array of another library on the card."""

    def __init__(self, values):
        self.own = declare.cuda.to_device(values)
        self.__cuda_array_interface__ = self.own.__cuda_array_interface__


def test_labels_and_weights_may_be_arrays_of_other_libraries(there, rng):
    z, labels, weights = rng.standard_normal((3, 4)), np.array([2, 0, 3]), np.float32([0.5, 0.25, 0.25])
    expected = ops.softmax_cross_entropy(Tensor(z), labels=labels, weights=weights).item()
    on_card = Tensor(z, device("cuda"))
    for dtype in (np.int32, np.int64, np.uint8):
        given = Foreign(labels.astype(dtype)), Foreign(weights)
        assert ops.softmax_cross_entropy(on_card, labels=given[0], weights=given[1]).item() == pytest.approx(expected, 1e-5)
    with pytest.raises(ValueError, match="labels are float32, not integers"):
        ops.softmax_cross_entropy(on_card, labels=Foreign(np.float32([0.5, 1, 2])))
    with pytest.raises(ValueError, match=f"label {2**32 + 1} is not among the 4 classes"):
        ops.softmax_cross_entropy(on_card, labels=Foreign(np.array([0, 1, 2**32 + 1])))
