"""Operations that PyTorch's own samples of modules call: values and gradients equal to PyTorch's, on every device."""

import numpy as np
import pytest

from numbanet import Tensor, ops

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


def same(dev, ours, theirs, *arrays):
    """Value and gradients of a function of tensors, ours and PyTorch's, are equal."""
    mine = [Tensor(np.array(array, np.float32), dev, requires_grad=True) for array in arrays]
    others = [torch.tensor(np.float32(array), requires_grad=True) for array in arrays]
    y, expected = ours(*mine), theirs(*others)
    assert y.shape == tuple(expected.shape)
    dy = np.float32(np.random.default_rng(3).standard_normal(y.shape))
    y.backward(dy)
    expected.backward(torch.tensor(dy))
    np.testing.assert_allclose(y.numpy(), expected.detach(), rtol=1e-5, atol=1e-5)
    for tensor, other in zip(mine, others, strict=True):
        np.testing.assert_allclose(tensor.grad.numpy(), other.grad, rtol=1e-5, atol=1e-5)


SHAPES = [
    ((3, 4), (4, 2)),
    ((2, 3, 4), (4, 2)),
    ((2, 3, 4), (2, 4, 2)),
    ((5, 1, 3, 4), (2, 4, 2)),
    ((3, 4), (2, 4, 5)),
    ((4,), (2, 4, 5)),
    ((4,), (3, 2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 3, 1, 4), (1, 3, 4, 1)),
    ((0, 3, 4), (0, 4, 2)),
]


@pytest.mark.parametrize("a, b", SHAPES, ids=str)
def test_matmul_of_more_axes(dev, rng, a, b):
    same(dev, ops.matmul, torch.matmul, rng.standard_normal(a), rng.standard_normal(b))
    assert (Tensor(np.ones(a), dev) @ np.ones(b)).shape == np.matmul(np.ones(a), np.ones(b)).shape


@pytest.mark.parametrize("a, b", [((2, 3, 4), (2, 5, 2)), ((2, 3, 4), (3, 4, 2)), ((), (2, 4, 5)), ((4,), ())], ids=str)
def test_matmul_of_shapes_that_do_not_match(a, b):
    with pytest.raises(ValueError, match="matmul: "):
        ops.matmul(np.ones(a), np.ones(b))


def test_powers_of_tensors(dev, rng):
    a, b = np.float32([0, 0, 0, 2, -2, -2, 3]), np.float32([0, 2, -1, 0, 3, 2, -1.5])
    with np.errstate(all="ignore"):  # infinite and undefined values are PyTorch's, too
        same(dev, lambda x, y: x**y, lambda x, y: x**y, a, b)
        same(dev, lambda x: x**b, lambda x: x ** torch.tensor(b), a)
        same(dev, lambda y: np.abs(a) ** y, lambda y: torch.tensor(a).abs() ** y, b)
        assert np.isnan((Tensor([-2.0], dev) ** Tensor([0.5], dev)).item())
    same(dev, ops.pow, torch.pow, 0.1 + rng.random((3, 1)), rng.standard_normal((2, 1, 4)))
    same(dev, lambda y: 2**y, lambda y: 2**y, b)
    np.testing.assert_allclose(((-2) ** Tensor([2.0, 3.0], dev)).numpy(), [4.0, -8.0])


@pytest.mark.parametrize("axis", [0, -1])
def test_reductions_of_a_tensor_without_axes(dev, axis):
    for name in ("sum", "mean", "amax", "amin"):
        own = name.removeprefix("a")
        same(dev, lambda x, own=own: getattr(x, own)(axis=axis), lambda x, name=name: getattr(x, name)(dim=axis), 3.0)
    x = Tensor(3.0, dev)
    assert x.argmax(axis=axis).item() == 0 and x.argmax(axis=axis).shape == () and np.isnan(x.var(axis=axis).item())
    with pytest.raises(ValueError, match="axis 1 is not among the 0 axes"):
        x.sum(axis=1)


@pytest.mark.parametrize("shape", [(), (3, 0), (0, 3), (2, 0, 3), (4,)], ids=str)
def test_softmax_of_nothing_and_of_a_number(dev, shape):
    for name in ("softmax", "log_softmax"):
        same(dev, getattr(ops, name), lambda x, name=name: getattr(torch, name)(x, dim=-1), np.ones(shape))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [(1, 1), (0, 2), (3, 0), (2, 3)], ids=str)
def test_padding_by_pixels_of_the_image(dev, rng, mode, padding):
    def theirs(x):
        sides = (padding[1], padding[1], padding[0], padding[0])
        return torch.nn.functional.pad(x.permute(0, 3, 1, 2), sides, mode=mode).permute(0, 2, 3, 1)

    same(dev, lambda x: ops.pad2d(x, padding=padding, mode=mode), theirs, rng.standard_normal((2, 4, 5, 3)))


@pytest.mark.parametrize(
    "shape, padding, mode, message",
    [
        ((2, 3, 4, 1), (3, 0), "reflect", "3 pixels cannot be padded by 3 more in the mode 'reflect', at most by 2"),
        ((2, 3, 4, 1), (0, 5), "circular", "4 pixels cannot be padded by 5 more .*, at most by 4"),
        ((2, 3, 4), (1, 1), "reflect", r"pad2d: x \(2, 3, 4\) must be images"),
        ((2, 3, 4, 1), (1, 1), "mirror", "mode one of .*, not 'mirror'"),
    ],
)
def test_images_that_cannot_be_padded(shape, padding, mode, message):
    with pytest.raises(ValueError, match=message):
        ops.pad2d(np.ones(shape, np.float32), padding=padding, mode=mode)
