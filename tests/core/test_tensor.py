"""Tensor and the graph: accumulation, freeing, depth, interchange with other libraries."""

import concurrent.futures
import copy
import pickle
import threading

import numpy as np
import pytest

from numbanet import Tensor, device, from_dlpack, no_grad, op, ops
from numbanet_kernels.runtime.memory import empty_cpu


def test_a_tensor_used_twice_adds_its_gradients(dev):
    x = Tensor([1.0, 2.0], dev, requires_grad=True)
    (x * x + x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [3.0, 5.0])
    (x * 2.0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [5.0, 7.0])
    x.zero_grad()
    assert x.grad is None


def test_a_copy_on_another_device_is_a_copy(dev):
    """Also if both devices compute on NumPy arrays."""
    for there in ("cpu", "cpu:1"):
        x = Tensor([1.0, 2.0], dev)
        y = x.to(there)
        y.numpy()[:] = 5.0
        assert (x.numpy().tolist() == [1.0, 2.0]) == (y is not x) and y.device is device(there)


def test_a_graph_of_ten_thousand_nodes():
    x = Tensor([1.0], requires_grad=True)
    y = x
    for _ in range(10_000):
        y = y + x
    y.backward()
    assert x.grad.item() == 10_001
    del y


def test_inner_gradients_are_freed_and_a_second_backward_says_so(dev):
    x = Tensor([1.0], dev, requires_grad=True)
    inner = x * 3.0
    y = inner * 2.0
    y.backward()
    assert inner.grad is None and x.grad.item() == 6.0
    with pytest.raises(RuntimeError, match="freed"):
        y.backward()


def test_no_grad_and_detach_record_nothing(dev):
    x = Tensor([1.0], dev, requires_grad=True)
    with no_grad():
        assert not (x * 2.0).requires_grad
    assert not x.detach().requires_grad and x.detach().data is x.data
    assert (x * 2.0).requires_grad


def test_vjps_are_called_only_where_a_gradient_is_needed(dev):
    calls = []

    @op
    def product(dev, a, b):
        return dev.mul(a, b), (lambda dy: calls.append("a") or dev.mul(dy, b), lambda dy: calls.append("b") or dev.mul(dy, a))

    product(Tensor([2.0], dev), Tensor([3.0], dev, requires_grad=True)).backward()
    assert calls == ["b"]


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda t: t.backward(), ValueError, "needs dy"),
        (lambda t: t.detach().backward(), RuntimeError, "does not depend on a tensor that requires a gradient"),
        (lambda t: t.backward(np.ones(3)), ValueError, r"dy \(3,\)"),
        (lambda t: t.item(), ValueError, "has 2 values instead of one"),
        (lambda t: Tensor(t), TypeError, "Tensor already"),
        (lambda t: Tensor(["a"]), TypeError, "float32"),
        (lambda t: from_dlpack([1.0]), TypeError, "__dlpack__"),
    ],
)
def test_misuse_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(Tensor([1.0, 2.0], requires_grad=True) * 1.0)


def test_numpy_shares_memory_on_the_cpu():
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = Tensor(host)
    assert np.shares_memory(np.asarray(t), host) and np.shares_memory(np.from_dlpack(t), host)
    assert np.shares_memory(from_dlpack(host).numpy(), host)
    assert Tensor(np.float64(host)).dtype == np.float32
    assert np.asarray(t, np.float64).dtype == np.float64


def test_torch_shares_memory_on_the_cpu():
    torch = pytest.importorskip("torch", reason="PyTorch is an optional peer")
    t = Tensor([[1.0, 2.0]])
    theirs = torch.from_dlpack(t)
    theirs[0, 0] = 5.0
    assert t.numpy()[0, 0] == 5.0
    ours = from_dlpack(theirs)
    ours.data[0, 1] = 7.0
    assert theirs[0, 1].item() == 7.0


def test_the_cpu_has_no_cuda_array_interface():
    assert not hasattr(Tensor([1.0]), "__cuda_array_interface__")


def test_numpy_array_on_the_left_gives_a_tensor(dev):
    y = np.ones((2, 2), np.float32) + Tensor(np.ones((2, 2)), dev)
    assert isinstance(y, Tensor) and y.device is dev


def test_pickle_and_deepcopy(dev):
    t = Tensor([[1.0, 2.0]], dev, requires_grad=True)
    for again in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t)):
        np.testing.assert_array_equal(again.numpy(), t.numpy())
        assert again.requires_grad and again.device is dev and not np.shares_memory(again.numpy(), t.numpy())


def test_repr_and_iteration(dev):
    t = Tensor([[1.0, 2.0], [3.0, 4.0]], dev)
    assert "[1., 2.]" in repr(t) and len(t) == 2
    assert [row.numpy().tolist() for row in t] == [[1.0, 2.0], [3.0, 4.0]]


def test_scalars_have_no_axes(dev):
    t = Tensor(2.0, dev, requires_grad=True)
    y = ops.exp(t) * t
    assert y.shape == ()
    y.backward()
    assert t.grad.shape == () and t.grad.item() == pytest.approx(3 * np.exp(2), rel=1e-5)


def test_unknown_devices_are_named():
    with pytest.raises(ValueError, match="'tpu'.*'cuda'"):
        device("tpu")
    with pytest.raises(AttributeError, match="no operation 'fly'"):
        _ = device("cpu").fly


def test_no_grad_of_one_thread_leaves_the_others_alone():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with no_grad():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    recorded = (Tensor([1.0], requires_grad=True) * 2.0).requires_grad
    leave.set()
    thread.join()
    assert recorded and (Tensor([1.0], requires_grad=True) * 2.0).requires_grad


def test_gradients_of_size_one_can_be_written(dev):
    x = Tensor([[2.0]], dev, requires_grad=True)
    x.relu().sum().backward()
    (x.sum(axis=0) * 3.0).backward()
    np.testing.assert_allclose(x.grad.numpy(), [[4.0]])


def test_a_gradient_given_to_backward_is_not_shared(dev):
    v, x = np.ones(2, np.float32), Tensor([1.0, 2.0], dev, requires_grad=True)
    (x + Tensor([0.0, 0.0], dev)).backward(v)
    v[:] = 7.0
    np.testing.assert_allclose(x.grad.numpy(), [1.0, 1.0])


def test_leaves_share_no_gradient(dev):
    """Whether an op hands over its dy, a part or a view of it, or one array to two of its inputs."""
    a, b, c, d = (Tensor(np.zeros(4), dev, requires_grad=True) for _ in range(4))
    (a + b + ops.concatenate([c[:2], d[2:]]) + d.reshape(2, 2).reshape(4) + twins(c, d)).backward(np.arange(4.0))
    for leaf, factor in zip((a, b, c, d), (1.0, 1.0, [3, 3, 2, 2], [3, 3, 4, 4])):
        np.testing.assert_allclose(leaf.grad.numpy(), factor * np.arange(4.0))
        dev.full((4,), 0.0, out=leaf.gradient.values)  # which changes no other gradient


def test_devices_know_which_arrays_overlap(dev):
    x = dev.full((6, 2), 0.0)
    parts = [dev.part(x, *rows) for rows in ((0, 3), (2, 4), (3, 6))]
    assert [[dev.overlap(a, b) for b in parts] for a in parts] == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    assert dev.overlap(dev.reshape(x, (12,)), parts[2]) and not dev.overlap(x, dev.copy(x))


@op
def twins(dev, a, b):
    """2 (a + b), with one array for both gradients"""
    found = []

    def vjp(dy):
        found.append(found[0] if found else dev.affine(dy, mul=2.0))
        return found[-1]

    return dev.affine(dev.add(a, b), mul=2.0), (vjp, vjp)


def test_a_gradient_that_only_one_leaf_has_is_not_copied():
    x, w, made = Tensor(np.ones((2, 3))), Tensor(np.ones((4, 3)), requires_grad=True), []

    @op
    def product(dev, x, w):
        def dw(dy):
            made.append(dev.gemm(dy, x, ta=True))
            return made[-1]

        return dev.gemm(x, w, tb=True), (lambda dy: dy, dw)

    product(x, w).sum().backward()
    assert w.gradient.values is made[0]


def test_integers_stay_exact_on_another_device():
    x = Tensor.wrap(np.array([2**24 + 1, -1], np.int32), device("cpu"))
    for there in (x.to("emulated"), x.to("emulated").to("cpu"), x.to("cpu:2")):
        assert there.dtype == np.int32 and there.numpy().tolist() == [2**24 + 1, -1]


def test_integers_are_numbers_in_arithmetic(dev):
    i = Tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 2.0]], dev).argmax(axis=1)
    n = np.array([1.0, 0.0], np.float32)
    for act in (
        lambda x: x + 1,
        lambda x: 2 - x,
        lambda x: x / 2,
        lambda x: -x,
        lambda x: x * x,
        lambda x: x**2,
        lambda x: x @ n,
        lambda x: x + n[:, None],
        lambda x: x.sum(),
        lambda x: x.mean(axis=0),
        lambda x: x.max(),
        lambda x: x.clip(0, 0.5),
        lambda x: x.argmax(),
    ):
        np.testing.assert_allclose(act(i).numpy(), act(n))
    np.testing.assert_allclose(ops.where(i, i, 7).numpy(), [1, 7])
    np.testing.assert_allclose(ops.sqrt(i).numpy(), [1, 0])


def test_shapes_and_axes_are_integers_of_any_kind(dev):
    x = Tensor(np.arange(6.0).reshape(2, 3), dev)
    assert x.reshape(np.prod(x.shape)).shape == (6,) and x.reshape(np.int32(3), -1).shape == (3, 2)
    for y in (x.transpose((1, 0)), x.transpose([1, 0]), x.transpose(np.int64(1), 0), x.transpose()):
        np.testing.assert_array_equal(y.numpy(), x.numpy().T)
    with pytest.raises(ValueError, match=r"reshape: .* \(2, 3\) cannot take the shape \(-2, -3\)"):
        x.reshape(-2, -3)


def test_one_value_is_a_number(dev):
    x = Tensor([[2.6]], dev)
    assert (int(x), float(x), f"{x:.2f}", f"{x}") == (2, pytest.approx(2.6), "2.60", str(x))
    assert f"{Tensor([1.0, 3.0], dev).argmax():03d}" == "001"
    for act in (int, float, "{:.2f}".format):
        with pytest.raises(ValueError, match=r"shape \(2,\) has 2 values instead of one"):
            act(Tensor([1.0, 2.0], dev))


def test_division_by_a_number_without_an_inverse(dev):
    """1e39 is no float32, but the quotients are."""
    x = Tensor([0.0, 1e-2, -3e-39], dev, requires_grad=True)
    y = x / 1e-39
    np.testing.assert_array_equal(y.numpy(), x.numpy() / np.float32(1e-39))
    y.backward(Tensor([0.0, 0.0, 1e-3], dev))
    np.testing.assert_array_equal(x.grad.numpy(), np.float32([0, 0, 1e-3]) / np.float32(1e-39))


def test_powers_of_numbers_are_exact_and_know_infinity(dev):
    exponents = Tensor([100.0, -np.inf, np.inf, 0.0], dev)
    np.testing.assert_array_equal((1.0**exponents).numpy(), [1, 1, 1, 1])
    np.testing.assert_array_equal((np.inf**exponents).numpy(), [np.inf, 0, np.inf, 1])
    assert (2.0**exponents).numpy()[0] == np.float32(2.0**100)


def test_powers_at_zero(dev):
    x = Tensor([0.0, 2.0], dev, requires_grad=True)
    (x**0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.0, 0.0])


def test_axes_out_of_range_are_named(dev):
    x = Tensor([[1.0]], dev)
    for call in (lambda: ops.concatenate([x, x], axis=5), lambda: x.transpose(3, 2), lambda: x.sum(axis=2)):
        with pytest.raises(ValueError, match="ax[ie]s"):
            call()


def test_the_pool_never_lends_a_block_twice_or_too_small():
    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(300):
            size = int(rng.integers(1 << 14, 1 << 17))
            first, second = empty_cpu(size), empty_cpu(size // 2)
            first[:], second[:] = seed, -seed
            assert (first == seed).all() and (second == -seed).all()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(1, 5)))


def test_what_would_lose_the_graph_is_refused():
    x = Tensor([1.0, 2.0], requires_grad=True)
    for act in (lambda: np.exp(x), lambda: np.multiply(x, 2), lambda: Tensor([x, x]), lambda: Tensor(None)):
        with pytest.raises(TypeError):
            act()
    y = (np.array([3.0, 4.0], np.float32) * x + np.float32(2) * x + 2**x + abs(-x)).sum() + x.min()
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), [3 + 2 + 2 * np.log(2) + 1 + 1, 4 + 2 + 4 * np.log(2) + 1], rtol=1e-5)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "var", "std"])
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": (0, 1), "keepdims": True}])
def test_reductions_of_numpy_stay_in_the_graph(name, options, dev, rng):
    x = Tensor(rng.standard_normal((3, 4)).astype(np.float32), dev, requires_grad=True)
    y = getattr(np, name)(x, **options)
    assert isinstance(y, Tensor)
    np.testing.assert_allclose(y.numpy(), getattr(np, name)(x.numpy(), **options), rtol=1e-5)
    y.backward(np.ones(y.shape, np.float32))
    grad, x = x.grad.numpy(), Tensor(x.numpy(), dev, requires_grad=True)
    ours = getattr(x, name)(**options, **({"correction": 0} if name in ("var", "std") else {}))
    ours.backward(np.ones(y.shape, np.float32))
    np.testing.assert_array_equal(grad, x.grad.numpy())


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "var", "std"])
@pytest.mark.parametrize("key, value", [("out", np.zeros(())), ("dtype", float), ("where", True), ("dim", 0)])
def test_options_that_only_numpy_has_are_refused(name, key, value):
    way_out = "did you mean 'axis'" if key == "dim" else rf"np\.{name}\(tensor\.numpy\(\)"  # as PyTorch calls it
    with pytest.raises(TypeError, match=f"{name}.*{key}.*{way_out}"):
        getattr(Tensor([1.0, 2.0]), name)(**{key: value})
    assert np.var(Tensor([1.0, 3.0]), ddof=1).item() == 2
    with pytest.raises(TypeError, match="ddof"):
        Tensor([1.0]).sum(ddof=0)
    for name in ("var", "std"):
        with pytest.raises(TypeError, match=f"{name}: correction and ddof are two names of one number"):
            getattr(Tensor([1.0, 3.0]), name)(correction=1, ddof=0)
