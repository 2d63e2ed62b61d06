"""c[m, n] = act(scale * sum_k A[m, k] B[k, n] + bias[n]): every version against the float64 reference."""

import contextlib
import itertools
import json
import pathlib

import numpy as np
import pytest

from bench.kernels import gemm_ways
from numbanet_kernels.blocks import gemm_block
from numbanet_kernels.families import gemm, gemm_rows, gemm_tiles
from numbanet_kernels.families.gemm_tiles import cuda_grouped
from numbanet_kernels.host import thresholds
from numbanet_kernels.layouts.tiles import Pattern
from numbanet_kernels.runtime import emulation, precision

OLDER = True  # products have other kernels on an older card: all tests run on one as well

SHAPES = [(1, 1, 1), (7, 9, 11), (8, 8, 8), (10, 3, 17), (0, 4, 3), (4, 0, 3), (4, 3, 0)]  # (M, N, K)
FLAGS = list(itertools.product([False, True], repeat=2))
EPILOGUES = [(False, False, 1.0), (True, False, 1.0), (True, True, 2.5)]  # biased, relu, scale


def operands(rng, m, n, k, ta, tb):
    a = rng.standard_normal((k, m) if ta else (m, k))
    b = rng.standard_normal((n, k) if tb else (k, n))
    return a, b, rng.standard_normal(n)


@pytest.mark.parametrize("biased, relu, scale", EPILOGUES)
@pytest.mark.parametrize("ta, tb", FLAGS)
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_gemm_equals_reference(suffix, put, get, rng, m, n, k, ta, tb, biased, relu, scale):
    a, b, bias = operands(rng, m, n, k, ta, tb)
    function = getattr(gemm, f"gemm_{suffix}")
    c = get(function(put(a), put(b), ta, tb, put(bias) if biased else None, relu, scale))
    expected = gemm.gemm_reference(a, b, ta, tb, bias if biased else None, relu, scale)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("biased, relu, scale", EPILOGUES)
@pytest.mark.parametrize("ta, tb", FLAGS)
@pytest.mark.parametrize("m, n, k", [(600, 70, 75), (40, 200, 150), (40, 10, 150)], ids=["samples", "rows", "columns"])
def test_threads_share_a_product(rng, m, n, k, ta, tb, biased, relu, scale):
    """They divide the samples if these are many, else the rows of the weight, or, if there are few, its columns."""
    a, b, bias = (np.float32(operand) for operand in operands(rng, m, n, k, ta, tb))
    with thresholds.using(thresholds.Thresholds(1, 1)):
        c = gemm.gemm_cpu(a, b, ta, tb, bias if biased else None, relu, scale)
    np.testing.assert_allclose(
        c, gemm.gemm_reference(a, b, ta, tb, bias if biased else None, relu, scale), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("m, n, k", [(7, 9, 11), (70, 66, 20), (4, 0, 3), (4, 3, 0)])
def test_gemm_leaves_out_what_a_relu_did(suffix, put, get, rng, m, n, k):
    a, b, bias = operands(rng, m, n, k, False, False)
    where = np.maximum(rng.standard_normal((m, n)), 0)
    c = get(getattr(gemm, f"gemm_{suffix}")(put(a), put(b), bias=put(bias), scale=2.0, where=put(where)))
    np.testing.assert_allclose(c, gemm.gemm_reference(a, b, bias=bias, scale=2.0, where=where), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=rf"gemm \({suffix}\).*where \(1, 1\)"):
        getattr(gemm, f"gemm_{suffix}")(put(a), put(b), where=put(np.zeros((1, 1))))


@pytest.mark.parametrize("n, o, i", [(5, 7, 3), (20, 130, 70), (0, 4, 3), (3, 0, 2), (3, 2, 0)])
def test_gemm_dw_equals_reference(suffix, put, get, rng, n, o, i):
    dy, x = rng.standard_normal((n, o)), rng.standard_normal((n, i))
    found = getattr(gemm, f"gemm_dw_{suffix}")(put(dy), put(x), 0.5)
    for array, expected in zip(found, gemm.gemm_dw_reference(dy, x, 0.5), strict=True):
        np.testing.assert_allclose(get(array), expected, rtol=1e-5, atol=1e-5)


def version_equals_reference(rng, put, get, version, tile, ta, tb):
    a, b, bias = operands(rng, 10, 9, 11, ta, tb)
    c = get(gemm.gemm_version(version, tile, put(a), put(b), ta, tb, put(bias), True, 2.0))
    np.testing.assert_allclose(c, gemm.gemm_reference(a, b, ta, tb, bias, True, 2.0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("version, tile", [("naive", 4), ("tiled", 4), ("register", 8)])
@pytest.mark.parametrize("ta, tb", FLAGS)
def test_every_cuda_version(rng, on_cuda, put, get, version, tile, ta, tb):
    version_equals_reference(rng, put, get, version, tile, ta, tb)


def by_halves(ways, half):
    """Each way to multiply with either layout of A and either of B, and each pair of layouts; the other half is long."""
    return [
        pytest.param(*way, *flags, marks=pytest.mark.long if (i + sum(flags)) % 2 != half else ())
        for i, way in enumerate(ways)
        for flags in FLAGS
    ]


@pytest.mark.slow
@pytest.mark.parametrize("version, tile, ta, tb", by_halves([("block", 64), ("block", 128), ("tensor", None)], 1))
def test_every_version_for_newer_cards(rng, from_8_0, put, get, version, tile, ta, tb):
    version_equals_reference(rng, put, get, version, tile, ta, tb)


@pytest.mark.slow
@pytest.mark.parametrize("tile, passes, ta, tb", by_halves([(64, 0), (128, 0), (128, 3)], 0))
def test_blocks_share_a_product_along_k(rng, from_8_0, put, get, ta, tb, tile, passes):
    """And the sums of A's rows; the same bits each time, as the order in which blocks are done does not matter."""
    (m, n, k), results = (70, 66, 72), []
    a, b, bias = operands(rng, m, n, k, ta, tb)
    x, y = put(a).reshape(a.size), put(b).reshape(b.size)
    for span in (32, 32, 80):
        out, sums = put(np.full((m, n), np.nan)), put(np.full(m, np.nan))
        gemm_block.launch_block(
            x,
            y,
            (m, n, k),
            (1, m) if ta else (k, 1),
            (1, k) if tb else (n, 1),
            out,
            put(bias),
            relu=True,
            a_sums=sums,
            sums_scale=2.0,
            tile=tile,
            passes=passes,
            span=span,
        )
        results.append((get(out), get(sums)))
        np.testing.assert_allclose(results[-1][0], gemm.gemm_reference(a, b, ta, tb, bias, True), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(results[-1][1], 2 * (a.T if ta else a).sum(axis=1), rtol=1e-5, atol=1e-5)
    for once, again in zip(*results[:2], strict=True):
        np.testing.assert_array_equal(once, again)


def test_a_product_deep_and_small_is_shared(rng, from_8_0, put, get):
    a, b = rng.standard_normal((10, 600)), rng.standard_normal((600, 9))
    assert gemm_block.span_for(10, 9, 600, 64) == 160 and gemm_block.span_for(4096, 4096, 4096, 128) == 4096
    np.testing.assert_allclose(get(gemm.gemm_cuda(put(a), put(b))), a @ b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["gemm", "rows", "tiles"])
def test_products_on_tensor_cores(rng, from_8_0, put, get, kind, monkeypatch):
    """Of rows and tiles, too. With 10 bits of the operands they are further off than float32, and by no more than these bits;
    where tensor cores are faster, products are as near as without."""
    x, w, pattern = rng.standard_normal((40, 96)), rng.standard_normal((72, 96)), Pattern((72, 96), 8, 3, 1, 2)
    rows = slice(1, None, 2)
    expected = {
        "gemm": gemm.gemm_reference(x, w, tb=True),
        "rows": gemm_rows.gemm_rows_reference(x, w, rows, None),
        "tiles": gemm_tiles.gemm_tiles_reference(x, w, pattern),
    }[kind]
    found = []
    for precise, pays in ((True, False), (True, True), (False, False)):
        monkeypatch.setattr(gemm_block, "three_passes", lambda pays=pays: 0.25 if pays else np.inf)
        with contextlib.nullcontext() if precise else precision.tf32():
            found.append(
                get(
                    {
                        "gemm": lambda: gemm.gemm_cuda(put(x), put(w), tb=True),
                        "rows": lambda: gemm_rows.gemm_rows_cuda(put(x), put(w), rows, None),
                        "tiles": lambda: gemm_tiles.gemm_tiles_cuda(put(x), put(w), pattern),
                    }[kind]()
                )
            )
    plain, three, one = (np.abs(y - expected).max() / np.abs(expected).max() for y in found)
    assert max(plain, three) < 1e-6 < 1e-5 < one < 1e-3 and not np.array_equal(found[0], found[1])


@pytest.mark.parametrize("milliseconds, longer", [({0: 1.0, 3: 0.7}, 0.75), ({0: 1.0, 3: 1.9}, 2.0), ({}, np.inf)])
def test_tensor_cores_are_measured_once(from_8_0, monkeypatch, milliseconds, longer):
    """Where nothing could be measured they do not serve, and it is said. The emulated device has no time to measure."""
    monkeypatch.setattr(gemm_block, "_milliseconds", milliseconds.__getitem__)
    measured = gemm_block._three_passes
    measured.cache_clear()
    try:
        with contextlib.nullcontext() if milliseconds else pytest.warns(UserWarning, match="not measured: KeyError: 3"):
            assert measured() == longer
        assert measured.cache_info().currsize == 1
        assert gemm_block.three_passes() == (np.inf if emulation.emulating() else longer)
    finally:
        measured.cache_clear()


@pytest.mark.parametrize(
    "rows, cols, longer, way",
    [(4096, 4096, 0.75, (128, 3)), (4096, 4096, 1.25, (128, 0)), (128, 1024, 0.5, (64, 0)), (128, 1024, 0.25, (128, 3))],
)
def test_tensor_cores_serve_products_that_they_do_sooner(from_8_0, monkeypatch, rows, cols, longer, way):
    """Their blocks are large: of a small product there are too few."""
    monkeypatch.setattr(gemm_block, "three_passes", lambda: longer)
    monkeypatch.setattr(gemm_block, "multiprocessors", lambda: 132)
    assert gemm_block.way_for(rows, cols) == way


def test_blocks_are_chosen_as_a_card_was_measured():
    """Of the ways that were timed on an H200, the one that is chosen takes at most a fifth longer than the best."""
    ways = json.loads(pathlib.Path(gemm_ways.OUT).read_text(encoding="utf-8"))["ways"]
    with emulation.emulated():  # which has as many multiprocessors
        found = np.array(list(gemm_ways.ratios(ways).values()))
        (mean, *_), *_ = gemm_ways.best_constants(ways)
    assert len(found) == len(gemm_ways.PRODUCTS) and found.max() < 1.2
    assert np.exp(np.log(found).mean()) <= mean + 0.005


@pytest.mark.parametrize("module", [gemm_block, cuda_grouped])
@pytest.mark.slow
def test_three_passes_are_as_exact_on_a_card(from_8_0, monkeypatch, module):
    """Of a deep product, too; if not, they are not used."""
    if emulation.emulating():
        monkeypatch.setattr(gemm_block, "DEEP", 100)  # a deeper one takes long
    assert module._tensor_agrees[3].check() < 1e-6
    assert gemm_block.exact_enough(lambda passes, k=1: 5e-7 if passes else 1e-7) == np.inf


def test_out_is_filled(suffix, put, get, rng):
    a, b, _ = operands(rng, 5, 6, 7, False, False)
    out = put(np.full((5, 6), np.nan))
    assert getattr(gemm, f"gemm_{suffix}")(put(a), put(b), out=out) is out
    np.testing.assert_allclose(get(out), a @ b, rtol=1e-5, atol=1e-5)


def test_relu_keeps_nan(suffix, put, get):
    c = getattr(gemm, f"gemm_{suffix}")(put([[np.nan, 1.0]]), put([[1.0], [1.0]]), relu=True)
    assert np.isnan(get(c)).all()


@pytest.mark.parametrize(
    "a, b, options", [((2, 3), (4, 5), {}), ((3, 2), (3, 5), {}), ((2, 3), (5, 4), {"tb": True}), ((2, 3, 1), (3, 5), {})]
)
def test_shapes_that_do_not_match_are_named(suffix, put, a, b, options):
    with pytest.raises(ValueError, match=rf"gemm \({suffix}\).*\(2, 3|\(3, 2"):
        getattr(gemm, f"gemm_{suffix}")(put(np.zeros(a)), put(np.zeros(b)), **options)
