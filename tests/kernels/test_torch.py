"""The device "torch": PyTorch's products and convolutions behind our table compute what the CPU's do."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the device needs PyTorch: pip install torch")

from numbanet import LSTM, BatchNorm2d, Conv2d, Embedding, Flatten, LastStep, Linear, MaxPool2d, Net, ReLU, check_grad
from numbanet.device import available, device, problem
from numbanet_kernels import torch as table
from numbanet_kernels.examples import example, families
from numbanet_kernels.layouts.windows import Window
from tests.core.test_ops import CASES, inputs

OWN = {"gemm", "gemm_dw", "conv2d", "conv2d_grad", "conv2d_max_pool", "conv2d_max_pool_grad"}
pytestmark = pytest.mark.skipif("torch" not in available(), reason="the package is not installed with its entry points")


def test_its_table_is_that_of_the_cpu():
    own = OWN | {"records"}
    ours, theirs = vars(device("cpu")), vars(device("torch"))
    assert ours.keys() == theirs.keys() and problem("torch") is None
    assert {name for name in ours if ours[name] is not theirs[name]} == own | {"name"}
    assert all(theirs[name].__module__ == table.__name__ for name in own)


def close(ours, theirs, name):
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (ours, theirs)), strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("name", [name for name in families() if name.partition(",")[0] in OWN])
@pytest.mark.parametrize("sizes", [(128, 256, 192), (37, 50, 21)])
def test_examples_are_those_of_the_cpu(name, sizes):
    """Every form of the operations that are replaced, plans and epilogues among them."""
    call = example(name, sizes)
    close(*(call.on(device(where)).run(device(where)) for where in ("cpu", "torch")), name)


def test_epilogues_and_windows_are_those_of_the_cpu(rng):
    def a(*shape):
        return rng.standard_normal(shape, np.float32)

    x, w, y, bias = a(9, 7), a(5, 7), a(9, 5), a(5)
    images, filters, window = a(2, 8, 9, 6), a(4, 3, 3, 2), Window((3, 2), (2, 1), (1, 0), (1, 2))
    shape = 2, *window.positions(8, 9), 4
    dz, positive = a(*shape), a(*shape)
    calls = {
        "transposed": lambda dev: dev.gemm(y, x, ta=True, scale=0.5),
        "all": lambda dev: dev.gemm(x, w, tb=True, bias=bias, relu=True, scale=0.5, out=np.empty((9, 5), np.float32)),
        "where": lambda dev: dev.gemm(y, w, where=x),
        "groups": lambda dev: dev.conv2d(images, filters, window, 2, bias[:4], True, 0.5),
        "gradients": lambda dev: dev.conv2d_grad(dz, images, filters, window, 2, positive, 0.5),
        "without dx": lambda dev: dev.conv2d_grad(dz, images, filters, window, 2, None, 1.0, None, None, False),
    }
    for name, call in calls.items():
        close(call(device("cpu")), call(device("torch")), name)


def test_what_is_closed_is_zero_even_if_it_is_infinite():
    a, where = np.array([[np.inf, 1.0], [np.nan, 2.0]], np.float32), np.array([[0, 1], [-1, np.nan]], np.float32)
    images, filters = np.ones((1, 2, 2, 1), np.float32), np.ones((1, 1, 1, 1), np.float32)
    for name, call in {
        "gemm": lambda dev: dev.gemm(a, np.eye(2, dtype=np.float32), where=where),
        "conv2d_grad": lambda dev: dev.conv2d_grad(
            a.reshape(1, 2, 2, 1), images, filters, Window((1, 1)), where=where.reshape(1, 2, 2, 1)
        ),
    }.items():
        close(call(device("cpu")), call(device("torch")), name)


@pytest.mark.parametrize("name", CASES)
def test_ops_and_gradients(rng, name):
    """The cases of every op on every device; of the emulated one and CUDA see `tests.core.test_ops`."""
    function, expected, shapes, where = CASES[name]
    tensors = inputs(rng, shapes, where, device("torch"))
    reference = np.asarray(expected(*(np.float64(t.numpy()) for t in tensors)))
    np.testing.assert_allclose(function(*tensors).numpy(), reference, rtol=1e-4, atol=1e-5)
    check_grad(function, tensors)


NETS = {
    "mlp": lambda: [Linear(48, 20, rng=0), ReLU(), Linear(20, 3, rng=1)],
    "images": lambda: [
        *(Conv2d(3, 8, 3, padding=1, bias=False, rng=0), BatchNorm2d(8), ReLU(), MaxPool2d(2)),
        *(Conv2d(8, 8, 2, rng=1), ReLU(), Flatten(), Linear(8, 3, rng=2)),
    ],
    "words": lambda: [Embedding(9, 6, rng=0), LSTM(6, 10, batch_first=True, rng=1), LastStep(), Linear(10, 3, rng=2)],
}


@pytest.mark.parametrize("name, dropout", [(n, d) for n in NETS for d in ("none", "bernoulli", "rdp", "window")])
def test_training_is_that_of_the_cpu(name, dropout):
    """30 steps: random numbers are drawn alike, and what a plan keeps stays with the CPU's kernels."""
    rng = np.random.default_rng(0)
    X = rng.integers(9, size=(60, 7)) if name == "words" else rng.standard_normal((60, 3, 4, 4), np.float32)
    X = X.reshape(60, -1) if name == "mlp" else X
    nets = []
    for where in ("cpu", "torch"):
        options = {"epochs": 5, "batch_size": 10, "optimizer": "adam", "dropout": dropout, "dropout_rate": 0.3}
        nets.append(Net(NETS[name](), device=where, random_state=0, **options).fit(X, np.arange(60) % 3))
    for ours, theirs in zip(*(net.model_.parameters() for net in nets), strict=True):
        assert theirs.device.name == "torch"
        np.testing.assert_allclose(theirs.numpy(), ours.numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(nets[1].predict_proba(X), nets[0].predict_proba(X), rtol=1e-3, atol=1e-4)
