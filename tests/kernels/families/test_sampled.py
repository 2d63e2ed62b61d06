"""Products of which each sample, or group of samples, keeps its own outputs, against float64 references, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import gemm_samples
from numbanet_kernels.layouts.samples import sample_lists
from numbanet_kernels.runtime.launch import recording

CASES = [
    (1, 1, 1, 1, 0.5),
    (5, 7, 9, 1, 0.5),
    (40, 33, 70, 1, 0.2),
    (40, 33, 70, 16, 0.2),
    (37, 20, 65, 16, 0.9),
    (7, 600, 32, 3, 0.5),
    (6, 5, 40, 1, 0.0),
    (6, 5, 40, 20, 1.0),
    (0, 5, 4, 1, 0.5),
    (4, 0, 33, 1, 0.5),
]  # N, I, O, group, share kept


def given(rng, n, i, o, group, share):
    """x, w, bias; values to go back; the lists, and how many values they keep."""
    mask = rng.random((-(-n // group), o)) < share
    if share == 0.0 and mask.size:
        mask[0, 1] = True  # one neuron of one sample stays
    lists = sample_lists(mask, n, group)
    kept = int(lists.starts[-1])
    np.testing.assert_array_equal(gemm_samples.mask_of(lists), mask[np.arange(n) // group])
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((n, i), (o, i), (o,), (kept,))], lists, kept


def on(put, lists):
    return lists._replace(bits=put(lists.bits), starts=put(lists.starts))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(suffix, put, get, rng, case, relu):
    (x, w, b, _), lists, kept = given(rng, *case)
    for bias in (None, b):
        given_bias = None if bias is None else put(b)
        found = getattr(gemm_samples, f"gemm_samples_{suffix}")(put(x), put(w), on(put, lists), kept, given_bias, relu)
        close(get(found), gemm_samples.gemm_samples_reference(x, w, lists, kept, bias, relu))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_backward(suffix, put, get, rng, case):
    (x, w, _, dy), lists, _ = given(rng, *case)
    dx = getattr(gemm_samples, f"gemm_samples_dx_{suffix}")(put(dy), put(w), on(put, lists))
    close(get(dx), gemm_samples.gemm_samples_dx_reference(dy, w, lists))
    found = getattr(gemm_samples, f"gemm_samples_dw_{suffix}")(put(dy), put(x), on(put, lists))
    for ours, theirs in zip(found, gemm_samples.gemm_samples_dw_reference(dy, x, lists), strict=True):
        close(get(ours), theirs)


def test_samples_go_along_the_axis_of_which_a_card_has_most_blocks(on_cuda, put):
    lists, samples = sample_lists(np.ones((70_000, 1), bool), 70_000, 1), 70_000
    given = put(np.zeros(samples, np.float32)), put(np.zeros((1, 300), np.float32)), on(put, lists)
    with recording() as calls:
        gemm_samples.gemm_samples_dx_cuda(*given)
    assert [grid for _, grid, _, _ in calls] == [(samples, 2)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dense_and_back(suffix, put, get, rng, case):
    (*_, values), lists, kept = given(rng, *case)
    dense = getattr(gemm_samples, f"expand_samples_{suffix}")(put(values), on(put, lists))
    np.testing.assert_array_equal(get(dense), gemm_samples.expand_samples_reference(values, lists).astype(np.float32))
    noise = rng.standard_normal(dense.shape).astype(np.float32)
    found = getattr(gemm_samples, f"compact_samples_{suffix}")(put(noise), on(put, lists), kept)
    np.testing.assert_array_equal(get(found), noise[gemm_samples.mask_of(lists)])


@pytest.mark.parametrize(
    "change, message", [({"width": 3}, "bits"), ({"group": 0}, "do not form lists"), ({"group": 2}, "bits")]
)
def test_lists_that_do_not_fit_are_refused(suffix, put, rng, change, message):
    (x, w, *_), lists, kept = given(rng, 6, 5, 40, 1, 0.5)
    lists = on(put, lists)._replace(**change)
    with pytest.raises(ValueError, match=message):
        getattr(gemm_samples, f"gemm_samples_{suffix}")(put(x), put(w[: lists.width]), lists, kept)


def test_cpu_lists_that_count_wrongly_are_refused(rng):
    (x, w, _, dy), lists, kept = given(rng, 6, 5, 40, 1, 0.5)
    with pytest.raises(ValueError, match="not 3"):
        gemm_samples.gemm_samples_cpu(x, w, lists, 3)
    wrong = lists._replace(starts=lists.starts + np.arange(7, dtype=np.int32))
    for call in (
        lambda: gemm_samples.gemm_samples_cpu(x, w, wrong, kept + 6),
        lambda: gemm_samples.gemm_samples_dx_cpu(dy, w, wrong),
        lambda: gemm_samples.gemm_samples_dx_cpu(dy[1:].copy(), w, lists),
    ):
        with pytest.raises(ValueError, match="starts do not match"):
            call()
