"""y[n, o] = act(scale * sum_i x[n, i] w[o, i] + bias[o]) for few samples, each by itself."""

import numpy as np
import pytest

from numbanet_kernels.families import gemm


@pytest.mark.parametrize("biased, relu, scale", [(False, False, 1.0), (True, False, 1.0), (True, True, 2.5)])
@pytest.mark.parametrize("n, o, i", [(1, 1, 1), (1, 9, 33), (7, 5, 16), (32, 130, 70), (0, 4, 3), (3, 0, 2), (3, 2, 0)])
def test_gemm_few_equals_reference(suffix, put, get, rng, n, o, i, biased, relu, scale):
    x, w, bias = rng.standard_normal((n, i)), rng.standard_normal((o, i)), rng.standard_normal(o)
    y = get(getattr(gemm, f"gemm_few_{suffix}")(put(x), put(w), put(bias) if biased else None, relu, scale))
    expected = gemm.gemm_reference(x, w, tb=True, bias=bias if biased else None, relu=relu, scale=scale)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("o, i", [(1, 1), (5, 37), (64, 128), (130, 784)])
def test_a_sample_has_the_same_result_alone_and_among_others(rng, o, i):
    x, w, bias = (rng.standard_normal(shape, np.float32) for shape in ((40, i), (o, i), (o,)))
    together = gemm.gemm_few_cpu(x, w, bias, True, 1.5)
    for n in range(40):
        np.testing.assert_array_equal(gemm.gemm_few_cpu(x[: n + 1], w, bias, True, 1.5), together[: n + 1])
        np.testing.assert_array_equal(gemm.gemm_few_cpu(x[n : n + 1], w, bias, True, 1.5), together[n : n + 1])


def test_nan_passes_relu():
    x, w = np.float32([[np.nan, 1], [1, 1]]), np.float32([[1, 1], [-1, -1], [0, 0]])
    np.testing.assert_array_equal(gemm.gemm_few_cpu(x, w, None, True), [[np.nan] * 3, [2, 0, 0]])


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"gemm_few \(cpu\).*\(3, 5\)"):
        gemm.gemm_few_cpu(np.zeros((2, 4), np.float32), np.zeros((3, 5), np.float32))
