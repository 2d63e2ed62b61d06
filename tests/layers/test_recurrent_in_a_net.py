"""GRU and LSTM in a Net: sequences of any length are classified, padded, saved."""

import copy

import numpy as np
import pytest

from numbanet import (
    GRU,
    LSTM,
    BernoulliDropout,
    Context,
    Embedding,
    LanguageModel,
    LastStep,
    Linear,
    Net,
    RowDropout,
    Sequential,
    Tensor,
    TileDropout,
)
from numbanet.dropout import Together, recurrent
from numbanet.layers import Flow
from tests.layers.sentences import sentences
from tests.layers.tolerance import close


@pytest.mark.slow
@pytest.mark.parametrize("kind, both", [(GRU, False), (GRU, True), (LSTM, True)])
@pytest.mark.parametrize(
    "dropout",
    [
        "none",
        BernoulliDropout(0.2),
        RowDropout(0.3),
        TileDropout(0.3, tile=4),
        Together(RowDropout(0.2), recurrent(RowDropout(0.3))),
    ],
    ids=str,
)
def test_a_net_classifies_sequences_and_is_saved(rng, tmp_path, dropout, kind, both):
    X, y = sentences(rng)
    layers = [
        Embedding(6, 8, padding_idx=0, rng=0),
        kind(8, 12, batch_first=True, bidirectional=both, rng=1),
        LastStep(both),
        Linear(12 * (1 + both), 2, rng=2),
    ]
    net = Net(
        layers, dropout=dropout, epochs=40, batch_size=30, optimizer="adam", learning_rate=0.02, random_state=0, device="cpu"
    ).fit(X, y)
    assert net.score(X, y) > 0.9
    longer = np.pad(X, ((0, 0), (0, 0)))
    np.testing.assert_allclose(net.predict_proba(longer), net.predict_proba(X))
    if isinstance(dropout, Together):
        net.set_params(dropout="none")  # files have no several policies
    net.save(tmp_path / "net")
    np.testing.assert_array_equal(Net.load(tmp_path / "net").predict_proba(X), net.predict_proba(X))


@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_padding_changes_nothing(rng, kind):
    """Neither what is predicted nor what is learned of a sequence depends on how far it is filled up, in both directions."""
    model = Sequential(
        [
            Embedding(6, 8, padding_idx=0, rng=0),
            kind(8, 12, 2, batch_first=True, bidirectional=True, rng=1),
            LastStep(True),
            Linear(24, 2, rng=2),
        ]
    )
    X, found = sentences(rng, 5)[0].astype(np.int32), []
    for filled in (X, np.pad(X, ((0, 0), (0, 4)))):
        x = Tensor.wrap(np.ascontiguousarray(filled), model[0].weight.device)
        y = model.forward(Flow(x), Context()).dense()
        y.sum().backward()
        found.append([y.numpy(), *(np.array(p.grad.numpy()) for p in model.parameters())])
        for p in model.parameters():
            p.zero_grad()
    for mine, other in zip(*found, strict=True):
        close(mine, other)


@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_time_steps_come_after_samples(rng, kind):
    """Otherwise samples would be read as time steps, so that each prediction depends on the others."""
    X, y = rng.standard_normal((16, 5, 3)).astype(np.float32), np.arange(16) % 2
    words = rng.integers(0, 7, (16, 5))
    for first, samples in (([], X), ([Embedding(7, 3, rng=0)], words)):
        with pytest.raises(ValueError, match="samples come first: give it batch_first=True"):
            Net([*first, kind(3, 4, rng=1), LastStep(), Linear(4, 2, rng=2)], epochs=1).fit(samples, y)


def test_a_layer_that_is_used_twice_cannot_carry_over_its_state():
    """Both uses would share it; two layers may share their tensors."""
    words = "the cat sat on the mat and the dog sat on the rug".split() * 10
    net = LanguageModel((8,), epochs=1, batch_size=2, steps=6, random_state=0).fit(words)
    before, layers = net.model_.state_dict(), net.model_.layers
    layers.insert(1, layers[1])
    with pytest.raises(ValueError, match=r"LSTM\(8, 8\) is used 2 times .* make a layer for each use"):
        net.partial_fit(words)
    layers[1] = copy.copy(layers[2])
    after = net.partial_fit(words).model_.state_dict()
    assert np.array_equal(after["1.weight_hh_l0"], after["2.weight_hh_l0"])
    assert not np.array_equal(after["1.weight_hh_l0"], before["1.weight_hh_l0"])
