"""dropout="auto": the rule, and what estimators say about it."""

import numpy as np
import pytest

from numbanet import Linear, Net, NetRegressor, ReLU
from numbanet.dropout import BatchwiseDropout, EarlyDropout, NoDropout, WindowDropout, automatic


@pytest.mark.parametrize(
    "widths, rate, samples, kind, said",
    [
        (None, 0.5, None, NoDropout, "not given by their widths"),
        ((255, 512, 10), 0.5, 100, NoDropout, "255 features"),
        ((256, 512, 511, 10), 0.5, 10_000, NoDropout, "narrower than 512"),
        ((256, 10), 0.5, None, NoDropout, "narrower than 512"),
        ((256, 512, 512, 10), 0.5, None, WindowDropout, "window in the first 75% of the epochs"),
        ((256, 512, 512, 10), 0.5, 2500, WindowDropout, "window in the first 75% of the epochs"),
        ((256, 512, 512, 10), 0.5, 2499, BatchwiseDropout, "batchwise in the first 75% of the epochs"),
        ((784, 1024, 10), (0.3,), None, WindowDropout, "window: "),
    ],
)
def test_the_rule(widths, rate, samples, kind, said):
    chosen = automatic(widths, rate, samples)
    assert type(chosen) is kind and said in chosen.reason
    if kind is not NoDropout:
        assert chosen.rate == (EarlyDropout(rate) if isinstance(rate, float) else rate)


@pytest.mark.parametrize("estimator, features", [(Net, 256), (NetRegressor, 256), (Net, 20)])
def test_an_estimator_says_what_it_chose(estimator, features, capsys):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((48, features)), np.arange(48) % 2
    net = estimator((512,), dropout="auto", epochs=4, verbose=1, random_state=0).fit(X, y)
    chosen = automatic((features, 512, 2), samples=48)
    assert f"dropout: {chosen.reason}" in capsys.readouterr().out
    assert {record["dropout"] for record in net.history_} == {chosen.reason}
    assert [record["dropout_rate"] for record in net.history_] == ([0.5] * 3 + [0] if features == 256 else [0] * 4)
    assert type(net.policy_) is type(chosen)


def test_layers_and_partial_fit_get_none():
    X, y = np.random.default_rng(0).standard_normal((48, 256)), np.arange(48) % 2
    given = Net([Linear(256, 512), ReLU(), Linear(512, 2)], dropout="auto", epochs=1, random_state=0).fit(X, y)
    part = Net((512,), dropout="auto", random_state=0).partial_fit(X, y)
    assert given.policy_.name == part.policy_.name == "none" and "partial_fit" in part.policy_.reason


def test_a_saved_network_keeps_the_policy(tmp_path):
    X, y = np.random.default_rng(0).standard_normal((48, 256)), np.arange(48) % 2
    net = Net((512,), dropout="auto", epochs=2, random_state=0).fit(X, y)
    net.save(tmp_path / "net.safetensors")
    again = Net.load(tmp_path / "net.safetensors")
    assert again.dropout == "auto" and again.policy_.reason == net.policy_.reason
    np.testing.assert_array_equal(again.predict_proba(X), net.predict_proba(X))
