"""Networks through time, too, train the same whether their steps are recorded on the CPU or not."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numbanet import GRU, LSTM, BatchwiseDropout, Embedding, LanguageModel, LastStep, Linear, Net, RowDropout
from numbanet.training.recorder import Recorder
from numbanet_kernels.host import thresholds

from ..networks import on_threads
from .test_recorded_steps import equal, replays  # noqa: F401  a fixture

WORDS = 11


def text(words=900):
    return [f"w{i}" for i in np.random.default_rng(0).integers(WORDS - 1, size=words)]


def language(**options):
    """Of 43 words in each of 20 texts: four steps of 9 and one of 7."""
    given = {"epochs": 4, "dropout": "none", "batch_size": 20, "steps": 9, **options}
    return LanguageModel((24, 24), random_state=0, **given).fit(text())


def classify(layers, ids=True, **options):
    rng = np.random.default_rng(0)
    x = rng.integers(WORDS, size=(60, 7)) if ids else rng.standard_normal((60, 7, 5), np.float32)
    given = {"epochs": 4, "dropout": "none", "batch_size": 15, "optimizer": "adam", **options}
    return Net(layers(), random_state=0, **given).fit(x, np.arange(60) % 3)


def words(cell, **options):
    width = 10 * (1 + options.get("bidirectional", False))
    return lambda: [
        Embedding(WORDS, 6, rng=0),
        cell(6, 10, batch_first=True, rng=1, **options),
        LastStep(options.get("bidirectional", False)),
        Linear(width, 3, rng=2),
    ]


def numbers(cell):
    return lambda: [cell(5, 10, 2, batch_first=True, rng=1), LastStep(), Linear(10, 3, rng=2)]


FITS = {
    "language model": lambda **given: language(**given),
    "units": lambda **given: language(dropout=RowDropout(0.5, dp_max=2), epochs=12, **given),
    "units at random": lambda **given: language(dropout=BatchwiseDropout(0.5), **given),
    "what comes back": lambda **given: language(recurrent_dropout="rdp", recurrent_dropout_rate=0.5, epochs=6, **given),
    "what comes back at each step": lambda **given: language(
        recurrent_dropout="rdp", recurrent_dropout_rate=0.5, recurrent_sampling="step", epochs=6, **given
    ),
    "gates": lambda **given: language(gate_sparsity=0.5, gate_schedule=0.7, epochs=12, **given),
    "gates and units": lambda **given: language(
        gate_sparsity=0.5, gate_schedule=1.0, dropout=RowDropout(0.5, dp_max=2), **given
    ),
    "lstm": lambda **given: classify(words(LSTM), **given),
    "two directions": lambda **given: classify(words(LSTM, bidirectional=True), **given),
    "gru": lambda **given: classify(words(GRU), optimizer="sgd", **given),
    "numbers, lstm": lambda **given: classify(numbers(LSTM), ids=False, **given),
    "numbers, gru": lambda **given: classify(numbers(GRU), ids=False, **given),
}


def test_gates_that_are_compared_with_dense_ones_run_op_by_op(replays):  # noqa: F811
    """Of four steps of an epoch, the first one is compared. The others are of two kinds, because the update, which is recorded
    with the passes, brings all weights up to date at the end of an epoch; of each kind, the first one runs op by op as well."""
    fit = language(gate_sparsity=0.5, gate_schedule=1.0, epochs=5, steps=11)
    assert [record["gates_kept"] for record in fit.history_] == pytest.approx([0.5] * 5, abs=0.02)  # some are 0 by themselves
    assert sorted(replays.values()) == [4, 9]  # of 5 and 10
    assert all("_bit_lists" in recorded.names.values() for recorded in replays)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fit. the network answers no better")
@on_threads(FITS)
def test_replayed_steps_train_the_same(monkeypatch, replays, name, size):  # noqa: F811
    fit = FITS[name]
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        ours = fit(n_jobs=size)
        assert sum(replays.values()) > 8 and all(recorded.threads == size for recorded in replays)
        count = len(replays)
        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
            equal(ours, fit(n_jobs=size))
    assert len(replays) == count
