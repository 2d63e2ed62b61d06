"""Comparisons, and what chooses by them, against PyTorch: values, gradients, ties, NaN and infinities."""

import operator

import numpy as np
import pytest

import numbanet
from numbanet import Tensor, ops

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")

NAN, INF = np.nan, np.inf
HARD = np.array([[1, 2, NAN, INF, -INF, 0], [0, -1, 3, INF, 2, NAN]], np.float32)
OTHER = np.array([[1, 3, 2, INF, INF, -0.0], [NAN, -2, 3, 5, NAN, NAN]], np.float32)
OPERATORS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def both(function, *hosts, dev, dy=None):
    """(values, gradients) of ours, and of PyTorch's."""
    found = []
    for made in (lambda host: Tensor(host, dev, requires_grad=True), lambda host: torch.tensor(host, requires_grad=True)):
        inputs = [made(host.copy()) for host in hosts]
        y = function(*inputs)
        y.backward(
            (np.ones(y.shape) if dy is None else dy)
            if isinstance(y, Tensor)
            else torch.ones_like(y)
            if dy is None
            else torch.from_numpy(np.float32(dy))
        )
        found.append((y.numpy() if isinstance(y, Tensor) else y.detach().numpy(), [x.grad.numpy() for x in inputs]))
    return found


def agree(function, *hosts, dev, dy=None):
    (y, gradients), (expected, others) = both(function, *hosts, dev=dev, dy=dy)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-7)
    for ours, theirs in zip(gradients, others, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


# --- masks ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OPERATORS)
def test_comparisons_are_by_element_and_have_no_gradient(dev, name):
    compare, a = OPERATORS[name], Tensor(HARD, dev, requires_grad=True)
    for other in (OTHER, OTHER[:1], OTHER[:, :1], 2, np.float32(2), np.int64(2), True, OTHER.tolist()):
        expected = compare(HARD, np.asarray(other))
        mask = compare(a, other)
        assert mask.dtype == np.float32 and not mask.requires_grad and mask.device is dev
        np.testing.assert_array_equal(mask.numpy(), expected)
        swapped = compare(other, a)
        np.testing.assert_array_equal(swapped.numpy(), compare(np.asarray(other), HARD))
    np.testing.assert_array_equal(compare(a, Tensor(OTHER, dev)).numpy(), compare(HARD, OTHER))
    assert compare(Tensor(np.zeros((0, 3)), dev), 1).shape == (0, 3) and compare(Tensor(2, dev), 1).shape == ()


def test_the_functions_have_numpys_names(dev):
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        np.testing.assert_array_equal(getattr(ops, name)(HARD, Tensor(OTHER, dev)).numpy(), getattr(np, name)(HARD, OTHER))


def test_what_holds_no_numbers_is_another_thing():
    x = Tensor([1.0])
    assert (x == None) is False and (x != None) is True and (x == "1") is False  # noqa: E711
    with pytest.raises(TypeError, match="not supported between"):
        x < None  # noqa: B015


def test_dicts_and_sets_know_tensors_by_identity(dev):
    a, b = Tensor([1.0, 2.0], dev), Tensor([1.0, 2.0], dev)
    assert {a: 1, b: 2} == {b: 2, a: 1} and len({a, b, a}) == 2 and Tensor([1.0, 2.0], dev) not in {a, b}
    assert a in [a, b] and [a, b].index(a) == 0


# --- where ------------------------------------------------------------------------------------------------------------
def chosen(mask, a, b):
    return ops.where(mask, a, b) if isinstance(a, Tensor) else torch.where(torch.from_numpy(mask), a, b)


def test_where_takes_no_trace_of_what_is_not_chosen(dev):
    mask = np.isfinite(HARD)
    agree(lambda a, b: chosen(mask, a, b), HARD, np.ones(6, np.float32), dev=dev, dy=np.where(mask, 1, INF))
    agree(lambda a, b: chosen(~mask, a, b), np.ones((2, 1), np.float32), HARD, dev=dev)


def test_a_mask_is_set_where_it_is_not_zero(dev):
    for mask in ([2.0, -1.0, 0.0, -0.0, NAN], Tensor([2.0, -1.0, 0.0, -0.0, NAN], dev)):
        np.testing.assert_array_equal(ops.where(mask, Tensor(1, dev), Tensor(0, dev)).numpy(), [1, 1, 0, 0, 1])
    x = Tensor(HARD, dev)
    np.testing.assert_array_equal(numbanet.where(x == x, x, 0).numpy(), np.where(np.isnan(HARD), 0, HARD))
    np.testing.assert_array_equal(ops.where(True, x, 0).numpy(), HARD)


# --- argmax -----------------------------------------------------------------------------------------------------------
def test_the_first_of_equal_ones_is_the_largest(dev, rng):
    cases = [HARD, np.zeros((3, 4)), rng.integers(0, 3, (2, 5, 3)), rng.integers(0, 3, 7), np.array(3.0)]
    for host in map(np.float32, cases):
        x = Tensor(host, dev, requires_grad=True)
        for axis in (None, *range(-host.ndim, host.ndim)):
            for keepdims in (False, True):
                y = x.argmax(axis, keepdims)
                assert y.dtype == np.int32 and not y.requires_grad
                np.testing.assert_array_equal(y.numpy(), torch.tensor(host).argmax(axis, keepdim=keepdims).numpy())


def test_indices_compare_and_are_taken(dev, rng):
    x, labels = Tensor(rng.standard_normal((5, 3)), dev), np.arange(5) % 3
    best = x.argmax(1)
    assert (best == labels).mean().item() == pytest.approx(np.mean(x.numpy().argmax(1) == labels))
    np.testing.assert_array_equal((best == best).numpy(), np.ones(5))
    np.testing.assert_array_equal(x[best].numpy(), x.numpy()[best.numpy()])
    for key in (slice(1, 4), (slice(None), None), 2, [0, 3]):
        np.testing.assert_array_equal(best[key].numpy(), best.numpy()[key])
        assert best[key].dtype == np.int32
    with pytest.raises(TypeError, match=r"a float tensor is not an index; for a mask m write x\[m.numpy\(\) != 0\]"):
        x[x > 0]
    with pytest.raises(TypeError, match="not an index"):
        x[0, x > 0]


# --- spread -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("name", ["var", "std"])
def test_variances_are_pytorchs(dev, rng, name, axis, correction):
    host = np.float32(rng.standard_normal((4, 3)) + 5)

    def spread(x):
        if isinstance(x, Tensor):
            return getattr(x, name)(axis=axis, correction=correction, keepdims=axis == 1)
        return getattr(x, name)(axis, correction=correction, keepdim=axis == 1)

    agree(spread, host, dev=dev)
    assert getattr(Tensor(host, dev), name)().item() == pytest.approx(getattr(torch.tensor(host), name)().item(), rel=1e-5)


def test_of_equal_values_the_gradient_is_zero(dev):
    host = np.float32([[2, 2, 2], [1, NAN, 3], [1, 2, 4]])
    for name in ("var", "std"):
        agree(lambda x, name=name: getattr(x, name)(1), host, dev=dev)


def test_of_one_value_the_estimate_is_nan(dev):
    for y in (Tensor([3.0], dev).var(), Tensor([3.0], dev).std(), Tensor(np.zeros((0, 2)), dev).var(0)[0]):
        assert np.isnan(y.item())
    assert Tensor([3.0], dev).var(correction=0).item() == 0


# --- clip -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("low, high", [(-1, 2), (None, 2), (0, None), (-INF, INF), (2, -1), (1, 1)])
def test_clip_is_pytorchs_at_the_bounds_and_beyond(dev, low, high):
    agree(lambda x: x.clip(low, high), HARD, dev=dev)


def test_bounds_are_numbers(dev):
    with pytest.raises(TypeError, match="clip: low must be a number or None, got .*; for tensors use maximum"):
        Tensor([1.0], dev).clip(Tensor([0.0], dev))
