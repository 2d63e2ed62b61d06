"""Each rank has samples of its own: what counts of them, in losses and in statistics of a batch."""

import numpy as np
import pytest

from numbanet import LSTM, BatchNorm1d, Embedding, Linear, Net, Tensor, ops
from numbanet.parallel import run_ranks
from numbanet.parallel.ranks import Team

RNG = np.random.default_rng(0)
SETTINGS = {"random_state": 0, "device": "cpu"}


def test_shards_of_which_one_is_padded():
    """Sequences with a label for each time step; only those of one rank have padding, which counts nowhere."""
    words = RNG.integers(1, 12, (40, 6))
    words[12:15, -2:] = 0
    rows = [slice(0, 12), slice(12, 40)]

    def fit(ranks, own=slice(None)):
        layers = [Embedding(12, 8, padding_idx=0, rng=1), LSTM(8, 8, batch_first=True, rng=2), Linear(8, 11, rng=3)]
        shard = {} if ranks is None else {"parallel": ranks, "shard": True}
        net = Net(layers, epochs=3, batch_size=40, optimizer="sgd", learning_rate=0.1, **shard, **SETTINGS)
        return net.fit(words[own], words[own])

    alone, (net, other) = fit(None), run_ranks(2, lambda ranks: fit(ranks, rows[ranks.rank]))
    for name, tensor in alone.model_.state_dict().items():
        ours, theirs = (found.model_.state_dict()[name] for found in (net, other))
        np.testing.assert_allclose(ours, tensor, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    for name in ("loss", "score"):
        assert [record[name] for record in net.history_] == pytest.approx([record[name] for record in alone.history_], rel=1e-5)


def test_a_sample_that_only_keeps_a_rank_busy_is_in_no_statistics():
    """Rank 0 has samples for three of six steps; in the others it takes the first one with weight 0."""
    x, y = np.repeat([100.0, 0.0], [3, 40])[:, None] * np.ones((1, 4)), np.arange(43) % 2
    rows = [slice(0, 3), slice(3, 43)]

    def fit(ranks):
        layers = [BatchNorm1d(4, momentum=None), Linear(4, 2, rng=1)]
        net = Net(layers, epochs=1, batch_size=8, parallel=ranks, shard=True, **SETTINGS)
        return net.fit(x[rows[ranks.rank]], y[rows[ranks.rank]]).model_[0].running_mean.numpy()

    for mean in run_ranks(2, fit):
        np.testing.assert_allclose(mean, 3 * 100 / 8 / 6, rtol=1e-5)  # rank 1 has 7 samples in each of these steps


def test_gradients_of_normalised_samples_of_weight_0_are_0():
    x, dy = RNG.standard_normal((5, 4)), np.append(RNG.standard_normal((4, 4)), np.zeros((1, 4)), axis=0)

    def both(ranks, own):
        given, gamma = (Tensor(values, requires_grad=True) for values in (x[own], np.arange(1.0, 5.0)))
        y = ops.batch_norm(given, gamma, ranks=ranks)
        y.backward(Tensor(dy[own]))
        return y.numpy(), given.grad.numpy(), gamma.grad.numpy()

    def of_rank(ranks):
        return both(Team(ranks, True).counting(ranks.rank == 0), slice(0, 4) if ranks.rank == 0 else slice(4, 5))

    alone, ours, other = both(None, slice(0, 4)), *run_ranks(2, of_rank)
    for expected, found in zip(alone, ours, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert not other[1].any() and not other[2].any()
