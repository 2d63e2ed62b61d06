"""Pooling of images against its float64 reference, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import pooling
from numbanet_kernels.layouts.windows import Bins, Window

CASES = [
    ((2, 6, 4, 3), Window((2, 2), (2, 2))),
    ((3, 7, 5, 9), Window((2, 2), (2, 2))),
    ((2, 7, 6, 5), Window((3, 3), (2, 2))),
    ((2, 7, 6, 5), Window((3, 3), (2, 2), (1, 1))),
    ((1, 5, 9, 33), Window((3, 2), (1, 3), (1, 0))),
    ((2, 6, 5, 1), Window((1, 1), (1, 1))),
    ((2, 9, 7, 3), Window((1, 1), (3, 2))),
    ((2, 7, 7, 4), Window((7, 7), (1, 1))),
    ((1, 17, 18, 2), Window((17, 16), (1, 2), (4, 8))),
    ((0, 4, 4, 3), Window((2, 2), (2, 2))),
    ((2, 5, 4, 0), Window((2, 2), (1, 1))),
    ((3, 8, 9, 6), Window((2, 2), (2, 2))),
    ((2, 9, 11, 17), Window((3, 3), (3, 2), (1, 1))),
    ((2, 6, 40, 1), Window((2, 3), (1, 4), (1, 1))),
    ((1, 15, 18, 2), Window((15, 16), (1, 2), (4, 8))),
    ((1, 16, 18, 1), Window((16, 16), (1, 2), (4, 8))),
]
DILATED = [((2, 9, 8, 3), Window((2, 3), (1, 2), (1, 0), (3, 2))), ((1, 2, 2, 5), Window((2, 2), (1, 1), (1, 1), (3, 3)))]
BINS = [((2, 7, 6, 5), Bins(1, 1)), ((2, 7, 6, 5), Bins(3, 4)), ((1, 3, 4, 9), Bins(5, 4)), ((0, 3, 3, 2), Bins(2, 2))]


def of(suffix, name):
    return getattr(pooling, f"{name}_{suffix}")


@pytest.mark.parametrize("shape, window", CASES + DILATED, ids=str)
def test_max_pool(suffix, put, get, rng, shape, window):
    x = np.float32(rng.integers(-3, 3, shape))  # many are equal
    y, places = (get(array) for array in of(suffix, "max_pool")(put(x), window))
    expected, at = pooling.max_pool_reference(x, window)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(places[np.isfinite(y)], at[np.isfinite(y)])  # others see no pixel
    assert places.dtype == (np.uint8 if (window.kernel[0] + 1) * window.kernel[1] <= 256 else np.int32)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dx = get(of(suffix, "max_pool_grad")(put(dy), put(places), window, shape))
    np.testing.assert_allclose(dx, pooling.max_pool_grad_reference(dy, places, window, shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("shape, window", CASES + BINS, ids=str)
def test_avg_pool(suffix, put, get, rng, shape, window, include):
    x = rng.standard_normal(shape).astype(np.float32)
    y = get(of(suffix, "avg_pool")(put(x), window, include))
    np.testing.assert_allclose(y, pooling.avg_pool_reference(x, window, include), rtol=1e-5, atol=1e-5)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dx = get(of(suffix, "avg_pool_grad")(put(dy), window, shape, include))
    np.testing.assert_allclose(dx, pooling.avg_pool_grad_reference(dy, window, shape, include), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("height, width, channels", [(3, 700, 3), (700, 3, 3), (3000, 2000, 3), (4000, 1, 2)])
def test_means_of_many_pixels_lose_nothing(suffix, put, get, rng, height, width, channels):
    if suffix == "cuda":
        height, width = (1500, 1) if width == 1 else (min(height, 30), min(width, 70))
    x = rng.random((1, height, width, channels), np.float32)
    for images in x, np.full_like(x, 0.1):
        y = get(of(suffix, "avg_pool")(put(images), Bins(1, 1)))
        np.testing.assert_allclose(y[0, 0, 0], images.mean((0, 1, 2), dtype=np.float64), rtol=5e-7)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_means_of_many_pixels_with_infinities(suffix, put, get, value):
    """Whatever is added after it."""
    x = np.ones((1, 9, 9, 2), np.float32)
    x[0, 1, 1, 0] = value
    np.testing.assert_allclose(get(of(suffix, "avg_pool")(put(x), Bins(1, 1)))[0, 0, 0], [value, 1])


def test_nan_is_the_largest(suffix, put, get):
    x = np.zeros((1, 4, 4, 2), np.float32)
    x[0, 1, 0, 1], x[0, :2, 2:, 0] = np.nan, -np.inf
    y, places = (get(array) for array in of(suffix, "max_pool")(put(x), Window((2, 2), (2, 2))))
    np.testing.assert_array_equal(y[0, 0], [[0, np.nan], [-np.inf, 0]])
    np.testing.assert_array_equal(places[0, 0], [[0, 2], [0, 0]])


def pixels(places, window, width):
    """The numbers of the pixels (row by row) that places name, as PyTorch counts them."""
    _, oh, ow, _ = np.indices(places.shape)
    h, w = (
        o * s - p + k * d
        for o, s, p, k, d in zip((oh, ow), *window[1:3], np.divmod(np.int64(places), window.kernel[1]), window.dilation)
    )
    return h * width + w


@pytest.mark.parametrize("values", [[-np.inf], [np.nan], [-np.inf, np.nan, 0, 1, np.inf]], ids=str)
@pytest.mark.parametrize("shape, window", [case for case in CASES + DILATED[:1] if np.prod(case[0])], ids=str)
def test_infinities_and_nan_have_the_places_and_gradients_of_pytorch(suffix, put, get, rng, shape, window, values):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")
    x = rng.choice(np.float32(values), shape)
    ours = [get(array) for array in of(suffix, "max_pool")(put(x), window)]
    images = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()).requires_grad_()
    theirs, at = torch.nn.functional.max_pool2d(images, *window, return_indices=True)
    for y, places in (ours, pooling.max_pool_reference(x, window)):
        np.testing.assert_array_equal(y, theirs.detach().numpy().transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(pixels(places, window, shape[2]), at.numpy().transpose(0, 2, 3, 1))
    dy = rng.standard_normal(ours[0].shape).astype(np.float32)
    theirs.backward(torch.from_numpy(dy.transpose(0, 3, 1, 2).copy()))
    dx = get(of(suffix, "max_pool_grad")(put(dy), put(ours[1]), window, shape))
    np.testing.assert_allclose(dx, images.grad.numpy().transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda of, put: of("max_pool")(put(np.ones((3, 4, 4))), Window((2, 2))), r"max_pool.*\(3, 4, 4\) must be images"),
        (
            lambda of, put: of("max_pool")(put(np.ones((1, 4, 1, 2))), Window((2, 2))),
            "4 x 1 pixels are smaller than the window",
        ),
        (lambda of, put: of("avg_pool")(put(np.ones((1, 4, 4, 2))), Window((2, 3), (1, 1), (1, 2))), r"padding \(1, 2\)"),
        (lambda of, put: of("avg_pool")(put(np.ones((1, 4, 4, 2))), Window((2, 2), (0, 1))), r"stride \(0, 1\)"),
        (lambda of, put: of("avg_pool")(put(np.ones((1, 4, 4, 2))), Window((2, 2), dilation=(2, 1))), "support dilation"),
        (lambda of, put: of("avg_pool")(put(np.ones((1, 4, 4, 2))), Bins(0, 2)), r"output_size \(0, 2\)"),
        (lambda of, put: of("avg_pool_grad")(put(np.ones((1, 2, 3, 2))), Bins(2, 2), (1, 4, 4, 2)), r"\(1, 2, 3, 2\)"),
        (
            lambda of, put: of("max_pool_grad")(
                put(np.ones((1, 2, 2, 2))), put(np.ones((1, 2, 2, 1), np.uint8)), Window((2, 2), (2, 2)), (1, 4, 4, 2)
            ),
            "places must be",
        ),
    ],
)
def test_what_does_not_fit_is_refused(suffix, put, call, message):
    with pytest.raises(ValueError, match=message):
        call(lambda name: of(suffix, name), put)


def test_bins_have_no_maximum(suffix, put):
    with pytest.raises(TypeError, match="max_pool.* expected a Window"):
        of(suffix, "max_pool")(put(np.ones((1, 4, 4, 2))), Bins(2, 2))
