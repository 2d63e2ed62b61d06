"""The suite of sparse products: every peer does the same, and the chart says where lines cross."""

import json

import pytest

from bench.kernels import csr
from bench.machinery.harness import Options


def test_every_peer_computes_the_same():
    pytest.importorskip("torch")
    seen = set()
    for case in csr.cases(Options(against="torch", quick=True)):
        for one in case.implementations:
            seen.add((one.parameters["op"], one.name))
            assert case.error(one.build(**one.parameters).outputs()) <= 1e-6, (case.name, one.name)
    expected = {(op, name) for op in csr.KERNELS for name in ("numbanet", "dense", "torch", "SciPy")}
    assert seen == expected - {("csr_dw", "SciPy"), ("bsr_dw", "SciPy"), ("bsr_dw", "torch")}


@pytest.mark.slow
def test_the_suite_draws_its_own_chart(run_bench, tmp_path, monkeypatch):
    some = [case for case in csr.cases(Options(quick=True)) if case.name.startswith(("csr n", "bsr_dw"))]
    monkeypatch.setattr(csr, "cases", lambda options: some)
    status, _, errors = run_bench("csr", "--quick", "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png")
    assert status == 0, errors
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert {(row["case"].split()[0], row["implementation"]) for row in rows} >= {
        ("csr", "numbanet"),
        ("csr", "dense"),
        ("csr", "SciPy"),
        ("bsr_dw", "numbanet"),
    }
    assert (tmp_path / "a.png").stat().st_size > 1000


def _row(case, implementation, ms):
    return {"case": case, "implementation": implementation, "median_ms": ms}


def test_times_are_those_beside_the_dense_product():
    rows = [
        _row("csr n=1 sparsity=0.5", "numbanet", 9.0),
        _row("csr n=1 sparsity=0.5", "torch", 7.0),
        _row("csr n=1 sparsity=0.5, against dense", "numbanet", 1.0),
        _row("csr n=1 sparsity=0.5, against dense", "dense", 2.0),
        _row("bsr n=1 sparsity=0.5, against dense", "dense", 3.0),
        _row("bsr_dx n=1 sparsity=0.9, against SciPy", "SciPy", 4.0),
        _row("csr_dw n=1 sparsity=0.9", "torch", None),
    ]
    assert csr.times(rows) == {
        "forward": {"torch, CSR": {0.5: 7.0}, "CSR": {0.5: 1.0}, "dense": {0.5: 2.0}},
        "dx": {"SciPy, tiles of 32": {0.9: 4.0}},
        "dw": {},
    }


@pytest.mark.parametrize(
    "sparse, where",
    [
        ({0.5: 3.0, 0.7: 1.0, 0.9: 0.5}, 0.6),
        ({0.5: 1.0, 0.7: 0.5}, 0.5),
        ({0.5: 3.0, 0.7: 2.5}, None),
        ({}, None),
        ({0.5: 1.0, 0.7: 3.0, 0.9: 1.0}, 0.8),
    ],
)
def test_lines_cross_where_the_sparse_product_stays_faster(sparse, where):
    found = csr.crossing(sparse, dict.fromkeys((0.5, 0.7, 0.9), 2.0))
    assert found == (where if where is None else pytest.approx(where))
