"""DLPack and the array interfaces: whose memory is shared with NumPy, PyTorch and JAX, and what is copied."""

import numpy as np
import pytest

from numbanet import Tensor, device, from_dlpack


def made():
    """A result of numbanet of 64 KiB, whose memory begins at a multiple of 64 bytes, as JAX wants it."""
    return Tensor(np.arange(16384.0).reshape(128, 128)) * 1.0


def test_numpy_shares_memory_both_ways():
    t = made()
    for array in (np.asarray(t), np.asarray(t, copy=False), np.from_dlpack(t), t.numpy()):
        assert np.shares_memory(array, t.data)
    np.from_dlpack(t)[0, 0] = 5.0
    assert t[0, 0].item() == 5.0
    assert not np.shares_memory(np.array(t), t.data) and not np.shares_memory(np.asarray(t, np.float64), t.data)
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    for wrapped in (from_dlpack(host), Tensor(host)):
        wrapped.assign(np.full((2, 3), 7.0, np.float32))
        assert (host == 7).all()


def test_without_a_copy_means_without_a_copy():
    with pytest.raises(ValueError, match="a float32 tensor cannot become a NumPy array as float64 without a copy"):
        np.asarray(made(), np.float64, copy=False)


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0), np.arange(6), np.arange(6) > 2, np.float16([1, 2]), np.arange(6, dtype=np.float32)[::2]],
    ids=lambda array: f"{array.dtype} {array.strides}",
)
def test_what_is_not_float32_in_order_is_converted_in_a_copy(array):
    before, t = array.copy(), from_dlpack(array)
    assert t.dtype == np.float32 and t.data.flags.c_contiguous
    np.testing.assert_array_equal(t.numpy(), np.float32(array))
    t.assign(np.full(t.shape, 9.0, np.float32))
    np.testing.assert_array_equal(array, before)


def test_read_only_memory_is_never_written():
    host = np.ones(3, np.float32)
    host.flags.writeable = False
    for wrapped in (from_dlpack(host), Tensor(host)):
        wrapped.assign(np.zeros(3, np.float32))
    assert (host == 1).all()


def test_pytorch_shares_memory_both_ways():
    torch = pytest.importorskip("torch", reason="PyTorch is an optional peer")
    t = made()
    for theirs in (torch.from_dlpack(t), torch.asarray(t), torch.as_tensor(t)):
        assert theirs.data_ptr() == t.data.ctypes.data and theirs.shape == t.shape
    torch.from_dlpack(t).fill_(3.0)
    assert (t.numpy() == 3).all()
    theirs = torch.ones(2, 3)
    for ours in (from_dlpack(theirs), Tensor(theirs)):
        assert ours.data.ctypes.data == theirs.data_ptr()
    ours.assign(np.zeros((2, 3), np.float32))
    assert float(theirs.sum()) == 0
    assert from_dlpack(torch.ones(3, 2).T).shape == (2, 3) and torch.from_dlpack(Tensor(3.0)).shape == ()
    with pytest.raises(BufferError, match="detach"):  # PyTorch's own words
        from_dlpack(torch.ones(3, requires_grad=True))
    indices = Tensor.wrap(np.arange(3, dtype=np.int32), device("cpu"))
    assert torch.from_dlpack(indices).dtype == torch.int32


def test_jax_shares_memory_of_tensors_and_its_arrays_are_copied():
    jax = pytest.importorskip("jax", reason="JAX is an optional peer")
    t = made()
    theirs = jax.numpy.from_dlpack(t)
    assert theirs.unsafe_buffer_pointer() == t.data.ctypes.data
    t.assign(np.full((128, 128), 2.0, np.float32))
    assert float(jax.numpy.from_dlpack(t).sum()) == 32768.0
    own = jax.numpy.ones((3, 4))
    for ours in (from_dlpack(own), Tensor(own)):
        np.testing.assert_array_equal(ours.numpy(), np.ones((3, 4)))
        ours.assign(np.zeros((3, 4), np.float32))
    assert float(own.sum()) == 12.0  # JAX's arrays do not change


def test_tensors_of_each_device_are_read(dev):
    t = Tensor(np.arange(6.0).reshape(2, 3), dev)
    np.testing.assert_array_equal(np.asarray(t), np.arange(6.0).reshape(2, 3))
    if dev.name != "cpu":
        with pytest.raises(ValueError, match="on another device without a copy"):
            np.asarray(t, copy=False)
    other = from_dlpack(np.ones((2, 2), np.float32), dev)
    assert other.device is dev and other.sum().item() == 4.0
