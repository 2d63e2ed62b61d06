"""Model cards: what a network is, in Markdown, beside its file."""

import numpy as np
import pytest

import numbanet
from numbanet import LanguageModel, Net
from numbanet.io import model_card


def test_a_card_has_layers_data_parameters_figures_and_versions(rng, tmp_path):
    X = rng.random((20, 4), np.float32)
    net = Net((8,), epochs=2, dropout="rdp").fit(X, np.array(["no", "yes"])[np.arange(20) % 2])
    net.save(tmp_path / "a.safetensors", card=True)
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert text == model_card(net)
    for part in (
        "# Net: 3 layers, 58 parameters",
        "Linear(4, 8)",
        "- shape of a sample: 4",
        "- 2 classes: no, yes",
        "- epochs trained: 2",
        "- dropout: `'rdp'`",
        f"- loss: {net.history_[-1]['loss']:.4g}",
        f"numbanet {numbanet.__version__}",
    ):
        assert part in text
    assert "solver" not in text  # parameters at their defaults are left out
    net.save(tmp_path / "b.safetensors")
    assert not (tmp_path / "b.md").exists()


def test_a_card_of_a_language_model_and_of_nothing():
    model = LanguageModel((4,), epochs=1, steps=5, batch_size=2).fit("the cat sat on the mat".split() * 9)
    assert f"- vocabulary: {len(model.vocabulary_)} words" in model_card(model)
    with pytest.raises(ValueError, match="not fitted"):
        model_card(Net())
