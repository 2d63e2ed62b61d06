"""The suite of tabular data fits what is missing, compares with the better peer, and continues only runs with its settings."""

import numpy as np
import pytest

from bench.machinery.harness import Options
from bench.machinery.results import Results, load
from bench.training import tables

SCORES = {"scikit-learn": 0.75, "torch": 0.5}


@pytest.fixture
def fitted(monkeypatch):
    """The (number of samples, name of the estimator's class) of each fit; nothing is trained."""
    found = []

    def scores(table, seeds, kind):
        made = kind(table, 0)
        found.append((len(table.X), type(made).__name__))
        return [SCORES.get({"_Torch": "torch", "MLPClassifier": "scikit-learn"}.get(found[-1][1]), 1.0)] * 5 * seeds

    monkeypatch.setattr(tables, "_scores", scores)
    return found


def test_missing_estimators_are_fitted_and_compared_with_the_better_peer(fitted, tmp_path):
    path, options = tmp_path / "a.json", Options(quick=True, only="iris, equal")
    rows = tables.run(options, Results(path), lambda text: None)
    by_name = {row["implementation"]: row for row in rows}
    assert {size for size, _ in fitted} == {150} and len(fitted) == len(rows) == len(load(path)["runs"])
    assert by_name["numbanet"]["peer"] == "scikit-learn" and by_name["numbanet"]["above"] == pytest.approx(0.25)
    assert load(path)["rows"] == rows and load(path)["runs"][0]["settings"] == {"epochs": 2, "seeds": 1, "device": "cpu"}
    fitted.clear()
    assert tables.run(options, Results(path), lambda text: None) == rows and not fitted
    for other in (Options(only="iris, equal"), Options(device="cuda", quick=True)):
        with pytest.raises(ValueError, match="holds training runs with other settings"):
            tables.run(other, Results(path), lambda text: None)
    assert load(path)["rows"] == rows


def test_finished_fits_are_reported_if_the_command_is_interrupted(fitted, tmp_path, monkeypatch):
    path, scores = tmp_path / "a.json", tables._scores

    def second(*given):
        if len(fitted) == 1:
            raise KeyboardInterrupt
        return scores(*given)

    monkeypatch.setattr(tables, "_scores", second)
    with pytest.raises(KeyboardInterrupt):
        tables.run(Options(quick=True), Results(path), lambda text: None)
    assert [row["implementation"] for row in load(path)["rows"]] == ["scikit-learn"]


def test_folds_are_standardised_by_their_training_part():
    for X, _, X_test, _ in tables._splits(tables.TABLES["iris"](), 0):
        assert np.abs(X.mean(0)).max() < 1e-5 and X.std(0) == pytest.approx(1, abs=1e-4) and len(X_test) == 30
