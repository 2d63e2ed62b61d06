"""What ops take besides tensors: labels in range, arrays of other libraries, and what takes the place of a tensor's array."""

import numpy as np
import pytest

from numbanet import CrossEntropy, Linear, Tensor, check_grad, device, ops
from numbanet.arguments import host_array
from numbanet_kernels.runtime import arrays

LOGITS = [[0.5, 1.0, -1.0], [2.0, 0.0, 1.0]]


class OnlyDLPack:
    """An array of a library that has DLPack and no `__array__`."""

    def __init__(self, values, dtype=np.float32):
        self.values = np.array(values, dtype)

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def of_torch(values, dtype=np.float32):
    return pytest.importorskip("torch", reason="PyTorch is an optional peer").from_numpy(np.array(values, dtype))


def of_jax(values, dtype=np.float32):
    return pytest.importorskip("jax", reason="JAX is an optional peer").numpy.asarray(np.array(values, dtype))


LIBRARIES = [of_torch, of_jax, OnlyDLPack, lambda values, dtype=np.float32: np.array(values, dtype).tolist()]


# --- labels -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "labels, label", [([0, 3], 3), ([-1, 0], -1), (np.array([0, 2**32]), 2**32), (np.uint8([255, 0]), 255)]
)
@pytest.mark.parametrize("loss", [lambda z, y: ops.softmax_cross_entropy(z, labels=y), CrossEntropy(0.1)], ids=["op", "loss"])
def test_a_label_without_a_class_is_named(dev, loss, labels, label):
    with pytest.raises(ValueError, match=rf"label {label} is not among the 3 classes 0 … 2 of logits \(2, 3\)"):
        loss(Tensor(LOGITS, dev), labels)


def test_labels_on_a_device_are_not_looked_at(dev):
    """The docstring says so: a label outside makes the loss NaN."""
    for labels in ([0, 3], [-1, 0]):
        given = Tensor.wrap(dev.upload(np.int32(labels)), dev)
        assert np.isnan(ops.softmax_cross_entropy(Tensor(LOGITS, dev), labels=given).item())


# --- arrays of other libraries ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("made", LIBRARIES, ids=["torch", "jax", "DLPack", "list"])
def test_ops_take_arrays_of_other_libraries(dev, made):
    z, host = Tensor(LOGITS, dev), np.float32(LOGITS)
    labels, weights, target = np.array([2, 0], np.int32), np.float32([0.25, 0.75]), np.float32([[1, 2, 3], [3, 2, 1]])
    for found, expected in (
        (
            ops.softmax_cross_entropy(z, labels=made(labels, np.int32), weights=made(weights)),
            ops.softmax_cross_entropy(z, labels=labels, weights=weights),
        ),
        (CrossEntropy()(z, made(labels, np.int32)), ops.softmax_cross_entropy(z, labels=labels)),
        (ops.squared_error(z, target=made(target)), ops.squared_error(z, target=target)),
        (ops.huber_error(z, target=made(target), weights=made(weights)), ops.huber_error(z, target=target, weights=weights)),
        (ops.embedding(z, ids=made([1, 0, 1], np.int32)), host[[1, 0, 1]]),
        (z[made([1, 0, 1], np.int32)], host[[1, 0, 1]]),
        (z + made(target), host + target),
        (z == made([[0.5, 1.0, 0.0]] * 2), host == np.float32([0.5, 1, 0])),
        (z < made(target), host < target),
    ):
        np.testing.assert_array_equal(found.numpy(), np.float32(expected))


def test_what_cannot_be_read_is_refused_by_name(dev):
    torch = pytest.importorskip("torch", reason="PyTorch is an optional peer")
    z, trained = Tensor(LOGITS, dev), torch.ones(2, 3, requires_grad=True)
    for call, message in (
        (lambda: ops.squared_error(z, target=trained), r"squared_error: target: cannot read torch\.Tensor .* requires grad"),
        (lambda: ops.softmax(trained), r"Tensor: cannot read torch\.Tensor as float32 numbers .* requires grad"),
        (
            lambda: ops.softmax_cross_entropy(z, labels=[0, 1], weights=object()),
            "softmax_cross_entropy: weights: cannot read object",
        ),
        (lambda: ops.softmax_cross_entropy(z, labels=["a", "b"]), "softmax_cross_entropy: labels: cannot read list"),
        (lambda: ops.embedding(z, ids=object()), "embedding: ids: cannot read object as numbers"),
        (lambda: z.device.mul(z.data, torch.ones(2, 3)), "must be a contiguous float32 array, not a Tensor"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


@pytest.mark.parametrize("value, dtype", [(300, np.int8), (-1, np.uint8), (2**70, np.int64)])
def test_integers_too_large_for_the_dtype_are_refused_by_name(value, dtype):
    with pytest.raises(TypeError, match=f"^X: cannot read list as {np.dtype(dtype)} numbers "):
        host_array("X", [value], dtype)


def test_read_only_arrays_are_taken(dev):
    labels, weights = np.array([2, 0], np.int32), np.float32([0.25, 0.75])
    expected = ops.softmax_cross_entropy(Tensor(LOGITS, dev), labels=labels, weights=weights).item()
    for array in (labels, weights):
        array.flags.writeable = False
    assert ops.softmax_cross_entropy(Tensor(LOGITS, dev), labels=labels, weights=weights).item() == expected


def test_memory_of_the_host_is_shared():
    values = np.ones(3, np.float32)
    for given in (values, of_torch(values), OnlyDLPack(values)):
        before = given.values if isinstance(given, OnlyDLPack) else np.asarray(given)
        assert np.shares_memory(host_array("x", given), before)


# --- Tensor.data ------------------------------------------------------------------------------------------------------
def test_the_array_of_a_tensor_is_replaced_by_one_of_its_kind(dev):
    w = Linear(3, 2, rng=0).weight
    w.move(dev)
    w.data = dev.upload(np.full((2, 3), 2.0, np.float32))
    assert (w.numpy() == 2).all()
    wrong = (
        (np.ones((2, 3)), TypeError, "a contiguous float32 array as before, not float64"),
        (np.ones((3, 2), np.float32).T, TypeError, "float32 with gaps"),
        (np.ones((3, 2), np.float32), ValueError, r"must keep the shape \(2, 3\), not \(3, 2\); make a new Tensor"),
    )
    for array, error, message in wrong:
        if dev.name == "emulated":
            array = array.view(type(w.data))
        elif dev.name == "cuda":
            array = arrays.to_device(array)
        with pytest.raises(error, match=rf"tensor\.data .*{message}"):
            w.data = array
    for other in ([[1.0] * 3] * 2, w, None):
        with pytest.raises(TypeError, match=r"tensor\.data must be an array .*, not "):
            w.data = other
    assert (w.numpy() == 2).all()


def test_the_array_of_another_device_is_refused():
    here, there = Tensor([1.0]), Tensor([1.0], "emulated")
    with pytest.raises(TypeError, match="must be an array of the tensor's device, not ndarray"):
        there.data = here.data
    with pytest.raises(TypeError, match="must be an array of the host, not EmulatedArray"):
        here.data = there.data
    assert here.device is device("cpu")


def test_check_grad_says_what_a_function_must_return():
    with pytest.raises(TypeError, match=r"^check_grad: function must return a Tensor, got 3\.0$"):
        check_grad(lambda x: 3.0, [Tensor([1.0], requires_grad=True)])
