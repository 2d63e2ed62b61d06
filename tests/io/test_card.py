"""Model cards: what a network is, in Markdown, beside its file."""

import json

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


@pytest.mark.parametrize("name, card", [("net-p0.5", "net-p0.5.md"), ("a.b.safetensors", "a.b.md"), ("plain", "plain.md")])
def test_a_card_has_the_whole_name_of_its_network(name, card, tmp_path):
    net = Net((8,), epochs=1, random_state=0).fit(np.eye(4, dtype=np.float32).repeat(5, 0), np.arange(20) % 2)
    net.save(tmp_path / name, card=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, card])


def test_a_card_that_cannot_be_written_leaves_the_network_as_it_was(tmp_path):
    net = Net((8,), epochs=1, random_state=0).fit(np.eye(4, dtype=np.float32).repeat(5, 0), np.arange(20) % 2)
    (tmp_path / "a.md").mkdir()
    with pytest.raises(IsADirectoryError):
        net.save(tmp_path / "a", card=True)
    assert not (tmp_path / "a").exists()
    net.save(tmp_path / "b", card=True)
    (tmp_path / "old.md").hardlink_to(tmp_path / "b.md")
    net.partial_fit(np.eye(4, dtype=np.float32), [0, 1, 0, 1]).save(tmp_path / "b", card=True)
    assert not (tmp_path / "b.md").samefile(tmp_path / "old.md")  # replaced as a whole


def test_a_card_is_not_written_without_its_network(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError("no space left")

    net = Net((8,), epochs=1, random_state=0).fit(np.eye(4, dtype=np.float32).repeat(5, 0), np.arange(20) % 2)
    monkeypatch.setattr("numbanet.datasets.files.write_file", full)
    with pytest.raises(OSError, match="no space left"):
        net.save(tmp_path / "a", card=True)
    monkeypatch.undo()
    written = []
    monkeypatch.setattr("numbanet.datasets.files.write_file", lambda path, content: written.append(path.name))
    net.save(tmp_path / "a", card=True)
    assert written == ["a", "a.md"]


def test_a_card_has_the_figures_of_the_weights_whatever_parameters_become(tmp_path):
    X, y = np.random.default_rng(0).standard_normal((300, 6)).astype(np.float32), np.arange(300) % 2
    net = Net((32,), early_stopping=True, patience=2, epochs=40, learning_rate=0.3, random_state=0).fit(X, y)
    assert net.best_epoch_ < net.n_iter_
    before = model_card(net).split("## Figures")[1]
    assert f"- loss: {net.history_[net.best_epoch_ - 1]['loss']:.4g}" in before
    assert model_card(net.set_params(early_stopping=False)).split("## Figures")[1] == before
    net.partial_fit(X, y).set_params(early_stopping=True)  # whose weights are those of the last epoch
    assert f"- loss: {net.history_[-1]['loss']:.4g}" in model_card(net)


def test_dates_are_classes_of_a_card_and_of_an_exported_file(tmp_path):
    onnx = pytest.importorskip("onnx", reason="the extra `onnx`")
    days = np.array(["2020-01-01", "2021-02-03"], "datetime64[D]")
    net = Net((8,), epochs=1, random_state=0).fit(np.eye(4, dtype=np.float32).repeat(5, 0), days[np.arange(20) % 2])
    assert "- 2 classes: 2020-01-01, 2021-02-03" in model_card(net)
    net.export(tmp_path / "a.onnx")
    told = {entry.key: entry.value for entry in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert json.loads(told["classes"]) == ["2020-01-01", "2021-02-03"]
